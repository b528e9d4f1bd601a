//! Budgets hold, and minimums are true.

use super::{Sandbox, json};

/// Scores per class of many epochs would fill the memory: only those of the last epoch are held, the others are in the
/// log.
#[test]
fn the_history_of_a_run_is_planned_and_does_not_grow_with_classes_times_epochs() {
    let sandbox = Sandbox::new("history");
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"random\"\nrows = 64\nx = [8]\nclasses = 2000\nbatch = 32\nholdout = 0.25\n\
         [model]\nlayers = [{ type = \"dense\", units = 4 }, { type = \"dense\", units = 2000 }]\n\
         [train]\nepochs = 40\nmetrics = [\"accuracy\", \"precision\", \"recall\", \"f1\", \"iou\"]\n[budget]\nhost = \"48MiB\"\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    let report = json(&sandbox.path("run/report.json"));
    let bytes = |key: &str| report[key].as_u64().unwrap();
    let (measured, planned) = (bytes("measured_peak_rss_bytes"), bytes("planned_bytes"));
    assert!(measured <= planned && planned <= 48 << 20, "{measured} measured, {planned} planned");
    let epochs = report["epochs"].as_array().unwrap();
    let per_class = |epoch: &serde_json::Value| epoch["val_f1_per_class"].as_array().map_or(0, Vec::len);
    assert_eq!(epochs.iter().map(per_class).collect::<Vec<_>>(), [vec![0; 39], vec![2000]].concat());
    let log = std::fs::read_to_string(sandbox.path("run/log.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\"val_f1_per_class\"")).count(), 40, "the log has those of every epoch");
    assert!(json(&sandbox.path("run/plan.json"))["by_owner"]["history"].as_u64().unwrap() > 2000 * 4 * 2 * 64);
}

#[test]
fn a_minimum_is_the_same_whoever_is_asked_and_one_byte_less_is_refused() {
    let sandbox = Sandbox::new("minimum");
    let runs: [&[&str]; 3] = [
        &[],
        &["--zoo", "mlp", "--batch", "64"],
        &["--zoo", "cifar-cnn", "--batch", "16", "--allow", "recompute,microbatch,mixed_precision"],
    ];
    for run in runs {
        let plan = |budget: u64| {
            let budget = budget.to_string();
            let output = sandbox.run(&[&["plan", "--json", "--host-memory", &budget], run].concat());
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            (output.status.code(), document["min_bytes"].as_u64().unwrap())
        };
        let (free, minimum) = plan(1 << 32);
        assert_eq!(free, Some(0));
        assert_eq!(plan(1 << 20), (Some(3), minimum), "{run:?}");
        assert_eq!(plan(minimum - 1), (Some(3), minimum), "{run:?}");
        assert_eq!(plan(minimum), (Some(0), minimum), "{run:?}");
        assert_eq!(plan(minimum + minimum / 10), (Some(0), minimum), "{run:?}");
        let sweep = sandbox.json(&[&["plan", "--sweep", "--json"], run].concat());
        assert_eq!(sweep["points"].as_array().unwrap().last().unwrap()["budget_bytes"], minimum, "{run:?}");
    }
}

/// The planner's own memory is counted, stays within the stated minimum, and grows linearly with the layers.
#[test]
fn planning_a_deep_network_stays_within_its_minimum_and_takes_linear_memory() {
    let sandbox = Sandbox::new("deep-planning");
    let planned = |depth: usize| {
        let layers = vec!["{ type = \"dense\", units = 8, activation = \"tanh\" }"; depth].join(", ");
        let data = "[data]\nsource = \"random\"\nrows = 64\nx = [8]\ny = [8]\n";
        sandbox.write("deep.toml", format!("{data}[model]\nlayers = [{layers}]\n[train]\nbatch = 16\nloss = \"mse\"\n"));
        let out = format!("run{depth}");
        let run = sandbox.json(&["train", "deep.toml", "--json", "--quiet", "--epochs", "1", "--host-memory", "1GiB", "--out", &out]);
        let plan = json(&sandbox.path(&format!("{out}/plan.json")));
        (run["heap_peak_bytes"].as_u64().unwrap(), plan["min_bytes"].as_u64().unwrap(), plan["by_owner"]["process"].as_u64().unwrap())
    };
    let (small, large) = (planned(60), planned(240));
    for (heap, minimum, process) in [small, large] {
        assert!(heap + process <= minimum, "{heap} bytes of heap beside a process of {process}, minimum {minimum}");
    }
    assert!(large.0 < 5 * small.0, "{} bytes for four times the layers of {}", large.0, small.0);
}

