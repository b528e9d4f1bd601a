//! Rust types as elements of tensors.

use plimsoll_core::DType;
use plimsoll_core::selftest::decode;

/// A Rust type that tensors are made of and read as.
pub trait Element: Copy + sealed::Sealed {
    /// The type of the elements.
    const DTYPE: DType;

    /// The bytes of some values.
    fn write(values: &[Self]) -> Vec<u8>;

    /// The values of stored elements; none if their type cannot be read as this one.
    fn read(stored: DType, bytes: &[u8]) -> Option<Vec<Self>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for i32 {}
    impl Sealed for u8 {}
    impl Sealed for bool {}
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn write(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn read(stored: DType, bytes: &[u8]) -> Option<Vec<f32>> {
        match stored {
            DType::F32 => Some(bytes.chunks_exact(4).map(|chunk| f32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect()),
            DType::F16 | DType::BF16 => Some(decode(stored, bytes).into_iter().map(|value| value as f32).collect()),
            _ => None,
        }
    }
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;

    fn write(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn read(stored: DType, bytes: &[u8]) -> Option<Vec<i32>> {
        let whole = || bytes.chunks_exact(4).map(|chunk| i32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect();
        (stored == DType::I32).then(whole)
    }
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;

    fn write(values: &[u8]) -> Vec<u8> {
        values.to_vec()
    }

    fn read(stored: DType, bytes: &[u8]) -> Option<Vec<u8>> {
        (stored == DType::U8).then(|| bytes.to_vec())
    }
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn write(values: &[bool]) -> Vec<u8> {
        values.iter().map(|value| u8::from(*value)).collect()
    }

    fn read(stored: DType, bytes: &[u8]) -> Option<Vec<bool>> {
        (stored == DType::Bool).then(|| bytes.iter().map(|byte| *byte != 0).collect())
    }
}
