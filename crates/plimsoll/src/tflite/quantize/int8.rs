//! Models in int8: weights with one scale per channel, activations with one scale and zero point, biases in int32.

mod recurrent;

use super::parameters::{Range, symmetric};
use super::{SmallModel, is_float_constant, weight_of};
use crate::tflite::interpreter::constant;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Operator, Quantization, TfliteModel, TfliteTensor};
use std::collections::{HashMap, HashSet};

/// What is chosen for a model in int8.
pub(crate) struct Int8Options<'a> {
    /// Whether a layer stays in single precision, by the name of its result.
    pub keep: &'a dyn Fn(&str) -> bool,
    /// Whether inputs and outputs are int8 too.
    pub integer_io: bool,
    /// Whether ranges were trained: layers without one stay in single precision.
    pub trained: bool,
}

/// Constants beyond this are no numbers of a network, such as those that hide a score.
const LARGEST: f32 = 1e6;

/// How an operator treats the scale of its result.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// A range of its own.
    Own,
    /// That of its input.
    Shared,
    /// One scale of all inputs and the result.
    Joined,
    /// Known from the function.
    Fixed(f32, i64),
    /// There is no int8 operator, or none that is written.
    None,
}

fn scale_of(op: BuiltinOp) -> Scale {
    match op {
        BuiltinOp::Conv2d
        | BuiltinOp::DepthwiseConv2d
        | BuiltinOp::FullyConnected
        | BuiltinOp::TransposeConv
        | BuiltinOp::BatchMatmul
        | BuiltinOp::UnidirectionalSequenceLstm
        | BuiltinOp::Add
        | BuiltinOp::Sub
        | BuiltinOp::Mul
        | BuiltinOp::Mean
        | BuiltinOp::Gelu
        | BuiltinOp::HardSwish
        | BuiltinOp::Relu
        | BuiltinOp::Relu6
        | BuiltinOp::LeakyRelu => Scale::Own,
        // That of its table, which is looked up with the other fixed ones.
        BuiltinOp::Gather => Scale::Own,
        BuiltinOp::MaxPool2d
        | BuiltinOp::AveragePool2d
        | BuiltinOp::Reshape
        | BuiltinOp::Transpose
        | BuiltinOp::Pad
        | BuiltinOp::StridedSlice
        | BuiltinOp::Split
        | BuiltinOp::Unpack
        | BuiltinOp::ResizeNearestNeighbor => Scale::Shared,
        BuiltinOp::Concatenation | BuiltinOp::Pack => Scale::Joined,
        BuiltinOp::Softmax | BuiltinOp::Logistic => Scale::Fixed(1.0 / 256.0, -128),
        BuiltinOp::Tanh => Scale::Fixed(1.0 / 128.0, 0),
        _ => Scale::None,
    }
}

/// Completes ranges that were trained: those of tensors with the scale of another one, and those that are known.
pub(crate) fn complete_ranges(model: &TfliteModel, ranges: &mut [Range]) {
    for operator in &model.operators {
        let of_inputs = match scale_of(operator.op) {
            Scale::Shared => ranges[operator.inputs[usize::from(operator.op == BuiltinOp::Split)] as usize],
            Scale::Joined => operator.inputs.iter().fold(Range::default(), |all, input| all.union(ranges[*input as usize])),
            Scale::Fixed(scale, zero) => {
                let number = |integer: i64| (integer - zero) as f32 * scale;
                Range { min: number(-128), max: number(127), broken: false }
            }
            Scale::Own | Scale::None => continue,
        };
        for output in &operator.outputs {
            if ranges[*output as usize].is_empty() {
                ranges[*output as usize] = of_inputs;
            }
        }
    }
}

/// Tensors that share a scale: each points towards the one that stands for all.
struct Groups {
    parent: Vec<usize>,
    fixed: Vec<Option<(f32, i64)>>,
    range: Vec<Range>,
}

impl Groups {
    fn find(&mut self, mut at: usize) -> usize {
        while self.parent[at] != at {
            self.parent[at] = self.parent[self.parent[at]];
            at = self.parent[at];
        }
        at
    }

