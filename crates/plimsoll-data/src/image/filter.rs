//! Resampling with a filter kernel over a span of pixels: area, bicubic and antialiasing of `tf.image.resize`.
//!
//! Weight tables and one line are in memory of the caller, because their sizes depend on the image.

use super::method::Method;
use super::resample::{From, ImageElement};

/// Four bytes of the caller's memory: an entry of a weight table, or an element of the line.
pub(crate) type Word = [u8; 4];

/// Number of words that [`run`] needs for output images of size `to` (height and width).
pub(crate) fn words(method: Method, from: (usize, usize), to: (usize, usize), channels: usize) -> u128 {
    let table = |from: usize, to: usize| to as u128 * (taps(method, from, to) as u128 + 2);
    table(from.0, to.0) + table(from.1, to.1) + from.1 as u128 * channels as u128
}

/// Resamples one image of size `from` to size `to`; `finish` is applied to each output value.
pub(crate) fn run<E: ImageElement, O>(job: Job<'_>, image: &[E], scratch: &mut [Word], out: &mut [O], finish: impl Fn(f32) -> O + Copy) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 support was just checked.
        return unsafe { run_avx2(job, image, scratch, out, finish) };
    }
    run_plain(job, image, scratch, out, finish);
}

/// The parameters of a resampling.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub method: Method,
    pub from: &'a From,
    /// Height and width.
    pub to: (usize, usize),
    pub channels: usize,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2<E: ImageElement, O>(job: Job<'_>, image: &[E], scratch: &mut [Word], out: &mut [O], finish: impl Fn(f32) -> O + Copy) {
    run_plain(job, image, scratch, out, finish);
}

