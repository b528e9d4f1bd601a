//! Weights of imported models: which elements of which tensors of a file make up a weight, and how they get to a
//! device, piece by piece.

use super::{permuted, safetensors, transposed};
use crate::error::{Error, Result};
use crate::optim::EMA_NAME;
use crate::tensors;
use plimsoll_core::graph::{State, StateId, StateKind};
use plimsoll_core::{Bytes, Executor};
use plimsoll_formats::tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;

/// The weights of a model by the names of its states.
#[derive(Debug, Default)]
pub(crate) struct ImportedWeights(BTreeMap<String, Assembly>);

/// A weight, from tensors of a file in row-major order.
#[derive(Clone, Debug)]
pub(crate) enum Assembly {
    /// All elements of a tensor, under any shape of the same number.
    Whole(Tensor),
    /// Some consecutive elements of a tensor.
    Part { tensor: Tensor, start: u64, length: u64 },
    /// Matrices side by side: `rows` rows of all parts, one after the other.
    Columns { rows: u64, parts: Vec<Tensor> },
    /// A tensor of these dimensions with permuted axes: axis `i` of the weight is axis `order[i]`.
    Permuted { tensor: Tensor, stored: Vec<usize>, order: Vec<usize> },
    /// Kernels of PyTorch `[outputs, inner…]`, side by side, as `[inner permuted…, outputs]`.
    Transposed { parts: Vec<Tensor>, inner: Vec<usize>, order: Vec<usize> },
}

impl Assembly {
    fn elements(&self) -> u64 {
        match self {
            Assembly::Whole(tensor) | Assembly::Permuted { tensor, .. } => tensor.elements(),
            Assembly::Part { length, .. } => *length,
            Assembly::Columns { parts, .. } | Assembly::Transposed { parts, .. } => parts.iter().map(Tensor::elements).sum(),
        }
    }

    /// Passes the elements on, some at a time, with their position.
    fn each_piece(&self, mut sink: impl FnMut(u64, &[f32]) -> Result<()>) -> Result<(), Problem> {
        if let Assembly::Permuted { tensor, stored, order } = self {
            let permuted = permuted::Permuted::new(stored, order);
            return permuted.each_piece(tensor, |at, numbers| sink(at, numbers).map_err(Problem::Device));
        }
        if let Assembly::Transposed { parts, inner, order } = self {
            return transposed::each_piece(parts, inner, order, |at, numbers| sink(at, numbers).map_err(Problem::Device));
        }
        let mut piece = [0.0; PIECE];
        let mut done = 0;
        let mut pass = |reader: &mut plimsoll_formats::tensor::TensorReader<'_>, mut at: u64, mut left: u64| -> Result<(), Problem> {
            while left > 0 {
                let count = left.min(PIECE as u64) as usize;
                reader.f32s(at, &mut piece[..count]).map_err(|error| Problem::File(error.to_string()))?;
                sink(done, &piece[..count]).map_err(Problem::Device)?;
                (at, left, done) = (at + count as u64, left - count as u64, done + count as u64);
            }
            Ok(())
        };
        match self {
            Assembly::Whole(tensor) => pass(&mut tensor.reader(), 0, tensor.elements()),
            Assembly::Part { tensor, start, length } => pass(&mut tensor.reader(), *start, *length),
            Assembly::Columns { rows, parts } => {
                let mut readers: Vec<_> = parts.iter().map(|part| (part.reader(), part.elements() / (*rows).max(1))).collect();
                (0..*rows).try_for_each(|row| readers.iter_mut().try_for_each(|(reader, width)| pass(reader, row * *width, *width)))
            }
            Assembly::Permuted { .. } | Assembly::Transposed { .. } => unreachable!("passed on above"),
        }
    }
}

/// Numbers that are copied at a time.
const PIECE: usize = 4 << 10;

pub(super) enum Problem {
    File(String),
    Device(Error),
}

impl ImportedWeights {
    pub fn insert(&mut self, name: String, weight: Assembly) {
        self.0.insert(name, weight);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That a weight is there with this shape; says how not.
    pub fn check(&self, name: &str, shape: &[u64]) -> Result<(), String> {
        let Some(weight) = self.0.get(name) else { return Err(format!("the file has no weight for `{name}`")) };
        let wanted: u64 = shape.iter().product();
        if weight.elements() != wanted {
            return Err(format!("`{name}` has {} elements in the file and the shape {shape:?} in the model", weight.elements()));
        }
        if let Assembly::Whole(tensor) = weight {
            // The same but for axes of extent 1, or the last axes joined.
            let plain = |shape: &[u64]| shape.iter().copied().filter(|dim| *dim != 1).collect::<Vec<u64>>();
            let (there, here) = (plain(&tensor.shape), plain(shape));
            let joined = there.len() > here.len() || there == here;
            if !joined {
                return Err(format!("`{name}` is {:?} in the file and {shape:?} in the model", tensor.shape));
            }
        }
        Ok(())
    }

    /// Copies a weight to the device.
    fn load(&self, executor: &mut Executor, id: StateId, state: &State, path: &Path) -> Result<()> {
        let mut bytes = [0; PIECE * 4];
        let copied = self.0[&state.name].each_piece(|at, numbers| {
            for (index, numbers) in numbers.chunks(PIECE).enumerate() {
                let at = at + (index * PIECE) as u64;
                numbers.iter().zip(bytes.chunks_exact_mut(4)).for_each(|(number, bytes)| bytes.copy_from_slice(&number.to_le_bytes()));
                executor.write_state_part(id, Bytes(at * 4), &bytes[..numbers.len() * 4])?;
            }
            Ok(())
        });
        copied.map_err(|problem| match problem {
            Problem::File(what) => Error::Config(format!("{} is damaged: {what}", path.display())),
            Problem::Device(error) => error,
        })
    }

    /// All elements of a weight, in memory.
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        let Some(weight) = self.0.get(name) else { return Err(Error::Config(format!("the file has no weight for `{name}`"))) };
        let mut all = vec![0.0; weight.elements() as usize];
        let read = weight.each_piece(|at, piece| {
            all[at as usize..][..piece.len()].copy_from_slice(piece);
            Ok(())
        });
        match read {
            Ok(()) => Ok(all),
            Err(Problem::File(what)) => Err(Error::Config(format!("`{name}` cannot be read: {what}"))),
            Err(Problem::Device(error)) => Err(error),
        }
    }
}

