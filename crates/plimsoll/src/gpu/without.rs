//! A build without the feature `cuda`: the same functions and types, and no GPU.

use crate::error::{Error, Result};
use plimsoll_comm::Group;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::Overhead;
use plimsoll_core::{Bytes, Device};
use std::path::PathBuf;
use std::sync::Arc;

/// What to do about it.
const MISSING: &str = "this program was built without the feature `cuda`; build it with `--features cuda`, or compute with `--device cpu`";

/// Which implementations of convolutions may be selected on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convolutions {
    /// Libraries where they are expected to be faster, generated kernels elsewhere.
    #[default]
    Auto,
    /// Always generated kernels.
    Generated,
    /// Libraries wherever they support the convolution.
    Libraries,
}

impl std::str::FromStr for Convolutions {
    type Err = String;

    fn from_str(_: &str) -> Result<Convolutions, String> {
        Err(MISSING.to_string())
    }
}

/// A library and whether it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its common name.
    pub name: &'static str,
    /// Whether it was found.
    pub found: bool,
    /// The consequence of its absence.
    pub without: &'static str,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its ordinal, as in `cuda:0`.
    pub ordinal: usize,
    /// Its model name.
    pub name: String,
    /// Its memory.
    pub total: Bytes,
    /// Free memory, if it could be queried.
    pub free: Option<Bytes>,
}

/// CUDA on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The libraries, the driver first.
    pub libraries: Vec<Found>,
    /// The GPUs the driver sees.
    pub gpus: Vec<Gpu>,
    /// The error of a driver that does not start.
    pub driver_error: Option<String>,
}

impl Probe {
    /// Why no GPU can be used.
    pub fn obstacle(&self) -> Option<String> {
        Some(MISSING.to_string())
    }
}

/// Finds nothing.
pub fn probe() -> Probe {
    Probe { libraries: Vec::new(), gpus: Vec::new(), driver_error: None }
}

/// No library is missing for a device that is not there.
pub fn missing_libraries() -> Vec<String> {
    Vec::new()
}

pub(crate) fn open(_: usize, _: Option<PathBuf>, _: Convolutions, _: bool) -> Result<Arc<dyn Device>> {
    Err(Error::Config(MISSING.to_string()))
}

/// A GPU of one of several ranks.
pub(crate) struct RankOnGpu {
    pub device: Arc<dyn Device>,
    pub communication: Overhead,
    pub sharing: usize,
}

pub(crate) fn open_of_rank(_: usize, _: Option<PathBuf>, _: Convolutions, _: bool, _: (&Arc<dyn Group>, u64)) -> Result<RankOnGpu> {
    Err(Error::Config(MISSING.to_string()))
}

pub(crate) fn plan_only(_: &str, _: usize, _: bool) -> Result<Arc<dyn Device>> {
    Err(Error::Config(MISSING.to_string()))
}

/// Times of a GPU are compared with nothing.
pub(crate) fn built_in_seconds(_: &Graph, _: &Node, _: usize) -> f64 {
    0.0
}
