//! Recurrent layers of Keras.

use super::json::{Fields, Parsed};
use super::layers::{Assemble, Built, Reads};
use super::{KerasCall, Symbol};
use crate::import::Assembly;
use crate::nn::{Activation, Bidirectional, Gru, Lstm, SimpleRnn, SymbolicTensor};
use plimsoll_formats::tensor::Tensor;

/// A recurrent layer, ready to be wrapped.
enum RecurrentLayer {
    Lstm(Lstm),
    Gru(Gru),
    Simple(SimpleRnn),
}

fn recurrent_layer(f: &Fields<'_>, masked: bool) -> Parsed<RecurrentLayer> {
    if !f.flag("use_bias", true)? {
        return Err(f.problem("recurrent layers without a bias are not imported"));
    }
    for key in ["return_state", "stateful"] {
        if f.flag(key, false)? {
            return Err(f.problem(format!("`{key}` is not imported")));
        }
    }
    for key in ["dropout", "recurrent_dropout"] {
        if f.number_or(key, 0.0)? != 0.0 {
            return Err(f.problem(format!("`{key}` inside recurrent layers is not imported; use Dropout layers")));
        }
    }
    let (sequence, reverse) = (f.flag("return_sequences", false)?, f.flag("go_backwards", false)?);
    if sequence && reverse {
        return Err(f.problem("`go_backwards` with `return_sequences` gives steps in reverse order, which is not imported"));
    }
    let units = f.count("units")?;
    let inner = f.activation("activation")?;
    let gates = f.get("recurrent_activation").as_str().unwrap_or("sigmoid");
    macro_rules! configured {
        ($layer:expr) => {{
            let layer = $layer;
            let layer = if sequence { layer.sequence() } else { layer };
            let layer = if masked { layer.masked() } else { layer };
            if reverse { layer.reverse() } else { layer }
        }};
    }
    match f.class {
        "LSTM" | "GRU" if inner != Activation::Tanh || gates != "sigmoid" => {
            Err(f.problem("other activations than tanh and sigmoid are not imported"))
        }
        "GRU" if !f.flag("reset_after", true)? => Err(f.problem("`reset_after` is false, which is not imported")),
        "LSTM" => Ok(RecurrentLayer::Lstm(configured!(Lstm::new(units)))),
        "GRU" => Ok(RecurrentLayer::Gru(configured!(Gru::new(units)))),
        "SimpleRNN" => match inner {
            Activation::Tanh => Ok(RecurrentLayer::Simple(configured!(SimpleRnn::new(units)))),
            Activation::Relu => Ok(RecurrentLayer::Simple(configured!(SimpleRnn::new(units)).relu())),
            _ => Err(f.problem("other activations than tanh and relu are not imported")),
        },
        _ => Err(f.problem("is not a recurrent layer that is imported")),
    }
}

/// The weights of a recurrent layer from Keras' three, under names with a prefix. The biases of a GRU are two rows of
/// one.
fn recurrent_weights(prefix: &str, gru: bool, tensors: &[Tensor]) -> Vec<(String, Assembly)> {
    let [kernel, recurrent, bias] = tensors else { return Vec::new() };
    let mut weights = vec![
        (format!("{prefix}kernel"), Assembly::Whole(kernel.clone())),
        (format!("{prefix}recurrent_kernel"), Assembly::Whole(recurrent.clone())),
    ];
    if gru {
        let length = bias.elements() / 2;
        weights.push((format!("{prefix}bias"), Assembly::Part { tensor: bias.clone(), start: 0, length }));
        weights.push((format!("{prefix}recurrent_bias"), Assembly::Part { tensor: bias.clone(), start: length, length }));
    } else {
        weights.push((format!("{prefix}bias"), Assembly::Whole(bias.clone())));
    }
    weights
}

/// The tensors of a sequence and its mask.
fn sequence_and_mask(f: &Fields<'_>, call: &KerasCall<'_>) -> Parsed<Vec<SymbolicTensor>> {
    match &call.inputs[..] {
        [Symbol { tensor, mask }] => Ok([Some(*tensor), *mask].into_iter().flatten().collect()),
        _ => Err(f.problem("initial states are not imported")),
    }
}

/// `LSTM`, `GRU` or `SimpleRNN`.
pub(super) fn recurrent(f: &Fields<'_>, call: &KerasCall<'_>) -> Parsed<Built> {
    let reads = sequence_and_mask(f, call)?;
    let gru = f.class == "GRU";
    let built = match recurrent_layer(f, reads.len() == 2)? {
        RecurrentLayer::Lstm(layer) => Built::plain(layer),
        RecurrentLayer::Gru(layer) => Built::plain(layer),
        RecurrentLayer::Simple(layer) => Built::plain(layer),
    };
    let slots = (0..3).map(|index| (format!("cell/vars/{index}"), true)).collect();
    let passes_mask = f.flag("return_sequences", false)?;
    let assemble: Assemble = Box::new(move |tensors| recurrent_weights("", gru, tensors));
    Ok(Built { slots, assemble, reads: Reads::These(reads), passes_mask, ..built })
}

/// `Bidirectional` around one of them.
pub(super) fn bidirectional(f: &Fields<'_>, call: &KerasCall<'_>) -> Parsed<Built> {
    match f.get("merge_mode").as_str() {
        Some("concat") | None => {}
        Some(other) => return Err(f.problem(format!("`merge_mode` \"{other}\" is not imported; \"concat\" is"))),
    }
    let inner = f.get("layer");
    let class = inner["class_name"].as_str().unwrap_or_default();
    let fields = Fields { name: f.name, class, config: &inner["config"] };
    let reads = sequence_and_mask(f, call)?;
    let layer = match recurrent_layer(&fields, reads.len() == 2)? {
        RecurrentLayer::Lstm(layer) => Bidirectional::new(layer),
        RecurrentLayer::Gru(layer) => Bidirectional::new(layer),
        RecurrentLayer::Simple(layer) => Bidirectional::new(layer),
    };
    let gru = class == "GRU";
    let slot = |way: &'static str| (0..3).map(move |index| (format!("{way}_layer/cell/vars/{index}"), true));
    let assemble: Assemble = Box::new(move |tensors| {
        let (forward, backward) = tensors.split_at(tensors.len() / 2);
        let mut weights = recurrent_weights("forward_", gru, forward);
        weights.extend(recurrent_weights("backward_", gru, backward));
        weights
    });
    let passes_mask = fields.flag("return_sequences", false)?;
    let slots = slot("forward").chain(slot("backward")).collect();
    Ok(Built { slots, assemble, reads: Reads::These(reads), passes_mask, ..Built::plain(layer) })
}
