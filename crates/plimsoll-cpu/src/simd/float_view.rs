//! Tensors in f32, f16 or bf16, and conversions to single precision and back. Kernels convert while they pack, or a few
//! channels at a time; no tensor is converted as a whole.

use crate::simd::element::{Bf16, Element, F16};
use crate::simd::{Isa, PortableVector, Vector};
use plimsoll_core::DType;
use std::marker::PhantomData;

/// A tensor in f32, f16 or bf16 that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct FloatView<'a> {
    pub(crate) ptr: *const u8,
    pub(crate) dtype: DType,
    pub(crate) len: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a description of memory; the functions that read it demand its validity, on whatever thread they run.
unsafe impl Send for FloatView<'_> {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for FloatView<'_> {}

impl<'a> From<&'a [f32]> for FloatView<'a> {
    fn from(floats: &'a [f32]) -> FloatView<'a> {
        FloatView { ptr: floats.as_ptr().cast(), dtype: DType::F32, len: floats.len(), memory: PhantomData }
    }
}

impl<'a> FloatView<'a> {
    /// The bits of numbers of two bytes.
    ///
    /// # Panics
    /// If the type is neither f16 nor bf16.
    pub fn of_bits(bits: &'a [u16], dtype: DType) -> FloatView<'a> {
        assert!(dtype.is_half(), "{dtype} has not two bytes");
        FloatView { ptr: bits.as_ptr().cast(), dtype, len: bits.len(), memory: PhantomData }
    }

    /// `len` numbers of a type.
    ///
    /// # Safety
    /// They are readable for as long as this lives.
    ///
    /// # Panics
    /// If the type is none of f32, f16 and bf16.
    pub unsafe fn new(ptr: *const u8, dtype: DType, len: usize) -> FloatView<'a> {
        assert!(dtype == DType::F32 || dtype.is_half(), "kernels read f32, f16 and bf16, not {dtype}");
        FloatView { ptr, dtype, len, memory: PhantomData }
    }

    /// Whether they have two bytes each.
    pub fn is_half(&self) -> bool {
        self.dtype.is_half()
    }

    /// Where a number is; cast to the type that most are.
    ///
    /// # Safety
    /// Same as [`pointer::add`].
    #[inline(always)]
    pub(crate) unsafe fn at(&self, i: usize) -> *const f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ptr.add(i * self.dtype.size()) }.cast()
    }

    /// `len` numbers from `start` on: in place, or widened to `to`.
    ///
    /// # Safety
    /// The processor supports `isa`, the numbers are there, and `to` is writable for them if they have two bytes.
    #[inline(always)]
    pub(crate) unsafe fn fetch_to(&self, isa: Isa, start: usize, len: usize, to: *mut f32) -> *const f32 {
        debug_assert!(start + len <= self.len);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if !self.is_half() {
                return self.at(start);
            }
            widen(isa, self.dtype, self.at(start), to, len);
        }
        to
    }

    /// `len` numbers from `start` on: in place, or widened into `buffer`.
    ///
    /// # Safety
    /// The processor supports `isa`, the numbers are there, and `buffer` is long enough.
    #[inline(always)]
    pub(crate) unsafe fn fetch<'b>(&self, isa: Isa, start: usize, len: usize, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        debug_assert!(start + len <= self.len);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if !self.is_half() {
                return std::slice::from_raw_parts(self.at(start), len);
            }
            widen(isa, self.dtype, self.at(start), buffer[..len].as_mut_ptr(), len);
        }
        &buffer[..len]
    }
}

/// A tensor in half precision that a kernel writes. Not `Clone`: a copy would let safe code write the same elements
/// from two kernels at once.
#[derive(Debug)]
pub struct HalfViewMut<'a> {
    ptr: *mut u8,
    dtype: DType,
    pub(crate) len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an exclusive borrow of plain bytes, which may move to another thread.
unsafe impl Send for HalfViewMut<'_> {}
// SAFETY: through a shared reference elements are only written by `store`, whose callers keep concurrent writes
// disjoint.
unsafe impl Sync for HalfViewMut<'_> {}

impl<'a> HalfViewMut<'a> {
    /// A tensor of `len` elements in half precision.
    ///
    /// # Safety
    /// The memory is valid for `len` elements for as long as this lives, and nothing else accesses it.
    ///
    /// # Panics
    /// If the type is neither f16 nor bf16.
    pub unsafe fn new(ptr: *mut u8, dtype: DType, len: usize) -> HalfViewMut<'a> {
        assert!(dtype.is_half(), "{dtype} has not two bytes");
        HalfViewMut { ptr, dtype, len, memory: PhantomData }
    }

    /// Rounds and stores numbers from place `start` on.
    ///
    /// # Safety
    /// The elements lie inside of the tensor, and no other call accesses them at the same time.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, isa: Isa, start: usize, values: &[f32]) {
        debug_assert!(start + values.len() <= self.len);
        // SAFETY: guaranteed by the caller.
        unsafe { narrow(isa, self.dtype, values.as_ptr(), self.ptr.cast::<u16>().add(start), values.len()) }
    }
}

