//! LSTM operators in int8: kernels with one scale each, the state of the output in int8, that of the cell in 16 bits.

use super::Conversion;
use crate::tflite::interpreter::{CELL, CELL_BITS, OUTPUT_STATE};
use crate::tflite::quantize::Range;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Operator, Quantization, TfliteTensor};

/// Whether the numbers of the cell are beyond those that the integers of the operator have.
pub(super) fn has_wide_cell(operator: &Operator, ranges: &[Range]) -> bool {
    operator.op == BuiltinOp::UnidirectionalSequenceLstm && cell_bits(ranges[operator.inputs[CELL] as usize]) > CELL_BITS
}

/// The integer bits of a cell: its scale is a power of two. LiteRT computes no fewer than zero.
fn cell_bits(range: Range) -> i32 {
    f64::from(range.max.max(-range.min)).max(1.0).log2().ceil() as i32
}

impl Conversion<'_> {
    pub(super) fn lstm(&mut self, operator: &Operator) -> Result<(), String> {
        let mut written = operator.clone();
        written.inputs[0] = self.as_integer(operator.inputs[0])?;
        for at in 1..=8 {
            written.inputs[at] = self.weight(operator.inputs[at], None)?;
        }
        for gate in 0..4 {
            written.inputs[12 + gate] = self.bias(operator.inputs[12 + gate], written.inputs[0], written.inputs[1 + gate]);
        }
        let output = operator.outputs[0];
        let quantization = self.groups.quantization(output as usize);
        let of_cell = Quantization::per_tensor(2.0_f32.powi(cell_bits(self.groups.range[operator.inputs[CELL] as usize]) - 15), 0);
        let states = [(OUTPUT_STATE, DType::I8, &quantization), (CELL, DType::I16, &of_cell)];
        for (at, dtype, quantization) in states {
            written.inputs[at] = self.small.computed(operator.inputs[at] as usize, "/integers", dtype, Some(quantization.clone()));
        }
        // Sums of the gates have a scale only with layer normalization; the output has one before a projection.
        let name = self.model.tensors[output as usize].name.clone();
        written.intermediates = ["input", "forget", "candidate", "output", "hidden"]
            .iter()
            .map(|of| {
                let mut tensor = TfliteTensor::computed(&format!("{name}/intermediate_{of}"), DType::F32, vec![0]);
                if *of == "hidden" {
                    (tensor.dtype, tensor.quantization) = (DType::I8, Some(quantization.clone()));
                }
                self.small.model.tensors.push(tensor);
                self.small.model.tensors.len() as i32 - 1
            })
            .collect();
        written.outputs[0] = self.small.computed(output as usize, "/int8", DType::I8, Some(quantization));
        self.integers.insert(output, written.outputs[0]);
        self.small.model.operators.push(written);
        Ok(())
    }
}
