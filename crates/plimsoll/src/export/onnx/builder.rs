//! The ONNX graph while it grows: nodes, names, initializers, and the layouts in which values exist.

use super::Recipe;
use plimsoll_core::{DType, Graph, Shape, ValueId};
use plimsoll_formats::onnx::{Attribute, Node, WrittenTensor, code_of};
use plimsoll_formats::tensor::{DType as Stored, Tensor};
use std::collections::{BTreeMap, HashMap};

/// Channels first: the axes of `[n, h, w, c]` in the order of ONNX.
pub(super) const TO_FIRST: [usize; 4] = [0, 3, 1, 2];

/// Channels last again.
pub(super) const TO_LAST: [usize; 4] = [0, 2, 3, 1];

/// Where an axis of `[n, h, w, c]` is with channels first.
pub(super) const FIRST_AXIS: [usize; 4] = [0, 2, 3, 1];

/// The order of the axes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ImageLayout {
    /// As in the network: channels last.
    Plain,
    /// As convolutions of ONNX want it: channels first.
    First,
}

/// The names of a value, by layout.
#[derive(Clone, Debug, Default)]
pub(super) struct ValuePlace {
    plain: Option<String>,
    first: Option<String>,
}

pub(super) struct GraphBuilder<'a> {
    pub graph: &'a Graph,
    pub nodes: Vec<Node>,
    /// Small constants of the graph, such as shapes and axes.
    pub constants: BTreeMap<String, Tensor>,
    pub weights: Vec<(WrittenTensor, Recipe)>,
    places: HashMap<ValueId, ValuePlace>,
    /// How often a name was given.
    taken: HashMap<String, usize>,
    known: HashMap<String, String>,
    /// The layer whose nodes are added.
    pub scope: String,
    batch: Option<String>,
}

