//! Resampling like `tf.image.resize`: half-pixel centers, and TensorFlow's order of float operations.

use super::filter::{self, Job, Word};
use super::method::Method;
use super::windows::{GROUP, Level, Simd, TapWindows};
use plimsoll_core::Bytes;

/// Resamples images of any size to one size. Its tables and line buffers have the size of the output.
pub(crate) struct Resampler {
    method: Method,
    channels: usize,
    height: usize,
    width: usize,
    from: Option<From>,
    rows: Vec<Tap>,
    columns: Vec<Tap>,
    level: Level,
    /// The columns for lines of bytes.
    windows: TapWindows,
    /// Two input lines, interpolated to the output's width.
    lines: [Vec<f32>; 2],
}

/// The layout of an input image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct From {
    pub height: usize,
    pub width: usize,
    /// Pixels per line in memory; more than the width for a crop.
    pub line: usize,
    /// Whether it is read from right to left, and from bottom to top.
    pub mirrored: bool,
    pub upside_down: bool,
}

/// An element of an image.
pub(crate) trait ImageElement: Copy {
    fn value(self) -> f32;

    /// The line as bytes, if the elements are u8.
    fn bytes(_line: &[Self]) -> Option<&[u8]> {
        None
    }
}

impl ImageElement for u8 {
    fn bytes(line: &[u8]) -> Option<&[u8]> {
        Some(line)
    }

    fn value(self) -> f32 {
        f32::from(self)
    }
}

impl ImageElement for [u8; 4] {
    fn value(self) -> f32 {
        f32::from_ne_bytes(self)
    }
}

/// The source of one output pixel along one axis.
#[derive(Clone, Copy)]
pub(crate) struct Tap {
    /// The pixels before and after, as element offsets.
    pub lower: usize,
    pub upper: usize,
    /// The weight of `upper`.
    pub weight: f32,
}

impl Resampler {
    /// Number of scratch words that [`run`](Self::run) needs for an image of this height and width.
    pub fn words(method: Method, from: (usize, usize), to: (usize, usize), channels: usize) -> u128 {
        if method.is_filter() { filter::words(method, from, to, channels) } else { 0 }
    }

    /// Bytes that [`new`](Self::new) allocates.
    pub fn bytes(method: Method, height: usize, width: usize, channels: usize) -> Bytes {
        if method.is_filter() {
            return Bytes::ZERO;
        }
        let lines = 2 * line(method, width, channels) * size_of::<f32>();
        let windows = TapWindows::bytes(windows(method, width, channels));
        Bytes(((height + width) * size_of::<Tap>() + windows + lines) as u64)
    }

    pub fn new(method: Method, height: usize, width: usize, channels: usize) -> Resampler {
        Resampler::at(Level::best(), method, height, width, channels)
    }

    fn at(level: Level, method: Method, height: usize, width: usize, channels: usize) -> Resampler {
        let line = line(method, width, channels);
        let (tall, wide) = if method.is_filter() { (0, 0) } else { (height, width) };
        Resampler {
            method,
            channels,
            height,
            width,
            from: None,
            rows: Vec::with_capacity(tall),
            columns: Vec::with_capacity(wide),
            level,
            windows: TapWindows::new(level, windows(method, width, channels)),
            lines: [vec![0.0; line], vec![0.0; line]],
        }
    }

    /// Prepares the tables for images of this layout.
    pub fn aim(&mut self, from: From) {
        if self.from != Some(from) {
            if !self.method.is_filter() {
                taps(&mut self.rows, self.method, from.height, self.height, from.line * self.channels, from.upside_down);
                taps(&mut self.columns, self.method, from.width, self.width, self.channels, from.mirrored);
            }
            if self.method == Method::Bilinear {
                self.windows.aim(&self.columns, self.channels, from.width * self.channels);
            }
            self.from = Some(from);
        }
    }

    /// Resamples one image of the layout passed to [`aim`](Self::aim); `finish` is applied to each output value.
    /// `scratch` has [`words`](Self::words) elements.
    pub fn run<E: ImageElement, O>(&mut self, image: &[E], scratch: &mut [Word], out: &mut [O], finish: impl Fn(f32) -> O + Copy) {
        match self.method {
            method if method.is_filter() => {
                let from = self.from.as_ref().expect("aimed before it is run");
                filter::run(Job { method, from, to: (self.height, self.width), channels: self.channels }, image, scratch, out, finish);
            }
            Method::Nearest => self.nearest(image, out, finish),
            _ => match self.level.simd() {
                // SAFETY: a `Level` exists only if the CPU supports its instructions.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => unsafe { self.bilinear_avx512(image, out, finish) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => unsafe { self.bilinear_avx2(image, out, finish) },
                Simd::Plain => self.bilinear(image, out, finish),
            },
        }
    }

