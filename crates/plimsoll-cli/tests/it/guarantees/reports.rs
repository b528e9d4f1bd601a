//! What is reported is what happened.

use super::{Sandbox, command, json};

/// The last batch of an epoch has one row of 359: a step of it is no step.
#[test]
fn the_fastest_step_is_a_complete_one() {
    let sandbox = Sandbox::new("fastest");
    sandbox.succeed(&["train", "--batch", "359", "--epochs", "4", "--quiet", "--out", "run"]);
    let report = json(&sandbox.path("run/report.json"));
    let seconds = |key: &str| report[key].as_f64().unwrap();
    let (fastest, median) = (seconds("fastest_step_s"), seconds("measured_step_s"));
    assert!(fastest <= median && fastest > median / 20.0, "{fastest} of {median}");
}

#[test]
fn the_summary_has_the_shares_of_computing_and_of_waiting_for_input() {
    let sandbox = Sandbox::new("shares");
    let summary = sandbox.succeed(&["train", "--epochs", "1", "--out", "run"]);
    let line = summary.lines().find(|line| line.contains("throughput")).unwrap();
    let share = |word: &str| -> f64 { line.split(&format!(" % {word}")).next().unwrap().rsplit(' ').next().unwrap().parse().unwrap() };
    let (computing, waiting) = (share("of the time computing"), share("waiting for input"));
    assert!((99.0..=101.0).contains(&(computing + waiting)), "{line}");
    let report = json(&sandbox.path("run/report.json"));
    assert!(report["computing_s"].as_f64().unwrap() > 0.0 && report["waiting_for_input_s"].as_f64().unwrap() >= 0.0);
}

#[test]
fn a_run_on_random_data_says_that_its_loss_means_nothing() {
    let sandbox = Sandbox::new("random");
    let zoo = ["train", "--zoo", "mlp", "--set", "data.rows=64", "--epochs", "1"];
    let output = sandbox.run(&[&zoo[..], &["--out", "run"]].concat());
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(error.starts_with("note: --zoo trains on random rows: memory and times are real, loss and metrics mean nothing\n"), "{error}");
    assert!(out.contains(" (random data: this means nothing)\n"), "{out}");
    assert_eq!(sandbox.json(&[&zoo[..], &["--json", "--quiet", "--out", "json"]].concat())["random_data"], true);
    assert!(!sandbox.succeed(&["train", "--epochs", "1", "--out", "digits"]).contains("random"));
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new("full-stdout");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run"]);
    sandbox.succeed(&["plan", "--quiet", "--out", "plan.json"]);
    sandbox.write("data.toml", "[data]\nsource = \"digits\"\nbatch = 32\n");
    let commands = [
        "--help",
        "--version",
        "train --help",
        "plan",
        "plan --json",
        "train --epochs 1 --out new",
        "train --epochs 1 --out newer --json --quiet",
        "check plan.json",
        "evaluate run",
        "predict run --out p.npy",
        "data bench data.toml --json",
        "zoo",
        "devices",
        "selftest --only reshape",
    ];
    for arguments in commands.map(|line| line.split(' ').collect::<Vec<_>>()) {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = command().args(&arguments).current_dir(&sandbox.folder).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        let said = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert!(error.ends_with(said) && error.matches("error:").count() == 1, "{arguments:?}: {error}");
        // A reader that has seen enough is no error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let more: &[&str] = if arguments.contains(&"--epochs") { &["--overwrite"] } else { &[] };
        let output = command().args(&arguments).args(more).current_dir(&sandbox.folder).stdout(writer).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !error.contains("error"), "{arguments:?}: {error}");
    }
}
