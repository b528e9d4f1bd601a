//! Conversion between the table's numbers and device bytes.

use crate::DType;

/// Encodes numbers that the type represents exactly.
pub fn encode(dtype: DType, elements: &[f64]) -> Vec<u8> {
    let bytes = |x: &f64| match dtype {
        DType::F32 => (*x as f32).to_ne_bytes().to_vec(),
        DType::F16 => half(*x).to_ne_bytes().to_vec(),
        DType::BF16 => ((*x as f32).to_bits().div_euclid(1 << 16) as u16).to_ne_bytes().to_vec(),
        DType::I32 => (*x as i32).to_ne_bytes().to_vec(),
        DType::U8 | DType::Bool => vec![*x as u8],
        other => unreachable!("the table has no tensors of {other}"),
    };
    elements.iter().flat_map(bytes).collect()
}

/// Decodes bytes to numbers.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| match (dtype, bytes) {
        (DType::F32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
        (DType::F16, &[a, b]) => from_half(u16::from_ne_bytes([a, b])),
        (DType::BF16, &[a, b]) => f64::from(f32::from_bits(u32::from(u16::from_ne_bytes([a, b])) << 16)),
        (DType::I32, &[a, b, c, d]) => f64::from(i32::from_ne_bytes([a, b, c, d])),
        (DType::U8 | DType::Bool, &[byte]) => f64::from(byte),
        (other, _) => unreachable!("the table has no tensors of {other}"),
    };
    bytes.chunks_exact(dtype.size()).map(number).collect()
}

/// The bits of a number that half precision represents exactly: the number of representable steps from zero.
fn half(x: f64) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = x.abs();
    let body = match magnitude {
        _ if x.is_nan() => 0x7e00,
        _ if magnitude.is_infinite() => 0x7c00,
        _ if magnitude < 2f64.powi(-14) => (magnitude * 2f64.powi(24)) as u16,
        _ => ((magnitude.to_bits() >> 42) - ((1023 - 15) << 10)) as u16,
    };
    sign | body
}

fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_one_number_and_back() {
        for dtype in [DType::F16, DType::BF16] {
            for bits in 0..=u16::MAX {
                let number = decode(dtype, &bits.to_ne_bytes())[0];
                if !number.is_nan() {
                    assert_eq!(encode(dtype, &[number]), bits.to_ne_bytes(), "{dtype} {bits:#x}");
                    assert_eq!(dtype.stored(number), number, "{dtype} {bits:#x}");
                }
            }
        }
    }
}
