//! The TFLite graph while it grows: tensors, operators, constants, and which tensor a value is.

use crate::export::recipe::Recipe;
use plimsoll_core::{DType, Dim, Graph, Shape, ValueId};
use plimsoll_formats::tensor::{DType as Stored, Tensor};
use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, OptionValue, TfliteTensor, type_code};
use std::collections::HashMap;

/// A tensor of the graph, by its index.
pub(super) type TensorIndex = usize;

/// Options of an operator by name.
pub(super) type OptionList<'a> = &'a [(&'static str, OptionValue)];

pub(super) struct TfliteBuilder<'a> {
    pub graph: &'a Graph,
    pub tensors: Vec<TfliteTensor>,
    pub operators: Vec<Operator>,
    /// The elements of streamed tensors by name.
    pub recipes: HashMap<String, Recipe>,
    /// The shape of each tensor, with the batch.
    shapes: Vec<Shape>,
    places: HashMap<ValueId, TensorIndex>,
    /// How often a name was given.
    taken: HashMap<String, usize>,
    known: HashMap<String, TensorIndex>,
    /// The layer whose operators are added.
    pub scope: String,
    /// Whether the batch is always one row: recurrent operators have states of a fixed size.
    pub one_row: bool,
    batch: Option<TensorIndex>,
}

impl<'a> TfliteBuilder<'a> {
    pub fn new(graph: &'a Graph, one_row: bool) -> TfliteBuilder<'a> {
        TfliteBuilder {
            graph,
            tensors: Vec::new(),
            operators: Vec::new(),
            recipes: HashMap::new(),
            shapes: Vec::new(),
            places: HashMap::new(),
            taken: HashMap::new(),
            known: HashMap::new(),
            scope: String::new(),
            one_row,
            batch: None,
        }
    }

    /// A name that nothing else has.
    fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_string();
        loop {
            let count = self.taken.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 {
                return name;
            }
            name = format!("{wanted}_{}", *count - 1);
        }
    }

    /// Adds a tensor that is computed.
    pub fn tensor(&mut self, wanted: &str, dtype: Stored, shape: Shape) -> TensorIndex {
        let name = self.unique(wanted);
        let mut tensor = TfliteTensor::computed(&name, dtype, shape.bind(1).iter().map(|dim| *dim as i32).collect());
        if shape.has_batch() && !self.one_row {
            tensor.signature = shape.dims().iter().map(|dim| extent(*dim)).collect();
        }
        self.tensors.push(tensor);
        self.shapes.push(shape);
        self.tensors.len() - 1
    }

    pub fn shape(&self, tensor: TensorIndex) -> &Shape {
        &self.shapes[tensor]
    }

    /// Adds an operator with one result of the type f32.
    pub fn op(&mut self, op: BuiltinOp, inputs: &[TensorIndex], options: OptionList<'_>, shape: Shape) -> TensorIndex {
        self.op_of(op, inputs, options, &[(Stored::F32, shape)]).remove(0)
    }

    /// Adds an operator with results of these types.
    pub fn op_of(
        &mut self,
        op: BuiltinOp,
        inputs: &[TensorIndex],
        options: OptionList<'_>,
        results: &[(Stored, Shape)],
    ) -> Vec<TensorIndex> {
        let wanted = if self.scope.is_empty() { op.name().to_string() } else { format!("{}/{}", self.scope, op.name()) };
        let outputs: Vec<TensorIndex> = results.iter().map(|(dtype, shape)| self.tensor(&wanted, *dtype, shape.clone())).collect();
        self.operators.push(Operator {
            inputs: inputs.iter().map(|input| *input as i32).collect(),
            outputs: outputs.iter().map(|output| *output as i32).collect(),
            options: options.iter().cloned().collect(),
            ..Operator::new(op, 1)
        });
        outputs
    }

    /// A constant of integers.
    pub fn integers(&mut self, numbers: &[i32]) -> TensorIndex {
        self.integers_of(numbers, &[numbers.len()])
    }

    /// A constant of integers of a shape; no dimensions are a scalar.
    pub fn integers_of(&mut self, numbers: &[i32], shape: &[usize]) -> TensorIndex {
        self.constant(Stored::I32, shape, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    /// A constant of one number.
    pub fn number(&mut self, number: f32) -> TensorIndex {
        self.constant(Stored::F32, &[], number.to_le_bytes().to_vec())
    }

    /// A small constant; equal ones are shared.
    pub fn constant(&mut self, dtype: Stored, shape: &[usize], bytes: Vec<u8>) -> TensorIndex {
        let key = format!("{dtype:?} {shape:?} {bytes:?}");
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let index = self.tensor("constant", dtype, Shape::fixed(shape.iter().copied()));
        let dims = shape.iter().map(|dim| *dim as u64).collect();
        self.tensors[index].contents = Contents::Constant(Tensor::in_memory(dtype, dims, bytes).expect("as many bytes as its shape says"));
        self.known.insert(key, index);
        index
    }

    /// A constant whose elements are written later; the same weight in the same order is shared.
    pub fn weight(&mut self, wanted: &str, shape: &[usize], recipe: Recipe) -> TensorIndex {
        let key = match &recipe {
            Recipe::Weight { name, order, scale: None, .. } => Some(format!("{name} {order:?} {shape:?}")),
            _ => None,
        };
        if let Some(known) = key.as_ref().and_then(|key| self.known.get(key)) {
            return *known;
        }
        let index = self.tensor(wanted, Stored::F32, Shape::fixed(shape.iter().copied()));
        self.tensors[index].contents = Contents::Streamed;
        self.recipes.insert(self.tensors[index].name.clone(), recipe);
        key.map(|key| self.known.insert(key, index));
        index
    }

    /// Numbers that were computed, as a constant.
    pub fn numbers(&mut self, wanted: &str, shape: &[usize], numbers: Vec<f32>) -> TensorIndex {
        self.weight(wanted, shape, Recipe::Numbers(numbers))
    }

    /// Says which tensor a value is.
    pub fn define(&mut self, value: ValueId, tensor: TensorIndex) {
        self.places.insert(value, tensor);
    }

    pub fn place(&self, value: ValueId) -> Option<TensorIndex> {
        self.places.get(&value).copied()
    }

    pub fn transpose(&mut self, tensor: TensorIndex, order: &[usize]) -> TensorIndex {
        let dims = self.shapes[tensor].dims();
        let shape = Shape::new(order.iter().map(|axis| dims[*axis]));
        let order = self.integers(&order.iter().map(|axis| *axis as i32).collect::<Vec<_>>());
        self.op(BuiltinOp::Transpose, &[tensor, order], &[], shape)
    }

    /// Reshapes; the batch is inferred.
    pub fn reshape(&mut self, tensor: TensorIndex, shape: Shape) -> TensorIndex {
        if self.shapes[tensor] == shape {
            return tensor;
        }
        let dims: Vec<i32> = shape.dims().iter().map(|dim| extent(*dim)).collect();
        let dims = self.integers(&dims);
        let dtype = self.tensors[tensor].dtype;
        self.op_of(BuiltinOp::Reshape, &[tensor, dims], &[], &[(dtype, shape)]).remove(0)
    }

    /// Elements `start..start + length` along an axis.
    pub fn slice(&mut self, tensor: TensorIndex, axis: usize, start: usize, length: usize) -> TensorIndex {
        let rank = self.shapes[tensor].rank();
        let shape = self.shapes[tensor].with(axis, Dim::fixed(length));
        let only = |number: usize| (0..rank).map(|at| if at == axis { number as i32 } else { 0 }).collect::<Vec<i32>>();
        let (begin, end, strides) = (self.integers(&only(start)), self.integers(&only(start + length)), self.integers(&vec![1; rank]));
        // All of the other axes, whatever their extents.
        let others = ((1 << rank) - 1) & !(1 << axis);
        let options = [("begin_mask", OptionValue::Int(others)), ("end_mask", OptionValue::Int(others))];
        let dtype = self.tensors[tensor].dtype;
        self.op_of(BuiltinOp::StridedSlice, &[tensor, begin, end, strides], &options, &[(dtype, shape)]).remove(0)
    }

    /// Casts to a type.
    pub fn cast(&mut self, tensor: TensorIndex, dtype: Stored) -> TensorIndex {
        let from = self.tensors[tensor].dtype;
        if from == dtype {
            return tensor;
        }
        let options = [("in_data_type", OptionValue::Byte(type_code(from))), ("out_data_type", OptionValue::Byte(type_code(dtype)))];
        let shape = self.shapes[tensor].clone();
        self.op_of(BuiltinOp::Cast, &[tensor], &options, &[(dtype, shape)]).remove(0)
    }

    /// Dimensions as a tensor of integers, computed from the batch where one of them is.
    pub fn dimensions(&mut self, dims: &[Dim]) -> TensorIndex {
        if self.one_row || !dims.iter().any(|dim| dim.is_batch()) {
            return self.integers(&dims.iter().map(|dim| dim.bind(1) as i32).collect::<Vec<_>>());
        }
        let parts: Vec<TensorIndex> = dims
            .iter()
            .map(|dim| match (dim.is_batch(), dim.factor()) {
                (false, extent) => self.integers_of(&[extent as i32], &[]),
                (true, factor) => self.rows(factor),
            })
            .collect();
        let options = [("values_count", OptionValue::Int(parts.len() as i32)), ("axis", OptionValue::Int(0))];
        self.op_of(BuiltinOp::Pack, &parts, &options, &[(Stored::I32, Shape::fixed([parts.len()]))]).remove(0)
    }

    /// The rows of the batch times a factor, as a scalar.
    fn rows(&mut self, factor: usize) -> TensorIndex {
        let rows = match self.batch {
            Some(rows) => rows,
            None => {
                // The first input: its first dimension is the batch.
                let rank = self.shapes[0].rank();
                let options = [("out_type", OptionValue::Byte(type_code(Stored::I32)))];
                let shape = self.op_of(BuiltinOp::Shape, &[0], &options, &[(Stored::I32, Shape::fixed([rank]))]).remove(0);
                let (begin, end) = (self.integers(&[0]), self.integers(&[1]));
                let options = [("shrink_axis_mask", OptionValue::Int(1))];
                let rows =
                    self.op_of(BuiltinOp::StridedSlice, &[shape, begin, end, end], &options, &[(Stored::I32, Shape::scalar())]).remove(0);
                self.batch = Some(rows);
                rows
            }
        };
        if factor == 1 {
            return rows;
        }
        let factor = self.integers_of(&[factor as i32], &[]);
        self.op_of(BuiltinOp::Mul, &[rows, factor], &[], &[(Stored::I32, Shape::scalar())]).remove(0)
    }

    /// Broadcasts to a shape.
    pub fn expand(&mut self, tensor: TensorIndex, shape: &Shape) -> TensorIndex {
        if self.shapes[tensor] == *shape {
            return tensor;
        }
        let dims = self.dimensions(shape.dims());
        let dtype = self.tensors[tensor].dtype;
        self.op_of(BuiltinOp::BroadcastTo, &[tensor, dims], &[], &[(dtype, shape.clone())]).remove(0)
    }
}

/// A dimension for `RESHAPE` and signatures: the batch is open.
fn extent(dim: Dim) -> i32 {
    if dim.is_batch() { -1 } else { dim.factor() as i32 }
}

/// The type of a value in a file, if TFLite has it for values.
pub(super) fn stored(dtype: DType) -> Option<Stored> {
    match dtype {
        DType::F32 => Some(Stored::F32),
        DType::I32 => Some(Stored::I32),
        DType::I64 => Some(Stored::I64),
        DType::U8 => Some(Stored::U8),
        _ => None,
    }
}