    /// Gives the members of `b` the scale of `a`; false if both are fixed and differ.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return true;
        }
        match (self.fixed[a], self.fixed[b]) {
            (Some(one), Some(other)) if one != other => return false,
            (None, found) => self.fixed[a] = found,
            _ => {}
        }
        self.range[a] = self.range[a].union(self.range[b]);
        self.parent[b] = a;
        true
    }

    fn quantization(&mut self, tensor: usize) -> Quantization {
        let at = self.find(tensor);
        match self.fixed[at] {
            Some((scale, zero)) => Quantization::per_tensor(scale, zero),
            None => self.range[at].asymmetric(),
        }
    }
}

/// Converts a model, given the range of every tensor over the rows of the calibration.
///
/// # Errors
/// If ranges are empty or not finite: all such tensors are listed.
pub(crate) fn to_int8(model: &TfliteModel, ranges: &[Range], options: &Int8Options<'_>) -> Result<SmallModel, String> {
    let mut conversion = Conversion::new(model, ranges, options)?;
    for (i, operator) in model.operators.iter().enumerate() {
        if conversion.quantized[i] { conversion.integer(operator)? } else { conversion.float(operator) }
    }
    conversion.outputs(options.integer_io);
    Ok(conversion.small.finish())
}

struct Conversion<'a> {
    model: &'a TfliteModel,
    small: SmallModel,
    groups: Groups,
    /// Operators in int8.
    quantized: Vec<bool>,
    /// Tensors as int8, by tensor.
    integers: HashMap<i32, i32>,
    /// Tensors that exist in single precision.
    floats: HashSet<i32>,
    /// Weights by tensor.
    weights: HashMap<i32, i32>,
    /// Constants beside activations by tensor, such as tables: they have all 256 integers.
    constants: HashMap<i32, i32>,
    /// Biases by tensor, scale of the input and weight.
    biases: HashMap<(i32, u32, i32), i32>,
    /// Inputs of joined operators that need a scale of their own.
    apart: HashSet<i32>,
}

