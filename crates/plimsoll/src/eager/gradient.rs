//! Gradients of functions, and functions with a gradient of their own.

use super::error::{Result, invalid};
use super::record::{self, CustomBackward};
use super::tape::Tape;
use super::tensor::Tensor;
use super::trace;
use std::panic::Location;
use std::rc::Rc;

/// The gradient of a function of parameters: a function from parameters to the gradient of each.
///
/// Gradients are made of ops too, so that they can be differentiated again:
///
/// ```
/// use plimsoll::eager::{Tensor, grad};
/// let cube = |x: &[Tensor]| (&x[0] * &x[0])?.mul(&x[0])?.sum();
/// let first = grad(cube);
/// let second = grad(|x: &[Tensor]| first(x)?[0].sum());
/// let x = Tensor::from_slice(&[2.0], [1])?;
/// assert_eq!(first(&[x.clone()])?[0].to_vec::<f32>()?, [12.0]);
/// assert_eq!(second(&[x])?[0].to_vec::<f32>()?, [12.0]);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
pub fn grad(loss: impl Fn(&[Tensor]) -> Result<Tensor>) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> {
    let both = value_and_grad(loss);
    move |parameters| both(parameters).map(|(_, gradients)| gradients)
}

/// As [`grad`], with the value of the function.
pub fn value_and_grad(loss: impl Fn(&[Tensor]) -> Result<Tensor>) -> impl Fn(&[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    move |parameters| {
        let tape = Tape::new();
        parameters.iter().for_each(|parameter| tape.watch(parameter));
        let value = loss(parameters)?;
        let wrt: Vec<&Tensor> = parameters.iter().collect();
        let gradients = tape.gradient(&value, &wrt)?;
        Ok((value, gradients))
    }
}

/// The same values, which gradients treat as constants.
///
/// ```
/// use plimsoll::eager::{Tensor, grad, stop_gradient};
/// let x = Tensor::from_slice(&[3.0], [1])?;
/// let gradients = grad(|x: &[Tensor]| (&x[0] * &stop_gradient(&x[0]))?.sum())(&[x])?;
/// assert_eq!(gradients[0].to_vec::<f32>()?, [3.0], "one factor only");
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
#[track_caller]
pub fn stop_gradient(x: &Tensor) -> Tensor {
    let made = Location::caller();
    let stopped = if trace::is_differentiated_later() { trace::stopped(x, made) } else { None };
    stopped.unwrap_or_else(|| x.alias(x.ty().clone(), made))
}

/// Calls a function whose gradient is given: `backward` maps the gradients of its results to those of its inputs.
///
/// ```
/// use plimsoll::eager::{Tensor, custom_gradient, grad};
/// // Rounds, with the gradient of the identity.
/// let half_up = |x: &[Tensor]| Ok(vec![x[0].add_scalar(0.5)?.floor()?]);
/// let round = |x: &Tensor| custom_gradient(&[x], half_up, |dy| Ok(vec![dy[0].clone()]));
/// let x = Tensor::from_slice(&[0.7], [1])?;
/// let gradients = grad(|x: &[Tensor]| round(&x[0])?[0].sum())(&[x])?;
/// assert_eq!(gradients[0].to_vec::<f32>()?, [1.0]);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
///
/// # Errors
/// Those of the function. A gradient of another shape than its input is refused, and so is a call in a layer, loss or
/// metric of a [`Trainer`](crate::Trainer), which the graph of the model differentiates.
#[track_caller]
pub fn custom_gradient(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    backward: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Result<Vec<Tensor>> {
    let made = Location::caller();
    if trace::is_differentiated_later() {
        let what = "a model differentiates its graph, which has the gradients of ops only; write it with ops and `stop_gradient`";
        return invalid("custom_gradient", what);
    }
    let inputs: Vec<Tensor> = inputs.iter().map(|input| (*input).clone()).collect();
    // Aliases, so that a result that is an input is a tensor of its own.
    let outputs: Vec<Tensor> = record::paused(|| forward(&inputs))?.iter().map(|output| output.alias(output.ty().clone(), made)).collect();
    let types: Vec<_> = inputs.iter().map(|input| input.ty().clone()).collect();
    let checked = move |seeds: &[Tensor]| {
        let found = backward(seeds)?;
        match found.iter().zip(&types).position(|(found, ty)| found.ty() != ty) {
            Some(i) => invalid("custom_gradient", format!("the gradient of input {i} is {}, but the input is {}", found[i].ty(), types[i])),
            None => Ok(found),
        }
    };
    let backward: Rc<CustomBackward> = Rc::new(checked);
    record::record_custom(&inputs, &outputs, &backward, made);
    Ok(outputs)
}
