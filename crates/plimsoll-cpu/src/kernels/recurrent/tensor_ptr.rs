//! Floating-point tensors of any type at an address, read and written by rows.

use crate::simd::element::{Element, with_element};
use crate::simd::{Isa, vectorised};
use plimsoll_core::DType;

/// A floating-point tensor, or a mask of bytes, at an address.
#[derive(Clone, Copy, Debug)]
pub struct TensorPtr {
    /// Its first element.
    pub ptr: *mut u8,
    /// Its element type.
    pub dtype: DType,
}

// SAFETY: a descriptor of memory; the functions that use it require its validity on any thread.
unsafe impl Send for TensorPtr {}
// SAFETY: as above; tasks write disjoint rows.
unsafe impl Sync for TensorPtr {}

impl TensorPtr {
    /// The address of element `at`, if it is single precision and can be used in place.
    pub(super) fn single(self, at: usize) -> Option<*mut f32> {
        (self.dtype == DType::F32).then(|| self.ptr.cast::<f32>().wrapping_add(at))
    }

    /// Copies `count` elements from `at` on to `to`, which may be the same address.
    ///
    /// # Safety
    /// Both sides are valid for the elements and are the same or do not overlap.
    pub(super) unsafe fn load(self, isa: Isa, at: usize, count: usize, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.single(at) {
                Some(from) if from == to => {}
                Some(from) => std::ptr::copy_nonoverlapping(from, to, count),
                None => read(isa, self, at, std::slice::from_raw_parts_mut(to, count)),
            }
        }
    }

    /// Copies `count` elements from `from`, which may be the same address.
    ///
    /// # Safety
    /// Same as [`TensorPtr::load`].
    pub(super) unsafe fn store(self, isa: Isa, at: usize, count: usize, from: *const f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.single(at) {
                Some(to) if to.cast_const() == from => {}
                Some(to) => std::ptr::copy_nonoverlapping(from, to, count),
                None => write(isa, self, at, std::slice::from_raw_parts(from, count)),
            }
        }
    }

    /// Whether an element is nonzero.
    ///
    /// # Safety
    ///
    /// The element is in bounds.
    pub(super) unsafe fn is_set(self, at: usize) -> bool {
        // SAFETY: guaranteed by the caller.
        with_element!(self.dtype, E => unsafe { self.ptr.cast::<E>().add(at).read_unaligned() }.load() != 0.0)
    }
}

vectorised! {
    /// Reads as many elements as `to` has, from `at` on.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn read(from: TensorPtr, at: usize, to: &mut [f32]) {
        with_element!(from.dtype, E => {
            let from = from.ptr.cast::<E>().wrapping_add(at);
            for (i, to) in to.iter_mut().enumerate() {
                // SAFETY: guaranteed by the caller.
                *to = unsafe { from.add(i).read_unaligned() }.load();
            }
        })
    }
}

vectorised! {
    /// Writes as many elements as `from` has, from `at` on.
    ///
    /// # Safety
    /// They are writable.
    unsafe fn write(to: TensorPtr, at: usize, from: &[f32]) {
        with_element!(to.dtype, E => {
            let to = to.ptr.cast::<E>().wrapping_add(at);
            for (i, from) in from.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { to.add(i).write_unaligned(E::store(*from)) };
            }
        })
    }
}
