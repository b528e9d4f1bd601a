//! Classes of Keras as layers, with the weights of each.

use super::attention::attention;
use super::json::{Fields, Parsed};
use super::recurrent::{bidirectional, recurrent};
use super::{Importer, KerasCall};
use crate::import::Assembly;
use crate::nn::*;
use plimsoll_formats::tensor::Tensor;
use serde_json::Value;
use std::sync::Arc;

/// A layer with its weights in Keras' order.
pub(super) struct Built {
    pub layer: Arc<dyn Layer>,
    /// Where a weight is below the layer's group, and whether it is trained.
    pub slots: Vec<(String, bool)>,
    /// Makes the weights of the layer from those of Keras.
    pub assemble: Assemble,
    /// Which inputs it reads.
    pub(super) reads: Reads,
    /// Whether Keras passes the mask of the input on.
    pub(super) passes_mask: bool,
    /// The mask that it makes itself.
    pub(super) own_mask: Option<SymbolicTensor>,
}

pub(super) type Assemble = Box<dyn Fn(&[Tensor]) -> Vec<(String, Assembly)>>;

pub(super) enum Reads {
    /// The tensors of the call.
    All,
    /// The first tensor only.
    First,
    /// These tensors.
    These(Vec<SymbolicTensor>),
}

impl Built {
    /// A layer without weights.
    pub(super) fn plain(layer: impl Layer + 'static) -> Built {
        Built {
            layer: Arc::new(layer),
            slots: Vec::new(),
            assemble: Box::new(|_| Vec::new()),
            reads: Reads::All,
            passes_mask: false,
            own_mask: None,
        }
    }

    /// A layer whose weights are those of Keras, in this order.
    fn weighted(layer: impl Layer + 'static, names: &[&'static str]) -> Built {
        let names = names.to_vec();
        let slots = names.iter().enumerate().map(|(index, name)| (format!("vars/{index}"), !is_statistic(name))).collect();
        let assemble = move |tensors: &[Tensor]| {
            names.iter().zip(tensors).map(|(name, tensor)| (name.to_string(), Assembly::Whole(tensor.clone()))).collect()
        };
        Built { slots, assemble: Box::new(assemble), ..Built::plain(layer) }
    }

    fn passing(self) -> Built {
        Built { passes_mask: true, ..self }
    }

    pub fn inputs(&self, call: &KerasCall<'_>) -> Vec<SymbolicTensor> {
        match &self.reads {
            Reads::All => call.inputs.iter().map(|input| input.tensor).collect(),
            Reads::First => call.inputs.iter().take(1).map(|input| input.tensor).collect(),
            Reads::These(tensors) => tensors.clone(),
        }
    }

    pub fn mask(&self, call: &KerasCall<'_>) -> Option<SymbolicTensor> {
        self.own_mask.or_else(|| call.inputs.iter().find_map(|input| input.mask).filter(|_| self.passes_mask))
    }
}

fn is_statistic(name: &str) -> bool {
    matches!(name, "moving_mean" | "moving_variance" | "mean" | "variance" | "count")
}

/// `kernel` and, if there is one, `bias`.
fn kernel(bias: bool) -> &'static [&'static str] {
    if bias { &["kernel", "bias"] } else { &["kernel"] }
}

/// Whether noise of this shape is one number per example, as in EfficientNet.
fn drops_examples(noise_shape: &Value) -> bool {
    matches!(noise_shape.as_array().map(Vec::as_slice), Some([first, rest @ ..]) if first.is_null() && rest.iter().all(|dim| *dim == 1))
}

