//! Networks with branches of several filter sizes: GoogLeNet (Szegedy and others, 2014) and Inception v3 (2015), as in
//! torchvision, without their auxiliary heads.

use super::blocks::{centred, conv_norm_by};
use super::entry::{Entry, IMAGENET};
use super::options::Setup;
use crate::nn::{Activation, AveragePool2D, BatchNorm, Concatenate, Conv2D, Dense, Dropout, Functional, GlobalAveragePool, MaxPool2D};
use crate::nn::{Model, Padding, SymbolicTensor, ZeroPadding2D};

pub(super) const GOOGLENET: Entry =
    Entry::image_classifier("googlenet", "Inception modules of 2014, without auxiliary heads", IMAGENET, 1000, make_googlenet);

/// GoogLeNet with batch normalization.
pub fn googlenet(classes: usize) -> Model {
    GOOGLENET.for_classes(classes)
}

pub(super) const INCEPTION_V3: Entry =
    Entry::image_classifier("inception-v3", "factorized Inception modules of 2015, without auxiliary head", &[299, 299, 3], 1000, make_v3);

/// Inception v3.
pub fn inception_v3(classes: usize) -> Model {
    INCEPTION_V3.for_classes(classes)
}

fn conv(net: &mut Functional, name: &str, x: SymbolicTensor, conv: Conv2D) -> SymbolicTensor {
    conv_norm_by(net, name, x, conv, BatchNorm::torch().epsilon(1e-3), Activation::Relu)
}

/// A 3×3 pooling with stride 2 in ceil mode.
fn pool_over_edge(size: usize) -> MaxPool2D {
    let over = Padding::Explicit { rows: (0, 1), columns: (0, 1) };
    MaxPool2D::new(size).stride(2, 2).padding(over)
}

/// The widths of a module: 1×1, before and after 3×3, before and after the second 3×3, after the pooling.
const MODULES: [(&str, [usize; 6]); 9] = [
    ("3a", [64, 96, 128, 16, 32, 32]),
    ("3b", [128, 128, 192, 32, 96, 64]),
    ("4a", [192, 96, 208, 16, 48, 64]),
    ("4b", [160, 112, 224, 24, 64, 64]),
    ("4c", [128, 128, 256, 24, 64, 64]),
    ("4d", [112, 144, 288, 32, 64, 64]),
    ("4e", [256, 160, 320, 32, 128, 128]),
    ("5a", [256, 160, 320, 32, 128, 128]),
    ("5b", [384, 192, 384, 48, 128, 128]),
];

fn make_googlenet(setup: &Setup) -> Model {
    let mut net = Functional::new("googlenet");
    let x = net.input();
    let x = conv(&mut net, "conv1", x, centred(setup.wide(64), 7, 2));
    let x = net.named("pool1", pool_over_edge(3), [x]);
    let x = conv(&mut net, "conv2", x, centred(setup.wide(64), 1, 1));
    let x = conv(&mut net, "conv3", x, centred(setup.wide(192), 3, 1));
    let mut x = net.named("pool2", pool_over_edge(3), [x]);
    for (name, widths) in MODULES {
        let [one, before3, three, before5, five, pooled] = widths.map(|width| setup.wide(width));
        x = net.block(&format!("inception{name}"), |net| {
            let a = conv(net, "one", x, centred(one, 1, 1));
            let b = conv(net, "three/reduce", x, centred(before3, 1, 1));
            let b = conv(net, "three/conv", b, centred(three, 3, 1));
            let c = conv(net, "five/reduce", x, centred(before5, 1, 1));
            let c = conv(net, "five/conv", c, centred(five, 3, 1));
            let d = net.named("pool/pool", MaxPool2D::new(3).stride(1, 1).padding(Padding::all(1)), [x]);
            let d = conv(net, "pool/project", d, centred(pooled, 1, 1));
            net.add(Concatenate, [a, b, c, d])
        });
        x = match name {
            "3b" => net.named("pool3", pool_over_edge(3), [x]),
            "4e" => net.named("pool4", MaxPool2D::new(2), [x]),
            _ => x,
        };
    }
    head(net, x, setup, 0.2)
}

