//! A network of the zoo with its overrides applied: model, data schema, loss and costs.

use super::options::Setup;
use super::task::Task;
use crate::error::Result;
use crate::loss::Loss;
use crate::nn::{Model, Summary};
use plimsoll_core::graph::{Graph, Phase, StateKind};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{Bytes, DType, GraphError, Op, ValueId};
use plimsoll_data::{Column, Dataset, RandomSpec, Schema};
use std::collections::HashSet;

/// A network of the zoo, built.
#[derive(Clone, Debug)]
pub struct Network {
    /// The model.
    pub model: Model,
    /// The columns it is trained on: its input, then the labels.
    pub schema: Schema,
    /// The loss it is trained with.
    pub loss: Loss,
    classes: usize,
    vocabulary: usize,
}

/// The costs of a network for one example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Trainable parameters.
    pub parameters: u64,
    /// Floating-point operations of a forward pass; a multiply-add counts as two.
    pub flops: u64,
    /// Activations that training saves for the backward pass, without recomputation.
    pub activations: Bytes,
}

impl Network {
    pub(super) fn new(task: Task, model: Model, setup: Setup) -> Result<Network> {
        let stored = if setup.vocabulary > 0 { DType::I32 } else { DType::F32 };
        let x = Column::new("x", stored, setup.input.clone());
        let (y, loss) = match (task, &setup.input[..]) {
            (Task::Segmentation(_), [height, width, ..]) => (Column::new("y", DType::I32, [*height, *width]), Loss::SoftmaxCrossEntropy),
            (Task::Reconstruction, _) => (Column::new("y", DType::F32, setup.input.clone()), Loss::MeanSquaredError),
            (Task::NextToken(_), _) => (Column::new("y", DType::I32, setup.input.clone()), Loss::SoftmaxCrossEntropy),
            (Task::Forecast(_), _) => (Column::new("y", DType::F32, [setup.classes]), Loss::MeanSquaredError),
            (Task::Segmentation(_) | Task::Classification(_) | Task::TextClassification(..), _) => {
                (Column::new("y", DType::I32, []), Loss::SoftmaxCrossEntropy)
            }
        };
        Ok(Network { model, schema: Schema::new(vec![x, y])?, loss, classes: setup.classes, vocabulary: setup.vocabulary })
    }

    /// Random rows of the network's schema, to plan or try it without data.
    pub fn synthetic(&self, rows: u64) -> Result<Dataset> {
        let mut spec = RandomSpec::new(rows);
        for (column, numbers) in self.schema.columns().iter().zip([self.vocabulary, self.classes]) {
            let shape = column.shape.clone();
            spec = match column.dtype {
                DType::I32 => spec.classes(&column.name, shape, u32::try_from(numbers).unwrap_or(u32::MAX)),
                _ => spec.floats(&column.name, shape),
            };
        }
        Ok(Dataset::random(spec)?)
    }

    /// The type of its input.
    pub fn input(&self) -> TensorType {
        let column = &self.schema.columns()[0];
        TensorType::new(column.dtype, Shape::batch_of(column.shape.iter().copied()))
    }

    /// Its layers as a table.
    pub fn summary(&self) -> Result<Summary> {
        Ok(self.model.summary_for(&[self.input()])?)
    }

    /// Trainable parameters.
    pub fn parameters(&self) -> Result<u64> {
        Ok(parameters(&self.model.graph(&[self.input()], false)?.0))
    }

    /// Its costs for one example.
    pub fn costs(&self) -> Result<Costs> {
        let (prediction, _) = self.model.graph(&[self.input()], false)?;
        Ok(Costs { parameters: parameters(&prediction), flops: prediction.flops(1), activations: self.activations()? })
    }

    /// Bytes that the backward pass reads of the forward pass, for one example.
    fn activations(&self) -> Result<Bytes, GraphError> {
        let (mut graph, lowered) = self.model.graph(&[self.input()], true)?;
        let loss = graph.sum(lowered.outputs[0].value)?;
        let wanted = |graph: &Graph| -> Vec<ValueId> {
            let nodes = graph.nodes().filter(|(_, node)| match node.op {
                Op::State(id) => graph.states()[id.0 as usize].kind == StateKind::Parameter,
                _ => false,
            });
            nodes.map(|(_, node)| node.outputs[0]).collect()
        };
        let parameters = wanted(&graph);
        let gradients = plimsoll_core::autodiff::gradients(&mut graph, loss, &parameters)?;
        for (i, gradient) in gradients.iter().enumerate() {
            graph.output(&format!("gradient {i}"), *gradient);
        }
        let graph = plimsoll_core::passes::optimize(&graph)?;
        let mut saved: HashSet<ValueId> = HashSet::new();
        for (_, node) in graph.nodes().filter(|(_, node)| node.phase == Phase::Backward) {
            for mut value in node.inputs.iter().copied() {
                while graph.producer(value).op.rules().is_view() {
                    value = graph.producer(value).inputs[0];
                }
                let producer = graph.producer(value);
                if producer.phase == Phase::Forward && !producer.op.is_leaf() && graph.shape(value).has_batch() {
                    saved.insert(value);
                }
            }
        }
        Ok(saved.iter().map(|value| graph.ty(*value).bytes(1)).sum())
    }
}

fn parameters(graph: &Graph) -> u64 {
    let trainable = graph.states().iter().filter(|state| state.kind == StateKind::Parameter);
    trainable.map(|state| state.ty.shape.elements().factor() as u64).sum()
}
