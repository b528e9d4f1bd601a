//! Recurrent layers. Formulas, weights and defaults are those of Keras.

use super::config::LayerConfig;
use super::embedding::sequence_dims;
use super::keras::{KerasElements, KerasLayer};
use super::{Initializer, Layer, LayerDef, Lowering};
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::Init;
use plimsoll_core::ops::{Activation as RecurrentActivation, Cell, Concat, Recurrent, Slice};
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, GraphError, Op, ValueId};
use serde_json::{Value, json};
use std::sync::Arc;

/// A recurrence over the time axis.
#[derive(Clone, Debug)]
struct Recurrence {
    cell: Cell,
    units: usize,
    sequence: bool,
    masked: bool,
    reverse: bool,
    initializer: Initializer,
}

/// Long short-term memory: `[batch, time, features]` becomes the last hidden state `[batch, units]`, or every one.
///
/// ```
/// use plimsoll::nn::{Bidirectional, Lstm};
/// let both_ways = Bidirectional::new(Lstm::new(64).sequence());
/// ```
#[derive(Clone, Debug)]
pub struct Lstm(Recurrence);

/// Gated recurrent unit, with the reset gate applied after the matrix product.
#[derive(Clone, Debug)]
pub struct Gru(Recurrence);

/// Fully connected recurrence: the activation of the projected input and previous hidden state.
#[derive(Clone, Debug)]
pub struct SimpleRnn(Recurrence);

/// Runs a recurrent layer in both directions and concatenates the outputs. With `sequence`, masked steps are zero.
#[derive(Clone, Debug)]
pub struct Bidirectional(Recurrence);

macro_rules! recurrent {
    ($layer:ident, $def:ident, $cell:expr) => {
        impl $layer {
            const CELL: Cell = $cell;

            /// A hidden state of size `units`; returns the last one.
            pub fn new(units: usize) -> $layer {
                let initializer = Initializer::GlorotUniform;
                $layer(Recurrence { cell: $layer::CELL, units, sequence: false, masked: false, reverse: false, initializer })
            }

            /// Returns the hidden state of every step: `[batch, time, units]`.
            pub fn sequence(mut self) -> $layer {
                self.0.sequence = true;
                self
            }

            /// The second input is a mask `[batch, time]`; steps where it is zero are skipped.
            pub fn masked(mut self) -> $layer {
                self.0.masked = true;
                self
            }

            /// Processes the sequence backwards.
            pub fn reverse(mut self) -> $layer {
                self.0.reverse = true;
                self
            }

            /// Sets the initializer of the input kernel.
            pub fn initializer(mut self, initializer: Initializer) -> $layer {
                self.0.initializer = initializer;
                self
            }
        }

        impl From<$layer> for Bidirectional {
            fn from(layer: $layer) -> Bidirectional {
                Bidirectional(layer.0)
            }
        }

        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $def.name
            }

            fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
                Some(vec![self.0.to_keras("", "cell/")?])
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                self.0.lower(lowering, inputs, "", self.0.reverse)
            }
        }
    };
}

/// `type = "lstm"`.
pub(super) const LSTM: LayerDef = LayerDef {
    name: "lstm",
    about: "Long short-term memory; `sequence` returns every hidden state.",
    example: "units = 64",
    from_config: |config| Ok(Arc::new(Lstm(Recurrence::from_config(config, Lstm::CELL)?))),
};

/// `type = "gru"`.
pub(super) const GRU: LayerDef = LayerDef {
    name: "gru",
    about: "Gated recurrent unit, reset gate after the product.",
    example: "units = 64",
    from_config: |config| Ok(Arc::new(Gru(Recurrence::from_config(config, Gru::CELL)?))),
};

/// `type = "simple_rnn"`.
pub(super) const SIMPLE_RNN: LayerDef = LayerDef {
    name: "simple_rnn",
    about: "Fully connected recurrence; `activation` is `\"tanh\"` or `\"relu\"`.",
    example: "units = 64",
    from_config: |config| {
        let layer = SimpleRnn(Recurrence::from_config(config, SimpleRnn::CELL)?);
        let relu = config.choice_or("activation", &[("tanh", false), ("relu", true)], "tanh")?;
        Ok(Arc::new(if relu { layer.relu() } else { layer }))
    },
};

