//! Which copies may run beside which steps: worked out from the finished plan, byte by byte.
//!
//! A copy may begin as soon as the last step before it that touches the same bytes has ended, and the first step behind it that does waits for it.
//! Everything that touches the same bytes thus keeps the order of the plan, at any speed; so the result is that of the plan.

use super::super::{Place, Program};
use crate::Bytes;
use crate::ir::graph::ValueId;
use crate::ir::op::Op;
use crate::plan::{CopyRate, CostModel};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the backing store.
    Out,
    /// Back into the device's memory.
    In,
}

/// One copy of a program, and what it has to wait for. Copies of one direction are made in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its step in the program's order.
    pub step: usize,
    /// Which way it goes.
    pub direction: Direction,
    /// Where the bytes are on the device.
    pub place: Place,
    /// Where they are in the backing store.
    pub backing: Bytes,
    /// How many there are.
    pub size: Bytes,
    /// It may begin when all steps before this one have ended.
    pub begin: usize,
    /// This step, and with it all later ones, waits for it; the number of steps if none does.
    pub needed: usize,
    /// The last copy of the other direction that must have ended before it begins, as an index among the copies.
    pub after: Option<usize>,
}

/// How the copies of a program run beside its other steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// The copies in the order of their steps.
    pub copies: Vec<Copy>,
}

/// A piece of memory that a step touches.
type ByteRange = (Place, u64);

struct AccessedBytes {
    reads: Vec<ByteRange>,
    writes: Vec<ByteRange>,
}

impl Overlap {
    /// Works it out for a program run over `rows` rows. Nothing is stored into a state before the step `hold`: a device that can stop there does so
    /// with all states as they were.
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
            // A copy that is waited for is started first.
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

    /// Predicted seconds of a run over `rows` rows, copies beside computation, which they hold up by what they take of its processors.
    pub fn seconds(&self, program: &Program, rows: usize, cost_model: &dyn CostModel, rate: CopyRate) -> f64 {
        let mut waits: Vec<Vec<usize>> = vec![Vec::new(); program.order.len() + 1];
        self.copies.iter().enumerate().for_each(|(i, copy)| waits[copy.needed].push(i));
        // For every step, when all before it have ended.
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

/// Whether two steps touch the same bytes and one of them writes there.
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
