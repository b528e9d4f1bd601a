//! What tapes record: for every op, the function that computes its gradient and the tensors that this function reads.

use super::call::Call;
use super::error::Result;
use super::hash::Fast;
use super::programs::gradient;
use super::tensor::Tensor;
use plimsoll_core::TensorType;
use plimsoll_core::function::Vjp;
use plimsoll_core::graph::GraphError;
use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// The records of a tape.
#[derive(Default)]
pub(super) struct Records {
    /// The tensors that depend on a watched one.
    pub tracked: HashSet<u64, Fast>,
    pub entries: Vec<TapeEntry>,
    /// How often recording is paused.
    paused: usize,
}

/// One op on the tape.
pub(super) struct TapeEntry {
    pub op: &'static str,
    pub made: &'static Location<'static>,
    pub inputs: Vec<u64>,
    pub outputs: Vec<(u64, TensorType)>,
    /// The outputs that no loss may depend on.
    pub statistics: &'static [usize],
    pub backward: Backward,
}

/// How an op is differentiated.
pub(super) enum Backward {
    /// By the rules of its nodes: the function, its numbers, and the arguments that it reads.
    Rules { vjp: Arc<Result<Vjp, GraphError>>, scalars: Vec<f32>, saved: Vec<Tensor> },
    /// By a closure, from the gradients of the outputs to those of the inputs.
    Custom(Rc<CustomBackward>),
}

/// A closure from the gradients of outputs to those of inputs.
pub(super) type CustomBackward = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

pub(super) type SharedRecords = Rc<RefCell<Records>>;

thread_local! {
    /// The tapes of this thread, outermost first.
    static TAPES: RefCell<Vec<SharedRecords>> = const { RefCell::new(Vec::new()) };
}

/// Starts recording on this thread.
pub(super) fn begin() -> SharedRecords {
    let records = SharedRecords::default();
    TAPES.with_borrow_mut(|tapes| tapes.push(Rc::clone(&records)));
    records
}

/// Ends recording.
pub(super) fn end(records: &SharedRecords) {
    TAPES.with_borrow_mut(|tapes| tapes.retain(|tape| !Rc::ptr_eq(tape, records)));
}

/// Whether a tape records on this thread.
pub(super) fn is_active() -> bool {
    TAPES.with_borrow(|tapes| !tapes.is_empty())
}

/// The tapes that are not paused.
fn recording(mut body: impl FnMut(&mut Records)) {
    TAPES.with_borrow(|tapes| {
        for tape in tapes {
            let mut tape = tape.borrow_mut();
            if tape.paused == 0 {
                body(&mut tape);
            }
        }
    });
}

/// Runs a closure that no tape records.
pub(super) fn paused<R>(body: impl FnOnce() -> R) -> R {
    /// Resumes recording also when the closure panics.
    struct ResumeTapes(Vec<SharedRecords>);
    impl Drop for ResumeTapes {
        fn drop(&mut self) {
            self.0.iter().for_each(|tape| tape.borrow_mut().paused -= 1);
        }
    }
    let resume = ResumeTapes(TAPES.with_borrow(Clone::clone));
    resume.0.iter().for_each(|tape| tape.borrow_mut().paused += 1);
    body()
}

/// Runs a closure that this tape does not record; others do.
pub(super) fn pausing<R>(records: &SharedRecords, body: impl FnOnce() -> R) -> R {
    /// Resumes recording also when the closure panics.
    struct ResumeTape<'a>(&'a SharedRecords);
    impl Drop for ResumeTape<'_> {
        fn drop(&mut self) {
            self.0.borrow_mut().paused -= 1;
        }
    }
    records.borrow_mut().paused += 1;
    let _resume = ResumeTape(records);
    body()
}

/// Records an op on every tape that watches an operand.
pub(super) fn record(call: &Call, inputs: &[&Tensor], scalars: &[f32], outputs: &[Tensor], made: &'static Location<'static>) {
    if !outputs.iter().any(|output| output.dtype().is_float()) {
        return;
    }
    recording(|records| {
        let wants: Vec<bool> = inputs.iter().map(|input| input.dtype().is_float() && records.tracked.contains(&input.id())).collect();
        if !wants.contains(&true) {
            return;
        }
        let vjp = gradient(call, inputs.iter().map(|input| input.ty()), scalars.len(), &wants);
        let saved = match &*vjp {
            // No gradient passes this op, such as a comparison.
            Ok(vjp) if vjp.wrt.is_empty() => return,
            Ok(vjp) => {
                let arguments = vjp.arguments.iter().map(|i| inputs[*i].clone());
                arguments.chain(vjp.results.iter().map(|i| outputs[*i].clone())).collect()
            }
            Err(_) => Vec::new(),
        };
        records.add(TapeEntry {
            op: call.name(),
            made,
            inputs: inputs.iter().map(|input| input.id()).collect(),
            outputs: outputs.iter().map(|output| (output.id(), output.ty().clone())).collect(),
            statistics: call.statistics(),
            backward: Backward::Rules { vjp, scalars: scalars.to_vec(), saved },
        });
    });
}

/// Records an op with a gradient of its own.
pub(super) fn record_custom(inputs: &[Tensor], outputs: &[Tensor], backward: &Rc<CustomBackward>, made: &'static Location<'static>) {
    recording(|records| {
        if inputs.iter().any(|input| records.tracked.contains(&input.id())) {
            records.add(TapeEntry {
                op: "custom_gradient",
                made,
                inputs: inputs.iter().map(Tensor::id).collect(),
                outputs: outputs.iter().map(|output| (output.id(), output.ty().clone())).collect(),
                statistics: &[],
                backward: Backward::Custom(Rc::clone(backward)),
            });
        }
    });
}

impl Records {
    fn add(&mut self, entry: TapeEntry) {
        let differentiable = |(i, (_, ty)): &(usize, &(u64, TensorType))| ty.dtype.is_float() && !entry.statistics.contains(i);
        self.tracked.extend(entry.outputs.iter().enumerate().filter(differentiable).map(|(_, (id, _))| *id));
        self.entries.push(entry);
    }
}
