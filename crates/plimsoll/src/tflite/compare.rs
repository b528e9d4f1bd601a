//! What calibration measures: the range of every tensor, and what a smaller model loses in each.

use super::interpreter::{Elements, Interpreter, RowTensor, RunResult};
use super::quantize::Range;
use plimsoll_formats::tflite::TfliteModel;
use std::collections::HashMap;

/// Widens the range of every tensor by those of one row.
pub(crate) fn observe(interpreter: &Interpreter<'_>, row: &[Vec<f32>], ranges: &mut [Range]) -> RunResult<()> {
    let observed = |tensor: usize, value: &RowTensor| {
        if let RowTensor::Real(elements) = value {
            ranges[tensor].observe(&elements.numbers);
        }
    };
    interpreter.run(row, observed).map(drop)
}

/// What a tensor lost, in sums over rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TensorError {
    signal: f64,
    noise: f64,
    product: f64,
    found: f64,
    /// The largest difference.
    pub largest: f64,
    /// The largest number of the model in single precision.
    pub scale: f64,
}

impl TensorError {
    fn add(&mut self, wanted: &[f32], found: &[f32]) {
        for (wanted, found) in wanted.iter().zip(found) {
            let (wanted, found) = (f64::from(*wanted), f64::from(*found));
            self.signal += wanted * wanted;
            self.found += found * found;
            self.product += wanted * found;
            self.noise += (wanted - found) * (wanted - found);
            let difference = (wanted - found).abs();
            self.largest = if difference.is_nan() { f64::INFINITY } else { self.largest.max(difference) };
            self.scale = self.scale.max(wanted.abs());
        }
    }

    /// Signal-to-noise ratio in decibels.
    pub fn snr(&self) -> f64 {
        if self.noise == 0.0 { f64::INFINITY } else { 10.0 * (self.signal / self.noise).log10() }
    }

    /// The cosine of the angle between both.
    pub fn cosine(&self) -> f64 {
        let lengths = (self.signal * self.found).sqrt();
        if lengths == 0.0 { 1.0 } else { self.product / lengths }
    }
}

/// Runs a model in single precision and a smaller one on one row, and adds what each tensor of the first loses in the
/// second. Tensors belong together by name: `NAME` and `NAME/int8`. The outputs are compared by position.
pub(crate) fn compare(
    single: &TfliteModel,
    small: &TfliteModel,
    row: &[Vec<f32>],
    errors: &mut HashMap<String, TensorError>,
    outputs: &mut [TensorError],
) -> RunResult<()> {
    let mut kept: HashMap<String, Vec<f32>> = HashMap::new();
    let names: HashMap<&str, usize> = small.tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.as_str(), i)).collect();
    let wanted = Interpreter::new(single).run(row, |tensor, value| {
        let name = &single.tensors[tensor].name;
        if names.contains_key(format!("{name}/int8").as_str()) {
            kept.insert(name.clone(), value.to_real(&single.tensors[tensor]).into_owned());
        }
    })?;
    let found = Interpreter::new(small).run(row, |tensor, value| {
        if let Some(name) = small.tensors[tensor].name.strip_suffix("/int8")
            && let Some(wanted) = kept.get(name)
        {
            errors.entry(name.to_string()).or_default().add(wanted, &value.to_real(&small.tensors[tensor]));
        }
    })?;
    let pair = |(error, (wanted, found)): (&mut TensorError, (&Elements, &Elements))| error.add(&wanted.numbers, &found.numbers);
    outputs.iter_mut().zip(wanted.iter().zip(&found)).for_each(pair);
    Ok(())
}
