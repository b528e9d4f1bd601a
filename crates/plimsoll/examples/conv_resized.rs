//! Images that are resized while they are read, and a convolution over them, within a budget.
//!
//! The other program behind many reports of running out of memory: 28×28 images become 64×64 in the pipeline, then
//! Conv2D(32, 3×3, ReLU) → Flatten → Dense(10), Adam, mean squared error, batches of 32.
//! Resizing everything first would take 16 KiB a row; here only the batches under way exist.
//!
//! ```text
//! cargo run --release -p plimsoll --example conv_resized [-- ROWS]
//! ```

use plimsoll::History;
use plimsoll::nn::{Conv2D, Flatten};
use plimsoll::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows = std::env::args().nth(1).map_or(Ok(20_000), |rows| rows.parse())?;
    run(rows).map(drop)
}

/// Trains on `rows` synthetic images.
pub fn run(rows: u64) -> Result<History, Box<dyn std::error::Error>> {
    let images = Dataset::random(RandomSpec::new(rows).floats("x", [28, 28, 1]).floats("y", [10]))?;
    let data = images.map("x", [resize(64, 64, Method::Bilinear)]).batch(32);
    let model = Sequential::new().add(Conv2D::new(32, 3).relu()).add(Flatten).add(Dense::new(10));
    let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Adam::default()).budget(Budget::host("120MiB")?);
    println!("{}\n", trainer.plan(&Fit::epochs(1))?);

    let history = trainer.fit(Fit::epochs(1))?;
    let per_step = 1e3 * history.seconds / history.steps as f64;
    println!("loss {:.4}", history.epochs[0].training.loss);
    println!("{} steps, {per_step:.2} ms each; {} planned, {} measured", history.steps, history.planned, history.measured);
    Ok(history)
}
