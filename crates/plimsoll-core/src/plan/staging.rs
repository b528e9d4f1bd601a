//! Where what the host gives to a step goes, on a device that has a memory of its own.

use crate::Bytes;
use crate::ir::graph::Graph;

/// Before the scalars of a slot stand the seed, the first row and the step, padded.
pub const SLOT_HEADER: Bytes = Bytes(32);

/// While one slot is computed on, the other is filled.
const SLOTS: usize = 2;

/// Slots for the inputs of the steps in flight, at the end of the resident memory.
///
/// A slot holds the columns one after another, then the header and the scalars. Behind the slots stands one aligned piece by which the
/// device remembers that a loss was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Where the first slot begins.
    pub offset: Bytes,
    /// How many there are.
    pub slots: usize,
    /// The size of each: that of the program that needs most.
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

    /// Where each column of a graph begins in a slot, for a plan of this many rows.
    pub fn columns(&self, graph: &Graph, rows: usize) -> Vec<Bytes> {
        let mut end = Bytes::ZERO;
        let place = |input: &crate::ir::graph::Input| {
            let start = end;
            end += input.ty.bytes(rows).align_up(self.alignment.0);
            start
        };
        graph.inputs().iter().map(place).collect()
    }

    /// Where the header of a slot begins.
    pub fn header(&self, graph: &Graph, rows: usize) -> Bytes {
        graph.inputs().iter().map(|input| input.ty.bytes(rows).align_up(self.alignment.0)).sum()
    }

    /// Where the scalars of a slot begin.
    pub fn scalars(&self, graph: &Graph, rows: usize) -> Bytes {
        self.header(graph, rows) + SLOT_HEADER
    }

    /// Where the device remembers that a loss was not finite.
    pub fn alarm(&self) -> Bytes {
        self.offset + Bytes(self.slots as u64 * self.slot.0)
    }

    /// All of it.
    pub fn size(&self) -> Bytes {
        Bytes(self.slots as u64 * self.slot.0) + self.alignment
    }
}
