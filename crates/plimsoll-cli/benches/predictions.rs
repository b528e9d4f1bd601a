//! Predicted beside measured step times of networks of the zoo, after a calibration and after one run of each.
//!
//! ```text
//! cargo bench -p plimsoll-cli --bench predictions
//! ```
//!
//! Rates are stored in a temporary cache folder, so that each time is a first time. Measured is the median step of a
//! run, without the time in which its thread waited for a processor.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Networks with their batch, steps per run and settings.
const RUNS: [(&str, u32, u32, &[&str]); 16] = [
    ("mlp", 64, 200, &[]),
    ("mlp", 1024, 40, &[]),
    ("digits-cnn", 64, 200, &[]),
    ("lenet5", 64, 60, &[]),
    ("cifar-cnn", 32, 25, &[]),
    ("cifar-cnn", 128, 10, &[]),
    ("autoencoder", 32, 25, &[]),
    ("lstm", 32, 25, &[]),
    ("gru", 64, 20, &[]),
    ("resnet18", 8, 10, &["--input", "64x64"]),
    ("resnet50", 4, 8, &["--input", "96x96"]),
    ("mobilenet-v1", 8, 10, &["--input", "96x96"]),
    ("mobilenet-v2", 4, 10, &["--input", "96x96"]),
    ("unet", 2, 8, &["--input", "64x64", "--set", "model.width=0.25"]),
    ("vit-tiny", 2, 8, &[]),
    ("char-gpt", 2, 8, &["--set", "model.context=128"]),
];

fn main() {
    let folder = std::env::temp_dir().join(format!("plimsoll-predictions-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let start = Instant::now();
    run(&folder, &["calibrate", "--quiet"]);
    println!("calibrated in {:.1} s\n", start.elapsed().as_secs_f64());
    let names: Vec<String> = RUNS.iter().map(|(name, batch, _, more)| format!("{name} · {batch} {}", more.join(" "))).collect();
    let first: Vec<f64> = RUNS.iter().map(|run| predicted(&folder, run)).collect();
    let measured: Vec<f64> = RUNS.iter().map(|run| trained(&folder, run)).collect();
    let second: Vec<f64> = RUNS.iter().map(|run| predicted(&folder, run)).collect();
    println!("{:<52} {:>10} {:>10} {:>6} {:>12} {:>6}", "network · batch", "predicted", "measured", "ratio", "after runs", "ratio");
    for (i, name) in names.iter().enumerate() {
        let (before, after) = (measured[i] / first[i], measured[i] / second[i]);
        let milliseconds = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
        println!(
            "{name:<52} {:>10} {:>10} {before:>6.2} {:>12} {after:>6.2}",
            milliseconds(first[i]),
            milliseconds(measured[i]),
            milliseconds(second[i])
        );
    }
    for (when, predicted) in [("after calibration", &first), ("after one run of each", &second)] {
        let mut ratios: Vec<f64> = measured.iter().zip(predicted).map(|(measured, predicted)| measured / predicted).collect();
        ratios.sort_by(f64::total_cmp);
        let mut errors: Vec<f64> = ratios.iter().map(|ratio| ratio.ln().abs().exp()).collect();
        errors.sort_by(f64::total_cmp);
        let middle = RUNS.len() / 2;
        println!("{when}: median ratio {:.2}, median error {:.2}×, worst {:.2}×", ratios[middle], errors[middle], errors[RUNS.len() - 1]);
    }
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

/// The predicted seconds of a step.
fn predicted(folder: &Path, (name, batch, _, more): &(&str, u32, u32, &[&str])) -> f64 {
    let batch = batch.to_string();
    let document = run(folder, &[&["plan", "--zoo", name, "--batch", &batch, "--json"], *more].concat());
    assert_eq!(document["predicted_by"], "measured speeds");
    document["predicted_step_s"].as_f64().expect("a plan predicts its step time")
}

/// The seconds of the median step of a run.
fn trained(folder: &Path, (name, batch, steps, more): &(&str, u32, u32, &[&str])) -> f64 {
    let (rows, batch) = (format!("data.rows={}", batch * steps), batch.to_string());
    let out: PathBuf = folder.join(format!("{name}-{batch}"));
    let out = out.to_str().expect("paths here are text");
    let arguments = ["train", "--zoo", name, "--batch", &batch, "--set", &rows, "--epochs", "1", "--json", "--quiet", "--out", out];
    let document = run(folder, &[&arguments, *more].concat());
    document["measured_step_s"].as_f64().expect("a run measures its steps")
}

/// Runs a command with a cache folder of its own; the document that it prints.
fn run(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).env("XDG_CACHE_HOME", folder.join("cache")).env_remove("PLIMSOLL_NO_CALIBRATE");
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}
