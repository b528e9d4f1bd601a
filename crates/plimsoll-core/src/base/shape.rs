//! Dimensions that are fixed or multiples of the batch, and shapes.

use crate::{Bytes, DType};
use std::fmt;
use std::sync::Arc;

/// One dimension: a fixed number, or a fixed multiple of the symbol `B`, the rows of the micro-batch. In graphs that
/// the planner split, it may refer to a range of the batch's rows, clipped to the batch.
///
/// A graph is built once with `B` in it and bound to many sizes.
///
/// ```
/// use plimsoll_core::Dim;
/// assert_eq!(Dim::BATCH.bind(32), 32);
/// assert_eq!(Dim::times_batch(64).bind(2), 128);
/// assert_eq!(Dim::fixed(10).to_string(), "10");
/// assert_eq!(Dim::times_batch(64).to_string(), "64B");
///
/// let second = Dim::times_batch(64).rows(8, 16);
/// assert_eq!((second.bind(32), second.bind(10), second.bind(5)), (512, 128, 0));
/// assert_eq!(second.to_string(), "64B[8..16]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim {
    factor: usize,
    rows: Rows,
}

/// The rows of the batch that a dimension is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Rows {
    None,
    All,
    Some { from: usize, to: usize },
}

impl Dim {
    /// The batch itself.
    pub const BATCH: Dim = Dim { factor: 1, rows: Rows::All };

    /// A fixed number.
    pub const fn fixed(n: usize) -> Dim {
        Dim { factor: n, rows: Rows::None }
    }

    /// `n` times the batch.
    pub const fn times_batch(n: usize) -> Dim {
        Dim { factor: n, rows: Rows::All }
    }

    /// The same multiple of the rows `from..to` of the batch only; all rows from `from` on if `to` is `usize::MAX`. A
    /// fixed dimension is unchanged.
    pub const fn rows(self, from: usize, to: usize) -> Dim {
        match self.rows {
            Rows::None => self,
            _ if from == 0 && to == usize::MAX => Dim { rows: Rows::All, ..self },
            _ => Dim { rows: Rows::Some { from, to }, ..self },
        }
    }

    /// The extent for a batch of `rows` rows.
    pub const fn bind(self, rows: usize) -> usize {
        let count = match self.rows {
            Rows::None => 1,
            Rows::All => rows,
            Rows::Some { from, to } => {
                let end = if rows < to { rows } else { to };
                end.saturating_sub(from)
            }
        };
        self.factor.saturating_mul(count)
    }

    /// Whether it depends on the batch.
    pub const fn is_batch(self) -> bool {
        !matches!(self.rows, Rows::None)
    }

    /// The range of rows it is a multiple of, if not all.
    pub const fn part(self) -> Option<(usize, usize)> {
        if let Rows::Some { from, to } = self.rows { Some((from, to)) } else { None }
    }

    /// The extent, if it does not depend on the batch.
    pub const fn as_fixed(self) -> Option<usize> {
        if self.is_batch() { None } else { Some(self.factor) }
    }

    /// The fixed extent, or the multiple of `B`.
    pub const fn factor(self) -> usize {
        self.factor
    }

    fn times(self, other: Dim) -> Dim {
        let rows = if self.is_batch() { self.rows } else { other.rows };
        Dim { factor: self.factor.saturating_mul(other.factor), rows }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::fixed(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.factor, self.is_batch()) {
            (1, true) => write!(f, "B"),
            (n, true) => write!(f, "{n}B"),
            (n, false) => write!(f, "{n}"),
        }?;
        match self.part() {
            Some((from, usize::MAX)) => write!(f, "[{from}..]"),
            Some((from, to)) => write!(f, "[{from}..{to}]"),
            None => Ok(()),
        }
    }
}

/// The shape of a tensor; at most one dimension depends on the batch.
///
/// ```
/// use plimsoll_core::{Dim, Shape};
/// let images = Shape::batch_of([28, 28, 1]);
/// assert_eq!(images.to_string(), "[B, 28, 28, 1]");
/// assert_eq!(images.elements(), Dim::times_batch(784));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape(
    /// Clones share it: planning holds many graphs of the same shapes.
    Arc<[Dim]>,
);

