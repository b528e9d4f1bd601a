//! Tests of eager tensors.

mod accounting;
mod agreement;
mod gradients;
mod ops;
