//! Convolutions and pooling of one image in int8, channels last.

use super::super::windows::{Windows, patches};
use super::products::{dot, quantized, widened};
use super::{Elements, QuantizationParameters, Target, multipliers, scale_of};
use plimsoll_formats::tflite::{Operator, TfliteTensor};

type Weights<'a> = (&'a Elements<i8>, &'a TfliteTensor);

/// Sums of a convolution, filter by filter: `sink` gets the output and the filter of each.
fn sums<X: Copy>(
    operator: &Operator,
    x: &Elements<X>,
    kernel: &Elements<i8>,
    shape: &[usize],
    convert: impl Fn(X) -> i16,
    mut sink: impl FnMut(usize, usize, i32),
) {
    let wide = kernel.shape[1..].iter().product::<usize>();
    let of_group = shape[3] / (x.shape[3] / kernel.shape[3]);
    let mut weights = vec![0; wide];
    patches(operator, x, &kernel.shape, shape, 0, convert, |first, group, tile| {
        for filter in group * of_group..(group + 1) * of_group {
            widened(&kernel.numbers[filter * wide..][..wide], &mut weights);
            for (i, patch) in tile.chunks_exact(wide).enumerate() {
                sink(first + i, filter, dot(patch, &weights));
            }
        }
    });
}

pub(super) fn convolution(
    operator: &Operator,
    (x, affine): (&Elements<i8>, QuantizationParameters),
    (kernel, weights): Weights<'_>,
    bias: Option<&[i32]>,
    target: Target,
    shape: Vec<usize>,
) -> Elements<i8> {
    let filters = shape[3];
    let factors = multipliers(affine, weights, filters, target);
    let zero = affine.zero as i16;
    let mut numbers = vec![0; shape.iter().product()];
    sums(
        operator,
        x,
        kernel,
        &shape,
        |x| i16::from(x) - zero,
        |output, filter, sum| {
            let sum = sum.wrapping_add(bias.map_or(0, |bias| bias[filter]));
            numbers[output * filters + filter] = target.int8(factors[filter].times(sum));
        },
    );
    Elements { shape, numbers }
}

/// Weights in int8, the image and the result as real numbers: the image gets a scale of its own.
pub(super) fn hybrid(
    operator: &Operator,
    x: &Elements,
    (kernel, weights): Weights<'_>,
    bias: Option<&[f32]>,
    shape: Vec<usize>,
) -> Elements {
    let filters = shape[3];
    let (integers, scale) = quantized(&x.numbers);
    let image = Elements { shape: x.shape.clone(), numbers: integers };
    let scales: Vec<f32> = (0..filters).map(|filter| scale * scale_of(weights, filter) as f32).collect();
    let mut numbers = vec![0.0; shape.iter().product()];
    sums(
        operator,
        &image,
        kernel,
        &shape,
        |x| x,
        |output, filter, sum| {
            numbers[output * filters + filter] = sum as f32 * scales[filter] + bias.map_or(0.0, |bias| bias[filter]);
        },
    );
    Elements { shape, numbers }
}

pub(super) fn depthwise(
    operator: &Operator,
    (x, affine): (&Elements<i8>, QuantizationParameters),
    (kernel, weights): Weights<'_>,
    bias: Option<&[i32]>,
    target: Target,
    shape: Vec<usize>,
) -> Elements<i8> {
    let (outputs, filters) = (shape[1] * shape[2], shape[3]);
    let channels = x.shape[3];
    let multiplier = filters / channels;
    let windows = Windows::new(operator, [kernel.shape[1], kernel.shape[2]], &x.shape, &shape);
    let factors = multipliers(affine, weights, filters, target);
    let zero = affine.zero as i16;
    let mut sums = vec![0_i32; filters];
    let mut numbers = Vec::with_capacity(outputs * filters);
    for output in 0..outputs {
        match bias {
            Some(bias) => sums.copy_from_slice(bias),
            None => sums.fill(0),
        }
        for i in 0..windows.places() {
            let Some(at) = windows.pixel(output, i) else { continue };
            let pixel = &x.numbers[at * channels..][..channels];
            let taps = &kernel.numbers[i * filters..][..filters];
            if multiplier == 1 {
                // Both factors have at most nine bits, so that their product fits into 16.
                let products = pixel.iter().zip(taps).map(|(x, weight)| (i16::from(*x) - zero) * i16::from(*weight));
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += i32::from(product));
            } else {
                for (filter, (sum, weight)) in sums.iter_mut().zip(taps).enumerate() {
                    *sum += i32::from((i16::from(pixel[filter / multiplier]) - zero) * i16::from(*weight));
                }
            }
        }
        numbers.extend(sums.iter().zip(&factors).map(|(sum, factor)| target.int8(factor.times(*sum))));
    }
    Elements { shape, numbers }
}

