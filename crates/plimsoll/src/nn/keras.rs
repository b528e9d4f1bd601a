//! Layers as Keras describes them: class, configuration, and where their weights are in a file.

use super::Layer;
use super::model::Model;
use super::tensor::Source;
use super::window::{Padding, SlidingWindow};
use super::{Activation, Regularizer};
use plimsoll_core::Shape;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A call of a layer, for descriptions of models elsewhere.
pub(crate) struct ModelCall<'a> {
    pub name: &'a str,
    pub layer: &'a Arc<dyn Layer>,
    pub inputs: Vec<CallInput>,
    pub trainable: bool,
}

/// What a call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallInput {
    /// An input of the model.
    Input(usize),
    /// The result of an earlier call.
    Call(usize),
}

impl From<Source> for CallInput {
    fn from(source: Source) -> CallInput {
        match source {
            Source::Input(i) => CallInput::Input(i),
            Source::Layer(i) => CallInput::Call(i),
        }
    }
}

impl Model {
    /// The calls of layers in order. A shared layer is called several times by the same name.
    pub(crate) fn calls(&self) -> impl Iterator<Item = ModelCall<'_>> {
        self.layers().iter().map(|call| ModelCall {
            name: &call.name,
            layer: &call.layer,
            inputs: call.inputs.iter().map(|tensor| tensor.0.into()).collect(),
            trainable: call.trainable,
        })
    }

    /// What each output is.
    pub(crate) fn output_calls(&self) -> Vec<CallInput> {
        self.output_tensors().map(|tensor| tensor.0.into()).collect()
    }
}

/// A layer of Keras.
#[derive(Clone, Debug)]
pub struct KerasLayer {
    /// The class, such as `Conv2D`.
    pub class: &'static str,
    /// Its configuration without the name.
    pub config: Map<String, Value>,
    /// Its weights.
    pub weights: Vec<KerasWeight>,
}

/// A weight of a layer of Keras.
#[derive(Clone, Debug)]
pub struct KerasWeight {
    /// Below the layer's group, such as `vars/0`.
    pub path: String,
    /// The elements.
    pub of: KerasElements,
    /// Its shape in Keras; empty if it is that of the weight here.
    pub shape: Vec<usize>,
}

/// The elements of a weight of Keras, from weights of the layer here.
#[derive(Clone, Debug)]
pub enum KerasElements {
    /// All of one or more weights, one after the other.
    All(Vec<String>),
    /// Some columns of a matrix, or elements of a vector.
    Columns {
        /// The weight.
        name: String,
        /// The first column.
        from: usize,
        /// The end of the columns.
        to: usize,
        /// Columns of the weight in all.
        wide: usize,
    },
}

impl KerasLayer {
    /// A layer without weights; the configuration is a table.
    pub fn new(class: &'static str, config: Value) -> KerasLayer {
        let config = if let Value::Object(config) = config { config } else { Map::new() };
        KerasLayer { class, config, weights: Vec::new() }
    }

    /// Weights of these names, in the order of Keras, directly below the layer.
    pub fn weights(self, names: &[&str]) -> KerasLayer {
        self.weights_at("", names)
    }

    /// Weights of these names below a part of the layer, such as its cell.
    pub fn weights_at(mut self, part: &str, names: &[&str]) -> KerasLayer {
        let at = |(i, name): (usize, &&str)| KerasWeight {
            path: format!("{part}vars/{i}"),
            of: KerasElements::All(vec![name.to_string()]),
            shape: Vec::new(),
        };
        self.weights.extend(names.iter().enumerate().map(at));
        self
    }
}

/// `kernel`, and `bias` if there is one.
pub(super) fn kernel_and_bias(bias: bool) -> &'static [&'static str] {
    if bias { &["kernel", "bias"] } else { &["kernel"] }
}

/// `gamma` and `beta`, those that there are.
pub(super) fn gamma_and_beta(scale: bool, center: bool) -> Vec<&'static str> {
    [("gamma", scale), ("beta", center)].into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

/// A regularizer; none if it is zero.
pub(super) fn regularizer(of: Regularizer) -> Value {
    match of == Regularizer::default() {
        true => Value::Null,
        false => json!({
            "module": "keras.regularizers", "class_name": "L1L2", "config": { "l1": of.l1, "l2": of.l2 }, "registered_name": null
        }),
    }
}

/// Padding of images as a word of Keras, and as a layer of zeros before where Keras has no word for it.
fn padding(of: &SlidingWindow, image: Option<(usize, usize)>) -> (&'static str, Option<KerasLayer>) {
    let Padding::Explicit { rows, columns } = of.padding else {
        return (if of.padding == Padding::Same { "same" } else { "valid" }, None);
    };
    let same = image.map(|image| SlidingWindow { padding: Padding::Same, ..*of }.on(image));
    if same.is_some_and(|same| (same.pad_rows, same.pad_columns) == (rows, columns)) {
        return ("same", None);
    }
    let zeros = json!({ "padding": [[rows.0, rows.1], [columns.0, columns.1]], "data_format": "channels_last" });
    ("valid", Some(KerasLayer::new("ZeroPadding2D", zeros)))
}

/// The keys of a window over the first input, and zeros before it.
pub(super) fn window(of: &SlidingWindow, size: &str, inputs: &[Shape]) -> (Map<String, Value>, Option<KerasLayer>) {
    let image = inputs.first().and_then(|shape| match shape.dims() {
        [_, height, width, _] => height.as_fixed().zip(width.as_fixed()),
        _ => None,
    });
    let (word, zeros) = padding(of, image);
    let mut keys = Map::new();
    keys.insert(size.to_string(), json!([of.size.0, of.size.1]));
    keys.insert("strides".to_string(), json!([of.stride.0, of.stride.1]));
    keys.insert("padding".to_string(), json!(word));
    keys.insert("data_format".to_string(), json!("channels_last"));
    (keys, zeros)
}

impl Activation {
    /// Its name in Keras; none if Keras has it only with arguments.
    pub(crate) fn keras_name(self) -> Option<&'static str> {
        match self {
            Activation::GeluTanh => None,
            Activation::HardSwish => Some("hard_silu"),
            other => Some(other.name()),
        }
    }

    /// Whether its results are never negative.
    pub(crate) fn is_nonnegative(self) -> bool {
        use Activation::{HardSigmoid, Relu, Relu6, Sigmoid, Softmax, Softplus, SparseSigmoid};
        matches!(self, Relu | Relu6 | Sigmoid | Softmax | Softplus | HardSigmoid | SparseSigmoid)
    }
}