/// A number of two bytes at an address that is cast to the type most have.
///
/// # Safety
/// It is there.
#[inline(always)]
pub(crate) unsafe fn load_one(dtype: DType, from: *const f32) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match dtype {
            DType::F16 => from.cast::<F16>().read_unaligned().load(),
            DType::BF16 => from.cast::<Bf16>().read_unaligned().load(),
            _ => *from,
        }
    }
}

/// Makes a function out of a generic body that is compiled for each family of vectors.
macro_rules! for_each_vector {
    ($(#[$doc:meta])* fn $name:ident = $body:ident($($argument:ident: $ty:ty),*)) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name(isa: Isa, dtype: DType, $($argument: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx512f")]
            unsafe fn avx512<const BF16: bool>($($argument: $ty),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { $body::<crate::simd::Zmm, BF16>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<const BF16: bool>($($argument: $ty),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { $body::<crate::simd::Ymm, BF16>($($argument),*) }
            }
            // SAFETY: guaranteed by the caller.
            unsafe {
                match (isa, dtype == DType::BF16) {
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx512, true) => avx512::<true>($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx512, false) => avx512::<false>($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx2, true) => avx2::<true>($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx2, false) => avx2::<false>($($argument),*),
                    (_, true) => $body::<PortableVector, true>($($argument),*),
                    (_, false) => $body::<PortableVector, false>($($argument),*),
                }
            }
        }
    };
}
pub(crate) use for_each_vector;

for_each_vector! {
    /// `to = from`, widened; `from` is cast to the type most numbers have.
    ///
    /// # Safety
    /// The processor supports `isa`; `from` is readable for `len` numbers of two bytes and `to` writable for as many of
    /// four.
    fn widen = widen_run(from: *const f32, to: *mut f32, len: usize)
}

for_each_vector! {
    /// `to = from`, rounded to nearest.
    ///
    /// # Safety
    /// The processor supports `isa`; `from` is readable for `len` numbers of four bytes and `to` writable for as many
    /// of two.
    fn narrow = narrow_run(from: *const f32, to: *mut u16, len: usize)
}

/// # Safety
/// Same as [`widen`].
#[inline(always)]
pub(crate) unsafe fn widen_run<V: Vector, const BF16: bool>(from: *const f32, to: *mut f32, len: usize) {
    let from = from.cast::<u16>();
    let dtype = if BF16 { DType::BF16 } else { DType::F16 };
    let whole = len - len % V::LANES;
    let mut i = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while i < whole {
            V::load_half(from.add(i), BF16).store(to.add(i));
            i += V::LANES;
        }
        while i < len {
            *to.add(i) = load_one(dtype, from.add(i).cast());
            i += 1;
        }
    }
}

/// # Safety
/// Same as [`narrow`].
#[inline(always)]
unsafe fn narrow_run<V: Vector, const BF16: bool>(from: *const f32, to: *mut u16, len: usize) {
    let whole = len - len % V::LANES;
    let mut i = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while i < whole {
            V::load(from.add(i)).store_half(to.add(i), BF16);
            i += V::LANES;
        }
        while i < len {
            let x = *from.add(i);
            to.add(i).write_unaligned(if BF16 { Bf16::store(x).0 } else { F16::store(x).0 });
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers of two bytes and what lies in the middle between neighbors, on every family of vectors, tails
    /// included.
    #[test]
    fn vectors_convert_as_single_numbers_do() {
        let bits: Vec<u16> = (0..=u16::MAX).chain(0..5).collect();
        for isa in Isa::available() {
            for dtype in [DType::F16, DType::BF16] {
                let mut wide = vec![0f32; bits.len()];
                // SAFETY: both are as long as is said.
                unsafe { widen(isa, dtype, bits.as_ptr().cast(), wide.as_mut_ptr(), bits.len()) };
                for (bits, wide) in bits.iter().zip(&wide) {
                    // SAFETY: one number of two bytes.
                    let one = unsafe { load_one(dtype, (&raw const *bits).cast()) };
                    assert!(one == *wide || one.is_nan() && wide.is_nan(), "{isa:?} {dtype} {bits:#x}");
                }
                let between: Vec<f32> = wide.iter().map(|x| f32::from_bits(x.to_bits().wrapping_add(0x1000) & !1)).collect();
                for numbers in [&wide, &between] {
                    let mut back = vec![0u16; bits.len()];
                    // SAFETY: both are as long as is said.
                    unsafe { narrow(isa, dtype, numbers.as_ptr(), back.as_mut_ptr(), back.len()) };
                    for (number, back) in numbers.iter().zip(&back) {
                        let one = if dtype == DType::BF16 { Bf16::store(*number).0 } else { F16::store(*number).0 };
                        // SAFETY: one number of two bytes.
                        let (one_back, back) =
                            unsafe { (load_one(dtype, (&raw const one).cast()), load_one(dtype, (&raw const *back).cast())) };
                        assert!(one_back.to_bits() == back.to_bits() || one_back.is_nan() && back.is_nan(), "{isa:?} {dtype} {number}");
                    }
                }
            }
        }
    }
}
