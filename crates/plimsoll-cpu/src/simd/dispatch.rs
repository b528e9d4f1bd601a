//! One loop, compiled for every instruction set.

/// Calls an inlined function, generic over whether fused multiply-add is available, through a copy compiled for the
/// given [`crate::simd::Isa`]. An `unsafe` function is called under the promise of the caller, who writes the macro
/// inside an `unsafe` block.
macro_rules! dispatch {
    ($isa:expr, $body:ident($($argument:ident: $ty:ty = $value:expr),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn avx512($($argument: $ty),*) {
            $body::<true>($($argument),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2($($argument: $ty),*) {
            $body::<true>($($argument),*)
        }
        let isa: $crate::simd::Isa = $isa;
        debug_assert!(isa.supported());
        match isa {
            // SAFETY: an `Isa` exists only where the processor has it; see `Isa`.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512 => unsafe { avx512($($value),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2 => unsafe { avx2($($value),*) },
            _ => $body::<false>($($value),*),
        }
    }};
    ($isa:expr, unsafe $body:ident($($argument:ident: $ty:ty = $value:expr),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn avx512($($argument: $ty),*) {
            // SAFETY: guaranteed by the caller.
            unsafe { $body::<true>($($argument),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2($($argument: $ty),*) {
            // SAFETY: guaranteed by the caller.
            unsafe { $body::<true>($($argument),*) }
        }
        let isa: $crate::simd::Isa = $isa;
        debug_assert!(isa.supported());
        match isa {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512 => avx512($($value),*),
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2 => avx2($($value),*),
            _ => $body::<false>($($value),*),
        }
    }};
}
pub(crate) use dispatch;
