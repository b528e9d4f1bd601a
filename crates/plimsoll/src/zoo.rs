//! Known networks by name.

use crate::nn::{Activation, AveragePool2D};
use crate::nn::{Conv2D, Dense, Dropout, Flatten, MaxPool2D, Model, Padding, Sequential};

/// A network of the zoo.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name configurations use.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Builds it for a number of classes.
    pub build: fn(usize) -> Model,
}

/// All networks.
pub const ENTRIES: [Entry; 3] = [
    Entry { name: "digits-cnn", about: "two small convolutions for 8×8 digits", build: digits_cnn },
    Entry { name: "lenet5", about: "LeCun's network of 1998 for 28×28 or 32×32 images", build: lenet5 },
    Entry { name: "mlp", about: "two dense layers of 128", build: mlp },
];

/// A small network for the embedded digits: two convolutions, pooling, dropout, one dense layer.
pub fn digits_cnn(classes: usize) -> Model {
    let net = Sequential::new()
        .add(Conv2D::new(16, 3).padding(Padding::Same).relu())
        .add(Conv2D::new(32, 3).padding(Padding::Same).relu())
        .add(MaxPool2D::new(2))
        .add(Flatten)
        .add(Dropout::new(0.25))
        .add(Dense::new(64).relu())
        .add(Dense::new(classes));
    Model::from(net).name("digits-cnn")
}

/// LeNet-5: two convolutions with pooling and three dense layers.
pub fn lenet5(classes: usize) -> Model {
    let net = Sequential::new()
        .add(Conv2D::new(6, 5).padding(Padding::Same).activation(Activation::Tanh))
        .add(AveragePool2D::new(2))
        .add(Conv2D::new(16, 5).activation(Activation::Tanh))
        .add(AveragePool2D::new(2))
        .add(Flatten)
        .add(Dense::new(120).activation(Activation::Tanh))
        .add(Dense::new(84).activation(Activation::Tanh))
        .add(Dense::new(classes));
    Model::from(net).name("lenet5")
}

/// Two dense layers of 128 and an output layer.
pub fn mlp(classes: usize) -> Model {
    let net = Sequential::new().add(Flatten).add(Dense::new(128).relu()).add(Dense::new(128).relu()).add(Dense::new(classes));
    Model::from(net).name("mlp")
}
