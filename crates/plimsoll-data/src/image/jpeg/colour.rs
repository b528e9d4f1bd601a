//! Converts lines of samples to pixels: upsamples chroma, then converts YCbCr to RGB.
//!
//! With chroma values `r` and `b` less 128, a pixel has `y + (22970·r + 8191 >> 14)` of red, `y + (29032·b + 8191 >>
//! 14)` of blue, and `y + (8191 − 11700·r − 5638·b >> 14)` of green, clamped to a byte.

use crate::image::Channels;
use crate::image::windows::{Level, Simd};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Samples that may be read beyond the end of a line.
pub(super) const BEYOND: usize = 64;

/// Offset of a blended line; its first sample is duplicated before it.
pub(super) const MARGIN: usize = 1;

/// Converts a line of luma samples to pixels.
pub(super) fn grey(line: &[u8], channels: Channels, out: &mut [u8]) {
    match channels {
        Channels::Grey | Channels::Index => out.copy_from_slice(&line[..out.len()]),
        Channels::Colour => {
            for (pixel, &sample) in out.as_chunks_mut::<3>().0.iter_mut().zip(line) {
                *pixel = [sample; 3];
            }
        }
    }
}

/// Vertical upsampling: ¾ `near` + ¼ `far` for `count` samples, with the first and the last one duplicated at the
/// ends.
pub(super) fn blend(level: Level, near: &[u8], far: &[u8], count: usize, out: &mut [u8]) {
    match level.simd() {
        // SAFETY: a `Level` exists only if the CPU supports its instructions.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512 => unsafe { blend_avx2(near, far, count, out) },
        Simd::Plain => blend_plain(near, far, count, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn blend_avx2(near: &[u8], far: &[u8], count: usize, out: &mut [u8]) {
    blend_plain(near, far, count, out);
}

#[inline(always)]
fn blend_plain(near: &[u8], far: &[u8], count: usize, out: &mut [u8]) {
    for ((out, &near), &far) in out[MARGIN..MARGIN + count].iter_mut().zip(&near[..count]).zip(&far[..count]) {
        *out = three_to_one(near, far);
    }
    out[0] = out[MARGIN];
    out[MARGIN + count] = out[count];
}

#[inline(always)]
fn three_to_one(near: u8, far: u8) -> u8 {
    ((3 * u16::from(near) + u16::from(far) + 2) >> 2) as u8
}

/// Converts a line of luma and two of chroma to pixels. With `HALF`, the chroma lines are [blended](blend) lines of
/// half the width.
pub(super) fn rgb<const HALF: bool>(level: Level, lines: [&[u8]; 3], out: &mut [u8]) {
    match level.simd() {
        // SAFETY: a `Level` exists only if the CPU supports its instructions.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { rgb_avx512::<HALF>(lines, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { rgb_avx2::<HALF>(lines, out) },
        Simd::Plain => rgb_plain::<HALF>(lines, out),
    }
}

fn rgb_plain<const HALF: bool>([bright, blue, red]: [&[u8]; 3], out: &mut [u8]) {
    for (x, (pixel, &bright)) in out.as_chunks_mut::<3>().0.iter_mut().zip(bright).enumerate() {
        let colour = |line: &[u8]| {
            let sample = if HALF { three_to_one(line[MARGIN + x / 2], line[MARGIN + x / 2 + x % 2 * 2 - 1]) } else { line[x] };
            i32::from(sample) - 128
        };
        let (bright, blue, red) = (i32::from(bright), colour(blue), colour(red));
        let green = bright + ((8191 - 11700 * red - 5638 * blue) >> 14);
        *pixel =
            [bright + ((22970 * red + 8191) >> 14), green, bright + ((29032 * blue + 8191) >> 14)].map(|value| value.clamp(0, 255) as u8);
    }
}

/// Pixels per step.
#[cfg(target_arch = "x86_64")]
const AT_ONCE: usize = 32;

/// Sixteen pixels become 48 bytes: for each third, the source byte in each channel, or none.
#[cfg(target_arch = "x86_64")]
const PLACES: [[[i8; 16]; 3]; 3] = {
    let mut places = [[[-1; 16]; 3]; 3];
    let mut at = 0;
    while at < 48 {
        places[at / 16][at % 3][at % 16] = (at / 3) as i8;
        at += 1;
    }
    places
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn rgb_avx2<const HALF: bool>(lines: [&[u8]; 3], out: &mut [u8]) {
    let lines = Lines::<HALF>::new(lines, out);
    in_steps(out, |x, out| {
        // SAFETY: this function is compiled for AVX2, so its callers checked for it; `x` is the start of a step of
        // `out`.
        let channels = unsafe { lines.channels(x) };
        let in_order = |channel: usize| _mm256_permute4x64_epi64::<0b11_01_10_00>(channels[channel]);
        let (red, green, blue) = (in_order(0), in_order(1), in_order(2));
        let third = |third: usize| {
            // SAFETY: each array has sixteen bytes.
            let place = |channel: usize| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(PLACES[third][channel].as_ptr().cast()) });
            let (red, green) = (_mm256_shuffle_epi8(red, place(0)), _mm256_shuffle_epi8(green, place(1)));
            _mm256_or_si256(_mm256_or_si256(red, green), _mm256_shuffle_epi8(blue, place(2)))
        };
        let (first, second, last) = (third(0), third(1), third(2));
        // SAFETY: 96 bytes are stored to an array of 96.
        unsafe {
            let out = out.as_mut_ptr();
            _mm256_storeu_si256(out.cast(), _mm256_permute2x128_si256::<0x20>(first, second));
            _mm256_storeu_si256(out.add(32).cast(), _mm256_permute2x128_si256::<0x30>(last, first));
            _mm256_storeu_si256(out.add(64).cast(), _mm256_permute2x128_si256::<0x31>(second, last));
        }
    });
}

/// The source of each byte of 32 pixels: red at 0, green at 32, blue at 64, each in the order of the pack
/// instruction.
#[cfg(target_arch = "x86_64")]
const ORDER: [u8; 128] = {
    let mut order = [0; 128];
    let mut at = 0;
    while at < 96 {
        let pixel = at / 3;
        // Packing yields pixels 0 to 7, 16 to 23, 8 to 15, 24 to 31.
        let group = [0, 2, 1, 3][pixel / 8];
        order[at] = (at % 3 * 32 + group * 8 + pixel % 8) as u8;
        at += 1;
    }
    order
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vbmi")]
fn rgb_avx512<const HALF: bool>(lines: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the table has 128 bytes.
    let (front, back) = unsafe { (_mm512_loadu_si512(ORDER.as_ptr().cast()), _mm512_loadu_si512(ORDER[64..].as_ptr().cast())) };
    let lines = Lines::<HALF>::new(lines, out);
    in_steps(out, |x, out| {
        // SAFETY: this function is compiled for AVX2 and more, so its callers checked for it; `x` is the start of a
        // step of `out`.
        let [red, green, blue] = unsafe { lines.channels(x) };
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(red), green);
        let blue = _mm512_castsi256_si512(blue);
        // SAFETY: 64 bytes and 32 are stored to an array of 96.
        unsafe {
            let out = out.as_mut_ptr();
            _mm512_storeu_si512(out.cast(), _mm512_permutex2var_epi8(both, front, blue));
            _mm256_storeu_si256(out.add(64).cast(), _mm512_castsi512_si256(_mm512_permutex2var_epi8(both, back, blue)));
        }
    });
}

/// Calls `step` for each 32 pixels with their offset; the last ones go through a buffer of 32.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn in_steps(out: &mut [u8], step: impl Fn(usize, &mut [u8; 3 * AT_ONCE])) {
    let (whole, rest) = out.as_chunks_mut();
    let mut last = [0; 3 * AT_ONCE];
    let partial = (!rest.is_empty()).then_some(&mut last);
    for (index, out) in whole.iter_mut().chain(partial).enumerate() {
        step(index * AT_ONCE, out);
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

// The functions below require AVX2. They have no `target_feature` attribute because they must be inlined into the two
// functions above.

/// Samples that [`in_steps`] reads for the pixels of `out`: also a partial pixel at the end starts a step.
#[cfg(target_arch = "x86_64")]
fn samples_read(out: &[u8]) -> usize {
    out.len().div_ceil(3 * AT_ONCE) * AT_ONCE
}

/// A line of luma and two of chroma whose lengths were checked once, so that vector loads need no check.
#[cfg(target_arch = "x86_64")]
struct Lines<'a, const HALF: bool>([&'a [u8]; 3]);

#[cfg(target_arch = "x86_64")]
impl<'a, const HALF: bool> Lines<'a, HALF> {
    /// For the pixels of `out`.
    fn new(lines: [&'a [u8]; 3], out: &[u8]) -> Lines<'a, HALF> {
        let read = samples_read(out);
        let colours = if HALF { read / 2 + 2 * MARGIN } else { read };
        let [bright, blue, red] = lines.map(<[u8]>::len);
        assert!(bright >= read && blue >= colours && red >= colours, "lines can be read beyond their end");
        Lines(lines)
    }

    /// Red, green and blue of 32 pixels, in the order of the pack instruction.
    ///
    /// # Safety
    /// The processor has AVX2, and `x` is the start of a step of the pixels that the lines were checked for.
    #[inline(always)]
    unsafe fn channels(&self, x: usize) -> [__m256i; 3] {
        let [bright, blue, red] = self.0;
        // SAFETY: the caller has AVX2. `new` checked that the lines have 32 samples from `x` on: a step ends at most at
        // `samples_read`. Chroma lines have as many or, if `HALF`, sixteen from `x / 2` on with a margin on both sides.
        unsafe {
            let [bright_low, bright_high] = samples(bright, x);
            let ([blue_low, blue_high], [red_low, red_high]) = match HALF {
                true => (spread(blue, x / 2), spread(red, x / 2)),
                false => (samples(blue, x), samples(red, x)),
            };
            let [red_low, green_low, blue_low] = sixteen(bright_low, blue_low, red_low);
            let [red_high, green_high, blue_high] = sixteen(bright_high, blue_high, red_high);
            [_mm256_packus_epi16(red_low, red_high), _mm256_packus_epi16(green_low, green_high), _mm256_packus_epi16(blue_low, blue_high)]
        }
    }
}

/// Red, green and blue of sixteen pixels.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sixteen(bright: __m256i, blue: __m256i, red: __m256i) -> [__m256i; 3] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let middle = _mm256_set1_epi16(128);
        let (blue, red) = (_mm256_sub_epi16(blue, middle), _mm256_sub_epi16(red, middle));
        // (2·c·factor + 2¹⁴) >> 15 equals (c·factor + 8192) >> 14; using 8191 instead gives the same result for every
        // c.
        let part = |colour: __m256i, factor: i16| _mm256_mulhrs_epi16(_mm256_add_epi16(colour, colour), _mm256_set1_epi16(factor));
        let factors = _mm256_set1_epi32((-5638i32 << 16) | (-11700i32 & 0xFFFF));
        let green = |pairs: __m256i| _mm256_srai_epi32::<14>(_mm256_add_epi32(_mm256_madd_epi16(pairs, factors), _mm256_set1_epi32(8191)));
        let green = _mm256_packs_epi32(green(_mm256_unpacklo_epi16(red, blue)), green(_mm256_unpackhi_epi16(red, blue)));
        [_mm256_add_epi16(bright, part(red, 22970)), _mm256_add_epi16(bright, green), _mm256_add_epi16(bright, part(blue, 29032))]
    }
}

/// 32 samples from `x` on, widened to 16 bits.
///
/// # Safety
/// The processor has AVX2, and the line has these samples.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn samples(line: &[u8], x: usize) -> [__m256i; 2] {
    // SAFETY: the caller has AVX2 and guarantees the samples.
    unsafe { [wide(line, x), wide(line, x + 16)] }
}

