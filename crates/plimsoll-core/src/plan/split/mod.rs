//! Splitting: where some layers hold far more than all others (the scores of a large vocabulary, and their gradient; the first images of a network of
//! convolutions), they are computed for a piece of the rows after another, so that only a piece of what they hold exists at a time.
//!
//! What may be cut is decided by the ops ([`OpRules::split_rows`](crate::op::OpRules::split_rows)): whatever computes each row by itself, and sums over the rows, each piece onto
//! the sum so far. Whether that leaves every bit as it was is for the [device](Device::can_split_rows) to say; otherwise nothing is cut.
//!
//! Rows are cut in one of two ways. Where a tensor has a multiple of the batch for rows, each piece has a part of that multiple, and everything that is cut
//! runs in one pass (`single_pass.rs`). Else the batch itself is cut, in as many passes as there are sums that something waits for (`multi_pass.rs`).

mod multi_pass;
mod single_pass;
mod write;

use super::updates::{root, runs};
use crate::base::shape::Dim;
use crate::ir::graph::{Graph, Node, NodeId, ValueId};
use crate::ir::rules::{RowContext, RowRule};
use crate::plan::{RowSplit, Target};

/// How many of the largest tensors splitting is tried around.
const SEEDS: usize = 6;

/// Most pieces of a batch: each is nodes in every pass, and the tensors that stay whole soon weigh more than a piece.
const MOST_OF_BATCH: usize = 8;

/// The largest number of pieces, of at most `most`, that the heaviest layers of an improved graph can be computed in on the device.
/// None if nothing can be cut.
pub fn pieces(graph: &Graph, rows: usize, device: &dyn Target, most: usize) -> Option<usize> {
    seeds(graph, rows).find_map(|seed| {
        let most = if row_count(graph, seed) > 1 { most } else { most.min(MOST_OF_BATCH) }.min(extent(graph, seed, rows));
        (2..=most).rev().find(|pieces| Cut::around(graph, seed, rows, device, *pieces).is_some())
    })
}

/// The graph with its heaviest layers computed in this many pieces. None if that cannot be.
///
/// Computes the same bits, which [`check_equivalence`](super::check_equivalence) proves from the result.
pub fn split(graph: &Graph, rows: usize, device: &dyn Target, pieces: usize) -> Option<Graph> {
    seeds(graph, rows).find_map(|seed| Cut::around(graph, seed, rows, device, pieces)).map(|cut| cut.write(graph))
}

/// The largest tensors that have rows.
fn seeds(graph: &Graph, rows: usize) -> impl Iterator<Item = ValueId> {
    let made = (0..graph.values.len() as u32).map(ValueId).filter(|value| runs(graph.producer(*value)) && row_count(graph, *value) > 0);
    let mut seeds: Vec<ValueId> = made.collect();
    seeds.sort_by_key(|value| (std::cmp::Reverse(graph.ty(*value).bytes(rows)), *value));
    seeds.into_iter().take(SEEDS)
}

/// Rows that are cut around a tensor: of a multiple of the batch, else of the batch itself.
fn extent(graph: &Graph, seed: ValueId, rows: usize) -> usize {
    match row_count(graph, seed) {
        1 => rows,
        count => count,
    }
}

/// Which rows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// This multiple of the batch.
    Multiple(usize),
    /// The batch itself.
    Batch,
}

/// What is computed piece by piece, and how.
struct Cut {
    axis: Axis,
    /// The rows of a piece: of the multiple, or of the batch.
    length: usize,
    pieces: usize,
    /// What is computed in one pass over the pieces, pass after pass. A node may be in several: what it makes is then not kept between them.
    passes: Vec<Vec<NodeId>>,
    /// For every node that is not cut, behind how many passes it runs.
    behind: Vec<usize>,
}

impl Cut {
    /// The layers around a large tensor in this many pieces.
    fn around(graph: &Graph, seed: ValueId, rows: usize, device: &dyn Target, pieces: usize) -> Option<Cut> {
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

    /// What splitting does to a node; none if its rows cannot be split.
    fn row_rule(&self, graph: &Graph, node: &Node) -> Option<RowRule> {
        let multiple = match self.axis {
            Axis::Multiple(count) => Some(count),
            Axis::Batch => None,
        };
        node.op.rules().split_rows(&RowContext { graph, node, multiple })
    }

    /// Whether the device computes the same bits piece by piece.
    fn allows(&self, graph: &Graph, id: NodeId, rows: usize, device: &dyn Target) -> bool {
        let piece = match self.axis {
            Axis::Multiple(_) => RowSplit::Multiple(self.length),
            Axis::Batch => RowSplit::Rows(self.length),
        };
        !runs(graph.node(id)) || device.can_split_rows(graph, graph.node(id), piece, rows)
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

    /// The first row of a piece, and the first behind it; the last piece of a batch takes all that are left.
    fn range(&self, piece: usize) -> (usize, usize) {
        let last = self.axis == Axis::Batch && piece + 1 == self.pieces;
        (piece * self.length, if last { usize::MAX } else { (piece + 1) * self.length })
    }
}

/// Of all lengths that cut an extent into this many pieces, the smallest with the most factors of two: devices flush partial sums after powers of it.
fn roundest(extent: usize, pieces: usize) -> Option<usize> {
    let lengths = (extent.div_ceil(pieces)..=extent).take_while(|length| extent.div_ceil(*length) == pieces);
    lengths.max_by_key(|length| (length.trailing_zeros(), std::cmp::Reverse(*length)))
}

/// What stands before the batch in a value's first axis; none for what has no rows there.
fn row_count(graph: &Graph, value: ValueId) -> usize {
    graph.shape(value).dims().first().filter(|dim| dim.is_batch()).map_or(0, |dim| dim.factor())
}