/// Every input pixel adds its share to the outputs under its window.
pub(super) fn transposed(
    operator: &Operator,
    (x, affine): (&Elements<i8>, QuantizationParameters),
    (kernel, weights): Weights<'_>,
    bias: Option<&[i32]>,
    target: Target,
    shape: Vec<usize>,
) -> Elements<i8> {
    let filters = shape[3];
    let channels = x.shape[3];
    // The windows of the convolution that it is the gradient of.
    let windows = Windows::new(operator, [kernel.shape[1], kernel.shape[2]], &shape, &x.shape);
    let factors = multipliers(affine, weights, filters, target);
    let taps = windows.places();
    let mut sums = vec![0_i32; shape[1] * shape[2] * filters];
    let mut wide = vec![0; channels];
    for filter in 0..filters {
        for i in 0..taps {
            widened(&kernel.numbers[(filter * taps + i) * channels..][..channels], &mut wide);
            for (input, pixel) in x.numbers.chunks_exact(channels).enumerate() {
                let Some(at) = windows.pixel(input, i) else { continue };
                let share: i32 = pixel.iter().zip(&wide).map(|(x, weight)| (i32::from(*x) - affine.zero) * i32::from(*weight)).sum();
                sums[at * filters + filter] += share;
            }
        }
    }
    let result = |(i, sum): (usize, &i32)| {
        let filter = i % filters;
        target.int8(factors[filter].times(sum.wrapping_add(bias.map_or(0, |bias| bias[filter]))))
    };
    let numbers = sums.iter().enumerate().map(result).collect();
    Elements { shape, numbers }
}

/// Visits the pixels under each window: `visit` gets the output and a pixel.
fn pooled<'a>(operator: &Operator, x: &'a Elements<i8>, shape: &[usize], mut visit: impl FnMut(usize, &'a [i8])) {
    let channels = shape[3];
    let windows = Windows::of_pooling(operator, &x.shape, shape);
    for output in 0..shape[1] * shape[2] {
        for at in (0..windows.places()).filter_map(|i| windows.pixel(output, i)) {
            visit(output, &x.numbers[at * channels..][..channels]);
        }
    }
}

pub(super) fn max_pool(operator: &Operator, x: &Elements<i8>, target: Target, shape: Vec<usize>) -> Elements<i8> {
    let channels = shape[3];
    let mut numbers = vec![i8::MIN; shape.iter().product()];
    pooled(operator, x, &shape, |output, pixel| {
        numbers[output * channels..][..channels].iter_mut().zip(pixel).for_each(|(most, x)| *most = (*most).max(*x));
    });
    numbers.iter_mut().for_each(|number| *number = i32::from(*number).clamp(target.low, target.high) as i8);
    Elements { shape, numbers }
}

/// The mean over pixels inside of the image; halves away from zero.
pub(super) fn average_pool(operator: &Operator, x: &Elements<i8>, target: Target, shape: Vec<usize>) -> Elements<i8> {
    let channels = shape[3];
    let mut sums = vec![0_i32; shape.iter().product()];
    let mut counts = vec![0_i32; shape[1] * shape[2]];
    pooled(operator, x, &shape, |output, pixel| {
        counts[output] += 1;
        sums[output * channels..][..channels].iter_mut().zip(pixel).for_each(|(sum, x)| *sum += i32::from(*x));
    });
    let mean = |(i, sum): (usize, &i32)| {
        let count = counts[i / channels].max(1);
        let half = if *sum > 0 { count / 2 } else { -(count / 2) };
        ((sum + half) / count).clamp(target.low, target.high) as i8
    };
    let numbers = sums.iter().enumerate().map(mean).collect();
    Elements { shape, numbers }
}
