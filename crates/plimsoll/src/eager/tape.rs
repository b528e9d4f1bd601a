//! Gradients: a tape records ops as they run, and goes back over them.

use super::call::{Call, Identical};
use super::dispatch::{apply, apply_many};
use super::error::{Error, Result, invalid};
use super::hash::Fast;
use super::record::{self, Backward, SharedRecords, TapeEntry};
use super::tensor::Tensor;
use plimsoll_core::expr::Binary;
use plimsoll_core::function::Vjp;
use plimsoll_core::{Bytes, Shape, TensorType};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

/// Records the ops of this thread on watched tensors, from its creation until it is dropped or asked for gradients.
///
/// ```
/// use plimsoll::eager::{Tape, Tensor};
/// let x = Tensor::from_slice(&[1.0, 2.0, 3.0], [3])?;
/// let tape = Tape::new();
/// tape.watch(&x);
/// let loss = (&x * &x)?.sum()?;
/// let gradients = tape.gradient(&loss, &[&x])?;
/// assert_eq!(gradients[0].to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
pub struct Tape(SharedRecords);

impl Tape {
    /// Starts recording.
    #[expect(clippy::new_without_default, reason = "creating it has an effect")]
    pub fn new() -> Tape {
        Tape(record::begin())
    }

    /// Records the ops on this tensor from now on, so that gradients with respect to it can be taken.
    pub fn watch(&self, tensor: &Tensor) {
        self.0.borrow_mut().tracked.insert(tensor.id());
    }

    /// Bytes of the tensors that the backward pass needs, by op. A tensor that several ops need counts for the first.
    pub fn held_bytes(&self) -> Vec<(&'static str, Bytes)> {
        let (mut seen, mut held) = (HashSet::new(), Vec::<(&'static str, Bytes)>::new());
        for entry in &self.0.borrow().entries {
            let Backward::Rules { saved, .. } = &entry.backward else { continue };
            let bytes: Bytes = saved.iter().filter(|tensor| seen.insert(tensor.memory_id())).map(Tensor::bytes).sum();
            match held.iter_mut().find(|(op, _)| *op == entry.op) {
                Some((_, sum)) => *sum += bytes,
                None => held.push((entry.op, bytes)),
            }
        }
        held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        held.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        held
    }

    /// The gradient of a scalar with respect to each of these tensors. What the tape holds is released as the pass
    /// goes back. A tensor that the loss does not depend on has a gradient of zeros.
    ///
    /// # Errors
    /// If the loss is not a single number, an op has no gradient, or memory runs out.
    #[track_caller]
    pub fn gradient(self, loss: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Tensor>> {
        if *loss.shape() != Shape::scalar() || !loss.dtype().is_float() {
            return Err(Error::NotScalar(loss.ty().clone()));
        }
        let made = Location::caller();
        let one = record::pausing(&self.0, || filled(loss.ty(), 1.0, loss, made))?;
        self.vector_jacobian(&[(loss, one)], wrt, made)
    }

    fn vector_jacobian(self, seeds: &[(&Tensor, Tensor)], wrt: &[&Tensor], made: &'static Location<'static>) -> Result<Vec<Tensor>> {
        record::pausing(&self.0, || {
            let mut gradients: HashMap<u64, Tensor, Fast> = HashMap::default();
            for (tensor, seed) in seeds {
                add_gradient(&mut gradients, tensor.id(), seed.clone())?;
            }
            let wanted: HashSet<u64> = wrt.iter().map(|tensor| tensor.id()).collect();
            loop {
                // Popped, so that what it holds is released when its gradient is computed.
                let Some(entry) = self.0.borrow_mut().entries.pop() else { break };
                if !entry.outputs.iter().any(|(id, _)| gradients.contains_key(id)) {
                    continue;
                }
                for (id, gradient) in back(&entry, &mut gradients, &wanted)? {
                    add_gradient(&mut gradients, id, gradient)?;
                }
            }
            wrt.iter()
                .map(|tensor| gradients.get(&tensor.id()).cloned().map_or_else(|| filled(tensor.ty(), 0.0, tensor, made), Ok))
                .collect()
        })
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        record::end(&self.0);
    }
}

/// The gradients of an op's operands.
fn back(entry: &TapeEntry, gradients: &mut HashMap<u64, Tensor, Fast>, wanted: &HashSet<u64>) -> Result<Vec<(u64, Tensor)>> {
    // The gradient of an output is complete here: all its readers came before. Only what was asked for is kept.
    let Some(known) = entry.outputs.iter().find_map(|(id, _)| gradients.get(id).cloned()) else { return Ok(Vec::new()) };
    let mut take = |id: u64, ty: &TensorType| match gradients.get(&id) {
        Some(gradient) if wanted.contains(&id) => Ok(gradient.clone()),
        Some(_) => Ok(gradients.remove(&id).expect("it was just found")),
        None => filled(ty, 0.0, &known, entry.made),
    };
    match &entry.backward {
        Backward::Rules { vjp, scalars, saved } => {
            let vjp: &Vjp = match &**vjp {
                Ok(vjp) => vjp,
                Err(error) => {
                    let (op, location) = (entry.op.to_string(), entry.made.to_string());
                    return Err(Error::NoGradient { op, location, what: error.what.clone() });
                }
            };
            let seeds: Vec<Tensor> = vjp.seeds.iter().map(|i| take(entry.outputs[*i].0, &entry.outputs[*i].1)).collect::<Result<_>>()?;
            let inputs: Vec<&Tensor> = saved.iter().chain(&seeds).collect();
            let call = Call::Function(entry.op, Identical(Arc::clone(&vjp.function)));
            let found = apply_many(&call, &inputs, scalars, entry.made)?;
            Ok(vjp.wrt.iter().map(|i| entry.inputs[*i]).zip(found).collect())
        }
        Backward::Custom(backward) => {
            let seeds: Vec<Tensor> = entry.outputs.iter().map(|(id, ty)| take(*id, ty)).collect::<Result<_>>()?;
            let found = backward(&seeds)?;
            if found.len() != entry.inputs.len() {
                let what = format!("the backward closure returned {} gradients for {} inputs", found.len(), entry.inputs.len());
                return invalid("custom_gradient", what);
            }
            Ok(entry.inputs.iter().copied().zip(found).collect())
        }
    }
}

/// A tensor of one number in the context of another tensor.
fn filled(ty: &TensorType, value: f32, like: &Tensor, made: &'static Location<'static>) -> Result<Tensor> {
    let fill = || Ok(apply_many(&Call::Fill(ty.clone()), &[], &[value], made)?.swap_remove(0));
    if like.traced().is_some() { fill() } else { like.context()?.scope(fill) }
}

/// Adds to the gradient of a tensor.
fn add_gradient(gradients: &mut HashMap<u64, Tensor, Fast>, id: u64, gradient: Tensor) -> Result<()> {
    let total = match gradients.remove(&id) {
        Some(before) => apply(Call::Binary(Binary::Add), &[&before, &gradient])?,
        None => gradient,
    };
    gradients.insert(id, total);
    Ok(())
}
