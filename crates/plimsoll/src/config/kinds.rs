//! Layers by the names configurations use, with their numbers.

use crate::error::{Error, Result};
use crate::nn::*;
use crate::reader::Reader;
use crate::suggest::did_you_mean;
use std::sync::Arc;

/// Layer types that are not activations.
const TYPES: [&str; 47] = [
    "dense",
    "conv2d",
    "conv1d",
    "depthwise_conv2d",
    "separable_conv2d",
    "conv2d_transpose",
    "max_pool2d",
    "average_pool2d",
    "global_average_pool",
    "global_max_pool",
    "max_unpool2d",
    "up_sampling2d",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "rms_norm",
    "flatten",
    "reshape",
    "permute",
    "zero_padding2d",
    "cropping2d",
    "dropout",
    "spatial_dropout",
    "alpha_dropout",
    "gaussian_dropout",
    "gaussian_noise",
    "stochastic_depth",
    "add",
    "subtract",
    "multiply",
    "maximum",
    "average",
    "concatenate",
    "prelu",
    "leaky_relu",
    "elu",
    "embedding",
    "embedding_scores",
    "position_embedding",
    "sinusoidal_positions",
    "class_token",
    "take_step",
    "multi_head_attention",
    "lstm",
    "gru",
    "simple_rnn",
    "bidirectional",
];

