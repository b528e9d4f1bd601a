//! Every op passes here: it runs at once or is added to the graph of a trace, and is recorded on tapes.

use super::call::Call;
use super::context::{Allocated, Context, blocks};
use super::error::{Error, Result};
use super::short::Short;
use super::tensor::{Data, Tensor};
use super::{placement, record, trace};
use plimsoll_core::random::StepRandom;
use std::convert::Infallible;
use std::panic::Location;

/// Runs a call with one result.
#[track_caller]
pub(super) fn apply(call: Call, inputs: &[&Tensor]) -> Result<Tensor> {
    apply_with(call, inputs, &[])
}

/// Runs a call with one result and numbers.
#[track_caller]
pub(super) fn apply_with(call: Call, inputs: &[&Tensor], scalars: &[f32]) -> Result<Tensor> {
    Ok(apply_many(&call, inputs, scalars, Location::caller())?.swap_remove(0))
}

/// Runs a call.
pub(super) fn apply_many(call: &Call, inputs: &[&Tensor], scalars: &[f32], made: &'static Location<'static>) -> Result<Vec<Tensor>> {
    let outputs = if trace::is_active() { trace::add(call, inputs, scalars, made)? } else { run(call, inputs, scalars, made)? };
    if record::is_active() {
        record::record(call, inputs, scalars, &outputs, made);
    }
    Ok(outputs)
}

/// Runs a call at once.
fn run(call: &Call, inputs: &[&Tensor], scalars: &[f32], made: &'static Location<'static>) -> Result<Vec<Tensor>> {
    if let (Call::Reshape(shape), [x]) = (call, inputs) {
        x.allocated(call.name())?;
        if shape.elements() != x.shape().elements() {
            let what = format!("{} has {} elements and cannot become {shape}", x.shape(), x.len());
            return Err(Error::Invalid { op: call.name(), what });
        }
        let ty = plimsoll_core::TensorType::new(x.dtype(), shape.clone());
        return Ok(vec![x.alias(ty, made)]);
    }
    let current;
    let context = match inputs.first() {
        Some(first) => &first.allocated(call.name())?.context,
        None => {
            current = Context::current()?;
            &current
        }
    };
    let arguments = Short::collect(inputs.iter().map(|input| operand(call.name(), input, context)))?;
    let program = context.programs().get(call, inputs.iter().map(|input| input.ty()), scalars.len(), context.device())?;
    let computed = blocks(context, program.results(), program.owner(), made)?;
    if !computed.is_empty() {
        let Ok(states) = Short::collect(computed.iter().map(Ok::<_, Infallible>));
        let random = if let Call::Uniform(_) = call { context.draw() } else { StepRandom::default() };
        context.run(&program, arguments.get(), states.get(), scalars, random, made)?;
    }
    placement::ran(context, call.name());
    let mut computed = computed.into_iter().zip(program.results());
    let result = |passed: &Option<usize>| match passed {
        Some(operand) => inputs[*operand].alias(inputs[*operand].ty().clone(), made),
        None => {
            let (block, ty) = computed.next().expect("there is a block for every computed result");
            Tensor::new(ty.clone(), Data::Own(block), made)
        }
    };
    Ok(program.passed().iter().map(result).collect())
}

/// The block of an operand, which is in this context.
fn operand<'a>(op: &'static str, tensor: &'a Tensor, context: &Context) -> Result<&'a Allocated> {
    let block = tensor.allocated(op)?;
    if block.context.is(context) {
        return Ok(block);
    }
    let (first, second) = (context.name().to_string(), block.context.name().to_string());
    Err(Error::Devices { op, first, second })
}