impl Importer {
    /// The layer of a class; none if it is the identity.
    pub(super) fn layer(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str, inference: bool) -> Parsed<Option<Built>> {
        f.channels_last()?;
        let rate = || f.number_or("rate", 0.0).map(|rate| rate as f32);
        let dropped = |built: Built| Ok((!inference).then_some(built.passing()));
        let built = match f.class {
            "InputLayer" | "Identity" | "ActivityRegularization" => return Ok(None),
            "Dropout" if drops_examples(f.get("noise_shape")) => return dropped(Built::plain(StochasticDepth::new(rate()?))),
            "Dropout" if !f.get("noise_shape").is_null() => {
                return Err(f.problem("`noise_shape` is imported only where it drops whole examples, such as [null, 1, 1, 1]"));
            }
            "Dropout" => return dropped(Built::plain(Dropout::new(rate()?))),
            "SpatialDropout1D" | "SpatialDropout2D" => return dropped(Built::plain(SpatialDropout::new(rate()?))),
            "AlphaDropout" => return dropped(Built::plain(AlphaDropout::new(rate()?))),
            "GaussianDropout" => return dropped(Built::plain(GaussianDropout::new(rate()?))),
            "GaussianNoise" => return dropped(Built::plain(GaussianNoise::new(f.number_or("stddev", 0.0)? as f32))),
            "StochasticDepth" => return dropped(Built::plain(StochasticDepth::new(f.number_or("drop_path_rate", 0.0)? as f32))),
            "Dense" => self.dense(f)?,
            "Conv1D" => conv1d(f)?,
            "Conv2D" => conv2d(f)?,
            "DepthwiseConv2D" => depthwise(f, f.pair("kernel_size")?, f.pair("strides")?, f.pair_or("dilation_rate", 1)?)?.0,
            "DepthwiseConv1D" => {
                let sizes = ((1, f.single("kernel_size")?), (1, f.single("strides")?), (1, f.single_or("dilation_rate", 1)?));
                let (built, conv) = depthwise(f, sizes.0, sizes.1, sizes.2)?;
                Built { layer: Arc::new(OverTime::depthwise_conv(conv)), ..built }
            }
            "SeparableConv2D" => separable(f, f.pair("kernel_size")?, f.pair("strides")?, f.pair_or("dilation_rate", 1)?)?.0,
            "SeparableConv1D" => {
                let sizes = ((1, f.single("kernel_size")?), (1, f.single("strides")?), (1, f.single_or("dilation_rate", 1)?));
                let (built, conv) = separable(f, sizes.0, sizes.1, sizes.2)?;
                Built { layer: Arc::new(OverTime::separable_conv(conv)), ..built }
            }
            "Conv2DTranspose" => transposed(f, f.pair("kernel_size")?, f.pair("strides")?, f.pair_or("dilation_rate", 1)?)?.0,
            "Conv1DTranspose" => {
                let sizes = ((1, f.single("kernel_size")?), (1, f.single("strides")?), (1, f.single_or("dilation_rate", 1)?));
                let (built, conv) = transposed(f, sizes.0, sizes.1, sizes.2)?;
                Built { layer: Arc::new(OverTime::conv_transpose(conv)), ..built }
            }
            "MaxPooling2D" => {
                let (size, stride) = (f.pair("pool_size")?, f.pair("strides")?);
                Built::plain(MaxPool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(f.padding()?))
            }
            "AveragePooling2D" => {
                let (size, stride) = (f.pair("pool_size")?, f.pair("strides")?);
                Built::plain(AveragePool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(f.padding()?))
            }
            "MaxPooling1D" => Built::plain(OverTime::max_pool_padded((f.single("pool_size")?, f.single("strides")?), f.padding()?)),
            "AveragePooling1D" => Built::plain(OverTime::average_pool_padded((f.single("pool_size")?, f.single("strides")?), f.padding()?)),
            "GlobalAveragePooling1D" | "GlobalAveragePooling2D" | "GlobalMaxPooling1D" | "GlobalMaxPooling2D" => {
                return self.global_pooling(f, call, full).map(Some);
            }
            "UpSampling2D" => up_sampling(f)?,
            "UpSampling1D" => Built::plain(OverTime::up_sampling(f.single("size")?)),
            "ZeroPadding2D" => {
                let ((top, bottom), (left, right)) = edges(f, "padding")?;
                Built::plain(ZeroPadding2D::new(0).rows(top, bottom).columns(left, right))
            }
            "Cropping2D" => {
                let ((top, bottom), (left, right)) = edges(f, "cropping")?;
                Built::plain(Cropping2D::new(0).rows(top, bottom).columns(left, right))
            }
            "ZeroPadding1D" => f.pair("padding").map(|(before, after)| Built::plain(OverTime::zero_padding(before, after)))?,
            "Cropping1D" => f.pair("cropping").map(|(before, after)| Built::plain(OverTime::cropping(before, after)))?,
            "BatchNormalization" => batch_normalization(f, inference)?,
            "LayerNormalization" => layer_normalization(f)?,
            "GroupNormalization" => {
                let (scale, center) = (f.flag("scale", true)?, f.flag("center", true)?);
                let layer = GroupNorm::new(f.count("groups")?).epsilon(f.number_or("epsilon", 1e-3)? as f32);
                Built::weighted(layer.scale(scale).center(center), affine(scale, center))
            }
            "RMSNormalization" => Built::weighted(RmsNorm::new().epsilon(f.number_or("epsilon", 1e-6)? as f32), &["gamma"]).passing(),
            "Rescaling" => Built::plain(Rescaling::per_channel(numbers(f, "scale", 1.0)?, numbers(f, "offset", 0.0)?)),
            "Normalization" => normalization(f)?,
            "LayerScale" => Built::weighted(LayerScale::new(f.number_or("init_values", 1e-6)? as f32), &["gamma"]),
            "CustomScaleLayer" => {
                let [x, residual] = call.inputs[..] else { return Err(f.problem("expects two inputs")) };
                let scale = Rescaling::new(f.number_or("scale", 1.0)? as f32);
                let scaled = self.plain(&format!("{full}/scale"), scale, &[residual.tensor]);
                Built { reads: Reads::These(vec![x.tensor, scaled]), ..Built::plain(Add) }
            }
            "Activation" => self.activation(f)?.passing(),
            "Softmax" => match f.get("axis") {
                Value::Null => Built::plain(Activation::Softmax).passing(),
                axis if axis.as_i64() == Some(-1) => Built::plain(Activation::Softmax).passing(),
                axis => return Err(f.problem(format!("softmax along the axis {axis}; the last is imported"))),
            },
            "ReLU" => re_lu(f)?.passing(),
            "LeakyReLU" => {
                let slope = f.number_or("negative_slope", f.number_or("alpha", 0.3)?)?;
                Built::plain(LeakyRelu::new(slope as f32)).passing()
            }
            "ELU" => Built::plain(Elu::new(f.number_or("alpha", 1.0)? as f32)).passing(),
            "PReLU" => {
                let shared = f.get("shared_axes").as_array().map_or(0, Vec::len);
                Built::weighted(if shared > 0 { PRelu::new().per_channel() } else { PRelu::new() }, &["alpha"])
            }
            "Flatten" => Built::plain(Flatten),
            "Reshape" => Built::plain(Reshape::inferred(target_shape(f)?)),
            "Permute" => Built::plain(Permute::new(f.counts("dims")?)),
            "RepeatVector" => Built::plain(RepeatVector::new(f.count("n")?)),
            "Add" => Built::plain(Add).passing(),
            "Subtract" => Built::plain(Subtract).passing(),
            "Multiply" => Built::plain(Multiply).passing(),
            "Average" => Built::plain(Average).passing(),
            "Maximum" => Built::plain(Maximum).passing(),
            "Minimum" => Built::plain(Minimum).passing(),
            "Concatenate" => Built::plain(ConcatenateAlong::new(f.get("axis").as_i64().unwrap_or(-1))).passing(),
            "Embedding" => self.embedding(f, call, full)?,
            "Masking" => self.masking(f, call, full)?,
            "LSTM" | "GRU" | "SimpleRNN" => recurrent(f, call)?,
            "Bidirectional" => bidirectional(f, call)?,
            "TimeDistributed" => self.time_distributed(f, call, full, inference)?,
            "MultiHeadAttention" => attention(f, call, inference)?,
            "TFOpLambda" | "SlicingOpLambda" => {
                return Err(f.problem("is an operation of TensorFlow, which Keras 2 stores; save the model with Keras 3"));
            }
            _ => return Err(f.problem("there is no such layer here")),
        };
        Ok(Some(built))
    }