/// The layer a table describes.
pub(super) fn layer(reader: &Reader<'_>) -> Result<Arc<dyn Layer>> {
    let Some(kind) = reader.text("type")? else {
        return Err(reader.missing("type", "such as \"dense\", \"conv2d\", or an activation such as \"relu\""));
    };
    let read = Keys { reader };
    Ok(match kind {
        "dense" => {
            let dense = Dense::new(read.needed("units", "how many outputs")?).activation(read.activation()?).bias(read.bias()?);
            Arc::new(dense.initializer(read.initializer()?).penalty(read.penalty()?))
        }
        "conv2d" => {
            let ((height, width), (down, across)) = (read.size()?, read.stride((1, 1))?);
            let conv = Conv2D::new(read.needed("filters", "how many there are")?, 1).size(height, width).stride(down, across);
            let (down, across) = read.dilation()?;
            let conv = conv.dilation(down, across).groups(read.count("groups", 1)?).padding(read.padding()?);
            Arc::new(conv.activation(read.activation()?).bias(read.bias()?).initializer(read.initializer()?).penalty(read.penalty()?))
        }
        "conv1d" => {
            let conv = Conv1D::new(read.needed("filters", "how many there are")?, read.needed("size", "how many steps a filter sees")?);
            let conv = conv.stride(read.count("stride", 1)?).dilation(read.count("dilation", 1)?).groups(read.count("groups", 1)?);
            let causal = reader.value("padding").and_then(|value| value.as_str()) == Some("causal");
            let conv = if causal { conv.causal() } else { conv.padding(read.padding()?) };
            Arc::new(conv.activation(read.activation()?).bias(read.bias()?).initializer(read.initializer()?).penalty(read.penalty()?))
        }
        "depthwise_conv2d" => Arc::new(read.depthwise(DepthwiseConv2D::new(1))?),
        "separable_conv2d" => {
            let conv = SeparableConv2D::new(read.needed("filters", "how many there are")?, 1);
            let depthwise = read.depthwise(DepthwiseConv2D::new(1))?;
            Arc::new(conv.depthwise(|_| depthwise))
        }
        "conv2d_transpose" => {
            let ((height, width), (down, across)) = (read.size()?, read.stride((1, 1))?);
            let conv = Conv2DTranspose::new(read.needed("filters", "how many there are")?, 1, 1).size(height, width).stride(down, across);
            let (down, across) = read.dilation()?;
            let conv = conv.dilation(down, across).padding(read.padding()?).activation(read.activation()?).bias(read.bias()?);
            Arc::new(conv.initializer(read.initializer()?).penalty(read.penalty()?))
        }
        "max_pool2d" => {
            let (size, padding) = (read.size()?, read.padding()?);
            let stride = read.stride(size)?;
            Arc::new(MaxPool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding))
        }
        "average_pool2d" => {
            let (size, padding) = (read.size()?, read.padding()?);
            let stride = read.stride(size)?;
            Arc::new(AveragePool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding))
        }
        "global_average_pool" => Arc::new(GlobalAveragePool),
        "global_max_pool" => Arc::new(GlobalMaxPool),
        "max_unpool2d" => Arc::new(MaxUnpool2D::new(read.needed("size", "the pooling's window")?)),
        "up_sampling2d" => {
            let (down, across) = reader.pair("factor")?.unwrap_or((2, 2));
            let bilinear = reader.choice("method", &[("nearest", false), ("bilinear", true)])?.unwrap_or(false);
            let layer = UpSampling2D::new(1).factor(down, across);
            Arc::new(if bilinear { layer.bilinear() } else { layer })
        }
        "batch_norm" => {
            let norm = BatchNorm::new().momentum(read.number("momentum", 0.99)?).epsilon(read.number("epsilon", 1e-3)?);
            let norm = norm.scale(read.flag("scale", true)?).center(read.flag("center", true)?);
            Arc::new(norm.unbiased(read.flag("unbiased", false)?))
        }
        "layer_norm" => {
            let norm = LayerNorm::new().epsilon(read.number("epsilon", 1e-3)?);
            Arc::new(norm.scale(read.flag("scale", true)?).center(read.flag("center", true)?))
        }
        "group_norm" => {
            let norm = GroupNorm::new(read.count("groups", 32)?).epsilon(read.number("epsilon", 1e-3)?);
            Arc::new(norm.scale(read.flag("scale", true)?).center(read.flag("center", true)?))
        }
        "rms_norm" => Arc::new(RmsNorm::new().epsilon(read.number("epsilon", 1e-6)?)),
        "flatten" => Arc::new(Flatten),
        "reshape" => Arc::new(Reshape::new(read.list("shape", "the new shape of a row, such as [7, 7, 64]")?)),
        "permute" => Arc::new(Permute::new(read.list("order", "the axes behind the batch in their new order, such as [2, 1]")?)),
        "zero_padding2d" | "cropping2d" => {
            let (rows, columns) = read.edges()?;
            if kind == "cropping2d" {
                Arc::new(Cropping2D::new(0).rows(rows.0, rows.1).columns(columns.0, columns.1))
            } else {
                Arc::new(ZeroPadding2D::new(0).rows(rows.0, rows.1).columns(columns.0, columns.1))
            }
        }
        "dropout" => Arc::new(Dropout::new(read.rate()?)),
        "spatial_dropout" => Arc::new(SpatialDropout::new(read.rate()?)),
        "alpha_dropout" => Arc::new(AlphaDropout::new(read.rate()?)),
        "gaussian_dropout" => Arc::new(GaussianDropout::new(read.rate()?)),
        "stochastic_depth" => Arc::new(StochasticDepth::new(read.rate()?)),
        "gaussian_noise" => {
            let deviation = reader.number("deviation")?.ok_or_else(|| reader.missing("deviation", "the noise's standard deviation"))?;
            Arc::new(GaussianNoise::new(deviation as f32))
        }
        "add" => Arc::new(Add),
        "subtract" => Arc::new(Subtract),
        "multiply" => Arc::new(Multiply),
        "maximum" => Arc::new(Maximum),
        "average" => Arc::new(Average),
        "concatenate" => Arc::new(Concatenate),
        "prelu" => {
            let layer = PRelu::new().start(read.number("start", 0.0)?);
            Arc::new(if read.flag("per_channel", false)? { layer.per_channel() } else { layer })
        }
        "leaky_relu" => Arc::new(LeakyRelu::new(read.number("slope", 0.2)?)),
        "elu" => Arc::new(Elu::new(read.number("depth", 1.0)?)),
        "embedding" => {
            let tokens = read.needed("vocabulary", "how many tokens there are")?;
            let layer = Embedding::new(tokens, read.needed("width", "how many numbers stand for a token")?);
            Arc::new(match reader.choice("initializer", &Initializer::NAMES)? {
                Some(initializer) => layer.initializer(initializer),
                None => layer,
            })
        }
        "embedding_scores" => Arc::new(Embedding::new(read.needed("vocabulary", "how many tokens there are")?, 1).scores()),
        "position_embedding" => Arc::new(PositionEmbedding::new(read.needed("context", "the longest sequence")?)),
        "sinusoidal_positions" => Arc::new(SinusoidalPositions),
        "class_token" => Arc::new(ClassToken),
        "take_step" => {
            let last = reader.choice("which", &[("first", false), ("last", true)])?.unwrap_or(true);
            Arc::new(if last { TakeStep::last() } else { TakeStep::first() })
        }
        "multi_head_attention" => Arc::new(read.attention()?),
        "lstm" => Arc::new(read.walk(Lstm::new(read.units()?), Lstm::sequence, Lstm::masked, Lstm::reverse)?),
        "gru" => Arc::new(read.walk(Gru::new(read.units()?), Gru::sequence, Gru::masked, Gru::reverse)?),
        "simple_rnn" => {
            let layer = read.walk(SimpleRnn::new(read.units()?), SimpleRnn::sequence, SimpleRnn::masked, SimpleRnn::reverse)?;
            let relu = reader.choice("activation", &[("tanh", false), ("relu", true)])?.unwrap_or(false);
            Arc::new(if relu { layer.relu() } else { layer })
        }
        "bidirectional" => {
            let cell = reader.choice("cell", &[("lstm", 0), ("gru", 1), ("simple_rnn", 2)])?;
            Arc::new(match cell.ok_or_else(|| reader.missing("cell", "lstm, gru or simple_rnn"))? {
                0 => Bidirectional::new(read.walk(Lstm::new(read.units()?), Lstm::sequence, Lstm::masked, Lstm::reverse)?),
                1 => Bidirectional::new(read.walk(Gru::new(read.units()?), Gru::sequence, Gru::masked, Gru::reverse)?),
                _ => {
                    let layer = SimpleRnn::new(read.units()?);
                    Bidirectional::new(read.walk(layer, SimpleRnn::sequence, SimpleRnn::masked, SimpleRnn::reverse)?)
                }
            })
        }
        word => match Activation::NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, activation)) => Arc::new(*activation),
            None => {
                let known: Vec<&str> = TYPES.iter().copied().chain(Activation::NAMES.iter().map(|(name, _)| *name)).collect();
                let hint = did_you_mean(word, &known);
                let known = TYPES.join(", ");
                let what = format!("`{}` is \"{word}\", but should be an activation or one of {known}{hint}", reader.name("type"));
                return Err(Error::Config(what));
            }
        },
    })
}

