//! Element types in memory and their conversions to single precision and back.

use plimsoll_core::DType;

/// An element in memory. Arithmetic is single precision whatever the types read and written.
///
/// # Safety
/// Every bit pattern of the type's size is a value of the type: kernels read elements from plain bytes.
pub(crate) unsafe trait Element: Copy {
    fn load(self) -> f32;
    /// Rounds to nearest; integers are cut towards zero and held at the ends of their range.
    fn store(value: f32) -> Self;
}

/// The bits of a half-precision number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(pub u16);

/// The bits of a bfloat16 number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(pub u16);

/// A truth value: zero is false.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bool(pub u8);

macro_rules! cast {
    ($($ty:ty),*) => {$(
        // SAFETY: every bit pattern is a value of a primitive number.
        unsafe impl Element for $ty {
            #[inline(always)]
            fn load(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn store(value: f32) -> $ty {
                value as $ty
            }
        }
    )*};
}
cast!(f32, f64, i32, i64, u8);

// SAFETY: a wrapper of a byte.
unsafe impl Element for Bool {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from(self.0 != 0)
    }

    #[inline(always)]
    fn store(value: f32) -> Bool {
        Bool(u8::from(value != 0.0))
    }
}

// SAFETY: a wrapper of the bits of `u16`.
unsafe impl Element for F16 {
    #[inline(always)]
    fn load(self) -> f32 {
        let body = u32::from(self.0 & 0x7fff) << 13;
        // Shifting the exponents into place by a product makes subnormal numbers right too.
        let scaled = (f32::from_bits(body) * f32::from_bits(0x7780_0000)).to_bits();
        let special = if body >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
        f32::from_bits(scaled | special | u32::from(self.0 & 0x8000) << 16)
    }

    #[inline(always)]
    fn store(value: f32) -> F16 {
        let bits = value.to_bits();
        let body = bits & 0x7fff_ffff;
        // Adding a half puts the last bit of a subnormal result at the end of the mantissa, and rounds it.
        let subnormal = (f32::from_bits(body) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let normal = body.wrapping_add(0xc800_0fff + (body >> 13 & 1)) >> 13;
        let special = if body > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let finite = if body < 0x3880_0000 { subnormal } else { normal };
        let half = if body >= 0x4780_0000 { special } else { finite };
        F16((half | bits >> 16 & 0x8000) as u16)
    }
}

// SAFETY: a wrapper of the bits of `u16`.
unsafe impl Element for Bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn store(value: f32) -> Bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Rounding could carry a NaN over into infinity.
        let quiet = bits >> 16 | 0x40;
        Bf16(if value.is_nan() { quiet as u16 } else { rounded as u16 })
    }
}

/// Runs a body with `$element` standing for the type in memory.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {{
        use plimsoll_core::DType;
        use $crate::simd::element::{Bf16, Bool, F16};
        match $dtype {
            DType::F32 => {
                type $element = f32;
                $body
            }
            DType::F64 => {
                type $element = f64;
                $body
            }
            DType::F16 => {
                type $element = F16;
                $body
            }
            DType::BF16 => {
                type $element = Bf16;
                $body
            }
            DType::I32 => {
                type $element = i32;
                $body
            }
            DType::I64 => {
                type $element = i64;
                $body
            }
            DType::U8 => {
                type $element = u8;
                $body
            }
            DType::Bool => {
                type $element = Bool;
                $body
            }
        }
    }};
}
pub(crate) use with_element;

/// Whether any of the numbers is infinite or NaN. Integers never are.
///
/// # Safety
/// `from` is readable for `count` elements of the type.
pub(crate) unsafe fn any_non_finite(dtype: DType, from: *const u8, count: usize) -> bool {
    if !dtype.is_float() {
        return false;
    }
    // SAFETY: guaranteed by the caller; reads are unaligned.
    with_element!(dtype, E => (0..count).any(|i| unsafe { !from.cast::<E>().add(i).read_unaligned().load().is_finite() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let value = F16(bits).load();
            assert!(value.is_nan() || F16::store(value).0 == bits, "{bits:#x}");
            let value = Bf16(bits).load();
            assert!(value.is_nan() || Bf16::store(value).0 == bits, "{bits:#x}");
        }
        assert!(F16::store(f32::NAN).load().is_nan() && Bf16::store(f32::NAN).load().is_nan());
    }

    #[test]
    fn halves_round_to_nearest_even() {
        for (value, bits) in [(1.0, 0x3c00), (65_504.0, 0x7bff), (65_519.9, 0x7bff), (65_520.0, 0x7c00), (1e9, 0x7c00), (-0.0, 0x8000)] {
            assert_eq!(F16::store(value).0, bits, "{value}");
        }
        // Halfway between two neighbors the even one is taken; the smallest subnormal is 2⁻²⁴.
        let step = 2f32.powi(-10);
        assert_eq!(F16::store(1.0 + step / 2.0).0, 0x3c00);
        assert_eq!(F16::store(1.0 + 1.5 * step).0, 0x3c02);
        assert_eq!(F16::store(2f32.powi(-24)).0, 1);
        assert_eq!(F16::store(2f32.powi(-25)).0, 0);
        assert_eq!(F16::store(2f32.powi(-25) * 1.001).0, 1);
        assert_eq!(Bf16::store(f32::from_bits(0x3f80_8000)).0, 0x3f80);
        assert_eq!(Bf16::store(f32::from_bits(0x3f81_8000)).0, 0x3f82);
    }

    #[test]
    fn integers_are_cut_and_held() {
        assert_eq!((i32::store(-1.9), i32::store(3e9), i32::store(f32::NAN)), (-1, i32::MAX, 0));
        assert_eq!((u8::store(-1.0), u8::store(255.9), u8::store(300.0)), (0, 255, 255));
        let truth = |value: f32| Bool::store(value).0;
        assert_eq!((truth(0.0), truth(-0.0), truth(0.3), truth(f32::NAN), Bool(2).load()), (0, 0, 1, 1, 1.0));
    }
}
