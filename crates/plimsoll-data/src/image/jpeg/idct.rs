//! The inverse DCT: columns first, then rows, in fixed point with twelve fractional bits.

use super::bits::CoefficientBlock;
use crate::image::windows::{Level, Simd};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Rounding constants of the column pass, which keeps two more bits, and of the row pass, which also adds 128.
const BIAS: [i32; 2] = [512, 512 + 65536 + (128 << 17)];
const SHIFT: [i32; 2] = [10, 17];

/// Writes eight lines of eight samples and clears the block; `length` is the zigzag index after its last coefficient.
#[inline(always)]
pub(super) fn idct(level: Level, block: &mut CoefficientBlock, length: usize, out: &mut [u8], stride: usize) {
    if length <= 1 {
        let value = flat(block);
        block[0] = 0;
        return fill(value, out, stride);
    }
    if length > 10 && block[0].unsigned_abs() >= 1 << 16 && is_flat(block) {
        let value = flat(block);
        block[0] = 0;
        return fill(value, out, stride);
    }
    match level.simd() {
        // The first ten coefficients are in the first four rows and columns.
        // SAFETY: a `Level` exists only if the CPU supports its instructions.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512 if length <= 10 => unsafe { corner_avx2(block, out, stride) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512 => unsafe { whole_avx2(block, out, stride) },
        Simd::Plain => plain(block, out, stride),
    }
}

/// Whether all AC coefficients are zero although they were coded. This matters only if the DC coefficient is so large
/// that the passes would overflow.
#[cold]
#[inline(never)]
fn is_flat(block: &CoefficientBlock) -> bool {
    block[1..64].iter().all(|&value| value == 0)
}

/// The sample of a block with a DC coefficient only.
#[inline(always)]
fn flat(block: &CoefficientBlock) -> u8 {
    (block[0].wrapping_add(4 + 1024) >> 3).clamp(0, 255) as u8
}

#[inline(always)]
fn fill(value: u8, out: &mut [u8], stride: usize) {
    write([[value; 8]; 8], out, stride);
}

#[inline(always)]
fn write(lines: [[u8; 8]; 8], out: &mut [u8], stride: usize) {
    // Saturating, because a wrapped product could pass.
    assert!(out.len() >= stride.saturating_mul(7).saturating_add(8), "eight lines have space");
    for (line, made) in lines.iter().enumerate() {
        // SAFETY: the last line's eight samples are in bounds, as just checked, and all others come before.
        unsafe { out.as_mut_ptr().add(line * stride).cast::<[u8; 8]>().write_unaligned(*made) };
    }
}

/// The operations of a pass, for scalars and vectors.
///
/// # Safety
/// Methods of vectors may be called only where the CPU supports AVX2; those of scalars anywhere.
trait Lanes: Copy {
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn times(self, factor: i32) -> Self;
    unsafe fn plus(self, value: i32) -> Self;
    /// Shifts left by twelve bits.
    unsafe fn up(self) -> Self;
    unsafe fn down<const BITS: i32>(self) -> Self;
}

/// One pass over eight values, which may be vectors.
///
/// # Safety
/// Same as [`Lanes`].
#[inline(always)]
unsafe fn pass<N: Lanes, const BITS: i32>(v: [N; 8], bias: i32) -> [N; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let turned = v[2].add(v[6]).times(2217);
        let (even_low, even_high) = (turned.add(v[6].times(-7567)), turned.add(v[2].times(3135)));
        let (first, fifth) = (v[0].up().plus(bias), v[4].up());
        let (sum, difference) = (first.add(fifth), first.sub(fifth));
        let (x0, x3) = (sum.add(even_high), sum.sub(even_high));
        let (x1, x2) = (difference.add(even_low), difference.sub(even_low));

        let (p3, p4, p1, p2) = (v[7].add(v[3]), v[5].add(v[1]), v[7].add(v[1]), v[5].add(v[3]));
        let p5 = p3.add(p4).times(4816);
        let (p1, p2) = (p5.add(p1.times(-3685)), p5.add(p2.times(-10497)));
        let (p3, p4) = (p3.times(-8034), p4.times(-1597));
        let t3 = v[1].times(6149).add(p1.add(p4));
        let t2 = v[3].times(12586).add(p2.add(p3));
        let t1 = v[5].times(8410).add(p2.add(p4));
        let t0 = v[7].times(1223).add(p1.add(p3));
        together::<N, BITS>([x0, x1, x2, x3], [t3, t2, t1, t0])
    }
}