/// How much above and below, and left and right.
type Edges = ((usize, usize), (usize, usize));

/// Keys that several layers have.
struct Keys<'r, 'a> {
    reader: &'r Reader<'a>,
}

impl Keys<'_, '_> {
    fn needed(&self, key: &'static str, what: &str) -> Result<usize> {
        self.reader.count(key, 1)?.map(|count| count as usize).ok_or_else(|| self.reader.missing(key, what))
    }

    fn units(&self) -> Result<usize> {
        self.needed("units", "how many numbers it remembers")
    }

    fn count(&self, key: &'static str, usual: usize) -> Result<usize> {
        Ok(self.reader.count(key, 1)?.map_or(usual, |count| count as usize))
    }

    fn number(&self, key: &'static str, usual: f32) -> Result<f32> {
        Ok(self.reader.number(key)?.map_or(usual, |number| number as f32))
    }

    fn flag(&self, key: &'static str, usual: bool) -> Result<bool> {
        Ok(self.reader.flag(key)?.unwrap_or(usual))
    }

    fn list(&self, key: &'static str, what: &str) -> Result<Vec<usize>> {
        self.reader.counts(key)?.ok_or_else(|| self.reader.missing(key, what))
    }

    fn rate(&self) -> Result<f32> {
        Ok(self.reader.number("rate")?.ok_or_else(|| self.reader.missing("rate", "the share to drop"))? as f32)
    }

    fn activation(&self) -> Result<Activation> {
        Ok(self.reader.choice("activation", &Activation::NAMES)?.unwrap_or_default())
    }

    fn initializer(&self) -> Result<Initializer> {
        Ok(self.reader.choice("initializer", &Initializer::NAMES)?.unwrap_or_default())
    }

