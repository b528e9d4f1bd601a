//! Held-out rows are a fair sample, the same after resuming, and the plan says how they were chosen.

use super::super::{Sandbox, npy};
use serde_json::Value;

/// 400 rows of four classes, one after the other, and a run that holds out a quarter.
fn sorted(sandbox: &Sandbox, data: &str) {
    let noise = |row: usize, k: usize| ((row * 31 + k * 17) % 97) as f32 / 970.0;
    let x: Vec<u8> = (0..400)
        .flat_map(|row| (0..4).map(move |k| f32::from(u8::from(row / 100 == k)) + noise(row, k)))
        .flat_map(f32::to_le_bytes)
        .collect();
    let y: Vec<u8> = (0..400i32).flat_map(|row| (row / 100).to_le_bytes()).collect();
    sandbox.write("x.npy", npy("<f4", "(400, 4)", &x));
    sandbox.write("y.npy", npy("<i4", "(400,)", &y));
    let model = "[model]\nlayers = [{ type = \"dense\", units = 4 }]\n";
    let train =
        "[train]\nepochs = 20\nloss = \"softmax_cross_entropy\"\nmetrics = [\"accuracy\"]\noptimizer = { type = \"adam\", lr = 0.05 }\n";
    sandbox.write("run.toml", format!("[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\nbatch = 16\n{data}\n{model}{train}"));
}

fn predictions(sandbox: &Sandbox, run: &str, rows: &str) -> Vec<String> {
    sandbox.succeed(&["predict", run, "--rows", rows, "--out", "p.csv"]);
    std::fs::read_to_string(sandbox.path("p.csv")).unwrap().lines().skip(1).map(str::to_string).collect()
}

#[test]
fn every_class_of_rows_sorted_by_class_is_held_out_in_part() {
    let sandbox = Sandbox::new("g-sorted");
    sorted(&sandbox, "shuffle = { seed = 1 }\nholdout = 0.25");
    let report = sandbox.json(&["train", "run.toml", "--json", "--quiet", "--out", "run"]);
    let last = report["epochs"].as_array().unwrap().last().unwrap();
    assert!(last["val_accuracy"].as_f64().unwrap() > 0.95, "{last}");
    let held = predictions(&sandbox, "run", "held-out");
    for class in 0..4 {
        let found = held.iter().filter(|line| line.split(',').nth(1) == Some(&class.to_string())).count();
        assert!((24..=26).contains(&found), "class {class}: {found}");
    }
    assert_eq!(predictions(&sandbox, "run", "training").len(), 300);
}

#[test]
fn the_choice_has_a_seed_of_its_own_that_is_recorded() {
    let sandbox = Sandbox::new("g-seed");
    sorted(&sandbox, "holdout = { share = 0.25, seed = 3 }");
    let run = |out: &str, set: &[&str]| {
        let mut arguments = vec!["train", "run.toml", "--quiet", "--epochs", "1", "--out", out];
        arguments.extend(set);
        sandbox.succeed(&arguments);
        let report: Value = serde_json::from_slice(&std::fs::read(sandbox.path(&format!("{out}/report.json"))).unwrap()).unwrap();
        report["data"].clone()
    };
    let first = run("a", &["--seed", "1"]);
    assert_eq!(first["holdout"]["seed"], 3, "{first}");
    assert_eq!(first["training"]["rows"], 300);
    assert_eq!(first["validation"], run("b", &["--seed", "2"])["validation"]);
    // Another seed of the choice is another run.
    let (_, error) = sandbox.fail(&[
        "train",
        "run.toml",
        "--quiet",
        "--epochs",
        "2",
        "--out",
        "a",
        "--seed",
        "1",
        "--resume",
        "--set",
        "data.holdout.seed=4",
    ]);
    assert!(error.contains("`data.holdout.seed` is 3 in the run that was saved, but 4 now"), "{error}");
}

#[test]
fn the_plan_says_how_rows_are_held_out() {
    let sandbox = Sandbox::new("g-says");
    sorted(&sandbox, "holdout = 0.25");
    let plan = sandbox.succeed(&["plan", "run.toml"]);
    assert!(plan.contains("validation     0.25 of the rows, drawn at random, stratified (holdout, seed 0)"), "{plan}");
    let rows: String = (0..60).map(|row| format!("{row},{}\n", row * 2)).collect();
    sandbox.write("t.csv", format!("t,u\n{rows}"));
    let window = "window = { length = 4, horizon = 2 }\nsplit = 0.8\nbatch = 4";
    let rest = "[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n[train]\nloss = \"mse\"\n";
    sandbox.write("series.toml", format!("[data]\nsource = \"csv\"\npath = \"t.csv\"\ntarget = \"u\"\n{window}\n{rest}"));
    let plan = sandbox.succeed(&["plan", "series.toml"]);
    assert!(plan.contains("validation     the rows after the first 0.8, in time order (split)"), "{plan}");
}

#[test]
fn the_choice_is_in_the_plan() {
    let sandbox = Sandbox::new("g-planned");
    sorted(&sandbox, "holdout = 0.25");
    // Classes in another order are chosen by one bit per row.
    let y: Vec<u8> = (0..400i32).flat_map(|row| (row % 4).to_le_bytes()).collect();
    sandbox.write("y.npy", npy("<i4", "(400,)", &y));
    let stages = sandbox.json(&["plan", "run.toml", "--json"])["pipeline"].clone();
    let bytes: u64 =
        stages.as_object().unwrap().iter().filter(|(name, _)| name.contains("holdout")).map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
    assert!(bytes >= 400 / 8, "{stages}");
}

#[test]
fn take_of_rows_sorted_by_class_warns() {
    let sandbox = Sandbox::new("g-take");
    sorted(&sandbox, "take = 150");
    let output = sandbox.run(&["plan", "run.toml"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("warning: take(150) keeps 2 of 4 classes, because the rows are sorted by class"), "{error}");
    sorted(&sandbox, "holdout = 0.25\ntake = 150");
    assert!(sandbox.run(&["plan", "run.toml"]).stderr.is_empty());
}