    fn dense(&mut self, f: &Fields<'_>) -> Parsed<Built> {
        let bias = f.flag("use_bias", true)?;
        let layer = Dense::new(f.count("units")?).activation(f.activation("activation")?).bias(bias);
        Ok(Built::weighted(layer.regularizer(f.regularizer("kernel_regularizer")?), kernel(bias)).passing())
    }

    /// `Activation("relu")`, or a layer of Keras in its place.
    fn activation(&mut self, f: &Fields<'_>) -> Parsed<Built> {
        let value = f.get("activation");
        let inner = Fields { name: f.name, class: value["class_name"].as_str().unwrap_or_default(), config: &value["config"] };
        match inner.class {
            "ReLU" => re_lu(&inner),
            "LeakyReLU" => Ok(Built::plain(LeakyRelu::new(inner.number_or("negative_slope", 0.3)? as f32))),
            "ELU" => Ok(Built::plain(Elu::new(inner.number_or("alpha", 1.0)? as f32))),
            _ => f.activation("activation").map(Built::plain),
        }
    }

    fn global_pooling(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<Built> {
        let axes = if f.class.ends_with("1D") { 1 } else { 2 };
        let built = match (f.class.starts_with("GlobalAverage"), call.inputs.first().and_then(|input| input.mask)) {
            (true, Some(mask)) if axes == 1 => {
                let reads = Reads::These(vec![call.inputs[0].tensor, mask]);
                Built { reads, ..Built::plain(MaskedAveragePool) }
            }
            (true, _) => Built::plain(GlobalAveragePool),
            (false, _) => Built::plain(GlobalMaxPool),
        };
        if !f.flag("keepdims", false)? {
            return Ok(built);
        }
        let pooled = self.place(&format!("{full}/pool"), Arc::clone(&built.layer), &built.inputs(call), true);
        Ok(Built { reads: Reads::These(vec![pooled]), ..Built::plain(ExpandDims::new(1).count(axes)) })
    }

    fn embedding(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<Built> {
        let layer = Embedding::new(f.count("input_dim")?, f.count("output_dim")?);
        let built = Built { reads: Reads::First, ..Built::weighted(layer, &["embeddings"]) };
        if !f.flag("mask_zero", false)? {
            return Ok(built);
        }
        let mask = self.plain(&format!("{full}/mask"), ComputeMask::new(0.0), &[call.inputs[0].tensor]);
        Ok(Built { own_mask: Some(mask), ..built })
    }

    fn masking(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str) -> Parsed<Built> {
        let x = call.inputs.first().ok_or_else(|| f.problem("expects an input"))?.tensor;
        let mask = self.plain(&format!("{full}/mask"), ComputeMask::new(f.number_or("mask_value", 0.0)? as f32), &[x]);
        let factors = self.plain(&format!("{full}/factors"), ExpandDims::new(-1), &[mask]);
        Ok(Built { reads: Reads::These(vec![x, factors]), own_mask: Some(mask), ..Built::plain(Multiply) })
    }

    fn time_distributed(&mut self, f: &Fields<'_>, call: &KerasCall<'_>, full: &str, inference: bool) -> Parsed<Built> {
        let inner = f.get("layer");
        let class = inner["class_name"].as_str().unwrap_or_default();
        let fields = Fields { name: f.name, class, config: &inner["config"] };
        if matches!(class, "Functional" | "Sequential" | "Model" | "Bidirectional" | "LSTM" | "GRU" | "MultiHeadAttention" | "Embedding") {
            return Err(f.problem(format!("applies a {class} to every step; layers with one input and no inner layers are imported")));
        }
        let Some(built) = self.layer(&fields, call, full, inference)? else {
            return Err(f.problem(format!("applies a {class} to every step")));
        };
        if !matches!(built.reads, Reads::All) {
            return Err(f.problem(format!("applies a {class} to every step")));
        }
        let slots = built.slots.iter().map(|(path, trainable)| (format!("layer/{path}"), *trainable)).collect();
        let layer = Arc::new(TimeDistributed::of(Arc::clone(&built.layer)));
        Ok(Built { layer, slots, passes_mask: true, ..built })
    }
}

/// One number, or several.
fn numbers(f: &Fields<'_>, key: &str, default: f64) -> Parsed<Vec<f32>> {
    match f.get(key) {
        Value::Array(list) => Ok(list.iter().filter_map(Value::as_f64).map(|number| number as f32).collect()),
        _ => Ok(vec![f.number_or(key, default)? as f32]),
    }
}

fn conv2d(f: &Fields<'_>) -> Parsed<Built> {
    let (size, stride, dilation) = (f.pair("kernel_size")?, f.pair("strides")?, f.pair_or("dilation_rate", 1)?);
    let bias = f.flag("use_bias", true)?;
    let conv = Conv2D::new(f.count("filters")?, 1).size(size.0, size.1).stride(stride.0, stride.1).dilation(dilation.0, dilation.1);
    let conv = conv.groups(f.count_or("groups", 1)?).padding(f.padding()?).activation(f.activation("activation")?).bias(bias);
    Ok(Built::weighted(conv.regularizer(f.regularizer("kernel_regularizer")?), kernel(bias)))
}

fn conv1d(f: &Fields<'_>) -> Parsed<Built> {
    let bias = f.flag("use_bias", true)?;
    let conv = Conv1D::new(f.count("filters")?, f.single("kernel_size")?).stride(f.single("strides")?);
    let conv = conv.dilation(f.single_or("dilation_rate", 1)?).groups(f.count_or("groups", 1)?);
    let conv = if f.text("padding") == "causal" { conv.causal() } else { conv.padding(f.padding()?) };
    let conv = conv.activation(f.activation("activation")?).bias(bias);
    Ok(Built::weighted(conv.regularizer(f.regularizer("kernel_regularizer")?), kernel(bias)))
}

type Pair = (usize, usize);

fn depthwise(f: &Fields<'_>, size: Pair, stride: Pair, dilation: Pair) -> Parsed<(Built, DepthwiseConv2D)> {
    let bias = f.flag("use_bias", true)?;
    let conv = DepthwiseConv2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).dilation(dilation.0, dilation.1);
    let conv = conv.multiplier(f.count_or("depth_multiplier", 1)?).padding(f.padding()?);
    let conv = conv.activation(f.activation("activation")?).bias(bias).regularizer(f.regularizer("depthwise_regularizer")?);
    Ok((Built::weighted(conv.clone(), kernel(bias)), conv))
}

fn separable(f: &Fields<'_>, size: Pair, stride: Pair, dilation: Pair) -> Parsed<(Built, SeparableConv2D)> {
    let (_, depthwise) = depthwise(f, size, stride, dilation)?;
    let conv = SeparableConv2D::new(f.count("filters")?, 1).depthwise(|_| depthwise);
    let names: &[&str] = &["depthwise_kernel", "pointwise_kernel", "bias"];
    let names = if f.flag("use_bias", true)? { names } else { &names[..2] };
    Ok((Built::weighted(conv.clone(), names), conv))
}

fn transposed(f: &Fields<'_>, size: Pair, stride: Pair, dilation: Pair) -> Parsed<(Built, Conv2DTranspose)> {
    let bias = f.flag("use_bias", true)?;
    if !f.get("output_padding").is_null() {
        return Err(f.problem("`output_padding` is not imported"));
    }
    let conv = Conv2DTranspose::new(f.count("filters")?, 1, 1).size(size.0, size.1).stride(stride.0, stride.1);
    let conv = conv.dilation(dilation.0, dilation.1).padding(f.padding()?).activation(f.activation("activation")?).bias(bias);
    let conv = conv.regularizer(f.regularizer("kernel_regularizer")?);
    Ok((Built::weighted(conv.clone(), kernel(bias)), conv))
}

fn up_sampling(f: &Fields<'_>) -> Parsed<Built> {
    let (down, across) = f.pair("size")?;
    let layer = UpSampling2D::new(1).factor(down, across);
    match f.text("interpolation") {
        "nearest" | "" => Ok(Built::plain(layer)),
        "bilinear" => Ok(Built::plain(layer.bilinear())),
        other => Err(f.problem(format!("interpolation \"{other}\"; nearest and bilinear are imported"))),
    }
}

/// `[[top, bottom], [left, right]]`, `[rows, columns]` or one number.
fn edges(f: &Fields<'_>, key: &str) -> Parsed<(Pair, Pair)> {
    let pair = |value: &Value| match value {
        Value::Array(list) => match &list[..] {
            [first, second] => Some((first.as_u64()? as usize, second.as_u64()? as usize)),
            _ => None,
        },
        single => single.as_u64().map(|both| (both as usize, both as usize)),
    };
    let value = f.get(key);
    let found = match value {
        Value::Array(list) if list.len() == 2 => pair(&list[0]).zip(pair(&list[1])),
        single => pair(single).map(|both| (both, both)),
    };
    found.ok_or_else(|| f.problem(format!("`{key}` is {value}, which is not understood")))
}

fn affine(scale: bool, center: bool) -> &'static [&'static str] {
    match (scale, center) {
        (true, true) => &["gamma", "beta"],
        (true, false) => &["gamma"],
        (false, true) => &["beta"],
        (false, false) => &[],
    }
}

