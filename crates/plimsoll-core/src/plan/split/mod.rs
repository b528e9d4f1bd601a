//! Splitting: computes the layers with the largest activations (the logits of a large vocabulary and their gradient,
//! the first feature maps of a convolutional network) for some rows at a time, so that only one piece of their
//! activations is live.
//!
//! The ops decide what can be split ([`OpRules::split_rows`](crate::op::OpRules::split_rows)): ops that compute each
//! row independently, and sums over rows, which accumulate over the pieces. The [device](super::Target::can_split_rows)
//! decides whether the result is bit-identical; if it is not, nothing is split.
//!
//! There are two ways to split rows. If the number of rows of a tensor is a multiple of the batch, that multiple is
//! divided and a single pass computes all split layers (`single_pass.rs`). Otherwise the batch is divided, with one
//! pass per reduction that later nodes depend on (`multi_pass.rs`).

mod multi_pass;
mod single_pass;
mod write;

use super::updates::{root, runs};
use crate::Bytes;
use crate::base::shape::Dim;
use crate::ir::graph::{Graph, Node, NodeId, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::Reduction;
use crate::ir::rules::{RowContext, RowRule};
use crate::plan::{RowSplit, Target};

/// Number of largest tensors around which splitting is tried.
const SEEDS: usize = 6;

/// Maximum pieces of a batch. Each piece adds nodes to every pass, and unsplit tensors soon dominate the peak.
const MOST_OF_BATCH: usize = 8;

/// The largest number of pieces, at most `most`, into which the largest layers of an optimized graph can be split on
/// the device. None if nothing can be split.
pub fn pieces(graph: &Graph, rows: usize, device: &dyn Target, most: usize) -> Option<usize> {
    seeds(graph, rows).find_map(|seed| {
        let most = if row_count(graph, seed) > 1 { most } else { most.min(MOST_OF_BATCH) }.min(extent(graph, seed, rows));
        (2..=most).rev().find(|pieces| Cut::around(graph, seed, rows, Some(device), *pieces).is_some())
    })
}

/// The graph with its largest layers split into this many pieces. None if that is impossible.
///
/// The result is bit-identical, which [`check_equivalence`](super::check_equivalence) verifies.
pub fn split(graph: &Graph, rows: usize, device: &dyn Target, pieces: usize) -> Option<Graph> {
    seeds(graph, rows).find_map(|seed| Cut::around(graph, seed, rows, Some(device), pieces)).map(|cut| cut.write(graph))
}

/// The graph with its logits and their gradient in blocks of rows of about `most` bytes for `rows` rows, if they are
/// the largest tensors and larger than two blocks: a loss over a large vocabulary. Sums over rows are those of the
/// blocks in order, so that results depend on the size of the blocks up to the order of sums. It is a property of the
/// graph, not a strategy of the planner: it does not depend on budgets.
pub fn logits_in_blocks(graph: &Graph, rows: usize, most: Bytes) -> Option<Graph> {
    let seed = seeds(graph, rows).next()?;
    let (bytes, count) = (graph.ty(seed).bytes(rows), row_count(graph, seed));
    let is_softmax = |op: &Op| matches!(op, Op::Reduce(op) if op.kind == Reduction::LogSumExp && op.shape == *graph.shape(seed));
    let is_logits = graph.nodes().any(|(_, node)| is_softmax(&node.op));
    let pieces = usize::try_from(bytes.0.div_ceil(most.0.max(1))).ok()?.next_power_of_two();
    if !is_logits || pieces < 2 || count < 2 {
        return None;
    }
    let cut = Cut::around(graph, seed, rows, None, pieces)?;
    let mut blocks = cut.write(graph);
    (blocks.pieces, blocks.logits_in_blocks) = (graph.pieces, true);
    Some(blocks)
}

/// The largest tensors with a batch dimension.
fn seeds(graph: &Graph, rows: usize) -> impl Iterator<Item = ValueId> {
    let made = (0..graph.values.len() as u32).map(ValueId).filter(|value| runs(graph.producer(*value)) && row_count(graph, *value) > 0);
    let mut seeds: Vec<ValueId> = made.collect();
    seeds.sort_by_key(|value| (std::cmp::Reverse(graph.ty(*value).bytes(rows)), *value));
    seeds.into_iter().take(SEEDS)
}

/// Number of rows that are split around a tensor: the multiple of the batch if there is one, otherwise the batch.
fn extent(graph: &Graph, seed: ValueId, rows: usize) -> usize {
    match row_count(graph, seed) {
        1 => rows,
        count => count,
    }
}

/// Which rows are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// This multiple of the batch.
    Multiple(usize),
    /// The batch itself.
    Batch,
}

