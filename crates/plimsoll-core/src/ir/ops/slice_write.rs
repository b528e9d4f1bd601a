//! Writes a tensor into a slice of another.

use crate::base::shape::{Dim, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::OpRules;
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Writes the first input at `start` along `axis` of the second, in place unless that is read later. Without a second
/// input the rest of the result is uninitialized: [`verify`](crate::verify) rejects graphs that read a slice before it
/// is written. Only the planner creates this op, in place of a [`Concat`](super::Concat).
///
/// Along the batch axis, which the planner may split, the numbers are multiples of the batch as in
/// [`Slice`](super::Slice); for a batch slice, `start` is its first row and `extent` is `usize::MAX`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SliceWrite {
    /// The axis.
    pub axis: usize,
    /// Offset of the slice.
    pub start: usize,
    /// The extent of the result along the axis.
    pub extent: usize,
}

impl SliceWrite {
    /// The extent of a slice of this type along the axis, and the type of the result.
    fn whole(&self, graph: &Graph, part: &TensorType) -> Option<(usize, TensorType)> {
        let dim = *part.shape.dims().get(self.axis)?;
        let (own, whole) = match dim.part() {
            Some((from, to)) if from == self.start && self.extent == usize::MAX => (to - from, dim.rows(0, usize::MAX)),
            Some(_) => return None,
            None => graph.extent(dim).map(|(own, unit)| (own, unit(self.extent)))?,
        };
        let fits = self.start.checked_add(own).is_some_and(|end| end <= self.extent);
        fits.then(|| (own, TensorType::new(part.dtype, part.shape.with(self.axis, whole))))
    }

    /// Offset along the axis, in elements, of a slice with this dimension for `rows` rows.
    pub fn first(&self, part: Dim, rows: usize) -> usize {
        match part.part() {
            Some((from, _)) => part.factor() * from.min(rows),
            None if part.is_batch() => self.start * rows,
            None => self.start,
        }
    }

    /// The range along the axis that a slice with this dimension covers.
    pub(crate) fn span(&self, dim: Dim) -> (usize, usize) {
        let own = dim.part().map_or(dim.factor(), |(from, to)| to - from);
        (self.start, self.start + own)
    }
}

impl OpRules for SliceWrite {
    fn name(&self) -> &'static str {
        "slice_write"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        let of = if self.extent == usize::MAX { String::new() } else { format!(" of {}", self.extent) };
        format!("axis {}, from {}{of}", self.axis, self.start)
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [part, base @ ..] = inputs else { return Err("needs a tensor to write".to_string()) };
        let Some((_, whole)) = self.whole(graph, part) else {
            return Err(format!("cannot write {part} at {} of {} along axis {}", self.start, self.extent, self.axis));
        };
        match base {
            [] => Ok(vec![whole]),
            [base] if **base == whole => Ok(vec![whole]),
            _ => Err(format!("writes {part} into {whole} and nothing else")),
        }
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before the planner writes concats as slice writes"))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }

    /// The result may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        input == 1
    }
}
