//! Where an allocator's memory comes from.

use super::Relocation;
use crate::Bytes;
use crate::base::budget::SlotMemory;
use crate::device::{Device, DeviceError, Memory, ReservedMemory};
use serde::Serialize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment of an allocator. Numbers are used again after a segment was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SegmentId(pub u32);

/// A segment that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its name.
    pub id: SegmentId,
    /// Its addresses: offsets from zero to this size.
    pub size: Bytes,
}

/// A source of memory in segments: one per allocator.
///
/// A segment either has all of its memory from the start, or is an address range of which parts are committed on
/// demand. The second kind grows in place, and pages of free blocks can be given back, so that little memory is
/// reserved beyond the live blocks.
pub trait Segments: Send {
    /// The memory space, such as `host` or `cuda:0`.
    fn space(&self) -> String;

    /// Alignment of the first byte of a segment, and of all blocks. A power of two.
    fn alignment(&self) -> Bytes;

    /// The memory that could be used, if that is known. A limit as a fraction is a fraction of this.
    fn capacity(&self) -> Option<Bytes> {
        None
    }

    /// If set, segments are addresses without memory, which is committed in multiples of this size, a power of two and
    /// a multiple of the alignment. Otherwise, a segment has all of its memory from the start.
    fn granule(&self) -> Option<Bytes> {
        None
    }

    /// Opens a segment of at least `size` bytes; of exactly this size if it has all of its memory from the start.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn open(&mut self, size: Bytes) -> Result<Opened, DeviceError>;

    /// Closes a segment. No block is in it.
    fn close(&mut self, segment: SegmentId);

    /// Puts memory behind addresses. Both ends are multiples of the granule.
    ///
    /// # Errors
    /// If the device has no memory left.
    fn commit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        let _ = (segment, range);
        Ok(())
    }

    /// Gives the memory behind addresses back. Both ends are multiples of the granule, and all of it was committed.
    ///
    /// # Errors
    /// If the device fails. The memory is then still there.
    fn decommit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        let _ = (segment, range);
        Ok(())
    }
}

/// Opens one segment of at least `size` bytes with memory behind all of these. Returns it with that size.
pub(super) fn open_committed(segments: &mut dyn Segments, size: Bytes) -> Result<(Opened, u64), DeviceError> {
    let granule = segments.granule();
    let size = size.align_up(granule.unwrap_or(Bytes(1)).0);
    let opened = segments.open(size)?;
    if granule.is_some()
        && let Err(error) = segments.commit(opened.id, 0..size.0)
    {
        segments.close(opened.id);
        return Err(error);
    }
    Ok((opened, size.0))
}

/// Memory of a device. Clones share the same segments: one goes to the allocator, another finds the memory of a block.
#[derive(Clone)]
pub struct DeviceSegments {
    device: Arc<dyn Device>,
    granule: Option<Bytes>,
    held: Shared<Held>,
    /// The first address range, until it is opened.
    first: Arc<Mutex<Option<Box<dyn ReservedMemory>>>>,
}

/// Segments by number, shared by clones.
type Shared<T> = Arc<Mutex<Vec<Option<T>>>>;

/// The memory of the segments of a [`DeviceSegments`].
pub struct Memories<'a>(MutexGuard<'a, Vec<Option<Held>>>);

impl Memories<'_> {
    /// The memory of a segment, if there is one.
    pub fn get(&self, segment: SegmentId) -> Option<&dyn Memory> {
        Some(match self.0.get(segment.0 as usize)?.as_ref()? {
            Held::Whole(memory) => &**memory,
            Held::Reserved(memory) => &**memory,
        })
    }
}

enum Held {
    Whole(Box<dyn Memory>),
    Reserved(Box<dyn ReservedMemory>),
}

/// Addresses that are reserved at once. Where a process may not have that many, fewer are.
const MOST_ADDRESSES: u64 = 1 << 40;
const FEWEST_ADDRESSES: u64 = 1 << 24;

