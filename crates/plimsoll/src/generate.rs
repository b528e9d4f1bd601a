//! Text from a trained character model.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::trainer::Trainer;
use plimsoll_core::random::StepRandom;
use plimsoll_data::Vocabulary;
use std::path::Path;

/// How the next character is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Sample only from this many of the most likely characters; from all if `None`.
    pub top_k: Option<usize>,
    /// The seed of the sampling.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.8, top_k: None, seed: 0 }
    }
}

/// A trained character model.
pub struct Generator {
    trainer: Trainer,
    vocabulary: Vocabulary,
    context: usize,
    /// The context window.
    window: Vec<u8>,
    scores: Vec<f32>,
}

impl Generator {
    /// Opens the model of a run folder. The text it was trained on must still be there: its characters are the
    /// vocabulary.
    pub fn open(folder: &Path) -> Result<Generator> {
        let (config, weights) = (folder.join("config.toml"), folder.join("weights.safetensors"));
        let mut config = Config::read(&config)?;
        config.remove_teacher();
        let (vocabulary, context) = config.text()?;
        config.set_value("train.batch", 1)?;
        config.set_value("train.micro_batch", 1)?;
        let mut trainer = Trainer::from(config.build()?).for_prediction();
        if !weights.exists() {
            return Err(Error::Config(format!("{} has no weights.safetensors yet; train the run to its end", folder.display())));
        }
        trainer.load_weights(&weights)?;
        let shape = trainer.prediction_shape()?.to_vec();
        if shape != [context, vocabulary.len()] {
            let what =
                format!("the model predicts {shape:?} values, but {context} positions of {} characters are needed", vocabulary.len());
            return Err(Error::Config(what));
        }
        let scores = vec![0.0; context * vocabulary.len()];
        Ok(Generator { trainer, window: vec![0; 4 * context], context, vocabulary, scores })
    }

    /// Its vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Continues `prompt` with `length` characters; each is passed to `sink` as soon as it is sampled.
    pub fn generate(&mut self, prompt: &str, length: usize, sampling: &Sampling, mut sink: impl FnMut(char)) -> Result<()> {
        let mut tokens = self.vocabulary.encode(prompt)?;
        if tokens.is_empty() {
            return Err(Error::Config("the prompt is empty; give at least one character".to_string()));
        }
        let random = StepRandom { seed: sampling.seed, ..StepRandom::default() };
        for i in 0..length {
            // The last characters, left-aligned: causal attention ignores the padding after them.
            let seen = &tokens[tokens.len().saturating_sub(self.context)..];
            self.window.fill(0);
            for (bytes, token) in self.window.chunks_exact_mut(4).zip(seen) {
                bytes.copy_from_slice(&token.to_ne_bytes());
            }
            self.trainer.predict_row(&self.window, &mut self.scores)?;
            let last = seen.len() - 1;
            let scores = &mut self.scores[last * self.vocabulary.len()..(last + 1) * self.vocabulary.len()];
            let next = sample(scores, sampling, random.uniform(0, i as u64)) as i32;
            tokens.push(next);
            sink(self.vocabulary.char(next).expect("a model has as many scores as there are characters"));
            // Drop characters outside the context window.
            if tokens.len() > 2 * self.context {
                tokens.drain(..tokens.len() - self.context);
            }
        }
        Ok(())
    }
}

/// Samples an index from scores, with `uniform` in [0, 1).
fn sample(scores: &mut [f32], sampling: &Sampling, uniform: f32) -> usize {
    let likeliest = |scores: &[f32]| (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0);
    let top = likeliest(scores);
    if sampling.temperature <= 0.0 {
        return top;
    }
    if let Some(k) = sampling.top_k.filter(|k| (1..scores.len()).contains(k)) {
        let mut sorted = scores.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[k - 1];
        scores.iter_mut().filter(|score| **score < least).for_each(|score| *score = f32::NEG_INFINITY);
    }
    let most = scores[top];
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = ((*score - most) / sampling.temperature).exp();
        sum += *score;
    }
    let mut left = uniform * sum;
    for (i, share) in scores.iter().enumerate() {
        left -= share;
        if left < 0.0 {
            return i;
        }
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_follows_the_scores() {
        let scores = [1.0f32, 3.0, 2.0, -5.0];
        let cold = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(sample(&mut scores.clone(), &cold, 0.99), 1);
        let two = Sampling { temperature: 1.0, top_k: Some(2), seed: 0 };
        let drawn: Vec<usize> = (0..100).map(|i| sample(&mut scores.clone(), &two, i as f32 / 100.0)).collect();
        let share = drawn.iter().filter(|place| **place == 1).count();
        assert!(drawn.iter().all(|place| [1, 2].contains(place)));
        assert!((72..=74).contains(&share), "e³ / (e³ + e²) is 73 %, but {share} of 100 were drawn");
        let all = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(sample(&mut scores.clone(), &all, 0.0), 0);
        assert!(sample(&mut scores.clone(), &all, 0.999_99) < 4);
    }
}
