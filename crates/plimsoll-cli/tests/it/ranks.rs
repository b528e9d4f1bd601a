//! Training on several ranks that `mpirun` starts, over every MPI library of this machine.

#[path = "../../../plimsoll-comm/tests/engines/mod.rs"]
#[allow(dead_code, reason = "these tests start the command instead of themselves")]
mod engines;

use super::{Sandbox, command};
use engines::{Engine, engines};
use serde_json::Value;
use std::process::{Command, Output};

/// 1438 rows in batches of 48: the last batch has 46.
const RUN: [&str; 12] =
    ["train", "--epochs", "2", "--seed", "3", "--batch", "48", "--threads", "1", "--no-calibrate", "--set", "checkpoint.every_steps=20"];

/// The command as the ranks of a job.
fn job(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> Command {
    let plimsoll = command();
    let mut job = engine.command(ranks);
    job.arg(plimsoll.get_program()).args(arguments).current_dir(&sandbox.folder);
    for (name, value) in plimsoll.get_envs() {
        match value {
            Some(value) => job.env(name, value),
            None => job.env_remove(name),
        };
    }
    job
}

fn run(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> Output {
    job(sandbox, engine, ranks, &RUN.iter().chain(arguments).copied().collect::<Vec<_>>()).output().unwrap()
}

/// Standard error of ranks that succeed, and the document that they print.
fn succeed(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> (String, Value) {
    let output = run(sandbox, engine, ranks, &[arguments, &["--json"]].concat());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{ranks} ranks of {}: {out}{err}", engine.mpirun.display());
    // One rank prints.
    let document = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    (err, document)
}

fn read(sandbox: &Sandbox, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(sandbox.path(file)).unwrap()).unwrap()
}

fn numbers(sandbox: &Sandbox, folder: &str) -> Vec<f32> {
    let file = super::resume::weights(sandbox, folder);
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[track_caller]
fn assert_same_weights(sandbox: &Sandbox, folder: &str) {
    let (one, many) = (numbers(sandbox, "one"), numbers(sandbox, folder));
    let largest = one.iter().zip(&many).map(|(one, many)| (one - many).abs()).fold(0.0, f32::max);
    assert!(one.len() == many.len() && largest <= 1e-6, "{folder}: weights differ by up to {largest}");
}

#[test]
fn ranks_train_the_weights_of_one_process_and_resume_on_others() {
    let sandbox = Sandbox::new("ranks");
    sandbox.succeed(&[&RUN[..], &["--out", "one", "--quiet"]].concat());
    for (number, engine) in engines().iter().enumerate() {
        let folder = format!("many-{number}");
        let (err, report) = succeed(&sandbox, engine, 4, &["--out", &folder]);
        assert_eq!(err.matches("plan · digits-cnn").count(), 1, "rank 0 alone prints: {err}");
        assert_same_weights(&sandbox, &folder);
        assert_eq!(report["epochs"][1]["accuracy"], read(&sandbox, "one/report.json")["epochs"][1]["accuracy"]);
        // Every byte of the plan follows from its certificate and what it assumes, and no rank takes more.
        let plan = read(&sandbox, &format!("{folder}/plan.json"));
        assert_eq!((plan["ranks"].as_u64(), plan["batch"].as_u64()), (Some(4), Some(48)));
        let communication = plan["by_owner"]["communication"].as_u64().unwrap();
        assert!(communication >= 1 << 20, "{communication} bytes of communication");
        let (planned, measured) = (report["planned_bytes"].as_u64().unwrap(), report["measured_peak_rss_bytes"].as_u64().unwrap());
        assert!(measured <= planned, "{}: {measured} bytes were measured and {planned} planned", engine.mpirun.display());
        // Another number of ranks continues within the second epoch.
        for file in std::fs::read_dir(sandbox.path(&folder).join("checkpoints")).unwrap().map(|file| file.unwrap().path()) {
            if file.to_string_lossy().contains("60") {
                std::fs::remove_file(file).unwrap();
            }
        }
        let (err, _) = succeed(&sandbox, engine, 3, &["--out", &folder, "--resume"]);
        assert!(err.contains("resumed after step 40, 1 epochs done"), "{err}");
        assert_same_weights(&sandbox, &folder);
    }
}

#[test]
fn what_ranks_cannot_do_is_one_error() {
    let sandbox = Sandbox::new("ranks-refused");
    for engine in engines() {
        let refused = |arguments: &[&str], with: &str| {
            let output = run(&sandbox, &engine, 2, arguments);
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{err}");
            assert_eq!((err.matches("error: ").count(), err.matches(with).count()), (1, 1), "{}: {err}", engine.mpirun.display());
        };
        refused(&["--set", "parallel.data=none"], "error: 2 ranks were started, but `parallel.data` is \"none\"");
        refused(&["--set", "parallel.shard=optimizer"], "error: unknown key `parallel.shard`");
        refused(&["--host-memory", "4MiB"], "error: this run does not fit into 4.00 MiB of host memory");
        refused(&["--device", "cuda:0"], "error: 2 ranks were started to train together, which they can on the CPU only");
    }
}