/// Like `pass`, with the last four values zero.
///
/// # Safety
/// Same as [`Lanes`].
#[inline(always)]
unsafe fn pass_of_four<N: Lanes, const BITS: i32>(v: [N; 4], bias: i32) -> [N; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let sum = v[0].up().plus(bias);
        let (low, high) = (v[2].times(2217), v[2].times(5352));
        let (x0, x1, x2, x3) = (sum.add(high), sum.add(low), sum.sub(low), sum.sub(high));
        let p5 = v[3].add(v[1]).times(4816);
        let t3 = p5.add(v[1].times(867));
        let t2 = p5.add(v[3].times(-5945));
        let t1 = p5.add(v[3].times(-10497)).add(v[1].times(-1597));
        let t0 = p5.add(v[1].times(-3685)).add(v[3].times(-8034));
        together::<N, BITS>([x0, x1, x2, x3], [t3, t2, t1, t0])
    }
}

/// The final butterfly: sums, then differences in reverse order. Unrolled by hand, because a loop over an array is
/// not always inlined.
///
/// # Safety
/// Same as [`Lanes`].
#[inline(always)]
unsafe fn together<N: Lanes, const BITS: i32>(even: [N; 4], odd: [N; 4]) -> [N; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (sum, difference) = (|at: usize| even[at].add(odd[at]).down::<BITS>(), |at: usize| even[at].sub(odd[at]).down::<BITS>());
        [sum(0), sum(1), sum(2), sum(3), difference(3), difference(2), difference(1), difference(0)]
    }
}

impl Lanes for i32 {
    #[inline(always)]
    unsafe fn add(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }

    #[inline(always)]
    unsafe fn sub(self, other: i32) -> i32 {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    unsafe fn times(self, factor: i32) -> i32 {
        self.wrapping_mul(factor)
    }

    #[inline(always)]
    unsafe fn plus(self, value: i32) -> i32 {
        self.wrapping_add(value)
    }

    #[inline(always)]
    unsafe fn up(self) -> i32 {
        self << 12
    }

    #[inline(always)]
    unsafe fn down<const BITS: i32>(self) -> i32 {
        self >> BITS
    }
}

fn plain(block: &mut CoefficientBlock, out: &mut [u8], stride: usize) {
    for column in 0..8 {
        // SAFETY: scalars need no instructions.
        let made = unsafe { pass::<i32, { SHIFT[0] }>(std::array::from_fn(|row| block[8 * row + column]), BIAS[0]) };
        for (row, value) in made.into_iter().enumerate() {
            block[8 * row + column] = value;
        }
    }
    for (row, line) in out.chunks_mut(stride).take(8).enumerate() {
        // SAFETY: as above.
        let made = unsafe { pass::<i32, { SHIFT[1] }>(std::array::from_fn(|column| block[8 * row + column]), BIAS[1]) };
        line[..8].copy_from_slice(&made.map(|value| value.clamp(0, 255) as u8));
    }
    block[..64].fill(0);
}

/// Implements the operations for vectors.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($name:ident, $add:ident, $sub:ident, $mul:ident, $set:ident, $up:ident, $down:ident) => {
        impl Lanes for $name {
            #[inline(always)]
            unsafe fn add(self, other: $name) -> $name {
                // SAFETY: the trait's contract gives AVX2.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn sub(self, other: $name) -> $name {
                // SAFETY: as above.
                unsafe { $sub(self, other) }
            }

            #[inline(always)]
            unsafe fn times(self, factor: i32) -> $name {
                // SAFETY: as above.
                unsafe { $mul(self, $set(factor)) }
            }

            #[inline(always)]
            unsafe fn plus(self, value: i32) -> $name {
                // SAFETY: as above.
                unsafe { $add(self, $set(value)) }
            }

            #[inline(always)]
            unsafe fn up(self) -> $name {
                // SAFETY: as above.
                unsafe { $up::<12>(self) }
            }