impl<'a> Conversion<'a> {
    fn new(model: &'a TfliteModel, ranges: &[Range], options: &Int8Options<'_>) -> Result<Conversion<'a>, String> {
        let mut small = SmallModel::new(model);
        let steps = steps_of(model);
        let mut ranges = ranges.to_vec();
        for (first, other) in &steps {
            ranges[*first] = ranges[*first].union(ranges[*other]);
        }
        steps.iter().for_each(|(first, other)| ranges[*other] = ranges[*first]);
        let ranges = &ranges[..];
        let quantized = chosen(model, ranges, options, &mut small.float)?;
        let mut groups =
            Groups { parent: (0..model.tensors.len()).collect(), fixed: vec![None; model.tensors.len()], range: ranges.to_vec() };
        let mut apart = HashSet::new();
        let active = || model.operators.iter().zip(&quantized).filter(|(_, quantized)| **quantized).map(|(operator, _)| operator);
        for operator in active() {
            if let Scale::Fixed(scale, zero) = scale_of(operator.op) {
                groups.fixed[operator.outputs[0] as usize] = Some((scale, zero));
            }
            if operator.op == BuiltinOp::Gather {
                let table = range_of(&model.tensors[operator.inputs[0] as usize])?.asymmetric();
                groups.fixed[operator.outputs[0] as usize] = Some((table.scales[0], table.zero_points[0]));
            }
        }
        for (first, other) in steps {
            groups.join(first, other);
        }
        for operator in active().filter(|operator| scale_of(operator.op) == Scale::Shared) {
            let input = operator.inputs[usize::from(operator.op == BuiltinOp::Split)] as usize;
            for output in &operator.outputs {
                groups.join(input, *output as usize);
            }
        }
        for operator in active().filter(|operator| scale_of(operator.op) == Scale::Joined) {
            let result = operator.outputs[0] as usize;
            for input in &operator.inputs {
                let at = groups.find(*input as usize);
                if groups.fixed[at].is_some() || is_float_constant(&model.tensors[*input as usize]) {
                    apart.insert(*input);
                } else {
                    groups.join(result, at);
                }
            }
        }
        let mut conversion = Conversion {
            model,
            small,
            groups,
            quantized,
            integers: HashMap::new(),
            floats: HashSet::new(),
            weights: HashMap::new(),
            constants: HashMap::new(),
            biases: HashMap::new(),
            apart,
        };
        conversion.inputs(options.integer_io);
        Ok(conversion)
    }

    /// Inputs of the graph: in single precision with a `QUANTIZE` behind them, or int8.
    fn inputs(&mut self, integer: bool) {
        for (at, index) in self.model.inputs.iter().enumerate() {
            self.floats.insert(*index);
            let is_float = self.model.tensors[*index as usize].dtype == DType::F32;
            if integer && is_float {
                let quantization = self.groups.quantization(*index as usize);
                let tensor = &mut self.small.model.tensors[*index as usize];
                (tensor.dtype, tensor.quantization) = (DType::I8, Some(quantization));
                self.small.model.inputs[at] = *index;
                self.integers.insert(*index, *index);
                self.floats.remove(index);
            }
        }
    }

    fn outputs(&mut self, integer: bool) {
        for at in 0..self.model.outputs.len() {
            let index = self.model.outputs[at];
            self.small.model.outputs[at] = match self.integers.get(&index) {
                Some(found) if integer => *found,
                _ => self.as_float(index),
            };
        }
    }

    /// A tensor in single precision.
    fn as_float(&mut self, index: i32) -> i32 {
        if index >= 0
            && !self.floats.contains(&index)
            && let Some(integer) = self.integers.get(&index).copied()
        {
            if integer == index {
                // An input in int8 has no place in single precision.
                let float = self.small.computed(index as usize, "/f32", DType::F32, None);
                self.small.change(BuiltinOp::Dequantize, integer, float);
                return float;
            }
            self.small.change(BuiltinOp::Dequantize, integer, index);
            self.floats.insert(index);
        }
        index
    }

    /// A tensor as int8; integers such as shapes stay as they are.
    fn as_integer(&mut self, index: i32) -> Result<i32, String> {
        let Some(tensor) = usize::try_from(index).ok().map(|at| &self.model.tensors[at]) else { return Ok(index) };
        if tensor.dtype != DType::F32 {
            return Ok(index);
        }
        if let Some(found) = self.integers.get(&index).or_else(|| self.constants.get(&index)) {
            return Ok(*found);
        }
        if is_float_constant(tensor) {
            let range = range_of(tensor)?;
            let new = self.small.converted(index as usize, format!("{}/int8_constant", tensor.name), DType::I8, Some(range.asymmetric()));
            self.constants.insert(index, new);
            return Ok(new);
        }
        let quantization = self.groups.quantization(index as usize);
        let new = self.small.computed(index as usize, "/int8", DType::I8, Some(quantization));
        self.small.change(BuiltinOp::Quantize, index, new);
        self.integers.insert(index, new);
        Ok(new)
    }

    fn float(&mut self, operator: &Operator) {
        let mut operator = operator.clone();
        operator.inputs.iter_mut().for_each(|input| *input = self.as_float(*input));
        self.floats.extend(&operator.outputs);
        self.small.model.operators.push(operator);
    }

    fn integer(&mut self, operator: &Operator) -> Result<(), String> {
        if operator.op == BuiltinOp::UnidirectionalSequenceLstm {
            return self.lstm(operator);
        }
        let mut written = operator.clone();
        let weight = weight_of(operator.op);
        for (at, input) in operator.inputs.iter().enumerate() {
            written.inputs[at] = match weight {
                Some((place, axis)) if place == at => self.weight(*input, Some(axis))?,
                // Biases follow from the scales of both operands.
                Some((place, _)) if at == place + 1 && operator.op != BuiltinOp::TransposeConv => *input,
                Some(_) if at == 3 => *input,
                _ => self.as_integer(*input)?,
            };
        }
        if let Some((place, _)) = weight {
            let (data, bias) = if operator.op == BuiltinOp::TransposeConv { (2, 3) } else { (0, place + 1) };
            if let Some(index) = operator.inputs.get(bias).copied().filter(|index| *index >= 0) {
                written.inputs[bias] = self.bias(index, written.inputs[data], written.inputs[place]);
            }
        }
        if scale_of(operator.op) == Scale::Joined {
            // A part with a scale of its own gets that of the whole.
            let whole = self.groups.quantization(operator.outputs[0] as usize);
            for at in 0..operator.inputs.len() {
                if self.apart.contains(&operator.inputs[at]) {
                    let moved = self.small.computed(
                        written.inputs[at] as usize,
                        &format!("/requantized_{}", self.small.model.tensors.len()),
                        DType::I8,
                        Some(whole.clone()),
                    );
                    self.small.change(BuiltinOp::Quantize, written.inputs[at], moved);
                    written.inputs[at] = moved;
                }
            }
        }
        for output in &mut written.outputs {
            let quantization = self.groups.quantization(*output as usize);
            let new = self.small.computed(*output as usize, "/int8", DType::I8, Some(quantization));
            self.integers.insert(*output, new);
            *output = new;
        }
        self.small.model.operators.push(written);
        Ok(())
    }

    /// A weight with one scale per index of an axis, or one for all.
    fn weight(&mut self, index: i32, axis: Option<i32>) -> Result<i32, String> {
        if let Some(found) = self.weights.get(&index) {
            return Ok(*found);
        }
        let tensor = &self.model.tensors[index as usize];
        let quantization = symmetric(tensor, axis)?;
        let new = self.small.converted(index as usize, format!("{}/int8", tensor.name), DType::I8, Some(quantization));
        self.weights.insert(index, new);
        Ok(new)
    }

    /// A bias in int32, whose scales are the products of the operands' scales. Behind another input it has other
    /// scales.
    fn bias(&mut self, index: i32, data: i32, weight: i32) -> i32 {
        let scale = |tensor: i32| self.small.model.tensors[tensor as usize].quantization.clone().expect("int8 has scales");
        let (data, weights) = (scale(data).scales[0], scale(weight).scales);
        let key = (index, data.to_bits(), weight);
        if let Some(known) = self.biases.get(&key) {
            return *known;
        }
        let scales: Vec<f32> = weights.iter().map(|scale| scale * data).collect();
        let quantization = Quantization { zero_points: vec![0; scales.len()], scales, axis: 0 };
        let name = format!("{}/int32_{}", self.model.tensors[index as usize].name, self.small.model.tensors.len());
        let new = self.small.converted(index as usize, name, DType::I32, Some(quantization));
        self.biases.insert(key, new);
        new
    }
}

