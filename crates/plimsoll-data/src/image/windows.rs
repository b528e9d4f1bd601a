//! Interpolation along a line of bytes with shuffles. A few adjacent output elements take their inputs from one
//! window of the line, which is loaded once and shuffled into place instead of gathering the pixels one by one.

use super::resample::Tap;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A SIMD level of this CPU. A value is proof that the CPU supports the instructions, and safe functions that take one
/// rely on it: only [`all`](Self::all) constructs one, after detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Simd);

/// The instructions of a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {
    Plain,
    /// AVX2 with BMI2, which all CPUs with AVX2 have.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with byte shuffles across whole registers (VBMI).
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The levels that this CPU supports, best last.
    pub fn all() -> Vec<Level> {
        let mut levels = vec![Level(Simd::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("bmi2");
            if avx2 {
                levels.push(Level(Simd::Avx2));
            }
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") {
                levels.push(Level(Simd::Avx512));
            }
        }
        levels
    }

    pub fn best() -> Level {
        *Level::all().last().expect("plain is always there")
    }

    /// Its instructions, which this CPU supports.
    pub fn simd(self) -> Simd {
        self.0
    }
}

/// A line's length is rounded up to a multiple of this.
pub(crate) const GROUP: usize = 16;

/// The shuffle tables of an output line.
pub(crate) struct TapWindows {
    level: Level,
    /// Bytes of a window; zero if the line is not read through windows.
    reach: usize,
    /// Offsets of the windows.
    starts: Vec<u32>,
    /// Four bytes per element: index of the pixel before, zero, index of the pixel after, zero.
    picks: Vec<[u8; 4]>,
    /// The weight of the pixel after.
    weights: Vec<f32>,
}

/// A shuffle index that yields zero.
const NOTHING: u8 = 0x80;

impl TapWindows {
    /// Bytes that [`new`](Self::new) allocates for lines of this many elements.
    pub fn bytes(elements: usize) -> usize {
        let room = elements.next_multiple_of(GROUP);
        room / 4 * size_of::<u32>() + room * (size_of::<[u8; 4]>() + size_of::<f32>())
    }

    pub fn new(level: Level, elements: usize) -> TapWindows {
        let room = elements.next_multiple_of(GROUP);
        TapWindows {
            level,
            reach: 0,
            starts: Vec::with_capacity(room / 4),
            picks: Vec::with_capacity(room),
            weights: Vec::with_capacity(room),
        }
    }

    /// Prepares the tables for lines of `length` bytes that are read at `columns`, with pixels of `channels` bytes.
    pub fn aim(&mut self, columns: &[Tap], channels: usize, length: usize) {
        let reaches: &[(usize, usize)] = match self.level.simd() {
            Simd::Plain => &[],
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => &[(16, 4)],
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => &[(64, 16), (128, 16)],
        };
        let fitting = reaches.iter().find(|&&(reach, elements)| self.fit(columns, channels, length, reach, elements));
        self.reach = fitting.map_or(0, |&(reach, _)| reach);
    }

    /// Whether lines are read through windows.
    pub fn are_used(&self) -> bool {
        self.reach > 0
    }

    /// Builds the tables for windows of `reach` bytes with `elements` elements each; `false` if the line cannot be
    /// read through such windows.
    fn fit(&mut self, columns: &[Tap], channels: usize, length: usize, reach: usize, elements: usize) -> bool {
        self.starts.clear();
        self.picks.clear();
        self.weights.clear();
        // Small windows are loaded without a mask.
        if length > u32::MAX as usize || (reach == 16 && length < reach) {
            return false;
        }
        let count = columns.len() * channels;
        let mut first = 0;
        // The pixel and the channel of an element, incremented instead of divided.
        let (mut column, mut channel) = (0, 0);
        while first < count {
            let last = (first + elements).min(count) - 1;
            let covered = &columns[column..=last / channels];
            let start = covered.iter().map(|tap| tap.lower.min(tap.upper)).min().unwrap_or(0).min(length.saturating_sub(reach));
            let end = covered.iter().map(|tap| tap.lower.max(tap.upper)).max().unwrap_or(0) + channels;
            if end - start > reach {
                return false;
            }
            self.starts.push(start as u32);
            for _ in first..=last {
                let tap = &columns[column];
                self.picks.push([(tap.lower + channel - start) as u8, NOTHING, (tap.upper + channel - start) as u8, NOTHING]);
                self.weights.push(tap.weight);
                channel += 1;
                if channel == channels {
                    (column, channel) = (column + 1, 0);
                }
            }
            first += elements;
        }
        let room = count.next_multiple_of(GROUP);
        self.starts.resize(room / elements, 0);
        self.picks.resize(room, [0, NOTHING, 0, NOTHING]);
        self.weights.resize(room, 0.0);
        true
    }

