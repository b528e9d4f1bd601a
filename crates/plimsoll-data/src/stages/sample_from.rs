//! `sample_from`: samples from several data sets.

use super::concatenate::common_schema;
use crate::dataset::{BlockIterator, Dataset, Input, Opening, Stage};
use crate::fault::Fault;
use crate::rng::{random_bits, unit};
use crate::source::RowIterator;
use crate::{DataError, Schema};
use std::hash::Hasher;

struct SampleFrom {
    weights: Vec<f64>,
    seed: u64,
}

impl Dataset {
    /// Takes each row from a data set chosen at random with these weights, until all are exhausted.
    pub fn sample_from(inputs: impl IntoIterator<Item = (Dataset, f64)>, seed: u64) -> Dataset {
        let (inputs, weights): (Vec<Dataset>, Vec<f64>) = inputs.into_iter().unzip();
        Dataset::from_stage(SampleFrom { weights, seed }, inputs)
    }
}

impl Stage for SampleFrom {
    fn describe(&self) -> String {
        let weights: Vec<String> = self.weights.iter().map(f64::to_string).collect();
        format!("sample_from({}, seed {})", weights.join(" : "), self.seed)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        if !self.weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) {
            let (count, weights) = (inputs.len(), &self.weights);
            let problem = format!("sample_from has {count} data sets and the weights {weights:?}; give each one above 0");
            return Err(DataError::Stage(problem));
        }
        common_schema(inputs, &self.describe())
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn identify(&self, hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        self.weights.iter().for_each(|weight| hash.write(&weight.to_bits().to_le_bytes()));
        Ok(None)
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.rows(Sampling::new(inputs.inputs()?, &self.weights, self.seed))
    }
}

/// The running stage.
struct Sampling {
    inputs: Vec<Input>,
    weights: Vec<f64>,
    /// The inputs that are not exhausted.
    left: Vec<usize>,
    seed: u64,
    epoch: u64,
    drawn: u64,
}

impl Sampling {
    fn new(inputs: Vec<Input>, weights: &[f64], seed: u64) -> Sampling {
        Sampling { inputs, weights: weights.to_vec(), left: Vec::new(), seed, epoch: 0, drawn: 0 }
    }
}

impl RowIterator for Sampling {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.drawn) = (epoch, 0);
        self.left.clear();
        self.left.extend(0..self.inputs.len());
        self.inputs.iter_mut().try_for_each(|input| input.begin(epoch))
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.left.is_empty() {
            let all: f64 = self.left.iter().map(|&input| self.weights[input]).sum();
            // An f64 has 53 random bits.
            let mut share = unit(random_bits(self.seed, self.epoch, self.drawn)) * all;
            self.drawn += 1;
            let chosen = self.left.iter().position(|&input| {
                share -= self.weights[input];
                share < 0.0
            });
            let chosen = chosen.unwrap_or(self.left.len() - 1);
            if self.inputs[self.left[chosen]].copy(out)? {
                return Ok(true);
            }
            self.left.remove(chosen);
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}
