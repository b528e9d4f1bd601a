//! Very deep networks of 3×3 convolutions (Simonyan and Zisserman, 2014).

use super::entry::{Entry, IMAGENET};
use super::options::Setup;
use crate::nn::{Conv2D, Dense, Dropout, Flatten, Functional, Initializer, MaxPool2D, Model, Padding, SymbolicTensor};

/// Convolutions per stage.
pub(super) const SIXTEEN: [usize; 5] = [2, 2, 3, 3, 3];
const NINETEEN: [usize; 5] = [2, 2, 4, 4, 4];

/// The channels of the five stages.
pub(super) const STAGES: [usize; 5] = [64, 128, 256, 512, 512];

pub(super) const VGG16: Entry = Entry::image_classifier("vgg16", "3×3 convolutions of 2014, 16 layers", IMAGENET, 1000, make16);

/// VGG with 16 layers.
pub fn vgg16(classes: usize) -> Model {
    VGG16.for_classes(classes)
}

pub(super) const VGG19: Entry = Entry::image_classifier("vgg19", "3×3 convolutions of 2014, 19 layers", IMAGENET, 1000, make19);

/// VGG with 19 layers.
pub fn vgg19(classes: usize) -> Model {
    VGG19.for_classes(classes)
}

fn make16(setup: &Setup) -> Model {
    vgg(setup, SIXTEEN)
}

fn make19(setup: &Setup) -> Model {
    vgg(setup, NINETEEN)
}

/// The convolutions of a stage.
pub(super) fn stage(net: &mut Functional, mut x: SymbolicTensor, layers: usize, channels: usize) -> SymbolicTensor {
    for i in 1..=layers {
        let conv = Conv2D::new(channels, 3).padding(Padding::Same).initializer(Initializer::HeNormal).relu();
        x = net.named(&format!("conv{i}"), conv, [x]);
    }
    x
}

fn vgg(setup: &Setup, layers: [usize; 5]) -> Model {
    let mut net = Functional::new("vgg");
    let mut x = net.input();
    for (i, (layers, channels)) in layers.into_iter().zip(STAGES).enumerate() {
        x = net.block(&format!("block{}", i + 1), |net| {
            let x = stage(net, x, layers, setup.wide(channels));
            net.named("pool", MaxPool2D::new(2), [x])
        });
    }
    x = net.add(Flatten, [x]);
    for i in 1..=2 {
        x = net.named(&format!("fc{i}"), Dense::new(setup.wide(4096)).relu(), [x]);
        x = net.add(Dropout::new(0.5), [x]);
    }
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}
