//! EfficientNet (Tan and Le, 2019), as in torchvision.

use super::blocks::{centred, conv_norm};
use super::entry::{Entry, IMAGENET};
use super::mobile::depthwise;
use super::options::Setup;
use crate::nn::{
    Activation, Add, BatchNorm, Conv2D, Dense, DepthwiseConv2D, Dropout, Functional, GlobalAveragePool, Model, Multiply, Padding, Reshape,
};
use crate::nn::{StochasticDepth, SymbolicTensor};

pub(super) const EFFICIENTNET_B0: Entry =
    Entry::image_classifier("efficientnet-b0", "inverted residuals with squeeze-and-excitation, 2019", IMAGENET, 1000, make_b0);

/// EfficientNet-B0.
pub fn efficientnet_b0(classes: usize) -> Model {
    EFFICIENTNET_B0.for_classes(classes)
}

/// Expansion, filter size, first stride, channels and repetitions of the stages.
const B0: [(usize, usize, usize, usize, usize); 7] =
    [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)];

/// The drop rate of the last block; it grows linearly from the first.
const DEPTH_RATE: f32 = 0.2;

/// Squeeze-and-excitation: weights channels by a gate over the global average.
fn squeeze(net: &mut Functional, x: SymbolicTensor, channels: usize, squeezed: usize) -> SymbolicTensor {
    net.block("squeeze", |net| {
        let y = net.add(GlobalAveragePool, [x]);
        let y = net.add(Reshape::new([1, 1, channels]), [y]);
        let y = net.named("reduce", Conv2D::new(squeezed, 1).activation(Activation::Silu), [y]);
        let y = net.named("expand", Conv2D::new(channels, 1).activation(Activation::Sigmoid), [y]);
        net.add(Multiply, [x, y])
    })
}

fn make_b0(setup: &Setup) -> Model {
    let mut net = Functional::new("efficientnet-b0");
    let silu = Activation::Silu;
    let x = net.input();
    let mut channels = setup.wide_by_eight(32);
    let mut x = conv_norm(&mut net, "stem", x, centred(channels, 3, 2), silu);
    let blocks: usize = B0.iter().map(|stage| stage.4).sum();
    let mut count = 0;
    for (expansion, size, first, out, repeats) in B0 {
        let out = setup.wide_by_eight(out);
        for i in 0..repeats {
            let stride = if i == 0 { first } else { 1 };
            let rate = DEPTH_RATE * count as f32 / blocks as f32;
            count += 1;
            x = net.block(&format!("block{count}"), |net| {
                let inner = channels * expansion;
                let mut y = x;
                if expansion > 1 {
                    y = conv_norm(net, "expand", y, centred(inner, 1, 1), silu);
                }
                let conv = DepthwiseConv2D::new(size).stride(stride, stride).padding(Padding::all(size / 2));
                y = depthwise(net, y, conv, BatchNorm::torch(), silu);
                y = squeeze(net, y, inner, (channels / 4).max(1));
                y = conv_norm(net, "project", y, centred(out, 1, 1), Activation::Linear);
                if stride == 1 && channels == out {
                    y = net.add(StochasticDepth::new(rate), [y]);
                    net.add(Add, [x, y])
                } else {
                    y
                }
            });
            channels = out;
        }
    }
    let x = conv_norm(&mut net, "last", x, centred(4 * channels, 1, 1), silu);
    let x = net.add(GlobalAveragePool, [x]);
    let x = net.add(Dropout::new(0.2), [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}