fn head(mut net: Functional, x: SymbolicTensor, setup: &Setup, rate: f32) -> Model {
    let x = net.add(GlobalAveragePool, [x]);
    let x = net.add(Dropout::new(rate), [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}

/// A convolution of any kernel size, padded by half of it.
fn sized(filters: usize, height: usize, width: usize) -> Conv2D {
    let (rows, columns) = (height / 2, width / 2);
    Conv2D::new(filters, 1).size(height, width).padding(Padding::Explicit { rows: (rows, rows), columns: (columns, columns) })
}

/// A sequence of convolutions: filters, height, width.
fn chain(net: &mut Functional, name: &str, x: SymbolicTensor, setup: &Setup, sizes: &[(usize, usize, usize)]) -> SymbolicTensor {
    net.block(name, |net| {
        sizes.iter().enumerate().fold(x, |x, (i, (filters, height, width))| {
            conv(net, &format!("conv{}", i + 1), x, sized(setup.wide(*filters), *height, *width))
        })
    })
}

fn pooled(net: &mut Functional, x: SymbolicTensor, setup: &Setup, filters: usize) -> SymbolicTensor {
    // Zeros at the edges count in the mean, as in torchvision, whose weights then give its results.
    let x = net.named("pool/padding", ZeroPadding2D::new(1), [x]);
    let x = net.named("pool/pool", AveragePool2D::new(3).stride(1, 1), [x]);
    conv(net, "pool/project", x, centred(setup.wide(filters), 1, 1))
}

/// A 3×3 convolution with stride 2.
fn halving(net: &mut Functional, name: &str, x: SymbolicTensor, setup: &Setup, filters: usize) -> SymbolicTensor {
    conv(net, name, x, Conv2D::new(setup.wide(filters), 3).stride(2, 2))
}

fn make_v3(setup: &Setup) -> Model {
    let mut net = Functional::new("inception-v3");
    let x = net.input();
    let x = conv(&mut net, "conv1", x, Conv2D::new(setup.wide(32), 3).stride(2, 2));
    let x = conv(&mut net, "conv2", x, Conv2D::new(setup.wide(32), 3));
    let x = conv(&mut net, "conv3", x, centred(setup.wide(64), 3, 1));
    let x = net.named("pool1", MaxPool2D::new(3).stride(2, 2), [x]);
    let x = conv(&mut net, "conv4", x, centred(setup.wide(80), 1, 1));
    let x = conv(&mut net, "conv5", x, Conv2D::new(setup.wide(192), 3));
    let mut x = net.named("pool2", MaxPool2D::new(3).stride(2, 2), [x]);
    for (i, filters) in [32, 64, 64].into_iter().enumerate() {
        x = net.block(&format!("mixed5{}", ["b", "c", "d"][i]), |net| {
            let a = chain(net, "one", x, setup, &[(64, 1, 1)]);
            let b = chain(net, "five", x, setup, &[(48, 1, 1), (64, 5, 5)]);
            let c = chain(net, "three", x, setup, &[(64, 1, 1), (96, 3, 3), (96, 3, 3)]);
            let d = pooled(net, x, setup, filters);
            net.add(Concatenate, [a, b, c, d])
        });
    }
    x = net.block("mixed6a", |net| {
        let a = halving(net, "three", x, setup, 384);
        let b = chain(net, "double", x, setup, &[(64, 1, 1), (96, 3, 3)]);
        let b = halving(net, "double/last", b, setup, 96);
        let c = net.named("pool", MaxPool2D::new(3).stride(2, 2), [x]);
        net.add(Concatenate, [a, b, c])
    });
    for (i, inner) in [128, 160, 160, 192].into_iter().enumerate() {
        x = net.block(&format!("mixed6{}", ["b", "c", "d", "e"][i]), |net| {
            let a = chain(net, "one", x, setup, &[(192, 1, 1)]);
            let b = chain(net, "seven", x, setup, &[(inner, 1, 1), (inner, 1, 7), (192, 7, 1)]);
            let c = chain(net, "double", x, setup, &[(inner, 1, 1), (inner, 7, 1), (inner, 1, 7), (inner, 7, 1), (192, 1, 7)]);
            let d = pooled(net, x, setup, 192);
            net.add(Concatenate, [a, b, c, d])
        });
    }
    x = net.block("mixed7a", |net| {
        let a = chain(net, "three", x, setup, &[(192, 1, 1)]);
        let a = halving(net, "three/last", a, setup, 320);
        let b = chain(net, "seven", x, setup, &[(192, 1, 1), (192, 1, 7), (192, 7, 1)]);
        let b = halving(net, "seven/last", b, setup, 192);
        let c = net.named("pool", MaxPool2D::new(3).stride(2, 2), [x]);
        net.add(Concatenate, [a, b, c])
    });
    for name in ["mixed7b", "mixed7c"] {
        x = net.block(name, |net| {
            let a = chain(net, "one", x, setup, &[(320, 1, 1)]);
            let b = chain(net, "three", x, setup, &[(384, 1, 1)]);
            let (b1, b2) = (chain(net, "three/across", b, setup, &[(384, 1, 3)]), chain(net, "three/down", b, setup, &[(384, 3, 1)]));
            let c = chain(net, "double", x, setup, &[(448, 1, 1), (384, 3, 3)]);
            let (c1, c2) = (chain(net, "double/across", c, setup, &[(384, 1, 3)]), chain(net, "double/down", c, setup, &[(384, 3, 1)]));
            let d = pooled(net, x, setup, 192);
            net.add(Concatenate, [a, b1, b2, c1, c2, d])
        });
    }
    head(net, x, setup, 0.5)
}
