//! Networks for semantic segmentation.

use super::blocks::{centred, conv_norm};
use super::entry::Entry;
use super::options::Setup;
use super::vgg::{SIXTEEN, STAGES, stage};
use crate::nn::{Activation, Add, Concatenate, Conv2D, Conv2DTranspose, Dropout, Functional, Initializer, MaxPool2D, MaxUnpool2D};
use crate::nn::{Model, Padding, SymbolicTensor};

pub(super) const UNET: Entry = Entry::segmentation("unet", "U-Net of 2015 with batch normalization", 16, 2, make_unet);

/// U-Net.
pub fn unet(classes: usize) -> Model {
    UNET.for_classes(classes)
}

pub(super) const FCN8: Entry = Entry::segmentation("fcn8", "FCN-8s of 2015 on VGG16", 32, 21, make_fcn8);

/// FCN-8s on VGG16.
pub fn fcn8(classes: usize) -> Model {
    FCN8.for_classes(classes)
}

pub(super) const SEGNET: Entry = Entry::segmentation("segnet", "SegNet of 2015: VGG16 encoder and decoder", 32, 12, make_segnet);

/// SegNet.
pub fn segnet(classes: usize) -> Model {
    SEGNET.for_classes(classes)
}

fn twice(net: &mut Functional, x: SymbolicTensor, channels: usize) -> SymbolicTensor {
    let x = conv_norm(net, "first", x, centred(channels, 3, 1), Activation::Relu);
    conv_norm(net, "second", x, centred(channels, 3, 1), Activation::Relu)
}

/// U-Net (Ronneberger and others, 2015) with padded convolutions and batch normalization.
fn make_unet(setup: &Setup) -> Model {
    let mut net = Functional::new("unet");
    let mut x = net.input();
    let mut skips = Vec::new();
    for level in 0..5 {
        if level > 0 {
            x = net.named(&format!("down{level}/pool"), MaxPool2D::new(2), [x]);
        }
        x = net.block(&format!("down{level}"), |net| twice(net, x, setup.wide(64 << level)));
        skips.push((x, setup.wide(64 << level)));
    }
    skips.pop();
    for (i, (skip, channels)) in skips.into_iter().enumerate().rev() {
        x = net.block(&format!("up{i}"), |net| {
            let x = net.named("up", Conv2DTranspose::new(channels, 2, 2).initializer(Initializer::HeNormal), [x]);
            let x = net.add(Concatenate, [skip, x]);
            twice(net, x, channels)
        });
    }
    let scores = net.named("scores", Conv2D::new(setup.classes, 1), [x]);
    net.build(scores)
}

/// FCN-8s (Long and others, 2015): VGG16 with its dense layers as convolutions, and the logits of three stages summed.
fn make_fcn8(setup: &Setup) -> Model {
    let mut net = Functional::new("fcn8");
    let mut x = net.input();
    let mut pools = Vec::new();
    for (i, (layers, channels)) in SIXTEEN.into_iter().zip(STAGES).enumerate() {
        x = net.block(&format!("block{}", i + 1), |net| {
            let x = stage(net, x, layers, setup.wide(channels));
            net.named("pool", MaxPool2D::new(2), [x])
        });
        pools.push(x);
    }
    for (i, size) in [7, 1].into_iter().enumerate() {
        let conv = Conv2D::new(setup.wide(4096), size).padding(Padding::Same).initializer(Initializer::HeNormal).relu();
        x = net.named(&format!("fc{}", i + 1), conv, [x]);
        x = net.add(Dropout::new(0.5), [x]);
    }
    let classes = setup.classes;
    let larger = |factor: usize| Conv2DTranspose::new(classes, 2 * factor, factor).padding(Padding::Same).bias(false);
    let mut scores = net.named("score32", Conv2D::new(classes, 1), [x]);
    for (name, pool) in [("16", pools[3]), ("8", pools[2])] {
        let up = net.named(&format!("up{name}"), larger(2), [scores]);
        let own = net.named(&format!("score{name}"), Conv2D::new(classes, 1), [pool]);
        scores = net.add(Add, [up, own]);
    }
    let scores = net.named("up", larger(8), [scores]);
    net.build(scores)
}

/// SegNet (Badrinarayanan and others, 2015): VGG16's convolutions as encoder, and a decoder with max unpooling.
fn make_segnet(setup: &Setup) -> Model {
    let mut net = Functional::new("segnet");
    let mut x = net.input();
    let mut pooled = Vec::new();
    for (i, (layers, channels)) in SIXTEEN.into_iter().zip(STAGES).enumerate() {
        let before = net.block(&format!("encoder{}", i + 1), |net| {
            (1..=layers).fold(x, |x, n| conv_norm(net, &format!("conv{n}"), x, centred(setup.wide(channels), 3, 1), Activation::Relu))
        });
        x = net.named(&format!("encoder{}/pool", i + 1), MaxPool2D::new(2), [before]);
        pooled.push(before);
    }
    for i in (0..5).rev() {
        x = net.block(&format!("decoder{}", i + 1), |net| {
            let x = net.named("unpool", MaxUnpool2D::new(2), [x, pooled[i]]);
            // The last convolution of a stage has the channels of the next; the very last gives the logits.
            let layers = if i == 0 { 1 } else { SIXTEEN[i] };
            (1..=layers).fold(x, |x, n| {
                let channels = if n == layers && i > 0 { STAGES[i - 1] } else { STAGES[i] };
                conv_norm(net, &format!("conv{n}"), x, centred(setup.wide(channels), 3, 1), Activation::Relu)
            })
        });
    }
    let scores = net.named("scores", centred(setup.classes, 3, 1), [x]);
    net.build(scores)
}
