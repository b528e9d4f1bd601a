//! Nothing is lost: neither by a mistyped command, nor by a bad row, a signal, a full disk or another process.

use super::super::resume::weights;
use super::{Running, Sandbox, checkpoints, files, incomplete, json, newest, npy, warned, with_small_files};

const ENDLESS: [&str; 6] = ["train", "--epochs", "1000000", "--quiet", "--out", "run"];

/// Whether a run has completed an epoch.
fn has_logged(sandbox: &Sandbox) -> bool {
    std::fs::metadata(sandbox.path("run/log.jsonl")).is_ok_and(|log| log.len() > 0)
}

#[test]
fn a_run_is_not_replaced_unless_that_is_asked_for() {
    let sandbox = Sandbox::new("kept");
    sandbox.succeed(&["train", "--epochs", "2", "--quiet", "--out", "run"]);
    let before = files(&sandbox.path("run"));
    let (code, error) = sandbox.fail(&["train", "--epochs", "1", "--seed", "9", "--quiet", "--out", "run"]);
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: run has a run already (checkpoints); resume it with --resume, replace it with --overwrite, or name another folder with --out"
    );
    assert!(files(&sandbox.path("run")) == before, "nothing was touched");
    // Any one of its results is enough.
    for kept in ["weights.safetensors", "report.json", "log.jsonl"] {
        std::fs::create_dir(sandbox.path("part")).unwrap();
        std::fs::copy(sandbox.path("run").join(kept), sandbox.path("part").join(kept)).unwrap();
        let (_, error) = sandbox.fail(&["train", "--epochs", "1", "--quiet", "--out", "part"]);
        assert!(error.contains(&format!("part has a run already ({kept})")), "{error}");
        std::fs::remove_dir_all(sandbox.path("part")).unwrap();
    }

    sandbox.succeed(&["train", "--epochs", "1", "--seed", "9", "--quiet", "--out", "run", "--overwrite"]);
    sandbox.succeed(&["train", "--epochs", "1", "--seed", "9", "--quiet", "--out", "new"]);
    assert!(weights(&sandbox, "run") == weights(&sandbox, "new"));
    assert_eq!(checkpoints(&sandbox, "run"), checkpoints(&sandbox, "new"), "none of the old run");
    let (code, _) = sandbox.fail(&["train", "--out", "run", "--overwrite", "--resume"]);
    assert_eq!(code, 2, "one or the other");
}

#[test]
fn a_run_that_does_not_fit_replaces_nothing() {
    let sandbox = Sandbox::new("unfit");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run"]);
    let before = files(&sandbox.path("run"));
    assert_eq!(sandbox.fail(&["train", "--host-memory", "1MiB", "--quiet", "--out", "run", "--overwrite"]).0, 3);
    assert!(files(&sandbox.path("run")) == before);
}

#[test]
fn two_processes_cannot_use_one_folder() {
    let sandbox = Sandbox::new("locked");
    let mut first = Running::start(&sandbox, &ENDLESS);
    first.until(|| has_logged(&sandbox));
    for flag in ["--resume", "--overwrite"] {
        let (code, error) = sandbox.fail(&["train", "--epochs", "1", "--quiet", "--out", "run", flag]);
        assert_eq!(code, 1);
        assert_eq!(error, "error: run is in use by another process; wait until it ends, or name another folder with --out");
    }
    // However it ends, the folder is free again.
    first.signal("KILL");
    first.end();
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run", "--overwrite"]);
}

/// Rows of many numbers with one target, and as many to validate on; the configuration has `rest` in `[data]`. They are
/// so large that the pipeline does not read all of them at once.
fn rows(sandbox: &Sandbox, rest: &str) {
    let numbers = |count: u32| (0..count).flat_map(|i| ((i % 7) as f32 * 0.01).to_le_bytes()).collect::<Vec<u8>>();
    for name in ["x.npy", "vx.npy"] {
        sandbox.write(name, npy("<f4", "(64, 16384)", &numbers(64 * 16384)));
    }
    for name in ["y.npy", "vy.npy"] {
        sandbox.write(name, npy("<f4", "(64, 1)", &numbers(64)));
    }
    sandbox.write(
        "run.toml",
        format!(
            "[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\n{rest}[data.validation]\nx = \"vx.npy\"\ny = \"vy.npy\"\n\
             [model]\nlayers = [{{ type = \"dense\", units = 1 }}]\n[train]\nbatch = 8\nepochs = 3\nloss = \"mse\"\noptimizer = {{ type = \"adam\", lr = 1e-4 }}\n"
        ),
    );
}

