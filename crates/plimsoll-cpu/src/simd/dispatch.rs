//! One loop, compiled for every family of vector instructions.

/// Calls an inlined function, generic over whether fused multiply-add is at hand, through a copy compiled for the given [`crate::simd::Isa`].
/// The caller has made sure that the processor has the instructions.
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
            // SAFETY: an `Isa` is chosen among those the processor has.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx512 => unsafe { avx512($($value),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::simd::Isa::Avx2 => unsafe { avx2($($value),*) },
            _ => $body::<false>($($value),*),
        }
    }};
}
pub(crate) use dispatch;
