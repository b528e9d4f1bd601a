//! Convolutions and pooling of one image, channels last.

use super::Elements;
use super::kernels::dot;
use plimsoll_formats::tflite::{BuiltinOp, Operator};

/// The windows along one axis.
struct Axis {
    size: usize,
    stride: usize,
    dilation: usize,
    /// Elements before the first.
    pad: usize,
    length: usize,
}

impl Axis {
    fn new(operator: &Operator, letter: char, size: usize, length: usize, output: usize) -> Axis {
        let (stride, dilation) =
            (if letter == 'h' { "stride_h" } else { "stride_w" }, if letter == 'h' { "dilation_h_factor" } else { "dilation_w_factor" });
        let stride = operator.integer(stride) as usize;
        let dilation = operator.integer(dilation).max(1) as usize;
        let reach = (size - 1) * dilation + 1;
        let pad = ((output - 1) * stride + reach).saturating_sub(length) / 2;
        let pad = if operator.integer("padding") == 0 { pad } else { 0 };
        Axis { size, stride, dilation, pad, length }
    }

    /// The element that a place of the window at an output reads.
    fn at(&self, output: usize, place: usize) -> Option<usize> {
        (output * self.stride + place * self.dilation).checked_sub(self.pad).filter(|at| *at < self.length)
    }
}

/// The windows of an operator over the pixels of an image.
pub(super) struct Windows {
    rows: Axis,
    columns: Axis,
    /// The width of the outputs.
    width: usize,
}

impl Windows {
    /// Windows of a height and width over an image, one per output; images and outputs are
    /// `[1, height, width, channels]`.
    pub fn new(operator: &Operator, size: [usize; 2], image: &[usize], output: &[usize]) -> Windows {
        let rows = Axis::new(operator, 'h', size[0], image[1], output[1]);
        let columns = Axis::new(operator, 'w', size[1], image[2], output[2]);
        Windows { rows, columns, width: output[2] }
    }

    /// The windows of a pooling operator.
    pub fn of_pooling(operator: &Operator, image: &[usize], output: &[usize]) -> Windows {
        let size = ["filter_height", "filter_width"].map(|name| operator.integer(name) as usize);
        Windows::new(operator, size, image, output)
    }

    /// The places of a window.
    pub fn places(&self) -> usize {
        self.rows.size * self.columns.size
    }

    /// The pixel of the image that is at a place of an output's window; none outside of the image.
    pub fn pixel(&self, output: usize, place: usize) -> Option<usize> {
        let row = self.rows.at(output / self.width, place / self.columns.size)?;
        let column = self.columns.at(output % self.width, place % self.columns.size)?;
        Some(row * self.columns.length + column)
    }
}

/// Outputs whose patches are gathered before the filters are applied, so that each filter is read once for all of them.
pub(super) const TILE: usize = 8;

/// Gathers the patches of a convolution in tiles. `visit` gets the first output of a tile, the group of channels, and
/// patch after patch.
pub(super) fn patches<X: Copy, T: Copy>(
    operator: &Operator,
    x: &Elements<X>,
    kernel: &[usize],
    shape: &[usize],
    outside: T,
    convert: impl Fn(X) -> T,
    mut visit: impl FnMut(usize, usize, &[T]),
) {
    let outputs = shape[1] * shape[2];
    let (channels, deep) = (x.shape[3], kernel[3]);
    let windows = Windows::new(operator, [kernel[1], kernel[2]], &x.shape, shape);
    let wide = windows.places() * deep;
    let mut tile = vec![outside; TILE * wide];
    for first in (0..outputs).step_by(TILE) {
        let count = TILE.min(outputs - first);
        for group in 0..channels / deep {
            for (output, patch) in (first..first + count).zip(tile.chunks_exact_mut(wide)) {
                for (i, place) in patch.chunks_exact_mut(deep).enumerate() {
                    match windows.pixel(output, i) {
                        Some(at) => {
                            let pixel = &x.numbers[at * channels + group * deep..][..deep];
                            place.iter_mut().zip(pixel).for_each(|(place, x)| *place = convert(*x));
                        }
                        None => place.fill(outside),
                    }
                }
            }
            visit(first, group, &tile[..count * wide]);
        }
    }
}