/// Makes one row of a file of labels bad, and gives the file as it was.
fn damage(sandbox: &Sandbox, name: &str, row: usize) -> Vec<u8> {
    let good = std::fs::read(sandbox.path(name)).unwrap();
    let mut bad = good.clone();
    let at = bad.len() - 4 * (64 - row);
    bad[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    sandbox.write(name, bad);
    good
}

#[test]
fn a_bad_validation_row_costs_no_training() {
    let sandbox = Sandbox::new("bad-validation");
    rows(&sandbox, "");
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "whole"]);
    let good = damage(&sandbox, "vy.npy", 40);
    let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "cut"]);
    assert!(error.contains("vy.npy"), "{error}");
    let record = json(&newest(&sandbox, "cut"));
    assert_eq!((record["step"].as_u64(), record["epoch"].as_u64()), (Some(8), Some(0)), "all steps of the epoch are saved");
    // It fails at the same place until the row is corrected, and then continues.
    sandbox.fail(&["train", "--quiet", "--out", "cut", "--resume"]);
    sandbox.write("vy.npy", good);
    sandbox.succeed(&["train", "--quiet", "--out", "cut", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"));
    let scores = |run: &str| {
        let mut epochs = json(&sandbox.path(run).join("report.json"))["epochs"].as_array().unwrap().clone();
        epochs.iter_mut().for_each(|epoch| epoch.as_object_mut().unwrap().retain(|key, _| key != "seconds" && key != "examples_per_s"));
        epochs
    };
    assert_eq!(scores("whole"), scores("cut"));
}

#[test]
fn validation_inherits_the_error_policy_of_the_training_data() {
    let sandbox = Sandbox::new("lenient-validation");
    rows(&sandbox, "ignore_errors = 1\n");
    damage(&sandbox, "vy.npy", 40);
    let error = warned(&sandbox, &["train", "run.toml", "--quiet", "--out", "short"]);
    assert!(error.contains("warning: 1 row was left out of validation after epoch 1; the first: "), "{error}");
    rows(&sandbox, "stages = [{ op = \"ignore_errors\", cap = 1 }]\n");
    damage(&sandbox, "vy.npy", 40);
    let error = warned(&sandbox, &["train", "run.toml", "--quiet", "--out", "listed"]);
    assert!(error.contains("warning: 1 row was left out of validation after epoch 1; the first: "), "{error}");
}

#[test]
fn a_bad_training_row_keeps_the_steps_before_it() {
    let sandbox = Sandbox::new("bad-training");
    rows(&sandbox, "prefetch = 1\n");
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "whole"]);
    let good = damage(&sandbox, "y.npy", 50);
    let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "cut"]);
    assert!(error.contains("y.npy"), "{error}");
    let steps = json(&newest(&sandbox, "cut"))["step"].as_u64().unwrap();
    assert!((1..=6).contains(&steps), "row 50 is in the seventh batch of eight: {steps}");
    sandbox.write("y.npy", good);
    sandbox.succeed(&["train", "--quiet", "--out", "cut", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"));
}

#[test]
fn a_stopped_run_writes_a_checkpoint_says_where_and_loses_no_step() {
    // Under `nohup`, the tests and what they start ignore SIGHUP.
    let mut signals = vec![("INT", "Ctrl-C", 130), ("TERM", "SIGTERM", 143)];
    if !hangups_are_ignored() {
        signals.push(("HUP", "SIGHUP", 129));
    }
    for (signal, name, status) in signals {
        let sandbox = Sandbox::new(&format!("stopped-{signal}"));
        let mut run = Running::start(&sandbox, &ENDLESS);
        run.until(|| has_logged(&sandbox));
        run.signal(signal);
        let (code, error) = run.end();
        assert_eq!(code, Some(status), "{error}");
        let record = json(&newest(&sandbox, "run"));
        let (step, epochs) = (record["step"].as_u64().unwrap(), record["epoch"].as_u64().unwrap());
        let said = format!(
            "stopped by {name} after step {step}; checkpoint written to run/checkpoints/step-{step:012}.safetensors; \
             resume with `plimsoll train --out run --resume`\n"
        );
        assert_eq!(error, said, "also with --quiet");
        assert_eq!(incomplete(&sandbox.path("run")), Vec::<std::path::PathBuf>::new());
        assert!(!sandbox.path("run/weights.safetensors").exists(), "weights are those of a complete run");

        let until = (epochs + 1).to_string();
        sandbox.succeed(&["train", "--epochs", &until, "--quiet", "--out", "run", "--resume"]);
        sandbox.succeed(&["train", "--epochs", &until, "--quiet", "--out", "whole"]);
        assert!(weights(&sandbox, "whole") == weights(&sandbox, "run"), "stopped after step {step}");
        let log = std::fs::read_to_string(sandbox.path("run/log.jsonl")).unwrap();
        assert_eq!(log.lines().count() as u64, epochs + 1, "every epoch once");
    }
}

/// Whether this process, and what it starts, ignores SIGHUP: the lowest bit of `SigIgn`.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(ignored, 16).unwrap() & 1 == 1
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let sandbox = Sandbox::new("twice");
    let mut run = Running::start(&sandbox, &ENDLESS);
    // A checkpoint is written while the next epoch runs.
    let has_checkpoint = || checkpoints(&sandbox, "run").iter().any(|name| name.ends_with(".json"));
    run.until(|| has_logged(&sandbox) && has_checkpoint());
    // Both are delivered before the process does anything else.
    for signal in ["STOP", "INT", "TERM", "CONT"] {
        run.signal(signal);
    }
    let (code, error) = run.end();
    assert!(matches!(code, Some(130 | 143)), "by whichever came second: {code:?}");
    assert_eq!(error, "", "nothing more is written");
    // What it was writing is removed by the next run, which continues from the last complete checkpoint.
    let epochs = (json(&newest(&sandbox, "run"))["epoch"].as_u64().unwrap() + 1).to_string();
    sandbox.succeed(&["train", "--epochs", &epochs, "--quiet", "--out", "run", "--resume"]);
}