/// That normalization is along the last axis.
fn last_axis(f: &Fields<'_>) -> Parsed<()> {
    let axis = f.get("axis");
    let (single, rank) = match axis {
        Value::Array(list) if list.len() == 1 => (list[0].as_i64(), None),
        Value::Array(_) => (None, Some(0)),
        other => (other.as_i64(), None),
    };
    match (single, rank) {
        (None, None) | (Some(-1), _) => Ok(()),
        // Older files count from the front; the channels of images are axis 3, of sequences axis 2.
        (Some(axis), _) if (1..=3).contains(&axis) => Ok(()),
        _ => Err(f.problem(format!("normalizes along the axes {axis}; the last one is imported"))),
    }
}

fn batch_normalization(f: &Fields<'_>, inference: bool) -> Parsed<Built> {
    last_axis(f)?;
    let (scale, center) = (f.flag("scale", true)?, f.flag("center", true)?);
    let norm = BatchNorm::new().momentum(f.number_or("momentum", 0.99)? as f32).epsilon(f.number_or("epsilon", 1e-3)? as f32);
    let norm = norm.scale(scale).center(center).fixed_statistics(inference);
    let names: Vec<&str> = affine(scale, center).iter().copied().chain(["moving_mean", "moving_variance"]).collect();
    Ok(Built::weighted(norm, &names).passing())
}