impl Shape {
    /// From its dimensions, outermost first.
    pub fn new(dims: impl IntoIterator<Item = Dim>) -> Shape {
        Shape(dims.into_iter().collect())
    }

    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(Arc::new([]))
    }

    /// A shape that does not depend on the batch.
    pub fn fixed(dims: impl IntoIterator<Item = usize>) -> Shape {
        Shape(dims.into_iter().map(Dim::fixed).collect())
    }

    /// `[B, dims…]`: one row per example.
    pub fn batch_of(dims: impl IntoIterator<Item = usize>) -> Shape {
        Shape(std::iter::once(Dim::BATCH).chain(dims.into_iter().map(Dim::fixed)).collect())
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The innermost dimension.
    pub fn last(&self) -> Option<Dim> {
        self.0.last().copied()
    }

    /// The number of elements.
    pub fn elements(&self) -> Dim {
        self.0.iter().fold(Dim::fixed(1), |product, dim| product.times(*dim))
    }

    /// Whether a dimension depends on the batch.
    pub fn has_batch(&self) -> bool {
        self.0.iter().any(|dim| dim.is_batch())
    }

    /// The extents for a batch of `rows` rows.
    pub fn bind(&self, rows: usize) -> Vec<usize> {
        self.0.iter().map(|dim| dim.bind(rows)).collect()
    }

    /// The shape with one dimension replaced.
    pub fn with(&self, axis: usize, dim: Dim) -> Shape {
        Shape(self.0.iter().enumerate().map(|(i, old)| if i == axis { dim } else { *old }).collect())
    }

    /// The broadcast shape of both (aligned at the innermost dimension; extents of 1 broadcast), if compatible.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let dim = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map_or(Dim::fixed(1), |i| shape.0[i]);
        let one = Dim::fixed(1);
        (0..rank)
            .map(|axis| match (dim(self, axis), dim(other, axis)) {
                (a, b) if a == b => Some(a),
                (a, b) if a == one => Some(b),
                (a, b) if b == one => Some(a),
                _ => None,
            })
            .collect::<Option<Arc<[Dim]>>>()
            .map(Shape)
    }

    /// Whether this shape broadcasts to exactly `target`.
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        self.broadcast(target).as_ref() == Some(target)
    }

    /// The axes of `target` along which this shape is broadcast, including missing outer axes.
    pub fn stretched_axes(&self, target: &Shape) -> Vec<usize> {
        let missing = target.rank() - self.rank();
        (0..target.rank()).filter(|axis| *axis < missing || self.0[axis - missing] != target.0[*axis]).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(Dim::to_string).collect();
        f.pad(&format!("[{}]", dims.join(", ")))
    }
}

/// Element type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype, shape }
    }

    /// Single precision of the given shape.
    pub fn f32(shape: Shape) -> TensorType {
        TensorType { dtype: DType::F32, shape }
    }

    /// Its size for a batch of `rows` rows.
    pub fn bytes(&self, rows: usize) -> Bytes {
        Bytes(self.shape.elements().bind(rows).saturating_mul(self.dtype.size()) as u64)
    }

    /// Whether both have the same size for every batch.
    pub fn same_bytes(&self, other: &TensorType) -> bool {
        self.dtype.size() == other.dtype.size() && self.shape.elements() == other.shape.elements()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_at_the_innermost_dimension() {
        let rows = Shape::batch_of([4, 3]);
        let bias = Shape::fixed([3]);
        let column = Shape::batch_of([1, 1]);
        assert_eq!(rows.broadcast(&bias), Some(rows.clone()));
        assert_eq!(column.broadcast(&bias), Some(Shape::batch_of([1, 3])));
        assert_eq!(rows.broadcast(&Shape::fixed([2])), None);
        assert_eq!(rows.broadcast(&Shape::fixed([32, 4, 3])), None, "a number is never the batch");
        assert_eq!(bias.stretched_axes(&rows), [0, 1]);
        assert_eq!(column.stretched_axes(&rows), [1, 2]);
        assert!(Shape::scalar().broadcasts_to(&rows) && !rows.broadcasts_to(&bias));
    }
}
