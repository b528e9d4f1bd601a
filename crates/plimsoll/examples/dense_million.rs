//! A dense layer over a million rows, in a few megabytes.
//!
//! The program behind many reports of running out of memory: 100 numbers in, 10 out, Adam, mean squared error, batches
//! of 32, two passes over 1,000,000 rows. Here the rows are synthetic; give a folder with `x.npy` and `y.npy` to read
//! them from files instead.
//!
//! ```text
//! cargo run --release -p plimsoll --example dense_million [-- ROWS [FOLDER]]
//! ```

use plimsoll::History;
use plimsoll::prelude::*;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let rows = args.next().map_or(Ok(1_000_000), |rows| rows.parse())?;
    run(rows, args.next().as_deref().map(Path::new)).map(drop)
}

/// Trains on `rows` synthetic rows, or on the files of a folder.
pub fn run(rows: u64, folder: Option<&Path>) -> Result<History, Box<dyn std::error::Error>> {
    let data = match folder {
        Some(folder) => Dataset::npy(&[("x", folder.join("x.npy")), ("y", folder.join("y.npy"))])?,
        None => Dataset::random(RandomSpec::new(rows).floats("x", [100]).floats("y", [10]))?,
    };
    let mut trainer = Trainer::new(Sequential::new().add(Dense::new(10)), &data.batch(32))
        .loss(Loss::MeanSquaredError)
        .optimizer(Adam::default())
        .budget(Budget::host("96MiB")?);
    println!("{}\n", trainer.plan(&Fit::epochs(1))?);

    let history = trainer.fit(Fit::epochs(2))?;
    for epoch in &history.epochs {
        println!("epoch {}: loss {:.4}", epoch.epoch, epoch.training.loss);
    }
    let per_step = 1e6 * history.seconds / history.steps as f64;
    println!("{} steps, {per_step:.1} µs each; {} planned, {} measured", history.steps, history.planned, history.measured);
    Ok(history)
}
