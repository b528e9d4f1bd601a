//! What the names of an ONNX graph stand for: numbers known at import, weights in the file, and tensors of the model.

use crate::nn::SymbolicTensor;
use plimsoll_core::ValueId;
use plimsoll_core::shape::Dim;
use plimsoll_formats::tensor::{DType, Tensor};
use std::sync::Arc;

/// What cannot be imported, in words.
pub(super) type Found<T> = Result<T, String>;

/// The sizes of the batch for which shapes are computed: what differs between them depends on the batch.
pub(super) const BATCHES: [f64; 2] = [7919.0, 104_729.0];

/// Elements of a constant that is read at import; larger ones stay in the file.
pub(super) const LARGEST_CONSTANT: usize = 1 << 16;

/// What the elements of a tensor mean. All are computed in single precision, which has integers up to 2²⁴.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementKind {
    Float,
    Int,
    Bool,
}

impl ElementKind {
    pub fn of(dtype: DType) -> ElementKind {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => ElementKind::Float,
            DType::Bool => ElementKind::Bool,
            _ => ElementKind::Int,
        }
    }
}

/// A value of the graph.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// ElementKind that are known at import, such as shapes.
    Constant(Constant),
    /// A weight in the file, not read yet.
    Weight(Weight),
    /// A tensor that the model computes.
    Tensor(Computed),
}

/// ElementKind known at import, in row-major order.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub dims: Vec<usize>,
    pub kind: ElementKind,
    pub numbers: Arc<Vec<f64>>,
    /// The numbers for the second of [`BATCHES`], if they depend on the batch; the others are for the first.
    pub other: Option<Arc<Vec<f64>>>,
}

/// A weight in the file.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub name: String,
    pub tensor: Tensor,
    /// Its dimensions as stored, possibly reshaped.
    pub stored: Vec<usize>,
    /// Axis `i` is stored axis `order[i]`.
    pub order: Vec<usize>,
}

/// A tensor that the model computes.
#[derive(Clone, Debug)]
pub(super) struct Computed {
    /// None while constants are folded.
    pub symbol: Option<SymbolicTensor>,
    /// Its value in the graph by which shapes are inferred.
    pub value: ValueId,
    /// Axis `i` in memory is axis `order[i]` of the file's graph: images have their channels last.
    pub order: Vec<usize>,
    pub kind: ElementKind,
    /// Whether it is an input of the model, which layers receive cast to float unless they read integers.
    pub raw: bool,
}

impl Constant {
    pub fn new(kind: ElementKind, dims: Vec<usize>, numbers: Vec<f64>) -> Constant {
        Constant { dims, kind, numbers: Arc::new(numbers), other: None }
    }

    pub fn scalar(kind: ElementKind, number: f64) -> Constant {
        Constant::new(kind, Vec::new(), vec![number])
    }

    /// A list of dimensions, as `Shape` gives it.
    pub fn of_dims(dims: &[Dim]) -> Constant {
        let at = |batch: f64| dims.iter().map(|dim| dim.factor() as f64 * if dim.is_batch() { batch } else { 1.0 }).collect::<Vec<f64>>();
        let list = Constant::new(ElementKind::Int, vec![dims.len()], at(BATCHES[0]));
        let depends = dims.iter().any(|dim| dim.is_batch());
        Constant { other: depends.then(|| Arc::new(at(BATCHES[1]))), ..list }
    }

    /// The same for one size of the batch.
    pub fn in_world(&self, world: usize) -> Constant {
        let numbers = match (&self.other, world) {
            (Some(other), 1) => Arc::clone(other),
            _ => Arc::clone(&self.numbers),
        };
        Constant { numbers, other: None, ..self.clone() }
    }

    /// The numbers, if they do not depend on the batch.
    pub fn fixed(&self) -> Found<&[f64]> {
        match &self.other {
            Some(other) if other != &self.numbers => Err("a number depends on the size of the batch".to_string()),
            _ => Ok(&self.numbers),
        }
    }

