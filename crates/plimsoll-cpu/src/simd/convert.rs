//! Runs of numbers of any type to single precision and back, for kernels that compute in it.

use crate::simd::element::{Element, with_element};
use crate::simd::{Isa, dispatch};
use plimsoll_core::DType;

/// `to = from · scale`
///
/// # Safety
/// The processor supports `isa`, and `from` is readable for as many elements of the type as `to` has.
pub(crate) unsafe fn load(isa: Isa, dtype: DType, from: *const u8, scale: f32, to: &mut [f32]) {
    with_element!(dtype, E => {
        // SAFETY: guaranteed by the caller; every type is aligned where a plan puts it.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<E>(), to.len()) };
        dispatch!(isa, scaled(from: &[E] = from, scale: f32 = scale, to: &mut [f32] = to))
    });
}

/// `to += from`
///
/// # Safety
/// Same as [`load`].
pub(crate) unsafe fn add(isa: Isa, dtype: DType, from: *const u8, to: &mut [f32]) {
    with_element!(dtype, E => {
        // SAFETY: guaranteed by the caller; every type is aligned where a plan puts it.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<E>(), to.len()) };
        dispatch!(isa, added(from: &[E] = from, to: &mut [f32] = to))
    });
}

/// `to = from · scale`
///
/// # Safety
/// The processor supports `isa`, and `to` is writable for as many elements of the type as `from` has.
pub(crate) unsafe fn store(isa: Isa, dtype: DType, from: &[f32], scale: f32, to: *mut u8) {
    with_element!(dtype, E => {
        // SAFETY: as above.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<E>(), from.len()) };
        dispatch!(isa, stored(from: &[f32] = from, scale: f32 = scale, to: &mut [E] = to))
    });
}

#[inline(always)]
fn scaled<const FMA: bool>(from: &[impl Element], scale: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load() * scale);
}

#[inline(always)]
fn added<const FMA: bool>(from: &[impl Element], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from.load());
}

#[inline(always)]
fn stored<const FMA: bool>(from: &[f32], scale: f32, to: &mut [impl Element]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = Element::store(from * scale));
}
