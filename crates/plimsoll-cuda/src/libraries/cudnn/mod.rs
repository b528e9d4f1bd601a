//! Convolutions through cuDNN, if available: in planned workspace, with deterministic engines only. It is optional for
//! building, planning and running.

mod constants;
mod convolution;
mod descriptor;
mod library;

pub(crate) use convolution::{ConvRequest, Convolution};
pub(crate) use library::{Cudnn, is_present, version};