    fn nearest<E: ImageElement, O>(&self, image: &[E], out: &mut [O], finish: impl Fn(f32) -> O) {
        let channels = self.channels;
        for (row, out) in self.rows.iter().zip(out.chunks_exact_mut(self.width * channels)) {
            let line = &image[row.lower..];
            for (column, out) in self.columns.iter().zip(out.chunks_exact_mut(channels)) {
                for (pixel, out) in line[column.lower..][..channels].iter().zip(out) {
                    *out = finish(pixel.value());
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vbmi")]
    fn bilinear_avx512<E: ImageElement, O>(&mut self, image: &[E], out: &mut [O], finish: impl Fn(f32) -> O) {
        self.bilinear(image, out, finish);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn bilinear_avx2<E: ImageElement, O>(&mut self, image: &[E], out: &mut [O], finish: impl Fn(f32) -> O) {
        self.bilinear(image, out, finish);
    }

    /// Like TensorFlow, interpolates along the upper line and the lower line, then between them. An input line that
    /// several output lines need is interpolated once.
    #[inline(always)]
    fn bilinear<E: ImageElement, O>(&mut self, image: &[E], out: &mut [O], finish: impl Fn(f32) -> O) {
        let mut held = [usize::MAX; 2];
        let from_row = self.from.map_or(0, |from| from.width) * self.channels;
        let to_row = self.width * self.channels;
        for (index, (row, out)) in self.rows.iter().zip(out.chunks_exact_mut(to_row)).enumerate() {
            let wanted = [row.lower, row.upper];
            // A line that no other output line needs is not stored.
            let again = self.rows.get(index + 1).is_some_and(|next| wanted.contains(&next.lower) || wanted.contains(&next.upper));
            if self.windows.are_used() && !again && !held.iter().any(|held| wanted.contains(held)) {
                let lines = wanted.map(|wanted| E::bytes(&image[wanted..][..from_row]));
                if let [Some(top), Some(bottom)] = lines {
                    self.windows.run([top, bottom], row.weight, &mut self.lines[0]);
                    held[0] = usize::MAX;
                    for (&value, out) in self.lines[0][..to_row].iter().zip(out) {
                        *out = finish(value);
                    }
                    continue;
                }
            }
            if held[0] != row.lower && held[1] == row.lower {
                self.lines.swap(0, 1);
                held.swap(0, 1);
            }
            for (slot, wanted) in wanted.into_iter().enumerate() {
                if held[slot] != wanted {
                    let line = &image[wanted..][..from_row];
                    match E::bytes(line) {
                        Some(line) if self.windows.are_used() => self.windows.run([line], 0.0, &mut self.lines[slot]),
                        _ => widen(&self.columns, self.channels, line, &mut self.lines[slot]),
                    }
                    held[slot] = wanted;
                }
            }
            let (top, bottom) = (&self.lines[0][..to_row], &self.lines[1][..to_row]);
            for ((&top, &bottom), out) in top.iter().zip(bottom).zip(out) {
                *out = finish(between(top, bottom, row.weight));
            }
        }
    }
}

/// Elements of a stored line: one more than the output's, so that three channels can be written four at a time,
/// rounded up to whole groups.
fn line(method: Method, width: usize, channels: usize) -> usize {
    match method {
        Method::Bilinear => (width * channels + 1).next_multiple_of(GROUP),
        _ => 0,
    }
}

/// Elements of a line that is interpolated through windows.
fn windows(method: Method, width: usize, channels: usize) -> usize {
    if method == Method::Bilinear { width * channels } else { 0 }
}

/// TensorFlow's `HalfPixelScaler` and `HalfPixelScalerForNN`, operation by operation; `stride` is the distance of
/// neighbors in elements. If `reversed`, the axis is mirrored.
fn taps(taps: &mut Vec<Tap>, method: Method, from: usize, to: usize, stride: usize, reversed: bool) {
    let scale = from as f32 / to as f32;
    let pixel = |at: f32| {
        // The cast saturates negative positions to 0.
        let pixel = (at as usize).min(from - 1);
        (if reversed { from - 1 - pixel } else { pixel }) * stride
    };
    taps.clear();
    taps.extend((0..to).map(|place| match method {
        Method::Nearest => {
            let at = pixel(((place as f32 + 0.5) * scale).floor());
            Tap { lower: at, upper: at, weight: 0.0 }
        }
        _ => {
            let at = (place as f32 + 0.5) * scale - 0.5;
            let floor = at.floor();
            Tap { lower: pixel(floor), upper: pixel(at.ceil()), weight: at - floor }
        }
    }));
}

/// Interpolates along a line. Specialized for the usual numbers of channels, so that the inner loop is unrolled.
#[inline(always)]
fn widen<E: ImageElement>(columns: &[Tap], channels: usize, line: &[E], out: &mut [f32]) {
    match channels {
        1 => widen_by::<E, 1>(columns, line, out),
        3 => widen_three(columns, line, out),
        4 => widen_by::<E, 4>(columns, line, out),
        _ => {
            for (column, out) in columns.iter().zip(out.chunks_exact_mut(channels)) {
                let (left, right) = (&line[column.lower..][..channels], &line[column.upper..][..channels]);
                for ((left, right), out) in left.iter().zip(right).zip(out) {
                    *out = between(left.value(), right.value(), column.weight);
                }
            }
        }
    }
}

#[inline(always)]
fn widen_by<E: ImageElement, const C: usize>(columns: &[Tap], line: &[E], out: &mut [f32]) {
    for (column, out) in columns.iter().zip(out.as_chunks_mut::<C>().0) {
        let (left, right) = (&line[column.lower..][..C], &line[column.upper..][..C]);
        *out = std::array::from_fn(|channel| between(left[channel].value(), right[channel].value(), column.weight));
    }
}

/// Writes three channels four at a time: the fourth is the next pixel's first, which is overwritten later.
#[inline(always)]
fn widen_three<E: ImageElement>(columns: &[Tap], line: &[E], out: &mut [f32]) {
    let last = line.len() - 3;
    for (index, column) in columns.iter().enumerate() {
        let out: &mut [f32; 4] = (&mut out[3 * index..3 * index + 4]).try_into().expect("four");
        if column.lower.max(column.upper) < last {
            let left: &[E; 4] = line[column.lower..column.lower + 4].try_into().expect("four");
            let right: &[E; 4] = line[column.upper..column.upper + 4].try_into().expect("four");
            *out = std::array::from_fn(|channel| between(left[channel].value(), right[channel].value(), column.weight));
        } else {
            for (channel, out) in out[..3].iter_mut().enumerate() {
                *out = between(line[column.lower + channel].value(), line[column.upper + channel].value(), column.weight);
            }
        }
    }
}

#[inline(always)]
fn between(lower: f32, upper: f32, weight: f32) -> f32 {
    lower + (upper - lower) * weight
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All SIMD levels, over sizes around the register widths, must be bit-identical to the formula.
    #[test]
    fn all_ways_give_the_same_bits() {
        let sides = [1, 2, 3, 5, 7, 15, 16, 17, 21, 22, 31, 33, 64, 85, 129, 400];
        let mut through_windows = 0;
        for channels in [1, 2, 3, 4] {
            for (from_width, width) in sides.iter().flat_map(|&from| sides.map(|to| (from, to))) {
                for (mirrored, margin) in [(false, 0), (true, 3)] {
                    let from = From { height: 5, width: from_width, line: from_width + margin, mirrored, upside_down: mirrored };
                    let count = (from.height - 1) * from.line * channels + from.width * channels;
                    let image: Vec<u8> = (0..count).map(|at| (at * at * 31 + at * 7) as u8).collect();
                    let numbers: Vec<[u8; 4]> = image.iter().map(|&pixel| f32::from(pixel).to_ne_bytes()).collect();
                    for height in [2, 9] {
                        let expected = by_formula(&image, from, height, width, channels);
                        for level in Level::all() {
                            let mut resampler = Resampler::at(level, Method::Bilinear, height, width, channels);
                            resampler.aim(from);
                            through_windows += usize::from(resampler.windows.are_used());
                            let mut out = vec![[0u8; 4]; height * width * channels];
                            let case = format!("{level:?}: {from_width} to {width}, {channels} channels, mirrored {mirrored}");
                            resampler.run(&image, &mut [], &mut out, f32::to_ne_bytes);
                            assert!(out == expected, "{case}");
                            out.fill([0; 4]);
                            resampler.run(&numbers, &mut [], &mut out, f32::to_ne_bytes);
                            assert!(out == expected, "{case}, from f32");
                        }
                    }
                }
            }
        }
        assert!(through_windows > 0 || Level::all().len() == 1);
    }

    fn by_formula(image: &[u8], from: From, height: usize, width: usize, channels: usize) -> Vec<[u8; 4]> {
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        taps(&mut rows, Method::Bilinear, from.height, height, from.line * channels, from.upside_down);
        taps(&mut columns, Method::Bilinear, from.width, width, channels, from.mirrored);
        let mut out = Vec::new();
        for row in &rows {
            for column in &columns {
                for channel in 0..channels {
                    let along = |line: usize| {
                        let pixel = |at: usize| f32::from(image[line + at + channel]);
                        between(pixel(column.lower), pixel(column.upper), column.weight)
                    };
                    out.push(between(along(row.lower), along(row.upper), row.weight).to_ne_bytes());
                }
            }
        }
        out
    }
}
