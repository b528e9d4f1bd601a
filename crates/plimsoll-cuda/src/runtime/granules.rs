//! Addresses of device memory, parts of which have memory: an allocation grows in place, and its parts are given back.

use crate::libraries::driver::Context;
use cudarc::driver::{DriverError, result, sys};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reserved addresses. Memory is mapped behind them in granules, one allocation of the driver each, so that any of them
/// can be unmapped alone.
pub(super) struct Granules {
    start: sys::CUdeviceptr,
    size: u64,
    granule: u64,
    ordinal: i32,
    /// The granules that have memory, by number.
    mapped: Mutex<BTreeMap<u64, sys::CUmemGenericAllocationHandle>>,
}

impl Granules {
    /// Reserves addresses of at least `size` bytes; none if the GPU has no memory on demand. The context is current.
    pub fn reserve(context: &Context, size: u64) -> Result<Option<Granules>, DriverError> {
        let ordinal = context.ordinal as i32;
        let supported = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        // SAFETY: the ordinal is that of an open GPU.
        if unsafe { result::device::get_attribute(result::device::get(ordinal)?, supported) }? == 0 {
            return Ok(None);
        }
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granule = 0;
        // SAFETY: both pointers are valid for the call.
        unsafe { sys::cuMemGetAllocationGranularity(&mut granule, &properties(ordinal), minimum) }.result()?;
        let granule = granule as u64;
        if !granule.is_power_of_two() {
            return Ok(None);
        }
        let size = size.max(1).next_multiple_of(granule);
        let mut start = 0;
        // SAFETY: the pointer is valid for the call.
        unsafe { sys::cuMemAddressReserve(&mut start, size as usize, 0, 0, 0) }.result()?;
        Ok(Some(Granules { start, size, granule, ordinal, mapped: Mutex::default() }))
    }

    /// The first address.
    pub fn start(&self) -> sys::CUdeviceptr {
        self.start
    }

    /// The bytes of addresses.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of a granule, a power of two.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Whether all of these bytes have memory.
    pub fn have_memory(&self, offset: u64, length: u64) -> bool {
        let Some(end) = offset.checked_add(length) else { return false };
        let numbers = offset / self.granule..end.div_ceil(self.granule);
        length == 0 || self.mapped().range(numbers.clone()).count() as u64 == numbers.end - numbers.start
    }

    /// Maps zeroed memory behind granules that have none, all of them or none. The context is current.
    pub fn commit(&self, granules: Range<u64>) -> Result<(), DriverError> {
        let mut mapped = self.mapped();
        if mapped.range(granules.clone()).next().is_some() {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_ALREADY_MAPPED));
        }
        let done = self.map(granules.clone(), &mut mapped).and_then(|()| self.make_accessible(&granules));
        if done.is_err() {
            let _ = self.unmap(granules, &mut mapped);
        }
        done
    }

    /// Unmaps granules that have memory. The GPU is idle.
    pub fn decommit(&self, granules: Range<u64>) -> Result<(), DriverError> {
        self.unmap(granules, &mut self.mapped())
    }

    /// The granules of a range of bytes that lies in the addresses; none if its ends are not ends of granules.
    pub fn of_range(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        let end = offset.checked_add(length).filter(|end| *end <= self.size)?;
        let whole = offset.is_multiple_of(self.granule) && end.is_multiple_of(self.granule);
        whole.then(|| offset / self.granule..end / self.granule)
    }

    fn map(&self, granules: Range<u64>, mapped: &mut BTreeMap<u64, sys::CUmemGenericAllocationHandle>) -> Result<(), DriverError> {
        let properties = properties(self.ordinal);
        for number in granules {
            let mut handle = 0;
            // SAFETY: both pointers are valid for the call, and the size is a granule.
            unsafe { sys::cuMemCreate(&mut handle, self.granule as usize, &properties, 0) }.result()?;
            // SAFETY: reserved addresses without memory, as the caller says, and an allocation of this size.
            let done = unsafe { sys::cuMemMap(self.address(number), self.granule as usize, 0, handle, 0) }.result();
            if let Err(error) = done {
                // SAFETY: created above, and mapped nowhere.
                let _ = unsafe { sys::cuMemRelease(handle) };
                return Err(error);
            }
            mapped.insert(number, handle);
        }
        Ok(())
    }

    /// Grants this GPU access to granules that were just mapped, and zeroes them.
    fn make_accessible(&self, granules: &Range<u64>) -> Result<(), DriverError> {
        let (start, length) = (self.address(granules.start), ((granules.end - granules.start) * self.granule) as usize);
        if length == 0 {
            return Ok(());
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: location(self.ordinal), flags };
        // SAFETY: all of the range is mapped, and the description is valid for the call.
        unsafe { sys::cuMemSetAccess(start, length, &access, 1) }.result()?;
        // SAFETY: mapped and accessible, and in use by nothing.
        unsafe { result::memset_d8_sync(start, 0, length) }?;
        result::ctx::synchronize()
    }

    fn unmap(&self, granules: Range<u64>, mapped: &mut BTreeMap<u64, sys::CUmemGenericAllocationHandle>) -> Result<(), DriverError> {
        let mut done = Ok(());
        let numbers: Vec<u64> = mapped.range(granules).map(|(number, _)| *number).collect();
        for number in numbers {
            // SAFETY: mapped with this size; callers say that the GPU is not using it.
            let unmapped = unsafe { sys::cuMemUnmap(self.address(number), self.granule as usize) }.result();
            match unmapped {
                Ok(()) => {
                    let handle = mapped.remove(&number).expect("listed above");
                    // SAFETY: created by `map`, mapped nowhere else, and released once.
                    done = done.and(unsafe { sys::cuMemRelease(handle) }.result());
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }

    fn address(&self, number: u64) -> sys::CUdeviceptr {
        self.start + number * self.granule
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<u64, sys::CUmemGenericAllocationHandle>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives memory and addresses back. The GPU is idle, and nothing uses them later.
    ///
    /// # Safety
    /// No address is used after the call.
    pub unsafe fn release(&self) {
        if self.decommit(0..self.size / self.granule).is_ok() {
            // SAFETY: reserved with this size, and nothing is mapped behind it. Not used again, as the caller promises.
            let _ = unsafe { sys::cuMemAddressFree(self.start, self.size as usize) };
        }
    }
}

fn location(ordinal: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// Memory of the GPU that no other process can open.
fn properties(ordinal: i32) -> sys::CUmemAllocationProp {
    // SAFETY: a struct of C whose fields are integers, enums with a variant of zero, and a pointer.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}
