//! The first minute on a new machine: nothing is measured before a choice depends on it, and runs make later
//! predictions better.

use crate::{Sandbox, program};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the command with the sandbox as the user's cache folder, and measured rates allowed.
fn run(sandbox: &Sandbox, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(&sandbox.folder);
    command.env("XDG_CACHE_HOME", sandbox.path("cache")).env_remove("PLIMSOLL_NO_CALIBRATE").output().unwrap()
}

/// The document and standard error of a run that succeeds.
fn json(sandbox: &Sandbox, arguments: &[&str]) -> (Value, String) {
    let output = run(sandbox, &[arguments, &["--json", "--threads", "1"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// The files with measured rates.
fn stored(sandbox: &Sandbox) -> Vec<PathBuf> {
    let files = std::fs::read_dir(sandbox.path("cache/plimsoll/speeds")).into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

/// A run that has to choose among strategies, in a budget that suffices to measure the machine.
const CHOICE: [&str; 7] = ["plan", "--zoo", "mlp", "--batch", "65536", "--host-memory", "256MiB"];

#[test]
fn a_run_that_fits_as_specified_measures_nothing() {
    let sandbox = Sandbox::new("first-fits");
    let output = run(&sandbox, &["train", "--epochs", "1", "--quiet", "--out", "run"]);
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    let plan: Value = serde_json::from_slice(&std::fs::read(sandbox.path("run/plan.json")).unwrap()).unwrap();
    assert_eq!(plan["predicted_by"], "built-in rates");
    let fits: [&[&str]; 4] = [
        &["plan"],
        &["plan", "--host-memory", "64MiB"],
        // Asked for, or the only permission: no choice depends on time.
        &["plan", "--batch", "64", "--micro-batch", "16"],
        &["plan", "--zoo", "mlp", "--batch", "65536", "--host-memory", "256MiB", "--allow", "microbatch"],
    ];
    for arguments in fits {
        let (plan, said) = json(&sandbox, arguments);
        assert_eq!((&plan["predicted_by"], said.as_str()), (&Value::from("built-in rates"), ""), "{arguments:?}");
    }
    // Neither does the search for the largest batch, nor a refusal.
    assert_eq!(json(&sandbox, &["plan", "--zoo", "mlp", "--max-batch", "--host-memory", "40MiB"]).1, "");
    assert_eq!(run(&sandbox, &["plan", "--host-memory", "1MiB"]).status.code(), Some(3));
    assert!(!sandbox.path("cache").exists(), "nothing was measured");
}

#[test]
fn a_choice_among_strategies_measures_the_machine_once() {
    let sandbox = Sandbox::new("first-choice");
    let (plan, said) = json(&sandbox, &CHOICE);
    assert_eq!(plan["predicted_by"], "measured speeds", "{said}");
    assert_eq!(said, "measuring the speed of cpu: once, about 3 s (--no-calibrate does without)\n");
    let files = stored(&sandbox);
    assert_eq!(files.len(), 1, "{files:?}");
    let (again, said) = json(&sandbox, &CHOICE);
    assert_eq!((&again["predicted_step_s"], said.as_str()), (&plan["predicted_step_s"], ""), "what is stored stays as it is");
    // Runs that fit are predicted by what is stored.
    assert_eq!(json(&sandbox, &["plan"]).0["predicted_by"], "measured speeds");
    // A damaged file counts as none, and a plan that fits leaves it alone.
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap();
    for damaged in [&text[..half], &text.replacen("\"seconds\":", "\"seconds\":1", 1), "", "{\"format\":2}\n{}"] {
        std::fs::write(&files[0], damaged).unwrap();
        let (plan, said) = json(&sandbox, &["plan"]);
        assert_eq!((&plan["predicted_by"], said.as_str()), (&Value::from("built-in rates"), ""));
        assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), damaged);
    }
    std::fs::write(&files[0], text).unwrap();
    assert_eq!(json(&sandbox, &CHOICE).0["predicted_step_s"], plan["predicted_step_s"]);
}

#[test]
fn a_sweep_compares_times_and_measures_in_silence_with_quiet() {
    let sandbox = Sandbox::new("first-sweep");
    let output = run(&sandbox, &["plan", "--zoo", "mlp", "--batch", "256", "--threads", "1", "--sweep", "--quiet"]);
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    assert_eq!(stored(&sandbox).len(), 1);
}

#[test]
fn a_run_refines_what_is_stored_and_a_resumed_one_keeps_its_rates() {
    let sandbox = Sandbox::new("first-refined");
    let train = |out: &str, more: &[&str]| json(&sandbox, &[&["train", "--epochs", "1", "--quiet", "--out", out], more].concat()).0;
    assert!(run(&sandbox, &["calibrate", "--quiet", "--threads", "1"]).status.success());
    let first = train("a", &[]);
    let number = |document: &Value, key: &str| document[key].as_f64().unwrap_or_else(|| panic!("{key} in {document}"));
    let measured = number(&first, "measured_step_s");
    let error = |predicted: f64| (predicted / measured).ln().abs();
    let before = number(&first, "predicted_step_s");
    let after = number(&json(&sandbox, &["plan"]).0, "predicted_step_s");
    assert!(error(after) <= 0.5 * error(before) + 0.05, "{before} s and then {after} s were predicted, {measured} s measured");
    // The second run is planned with a correction. Others change what is stored, but not the rates of this run.
    train("b", &[]);
    let correction = || {
        let plan: Value = serde_json::from_slice(&std::fs::read(sandbox.path("b/plan.json")).unwrap()).unwrap();
        plan["rate_correction"].clone()
    };
    let recorded = correction();
    assert!(recorded["overall"].is_number(), "{recorded}");
    train("c", &["--batch", "16"]);
    train("d", &["--batch", "128"]);
    let resumed = json(&sandbox, &["train", "--epochs", "2", "--quiet", "--out", "b", "--resume"]).0;
    assert_eq!(correction(), recorded);
    assert_eq!(resumed["epochs"].as_array().unwrap().len(), 2);
}
