//! Interrupted and resumed runs: bit-identical files.

use super::{Sandbox, command};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

const RUN: [&str; 6] = ["train", "--epochs", "4", "--seed", "3", "--quiet"];

/// Checkpoints within epochs, so that most are in the middle of one.
const OFTEN: [&str; 2] = ["--set", "checkpoint.every_steps=7"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().chain(&OFTEN).chain(more).copied().collect()
}

fn newest(sandbox: &Sandbox, folder: &str, suffix: &str) -> PathBuf {
    let files = std::fs::read_dir(sandbox.path(folder).join("checkpoints")).unwrap();
    let mut files: Vec<PathBuf> =
        files.map(|entry| entry.unwrap().path()).filter(|path| path.to_string_lossy().ends_with(suffix)).collect();
    files.sort();
    files.pop().expect("there is a checkpoint")
}

fn scores(sandbox: &Sandbox, folder: &str) -> Vec<serde_json::Value> {
    let report = std::fs::read_to_string(sandbox.path(folder).join("report.json")).unwrap();
    let mut epochs = serde_json::from_str::<serde_json::Value>(&report).unwrap()["epochs"].as_array().unwrap().clone();
    for epoch in &mut epochs {
        let object = epoch.as_object_mut().unwrap();
        object.retain(|name, _| name != "seconds" && name != "examples_per_s");
    }
    epochs
}

pub fn weights(sandbox: &Sandbox, folder: &str) -> Vec<u8> {
    std::fs::read(sandbox.path(folder).join("weights.safetensors")).unwrap()
}