            #[inline(always)]
            unsafe fn down<const BITS: i32>(self) -> $name {
                // SAFETY: as above.
                unsafe { $down::<BITS>(self) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(__m256i, _mm256_add_epi32, _mm256_sub_epi32, _mm256_mullo_epi32, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srai_epi32);
#[cfg(target_arch = "x86_64")]
vector!(__m128i, _mm_add_epi32, _mm_sub_epi32, _mm_mullo_epi32, _mm_set1_epi32, _mm_slli_epi32, _mm_srai_epi32);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn whole_avx2(block: &mut CoefficientBlock, out: &mut [u8], stride: usize) {
    let (lines, _) = block.as_chunks_mut::<8>();
    let lines: &mut [[i32; 8]; 8] = lines.first_chunk_mut().expect("a block has more");
    // SAFETY: each array has eight numbers.
    let load = |line: usize| unsafe { _mm256_loadu_si256(lines[line].as_ptr().cast()) };
    let loaded = [load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7)];
    *lines = [[0; 8]; 8];
    // SAFETY: this function is compiled for AVX2, so its callers checked for it.
    let columns = transpose(unsafe { pass::<__m256i, { SHIFT[0] }>(loaded, BIAS[0]) });
    // SAFETY: as above.
    store(unsafe { pass::<__m256i, { SHIFT[1] }>(columns, BIAS[1]) }, out, stride);
}

/// For blocks whose nonzero coefficients are in the first four rows and columns.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn corner_avx2(block: &mut CoefficientBlock, out: &mut [u8], stride: usize) {
    let (lines, _) = block.as_chunks_mut::<8>();
    let lines: &mut [[i32; 8]; 4] = lines.first_chunk_mut().expect("a block has more");
    // SAFETY: each array has at least four numbers.
    let load = |line: usize| unsafe { _mm_loadu_si128(lines[line].as_ptr().cast()) };
    let loaded = [load(0), load(1), load(2), load(3)];
    *lines = [[0; 8]; 4];
    // SAFETY: this function is compiled for AVX2, so its callers checked for it.
    let made = unsafe { pass_of_four::<__m128i, { SHIFT[0] }>(loaded, BIAS[0]) };
    // Lines 0 to 3 in the lower halves, 4 to 7 in the upper ones, then each half transposed.
    let both = |line: usize| _mm256_set_m128i(made[line + 4], made[line]);
    let [a, b, c, d] = [both(0), both(1), both(2), both(3)];
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    let columns = [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ];
    // SAFETY: as above.
    store(unsafe { pass_of_four::<__m256i, { SHIFT[1] }>(columns, BIAS[1]) }, out, stride);
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: [__m256i; 8]) -> [__m256i; 8] {
    let pair = |at: usize| (_mm256_unpacklo_epi32(v[at], v[at + 1]), _mm256_unpackhi_epi32(v[at], v[at + 1]));
    let four = |at: usize| {
        let ((low, high), (next_low, next_high)) = (pair(at), pair(at + 2));
        [
            _mm256_unpacklo_epi64(low, next_low),
            _mm256_unpackhi_epi64(low, next_low),
            _mm256_unpacklo_epi64(high, next_high),
            _mm256_unpackhi_epi64(high, next_high),
        ]
    };
    let (upper, lower) = (four(0), four(4));
    let first = |at: usize| _mm256_permute2x128_si256::<0x20>(upper[at], lower[at]);
    let second = |at: usize| _mm256_permute2x128_si256::<0x31>(upper[at], lower[at]);
    [first(0), first(1), first(2), first(3), second(0), second(1), second(2), second(3)]
}

/// Writes columns as lines of bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn store(columns: [__m256i; 8], out: &mut [u8], stride: usize) {
    // Four columns per vector, lines 0 to 3 in its lower half; a shuffle in each half transposes them.
    let across =
        _mm256_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0, 15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    let four = |at: usize| {
        let low = _mm256_packs_epi32(columns[at], columns[at + 1]);
        let high = _mm256_packs_epi32(columns[at + 2], columns[at + 3]);
        _mm256_shuffle_epi8(_mm256_packus_epi16(low, high), across)
    };
    let (left, right) = (four(0), four(4));
    let (low, high) = (_mm256_unpacklo_epi32(left, right), _mm256_unpackhi_epi32(left, right));
    let halves = |lines: __m256i| (_mm256_castsi256_si128(lines), _mm256_extracti128_si256::<1>(lines));
    let ((first, third), (second, fourth)) = (halves(low), halves(high));
    let pair = |pair: __m128i| [_mm_cvtsi128_si64(pair).to_le_bytes(), _mm_extract_epi64::<1>(pair).to_le_bytes()];
    let ([a, b], [c, d], [e, f], [g, h]) = (pair(first), pair(second), pair(third), pair(fourth));
    write([a, b, c, d, e, f, g, h], out, stride);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "eight lines have space")]
    fn a_stride_that_overflows_is_refused() {
        write([[0; 8]; 8], &mut [0; 64], usize::MAX / 7 + 1);
    }
}
