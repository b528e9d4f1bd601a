//! Which bytes of a tensor are non-finite numbers.

use crate::kernels::PitchedRows;
use plimsoll_core::DType;

/// The bytes of a chunk of a tensor, from byte `start` on, that belong to a slice of it; all bytes without a slice.
pub(super) fn own(runs: Option<PitchedRows>, dtype: DType, start: usize, length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let size = dtype.size();
    let (first, run, pitch) = runs.map_or((0, usize::MAX, usize::MAX), |runs| (runs.start * size, runs.length * size, runs.pitch * size));
    let end = start + length;
    let rows = start.saturating_sub(first) / pitch..end.saturating_sub(first).div_ceil(pitch);
    rows.filter_map(move |row| {
        let from = first + row * pitch;
        let (from, to) = (from.max(start), from.saturating_add(run).min(end));
        (from < to).then(|| from - start..to - start)
    })
}

/// Whether a number is infinite or NaN: all exponent bits are set. Integers never are.
pub(super) fn any_non_finite(dtype: DType, bytes: &[u8]) -> bool {
    let half = |mask: u16| bytes.chunks_exact(2).any(|b| u16::from_ne_bytes([b[0], b[1]]) & mask == mask);
    match dtype {
        DType::F16 => half(0x7c00),
        DType::BF16 => half(0x7f80),
        DType::F32 => bytes.chunks_exact(4).any(|b| !f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).is_finite()),
        DType::F64 => bytes.chunks_exact(8).any(|b| !f64::from_ne_bytes(b.try_into().expect("eight bytes")).is_finite()),
        DType::I32 | DType::I64 | DType::U8 | DType::Bool => false,
    }
}
