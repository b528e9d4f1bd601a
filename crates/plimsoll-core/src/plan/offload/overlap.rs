//! Derives from the finished plan, byte by byte, which copies may overlap with which steps.
//!
//! A copy may start once the last earlier step that accesses the same bytes has ended; the first later step that
//! accesses them waits for the copy. Conflicting accesses therefore keep the plan's order at any speed, and the result
//! is that of sequential execution.

use super::super::{Place, Program};
use crate::Bytes;
use crate::ir::graph::ValueId;
use crate::ir::op::Op;
use crate::plan::{CopyRate, CostModel};

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Device to backing store.
    Out,
    /// Backing store to device.
    In,
}

/// A copy of a program and its dependencies. Copies of one direction execute in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its step in the program's order.
    pub step: usize,
    /// Which way it goes.
    pub direction: Direction,
    /// Device location.
    pub place: Place,
    /// Offset in the backing store.
    pub backing: Bytes,
    /// Number of bytes.
    pub size: Bytes,
    /// It may start when all steps before this one have ended.
    pub begin: usize,
    /// The first step that waits for it; the number of steps if none does.
    pub needed: usize,
    /// Index of the last copy of the other direction that must complete first.
    pub after: Option<usize>,
}

/// The schedule of a program's copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Copies in step order.
    pub copies: Vec<Copy>,
}

/// A byte range that a step accesses.
type ByteRange = (Place, u64);

struct AccessedBytes {
    reads: Vec<ByteRange>,
    writes: Vec<ByteRange>,
}

impl Overlap {
    /// Derives the schedule for a run over `rows` rows. No state is stored before step `hold`, so a device can stop
    /// there with all states unchanged.
    pub fn of(program: &Program, rows: usize, hold: usize) -> Overlap {
        let graph = &program.graph;
        let piece = |value: &ValueId| {
            let place = program.places[value.index()].expect("every value of a planned graph has a place");
            (place, graph.ty(graph.spread(*value)).bytes(rows).0)
        };
        let touched: Vec<AccessedBytes> = program
            .order
            .iter()
            .zip(&program.workspaces)
            .map(|(id, (offset, size))| {
                let node = graph.node(*id);
                let scratch = (size.0 > 0).then_some((Place::Arena(*offset), size.0));
                AccessedBytes {
                    reads: node.inputs.iter().map(piece).collect(),
                    writes: node.outputs.iter().map(piece).chain(scratch).collect(),
                }
            })
            .collect();
        let changes: Vec<ValueId> = graph.updates().iter().map(|(_, value)| *value).collect();
        let mut copies: Vec<Copy> = Vec::new();
        let is_copy: Vec<bool> = program.order.iter().map(|id| matches!(graph.node(*id).op, Op::Store(_) | Op::Load(_))).collect();
        for (step, id) in program.order.iter().enumerate() {
            let node = graph.node(*id);
            let (direction, device, backing) = match node.op {
                Op::Store(_) => (Direction::Out, node.inputs[0], node.outputs[0]),
                Op::Load(_) => (Direction::In, node.outputs[0], node.inputs[0]),
                _ => continue,
            };
            let (place, size) = piece(&device);
            let Some(Place::Backing(offset)) = program.places[backing.index()] else {
                unreachable!("what is stored has its place in the backing store")
            };
            let before = (0..step).rev().find(|i| !is_copy[*i] && conflict(&touched[*i], &touched[step]));
            let mut begin = before.map_or(0, |i| i + 1);
            let after = copies.iter().rposition(|copy| copy.direction != direction && conflict(&touched[copy.step], &touched[step]));
            if direction == Direction::Out && changes.contains(&node.outputs[0]) {
                begin = begin.max(hold.min(step));
            }
            // Among copies of one direction, one that others wait for is started first.
            let last_of_kind = copies.iter().rev().find(|copy| copy.direction == direction);
            begin = begin.max(last_of_kind.map_or(0, |copy| copy.begin)).max(after.map_or(0, |after| copies[after].begin));
            copies.push(Copy { step, direction, place, backing: offset, size: Bytes(size), begin, needed: touched.len(), after });
        }
        for copy in &mut copies {
            let needed = (copy.step + 1..touched.len()).find(|i| !is_copy[*i] && conflict(&touched[copy.step], &touched[*i]));
            copy.needed = needed.unwrap_or(touched.len());
        }
        Overlap { copies }
    }

    /// Predicted seconds of a run over `rows` rows with overlapped copies, including the slowdown of computation by
    /// copies.
    pub fn seconds(&self, program: &Program, rows: usize, cost_model: &dyn CostModel, rate: CopyRate) -> f64 {
        let mut waits: Vec<Vec<usize>> = vec![Vec::new(); program.order.len() + 1];
        self.copies.iter().enumerate().for_each(|(i, copy)| waits[copy.needed].push(i));
        // For every step, the time at which all earlier steps have ended.
        let mut ended = Vec::with_capacity(program.order.len() + 1);
        ended.push(0.0_f64);
        let (mut done, mut queues) = (vec![0.0_f64; self.copies.len()], [0.0_f64; 2]);
        let mut next = self.copies.iter().enumerate().peekable();
        for (step, id) in program.order.iter().enumerate() {
            let now = waits[step].iter().fold(ended[step], |now, copy| now.max(done[*copy]));
            if let Some((i, copy)) = next.next_if(|(_, copy)| copy.step == step) {
                let queue = if rate.both_ways && copy.direction == Direction::In { 1 } else { 0 };
                let free = copy.after.map_or(0.0, |after| done[after]).max(ended[copy.begin]).max(queues[queue]);
                done[i] = free + copy.size.0 as f64 / rate.bytes_per_s;
                queues[queue] = done[i];
                ended.push(now + copy.size.0 as f64 * rate.compute_s_per_byte);
            } else {
                ended.push(now + cost_model.seconds(&program.graph, program.graph.node(*id), rows));
            }
        }
        done.iter().fold(ended[program.order.len()], |end, done| end.max(*done))
    }
}

/// Whether two steps access the same bytes and one of them writes.
fn conflict(a: &AccessedBytes, b: &AccessedBytes) -> bool {
    let meet = |a: &[ByteRange], b: &[ByteRange]| a.iter().any(|a| b.iter().any(|b| overlap(*a, *b)));
    meet(&a.writes, &b.writes) || meet(&a.writes, &b.reads) || meet(&a.reads, &b.writes)
}

fn overlap((a, a_size): ByteRange, (b, b_size): ByteRange) -> bool {
    let meet = |a: Bytes, b: Bytes| a.0 < b.0 + b_size && b.0 < a.0 + a_size;
    match (a, b) {
        (Place::Arena(a), Place::Arena(b)) | (Place::Resident(a), Place::Resident(b)) | (Place::Backing(a), Place::Backing(b)) => {
            meet(a, b)
        }
        // Only the host writes columns and scalars, between runs.
        _ => false,
    }
}