recurrent!(Lstm, LSTM, Cell::Lstm);
recurrent!(Gru, GRU, Cell::Gru);
recurrent!(SimpleRnn, SIMPLE_RNN, Cell::Simple(RecurrentActivation::Tanh));

impl SimpleRnn {
    /// Sets the activation to ReLU instead of tanh.
    pub fn relu(mut self) -> SimpleRnn {
        self.0.cell = Cell::Simple(RecurrentActivation::Relu);
        self
    }
}

impl Bidirectional {
    /// Wraps a recurrent layer; the backward direction has the same hyperparameters.
    pub fn new(layer: impl Into<Bidirectional>) -> Bidirectional {
        layer.into()
    }
}

/// `type = "bidirectional"`.
pub(super) const BIDIRECTIONAL: LayerDef = LayerDef {
    name: "bidirectional",
    about: "Runs a recurrent layer in both directions and concatenates; `cell` is `\"lstm\"`, `\"gru\"` or `\"simple_rnn\"`.",
    example: "cell = \"lstm\"\nunits = 64",
    from_config: |config| {
        let cells = [("lstm", Lstm::CELL), ("gru", Gru::CELL), ("simple_rnn", SimpleRnn::CELL)];
        let cell = config.choice("cell", &cells)?.ok_or_else(|| config.missing("cell", "lstm, gru or simple_rnn"))?;
        Ok(Arc::new(Bidirectional(Recurrence::from_config(config, cell)?)))
    },
};

impl Layer for Bidirectional {
    fn kind(&self) -> &'static str {
        BIDIRECTIONAL.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let forward = Recurrence { reverse: false, ..self.0.clone() };
        let mut weights = forward.to_keras("forward_", "forward_layer/cell/")?.weights;
        weights.extend(forward.to_keras("backward_", "backward_layer/cell/")?.weights);
        let inner = |name: &str, backwards: bool| -> Option<Value> {
            let KerasLayer { class, mut config, .. } = forward.to_keras("", "")?;
            config.insert("go_backwards".to_string(), backwards.into());
            config.insert("name".to_string(), name.into());
            Some(json!({ "module": "keras.layers", "class_name": class, "config": config, "registered_name": null }))
        };
        let config = json!({ "merge_mode": "concat", "layer": inner("forward", false)?, "backward_layer": inner("backward", true)? });
        Some(vec![KerasLayer { weights, ..KerasLayer::new("Bidirectional", config) }])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let forward = self.0.lower(lowering, inputs, "forward_", false)?;
        let backward = self.0.lower(lowering, inputs, "backward_", true)?;
        let axis = lowering.graph.shape(forward).rank() - 1;
        let both = lowering.graph.add_one(Op::Concat(Concat { axis }), &[forward, backward])?;
        let mask = if self.0.masked { Some(inputs[1]) } else { lowering.mask };
        let Some(mask) = mask.filter(|_| self.0.sequence) else { return Ok(both) };
        // The two directions carry different states over masked steps, so both are zeroed there.
        let (batch, time, _) = sequence_dims(lowering, both)?;
        let g = &mut *lowering.graph;
        let mask = g.reshape(mask, Shape::new([batch, time.into(), 1.into()]))?;
        g.pointwise(Expr::build(|e| e.select(e.input(1), e.input(0), e.constant(0.0))), &[both, mask])
    }
}

