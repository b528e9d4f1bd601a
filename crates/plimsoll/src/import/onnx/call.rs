//! A node with its inputs resolved, and its attributes.

use super::values::{Constant, ElementKind, Found, LARGEST_CONSTANT, Value};
use plimsoll_formats::onnx::{Attribute, Node};
use plimsoll_formats::tensor::Tensor;

/// A node, its inputs, and the version of the operator set.
pub(super) struct NodeCall<'a> {
    pub node: &'a Node,
    pub opset: i64,
    pub inputs: Vec<Option<Value>>,
}

impl NodeCall<'_> {
    /// A required input.
    pub fn input(&self, index: usize) -> Found<Value> {
        self.given(index).ok_or_else(|| format!("it has no input {index}"))
    }

    /// An optional input.
    pub fn given(&self, index: usize) -> Option<Value> {
        self.inputs.get(index).cloned().flatten()
    }

    /// All inputs, none of which is missing.
    pub fn all(&self) -> Found<Vec<Value>> {
        (0..self.inputs.len()).map(|index| self.input(index)).collect()
    }

    /// All inputs, which are as many as the operator has.
    pub fn exactly(&self, count: usize) -> Found<Vec<Value>> {
        let all = self.all()?;
        if all.len() == count { Ok(all) } else { Err(format!("it has {} inputs, not {count}", all.len())) }
    }

    /// Whether an output is used.
    pub fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(|name| !name.is_empty())
    }

    pub fn has(&self, name: &str) -> bool {
        self.node.attributes.contains_key(name)
    }

    pub fn int(&self, name: &str, usual: i64) -> Found<i64> {
        match self.node.attributes.get(name) {
            None => Ok(usual),
            Some(Attribute::Int(value)) => Ok(*value),
            Some(_) => Err(format!("its attribute `{name}` is not an integer")),
        }
    }

    pub fn flag(&self, name: &str, usual: bool) -> Found<bool> {
        Ok(self.int(name, i64::from(usual))? != 0)
    }

    pub fn float(&self, name: &str, usual: f32) -> Found<f32> {
        match self.node.attributes.get(name) {
            None => Ok(usual),
            Some(Attribute::Float(value)) => Ok(*value),
            Some(_) => Err(format!("its attribute `{name}` is not a number")),
        }
    }

    pub fn text(&self, name: &str, usual: &str) -> Found<String> {
        match self.node.attributes.get(name) {
            None => Ok(usual.to_string()),
            Some(Attribute::Text(value)) => Ok(value.clone()),
            Some(_) => Err(format!("its attribute `{name}` is not a text")),
        }
    }

    pub fn texts(&self, name: &str) -> Found<Vec<String>> {
        match self.node.attributes.get(name) {
            None => Ok(Vec::new()),
            Some(Attribute::Strings(values)) => Ok(values.clone()),
            Some(_) => Err(format!("its attribute `{name}` is not a list of texts")),
        }
    }

    pub fn floats(&self, name: &str) -> Found<Option<Vec<f32>>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Floats(values)) => Ok(Some(values.clone())),
            Some(_) => Err(format!("its attribute `{name}` is not a list of numbers")),
        }
    }

    pub fn ints(&self, name: &str) -> Found<Option<Vec<i64>>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values.clone())),
            Some(_) => Err(format!("its attribute `{name}` is not a list of integers")),
        }
    }

    /// A list of sizes, each of which is positive and sensible.
    pub fn sizes(&self, name: &str) -> Found<Option<Vec<usize>>> {
        let Some(list) = self.ints(name)? else { return Ok(None) };
        let size = |value: &i64| usize::try_from(*value).ok().filter(|size| *size <= 1 << 24);
        list.iter().map(size).collect::<Option<Vec<usize>>>().map(Some).ok_or_else(|| format!("its attribute `{name}` is {list:?}"))
    }

    /// A constant input, such as a shape.
    pub fn constant(&self, index: usize) -> Found<Option<Constant>> {
        match self.given(index) {
            None => Ok(None),
            Some(Value::Constant(constant)) => Ok(Some(constant)),
            Some(Value::Weight(weight)) if weight.is_plain() => read(&weight.tensor).map(Some),
            Some(_) => Err(format!("its input `{}` is computed by the model, but must be a constant", self.node.inputs[index])),
        }
    }

    /// A list of integers: an input since some version, an attribute before.
    pub fn integers(&self, index: usize, name: &str) -> Found<Option<Vec<i64>>> {
        match self.ints(name)? {
            Some(list) => Ok(Some(list)),
            None => self.constant(index)?.map(|constant| constant.integers()).transpose(),
        }
    }
}

/// The elements of a small tensor.
pub(super) fn read(tensor: &Tensor) -> Found<Constant> {
    if tensor.shape.iter().any(|dim| *dim > 1 << 32) || tensor.shape.len() > 64 {
        return Err(format!("a constant has the shape {:?}", tensor.shape));
    }
    let dims = tensor.shape.iter().map(|dim| *dim as usize).collect();
    let kind = ElementKind::of(tensor.dtype);
    let limit = LARGEST_CONSTANT as u64;
    let numbers = match kind {
        ElementKind::Int => tensor.integers(limit).map(|numbers| numbers.into_iter().map(|number| number as f64).collect()),
        _ => tensor.numbers(limit),
    };
    Ok(Constant::new(kind, dims, numbers.map_err(|error| error.to_string())?))
}