impl DeviceSegments {
    /// Segments on demand if the device has such memory, else segments of a fixed size.
    ///
    /// # Errors
    /// If the device cannot reserve addresses.
    pub fn new(device: Arc<dyn Device>) -> Result<DeviceSegments, DeviceError> {
        let first = reserve(&*device, Bytes(1))?;
        let granule = first.as_ref().map(|memory| memory.granule());
        Ok(DeviceSegments { device, granule, held: Arc::default(), first: Arc::new(Mutex::new(first)) })
    }

    /// Segments of a fixed size, which have all of their memory from the start: one allocation of the device each.
    pub fn fixed(device: Arc<dyn Device>) -> DeviceSegments {
        DeviceSegments { device, granule: None, held: Arc::default(), first: Arc::default() }
    }

    /// Calls `then` with the memory of a segment; `None` if there is no such segment.
    pub fn with<T>(&self, segment: SegmentId, then: impl FnOnce(&mut dyn Memory) -> T) -> Option<T> {
        match self.lock().get_mut(segment.0 as usize)?.as_mut()? {
            Held::Whole(memory) => Some(then(&mut **memory)),
            Held::Reserved(memory) => Some(then(&mut **memory)),
        }
    }

    /// The memory of all segments. No segment is opened or closed while it is held.
    pub fn memories(&self) -> Memories<'_> {
        Memories(self.lock())
    }

    /// Copies the bytes of a block that moves within its segment, as [`compact`](super::Allocator::compact) asks.
    ///
    /// # Errors
    /// If the device fails, or the block moves to another segment.
    pub fn copy(&self, block: &Relocation) -> Result<(), DeviceError> {
        let Relocation { from, to, .. } = block;
        let copied = match from.segment == to.segment {
            true => self.with(from.segment, |memory| memory.copy_within(from.offset, to.offset, from.size)),
            false => None,
        };
        copied.unwrap_or_else(|| {
            let what = format!("cannot copy {} from segment {} to segment {}", from.size, from.segment.0, to.segment.0);
            Err(DeviceError::Unsupported { device: self.device.name(), what })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved<T>(
        &self,
        segment: SegmentId,
        then: impl FnOnce(&mut dyn ReservedMemory) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        match self.lock().get_mut(segment.0 as usize) {
            Some(Some(Held::Reserved(memory))) => then(&mut **memory),
            _ => Err(DeviceError::Failed { device: self.device.name(), what: format!("segment {} has no memory on demand", segment.0) }),
        }
    }
}

/// As many addresses as the system grants, at least `least` bytes; none if the device has no memory on demand.
fn reserve(device: &dyn Device, least: Bytes) -> Result<Option<Box<dyn ReservedMemory>>, DeviceError> {
    let mut size = MOST_ADDRESSES.max(least.0);
    loop {
        match device.reserve(Bytes(size)) {
            Err(_) if size / 4 >= least.0.max(FEWEST_ADDRESSES) => size /= 4,
            result => return result,
        }
    }
}

impl Segments for DeviceSegments {
    fn space(&self) -> String {
        if self.device.memory_info().is_some() { self.device.name() } else { "host".to_string() }
    }

    fn alignment(&self) -> Bytes {
        self.device.capabilities().alignment
    }

    fn capacity(&self) -> Option<Bytes> {
        self.device.memory_info().map(|info| info.available)
    }

    fn granule(&self) -> Option<Bytes> {
        self.granule
    }

    fn open(&mut self, size: Bytes) -> Result<Opened, DeviceError> {
        if self.granule.is_none() {
            let memory = self.device.allocate(size)?;
            return Ok(Opened { size: memory.size(), id: insert(&mut self.lock(), Held::Whole(memory)) });
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let memory = match first.filter(|memory| memory.size() >= size) {
            Some(memory) => memory,
            None => reserve(&*self.device, size)?.ok_or_else(|| DeviceError::Failed {
                device: self.device.name(),
                what: "it reserved addresses once, but not a second time".to_string(),
            })?,
        };
        Ok(Opened { size: memory.size(), id: insert(&mut self.lock(), Held::Reserved(memory)) })
    }

    fn close(&mut self, segment: SegmentId) {
        remove(&mut self.lock(), segment);
    }

    fn commit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        self.reserved(segment, |memory| memory.commit(Bytes(range.start), Bytes(range.end - range.start)))
    }

    fn decommit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        self.reserved(segment, |memory| memory.decommit(Bytes(range.start), Bytes(range.end - range.start)))
    }
}

/// Host memory from which a device copies, such as pinned memory. Clones share the same segments.
#[derive(Clone)]
pub struct PinnedSegments {
    device: Arc<dyn Device>,
    held: Shared<Box<dyn SlotMemory>>,
}

impl PinnedSegments {
    /// No segments yet.
    pub fn new(device: Arc<dyn Device>) -> PinnedSegments {
        PinnedSegments { device, held: Arc::default() }
    }

    /// Calls `then` with the memory of a segment; `None` if there is no such segment.
    pub fn with<T>(&self, segment: SegmentId, then: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_mut(segment.0 as usize)?.as_mut().map(|memory| then(memory.bytes_mut()))
    }
}

impl Segments for PinnedSegments {
    fn space(&self) -> String {
        format!("pinned host ({})", self.device.name())
    }

    fn alignment(&self) -> Bytes {
        Bytes(64)
    }

    fn open(&mut self, size: Bytes) -> Result<Opened, DeviceError> {
        let memory = self.device.slot_memory(size)?.ok_or_else(|| DeviceError::Unsupported {
            device: self.device.name(),
            what: "it copies from any host memory; allocate host memory instead of pinned memory".to_string(),
        })?;
        let id = insert(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner), memory);
        Ok(Opened { id, size })
    }

    fn close(&mut self, segment: SegmentId) {
        remove(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner), segment);
    }
}

