//! The plan as a document: the bytes that every step reads and writes, for independent verification.

use super::{BufferKind, Place, Plan, Program, state_owner};
use crate::Bytes;
use crate::ir::graph::{ConcatStrategy, InputId, NodeId, ScalarId, ValueId};
use crate::transform::step::Role;
use serde::{Deserialize, Serialize};

/// A memory space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Shared by all buffers that live within a step.
    Arena,
    /// Persists across steps.
    Resident,
    /// A column of the batch.
    Input(u32),
    /// Scalars that the host supplies for every step.
    Scalars,
    /// Accessed only by stores and loads.
    Backing,
}

/// The bytes of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The value.
    pub value: u32,
    /// The memory space.
    pub space: Space,
    /// The first byte.
    pub offset: Bytes,
    /// Number of bytes.
    pub size: Bytes,
}

/// One step: its reads, its writes and its workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The node of the graph.
    pub node: u32,
    /// The op's name.
    pub op: String,
    /// The layer.
    pub scope: String,
    /// Byte ranges read.
    pub reads: Vec<Range>,
    /// Byte ranges written.
    pub writes: Vec<Range>,
    /// Offset of the workspace.
    pub workspace_offset: Bytes,
    /// Size of the workspace.
    pub workspace_size: Bytes,
}

/// The memory use of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// What the program is for.
    pub role: Role,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Locations of the outputs that the host reads.
    pub outputs: Vec<(String, Range)>,
    /// Every buffer in the arena: owner, kind, offset, size, first and last step.
    pub buffers: Vec<(String, BufferKind, Bytes, Bytes, u32, u32)>,
    /// With recomputation: the nodes of the model's graph in execution order. Every recomputation is a separate node in
    /// `steps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequence: Vec<u32>,
    /// Values of the model's graph that are offloaded until a later phase reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offloaded: Vec<u32>,
    /// Every buffer in the backing store within a run: owner, offset, size, first and last step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<(String, Bytes, Bytes, u32, u32)>,
    /// Number of pieces into which the largest layers are split.
    #[serde(default = "in_one_piece", skip_serializing_if = "is_one_piece")]
    pub pieces: usize,
    /// How concats are computed.
    #[serde(default, skip_serializing_if = "ConcatStrategy::is_copy")]
    pub joining: ConcatStrategy,
    /// The concat outputs of the model's graph this applies to; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<u32>,
    /// Whether slice writes are fused into their producers where the device supports it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub concats_fused: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "asked for by serde")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn in_one_piece() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "asked for by serde")]
fn is_one_piece(pieces: &usize) -> bool {
    *pieces == 1
}

/// The whole plan as a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Maximum rows of a program.
    pub rows: usize,
    /// Alignment of all offsets.
    pub alignment: Bytes,
    /// The arena's size.
    pub arena: Bytes,
    /// Lower bound on the arena for these orders.
    pub lower_bound: Bytes,
    /// Size of the resident memory.
    pub resident: Bytes,
    /// Every state, then the staging slots if any: name, owner, offset, size.
    pub states: Vec<(String, String, Bytes, Bytes)>,
    /// The size of the backing store.
    #[serde(default, skip_serializing_if = "Bytes::is_zero")]
    pub backing: Bytes,
    /// Indices of offloaded states, whose offsets refer to the backing store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<u32>,
    /// The programs.
    pub programs: Vec<Claim>,
}

impl Plan {
    /// The plan as a document.
    pub fn certificate(&self) -> Certificate {
        Certificate {
            rows: self.rows,
            alignment: self.alignment,
            arena: self.arena,
            lower_bound: self.lower_bound,
            resident: self.resident,
            // Staging slots follow the states, so that the checker verifies that they do not overlap.
            states: self
                .states
                .iter()
                .map(|s| (s.name.clone(), state_owner(s.kind).to_string(), s.offset, s.size))
                .chain(self.staging.iter().map(|s| ("staging".to_string(), "staging".to_string(), s.offset, s.size())))
                .collect(),
            backing: self.backing,
            stored: (0..).zip(&self.states).filter(|(_, state)| state.stored).map(|(i, _)| i).collect(),
            programs: self.programs.iter().map(|program| claim(program, self.rows)).collect(),
        }
    }
}

fn claim(program: &Program, rows: usize) -> Claim {
    let range = |value: &ValueId| {
        let (space, offset) = match program.places[value.index()].expect("every value of a planned graph has a place") {
            Place::Arena(offset) => (Space::Arena, offset),
            Place::Resident(offset) => (Space::Resident, offset),
            Place::Backing(offset) => (Space::Backing, offset),
            Place::Input(InputId(column)) => (Space::Input(column), Bytes::ZERO),
            Place::Scalar(ScalarId(index)) => (Space::Scalars, Bytes(4 * u64::from(index))),
        };
        Range { value: value.0, space, offset, size: program.graph.ty(program.graph.spread(*value)).bytes(rows) }
    };
    let step = |(id, (workspace_offset, workspace_size)): (&NodeId, &(Bytes, Bytes))| {
        let node = program.graph.node(*id);
        Step {
            node: id.0,
            op: node.op.rules().name().to_string(),
            scope: node.scope.to_string(),
            reads: node.inputs.iter().map(range).collect(),
            writes: node.outputs.iter().map(range).collect(),
            workspace_offset: *workspace_offset,
            workspace_size: *workspace_size,
        }
    };
    Claim {
        role: program.role,
        steps: program.order.iter().zip(&program.workspaces).map(step).collect(),
        outputs: program.graph.outputs().iter().map(|(name, value)| (name.clone(), range(value))).collect(),
        buffers: program.buffers.iter().map(|b| (b.owner.to_string(), b.kind, b.offset, b.size, b.first, b.last)).collect(),
        sequence: program.recomputation.sequence.clone(),
        offloaded: program.offloaded.iter().map(|value| value.0).collect(),
        stored: program.stored.iter().map(|b| (b.owner.to_string(), b.offset, b.size, b.first, b.last)).collect(),
        pieces: program.graph.pieces(),
        joining: program.graph.joining(),
        joined: program.graph.joined().iter().map(|value| value.0).collect(),
        concats_fused: program.graph.concats_fused(),
    }
}
