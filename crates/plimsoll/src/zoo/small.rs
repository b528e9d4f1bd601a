//! Small networks for small images.

use super::entry::Entry;
use super::options::{Override, Setup};
use super::task::Task;
use crate::nn::{Activation, AveragePool2D, Conv2D, Conv2DTranspose, Dense, Dropout, Flatten, MaxPool2D, Model, Padding, Sequential};

pub(super) const DIGITS_CNN: Entry =
    Entry::image_classifier("digits-cnn", "two small convolutions for 8×8 digits", &[8, 8, 1], 10, make_digits);

/// A small network for the embedded digits: two convolutions, pooling, dropout, one dense layer.
pub fn digits_cnn(classes: usize) -> Model {
    DIGITS_CNN.for_classes(classes)
}

pub(super) const LENET5: Entry =
    Entry::image_classifier("lenet5", "LeCun's network of 1998 for 28×28 or 32×32 images", &[28, 28, 1], 10, make_lenet);

/// LeNet-5: two convolutions with pooling and three dense layers.
pub fn lenet5(classes: usize) -> Model {
    LENET5.for_classes(classes)
}

pub(super) const MLP: Entry = Entry::image_classifier("mlp", "two dense layers of 128", &[28, 28, 1], 10, make_mlp);

/// Two dense layers of 128 and an output layer.
pub fn mlp(classes: usize) -> Model {
    MLP.for_classes(classes)
}

pub(super) const CIFAR_CNN: Entry =
    Entry::image_classifier("cifar-cnn", "four convolutions for 32×32 images, as in Keras' example", &[32, 32, 3], 10, make_cifar);

/// Four convolutions and two dense layers, as Keras' example for CIFAR-10.
pub fn cifar_cnn(classes: usize) -> Model {
    CIFAR_CNN.for_classes(classes)
}

pub(super) const AUTOENCODER: Entry = Entry {
    name: "autoencoder",
    about: "convolutional autoencoder: three convolutions down, three up",
    input: &[32, 32, 3],
    task: Task::Reconstruction,
    takes: &[Override::Input, Override::Width],
    multiple: 8,
    make: make_autoencoder,
};

/// A convolutional autoencoder: three convolutions down, three up.
pub fn autoencoder() -> Model {
    AUTOENCODER.for_classes(0)
}

fn make_digits(setup: &Setup) -> Model {
    Sequential::new()
        .add(Conv2D::new(setup.wide(16), 3).padding(Padding::Same).relu())
        .add(Conv2D::new(setup.wide(32), 3).padding(Padding::Same).relu())
        .add(MaxPool2D::new(2))
        .add(Flatten)
        .add(Dropout::new(0.25))
        .add(Dense::new(setup.wide(64)).relu())
        .add(Dense::new(setup.classes))
        .into()
}

fn make_lenet(setup: &Setup) -> Model {
    Sequential::new()
        .add(Conv2D::new(setup.wide(6), 5).padding(Padding::Same).activation(Activation::Tanh))
        .add(AveragePool2D::new(2))
        .add(Conv2D::new(setup.wide(16), 5).activation(Activation::Tanh))
        .add(AveragePool2D::new(2))
        .add(Flatten)
        .add(Dense::new(setup.wide(120)).activation(Activation::Tanh))
        .add(Dense::new(setup.wide(84)).activation(Activation::Tanh))
        .add(Dense::new(setup.classes))
        .into()
}

fn make_mlp(setup: &Setup) -> Model {
    let dense = || Dense::new(setup.wide(128)).relu();
    Sequential::new().add(Flatten).add(dense()).add(dense()).add(Dense::new(setup.classes)).into()
}

fn make_cifar(setup: &Setup) -> Model {
    let mut net = Sequential::new();
    for channels in [32, 64].map(|channels| setup.wide(channels)) {
        net = net.add(Conv2D::new(channels, 3).padding(Padding::Same).relu()).add(Conv2D::new(channels, 3).relu());
        net = net.add(MaxPool2D::new(2)).add(Dropout::new(0.25));
    }
    net.add(Flatten).add(Dense::new(setup.wide(512)).relu()).add(Dropout::new(0.5)).add(Dense::new(setup.classes)).into()
}

fn make_autoencoder(setup: &Setup) -> Model {
    let channels = setup.input.last().copied().unwrap_or(1);
    let mut net = Sequential::new();
    for (i, width) in [32, 64, 128].into_iter().enumerate() {
        let conv = Conv2D::new(setup.wide(width), 3).stride(2, 2).padding(Padding::Same).relu();
        net = net.named(&format!("encoder/conv{}", i + 1), conv);
    }
    for (i, width) in [64, 32].into_iter().enumerate() {
        let conv = Conv2DTranspose::new(setup.wide(width), 3, 2).padding(Padding::Same).activation(Activation::Relu);
        net = net.named(&format!("decoder/conv{}", i + 1), conv);
    }
    let last = Conv2DTranspose::new(channels, 3, 2).padding(Padding::Same).activation(Activation::Sigmoid);
    net.named("decoder/conv3", last).into()
}
