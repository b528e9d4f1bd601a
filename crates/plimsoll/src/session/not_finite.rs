//! Diagnosis of a non-finite loss: the first tensor that is not finite.

use plimsoll_core::device::StepInputs;
use plimsoll_core::graph::StateId;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Executor, Op};
use plimsoll_data::Schema;

/// A loss that is not finite.
pub(crate) fn in_words(loss: f32) -> String {
    if loss.is_nan() { "not a number (NaN)" } else { "infinite" }.to_string()
}

/// Names the first non-finite tensor: a column of the batch, with its row there, a weight, or the output of a layer.
pub(crate) fn first_non_finite(
    executor: &mut Executor,
    role: Role,
    rows: usize,
    inputs: Option<&StepInputs<'_>>,
    schema: &Schema,
    columns: &[usize],
) -> (String, Option<usize>) {
    for (bytes, index) in inputs.iter().flat_map(|inputs| inputs.columns).zip(columns) {
        let column = &schema.columns()[*index];
        if column.dtype == DType::F32
            && let Some(at) = not_finite(bytes)
        {
            return (format!("the data, column `{}`", column.name), Some(at / column.elements().max(1)));
        }
    }
    if let Some(name) = broken_state(executor) {
        return (format!("`{name}`, changed by the step before"), None);
    }
    let tensor = match executor.find_non_finite(role, rows, inputs) {
        Ok(Some(node)) => {
            let Some(graph) = executor.plan().program(role).map(|program| &program.graph) else { return (String::new(), None) };
            let node = graph.node(node);
            match graph.effective_op(node).op {
                Op::Input(id) => format!("the data, column `{}`", schema.columns()[columns[id.0 as usize]].name),
                op => format!("the {} of layer `{}`", op.rules().name(), node.scope),
            }
        }
        _ => "the loss itself".to_string(),
    };
    (tensor, None)
}

/// The first state with a non-finite value. Read in chunks: a run that fails stays within its budget too.
fn broken_state(executor: &Executor) -> Option<String> {
    let mut piece = [0; 4096];
    let longest = executor.plan().programs.iter().map(|program| program.graph.states()).max_by_key(|states| states.len())?;
    let real = |(i, _): &(usize, _)| longest[*i].ty.dtype == DType::F32;
    for (i, state) in executor.plan().states.iter().enumerate().filter(real) {
        let mut done = Bytes::ZERO;
        while done < state.size {
            let piece = &mut piece[..(state.size - done).get().min(4096)];
            executor.read_state_part(StateId(i as u32), done, piece).ok()?;
            if not_finite(piece).is_some() {
                return Some(state.name.clone());
            }
            done += Bytes(piece.len() as u64);
        }
    }
    None
}

/// The index of the first non-finite value.
fn not_finite(bytes: &[u8]) -> Option<usize> {
    bytes.chunks_exact(4).position(|b| !number(b).is_finite())
}

pub(crate) fn number(bytes: &[u8]) -> f32 {
    f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
