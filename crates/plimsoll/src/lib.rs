//! Plimsoll: train neural networks under a memory line that is known before the first step.
//!
//! Give a [`nn`] model, a [`Dataset`] and a [`Budget`] to a [`Trainer`]. [`Trainer::plan`] states what the run needs, to the byte, or
//! says the least that would work; [`Trainer::fit`] trains and stays under the line. See [`Trainer`] for a whole program.

pub mod config;
mod devices;
mod error;
mod loss;
pub mod nn;
pub mod optim;
mod pipeline;
mod run;
pub mod system;
mod trainer;
mod weights;
pub mod zoo;

pub use devices::{Choice, open_device};
pub use error::{Error, Result};
pub use loss::{Loss, Metric};
pub use pipeline::{Bench, BenchEpoch, OverLine, Pipeline, Sample};
pub use plimsoll_core::budget::CountingAllocator;
pub use plimsoll_core::selftest;
pub use plimsoll_core::{Budget, Bytes};
pub use plimsoll_cpu::CpuDevice;
pub use plimsoll_cuda::{Found, Gpu, Probe, probe};
pub use plimsoll_data::{Cache, Dataset, Parallelism, Prefetch, RandomSpec, Shuffle, Split};
pub use run::{Run, RunFolder};
pub use trainer::{DeviceLine, Epoch, Event, Fit, History, Infeasible, Prediction, RunPlan, Scores, Trainer};

/// Offsets for buffers with known lifetimes: the packing that plans are made with, by itself.
pub mod arena {
    pub use plimsoll_core::plan::{Block, Effort, Goal, Layout, Solution, solve};
}

/// What a device is, in words.
pub fn describe(device: &dyn plimsoll_core::Device) -> String {
    device.description()
}

/// What a training program usually needs.
pub mod prelude {
    pub use crate::nn::{self, Activation, Dense, Model, Sequential};
    pub use crate::optim::{Adam, AdamW, Sgd};
    pub use crate::{Budget, Bytes, Cache, Dataset, Event, Fit, Loss, Parallelism, Prefetch, RandomSpec, Shuffle, Split, Trainer, zoo};
    pub use plimsoll_data::ops::{
        Method, cast_f32, center_crop, decode, flip_left_right, flip_up_down, normalize, one_hot, random_crop, resize, scale,
    };
}