/// A last batch with fewer rows has programs of its own, in training and in validation. They are loaded beside those of
/// whole batches.
#[test]
fn programs_of_ragged_batches_are_planned() {
    let sandbox = Sandbox::new("ragged-batches");
    let layers = vec!["{ type = \"dense\", units = 8, activation = \"gelu\" }"; 120].join(", ");
    let graphs_and_heap = |rows: usize, held_out: &str| {
        let data = format!("[data]\nsource = \"random\"\nrows = {rows}\nx = [8]\ny = [8]\n{held_out}");
        sandbox.write("deep.toml", format!("{data}[model]\nlayers = [{layers}]\n[train]\nbatch = 16\nloss = \"mse\"\n"));
        let out = format!("run{rows}");
        let run = sandbox.json(&["train", "deep.toml", "--json", "--quiet", "--epochs", "2", "--out", &out]);
        let owners = &json(&sandbox.path(&format!("{out}/plan.json")))["by_owner"];
        let (heap, planned) = (run["heap_peak_bytes"].as_u64().unwrap(), run["planned_bytes"].as_u64().unwrap());
        assert!(heap + owners["process"].as_u64().unwrap() <= planned, "{heap} bytes of heap, {planned} planned: {owners}");
        owners["graphs"].as_u64().unwrap()
    };
    let even = graphs_and_heap(64, "");
    let ragged = graphs_and_heap(70, "");
    let validated = graphs_and_heap(90, "holdout = 0.2\n");
    assert!(even < ragged && ragged < validated, "{even} {ragged} {validated}");
}

/// Planning takes no more than the budget, or 32 MiB: where it would, the answer is the bytes that it takes, at once.
#[test]
fn planning_that_would_exceed_the_budget_is_refused_with_the_bytes_it_takes() {
    let sandbox = Sandbox::new("planning-refused");
    let layers = vec!["{ type = \"dense\", units = 8, activation = \"tanh\" }"; 900].join(", ");
    let data = "[data]\nsource = \"random\"\nrows = 64\nx = [8]\ny = [8]\n";
    sandbox.write("deep.toml", format!("{data}[model]\nlayers = [{layers}]\n[train]\nbatch = 16\nloss = \"mse\"\n"));
    let plan = |budget: &str| {
        let output = sandbox.run(&["plan", "deep.toml", "--json", "--host-memory", budget]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), document)
    };
    let (code, refused) = plan("1MiB");
    let planning = refused["planning_bytes"].as_u64().unwrap();
    assert!(code == Some(3) && planning > 32 << 20, "{refused}");
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains(&format!("({planning} bytes), more than the budget of 1.00 MiB")), "{error}");
    // That much is enough to be told the minimum, which is no smaller.
    let (_, answer) = plan(&planning.to_string());
    assert!(answer["min_bytes"].as_u64().unwrap() >= planning, "{answer}");
}

/// What is planned is what is taken: at least as much, and not much more.
#[test]
fn a_plan_states_little_more_than_the_run_takes() {
    let sandbox = Sandbox::new("over-statement");
    let rows: String = (0..600).map(|row| format!("{}.5,{},{}\n", row % 7, row % 11, row % 2)).collect();
    sandbox.write("table.csv", format!("a,b,class\n{rows}"));
    sandbox.write(
        "table.toml",
        "[data]\nsource = \"csv\"\npath = \"table.csv\"\ntarget = \"class\"\nholdout = 0.25\nbatch = 32\n\
         [model]\nlayers = [{ type = \"dense\", units = 2 }]\n[train]\nepochs = 3\nmetrics = [\"accuracy\", \"f1\"]\n",
    );
    let runs: [&[&str]; 4] =
        [&[], &["table.toml"], &["--zoo", "mlp", "--batch", "512"], &["--zoo", "cifar-cnn", "--batch", "16", "--set", "data.rows=64"]];
    for (number, run) in runs.iter().enumerate() {
        let out = format!("run{number}");
        let report = sandbox.json(&[&["train", "--json", "--quiet", "--epochs", "2", "--threads", "1", "--out", &out], *run].concat());
        let bytes = |key: &str| report[key].as_u64().unwrap();
        let (measured, planned) = (bytes("measured_peak_rss_bytes"), bytes("planned_bytes"));
        assert!(measured <= planned, "{run:?}: {measured} measured, {planned} planned");
        // More of a debug build's code is counted and never resident.
        let slack = if cfg!(debug_assertions) { 6 << 20 } else { 4 << 20 };
        assert!(planned <= (measured + slack).max(measured / 4 * 5), "{run:?}: {planned} planned, {measured} measured");
    }
}