    /// The numbers as integers.
    pub fn integers(&self) -> Found<Vec<i64>> {
        Ok(self.fixed()?.iter().map(|number| *number as i64).collect())
    }

    /// The numbers as dimensions; negative ones, such as -1, as themselves.
    pub fn extents(&self) -> Found<Vec<Result<Dim, i64>>> {
        let other = self.other.as_ref().unwrap_or(&self.numbers);
        let each = self.numbers.iter().zip(other.iter()).map(|(one, two)| {
            let factor = one / BATCHES[0];
            match one == two {
                true if *one < 0.0 => Ok(Err(*one as i64)),
                true if *one < 9e15 => Ok(Ok(Dim::fixed(*one as usize))),
                false if factor.fract() == 0.0 && factor >= 1.0 && factor * BATCHES[1] == *two => Ok(Ok(Dim::times_batch(factor as usize))),
                _ => Err(format!("a dimension of {one} is no multiple of the batch")),
            }
        });
        each.collect()
    }

    /// The only number of all elements, if they are equal.
    pub fn uniform(&self) -> Option<f64> {
        let first = *self.numbers.first()?;
        (self.other.is_none() && self.numbers.iter().all(|number| *number == first)).then_some(first)
    }
}

impl Weight {
    /// Its dimensions.
    pub fn dims(&self) -> Vec<usize> {
        self.order.iter().map(|axis| self.stored[*axis]).collect()
    }

    /// The same weight with permuted axes: axis `i` of the result is axis `order[i]`.
    pub fn permuted(&self, order: &[usize]) -> Weight {
        Weight { order: order.iter().map(|axis| self.order[*axis]).collect(), ..self.clone() }
    }

    pub fn is_plain(&self) -> bool {
        is_identity(&self.order)
    }
}

impl Value {
    /// The rank of the value's shape in the file's graph.
    pub fn rank(&self) -> usize {
        match self {
            Value::Constant(constant) => constant.dims.len(),
            Value::Weight(weight) => weight.order.len(),
            Value::Tensor(tensor) => tensor.order.len(),
        }
    }

    pub fn kind(&self) -> ElementKind {
        match self {
            Value::Constant(constant) => constant.kind,
            Value::Weight(weight) => ElementKind::of(weight.tensor.dtype),
            Value::Tensor(tensor) => tensor.kind,
        }
    }
}

impl Computed {
    /// The same tensor whose elements mean something else.
    pub fn of(self, kind: ElementKind) -> Computed {
        Computed { kind, ..self }
    }

    /// The same tensor, whose axes in memory are in this order.
    pub fn laid_out(self, order: Vec<usize>) -> Computed {
        Computed { order, ..self }
    }

    /// The axis in memory of an axis.
    pub fn place(&self, axis: usize) -> usize {
        self.order.iter().position(|known| *known == axis).unwrap_or(axis)
    }
}

impl From<Computed> for Value {
    fn from(tensor: Computed) -> Value {
        Value::Tensor(tensor)
    }
}

impl From<Constant> for Value {
    fn from(constant: Constant) -> Value {
        Value::Constant(constant)
    }
}

pub(super) fn is_identity(order: &[usize]) -> bool {
    order.iter().enumerate().all(|(i, axis)| i == *axis)
}

/// The order in which `order` is undone.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, from)| inverse[*from] = to);
    inverse
}

/// The number of elements of these extents.
pub(super) fn count_of<'a>(extents: impl IntoIterator<Item = &'a usize>) -> usize {
    extents.into_iter().fold(1, |all: usize, extent| all.saturating_mul(*extent))
}

/// An axis that may count from the end.
pub(super) fn axis_of(axis: i64, rank: usize) -> Found<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(from_start).ok().filter(|axis| *axis < rank).ok_or_else(|| format!("there is no axis {axis} of {rank}"))
}