/// Tensors that are the same at another step of a layer that is written step by step: inputs and results of operators
/// with the same weights. With one scale, they also have one bias.
fn steps_of(model: &TfliteModel) -> Vec<(usize, usize)> {
    let mut firsts: HashMap<(i32, i32), (usize, usize)> = HashMap::new();
    let mut found = Vec::new();
    for operator in &model.operators {
        let Some((place, _)) = weight_of(operator.op) else { continue };
        let data = operator.inputs[if operator.op == BuiltinOp::TransposeConv { 2 } else { 0 }] as usize;
        let bias = operator.inputs.get(place + 1).copied().unwrap_or(-1);
        let output = operator.outputs[0] as usize;
        let (first_data, first_output) = *firsts.entry((operator.inputs[place], bias)).or_insert((data, output));
        if first_output != output {
            found.extend([(first_data, data), (first_output, output)].into_iter().filter(|(first, other)| first != other));
        }
    }
    found
}

/// The range of a constant.
fn range_of(tensor: &TfliteTensor) -> Result<Range, String> {
    let mut range = Range::default();
    range.observe(&constant(tensor)?.numbers);
    if range.broken { Err(format!("the constant `{}` has a number that is not finite", tensor.name)) } else { Ok(range) }
}

/// Which operators are in int8. What stays in single precision is reported with the reason.
fn chosen(
    model: &TfliteModel,
    ranges: &[Range],
    options: &Int8Options<'_>,
    float: &mut Vec<(String, String)>,
) -> Result<Vec<bool>, String> {
    let mut problems = Vec::new();
    let mut integer: HashSet<i32> = model.inputs.iter().copied().collect();
    let mut quantized = Vec::with_capacity(model.operators.len());
    for operator in &model.operators {
        let result = &model.tensors[operator.outputs[0] as usize];
        let mut why = float_because(model, operator, options, &integer)?;
        if why.is_none() && options.trained && has_no_range(model, ranges, operator) {
            why = Some("it was not trained for int8".to_string());
        }
        if why.is_none() && recurrent::has_wide_cell(operator, ranges) {
            why = Some("its cell has larger numbers than the integers have".to_string());
        }
        quantized.push(why.is_none());
        match why {
            Some(why) if result.dtype == DType::F32 && !why.is_empty() => float.push((result.name.clone(), why)),
            Some(_) => {}
            None => {
                let named = operator.inputs.iter().chain(&operator.outputs).filter(|index| **index >= 0);
                for index in named.filter(|index| !is_float_constant(&model.tensors[**index as usize])) {
                    let (tensor, range) = (&model.tensors[*index as usize], ranges[*index as usize]);
                    if tensor.dtype != DType::F32 || tensor.variable {
                        continue;
                    }
                    if range.broken {
                        problems.push(format!("`{}` has numbers that are not finite", tensor.name));
                    } else if range.is_zero() || range.is_empty() {
                        problems.push(format!("`{}` is always zero: its range is empty", tensor.name));
                    }
                }
                integer.extend(&operator.outputs);
            }
        }
    }
    if problems.is_empty() {
        return Ok(quantized);
    }
    let mut seen = HashSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
    let hint = "Calibrate with rows that are like those of the task, or keep these layers in single precision with --keep-float";
    Err(format!("the rows of the calibration give no scale:\n  {}\n{hint}", problems.join("\n  ")))
}

