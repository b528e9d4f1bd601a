//! TFLite models: run row by row, observed, and written with smaller numbers.
//!
//! | module | is |
//! |---|---|
//! | `file` | opens a file; the names of its metadata |
//! | `interpreter` | runs a model row by row, in single precision and in integers |
//! | `quantize` | half precision, weights in int8, everything in int8 |
//! | `compare` | how far two models are apart, tensor by tensor |
//! | `versions`, `dead` | what a file must say, and what it need not |

mod compare;
mod dead;
mod file;
mod interpreter;
mod quantize;
mod versions;

pub(crate) use compare::{TensorError, compare, observe};
pub(crate) use dead::remove_dead;
pub(crate) use file::{FITTED, OUTPUTS, PREPARATION, open};
pub(crate) use interpreter::{Interpreter, check};
pub(crate) use quantize::{Int8Options, Range, SmallModel, complete_ranges, to_dynamic, to_half, to_int8};
pub(crate) use versions::set_versions;
