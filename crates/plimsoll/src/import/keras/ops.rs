//! Operations that stand as nodes in a Keras graph: `x + y`, `x[:, 0]`, `keras.ops.relu(x)`.

use super::json::{Fields, Parsed};
use super::{Importer, KerasCall, Outputs, Symbol};
use crate::nn::*;
use serde_json::Value;

impl Importer {
    pub(super) fn op(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<Outputs> {
        let Some(first) = call.inputs.first() else { return Err(f.problem("reads no tensor")) };
        let (x, tensors) = (first.tensor, call.inputs.iter().map(|input| input.tensor).collect::<Vec<_>>());
        let tensor = match f.class {
            "Add" | "Subtract" | "Multiply" | "Divide" | "TrueDivide" | "Maximum" | "Minimum" if tensors.len() == 1 => {
                self.with_number(f, call, full)?
            }
            "Add" => self.plain(full, Add, &tensors),
            "Subtract" => self.plain(full, Subtract, &tensors),
            "Multiply" => self.plain(full, Multiply, &tensors),
            "Maximum" => self.plain(full, Maximum, &tensors),
            "Minimum" => self.plain(full, Minimum, &tensors),
            "Square" => self.plain(full, Multiply, &[x, x]),
            "Negative" => self.plain(full, Rescaling::new(-1.0), &[x]),
            "Concatenate" => {
                let axis = argument(f, call, "axis", 1).as_i64().unwrap_or(-1);
                self.plain(full, ConcatenateAlong::new(axis), &tensors)
            }
            "Cast" | "Identity" => x,
            // Masks: of tokens, or of steps with any feature that counts, which one layer computes.
            "NotEqual" if tensors.len() == 1 => {
                let value = call.args.get(1).and_then(Value::as_f64).unwrap_or(0.0);
                self.plain(full, ComputeMask::new(value as f32), &[x])
            }
            "Any" => x,
            "Gelu" => {
                let exact = argument(f, call, "approximate", 1) == &Value::Bool(false);
                self.plain(full, if exact { Activation::Gelu } else { Activation::GeluTanh }, &[x])
            }
            "Softmax" | "LogSoftmax" => {
                let axis = argument(f, call, "axis", 1).as_i64().unwrap_or(-1);
                if axis != -1 {
                    return Err(f.problem(format!("softmax along the axis {axis}; the last is imported")));
                }
                self.plain(full, if f.class == "Softmax" { Activation::Softmax } else { Activation::LogSoftmax }, &[x])
            }
            "LeakyRelu" => {
                let slope = argument(f, call, "negative_slope", 1).as_f64().unwrap_or(0.2);
                self.plain(full, LeakyRelu::new(slope as f32), &[x])
            }
            "Elu" => self.plain(full, Elu::new(argument(f, call, "alpha", 1).as_f64().unwrap_or(1.0) as f32), &[x]),
            "Exp" => self.plain(full, Activation::Exponential, &[x]),
            "Reshape" => {
                let shape = argument(f, call, "newshape", 1);
                let Value::Array(dims) = shape else { return Err(f.problem(format!("the shape {shape} is not understood"))) };
                let row = dims.iter().skip(1).map(|dim| usize::try_from(dim.as_i64().unwrap_or(-1)).ok()).collect::<Vec<_>>();
                self.plain(full, Reshape::inferred(row), &[x])
            }
            "ExpandDims" => {
                let axis = argument(f, call, "axis", 1).as_i64().ok_or_else(|| f.problem("has no axis"))?;
                self.plain(full, ExpandDims::new(axis), &[x])
            }
            "Transpose" => {
                let axes = argument(f, call, "axes", 1);
                let list: Option<Vec<usize>> =
                    axes.as_array().and_then(|list| list.iter().map(|axis| axis.as_u64().map(|axis| axis as usize)).collect());
                match list.as_deref() {
                    Some([0, rest @ ..]) => self.plain(full, Permute::new(rest), &[x]),
                    _ => return Err(f.problem(format!("the axes {axes} move the batch"))),
                }
            }
            "Mean" | "Max" => {
                let axis = argument(f, call, "axis", 1);
                let axes: Vec<i64> = axis
                    .as_array()
                    .map_or_else(|| vec![axis.as_i64().unwrap_or(0)], |list| list.iter().filter_map(Value::as_i64).collect());
                if axes != [1] && axes != [1, 2] {
                    return Err(f.problem(format!("reduces the axes {axis}; those between batch and channels are imported")));
                }
                if argument(f, call, "keepdims", 2) == &Value::Bool(true) {
                    let pooled = match f.class {
                        "Mean" => self.plain(&format!("{full}/pool"), GlobalAveragePool, &[x]),
                        _ => self.plain(&format!("{full}/pool"), GlobalMaxPool, &[x]),
                    };
                    self.plain(full, ExpandDims::new(1).count(axes.len()), &[pooled])
                } else if f.class == "Mean" {
                    self.plain(full, GlobalAveragePool, &[x])
                } else {
                    self.plain(full, GlobalMaxPool, &[x])
                }
            }
            "GetItem" => self.get_item(f, call, full)?,
            class => {
                let activation =
                    f.activation_named(&super::naming::snake_case(class)).map_err(|_| f.problem("there is no such operation here"))?;
                self.plain(full, activation, &[x])
            }
        };
        Ok(vec![Symbol { tensor, mask: first.mask }])
    }

    /// An operation of a tensor and a number.
    fn with_number(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<SymbolicTensor> {
        let x = call.inputs[0].tensor;
        let number = |index: usize| call.args.get(index).and_then(Value::as_f64);
        let (value, tensor_first) = match (number(0), number(1)) {
            (None, Some(value)) => (value as f32, true),
            (Some(value), None) => (value as f32, false),
            // `x + x` has one tensor twice.
            _ => return Err(f.problem("its other operand is neither a tensor nor a number")),
        };
        let rescaling = match (f.class, tensor_first) {
            ("Add", _) => Rescaling::new(1.0).offset(value),
            ("Subtract", true) => Rescaling::new(1.0).offset(-value),
            ("Subtract", false) => Rescaling::new(-1.0).offset(value),
            ("Multiply", _) => Rescaling::new(value),
            ("Divide" | "TrueDivide", true) => Rescaling::new(1.0 / value),
            ("Maximum", _) if value == 0.0 => return Ok(self.plain(full, Activation::Relu, &[x])),
            _ => return Err(f.problem(format!("with the number {value} has no counterpart"))),
        };
        Ok(self.plain(full, rescaling, &[x]))
    }

    /// `x[:, 2:5, ..., 0]`.
    fn get_item(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<SymbolicTensor> {
        let key = call.args.get(1).or(call.kwargs.get("key")).unwrap_or(&Value::Null);
        let entries = match key {
            Value::Array(list) => list.iter().collect::<Vec<_>>(),
            single => vec![single],
        };
        if entries.iter().any(|entry| entry["class_name"] == "__ellipsis__") {
            return Err(f.problem("`...` in slices is not imported; write the axes out"));
        }
        let mut tensor = call.inputs[0].tensor;
        // From the last axis to the first, so that removed axes do not shift others.
        for (axis, entry) in entries.into_iter().enumerate().rev() {
            let name = |last: bool| if last { full.to_string() } else { format!("{full}/axis{axis}") };
            let layer = if let Some(index) = entry.as_i64() {
                Slicing::new(axis as i64, index).length(1).squeeze()
            } else if entry["class_name"] == "__slice__" {
                let bound = |key: &str| entry["config"][key].as_i64();
                let (start, stop) = (bound("start").unwrap_or(0), bound("stop"));
                if bound("step").is_some_and(|step| step != 1) {
                    return Err(f.problem("slices with steps are not imported"));
                }
                let length = match stop {
                    None if start == 0 => continue,
                    None => None,
                    Some(stop) if (start >= 0) == (stop >= 0) && stop > start => Some((stop - start) as usize),
                    Some(stop) => return Err(f.problem(format!("the slice {start}:{stop} is not imported"))),
                };
                let slice = Slicing::new(axis as i64, start);
                length.map_or(slice.clone(), |length| slice.length(length))
            } else {
                return Err(f.problem(format!("the index {entry} is not imported")));
            };
            if axis == 0 {
                return Err(f.problem("slices of the batch are not imported"));
            }
            let count = self.slices_so_far(full);
            tensor = self.plain(&if count == 0 { name(true) } else { name(false) }, layer, &[tensor]);
        }
        Ok(tensor)
    }

    fn slices_so_far(&self, full: &str) -> usize {
        usize::from(self.called.contains_key(full))
    }
}

/// An argument of an operation: of the node's configuration, by name, or by position.
fn argument<'a>(f: &Fields<'a>, call: &KerasCall<'a>, name: &str, position: usize) -> &'a Value {
    let configured = f.config.get(name).filter(|value| !value.is_null());
    configured.or(call.kwargs.get(name)).or(call.args.get(position)).unwrap_or(&Value::Null)
}