impl<'a> GraphBuilder<'a> {
    pub fn new(graph: &'a Graph) -> GraphBuilder<'a> {
        GraphBuilder {
            graph,
            nodes: Vec::new(),
            constants: BTreeMap::new(),
            weights: Vec::new(),
            places: HashMap::new(),
            taken: HashMap::new(),
            known: HashMap::new(),
            scope: String::new(),
            batch: None,
        }
    }

    /// A name that nothing else has.
    pub fn unique(&mut self, wanted: &str) -> String {
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

    /// Adds a node with one output.
    pub fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)]) -> String {
        self.node_of(op, inputs, attributes, 1).remove(0)
    }

    /// Adds a node with several outputs.
    pub fn node_of(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute)], outputs: usize) -> Vec<String> {
        let wanted = if self.scope.is_empty() { op.to_string() } else { format!("{}/{op}", self.scope) };
        let name = self.unique(&wanted);
        let outputs: Vec<String> =
            (0..outputs).map(|i| self.unique(&if i == 0 { format!("{name}:0") } else { format!("{name}:{i}") })).collect();
        self.nodes.push(Node {
            name,
            op: op.to_string(),
            domain: String::new(),
            inputs: inputs.iter().map(|input| input.to_string()).collect(),
            outputs: outputs.clone(),
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
        });
        outputs
    }

    /// A constant of integers.
    pub fn integers(&mut self, numbers: &[i64]) -> String {
        self.integers_of(numbers, &[numbers.len() as u64])
    }

    /// A constant of integers of a shape; no dimensions are a scalar.
    pub fn integers_of(&mut self, numbers: &[i64], shape: &[u64]) -> String {
        self.constant(Stored::I64, shape, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    /// A constant of one number.
    pub fn number(&mut self, number: f32) -> String {
        self.constant(Stored::F32, &[], number.to_le_bytes().to_vec())
    }

    /// A small constant; equal ones are shared.
    pub fn constant(&mut self, dtype: Stored, shape: &[u64], bytes: Vec<u8>) -> String {
        let key = format!("{dtype:?} {shape:?} {bytes:?}");
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let name = self.unique("constant");
        let tensor = Tensor::in_memory(dtype, shape.to_vec(), bytes).expect("as many bytes as its shape says");
        self.constants.insert(name.clone(), tensor);
        self.known.insert(key, name.clone());
        name
    }

    /// An initializer whose elements are written later; the same recipe under the same key is shared.
    pub fn weight(&mut self, wanted: &str, shape: &[usize], recipe: Recipe) -> String {
        let key = match &recipe {
            Recipe::Weight { name, order, scale: None, .. } => Some(format!("{name} {order:?} {shape:?}")),
            _ => None,
        };
        if let Some(known) = key.as_ref().and_then(|key| self.known.get(key)) {
            return known.clone();
        }
        let name = self.unique(wanted);
        let shape = shape.iter().map(|dim| *dim as u64).collect();
        self.weights.push((WrittenTensor { name: name.clone(), dtype: Stored::F32, shape }, recipe));
        key.map(|key| self.known.insert(key, name.clone()));
        name
    }

    /// Numbers that were computed, as an initializer.
    pub fn numbers(&mut self, wanted: &str, shape: &[usize], numbers: Vec<f32>) -> String {
        self.weight(wanted, shape, Recipe::Numbers(numbers))
    }

    /// Names a value.
    pub fn define(&mut self, value: ValueId, layout: ImageLayout, name: String) {
        let place = self.places.entry(value).or_default();
        match layout {
            ImageLayout::Plain => place.plain = Some(name),
            ImageLayout::First => place.first = Some(name),
        }
    }

    /// Gives a value the names of another.
    pub fn alias(&mut self, value: ValueId, of: ValueId) {
        let place = self.places.get(&of).cloned().unwrap_or_default();
        self.places.insert(value, place);
    }

    pub fn is_defined(&self, value: ValueId) -> bool {
        self.places.contains_key(&value)
    }

    /// The layout in which a value exists already; channels first only if that is the only one.
    pub fn layout_of(&self, value: ValueId) -> ImageLayout {
        match self.places.get(&value) {
            Some(ValuePlace { plain: None, first: Some(_) }) => ImageLayout::First,
            _ => ImageLayout::Plain,
        }
    }

    /// The name of a value in a layout; transposed once if it is not there.
    pub fn read(&mut self, value: ValueId, layout: ImageLayout) -> String {
        let place = self.places.get(&value).cloned().unwrap_or_default();
        let (wanted, other, order) = match layout {
            ImageLayout::Plain => (place.plain, place.first, TO_LAST),
            ImageLayout::First => (place.first, place.plain, TO_FIRST),
        };
        if let Some(name) = wanted {
            return name;
        }
        let other = other.expect("values are defined before they are read");
        let name = match self.one_pixel(value) {
            // The order of the elements is the same.
            true => {
                let dims = self.graph.shape(value).dims();
                let order = if layout == ImageLayout::Plain { [0, 1, 2, 3] } else { TO_FIRST };
                let shape: Vec<i64> = order.iter().map(|axis| extent(dims[*axis])).collect();
                let shape = self.integers(&shape);
                self.node("Reshape", &[&other, &shape], &[])
            }
            false => self.transpose(&other, &order),
        };
        self.define(value, layout, name.clone());
        name
    }

    /// The name of a value in any layout, where the order of elements is the same in both.
    pub fn read_any(&mut self, value: ValueId) -> String {
        match self.one_pixel(value) {
            true => self.read(value, self.layout_of(value)),
            false => self.plain(value),
        }
    }

    /// The name of a value in the network's own layout.
    pub fn plain(&mut self, value: ValueId) -> String {
        self.read(value, ImageLayout::Plain)
    }

    /// Whether images have one pixel.
    pub fn one_pixel(&self, value: ValueId) -> bool {
        matches!(self.graph.shape(value).dims(), [_, h, w, _] if h.as_fixed() == Some(1) && w.as_fixed() == Some(1))
    }

    pub fn transpose(&mut self, name: &str, order: &[usize]) -> String {
        let order = order.iter().map(|axis| *axis as i64).collect();
        self.node("Transpose", &[name], &[("perm", Attribute::Ints(order))])
    }

    /// Reshapes to a shape of the network; the batch is inferred.
    pub fn reshape(&mut self, name: &str, shape: &Shape) -> String {
        let dims: Vec<i64> = shape.dims().iter().map(|dim| extent(*dim)).collect();
        self.reshape_to(name, &dims)
    }

    /// Reshapes; -1 is inferred.
    pub fn reshape_to(&mut self, name: &str, dims: &[i64]) -> String {
        let dims = self.integers(dims);
        self.node("Reshape", &[name, &dims], &[])
    }

    /// Elements `start..end` along an axis.
    pub fn slice(&mut self, name: &str, axis: usize, start: usize, end: usize) -> String {
        let (starts, ends, axes) = (self.integers(&[start as i64]), self.integers(&[end as i64]), self.integers(&[axis as i64]));
        self.node("Slice", &[name, &starts, &ends, &axes], &[])
    }

    /// Casts to a type.
    pub fn cast(&mut self, name: &str, dtype: Stored) -> String {
        self.node("Cast", &[name], &[("to", Attribute::Int(code_of(dtype)))])
    }

    /// The rows of the batch times a factor, as a tensor of one element.
    pub fn batch(&mut self, factor: usize) -> String {
        let rows = match &self.batch {
            Some(rows) => rows.clone(),
            None => {
                let (id, _) =
                    self.graph.nodes().find(|(_, node)| matches!(node.op, plimsoll_core::Op::Input(_))).expect("models have inputs");
                let input = self.plain(self.graph.node(id).outputs[0]);
                let scope = std::mem::take(&mut self.scope);
                let rows = self.node("Shape", &[&input], &[("start", Attribute::Int(0)), ("end", Attribute::Int(1))]);
                self.scope = scope;
                self.batch = Some(rows.clone());
                rows
            }
        };
        if factor == 1 {
            return rows;
        }
        let factor = self.integers(&[factor as i64]);
        self.node("Mul", &[&rows, &factor], &[])
    }

    /// Broadcasts a value of the shape `from` to the shape `to`, in the same layout.
    pub fn expand(&mut self, name: &str, from: &[plimsoll_core::Dim], to: &[plimsoll_core::Dim]) -> String {
        // An extent of 1 keeps what is there.
        let missing = to.len() - from.len();
        let there = |axis: usize| axis >= missing && from[axis - missing] == to[axis];
        let new_batch = (0..to.len()).find(|axis| to[*axis].is_batch() && !there(*axis));
        let fixed = |axis: usize| if there(axis) || to[axis].is_batch() { 1 } else { to[axis].factor() as i64 };
        let shape = match new_batch {
            None => self.integers(&(0..to.len()).map(fixed).collect::<Vec<_>>()),
            Some(at) => {
                let (before, after) =
                    (self.integers(&(0..at).map(fixed).collect::<Vec<_>>()), (at + 1..to.len()).map(fixed).collect::<Vec<_>>());
                let (rows, after) = (self.batch(to[at].factor()), self.integers(&after));
                self.node("Concat", &[&before, &rows, &after], &[("axis", Attribute::Int(0))])
            }
        };
        self.node("Expand", &[name, &shape], &[])
    }
}

/// A dimension for `Reshape`: the batch is inferred.
pub(super) fn extent(dim: plimsoll_core::Dim) -> i64 {
    if dim.is_batch() { -1 } else { dim.factor() as i64 }
}

/// The type of a value in a file.
pub(super) fn stored(dtype: DType) -> Stored {
    match dtype {
        DType::F32 => Stored::F32,
        DType::F64 => Stored::F64,
        DType::F16 => Stored::F16,
        DType::BF16 => Stored::BF16,
        DType::I32 => Stored::I32,
        DType::I64 => Stored::I64,
        DType::U8 => Stored::U8,
        DType::Bool => Stored::Bool,
    }
}
