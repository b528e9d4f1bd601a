//! Snapshots for PyTorch's memory viewer, as `torch.cuda.memory._dump_snapshot` writes them.

use crate::pickle::Pickle;
use std::io::{self, Write};

/// A contiguous allocation with the blocks in it.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The blocks in use, in the order of their addresses.
    pub blocks: Vec<Block>,
}

/// A part of a segment that is in use when the snapshot is taken.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// What it is for, as an index into the frames.
    pub frame: u32,
}

/// What memory is for: a line of a stack trace in the viewer.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The name, shown like a function.
    pub name: String,
    /// Where it belongs, shown like a file.
    pub file: String,
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A segment was allocated.
    Segment,
    /// A block begins to be live.
    Allocate,
    /// A block is free.
    Free,
}

/// One event of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// The first address.
    pub address: u64,
    /// The size in bytes.
    pub size: u64,
    /// What it is for, as an index into the frames.
    pub frame: u32,
    /// When, in microseconds.
    pub time_us: u64,
}

/// Writes a snapshot of one device. Frames are written once; events are written as they come.
///
/// ```
/// use plimsoll_formats::memory_snapshot::{Action, Event, Frame, Segment, write};
/// let frames = [Frame { name: "conv2d".into(), file: "forward".into() }];
/// let segments = [Segment { address: 4096, size: 512, blocks: vec![] }];
/// let event = |action, time_us| Event { action, address: 4096, size: 512, frame: 0, time_us };
/// let pickle = write(Vec::new(), &frames, &segments, [event(Action::Segment, 0), event(Action::Allocate, 1)])?;
/// assert_eq!((&pickle[..2], pickle.last()), (&b"\x80\x02"[..], Some(&b'.')));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write<W: Write>(writer: W, frames: &[Frame], segments: &[Segment], events: impl IntoIterator<Item = Event>) -> io::Result<W> {
    let mut pickle = Pickle::new(writer)?;
    for (index, frame) in (0..).zip(frames) {
        pickle.list()?;
        pickle.dict()?;
        pickle.text_entry("name", &frame.name)?;
        pickle.text_entry("filename", &frame.file)?;
        pickle.entry("line", 0)?;
        pickle.set_items()?;
        pickle.appends()?;
        pickle.put(index)?;
        pickle.pop()?;
    }
    pickle.dict()?;
    pickle.text("segments")?;
    pickle.list()?;
    segments.iter().try_for_each(|part| segment(&mut pickle, part))?;
    pickle.appends()?;
    pickle.text("device_traces")?;
    pickle.list()?;
    pickle.list()?;
    events.into_iter().try_for_each(|happened| event(&mut pickle, happened))?;
    pickle.appends()?;
    pickle.appends()?;
    pickle.text("allocator_settings")?;
    pickle.dict()?;
    pickle.set_items()?;
    pickle.set_items()?;
    pickle.finish()
}

fn segment<W: Write>(pickle: &mut Pickle<W>, segment: &Segment) -> io::Result<()> {
    let used: u64 = segment.blocks.iter().map(|block| block.size).sum();
    pickle.dict()?;
    for (key, value) in [("device", 0), ("address", segment.address), ("total_size", segment.size), ("stream", 0)] {
        pickle.entry(key, value)?;
    }
    for key in ["allocated_size", "active_size", "requested_size"] {
        pickle.entry(key, used)?;
    }
    pickle.text_entry("segment_type", "large")?;
    pickle.text("segment_pool_id")?;
    pickle.pair(0, 0)?;
    pickle.text("is_expandable")?;
    pickle.flag(false)?;
    pickle.text("frames")?;
    pickle.list()?;
    pickle.appends()?;
    pickle.text("blocks")?;
    pickle.list()?;
    let mut end = segment.address;
    for part in &segment.blocks {
        gap(pickle, end, part.address)?;
        block(pickle, part.address, part.size, Some(part.frame))?;
        end = part.address + part.size;
    }
    gap(pickle, end, segment.address + segment.size)?;
    pickle.appends()?;
    pickle.set_items()
}

fn gap<W: Write>(pickle: &mut Pickle<W>, from: u64, to: u64) -> io::Result<()> {
    if to > from { block(pickle, from, to - from, None) } else { Ok(()) }
}

/// A block in use, or a free one without a frame.
fn block<W: Write>(pickle: &mut Pickle<W>, address: u64, size: u64, frame: Option<u32>) -> io::Result<()> {
    pickle.dict()?;
    pickle.entry("address", address)?;
    pickle.entry("size", size)?;
    pickle.entry("requested_size", if frame.is_some() { size } else { 0 })?;
    pickle.text_entry("state", if frame.is_some() { "active_allocated" } else { "inactive" })?;
    pickle.text("frames")?;
    match frame {
        Some(frame) => pickle.get(frame)?,
        None => {
            pickle.list()?;
            pickle.appends()?;
        }
    }
    pickle.set_items()
}

fn event<W: Write>(pickle: &mut Pickle<W>, event: Event) -> io::Result<()> {
    // The viewer waits for a block's completion; here it is free at once.
    let actions: &[&str] = match event.action {
        Action::Segment => &["segment_alloc"],
        Action::Allocate => &["alloc"],
        Action::Free => &["free_requested", "free_completed"],
    };
    for action in actions {
        pickle.dict()?;
        pickle.text_entry("action", action)?;
        for (key, value) in [("addr", event.address), ("size", event.size), ("stream", 0), ("time_us", event.time_us)] {
            pickle.entry(key, value)?;
        }
        pickle.text("frames")?;
        pickle.get(event.frame)?;
        pickle.set_items()?;
    }
    Ok(())
}