/// Sixteen samples from `x` on, widened to 16 bits.
///
/// # Safety
/// The processor has AVX2, and the line has these samples.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn wide(line: &[u8], x: usize) -> __m256i {
    debug_assert!(x + 16 <= line.len(), "sixteen samples are there");
    // SAFETY: the caller has AVX2 and guarantees sixteen samples from `x` on.
    unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(line.as_ptr().add(x).cast())) }
}

/// Horizontal upsampling of sixteen samples from `x` on of a blended line, with one sample on each side: ¾ of the
/// nearest and ¼ of the next one.
///
/// # Safety
/// The processor has AVX2, and the line has eighteen samples from `x` on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn spread(line: &[u8], x: usize) -> [__m256i; 2] {
    // SAFETY: the caller has AVX2 and guarantees the samples.
    unsafe {
        let (before, here, after) = (wide(line, x), wide(line, x + 1), wide(line, x + 2));
        let three = _mm256_add_epi16(_mm256_add_epi16(here, _mm256_add_epi16(here, here)), _mm256_set1_epi16(2));
        let left = _mm256_srli_epi16::<2>(_mm256_add_epi16(three, before));
        let right = _mm256_srli_epi16::<2>(_mm256_add_epi16(three, after));
        let (low, high) = (_mm256_unpacklo_epi16(left, right), _mm256_unpackhi_epi16(left, right));
        [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// Vector loads read whole steps, so lines that end before the last step are refused, also if it has no whole
    /// pixel.
    #[test]
    fn no_level_reads_beyond_its_lines() {
        for level in Level::all().into_iter().filter(|level| level.simd() != Simd::Plain) {
            for (bytes, samples) in [(3 * 33, 63), (3 * 32 + 1, 63), (3 * 32, 31)] {
                let whole = |samples: usize| vec![0u8; samples];
                let short = |lines: [usize; 3]| {
                    let lines = lines.map(whole);
                    catch_unwind(|| rgb::<false>(level, [&lines[0], &lines[1], &lines[2]], &mut vec![0; bytes])).is_err()
                };
                let enough = samples + 1;
                assert!(short([samples, enough, enough]) && short([enough, samples, enough]) && short([enough, enough, samples]));
                assert!(!short([enough; 3]), "{level:?}: {enough} samples for {bytes} bytes");
            }
            let halves = |chroma: usize| {
                let (luma, chroma) = (vec![0u8; 32], vec![0u8; chroma]);
                catch_unwind(|| rgb::<true>(level, [&luma, &chroma, &chroma], &mut [0; 3 * 20])).is_err()
            };
            assert!(halves(17) && !halves(18));
        }
    }
}
