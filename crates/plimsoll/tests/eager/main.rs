//! Eager tensors, tapes and compiled functions.

mod accounting;
mod agreement;
mod gradients;
mod ops;