/// Whether an operand or the result of an operator has no range.
fn has_no_range(model: &TfliteModel, ranges: &[Range], operator: &Operator) -> bool {
    let named = operator.inputs.iter().chain(&operator.outputs).filter_map(|index| usize::try_from(*index).ok());
    let computed = |index: &usize| model.tensors[*index].dtype == DType::F32 && !is_float_constant(&model.tensors[*index]);
    named.filter(computed).any(|index| ranges[index].is_empty())
}

/// Why an operator stays in single precision; an empty reason is none to report.
fn float_because(
    model: &TfliteModel,
    operator: &Operator,
    options: &Int8Options<'_>,
    integer: &HashSet<i32>,
) -> Result<Option<String>, String> {
    let result = &model.tensors[operator.outputs[0] as usize];
    let scale = scale_of(operator.op);
    if result.dtype != DType::F32 {
        return Ok(Some(String::new()));
    }
    if scale == Scale::None {
        return Ok(Some(format!("{} stays in single precision", operator.op.name())));
    }
    if (options.keep)(&result.name) {
        return Ok(Some("kept by a pattern".to_string()));
    }
    if operator.op == BuiltinOp::Gather && !is_float_constant(&model.tensors[operator.inputs[0] as usize]) {
        return Ok(Some("its table is computed".to_string()));
    }
    let data = operator.inputs[usize::from(operator.op == BuiltinOp::Split)];
    if matches!(scale, Scale::Shared | Scale::Joined) && !integer.contains(&data) {
        return Ok(Some("its input is in single precision".to_string()));
    }
    if matches!(operator.op, BuiltinOp::Add | BuiltinOp::Sub | BuiltinOp::Mul) {
        for index in &operator.inputs {
            let tensor = &model.tensors[*index as usize];
            if is_float_constant(tensor) {
                let most = constant(tensor)?.numbers.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
                if most > LARGEST {
                    return Ok(Some("a constant of it hides scores, and has no scale".to_string()));
                }
            }
        }
    }
    Ok(None)
}