/// The states of these kinds.
fn states_of(executor: &Executor, kinds: &[StateKind]) -> Vec<(StateId, State)> {
    let states = executor.plan().programs.iter().map(|program| program.graph.states()).max_by_key(|states| states.len());
    let kept = |(_, state): &(usize, &State)| kinds.contains(&state.kind);
    states.unwrap_or_default().iter().enumerate().filter(kept).map(|(i, state)| (StateId(i as u32), state.clone())).collect()
}

fn shape_of(state: &State) -> Vec<u64> {
    state.ty.shape.bind(1).iter().map(|dim| *dim as u64).collect()
}

/// The weights of a file of another program and, if wanted, the state of its optimizer; none for files with the model's
/// own names, which have a checksum, or are reported by their own reader.
fn foreign(states: &[(StateId, State)], path: &Path, with_optimizer: bool) -> Result<Option<(ImportedWeights, ImportedWeights)>> {
    super::refuse_pickles(path)?;
    if super::is_importable(path) {
        let imported = super::import(path)?;
        let slots = imported.optimizer_state.filter(|_| with_optimizer).map(|state| state.slots);
        return Ok(Some((imported.weights, slots.unwrap_or_default())));
    }
    if tensors::is_own(path) {
        return Ok(None);
    }
    let wanted: Vec<(String, Vec<u64>)> = states.iter().map(|(_, state)| (state.name.clone(), shape_of(state))).collect();
    // What is damaged is reported by the reader of the model's own files.
    let mapped = safetensors::open(path, &wanted).ok().filter(|mapped| mapped.scheme.is_some());
    Ok(mapped.map(|mapped| (mapped.weights, ImportedWeights::default())))
}

/// Loads all weights from a file of any format; the file must have all of the model's.
pub(crate) fn load_weights(executor: &mut Executor, path: &Path) -> Result<()> {
    load_state(executor, path, false)
}

/// The same with the state of the optimizer, which the file must have.
pub(crate) fn load_weights_and_optimizer(executor: &mut Executor, path: &Path) -> Result<()> {
    load_state(executor, path, true)
}

fn load_state(executor: &mut Executor, path: &Path, with_optimizer: bool) -> Result<()> {
    let states = states_of(executor, &[StateKind::Parameter, StateKind::Statistic]);
    let Some((weights, slots)) = foreign(&states, path, with_optimizer)? else { return tensors::load_weights(executor, path) };
    for (_, state) in &states {
        let other = |what| Error::Config(format!("{} does not have the tensors of this model: {what}", path.display()));
        weights.check(&state.name, &shape_of(state)).map_err(other)?;
    }
    states.iter().try_for_each(|(id, state)| weights.load(executor, *id, state, path))?;
    if with_optimizer {
        // An average of the weights begins with the run.
        let mut moments = states_of(executor, &[StateKind::Optimizer]);
        moments.retain(|(_, state)| state.name.rsplit('/').next() != Some(EMA_NAME));
        for (_, state) in &moments {
            let other = |what| Error::Config(format!("{} does not have the state of the optimizer: {what}", path.display()));
            slots.check(&state.name, &shape_of(state)).map_err(other)?;
        }
        moments.iter().try_for_each(|(id, state)| slots.load(executor, *id, state, path))?;
    }
    Ok(())
}

/// Loads the weights whose name and shape match the model's; gives the names of those that are not loaded.
pub(crate) fn load_matching_weights(executor: &mut Executor, path: &Path) -> Result<Vec<String>> {
    let states = states_of(executor, &[StateKind::Parameter, StateKind::Statistic]);
    let Some((weights, _)) = foreign(&states, path, false)? else { return tensors::load_matching_weights(executor, path) };
    let (fitting, others): (Vec<_>, Vec<_>) =
        states.into_iter().partition(|(_, state)| weights.check(&state.name, &shape_of(state)).is_ok());
    if fitting.is_empty() {
        let what = "none of them is there with the same name and shape";
        return Err(Error::Config(format!("{} does not have the tensors of this model: {what}", path.display())));
    }
    fitting.iter().try_for_each(|(id, state)| weights.load(executor, *id, state, path))?;
    Ok(others.into_iter().map(|(_, state)| state.name).collect())
}
