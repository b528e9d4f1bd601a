//! Nodes whose inputs are all known at import: their results are computed there, by the same layers in double
//! precision.

use super::call::NodeCall;
use super::ops::Mapping;
use super::values::{Constant, Found, LARGEST_CONSTANT, Value};
use super::{OnnxImporter, ops};
use crate::import::ImportedWeights;
use plimsoll_core::Graph;
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference;
use std::collections::{HashMap, HashSet};

/// Elements of all tensors, and operations, of a node that is computed at import.
const MOST_ELEMENTS: usize = 1 << 20;
const MOST_OPERATIONS: u64 = 1 << 26;

impl OnnxImporter {
    /// The results of a node whose inputs are constants; none if it has others, or is computed at every step.
    pub(super) fn folded(&mut self, call: &NodeCall<'_>, mapping: Mapping) -> Found<Option<Vec<Value>>> {
        if self.net.is_none() || call.inputs.is_empty() || !ops::is_folded(&call.node.op) {
            return Ok(None);
        }
        let constants: Option<Vec<Option<Constant>>> = call
            .inputs
            .iter()
            .map(|input| match input {
                None => Some(None),
                Some(Value::Constant(constant)) => Some(Some(constant.clone())),
                Some(_) => None,
            })
            .collect();
        let Some(constants) = constants else { return Ok(None) };
        let elements: usize = constants.iter().flatten().map(|constant| constant.numbers.len()).sum();
        if elements > LARGEST_CONSTANT {
            return Ok(None);
        }
        let depends = constants.iter().flatten().any(|constant| constant.other.is_some());
        let Some(first) = self.evaluated(call, mapping, &constants, 0)? else { return Ok(None) };
        let mut outputs = Vec::with_capacity(first.len());
        let second = if depends { self.evaluated(call, mapping, &constants, 1)? } else { None };
        if depends && second.is_none() {
            return Ok(None);
        }
        for (index, mut output) in first.into_iter().enumerate() {
            if let Some(second) = &second {
                let other = &second[index];
                if other.dims != output.dims {
                    return Err("the shape of a constant depends on the size of the batch".to_string());
                }
                output.other = (other.numbers != output.numbers).then(|| other.numbers.clone());
            }
            outputs.push(self.counted(output)?);
        }
        Ok(Some(outputs))
    }

    /// The results for one size of the batch; none if they are too large to be kept.
    fn evaluated(&self, call: &NodeCall<'_>, mapping: Mapping, inputs: &[Option<Constant>], world: usize) -> Found<Option<Vec<Constant>>> {
        let mut scratch = OnnxImporter {
            net: None,
            graph: Graph::new(),
            held: Vec::new(),
            values: HashMap::new(),
            uses: HashMap::new(),
            weights: ImportedWeights::default(),
            weight_layers: HashMap::new(),
            reordered: HashMap::new(),
            names: HashSet::new(),
            current: self.current.clone(),
            file_batch: None,
            fused_bias: HashMap::new(),
            split_attentions: HashMap::new(),
            constants_kept: 0,
            opset: self.opset,
        };
        let inputs = inputs.iter().map(|input| input.as_ref().map(|constant| constant.in_world(world).into())).collect();
        let outputs = mapping(&mut scratch, &NodeCall { node: call.node, opset: call.opset, inputs })?;
        let mut computed = Vec::with_capacity(outputs.len());
        for output in outputs {
            computed.push(match output {
                Value::Constant(constant) => Err(constant),
                other => {
                    let tensor = scratch.computed(&other)?;
                    Ok(scratch.plain(&tensor)?)
                }
            });
        }
        let size = |value: &plimsoll_core::ValueId| scratch.graph.shape(*value).elements().bind(1);
        let largest = computed.iter().flatten().map(|tensor| size(&tensor.value)).max().unwrap_or(0);
        let all = scratch.graph.nodes().flat_map(|(_, node)| &node.outputs).fold(0, |all: usize, value| all.saturating_add(size(value)));
        if largest > LARGEST_CONSTANT || all > MOST_ELEMENTS || scratch.graph.flops(1) > MOST_OPERATIONS {
            return Ok(None);
        }
        let outcome = reference::run(&scratch.graph, 1, &scratch.held, &[], &[], &StepRandom::default());
        let constant = |output: Result<super::Computed, Constant>| match output {
            Err(constant) => constant,
            Ok(tensor) => {
                let dims = scratch.graph.shape(tensor.value).bind(1);
                Constant::new(tensor.kind, dims, outcome.value(tensor.value).to_vec())
            }
        };
        Ok(Some(computed.into_iter().map(constant).collect()))
    }
}
