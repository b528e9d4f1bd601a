//! Residual networks (He and others, 2015), with the stride in the 3×3 convolution of a bottleneck as in torchvision.

use super::blocks::{centred, conv_norm};
use super::entry::{Entry, IMAGENET};
use super::options::Setup;
use crate::nn::{Activation, Add, Dense, Functional, GlobalAveragePool, MaxPool2D, Model, Padding, SymbolicTensor};

pub(super) const RESNET18: Entry = Entry::image_classifier("resnet18", "residual network of 2015, 18 layers", IMAGENET, 1000, make18);

/// ResNet with 18 layers.
pub fn resnet18(classes: usize) -> Model {
    RESNET18.for_classes(classes)
}

pub(super) const RESNET34: Entry = Entry::image_classifier("resnet34", "residual network of 2015, 34 layers", IMAGENET, 1000, make34);

/// ResNet with 34 layers.
pub fn resnet34(classes: usize) -> Model {
    RESNET34.for_classes(classes)
}

pub(super) const RESNET50: Entry =
    Entry::image_classifier("resnet50", "residual network of 2015, 50 layers with bottlenecks", IMAGENET, 1000, make50);

/// ResNet with 50 layers.
pub fn resnet50(classes: usize) -> Model {
    RESNET50.for_classes(classes)
}

pub(super) const RESNET101: Entry =
    Entry::image_classifier("resnet101", "residual network of 2015, 101 layers with bottlenecks", IMAGENET, 1000, make101);

/// ResNet with 101 layers.
pub fn resnet101(classes: usize) -> Model {
    RESNET101.for_classes(classes)
}

fn make18(setup: &Setup) -> Model {
    resnet(setup, [2, 2, 2, 2], false)
}

fn make34(setup: &Setup) -> Model {
    resnet(setup, [3, 4, 6, 3], false)
}

fn make50(setup: &Setup) -> Model {
    resnet(setup, [3, 4, 6, 3], true)
}

fn make101(setup: &Setup) -> Model {
    resnet(setup, [3, 4, 23, 3], true)
}

fn resnet(setup: &Setup, stages: [usize; 4], bottleneck: bool) -> Model {
    let mut net = Functional::new("resnet");
    let x = net.input();
    let x = conv_norm(&mut net, "stem", x, centred(setup.wide(64), 7, 2), Activation::Relu);
    let mut x = net.named("pool", MaxPool2D::new(3).stride(2, 2).padding(Padding::all(1)), [x]);
    let expansion = if bottleneck { 4 } else { 1 };
    let mut channels = setup.wide(64);
    for (stage, blocks) in stages.into_iter().enumerate() {
        let width = setup.wide(64 << stage);
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let project = stride > 1 || channels != width * expansion;
            x = net.block(&format!("stage{}/block{}", stage + 1, block + 1), |net| residual(net, x, width, stride, bottleneck, project));
            channels = width * expansion;
        }
    }
    let x = net.add(GlobalAveragePool, [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}

fn residual(net: &mut Functional, x: SymbolicTensor, width: usize, stride: usize, bottleneck: bool, project: bool) -> SymbolicTensor {
    let (relu, none) = (Activation::Relu, Activation::Linear);
    let (branch, out) = if bottleneck {
        let y = conv_norm(net, "reduce", x, centred(width, 1, 1), relu);
        let y = conv_norm(net, "middle", y, centred(width, 3, stride), relu);
        (conv_norm(net, "expand", y, centred(4 * width, 1, 1), none), 4 * width)
    } else {
        let y = conv_norm(net, "first", x, centred(width, 3, stride), relu);
        (conv_norm(net, "second", y, centred(width, 3, 1), none), width)
    };
    let x = if project { conv_norm(net, "project", x, centred(out, 1, stride), none) } else { x };
    let sum = net.add(Add, [branch, x]);
    net.add(relu, [sum])
}
