//! Which implementation computes a node, and the workspace it is given.
//!
//! These are rules over shapes and types. They query no library, so that plans need none, and measure nothing, so that every run makes the same choice.

pub(crate) mod convolution;
pub(crate) mod matmul;

use plimsoll_core::Bytes;

/// Alignment of every planned offset: the driver's own alignment, and preferred by matrix products.
pub(crate) const ALIGNMENT: Bytes = Bytes(256);
