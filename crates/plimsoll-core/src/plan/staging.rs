//! Staging: device memory for the inputs of a step, on devices with their own memory.

use crate::Bytes;
use crate::ir::graph::Graph;

/// Header before the scalars of a slot: seed, first row and step, padded.
pub const SLOT_HEADER: Bytes = Bytes(32);

/// Double buffering: one slot is filled while the other is computed on.
const SLOTS: usize = 2;

/// Slots for the inputs of the steps in flight, at the end of the resident memory.
///
/// A slot contains the columns, then the header and the scalars. After the slots there is one aligned word in which the
/// device records a non-finite loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Offset of the first slot.
    pub offset: Bytes,
    /// Number of slots.
    pub slots: usize,
    /// Size of a slot: the maximum over all programs.
    pub slot: Bytes,
    alignment: Bytes,
}

impl Staging {
    /// Slots for the inputs of any of the graphs, from `offset` on.
    pub(super) fn new<'a>(graphs: impl Iterator<Item = &'a Graph>, rows: usize, alignment: Bytes, offset: Bytes) -> Staging {
        let empty = Staging { offset, slots: SLOTS, slot: Bytes::ZERO, alignment };
        let needs = |graph: &Graph| (empty.scalars(graph, rows) + Bytes(4 * graph.scalars().len() as u64)).align_up(alignment.0);
        Staging { slot: graphs.map(needs).max().unwrap_or_default(), ..empty }
    }

    /// Offset of each column of a graph in a slot, for a plan of this many rows.
    pub fn columns(&self, graph: &Graph, rows: usize) -> Vec<Bytes> {
        let mut end = Bytes::ZERO;
        let place = |input: &crate::ir::graph::Input| {
            let start = end;
            end += input.ty.bytes(rows).align_up(self.alignment.0);
            start
        };
        graph.inputs().iter().map(place).collect()
    }

    /// Offset of the header in a slot.
    pub fn header(&self, graph: &Graph, rows: usize) -> Bytes {
        graph.inputs().iter().map(|input| input.ty.bytes(rows).align_up(self.alignment.0)).sum()
    }

    /// Offset of the scalars in a slot.
    pub fn scalars(&self, graph: &Graph, rows: usize) -> Bytes {
        self.header(graph, rows) + SLOT_HEADER
    }

    /// Offset of the word in which the device records a non-finite loss.
    pub fn alarm(&self) -> Bytes {
        self.offset + Bytes(self.slots as u64 * self.slot.0)
    }

    /// Total size.
    pub fn size(&self) -> Bytes {
        Bytes(self.slots as u64 * self.slot.0) + self.alignment
    }
}
