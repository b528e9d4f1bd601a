//! Convolutions and pooling of one image, channels last.

use super::Elements;
use super::kernels::dot;
use plimsoll_formats::tflite::{BuiltinOp, Operator};

/// The windows along one axis.
pub(super) struct Axis {
    pub size: usize,
    stride: usize,
    dilation: usize,
    /// Elements before the first.
    pad: usize,
    length: usize,
}

impl Axis {
    pub fn new(operator: &Operator, letter: char, size: usize, length: usize, output: usize) -> Axis {
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
    pub fn at(&self, output: usize, place: usize) -> Option<usize> {
        (output * self.stride + place * self.dilation).checked_sub(self.pad).filter(|at| *at < self.length)
    }
}

/// Outputs whose patches are gathered before the filters are applied, so that each filter is read once for all of them.
pub(super) const TILE: usize = 8;

/// Gathers the patches of a convolution in tiles. `visit` gets the first output of a tile, the group of channels, and patch after patch.
pub(super) fn patches<X: Copy, T: Copy>(
    operator: &Operator,
    x: &Elements<X>,
    kernel: &[usize],
    shape: &[usize],
    outside: T,
    convert: impl Fn(X) -> T,
    mut visit: impl FnMut(usize, usize, &[T]),
) {
    let (height, width) = (shape[1], shape[2]);
    let (channels, deep) = (x.shape[3], kernel[3]);
    let rows = Axis::new(operator, 'h', kernel[1], x.shape[1], height);
    let columns = Axis::new(operator, 'w', kernel[2], x.shape[2], width);
    let wide = rows.size * columns.size * deep;
    let mut tile = vec![outside; TILE * wide];
    for first in (0..height * width).step_by(TILE) {
        let count = TILE.min(height * width - first);
        for group in 0..channels / deep {
            for (output, patch) in (first..first + count).zip(tile.chunks_exact_mut(wide)) {
                for (i, place) in patch.chunks_exact_mut(deep).enumerate() {
                    match (rows.at(output / width, i / columns.size), columns.at(output % width, i % columns.size)) {
                        (Some(y), Some(z)) => {
                            let pixel = &x.numbers[(y * x.shape[2] + z) * channels + group * deep..][..deep];
                            place.iter_mut().zip(pixel).for_each(|(place, x)| *place = convert(*x));
                        }
                        _ => place.fill(outside),
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
    let (height, width, filters) = (shape[1], shape[2], shape[3]);
    let channels = x.shape[3];
    let multiplier = filters / channels;
    let rows = Axis::new(operator, 'h', kernel.shape[1], x.shape[1], height);
    let columns = Axis::new(operator, 'w', kernel.shape[2], x.shape[2], width);
    let mut numbers = Vec::with_capacity(height * width * filters);
    for row in 0..height {
        for column in 0..width {
            let start = numbers.len();
            match bias {
                Some(bias) => numbers.extend_from_slice(&bias.numbers),
                None => numbers.resize(start + filters, 0.0),
            }
            for i in 0..rows.size * columns.size {
                let (Some(y), Some(z)) = (rows.at(row, i / columns.size), columns.at(column, i % columns.size)) else { continue };
                let pixel = &x.numbers[(y * x.shape[2] + z) * channels..][..channels];
                let weights = &kernel.numbers[i * filters..][..filters];
                let sums = &mut numbers[start..];
                if multiplier == 1 {
                    sums.iter_mut().zip(pixel.iter().zip(weights)).for_each(|(sum, (x, weight))| *sum += x * weight);
                } else {
                    sums.iter_mut().zip(weights).enumerate().for_each(|(i, (sum, weight))| *sum += pixel[i / multiplier] * weight);
                }
            }
        }
    }
    Elements { shape, numbers }
}

/// Every input pixel adds its share to the outputs under its window.
pub(super) fn transposed(operator: &Operator, kernel: &Elements, x: &Elements, bias: Option<&Elements>, shape: Vec<usize>) -> Elements {
    let (height, width, filters) = (shape[1], shape[2], shape[3]);
    let channels = x.shape[3];
    // The windows of the convolution that it is the gradient of.
    let rows = Axis::new(operator, 'h', kernel.shape[1], height, x.shape[1]);
    let columns = Axis::new(operator, 'w', kernel.shape[2], width, x.shape[2]);
    let mut numbers: Vec<f32> = match bias {
        Some(bias) => bias.numbers.iter().copied().cycle().take(height * width * filters).collect(),
        None => vec![0.0; height * width * filters],
    };
    let taps = rows.size * columns.size;
    for row in 0..x.shape[1] {
        for column in 0..x.shape[2] {
            let pixel = &x.numbers[(row * x.shape[2] + column) * channels..][..channels];
            for i in 0..taps {
                let (Some(y), Some(z)) = (rows.at(row, i / columns.size), columns.at(column, i % columns.size)) else { continue };
                let sums = &mut numbers[(y * width + z) * filters..][..filters];
                for (filter, sum) in sums.iter_mut().enumerate() {
                    *sum += dot(pixel, &kernel.numbers[(filter * taps + i) * channels..][..channels]);
                }
            }
        }
    }
    Elements { shape, numbers }
}

/// The maximum, or the mean over elements inside of the image.
pub(super) fn pool(operator: &Operator, x: &Elements, shape: Vec<usize>) -> Elements {
    let (height, width, channels) = (shape[1], shape[2], shape[3]);
    let rows = Axis::new(operator, 'h', operator.integer("filter_height") as usize, x.shape[1], height);
    let columns = Axis::new(operator, 'w', operator.integer("filter_width") as usize, x.shape[2], width);
    let is_max = operator.op == BuiltinOp::MaxPool2d;
    let mut numbers = Vec::with_capacity(height * width * channels);
    for row in 0..height {
        for column in 0..width {
            let start = numbers.len();
            numbers.resize(start + channels, if is_max { f32::NEG_INFINITY } else { 0.0 });
            let mut count = 0;
            for i in 0..rows.size * columns.size {
                let (Some(y), Some(z)) = (rows.at(row, i / columns.size), columns.at(column, i % columns.size)) else { continue };
                count += 1;
                let pixel = &x.numbers[(y * x.shape[2] + z) * channels..][..channels];
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
    }
    Elements { shape, numbers }
}
