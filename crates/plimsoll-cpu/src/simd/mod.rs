//! The vector instructions kernels are written against, and which of them this processor has.

pub(crate) mod convert;
pub(crate) mod dispatch;
pub(crate) mod element;
pub mod float_view;

pub(crate) use dispatch::dispatch;

use element::{Bf16, Element, F16};
use std::sync::OnceLock;

/// An instruction set a kernel is compiled for.
///
/// A value is proof that the processor has the instructions, and safe functions that take one rely on it: outside of
/// this crate the variants of vector instruction sets cannot be constructed, and in it only [`Isa::available`] does,
/// after detection.
///
/// Results are bit-identical at any thread count for one `Isa`; two of them round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// 16 lanes, fused multiply-add, masked loads and stores; the F, BW and VL subsets, which desktop and server
    /// processors have together.
    #[non_exhaustive]
    Avx512,
    /// 8 lanes, fused multiply-add, conversions to and from half precision, which came to processors together.
    #[non_exhaustive]
    Avx2,
    /// What the compiler makes of plain arrays of 8.
    Portable,
}

impl Isa {
    /// The best one this processor has.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }

    /// All that this processor has, the best first.
    pub fn available() -> Vec<Isa> {
        [Isa::Avx512, Isa::Avx2, Isa::Portable].into_iter().filter(|isa| isa.supported()).collect()
    }

    /// Whether this processor has it.
    pub fn supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.supported()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }

    /// Floats in a vector.
    pub(crate) fn lanes(self) -> usize {
        match self {
            Isa::Avx512 => 16,
            Isa::Avx2 | Isa::Portable => 8,
        }
    }
}

/// Compiles a plain loop for each instruction set; the function it defines takes the [`Isa`] to run as its first
/// argument.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        fn $name(isa: Isa, $($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) { plain($($argument),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            fn avx512($($argument: $type),*) { plain($($argument),*) }
            debug_assert!(isa.supported());
            match isa {
                // SAFETY: an `Isa` exists only where the processor has it; AVX-512 stands for all three of its subsets
                // here.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2($($argument),*) },
                _ => plain($($argument),*),
            }
        }
    };
    ($(#[$doc:meta])* unsafe fn $name:ident($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        unsafe fn $name(isa: Isa, $($argument: $type),*) {
            #[inline(always)]
            unsafe fn plain($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($argument: $type),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { plain($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            unsafe fn avx512($($argument: $type),*) {
                // SAFETY: guaranteed by the caller.
                unsafe { plain($($argument),*) }
            }
            debug_assert!(isa.supported());
            // SAFETY: guaranteed by the caller; an `Isa` exists only where the processor has it.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512($($argument),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2($($argument),*),
                    _ => plain($($argument),*),
                }
            }
        }
    };
}
pub(crate) use vectorised;

/// One vector register of `f32`.
///
/// # Safety
/// Kernels advance pointers by [`LANES`](Vector::LANES), so an implementation accesses exactly that many elements, and
/// exactly those of a mask in masked methods.
///
/// Every method may be called only where the processor has the instructions behind the type, and from code that is
/// inlined into a function compiled with them. Pointers must be valid for the lanes read or written.
pub(crate) unsafe trait Vector: Copy {
    const LANES: usize;
    type Mask: Copy;

    unsafe fn splat(value: f32) -> Self;
    /// Selects the first `lanes` lanes, at least one and at most `LANES`.
    unsafe fn mask(lanes: usize) -> Self::Mask;
    unsafe fn load(from: *const f32) -> Self;
    /// Lanes outside the mask are zero and not read.
    unsafe fn load_masked(from: *const f32, mask: Self::Mask) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_masked(self, to: *mut f32, mask: Self::Mask);
    /// `self + a * b`.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// As many numbers in two bytes, of the type with eight bits of exponent or the one with five.
    unsafe fn load_half(from: *const u16, brain: bool) -> Self;
    /// Rounds to nearest, ties to even.
    unsafe fn store_half(self, to: *mut u16, brain: bool);
}

/// Plain lanes, for processors without the instructions below.
#[derive(Clone, Copy)]
pub(crate) struct PortableVector([f32; 8]);

