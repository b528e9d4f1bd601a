//! Knowledge distillation (Hinton and others, 2015): a student learns the softened class probabilities of a trained
//! teacher beside the labels.

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::loss::{ModelOutput, sum_by_rows};
use crate::nn::{Activation, Model, TEACHER};
use crate::tensors;
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::StateKind;
use plimsoll_core::ops::Reduction;
use plimsoll_core::{Graph, GraphError, ValueId};
use std::path::{Path, PathBuf};

/// Distillation of a teacher into the model of a run. The teacher predicts without gradients and without updates.
///
/// The loss is `alpha · loss + (1 - alpha) · T² · KL(teacher ‖ student)`, with the probabilities of both at the
/// temperature `T`.
#[derive(Clone, Debug)]
pub struct Distill {
    teacher: Model,
    weights: PathBuf,
    /// The shapes of its weights in the file.
    shapes: Vec<(String, Vec<usize>)>,
    temperature: f32,
    alpha: f32,
}

impl Distill {
    /// A teacher with its weights, at temperature 3 and with `alpha` 0.1.
    ///
    /// # Errors
    /// If the weights cannot be read.
    pub fn new(teacher: impl Into<Model>, weights: &Path) -> Result<Distill> {
        let (teacher, shapes) = (teacher.into().into_teacher(), tensors::shapes(weights)?);
        Ok(Distill { teacher, weights: weights.to_path_buf(), shapes, temperature: 3.0, alpha: 0.1 })
    }

    /// Sets the temperature, which softens the probabilities of teacher and student.
    pub fn temperature(self, temperature: f32) -> Distill {
        Distill { temperature, ..self }
    }

    /// Sets the share of the loss of the labels; the rest is that of the teacher.
    pub fn alpha(self, alpha: f32) -> Distill {
        Distill { alpha, ..self }
    }

    /// The file of the teacher's weights.
    pub(crate) fn weights(&self) -> &Path {
        &self.weights
    }

    /// The share of the loss of the labels.
    pub(crate) fn share_of_labels(&self) -> f32 {
        self.alpha
    }

    /// What is wrong with it, if anything.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Config(format!("distillation: {what}")));
        match () {
            _ if !(self.temperature.is_finite() && self.temperature > 0.0) => {
                wrong(format!("the temperature is {}, but should be above 0", self.temperature))
            }
            _ if !(0.0..=1.0).contains(&self.alpha) => wrong(format!("alpha is {}, but should be from 0 to 1", self.alpha)),
            _ => Ok(()),
        }
    }

    /// Adds the predictions of the teacher to a graph. `columns` are the inputs of the student, by name.
    pub(crate) fn lower(&self, g: &mut Graph, columns: &[(&str, ValueId)]) -> Result<ModelOutput, GraphError> {
        let refused = |what: String| GraphError { scope: String::new(), what: format!("distillation: {what}") };
        let input = |name: &String| match (columns, self.teacher.inputs()) {
            ([(_, only)], [_]) => Ok(*only),
            _ => columns.iter().find(|(known, _)| known == name).map(|(_, value)| *value).ok_or_else(|| {
                let known: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
                refused(format!("the teacher reads a column `{name}`, and the student only {}", known.join(", ")))
            }),
        };
        let inputs = self.teacher.inputs().iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let lowered = self.teacher.lower(g, &inputs, false)?;
        for state in g.states().iter().filter(|state| state.kind == StateKind::Teacher) {
            let name = state.name.strip_prefix(TEACHER).and_then(|name| name.strip_prefix('/')).unwrap_or_default();
            let (needed, stored) = (state.ty.shape.bind(1), self.shapes.iter().find(|(known, _)| known == name));
            match stored {
                None => return Err(refused(format!("{} has no weight `{name}`", self.weights.display()))),
                Some((_, stored)) if *stored != needed => {
                    let what = format!("its weight `{name}` has the shape {stored:?}, but needs {needed:?} for the inputs of this run");
                    return Err(refused(format!("the teacher was trained on other inputs: {what}")));
                }
                Some(_) => {}
            }
        }
        match lowered.outputs[..] {
            [output] => Ok(output.into()),
            _ => Err(refused(format!("the teacher has {} outputs; use one with one output", lowered.outputs.len()))),
        }
    }

    /// `T² · KL(teacher ‖ student)`, summed over rows.
    pub(crate) fn loss(&self, g: &mut Graph, student: ModelOutput, teacher: ModelOutput) -> Result<ValueId, GraphError> {
        let (student, teacher) = (logits(g, student)?, logits(g, teacher)?);
        if g.shape(student) != g.shape(teacher) {
            let (own, other) = (g.shape(student).clone(), g.shape(teacher).clone());
            let what = format!("distillation: the student predicts {own}, and the teacher {other}; train a teacher for the same classes");
            return Err(GraphError { scope: String::new(), what });
        }
        let temperature = self.temperature;
        let soft = |g: &mut Graph, logits: ValueId| {
            let divided = g.map(logits, |e, x| e.mul(x, e.constant(1.0 / temperature)))?;
            Activation::LogSoftmax.apply(g, divided)
        };
        let (student, teacher) = (soft(g, student)?, soft(g, teacher)?);
        let rank = g.shape(student).rank();
        // The mean over positions, where a row has several predictions.
        let predictions: usize = g.shape(student).dims()[1..rank - 1].iter().map(|dim| dim.factor()).product();
        let factor = temperature * temperature / predictions as f32;
        let divergence = Expr::build(|e| {
            let difference = e.sub(e.input(0), e.input(1));
            e.mul(e.mul(e.unary(Unary::Exp, e.input(0)), difference), e.constant(factor))
        });
        let divergence = g.pointwise(divergence, &[teacher, student])?;
        let divergence = g.reduce(Reduction::Sum, divergence, &[rank - 1])?;
        sum_by_rows(g, divergence)
    }
}

/// The scores before softmax.
fn logits(g: &Graph, output: ModelOutput) -> Result<ValueId, GraphError> {
    match output.before_activation {
        Some((Activation::Softmax, value)) => Ok(value),
        Some((activation, _)) => Err(g.error(format!("distillation needs class scores, but a model ends in {}", activation.name()))),
        None => Ok(output.output),
    }
}
