//! Programs whose memory is given for every run, such as eager ops.

use super::{DeviceError, Memory};
use crate::Bytes;
use crate::base::random::StepRandom;

/// A program whose columns, states and arena are given for every run. Running it does not allocate.
///
/// It checks what it is given: sizes, alignment, and that nothing it writes overlaps anything else.
pub trait Executable: Send {
    /// Runs it once.
    fn run(&mut self, buffers: &RunBuffers<'_>) -> Result<(), DeviceError>;
}

/// A position in a device's memory.
#[derive(Clone, Copy)]
pub struct Region<'a> {
    /// The memory.
    pub memory: &'a dyn Memory,
    /// Where it begins.
    pub offset: Bytes,
}

/// The memory and the numbers of one run of an [`Executable`].
pub struct RunBuffers<'a> {
    /// The columns, which are read.
    pub columns: &'a [Region<'a>],
    /// The states, which are read and written.
    pub states: &'a [Region<'a>],
    /// Memory of the size of the plan's arena.
    pub arena: Region<'a>,
    /// The scalars, in their order.
    pub scalars: &'a [f32],
    /// State of the random streams.
    pub random: StepRandom,
}