/// A split of a graph.
struct Cut {
    axis: Axis,
    /// Rows per piece, of the multiple or of the batch.
    length: usize,
    pieces: usize,
    /// The nodes of each pass over the pieces. A node in several passes is recomputed; its outputs are not retained
    /// between them.
    passes: Vec<Vec<NodeId>>,
    /// For every unsplit node, the number of passes it runs after.
    behind: Vec<usize>,
}

impl Cut {
    /// Splits the layers around a large tensor into this many pieces; bit-identical on the device, if one is given.
    fn around(graph: &Graph, seed: ValueId, rows: usize, device: Option<&dyn Target>, pieces: usize) -> Option<Cut> {
        let (count, extent) = (row_count(graph, seed), extent(graph, seed, rows));
        let axis = if count > 1 { Axis::Multiple(count) } else { Axis::Batch };
        if pieces < 2 || pieces > extent {
            return None;
        }
        let length = match axis {
            Axis::Multiple(_) => extent.div_ceil(pieces),
            Axis::Batch => roundest(extent, pieces)?,
        };
        let cut = Cut { axis, length, pieces, passes: Vec::new(), behind: Vec::new() };
        match axis {
            Axis::Multiple(_) if !extent.is_multiple_of(pieces) => None,
            Axis::Multiple(_) => cut.in_one_pass(graph, seed, rows, device),
            Axis::Batch => cut.in_passes(graph, seed, rows, device),
        }
    }

    fn has_rows(&self, graph: &Graph, value: ValueId) -> bool {
        match self.axis {
            Axis::Multiple(count) => row_count(graph, value) == count,
            Axis::Batch => row_count(graph, value) > 0,
        }
    }

    /// The row rule of a node under this split; none if its rows cannot be split.
    fn row_rule(&self, graph: &Graph, node: &Node) -> Option<RowRule> {
        let multiple = match self.axis {
            Axis::Multiple(count) => Some(count),
            Axis::Batch => None,
        };
        node.op.rules().split_rows(&RowContext { graph, node, multiple })
    }

    /// Whether the device computes bit-identical results for pieces.
    fn allows(&self, graph: &Graph, id: NodeId, rows: usize, device: Option<&dyn Target>) -> bool {
        let piece = match self.axis {
            Axis::Multiple(_) => RowSplit::Multiple(self.length),
            Axis::Batch => RowSplit::Rows(self.length),
        };
        !runs(graph.node(id)) || device.is_none_or(|device| device.can_split_rows(graph, graph.node(id), piece, rows))
    }

    /// The rows of a piece as a dimension.
    fn of_piece(&self, dim: Dim, piece: usize) -> Dim {
        match self.axis {
            Axis::Multiple(_) => Dim::times_batch(self.length),
            Axis::Batch => {
                let (from, to) = self.range(piece);
                dim.rows(from, to)
            }
        }
    }

    /// First and end row of a piece; the last piece of a batch takes the remainder.
    fn range(&self, piece: usize) -> (usize, usize) {
        let last = self.axis == Axis::Batch && piece + 1 == self.pieces;
        (piece * self.length, if last { usize::MAX } else { (piece + 1) * self.length })
    }
}

/// The shortest piece length with the most factors of two for this number of pieces: devices flush partial sums at
/// powers of two.
fn roundest(extent: usize, pieces: usize) -> Option<usize> {
    let lengths = (extent.div_ceil(pieces)..=extent).take_while(|length| extent.div_ceil(*length) == pieces);
    lengths.max_by_key(|length| (length.trailing_zeros(), std::cmp::Reverse(*length)))
}

/// The multiple of the batch in a value's first dimension; 0 if it has no batch dimension there.
fn row_count(graph: &Graph, value: ValueId) -> usize {
    graph.shape(value).dims().first().filter(|dim| dim.is_batch()).map_or(0, |dim| dim.factor())
}
