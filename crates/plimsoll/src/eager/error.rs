//! Errors of eager code: what happened, to what, and what to do.

use plimsoll_core::allocator::{AllocatorError, OverLimit};
use plimsoll_core::device::DeviceError;
use plimsoll_core::plan::CheckError;
use plimsoll_core::{Bytes, DType, GraphError, TensorType, ValueId};

/// An error of an eager op. Nothing is lost: tensors keep their values, and the program can go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes, types or arguments that do not go together.
    #[error("{op}: {what}")]
    Invalid {
        /// The op.
        op: &'static str,
        /// What is wrong, with the shapes.
        what: String,
    },
    /// The number of values is not that of the shape.
    #[error("a tensor {ty} has {expected} elements, but {given} were given")]
    Length {
        /// The type.
        ty: TensorType,
        /// Its elements.
        expected: usize,
        /// The number of values.
        given: usize,
    },
    /// Values are read as another type than they are stored in.
    #[error("the tensor is {stored}, but is read as {asked}; convert it with `to_dtype` first")]
    DType {
        /// The type of the tensor.
        stored: DType,
        /// The requested type.
        asked: DType,
    },
    /// Operands on different devices.
    #[error("{op}: the operands are on {first} and on {second}; move one with `to`")]
    Devices {
        /// The op.
        op: &'static str,
        /// The device of the first operand.
        first: String,
        /// The device of another operand.
        second: String,
    },
    /// The byte limit of the device's memory would be exceeded.
    #[error(transparent)]
    OverLimit(Box<OverLimit>),
    /// The allocator failed.
    #[error(transparent)]
    Allocator(AllocatorError),
    /// Values that are not known while a closure is traced.
    #[error("{0}: while a closure is traced, tensors have shapes but no values; compute with tensors, or do this outside of the closure")]
    Traced(&'static str),
    /// A traced tensor outlived its closure.
    #[error("{0}: a tensor from inside of a traced closure has no values; return it from the closure instead")]
    Escaped(&'static str),
    /// An op on the tape has no gradient.
    #[error("{op} at {location}: {what}")]
    NoGradient {
        /// The op.
        op: String,
        /// Where it was called.
        location: String,
        /// Why.
        what: String,
    },
    /// A gradient of more than one number.
    #[error("gradients are taken of a single number, but the loss is {0}; sum or average it first")]
    NotScalar(TensorType),
    /// A compiled function is called with other tensors than it was traced with.
    #[error("argument {position} is {given}, but the function was compiled for {expected}")]
    Argument {
        /// Position of the argument.
        position: usize,
        /// The expected type.
        expected: TensorType,
        /// The given type.
        given: TensorType,
    },
    /// The compiled function does not fit its budget.
    #[error(
        "the function needs {least}, but the budget is {budget}: {states} for states and results, {arena} for everything else even if all that can be is recomputed"
    )]
    Infeasible {
        /// The budget.
        budget: Bytes,
        /// The minimum.
        least: Bytes,
        /// Bytes of states and results.
        states: Bytes,
        /// The smallest arena.
        arena: Bytes,
    },
    /// An op that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device failed, or cannot do this.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(Box<crate::Error>),
    /// A plan did not pass the independent checker, which is a bug.
    #[error("{0}; this is a bug in the planner, please report it")]
    Plan(#[from] CheckError),
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Error {
        Error::Open(Box::new(error))
    }
}

/// The result of an eager op.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The values that an op adds to a graph.
pub(super) type BuiltValues = Result<Vec<ValueId>, GraphError>;

/// An invalid argument of an op.
pub(super) fn invalid<T>(op: &'static str, what: impl Into<String>) -> Result<T> {
    Err(Error::Invalid { op, what: what.into() })
}