/// Addresses without memory: for tests, and to replay traces of runs that this machine could not hold.
pub struct VirtualSegments {
    space: String,
    alignment: Bytes,
    capacity: Option<Bytes>,
    on_demand: Option<(Bytes, Bytes)>,
    segments: Vec<Option<Bytes>>,
}

impl VirtualSegments {
    /// Segments that have all of their memory from the start.
    pub fn new(space: &str, alignment: Bytes) -> VirtualSegments {
        VirtualSegments { space: space.to_string(), alignment, capacity: None, on_demand: None, segments: Vec::new() }
    }

    /// Segments of `size` bytes of addresses, of which memory is committed in multiples of `granule`, a power of two.
    pub fn on_demand(self, size: Bytes, granule: Bytes) -> VirtualSegments {
        VirtualSegments { on_demand: Some((size.align_up(granule.0), granule)), ..self }
    }

    /// States the memory that could be used.
    pub fn capacity(self, capacity: Bytes) -> VirtualSegments {
        VirtualSegments { capacity: Some(capacity), ..self }
    }
}

impl Segments for VirtualSegments {
    fn space(&self) -> String {
        self.space.clone()
    }

    fn alignment(&self) -> Bytes {
        self.alignment
    }

    fn capacity(&self) -> Option<Bytes> {
        self.capacity
    }

    fn granule(&self) -> Option<Bytes> {
        self.on_demand.map(|(_, granule)| granule)
    }

    fn open(&mut self, size: Bytes) -> Result<Opened, DeviceError> {
        let size = self.on_demand.map_or(size, |(addresses, granule)| addresses.max(size.align_up(granule.0)));
        Ok(Opened { id: insert(&mut self.segments, size), size })
    }

    fn close(&mut self, segment: SegmentId) {
        remove(&mut self.segments, segment);
    }
}

/// Takes the lowest unused number.
fn insert<T>(segments: &mut Vec<Option<T>>, segment: T) -> SegmentId {
    let index = segments.iter().position(Option::is_none).unwrap_or_else(|| {
        segments.push(None);
        segments.len() - 1
    });
    segments[index] = Some(segment);
    SegmentId(index as u32)
}

fn remove<T>(segments: &mut [Option<T>], segment: SegmentId) {
    if let Some(held) = segments.get_mut(segment.0 as usize) {
        *held = None;
    }
}
