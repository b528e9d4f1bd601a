//! Runs TFLite models row by row: predictions of a file, what calibration observes, and the comparison of a file with
//! its network.
//!
//! Real numbers are computed in single precision, int8 in integers: sums in int32, and the multipliers of LiteRT's
//! kernels. Constants are read when their operator runs, or held from the start; results are dropped behind their last
//! reader.

mod check;
mod elements;
mod integer;
mod kernels;
mod movement;
mod windows;

pub(crate) use check::check;
pub(crate) use elements::{Elements, RowTensor, constant};
use elements::{dims, held, held_bytes, is_int8, stored};
pub(crate) use integer::{CELL, CELL_BITS, OUTPUT_STATE};
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, TfliteModel};

/// What happened instead of a result.
pub(crate) type RunResult<T> = std::result::Result<T, String>;

/// A model that is run.
pub(crate) struct Interpreter<'a> {
    model: &'a TfliteModel,
    /// The operator that reads a tensor last; none for outputs.
    last: Vec<Option<usize>>,
    /// By tensor: the constant that it is, itself or one in half precision behind a `DEQUANTIZE`.
    constants: Vec<Option<usize>>,
    /// Constants that stay in memory, by tensor.
    resident: Option<Vec<Option<RowTensor>>>,
}

impl<'a> Interpreter<'a> {
    /// Reads constants whenever their operator runs.
    pub fn new(model: &'a TfliteModel) -> Interpreter<'a> {
        let mut last = vec![Some(0); model.tensors.len()];
        for (i, operator) in model.operators.iter().enumerate() {
            operator.inputs.iter().filter(|tensor| **tensor >= 0).for_each(|tensor| last[*tensor as usize] = Some(i));
            operator.outputs.iter().for_each(|tensor| last[*tensor as usize] = Some(i));
        }
        model.outputs.iter().for_each(|tensor| last[*tensor as usize] = None);
        let is_constant = |tensor: usize| matches!(model.tensors[tensor].contents, Contents::Constant(_));
        let mut constants: Vec<Option<usize>> = (0..model.tensors.len()).map(|tensor| is_constant(tensor).then_some(tensor)).collect();
        for operator in model.operators.iter().filter(|operator| operator.op == BuiltinOp::Dequantize) {
            let (from, to) = (operator.inputs[0] as usize, operator.outputs[0] as usize);
            if is_constant(from) && model.tensors[from].dtype == DType::F16 {
                constants[to] = Some(from);
            }
        }
        Interpreter { model, last, constants, resident: None }
    }

    /// Holds all constants in memory from the start.
    pub fn resident(model: &'a TfliteModel) -> RunResult<Interpreter<'a>> {
        let mut interpreter = Interpreter::new(model);
        let mut values = vec![None; model.tensors.len()];
        for index in interpreter.read_constants() {
            values[index] = Some(interpreter.read(index)?);
        }
        interpreter.resident = Some(values);
        Ok(interpreter)
    }

    /// The constants that operators read, in their order.
    fn read_constants(&self) -> Vec<usize> {
        let mut seen = vec![false; self.model.tensors.len()];
        let inputs = self.active().flat_map(|(_, operator)| &operator.inputs).chain(&self.model.outputs);
        let constants = inputs.filter_map(|tensor| usize::try_from(*tensor).ok()).filter(|tensor| self.constants[*tensor].is_some());
        constants.filter(|tensor| !std::mem::replace(&mut seen[*tensor], true)).collect()
    }

    /// The operators that compute something: `DEQUANTIZE` of a constant is part of reading it.
    fn active(&self) -> impl Iterator<Item = (usize, &'a Operator)> + '_ {
        self.model.operators.iter().enumerate().filter(|(_, operator)| self.constants[operator.outputs[0] as usize].is_none())
    }

    /// A constant as its readers take it.
    fn read(&self, index: usize) -> RunResult<RowTensor> {
        let source = &self.model.tensors[self.constants[index].expect("a constant")];
        if self.is_widened(index) { constant(source).map(RowTensor::Real) } else { stored(source) }
    }

    /// Whether the readers of a constant in int8 compute with real numbers.
    fn is_widened(&self, index: usize) -> bool {
        let reads = |operator: &&Operator| operator.inputs.contains(&(index as i32));
        self.model.operators.iter().filter(reads).any(|operator| integer::widens(self.model, operator))
    }

    fn constant_bytes(&self, index: usize) -> u64 {
        let tensor = &self.model.tensors[index];
        if self.is_widened(index) { 4 * tensor.elements() } else { held_bytes(tensor) }
    }

    /// The bytes of all constants in memory. While one is read, its bytes in the file are held too.
    pub fn resident_bytes(&self) -> u64 {
        let sizes = self.read_constants().into_iter().map(|index| self.constant_bytes(index));
        let (sum, largest) = sizes.fold((0, 0), |(sum, largest), size| (sum + size, u64::max(largest, size)));
        sum + largest
    }

    /// The most bytes that a run holds at once: live results with the scratch of one operator, and its constants unless
    /// all are held.
    pub fn bytes(&self, resident: bool) -> u64 {
        let size = |tensor: &i32| held_bytes(&self.model.tensors[*tensor as usize]);
        let mut live: u64 = self.model.inputs.iter().map(size).sum();
        let mut most = live;
        for (i, operator) in self.active() {
            let inputs = operator.inputs.iter().filter_map(|tensor| usize::try_from(*tensor).ok());
            let constants: u64 = inputs.filter(|tensor| self.constants[*tensor].is_some()).map(|index| self.constant_bytes(index)).sum();
            live += operator.outputs.iter().map(size).sum::<u64>();
            // Constants are read as bytes and held as numbers.
            let read = if resident { 0 } else { 2 * constants };
            most = most.max(live + read + scratch_bytes(self.model, operator));
            live -= self.dropped(operator, i).map(|tensor| size(&(tensor as i32))).sum::<u64>();
        }
        // Outputs are handed over as real numbers.
        most + self.model.outputs.iter().map(|tensor| 4 * self.model.tensors[*tensor as usize].elements()).sum::<u64>()
    }

    /// Results that nothing reads behind this operator.
    fn dropped(&self, operator: &'a Operator, i: usize) -> impl Iterator<Item = usize> + '_ {
        let mut named: Vec<usize> =
            operator.inputs.iter().chain(&operator.outputs).filter(|tensor| **tensor >= 0).map(|tensor| *tensor as usize).collect();
        named.sort_unstable();
        named.dedup();
        let computed = |tensor: &usize| self.constants[*tensor].is_none() && !self.model.tensors[*tensor].variable;
        named.into_iter().filter(computed).filter(move |tensor| self.last[*tensor] == Some(i))
    }

    /// Runs one row. `observe` gets every tensor that is computed, inputs included.
    pub fn run(&self, inputs: &[Vec<f32>], mut observe: impl FnMut(usize, &RowTensor)) -> RunResult<Vec<Elements>> {
        let model = self.model;
        let mut results: Vec<Option<RowTensor>> = vec![None; model.tensors.len()];
        for (numbers, index) in inputs.iter().zip(&model.inputs) {
            let tensor = &model.tensors[*index as usize];
            if numbers.len() as u64 != tensor.elements() {
                return Err(format!("`{}` has {} numbers, but a row has {}", tensor.name, tensor.elements(), numbers.len()));
            }
            let value = held(tensor, numbers.clone());
            observe(*index as usize, &value);
            results[*index as usize] = Some(value);
        }
        for (i, operator) in self.active() {
            let outputs = self.step(operator, &results).map_err(|what| format!("{}: {what}", operator.op.name()))?;
            if let (BuiltinOp::UnidirectionalSequenceLstm, Some(cells)) = (operator.op, outputs.get(1)) {
                observe(operator.inputs[CELL] as usize, cells);
            }
            for (index, value) in operator.outputs.iter().zip(outputs) {
                observe(*index as usize, &value);
                results[*index as usize] = Some(value);
            }
            for tensor in self.dropped(operator, i) {
                results[tensor] = None;
            }
        }
        let output = |index: &i32| {
            let tensor = &model.tensors[*index as usize];
            let real = |value: &RowTensor| Elements { shape: dims(tensor), numbers: value.to_real(tensor).into_owned() };
            match (&results[*index as usize], self.constants[*index as usize]) {
                (Some(value), _) => Ok(real(value)),
                (None, Some(_)) => self.read(*index as usize).map(|value| real(&value)),
                (None, None) => Err("an output is not computed".to_string()),
            }
        };
        model.outputs.iter().map(output).collect()
    }

    /// The results of one operator.
    fn step(&self, operator: &Operator, results: &[Option<RowTensor>]) -> RunResult<Vec<RowTensor>> {
        let named = || operator.inputs.iter().map(|input| usize::try_from(*input).ok());
        let mut loaded: Vec<Option<RowTensor>> = Vec::with_capacity(operator.inputs.len());
        for index in named() {
            let read_now = index.filter(|index| self.resident.is_none() && self.constants[*index].is_some());
            loaded.push(read_now.map(|index| self.read(index)).transpose()?);
        }
        let mut read: Vec<Option<&RowTensor>> = Vec::with_capacity(operator.inputs.len());
        for (index, loaded) in named().zip(&loaded) {
            read.push(match index {
                None => None,
                Some(index) => {
                    let resident = self.resident.as_ref().and_then(|values| values[index].as_ref());
                    let found = results[index].as_ref().or(resident).or(loaded.as_ref());
                    if found.is_none() && !self.model.tensors[index].variable {
                        return Err(format!("`{}` is read before it is computed", self.model.tensors[index].name));
                    }
                    found
                }
            });
        }
        if integer::computes(self.model, operator) {
            return integer::compute(self.model, operator, &read);
        }
        compute(self.model, operator, &read)
    }
}

/// The bytes that an operator holds beside its inputs and results.
fn scratch_bytes(model: &TfliteModel, operator: &Operator) -> u64 {
    let elements = |place: usize| {
        let tensor = operator.inputs.get(place).filter(|tensor| **tensor >= 0);
        tensor.map_or(0, |tensor| model.tensors[*tensor as usize].elements())
    };
    let result = model.tensors[operator.outputs[0] as usize].elements();
    let filters = |place: usize| {
        let shape = operator.inputs.get(place).filter(|tensor| **tensor >= 0).map(|tensor| &model.tensors[*tensor as usize].shape);
        shape.and_then(|shape| shape.first()).map_or(1, |filters| (*filters).max(1) as u64)
    };
    match operator.op {
        // The patches of a tile, the weights of one filter, and of a computed range the integers of the input.
        BuiltinOp::Conv2d => (windows::TILE as u64 + 1) * 4 * (elements(1) / filters(1)) + elements(0),
        BuiltinOp::FullyConnected => 4 * elements(1) / filters(1) + 2 * elements(0),
        BuiltinOp::DepthwiseConv2d => 8 * filters(1).max(1) + elements(0) + 8 * elements(2),
        BuiltinOp::TransposeConv => 4 * result,
        BuiltinOp::BatchMatmul => 4 * (elements(0) + elements(1)),
        BuiltinOp::Mean | BuiltinOp::Sum | BuiltinOp::ReduceMax | BuiltinOp::ArgMax => 8 * elements(0) + 16 * result,
        // Gates, states and the cells of all steps; kernels of integers in 16 bits.
        BuiltinOp::UnidirectionalSequenceLstm => 36 * result + 2 * (1..=8).map(elements).sum::<u64>(),
        _ => 0,
    }
}

/// What an operator of real numbers gives.
fn compute(model: &TfliteModel, operator: &Operator, read: &[Option<&RowTensor>]) -> RunResult<Vec<RowTensor>> {
    let value = |i: usize| read.get(i).copied().flatten().ok_or_else(|| format!("input {i} is missing"));
    let input = |i: usize| value(i)?.real();
    let optional = |i: usize| read.get(i).copied().flatten().map(RowTensor::real).transpose();
    let output = &model.tensors[operator.outputs[0] as usize];
    let shape = dims(output);
    let mut one = match operator.op {
        BuiltinOp::Quantize => return Ok(vec![held(output, input(0)?.numbers.clone())]),
        BuiltinOp::Conv2d => windows::convolution(operator, input(0)?, input(1)?, optional(2)?, shape),
        BuiltinOp::DepthwiseConv2d => windows::depthwise(operator, input(0)?, input(1)?, optional(2)?, shape),
        BuiltinOp::TransposeConv => windows::transposed(operator, input(1)?, input(2)?, optional(3)?, shape),
        BuiltinOp::MaxPool2d | BuiltinOp::AveragePool2d => windows::pool(operator, input(0)?, shape),
        BuiltinOp::FullyConnected => kernels::fully_connected(input(0)?, input(1)?, optional(2)?, shape),
        BuiltinOp::BatchMatmul => kernels::batch_matmul(operator, input(0)?, input(1)?, shape),
        BuiltinOp::Softmax | BuiltinOp::LogSoftmax => kernels::softmax(input(0)?, operator.op == BuiltinOp::LogSoftmax),
        BuiltinOp::Mean | BuiltinOp::Sum | BuiltinOp::ReduceMax => kernels::reduce(operator.op, input(0)?, input(1)?, shape),
        BuiltinOp::ArgMax => kernels::arg_max(input(0)?, input(1)?, shape),
        // Behind the result, the cells of all steps.
        BuiltinOp::UnidirectionalSequenceLstm => return Ok(kernels::lstm(read, shape)?.map(RowTensor::Real).into()),
        BuiltinOp::SelectV2 => kernels::select(input(0)?, input(1)?, input(2)?, shape),
        BuiltinOp::Dequantize => Elements { shape, numbers: input(0)?.numbers.clone() },
        BuiltinOp::Cast => {
            let whole = |number: &f32| match output.dtype {
                DType::Bool => f32::from(u8::from(*number != 0.0)),
                DType::F32 => *number,
                _ => number.trunc(),
            };
            Elements { shape, numbers: input(0)?.numbers.iter().map(whole).collect() }
        }
        BuiltinOp::Shape => {
            let numbers: Vec<f32> = value(0)?.shape().iter().map(|dim| *dim as f32).collect();
            Elements { shape, numbers }
        }
        op => match (kernels::unary(operator), kernels::binary(op)) {
            (Some(of), _) => {
                let x = input(0)?;
                Elements { shape, numbers: x.numbers.iter().map(|x| of(*x)).collect() }
            }
            (None, Some(of)) => kernels::broadcast(input(0)?, input(1)?, shape, of),
            (None, None) => {
                let data: RunResult<Vec<&Elements>> = movement::data_inputs(operator).map(input).collect();
                let zero = if op == BuiltinOp::PadV2 { input(2)?.numbers[0] } else { 0.0 };
                let moved = movement::moved(model, operator, &data?, read, zero)?;
                return Ok(moved.into_iter().map(RowTensor::Real).collect());
            }
        },
    };
    if let Some(limit) = match operator.integer("fused_activation_function") {
        1 => Some(f32::INFINITY),
        3 => Some(6.0),
        _ => None,
    } {
        one.numbers.iter_mut().for_each(|number| *number = number.max(0.0).min(limit));
    }
    Ok(vec![RowTensor::Real(one)])
}