pub(super) fn convolution(operator: &Operator, x: &Elements, kernel: &Elements, bias: Option<&Elements>, shape: Vec<usize>) -> Elements {
    let filters = shape[3];
    let wide = kernel.shape[1..].iter().product::<usize>();
    let of_group = filters / (x.shape[3] / kernel.shape[3]);
    let mut numbers = vec![0.0; shape.iter().product()];
    patches(
        operator,
        x,
        &kernel.shape,
        &shape,
        0.0,
        |x| x,
        |first, group, tile| {
            for filter in group * of_group..(group + 1) * of_group {
                let (weights, offset) = (&kernel.numbers[filter * wide..][..wide], bias.map_or(0.0, |bias| bias.numbers[filter]));
                for (i, patch) in tile.chunks_exact(wide).enumerate() {
                    numbers[(first + i) * filters + filter] = dot(patch, weights) + offset;
                }
            }
        },
    );
    Elements { shape, numbers }
}

pub(super) fn depthwise(operator: &Operator, x: &Elements, kernel: &Elements, bias: Option<&Elements>, shape: Vec<usize>) -> Elements {
    let (outputs, filters) = (shape[1] * shape[2], shape[3]);
    let channels = x.shape[3];
    let multiplier = filters / channels;
    let windows = Windows::new(operator, [kernel.shape[1], kernel.shape[2]], &x.shape, &shape);
    let mut numbers = Vec::with_capacity(outputs * filters);
    for output in 0..outputs {
        let start = numbers.len();
        match bias {
            Some(bias) => numbers.extend_from_slice(&bias.numbers),
            None => numbers.resize(start + filters, 0.0),
        }
        for i in 0..windows.places() {
            let Some(at) = windows.pixel(output, i) else { continue };
            let pixel = &x.numbers[at * channels..][..channels];
            let weights = &kernel.numbers[i * filters..][..filters];
            let sums = &mut numbers[start..];
            if multiplier == 1 {
                sums.iter_mut().zip(pixel.iter().zip(weights)).for_each(|(sum, (x, weight))| *sum += x * weight);
            } else {
                sums.iter_mut().zip(weights).enumerate().for_each(|(i, (sum, weight))| *sum += pixel[i / multiplier] * weight);
            }
        }
    }
    Elements { shape, numbers }
}

/// Every input pixel adds its share to the outputs under its window.
pub(super) fn transposed(operator: &Operator, kernel: &Elements, x: &Elements, bias: Option<&Elements>, shape: Vec<usize>) -> Elements {
    let (outputs, filters) = (shape[1] * shape[2], shape[3]);
    let channels = x.shape[3];
    // The windows of the convolution that it is the gradient of.
    let windows = Windows::new(operator, [kernel.shape[1], kernel.shape[2]], &shape, &x.shape);
    let mut numbers: Vec<f32> = match bias {
        Some(bias) => bias.numbers.iter().copied().cycle().take(outputs * filters).collect(),
        None => vec![0.0; outputs * filters],
    };
    let taps = windows.places();
    for (input, pixel) in x.numbers.chunks_exact(channels).enumerate() {
        for i in 0..taps {
            let Some(at) = windows.pixel(input, i) else { continue };
            let sums = &mut numbers[at * filters..][..filters];
            for (filter, sum) in sums.iter_mut().enumerate() {
                *sum += dot(pixel, &kernel.numbers[(filter * taps + i) * channels..][..channels]);
            }
        }
    }
    Elements { shape, numbers }
}

/// The maximum, or the mean over elements inside of the image.
pub(super) fn pool(operator: &Operator, x: &Elements, shape: Vec<usize>) -> Elements {
    let (outputs, channels) = (shape[1] * shape[2], shape[3]);
    let windows = Windows::of_pooling(operator, &x.shape, &shape);
    let is_max = operator.op == BuiltinOp::MaxPool2d;
    let mut numbers = Vec::with_capacity(outputs * channels);
    for output in 0..outputs {
        let start = numbers.len();
        numbers.resize(start + channels, if is_max { f32::NEG_INFINITY } else { 0.0 });
        let mut count = 0;
        for at in (0..windows.places()).filter_map(|i| windows.pixel(output, i)) {
            count += 1;
            let pixel = &x.numbers[at * channels..][..channels];
            let results = numbers[start..].iter_mut().zip(pixel);
            if is_max {
                results.for_each(|(result, x)| *result = result.max(*x));
            } else {
                results.for_each(|(result, x)| *result += x);
            }
        }
        if !is_max {
            numbers[start..].iter_mut().for_each(|result| *result /= count.max(1) as f32);
        }
    }
    Elements { shape, numbers }
}