/// Kills a run after some milliseconds; returns whether it was still running.
pub fn kill_after(sandbox: &Sandbox, arguments: &[&str], milliseconds: u64) -> bool {
    let mut child = command().args(arguments).current_dir(&sandbox.folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(milliseconds) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    true
}

#[test]
fn a_killed_run_resumes_bit_identically() {
    let sandbox = Sandbox::new("killed");
    // Kills are spread over the time that a whole run takes on this machine.
    let start = std::time::Instant::now();
    sandbox.succeed(&with(&["--out", "whole"]));
    let mut whole = start.elapsed().as_millis() as u64;
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut killed = 0;
    for attempt in 0..25 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let threads = if attempt % 2 == 0 { "1" } else { "2" };
        let mut arguments = with(&["--out", "cut", "--threads", threads]);
        if sandbox.path("cut/config.toml").exists() {
            arguments.push("--resume");
        }
        if !kill_after(&sandbox, &arguments, 5 + (random >> 33) % whole.max(100)) {
            if killed > 0 {
                break;
            }
            // The machine was busier before.
            whole /= 2;
            std::fs::remove_dir_all(sandbox.path("cut")).unwrap();
            continue;
        }
        killed += 1;
    }
    assert!(killed > 0 && sandbox.path("cut/config.toml").exists(), "{killed} kills, and some after the start");
    sandbox.succeed(&with(&["--out", "cut", "--resume"]));
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"), "other weights after {killed} kills");
    assert_eq!(scores(&sandbox, "whole"), scores(&sandbox, "cut"));
    let log = std::fs::read_to_string(sandbox.path("cut/log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4, "every epoch once: {log}");
    assert!(std::fs::read_dir(sandbox.path("cut/checkpoints")).unwrap().count() == 4, "two checkpoints of two files, nothing else");
}

#[test]
fn more_epochs_continue_a_finished_run() {
    let sandbox = Sandbox::new("longer");
    sandbox.succeed(&with(&["--out", "whole"]));
    sandbox.succeed(&["train", "--epochs", "2", "--seed", "3", "--quiet", "--out", "cut"]);
    // Without a configuration, that of the run's folder is used, with flags on top.
    sandbox.succeed(&["train", "--epochs", "4", "--quiet", "--out", "cut", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"));
    assert_eq!(scores(&sandbox, "whole"), scores(&sandbox, "cut"));
}

#[test]
fn a_damaged_checkpoint_falls_back_to_the_previous_one() {
    let sandbox = Sandbox::new("damaged");
    sandbox.succeed(&with(&["--out", "run"]));
    let expected = weights(&sandbox, "run");
    let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 3] = [flip, cut, Vec::clear];
    for (damage, suffix) in damages.into_iter().zip(["safetensors", "safetensors", "json"]) {
        let path = newest(&sandbox, "run", suffix);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let output = sandbox.run(&with(&["--out", "run", "--resume"]));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(error.contains(&name) && error.contains("an older checkpoint is used"), "{error}");
        assert!(weights(&sandbox, "run") == expected);
    }
}

#[test]
fn checkpoints_of_another_run_are_refused() {
    let sandbox = Sandbox::new("other");
    sandbox.succeed(&with(&["--out", "run"]));
    let refused = |more: &[&str]| {
        let (code, error) = sandbox.fail(&with(&[&["--out", "run", "--resume"], more].concat()));
        assert_eq!(code, 1);
        error
    };
    let rest = "a resumed run keeps its data, model and training: leave it as it was, or start a new run";
    let model = refused(&["--set", "model.zoo=mlp"]);
    assert_eq!(model, format!("error: `model.zoo` is \"digits-cnn\" in the run that was saved, but \"mlp\" now; {rest}"));
    let seed = refused(&["--set", "train.seed=4"]);
    assert_eq!(seed, format!("error: `train.seed` is 3 in the run that was saved, but 4 now; {rest}"));
    let batch = refused(&["--batch", "16"]);
    assert_eq!(batch, format!("error: `train.batch` is 32 in the run that was saved, but 16 now; {rest}"));
    // A refused resume leaves the run unchanged.
    sandbox.succeed(&["train", "--quiet", "--out", "run", "--resume"]);

    for entry in std::fs::read_dir(sandbox.path("run/checkpoints")).unwrap() {
        std::fs::write(entry.unwrap().path(), "nonsense").unwrap();
    }
    let damaged = refused(&[]);
    assert!(damaged.contains("no checkpoint in run/checkpoints can be used") && damaged.contains("remove the folder"), "{damaged}");
    let (_, nothing) = sandbox.fail(&["train", "--resume", "--quiet"]);
    assert_eq!(nothing, "error: there is no run to resume: runs/digits-1 does not exist; name its folder with --out");
}

#[test]
fn a_new_run_removes_old_checkpoints() {
    let sandbox = Sandbox::new("again");
    sandbox.succeed(&with(&["--out", "run"]));
    sandbox.succeed(&["train", "--epochs", "1", "--seed", "5", "--quiet", "--out", "run", "--overwrite"]);
    let names: Vec<String> = std::fs::read_dir(sandbox.path("run/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| name.starts_with("step-000000000045.")), "{names:?}");
}

#[test]
fn early_stopping_restores_the_best_epoch() {
    let sandbox = Sandbox::new("early");
    let stopping = [
        "--set",
        "train.early_stopping={ score = \"val_loss\", patience = 1 }",
        "--set",
        "checkpoint.best=\"val_loss\"",
        "--set",
        "checkpoint.restore_best=true",
        "--set",
        "train.csv_log=true",
        "--set",
        "train.optimizer={ type = \"adam\", lr = 0.01 }",
    ];
    let mut arguments = vec!["train", "--json", "--quiet", "--epochs", "60", "--seed", "1", "--out", "run"];
    arguments.extend(stopping);
    let document = sandbox.json(&arguments);
    let losses: Vec<f64> = document["epochs"].as_array().unwrap().iter().map(|epoch| epoch["val_loss"].as_f64().unwrap()).collect();
    assert!(losses.len() < 60, "it did not stop");
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(losses[losses.len() - 2..].iter().all(|loss| *loss > best), "it stopped after two epochs without improvement: {losses:?}");
    let best_epoch = losses.iter().position(|loss| *loss == best).unwrap() + 1;
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(sandbox.path("run/checkpoints/best.json")).unwrap()).unwrap();
    assert_eq!(record["epoch"].as_u64(), Some(best_epoch as u64));
    let csv = std::fs::read_to_string(sandbox.path("run/log.csv")).unwrap();
    assert!(csv.starts_with("epoch,seconds,learning_rate,loss,accuracy,val_loss,val_accuracy\n1,"), "{csv}");
    assert_eq!(csv.lines().count(), losses.len() + 1);

    // A resumed run stays stopped.
    arguments.push("--resume");
    let again = sandbox.json(&arguments);
    assert_eq!(again["epochs"].as_array().unwrap().len(), losses.len());
    let (_, unknown) = sandbox.fail(&["train", "--quiet", "--set", "train.early_stopping={ score = \"val_f1\" }"]);
    assert_eq!(unknown, "error: there is no score `val_f1` to monitor; this run has loss, accuracy, val_loss, val_accuracy");
}
