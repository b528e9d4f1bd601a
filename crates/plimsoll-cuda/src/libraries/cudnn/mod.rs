//! Convolutions through cuDNN where it is found: in planned scratch, by deterministic ways only. Nothing of it is needed to build, to plan or to run.

mod convolution;
mod description;
mod library;
mod numbers;

pub(crate) use convolution::{Convolution, Request};
pub(crate) use library::{Dnn, is_present};