// SAFETY: an array of eight elements, read and written as one; masked methods copy the first lanes of the mask.
unsafe impl Vector for PortableVector {
    const LANES: usize = 8;
    type Mask = usize;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        PortableVector([value; 8])
    }
    #[inline(always)]
    unsafe fn mask(lanes: usize) -> usize {
        lanes
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller promises eight readable floats; the read is unaligned.
        PortableVector(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_masked(from: *const f32, mask: usize) -> Self {
        // SAFETY: only the first `mask` floats are read, which the caller promises.
        PortableVector(std::array::from_fn(|lane| if lane < mask { unsafe { *from.add(lane) } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller promises eight writable floats; the write is unaligned.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_masked(self, to: *mut f32, mask: usize) {
        for lane in 0..mask {
            // SAFETY: only the first `mask` floats are written, which the caller promises.
            unsafe { *to.add(lane) = self.0[lane] }
        }
    }
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        PortableVector(std::array::from_fn(|lane| self.0[lane] + a.0[lane] * b.0[lane]))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        PortableVector(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16, brain: bool) -> Self {
        // SAFETY: the caller promises eight readable numbers; the read is unaligned.
        let bits = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        PortableVector(if brain { bits.map(|bits| Bf16(bits).load()) } else { bits.map(|bits| F16(bits).load()) })
    }
    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, brain: bool) {
        let bits = if brain { self.0.map(|x| Bf16::store(x).0) } else { self.0.map(|x| F16::store(x).0) };
        // SAFETY: the caller promises eight writable elements; the write is unaligned.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(bits) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Ymm, Zmm};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Zmm(__m512);

    // SAFETY: registers of sixteen floats, accessed as a whole or under the mask. In every block below, the trait's
    // contract gives the instructions and the validity of the pointers; all accesses are unaligned ones.
    unsafe impl Vector for Zmm {
        const LANES: usize = 16;
        type Mask = __mmask16;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Zmm(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __mmask16 {
            (u32::MAX >> (32 - lanes)) as __mmask16
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Zmm(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __mmask16) -> Self {
            // SAFETY: see above; masked lanes are not accessed.
            Zmm(unsafe { _mm512_maskz_loadu_ps(mask, from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __mmask16) {
            // SAFETY: see above; masked lanes are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, mask, self.0) }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            Zmm(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Zmm(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn load_half(from: *const u16, brain: bool) -> Self {
            // SAFETY: see above.
            unsafe {
                let bits = _mm256_loadu_si256(from.cast());
                Zmm(if brain { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))) } else { _mm512_cvtph_ps(bits) })
            }
        }
        #[inline(always)]
        unsafe fn store_half(self, to: *mut u16, brain: bool) {
            // SAFETY: see above.
            unsafe {
                if brain {
                    let bits = _mm512_castps_si512(self.0);
                    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                    // Rounding could carry a NaN over into infinity.
                    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
                    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                    let chosen = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet));
                    _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(chosen));
                } else {
                    _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0));
                }
            }
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Ymm(__m256);

    // SAFETY: as for `Zmm`, with registers of eight floats.
    unsafe impl Vector for Ymm {
        const LANES: usize = 8;
        type Mask = __m256i;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Ymm(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Ymm(unsafe { _mm256_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __m256i) -> Self {
            // SAFETY: see above; masked lanes are not accessed.
            Ymm(unsafe { _mm256_maskload_ps(from, mask) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __m256i) {
            // SAFETY: see above; masked lanes are not accessed.
            unsafe { _mm256_maskstore_ps(to, mask, self.0) }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            Ymm(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Ymm(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn load_half(from: *const u16, brain: bool) -> Self {
            // SAFETY: see above.
            unsafe {
                let bits = _mm_loadu_si128(from.cast());
                Ymm(if brain { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) } else { _mm256_cvtph_ps(bits) })
            }
        }
        #[inline(always)]
        unsafe fn store_half(self, to: *mut u16, brain: bool) {
            // SAFETY: see above.
            unsafe {
                if brain {
                    let bits = _mm256_castps_si256(self.0);
                    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
                    // Rounding could carry a NaN over into infinity.
                    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
                    let chosen = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
                    let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(chosen, chosen));
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
                } else {
                    _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
                }
            }
        }
    }
}