fn layer_normalization(f: &Fields<'_>) -> Parsed<Built> {
    last_axis(f)?;
    if f.flag("rms_scaling", false)? {
        return Err(f.problem("`rms_scaling` is not imported; use RMSNormalization"));
    }
    let (scale, center) = (f.flag("scale", true)?, f.flag("center", true)?);
    let norm = LayerNorm::new().epsilon(f.number_or("epsilon", 1e-3)? as f32).scale(scale).center(center);
    Ok(Built::weighted(norm, affine(scale, center)).passing())
}

fn normalization(f: &Fields<'_>) -> Parsed<Built> {
    let axes = match f.get("axis") {
        Value::Array(list) => list.len(),
        Value::Null => 0,
        _ => 1,
    };
    let layer = if axes == 0 { Normalization::new().single() } else { Normalization::new() };
    let layer = if f.flag("invert", false)? { layer.invert() } else { layer };
    if axes > 1 {
        return Err(f.problem("normalizes along several axes; the last one is imported"));
    }
    // Given in the configuration, they are no weights.
    if !f.get("mean").is_null() {
        let (mean, variance) = (numbers(f, "mean", 0.0)?, numbers(f, "variance", 1.0)?);
        let deviation: Vec<f32> = variance.iter().map(|variance| variance.sqrt().max(1e-7)).collect();
        if f.flag("invert", false)? {
            return Ok(Built::plain(Rescaling::per_channel(deviation, mean)));
        }
        let scale: Vec<f32> = deviation.iter().map(|deviation| 1.0 / deviation).collect();
        let offset: Vec<f32> = mean.iter().zip(scale.iter().cycle()).map(|(mean, scale)| -mean * scale).collect();
        return Ok(Built::plain(Rescaling::per_channel(scale, offset)));
    }
    // Keras keeps the number of batches that it adapted to as well.
    Ok(Built::weighted(layer, &["mean", "variance"]).and_slot("vars/2"))
}

impl Built {
    /// With one more weight of Keras' that is not used.
    fn and_slot(mut self, path: &str) -> Built {
        self.slots.push((path.to_string(), false));
        self
    }
}

fn re_lu(f: &Fields<'_>) -> Parsed<Built> {
    let layer = ReLu::new().slope(f.number_or("negative_slope", 0.0)? as f32).threshold(f.number_or("threshold", 0.0)? as f32);
    Ok(match f.get("max_value").as_f64() {
        Some(max) => Built::plain(layer.max_value(max as f32)),
        None if f.number_or("negative_slope", 0.0)? == 0.0 && f.number_or("threshold", 0.0)? == 0.0 => Built::plain(Activation::Relu),
        None => Built::plain(layer),
    })
}

fn target_shape(f: &Fields<'_>) -> Parsed<Vec<Option<usize>>> {
    let Value::Array(dims) = f.get("target_shape") else { return Err(f.problem("has no `target_shape`")) };
    let dim = |value: &Value| match value.as_i64() {
        Some(-1) => Ok(None),
        Some(dim) if dim >= 0 => Ok(Some(dim as usize)),
        _ => Err(f.problem(format!("`target_shape` has the axis {value}"))),
    };
    dims.iter().map(dim).collect()
}
