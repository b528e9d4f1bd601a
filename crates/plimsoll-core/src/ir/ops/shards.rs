//! Collectives of tensors that are divided over the ranks of a job, and a rank's part of one.

use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::base::shard;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The sums of some tensors over all ranks, of which every rank gets its [shard](crate::shard): a flat range of the
/// elements of each tensor, zero behind its end.
///
/// Like [`AllReduce`](crate::ops::AllReduce), it reads the token of the previous collective as its last input and
/// returns its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceScatter {
    /// The number of ranks.
    pub ranks: u32,
    /// Whether another collective precedes it, whose token is the last input.
    pub has_token: bool,
}

/// This rank's shard of a tensor that all ranks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The number of ranks.
    pub ranks: u32,
}

/// Tensors of which each rank has a shard, complete on all ranks. Its last input and output are tokens, like those of
/// [`ReduceScatter`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllGather {
    /// The number of ranks.
    pub ranks: u32,
    /// Whether another collective precedes it, whose token is the last input.
    pub has_token: bool,
    /// The shapes of the complete tensors.
    pub shapes: Vec<Shape>,
}

/// The type of a rank's shard of a tensor.
pub(crate) fn shard_of(shape: &Shape, ranks: u32) -> TensorType {
    TensorType::f32(Shape::fixed([shard::length(shape.elements().factor(), ranks as usize)]))
}

/// The tensors among the inputs of a collective, and the token of the previous one.
fn operands<T>(inputs: &[T], has_token: bool) -> (&[T], Option<&T>) {
    let (tensors, token) = inputs.split_at(inputs.len() - usize::from(has_token && !inputs.is_empty()));
    (tensors, token.first())
}

/// The tensors of a collective, checked.
fn checked<'a, 'b>(inputs: &'a [&'b TensorType], has_token: bool, ranks: u32) -> Result<&'a [&'b TensorType], String> {
    let (tensors, before) = operands(inputs, has_token);
    if let Some(other) = before.filter(|ty| ***ty != token()) {
        return Err(format!("its last input is the token of the previous collective, not {other}"));
    }
    if tensors.is_empty() {
        return Err("takes one or more tensors".to_string());
    }
    if ranks == 0 {
        return Err("divides tensors over one or more ranks, not 0".to_string());
    }
    match tensors.iter().find(|ty| ty.dtype != DType::F32 || ty.shape.has_batch()) {
        Some(other) => Err(format!("divides tensors in single precision without rows of the batch, but got {other}")),
        None => Ok(tensors),
    }
}

fn token() -> TensorType {
    TensorType::f32(Shape::scalar())
}

impl ReduceScatter {
    /// The tensors that are summed, and the token of the previous collective.
    pub fn operands<T>(self, inputs: &[T]) -> (&[T], Option<&T>) {
        operands(inputs, self.has_token)
    }
}

impl AllGather {
    /// The shards, and the token of the previous collective.
    pub fn operands<'a, T>(&self, inputs: &'a [T]) -> (&'a [T], Option<&'a T>) {
        operands(inputs, self.has_token)
    }
}

impl OpRules for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.ranks)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let tensors = checked(inputs, self.has_token, self.ranks)?;
        Ok(tensors.iter().map(|ty| shard_of(&ty.shape, self.ranks)).chain([token()]).collect())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("shards of sums over ranks have no gradient: they are those of complete gradients"))
    }

    /// The additions of one rank, if each adds its share of the elements.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        let (tensors, _) = self.operands(inputs);
        let elements: u64 = tensors.iter().map(|ty| ty.shape.elements().bind(rows) as u64).sum();
        elements * u64::from(self.ranks - 1) / u64::from(self.ranks)
    }
}

impl OpRules for Shard {
    fn name(&self) -> &'static str {
        "shard"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.ranks)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [tensor] = expect(inputs)?;
        checked(&[tensor], false, self.ranks)?;
        Ok(vec![shard_of(&tensor.shape, self.ranks)])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("a rank's shard has no gradient: it is one of a parameter that is updated"))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}

impl OpRules for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        let shapes: Vec<String> = self.shapes.iter().map(|shape| shape.to_string()).collect();
        format!("ranks={} shapes={}", self.ranks, shapes.join(" "))
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let shards = checked(inputs, self.has_token, self.ranks)?;
        if shards.len() != self.shapes.len() {
            return Err(format!("gathers {} tensors, but got {} shards", self.shapes.len(), shards.len()));
        }
        if let Some(rows) = self.shapes.iter().find(|shape| shape.has_batch()) {
            return Err(format!("gathers tensors without rows of the batch, not {rows}"));
        }
        let unfit = |(shard, shape): &(&&TensorType, &Shape)| **shard != &shard_of(shape, self.ranks);
        if let Some((shard, shape)) = shards.iter().zip(&self.shapes).find(unfit) {
            return Err(format!("a shard of {shape} over {} ranks is {}, not {shard}", self.ranks, shard_of(shape, self.ranks)));
        }
        Ok(self.shapes.iter().map(|shape| TensorType::f32(shape.clone())).chain([token()]).collect())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gathered tensors have no gradient: they are those of updated parameters"))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
