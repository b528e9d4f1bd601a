//! Attention of Keras.

use super::KerasCall;
use super::json::{Fields, Parsed};
use super::layers::{Assemble, Built, Reads};
use crate::import::Assembly;
use crate::nn::MultiHeadAttention;
use plimsoll_formats::tensor::Tensor;
use serde_json::Value;

/// `MultiHeadAttention`: projections of query, key and value are one weight here.
pub(super) fn attention(f: &Fields<'_>, call: &KerasCall<'_>, inference: bool) -> Parsed<Built> {
    let (heads, depth, bias) = (f.count("num_heads")?, f.count("key_dim")?, f.flag("use_bias", true)?);
    if f.count_or("value_dim", depth)? != depth {
        return Err(f.problem("`value_dim` differs from `key_dim`, which is not imported"));
    }
    for key in ["output_shape", "attention_axes"] {
        let plain = match f.get(key) {
            Value::Null => true,
            Value::Array(list) => key == "attention_axes" && list.len() == 1 && list[0] == 1,
            _ => false,
        };
        if !plain {
            return Err(f.problem(format!("`{key}` is not imported")));
        }
    }
    for key in ["attention_mask", "return_attention_scores"] {
        if !matches!(call.kwargs[key], Value::Null | Value::Bool(false)) {
            return Err(f.problem(format!("`{key}` of a call is not imported")));
        }
    }
    let (query, value) = match call.inputs[..] {
        [query, value] => (query, value),
        [query, value, key] if key.tensor == value.tensor => (query, value),
        _ => return Err(f.problem("different tensors for key and value are not imported")),
    };
    let layer = MultiHeadAttention::new(heads).depth(depth).bias(bias);
    let layer = if inference { layer } else { layer.dropout(f.number_or("dropout", 0.0)? as f32) };
    let layer = if call.kwargs["use_causal_mask"] == Value::Bool(true) { layer.causal() } else { layer };
    let cross = query.tensor != value.tensor;
    let layer = if cross { layer.cross() } else { layer };
    let mut reads = vec![query.tensor];
    reads.extend(cross.then_some(value.tensor));
    reads.extend(value.mask);
    let layer = if value.mask.is_some() { layer.masked() } else { layer };

    let each = 1 + usize::from(bias);
    let slots = ["query", "key", "value", "output"].into_iter();
    let slots = slots.flat_map(|part| (0..each).map(move |index| (format!("{part}_dense/vars/{index}"), true))).collect();
    let assemble: Assemble = Box::new(move |tensors| {
        let names = ["kernel", "bias"];
        let mut weights = Vec::new();
        for (what, name) in names.into_iter().enumerate().take(each) {
            let [query, key, value, output] = [0, 1, 2, 3].map(|part: usize| tensors[part * each + what].clone());
            let rows = |tensor: &Tensor| if what == 0 { tensor.shape.first().copied().unwrap_or(1) } else { 1 };
            if cross {
                weights.push((format!("key_value_{name}"), Assembly::Columns { rows: rows(&key), parts: vec![key, value] }));
                weights.push((format!("query_{name}"), Assembly::Whole(query)));
            } else {
                let joined = Assembly::Columns { rows: rows(&query), parts: vec![query, key, value] };
                weights.push((format!("query_key_value_{name}"), joined));
            }
            weights.push((format!("output_{name}"), Assembly::Whole(output)));
        }
        weights
    });
    Ok(Built { slots, assemble, reads: Reads::These(reads), passes_mask: true, ..Built::plain(layer) })
}