impl Recurrence {
    /// The layer of Keras, its weights under `prefix` here and `part` there.
    fn to_keras(&self, prefix: &str, part: &str) -> Option<KerasLayer> {
        let (class, activation) = match self.cell {
            Cell::Lstm => ("LSTM", "tanh"),
            Cell::Gru => ("GRU", "tanh"),
            Cell::Simple(RecurrentActivation::Tanh) => ("SimpleRNN", "tanh"),
            Cell::Simple(RecurrentActivation::Relu) => ("SimpleRNN", "relu"),
        };
        // A mask as a second input has no place in Keras, which carries masks along.
        if self.masked {
            return None;
        }
        let mut config = json!({
            "units": self.units,
            "activation": activation,
            "return_sequences": self.sequence,
            "go_backwards": self.reverse,
        });
        if self.cell == Cell::Gru {
            config["reset_after"] = true.into();
        }
        // Keras reverses the steps of a sequence that is read backwards.
        if self.reverse && self.sequence {
            return None;
        }
        let names = ["kernel", "recurrent_kernel", "bias"].map(|name| format!("{prefix}{name}"));
        let mut layer = KerasLayer::new(class, config).weights_at(part, &names.each_ref().map(String::as_str));
        if self.cell == Cell::Gru {
            let bias = layer.weights.last_mut()?;
            bias.of = KerasElements::All(vec![names[2].clone(), format!("{prefix}recurrent_bias")]);
            bias.shape = vec![2, 3 * self.units];
        }
        Some(layer)
    }

    fn from_config(config: &LayerConfig<'_, '_>, cell: Cell) -> crate::error::Result<Recurrence> {
        Ok(Recurrence {
            cell,
            units: config.required_count("units", 1, "the size of the hidden state")?,
            sequence: config.flag_or("sequence", false)?,
            masked: config.flag_or("masked", false)?,
            reverse: config.flag_or("reverse", false)?,
            initializer: Initializer::GlorotUniform,
        })
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId], prefix: &str, reverse: bool) -> Result<ValueId, GraphError> {
        let wanted = 1 + usize::from(self.masked);
        if inputs.len() != wanted {
            let hint = if self.masked { " (the sequence and its mask)" } else { "" };
            return Err(lowering.graph.error(format!("expects {wanted} inputs{hint}, but received {}", inputs.len())));
        }
        let Recurrence { cell, units, .. } = *self;
        let steps = if self.masked { Some(inputs[1]) } else { lowering.mask };
        let (batch, time, features) = sequence_dims(lowering, inputs[0])?;
        let wide = units.saturating_mul(cell.gates());
        if units == 0 {
            return Err(lowering.graph.error("needs at least one unit"));
        }
        let name = |name: &str| format!("{prefix}{name}");
        let kernel = lowering.parameter(&name("kernel"), [features, wide], self.initializer.init(features, wide))?;
        let recurrent = lowering.parameter(&name("recurrent_kernel"), [units, wide], Init::Orthogonal)?;
        let bias = match cell {
            // A forget-gate bias of one, as in Keras.
            Cell::Lstm => Init::Stretch { value: 1.0, from: units, to: units.saturating_mul(2) },
            _ => Init::Constant(0.0),
        };
        let bias = lowering.parameter(&name("bias"), [wide], bias)?;
        let recurrent_bias =
            if cell == Cell::Gru { Some(lowering.parameter(&name("recurrent_bias"), [wide], Init::Constant(0.0))?) } else { None };
        let g = &mut *lowering.graph;
        let rows = Shape::new([batch, time.into()]).elements();
        let x = g.reshape(inputs[0], Shape::new([rows, features.into()]))?;
        let projected = g.matmul(x, kernel)?;
        let projected = g.plus(projected, bias)?;
        let projected = g.reshape(projected, Shape::new([batch, time.into(), wide.into()]))?;
        let mask = steps.map(|steps| mask(g, steps)).transpose()?;
        let masked = mask.is_some();
        let operands: Vec<ValueId> = [Some(projected), Some(recurrent), recurrent_bias, mask].into_iter().flatten().collect();
        let walk = Recurrent { cell, units, reverse, masked, initial: false };
        let hidden = g.add(Op::Recurrent(walk), &operands)?[0];
        if self.sequence {
            return Ok(hidden);
        }
        let start = if reverse { 0 } else { time - 1 };
        let last = g.add_one(Op::Slice(Slice { axis: 1, start, length: 1 }), &[hidden])?;
        g.reshape(last, Shape::new([batch, units.into()]))
    }
}

/// A mask in the type that kernels expect.
fn mask(g: &mut plimsoll_core::Graph, mask: ValueId) -> Result<ValueId, GraphError> {
    if g.ty(mask).dtype == DType::U8 { Ok(mask) } else { g.cast(mask, DType::F32) }
}