    fn bias(&self) -> Result<bool> {
        self.flag("bias", true)
    }

    fn penalty(&self) -> Result<Penalty> {
        let (l1, l2) = (self.number("l1", 0.0)?, self.number("l2", 0.0)?);
        for (key, number) in [("l1", l1), ("l2", l2)] {
            if !(number.is_finite() && number >= 0.0) {
                return Err(Error::Config(format!("`{}` is {number}, but should be a number of at least 0", self.reader.name(key))));
            }
        }
        Ok(Penalty { l1, l2 })
    }

    fn size(&self) -> Result<(usize, usize)> {
        self.reader.pair("size")?.ok_or_else(|| self.reader.missing("size", "height and width, such as 3 or [3, 3]"))
    }

    fn stride(&self, usual: (usize, usize)) -> Result<(usize, usize)> {
        Ok(self.reader.pair("stride")?.unwrap_or(usual))
    }

    fn dilation(&self) -> Result<(usize, usize)> {
        Ok(self.reader.pair("dilation")?.unwrap_or((1, 1)))
    }

    /// A word, or zeros on all sides, or those above and below and those left and right, or all four.
    fn padding(&self) -> Result<Padding> {
        match self.reader.value("padding") {
            None => Ok(Padding::default()),
            Some(toml::Value::String(_)) => Ok(self.reader.choice("padding", &Padding::NAMES)?.unwrap_or_default()),
            Some(_) => {
                let (rows, columns) = self.edges()?;
                Ok(Padding::Explicit { rows, columns })
            }
        }
    }

    fn edges(&self) -> Result<Edges> {
        let wanted = "a whole number, two (above and below, left and right) or four (above, below, left, right)";
        let Some(value) = self.reader.value("padding") else { return Err(self.reader.missing("padding", wanted)) };
        let count = |value: &toml::Value| value.as_integer().and_then(|n| usize::try_from(n).ok());
        let numbers = match value {
            toml::Value::Array(list) => list.iter().map(count).collect::<Option<Vec<usize>>>(),
            single => count(single).map(|n| vec![n]),
        };
        match numbers.as_deref() {
            Some(&[all]) => Ok(((all, all), (all, all))),
            Some(&[rows, columns]) => Ok(((rows, rows), (columns, columns))),
            Some(&[above, below, left, right]) => Ok(((above, below), (left, right))),
            _ => Err(self.reader.wrong("padding", value, wanted)),
        }
    }

    fn depthwise(&self, conv: DepthwiseConv2D) -> Result<DepthwiseConv2D> {
        let ((height, width), (down, across)) = (self.size()?, self.stride((1, 1))?);
        let conv = conv.size(height, width).stride(down, across).multiplier(self.count("multiplier", 1)?);
        let (down, across) = self.dilation()?;
        let conv = conv.dilation(down, across).padding(self.padding()?).activation(self.activation()?).bias(self.bias()?);
        Ok(conv.initializer(self.initializer()?).penalty(self.penalty()?))
    }

    fn attention(&self) -> Result<MultiHeadAttention> {
        let heads = self.needed("heads", "how many there are")?;
        let mut layer = MultiHeadAttention::new(heads).bias(self.bias()?).initializer(self.initializer()?);
        if let Some(depth) = self.reader.count("depth", 1)? {
            layer = layer.depth(depth as usize);
        }
        if let Some(heads) = self.reader.count("kv_heads", 1)? {
            layer = layer.kv_heads(heads as usize);
        }
        if let Some(rate) = self.reader.number("dropout")? {
            layer = layer.dropout(rate as f32);
        }
        layer = if self.flag("causal", false)? { layer.causal() } else { layer };
        layer = if self.flag("cross", false)? { layer.cross() } else { layer };
        Ok(if self.flag("masked", false)? { layer.masked() } else { layer })
    }

    fn walk<L>(&self, layer: L, sequence: fn(L) -> L, masked: fn(L) -> L, reverse: fn(L) -> L) -> Result<L> {
        let layer = if self.flag("sequence", false)? { sequence(layer) } else { layer };
        let layer = if self.flag("masked", false)? { masked(layer) } else { layer };
        Ok(if self.flag("reverse", false)? { reverse(layer) } else { layer })
    }
}
