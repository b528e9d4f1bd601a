//! Convolutions through cuDNN where it is found: in planned scratch, by deterministic ways only. Nothing of it is needed to build, to plan or to run.

mod constants;
mod convolution;
mod descriptor;
mod library;

pub(crate) use convolution::{ConvRequest, Convolution};
pub(crate) use library::{Cudnn, is_present};
