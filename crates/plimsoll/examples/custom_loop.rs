//! A custom training loop: the plan first, then single steps.
//!
//! Trains on the embedded digits from the pipeline, lowers the learning rate when the loss stops falling, and continues
//! with rows that the program generates, passed as slices. The whole run stays within the budget that was planned
//! before the first step.
//!
//! ```text
//! cargo run --release -p plimsoll --example custom_loop [-- EPOCHS]
//! ```

use plimsoll::prelude::*;
use plimsoll::{CustomLoop, HostBatch};
use std::path::Path;

/// Rows of a batch.
const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let epochs = std::env::args().nth(1).map_or(Ok(4), |epochs| epochs.parse())?;
    let folder = std::env::temp_dir();
    run(epochs, &folder.join("custom_loop.safetensors")).map(drop)
}

/// Trains, writes the weights, and returns the loss of the first step and of the generated rows at the end.
pub fn run(epochs: u64, weights: &Path) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(1)).map("x", [scale(1.0 / 16.0)]).batch(BATCH);
    let trainer = Trainer::new(zoo::mlp(10), &data).optimizer(Adam::new(2e-3)).budget(Budget::host("96MiB")?);
    let mut run = trainer.custom_loop()?;
    println!("{}\n", run.plan());

    let mut first = None;
    let mut best = f64::INFINITY;
    let mut batches = run.batches(epochs)?;
    for epoch in 1..=epochs {
        let (mut sum, mut steps) = (0.0, 0);
        while let Some(scores) = run.step_from(&mut batches)? {
            first.get_or_insert(scores.loss);
            sum += scores.loss;
            steps += 1;
        }
        let mean = sum / f64::from(steps);
        println!("epoch {epoch}: loss {mean:.4} at a learning rate of {:.1e}", run.learning_rate()?);
        if mean > 0.9 * best {
            let lower = run.learning_rate()? / 2.0;
            run.set_learning_rate(lower)?;
        }
        best = best.min(mean);
    }
    drop(batches);

    let last = stripes(&mut run)?;
    run.save_weights(weights)?;
    println!("{} steps; the loss of stripes without noise is {last:.4}", run.steps());
    Ok((first.unwrap_or(f64::NAN), last))
}

/// Trains on generated rows. Returns the loss of rows without noise.
fn stripes(run: &mut CustomLoop) -> Result<f64, Box<dyn std::error::Error>> {
    let (pixels, labels) = one_batch();
    let mut noisy = pixels.clone();
    for round in 0..20u32 {
        for (i, (out, pixel)) in noisy.iter_mut().zip(&pixels).enumerate() {
            let noise = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(round.wrapping_mul(40_503)) >> 8;
            *out = pixel + (noise % 1000) as f32 / 5000.0 - 0.1;
        }
        run.step(&HostBatch::new(BATCH).column("x", &noisy[..]).column("y", &labels[..]))?;
    }
    let clean = HostBatch::new(BATCH).column("x", &pixels[..]).column("y", &labels[..]);
    let scores = run.forward(&HostBatch::new(BATCH).column("x", &pixels[..]))?;
    println!("the first label is {} and scores {:?}", labels[0], &scores[0].values[..10]);
    Ok(run.evaluate(&clean)?.loss)
}

/// Images with one row lit, whose index is the label.
fn one_batch() -> (Vec<f32>, Vec<i32>) {
    let labels: Vec<i32> = (0..BATCH as i32).map(|row| row % 8).collect();
    let pixels = labels.iter().flat_map(|label| (0..64).map(move |i| if i / 8 == *label { 1.0 } else { 0.0 })).collect();
    (pixels, labels)
}