/// Vertical pass first: the intermediate line has the input's width, and only one is stored.
#[inline(always)]
fn run_plain<E: ImageElement, O>(job: Job<'_>, image: &[E], scratch: &mut [Word], out: &mut [O], finish: impl Fn(f32) -> O + Copy) {
    let Job { method, from, to, channels } = job;
    let (row_taps, column_taps) = (taps(method, from.height, to.0), taps(method, from.width, to.1));
    let (rows, rest) = scratch.split_at_mut(to.0 * (row_taps + 2));
    let (columns, rest) = rest.split_at_mut(to.1 * (column_taps + 2));
    let line = &mut rest[..from.width * channels];
    spans(rows, method, from.height, to.0, from.upside_down);
    spans(columns, method, from.width, to.1, from.mirrored);
    for (row, out) in rows.chunks_exact(row_taps + 2).zip(out.chunks_exact_mut(to.1 * channels)) {
        let (start, weights) = span(row);
        line.fill(0f32.to_ne_bytes());
        for (index, weight) in weights.iter().enumerate() {
            let weight = f32::from_ne_bytes(*weight);
            let input = &image[(start + index) * from.line * channels..][..line.len()];
            for (sum, element) in line.iter_mut().zip(input) {
                *sum = (f32::from_ne_bytes(*sum) + weight * element.value()).to_ne_bytes();
            }
        }
        match channels {
            1 => across::<O, 1>(columns, column_taps, line, out, finish),
            3 => across::<O, 3>(columns, column_taps, line, out, finish),
            _ => {
                for (column, out) in columns.chunks_exact(column_taps + 2).zip(out.chunks_exact_mut(channels)) {
                    let (start, weights) = span(column);
                    for (channel, out) in out.iter_mut().enumerate() {
                        let pixels = line[start * channels + channel..].iter().step_by(channels);
                        *out = finish(weights.iter().zip(pixels).map(|(&w, &p)| f32::from_ne_bytes(w) * f32::from_ne_bytes(p)).sum());
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn across<O, const C: usize>(columns: &[Word], taps: usize, line: &[Word], out: &mut [O], finish: impl Fn(f32) -> O) {
    let line = line.as_chunks::<C>().0;
    for (column, out) in columns.chunks_exact(taps + 2).zip(out.as_chunks_mut::<C>().0) {
        let (start, weights) = span(column);
        let mut sum = [0f32; C];
        for (weight, pixel) in weights.iter().zip(&line[start..]) {
            let weight = f32::from_ne_bytes(*weight);
            for (sum, value) in sum.iter_mut().zip(pixel) {
                *sum += weight * f32::from_ne_bytes(*value);
            }
        }
        *out = sum.map(&finish);
    }
}

/// The first pixel and its weights.
#[inline(always)]
fn span(entry: &[Word]) -> (usize, &[Word]) {
    let (start, count) = (u32::from_ne_bytes(entry[0]) as usize, u32::from_ne_bytes(entry[1]) as usize);
    (start, &entry[2..2 + count])
}

/// Maximum number of input pixels per output pixel, along an axis.
fn taps(method: Method, from: usize, to: usize) -> usize {
    let scale = from as f32 / to as f32;
    let wide = |radius: f32| 2 * (radius * scale.max(1.0)).ceil() as usize + 1;
    let most = match method {
        Method::Nearest | Method::Bilinear => 1,
        Method::Bicubic => 4,
        // One more than the pixels covered, because positions are rounded.
        Method::Area => scale.ceil() as usize + 2,
        Method::BilinearAntialias => wide(1.0),
        Method::BicubicAntialias => wide(2.0),
    };
    most.min(from)
}

/// Writes the table of an axis: for each output pixel the first input pixel, the number of pixels, and their weights.
/// If `reversed`, the axis is mirrored.
fn spans(table: &mut [Word], method: Method, from: usize, to: usize, reversed: bool) {
    let taps = taps(method, from, to);
    for (place, entry) in table.chunks_exact_mut(taps + 2).enumerate() {
        let (head, weights) = entry.split_at_mut(2);
        weights.fill(0f32.to_ne_bytes());
        let range = match method {
            Method::Area => area(weights, place, from, to),
            Method::Bicubic => bicubic(weights, place, from, to),
            Method::BilinearAntialias => antialias(weights, place, from, to, 1.0, |x| (1.0 - x).max(0.0)),
            Method::BicubicAntialias => antialias(weights, place, from, to, 2.0, keys),
            Method::Nearest | Method::Bilinear => unreachable!("these have no weights"),
        };
        let count = range.1 - range.0;
        let start = if reversed { from - range.1 } else { range.0 };
        if reversed {
            weights[..count].reverse();
        }
        head[0] = (start as u32).to_ne_bytes();
        head[1] = (count as u32).to_ne_bytes();
    }
}

fn add(weights: &mut [Word], at: usize, weight: f32) {
    weights[at] = (f32::from_ne_bytes(weights[at]) + weight).to_ne_bytes();
}

/// The fraction of each pixel covered by the output pixel, as in TensorFlow's `ResizeArea`.
fn area(weights: &mut [Word], place: usize, from: usize, to: usize) -> (usize, usize) {
    let scale = from as f32 / to as f32;
    let (begin, end) = (place as f32 * scale, (place + 1) as f32 * scale);
    let start = (begin.floor() as usize).min(from - 1);
    let stop = (end.ceil() as usize).max(start + 1);
    for at in start..stop {
        let (left, right) = (at as f32, (at + 1) as f32);
        let share = match (left < begin, right > end) {
            (true, true) => scale,
            (true, false) => right - begin,
            (false, true) => end - left,
            (false, false) => 1.0,
        };
        add(weights, at.min(from - 1) - start, share / scale);
    }
    (start, stop.min(from))
}

/// Keys' cubic with a = −½ at 1024 positions between two pixels, as in TensorFlow's `ResizeBicubic`; pixels outside
/// have no weight.
fn bicubic(weights: &mut [Word], place: usize, from: usize, to: usize) -> (usize, usize) {
    const STEPS: f32 = 1024.0;
    let at = (place as f32 + 0.5) * (from as f32 / to as f32) - 0.5;
    let floor = at.floor();
    let offset = ((at - floor) * STEPS).round_ties_even() / STEPS;
    let all = [1.0 + offset, offset, 1.0 - offset, 2.0 - offset].map(keys);
    let first = floor as i64 - 1;
    let start = first.max(0);
    let stop = (first + 4).min(from as i64);
    let inside = &all[(start - first) as usize..(stop - first) as usize];
    normalised(weights, inside.iter().copied());
    (start as usize, stop as usize)
}

/// A kernel scaled with the downsampling factor, as in TensorFlow's `ScaleAndTranslate`.
fn antialias(weights: &mut [Word], place: usize, from: usize, to: usize, radius: f32, kernel: impl Fn(f32) -> f32) -> (usize, usize) {
    let scale = 1.0 / (to as f32 / from as f32);
    let wide = scale.max(1.0);
    let centre = (place as f32 + 0.5) * scale;
    let last = from as i64 - 1;
    let start = ((centre - radius * wide - 0.5).ceil() as i64).clamp(0, last);
    let stop = ((centre + radius * wide - 0.5).floor() as i64).clamp(0, last) + 1;
    // The table size may be off by one because sizes are inexact in f32; the outermost weights are negligible.
    let stop = stop.min(start + weights.len() as i64);
    let narrow = 1.0 / wide;
    normalised(weights, (start..stop).map(|pixel| kernel(((pixel as f32 + 0.5 - centre) * narrow).abs())));
    (start as usize, stop as usize)
}

fn normalised(weights: &mut [Word], values: impl Iterator<Item = f32> + Clone) {
    let sum: f32 = values.clone().sum();
    let by = if sum.abs() >= 1000.0 * f32::MIN_POSITIVE { 1.0 / sum } else { 0.0 };
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight = (value * by).to_ne_bytes();
    }
}

/// Keys' cubic.
fn keys(x: f32) -> f32 {
    if x >= 2.0 {
        0.0
    } else if x >= 1.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        (1.5 * x - 2.5) * x * x + 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_inside_the_image_and_sum_to_one_read_from_either_end() {
        for method in [Method::Area, Method::Bicubic, Method::BilinearAntialias, Method::BicubicAntialias] {
            for (from, to) in [(1, 1), (1, 7), (7, 1), (100, 3), (3, 100), (2047, 224), (65_500, 224), (5, 5), (1_000_003, 17)] {
                let taps = taps(method, from, to);
                let mut tables = [vec![[0; 4]; to * (taps + 2)], vec![[0; 4]; to * (taps + 2)]];
                spans(&mut tables[0], method, from, to, false);
                spans(&mut tables[1], method, from, to, true);
                let [there, back] = tables;
                for (entry, reversed) in there.chunks_exact(taps + 2).zip(back.chunks_exact(taps + 2)) {
                    let (start, weights) = span(entry);
                    let sum: f64 = weights.iter().map(|weight| f64::from(f32::from_ne_bytes(*weight))).sum();
                    assert!((sum - 1.0).abs() < 1e-2, "{method} {from} → {to}: {sum}");
                    assert!(start + weights.len() <= from && !weights.is_empty());
                    let (end, again) = span(reversed);
                    assert_eq!(end + start + weights.len(), from);
                    assert!(again.iter().rev().eq(weights));
                }
            }
        }
    }
}
