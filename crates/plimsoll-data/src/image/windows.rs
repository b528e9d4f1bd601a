//! Interpolation along a line of bytes by shuffles. A few neighbouring output elements take all they need from one window of the line: it
//! is loaded once and shuffled into place, where the pixels before and after would otherwise be fetched one by one.

use super::resample::Tap;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// What the processor can do for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// With shuffles of bytes across whole registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// What this processor has, the best last.
    pub fn all() -> Vec<Level> {
        let mut levels = vec![Level::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") {
                levels.push(Level::Avx2);
            }
            if has!("avx2") && has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") {
                levels.push(Level::Avx512);
            }
        }
        levels
    }

    pub fn best() -> Level {
        *Level::all().last().expect("plain is always there")
    }
}

/// Output elements that a line's length is rounded up to.
pub(crate) const GROUP: usize = 16;

/// Where the elements of an output line come from, for shuffles.
pub(crate) struct Windows {
    level: Level,
    /// Bytes of a window; none where the line is not read through windows.
    reach: usize,
    /// Where windows begin.
    starts: Vec<u32>,
    /// Four bytes an element: where in its window its pixel before is, nothing, the pixel after, nothing.
    picks: Vec<[u8; 4]>,
    /// How far from the one to the other.
    weights: Vec<f32>,
}

/// Marks a byte that becomes zero.
const NOTHING: u8 = 0x80;

impl Windows {
    /// What [`new`](Self::new) takes for lines of so many elements.
    pub fn bytes(elements: usize) -> usize {
        let room = elements.next_multiple_of(GROUP);
        room / 4 * size_of::<u32>() + room * (size_of::<[u8; 4]>() + size_of::<f32>())
    }

    pub fn new(level: Level, elements: usize) -> Windows {
        let room = elements.next_multiple_of(GROUP);
        Windows {
            level,
            reach: 0,
            starts: Vec::with_capacity(room / 4),
            picks: Vec::with_capacity(room),
            weights: Vec::with_capacity(room),
        }
    }

    /// Gets ready for lines of `length` bytes that are read at `columns`, pixels of `channels` bytes.
    pub fn aim(&mut self, columns: &[Tap], channels: usize, length: usize) {
        let reaches: &[(usize, usize)] = match self.level {
            Level::Plain => &[],
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &[(16, 4)],
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &[(64, 16), (128, 16)],
        };
        let fitting = reaches.iter().find(|&&(reach, elements)| self.fit(columns, channels, length, reach, elements));
        self.reach = fitting.map_or(0, |&(reach, _)| reach);
    }

    /// Whether lines are read through windows.
    pub fn are_used(&self) -> bool {
        self.reach > 0
    }

    /// Makes the tables for windows of `reach` bytes that serve so many elements each, if they are large enough.
    fn fit(&mut self, columns: &[Tap], channels: usize, length: usize, reach: usize, elements: usize) -> bool {
        self.starts.clear();
        self.picks.clear();
        self.weights.clear();
        // The smaller windows are loaded whole.
        if length > u32::MAX as usize || (reach == 16 && length < reach) {
            return false;
        }
        let count = columns.len() * channels;
        let mut first = 0;
        // The pixel and the channel that an element is of, counted along rather than divided out.
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

    /// Interpolates along a line of the length that was [aimed](Self::aim) at.
    pub fn run(&self, line: &[u8], out: &mut [f32]) {
        match (self.level, self.reach) {
            // SAFETY: there is such a level only where the processor has what it takes.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, _) => unsafe { self.avx2(line, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 64) => unsafe { self.avx512(line, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, _) => unsafe { self.avx512_wide(line, out) },
            (Level::Plain, _) => unreachable!("without shuffles there are no windows"),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2(&self, line: &[u8], out: &mut [f32]) {
        let groups = self.starts.as_chunks::<2>().0.iter().zip(self.picks.as_chunks::<8>().0).zip(self.weights.as_chunks::<8>().0);
        for (((starts, picks), weights), out) in groups.zip(out.as_chunks_mut::<8>().0) {
            let [low, high] = starts.map(|start| line[start as usize..].first_chunk::<16>().expect("windows lie inside"));
            // SAFETY: each pointer is to an array of exactly what is loaded or stored.
            unsafe {
                let window = _mm256_set_m128i(_mm_loadu_si128(high.as_ptr().cast()), _mm_loadu_si128(low.as_ptr().cast()));
                let pairs = _mm256_shuffle_epi8(window, _mm256_loadu_si256(picks.as_ptr().cast()));
                let before = _mm256_cvtepi32_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF)));
                let after = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(pairs));
                let way = _mm256_mul_ps(_mm256_sub_ps(after, before), _mm256_loadu_ps(weights.as_ptr()));
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(before, way));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn avx512(&self, line: &[u8], out: &mut [f32]) {
        for (group, out) in self.groups().zip(out.as_chunks_mut().0) {
            let window = load(&line[group.start..]);
            let pairs = _mm512_maskz_permutexvar_epi8(PAIRS, group.picks(), window);
            group.finish(pairs, out);
        }
    }

    /// Windows of two registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn avx512_wide(&self, line: &[u8], out: &mut [f32]) {
        for (group, out) in self.groups().zip(out.as_chunks_mut().0) {
            let line = &line[group.start..];
            let (low, high) = (load(line), load(line.get(64..).unwrap_or(&[])));
            let pairs = _mm512_maskz_permutex2var_epi8(PAIRS, low, group.picks(), high);
            group.finish(pairs, out);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let tables = self.starts.iter().zip(self.picks.as_chunks().0).zip(self.weights.as_chunks().0);
        tables.map(|((&start, picks), weights)| Group { start: start as usize, picks, weights })
    }
}

/// Bytes of a register that hold something: two of four.
#[cfg(target_arch = "x86_64")]
const PAIRS: u64 = 0x5555_5555_5555_5555;

/// The elements that one register holds.
#[cfg(target_arch = "x86_64")]
struct Group<'a> {
    start: usize,
    picks: &'a [[u8; 4]; GROUP],
    weights: &'a [f32; GROUP],
}

#[cfg(target_arch = "x86_64")]
impl Group<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn picks(&self) -> __m512i {
        // SAFETY: the array is of 64 bytes.
        unsafe { _mm512_loadu_si512(self.picks.as_ptr().cast()) }
    }

    /// From pairs of bytes to what lies between them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn finish(&self, pairs: __m512i, out: &mut [f32; GROUP]) {
        let before = _mm512_cvtepi32_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF)));
        let after = _mm512_cvtepi32_ps(_mm512_srli_epi32::<16>(pairs));
        // SAFETY: both arrays are of sixteen elements.
        unsafe {
            let way = _mm512_mul_ps(_mm512_sub_ps(after, before), _mm512_loadu_ps(self.weights.as_ptr()));
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_add_ps(before, way));
        }
    }
}

/// The first 64 bytes, or as many as there are and zeros.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn load(bytes: &[u8]) -> __m512i {
    let there = if bytes.len() >= 64 { u64::MAX } else { (1 << bytes.len()) - 1 };
    // SAFETY: bytes that are masked out are not touched, all others are of the slice.
    unsafe { _mm512_maskz_loadu_epi8(there, bytes.as_ptr().cast()) }
}