#[test]
fn a_run_without_checkpoints_that_is_stopped_says_that_its_steps_are_lost() {
    let sandbox = Sandbox::new("unsaved");
    let mut run = Running::start(&sandbox, &[&ENDLESS[..], &["--set", "checkpoint.enabled=false"]].concat());
    run.until(|| has_logged(&sandbox));
    run.signal("INT");
    let (code, error) = run.end();
    assert_eq!(code, Some(130));
    assert!(
        error.starts_with("stopped by Ctrl-C after step ") && error.ends_with("; no checkpoint was written, so the steps are lost\n"),
        "{error}"
    );
}

#[test]
fn what_an_interrupted_write_left_is_removed_at_the_next_start() {
    let sandbox = Sandbox::new("stale");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run"]);
    for stale in ["weights.safetensors.tmp", "report.json.tmp", "log.jsonl.tmp", "checkpoints/step-000000000099.safetensors.tmp"] {
        sandbox.write(&format!("run/{stale}"), "half");
    }
    sandbox.succeed(&["train", "--epochs", "2", "--quiet", "--out", "run", "--resume"]);
    assert_eq!(incomplete(&sandbox.path("run")), Vec::<std::path::PathBuf>::new());
}

/// A model whose weights take 1 MiB, and whose checkpoints, with the moments of Adam, take three.
fn wide(sandbox: &Sandbox) {
    let data = "[data]\nsource = \"random\"\nrows = 32\nx = [256]\ny = [1024]\n";
    sandbox.write(
        "wide.toml",
        format!("{data}[model]\nlayers = [{{ type = \"dense\", units = 1024 }}]\n[train]\nbatch = 32\nepochs = 3\nloss = \"mse\"\n"),
    );
}