    /// Interpolates along a line of the length passed to [`aim`](Self::aim); or along two lines, which are needed only
    /// once, and between them, with `weight` for the second.
    pub fn run<const LINES: usize>(&self, lines: [&[u8]; LINES], weight: f32, out: &mut [f32]) {
        match (self.level.simd(), self.reach) {
            // SAFETY: a `Level` exists only if the CPU supports its instructions.
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx2, _) => unsafe { self.avx2(lines, weight, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, 64) => unsafe { self.avx512::<LINES, false>(lines, weight, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, _) => unsafe { self.avx512::<LINES, true>(lines, weight, out) },
            (Simd::Plain, _) => unreachable!("without shuffles there are no windows"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2<const LINES: usize>(&self, lines: [&[u8]; LINES], weight: f32, out: &mut [f32]) {
        let weight = _mm256_set1_ps(weight);
        for (eight, out) in self.eights().zip(out.as_chunks_mut::<8>().0) {
            let mut value = eight.along(lines[0]);
            if LINES == 2 {
                value = _mm256_add_ps(value, _mm256_mul_ps(_mm256_sub_ps(eight.along(lines[1]), value), weight));
            }
            // SAFETY: the array has eight elements.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) };
        }
    }

    /// With windows of one register or, if `WIDE`, of two.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn avx512<const LINES: usize, const WIDE: bool>(&self, lines: [&[u8]; LINES], weight: f32, out: &mut [f32]) {
        let weight = _mm512_set1_ps(weight);
        for (group, out) in self.groups().zip(out.as_chunks_mut::<GROUP>().0) {
            let mut value = group.along::<WIDE>(lines[0]);
            if LINES == 2 {
                value = _mm512_add_ps(value, _mm512_mul_ps(_mm512_sub_ps(group.along::<WIDE>(lines[1]), value), weight));
            }
            // SAFETY: the array has sixteen elements.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), value) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn eights(&self) -> impl Iterator<Item = Eight<'_>> {
        let tables = self.starts.as_chunks().0.iter().zip(self.picks.as_chunks().0).zip(self.weights.as_chunks().0);
        tables.map(|((starts, picks), weights)| Eight { starts, picks, weights })
    }

    #[cfg(target_arch = "x86_64")]
    fn groups(&self) -> impl Iterator<Item = LaneGroup<'_>> {
        let tables = self.starts.iter().zip(self.picks.as_chunks().0).zip(self.weights.as_chunks().0);
        tables.map(|((&start, picks), weights)| LaneGroup { start: start as usize, picks, weights })
    }
}

/// A mask of the used bytes of a register: two of four.
#[cfg(target_arch = "x86_64")]
const PAIRS: u64 = 0x5555_5555_5555_5555;

/// The elements of one AVX2 register, from two windows.
#[cfg(target_arch = "x86_64")]
struct Eight<'a> {
    starts: &'a [u32; 2],
    picks: &'a [[u8; 4]; 8],
    weights: &'a [f32; 8],
}

#[cfg(target_arch = "x86_64")]
impl Eight<'_> {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn along(&self, line: &[u8]) -> __m256 {
        let [low, high] = self.starts.map(|start| line[start as usize..].first_chunk::<16>().expect("windows lie inside"));
        // SAFETY: each pointer is to an array of exactly the size loaded.
        unsafe {
            let window = _mm256_set_m128i(_mm_loadu_si128(high.as_ptr().cast()), _mm_loadu_si128(low.as_ptr().cast()));
            let pairs = _mm256_shuffle_epi8(window, _mm256_loadu_si256(self.picks.as_ptr().cast()));
            let before = _mm256_cvtepi32_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF)));
            // The difference of the two pixels, which is exact in f32.
            let way = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001_FFFF)));
            _mm256_add_ps(before, _mm256_mul_ps(way, _mm256_loadu_ps(self.weights.as_ptr())))
        }
    }
}

/// The elements of one AVX-512 register.
#[cfg(target_arch = "x86_64")]
struct LaneGroup<'a> {
    start: usize,
    picks: &'a [[u8; 4]; GROUP],
    weights: &'a [f32; GROUP],
}

#[cfg(target_arch = "x86_64")]
impl LaneGroup<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn along<const WIDE: bool>(&self, line: &[u8]) -> __m512 {
        let line = &line[self.start..];
        // SAFETY: both arrays have 64 bytes.
        let (picks, weights) = unsafe { (_mm512_loadu_si512(self.picks.as_ptr().cast()), _mm512_loadu_ps(self.weights.as_ptr())) };
        let pairs = if WIDE {
            _mm512_maskz_permutex2var_epi8(PAIRS, load(line), picks, load(line.get(64..).unwrap_or(&[])))
        } else {
            _mm512_maskz_permutexvar_epi8(PAIRS, picks, load(line))
        };
        let before = _mm512_cvtepi32_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF)));
        // The difference of the two pixels, which is exact in f32.
        let way = _mm512_cvtepi32_ps(_mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0001_FFFF)));
        _mm512_add_ps(before, _mm512_mul_ps(way, weights))
    }
}

/// The first 64 bytes, padded with zeros.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn load(bytes: &[u8]) -> __m512i {
    let there = if bytes.len() >= 64 { u64::MAX } else { (1 << bytes.len()) - 1 };
    // SAFETY: masked bytes are not accessed; the mask selects only bytes of the slice.
    unsafe { _mm512_maskz_loadu_epi8(there, bytes.as_ptr().cast()) }
}
