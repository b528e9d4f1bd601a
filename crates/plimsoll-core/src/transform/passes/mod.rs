//! Optimization passes that preserve results (folding, common subexpressions, dead code, fusion), and one that changes
//! types: mixed precision.

mod classes;
mod dce;
mod epilogue;
mod fuse;
mod inline;
mod masks;
mod precision;
pub(crate) mod rewrite;
mod simplify;
mod split;

use crate::ir::graph::{Graph, GraphError};
use crate::verify;

pub use classes::pad_classes;
pub use dce::remove_dead;
pub use epilogue::fuse_epilogues;
pub use fuse::{fuse_pointwise, read_what_is_kept};
pub use inline::inline_masks;
pub use masks::sink_masks;
pub use precision::{Columns, mixed, mixed_with};
pub use simplify::simplify;
pub use split::split_concats;

/// Runs all passes in order and verifies the result; with debug assertions, the graph after each pass.
pub fn optimize(graph: &Graph) -> Result<Graph, GraphError> {
    let mut graph = graph.clone();
    verify(&graph)?;
    for pass in [
        simplify,
        remove_dead,
        fuse_pointwise,
        remove_dead,
        sink_masks,
        remove_dead,
        simplify,
        read_what_is_kept,
        inline_masks,
        remove_dead,
        fuse_epilogues,
        remove_dead,
    ] {
        graph = pass(&graph);
        if cfg!(debug_assertions) {
            verify(&graph)?;
        }
    }
    verify(&graph)?;
    Ok(graph)
}