#[test]
fn a_disk_too_full_for_checkpoints_still_gets_the_weights() {
    let sandbox = Sandbox::new("full-disk");
    wide(&sandbox);
    let output = with_small_files(&sandbox, 2 << 20, &["train", "wide.toml", "--quiet", "--out", "run"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(error.contains("warning: cannot write run/checkpoints/step-000000000001.safetensors: File too large"), "{error}");
    assert_eq!(checkpoints(&sandbox, "run"), Vec::<String>::new(), "failed checkpoints leave nothing that takes space");
    assert_eq!(incomplete(&sandbox.path("run")), Vec::<std::path::PathBuf>::new());
    sandbox.succeed(&["train", "wide.toml", "--quiet", "--out", "free"]);
    assert!(weights(&sandbox, "run") == weights(&sandbox, "free"));
}

#[test]
fn a_disk_too_full_for_the_weights_is_refused_before_the_first_step() {
    let sandbox = Sandbox::new("no-space");
    wide(&sandbox);
    let output = with_small_files(&sandbox, 1 << 19, &["train", "wide.toml", "--quiet", "--out", "run"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    let needed = 4 * (256 * 1024 + 1024) + 256 + 2 * 160 + "dense/kernel".len() + "dense/bias".len();
    assert_eq!(
        error,
        format!(
            "error: the disk of run has no space for the weights of this run: they take 1.00 MiB ({needed} bytes), and 512 KiB (524288 bytes) \
             can be written; make space there, or name a folder on another disk with --out\n"
        )
    );
    assert!(!sandbox.path("run/config.toml").exists(), "nothing has begun");
}

#[test]
fn a_run_that_is_not_there_is_not_resumed() {
    let sandbox = Sandbox::new("mistyped");
    let (code, error) = sandbox.fail(&["train", "--out", "mistyped", "--resume", "--quiet"]);
    assert_eq!(code, 1);
    assert_eq!(error, "error: there is no run to resume: mistyped does not exist; check the path, or name a configuration too");
    assert!(!sandbox.path("mistyped").exists());
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    let (_, error) = sandbox.fail(&["train", "--out", "empty", "--resume", "--quiet"]);
    assert_eq!(error, "error: there is no run to resume: empty has no config.toml; check the path, or name a configuration too");
    // With a configuration, one command serves the first start of a job and every later one.
    rows(&sandbox, "");
    let first = warned(&sandbox, &["train", "run.toml", "--out", "job", "--resume", "--quiet"]);
    assert_eq!(first, "warning: there is no run in job to resume: a new one starts\n");
    assert_eq!(warned(&sandbox, &["train", "run.toml", "--out", "job", "--resume", "--quiet"]), "");
}

#[test]
fn a_run_without_a_checkpoint_yet_resumes_at_step_0() {
    let sandbox = Sandbox::new("step-0");
    sandbox.succeed(&["train", "--epochs", "1", "--seed", "3", "--quiet", "--out", "whole"]);
    std::fs::create_dir(sandbox.path("run")).unwrap();
    std::fs::copy(sandbox.path("whole/config.toml"), sandbox.path("run/config.toml")).unwrap();
    sandbox.succeed(&["train", "--quiet", "--out", "run", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "run"));
}

#[test]
fn a_finished_run_without_checkpoints_is_not_started_over() {
    let sandbox = Sandbox::new("finished");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run", "--set", "checkpoint.enabled=false"]);
    let before = weights(&sandbox, "run");
    let (_, error) = sandbox.fail(&["train", "--epochs", "2", "--quiet", "--out", "run", "--resume"]);
    assert!(
        error.starts_with("error: run has a finished run (weights.safetensors) without checkpoints, which cannot be resumed"),
        "{error}"
    );
    assert!(weights(&sandbox, "run") == before);
    // Nor is one whose checkpoints would be ignored.
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "saved"]);
    let (_, error) =
        sandbox.fail(&["train", "--epochs", "2", "--quiet", "--out", "saved", "--resume", "--set", "checkpoint.enabled=false"]);
    assert!(error.contains("`checkpoint.enabled` is false, so the run would start over"), "{error}");
}

#[test]
fn a_resumed_run_may_change_its_length_threads_budgets_logging_and_checkpoints_only() {
    let sandbox = Sandbox::new("changes");
    sandbox.succeed(&["train", "--epochs", "1", "--seed", "3", "--quiet", "--out", "run"]);
    let before = files(&sandbox.path("run"));
    let refused = |more: &[&str]| {
        let (code, error) = sandbox.fail(&[&["train", "--epochs", "2", "--quiet", "--out", "run", "--resume"], more].concat());
        assert_eq!(code, 1);
        error.split("; a resumed run keeps").next().unwrap().to_string()
    };
    for (change, what) in [
        ("train.batch=16", "`train.batch` is 32 in the run that was saved, but 16 now"),
        ("train.optimizer=\"sgd\"", "`train.optimizer` is { type = \"adam\", lr = 0.002 } in the run that was saved, but \"sgd\" now"),
        ("model.zoo=\"mlp\"", "`model.zoo` is \"digits-cnn\" in the run that was saved, but \"mlp\" now"),
        ("data.shuffle=false", "`data.shuffle` is true in the run that was saved, but false now"),
    ] {
        let error = refused(&["--set", change]);
        assert_eq!(error.split(" in the run").nth(1), what.split(" in the run").nth(1), "{error}");
        let key = what.split('`').nth(1).unwrap();
        assert!(error.starts_with(&format!("error: `{key}` is ")), "{error}");
    }
    assert!(files(&sandbox.path("run")) == before, "a refused resume changes nothing");
    let free = ["--threads", "1", "--host-memory", "64MiB", "--set", "checkpoint.keep=5", "--set", "train.csv_log=true"];
    sandbox.succeed(&[&["train", "--epochs", "2", "--quiet", "--out", "run", "--resume"], &free[..]].concat());
    sandbox.succeed(&["train", "--epochs", "2", "--seed", "3", "--quiet", "--out", "whole"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "run"));
}
