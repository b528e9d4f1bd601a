//! Pipelines with a list of stages over streams of unknown length.

use super::data::pictures;
use super::resume::{kill_after, weights};
use super::{Sandbox, example};

/// A table in its own folder, so that its path is not relative to the working directory.
const CONFIG: &str = r#"[data]
source = "csv"
path = "rows.csv"
target = "class"
stages = [
    { op = "filter", column = "y", not = 2 },
    { op = "shuffle", buffer = "4KiB" },
    { op = "scale", by = 0.1 },
    { op = "batch", rows = 16 },
    { op = "prefetch", batches = 2 },
]
[data.validation]
rows = [0, 100]
[model]
layers = [{ type = "dense", units = 16, activation = "relu" }, { type = "dense", units = 3 }]
[train]
epochs = 4
seed = 3
[checkpoint]
every_steps = 3
"#;

fn table(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    std::fs::create_dir(sandbox.path("conf")).unwrap();
    let rows: String = (0..2000).map(|n| format!("{},{},{}\n", n % 17, n % 5, n % 3)).collect();
    sandbox.write("conf/rows.csv", format!("a,b,class\n{rows}"));
    sandbox.write("conf/run.toml", CONFIG);
    sandbox
}

#[test]
fn a_killed_stream_run_resumes_bit_identically() {
    let sandbox = table("stream-killed");
    // Kills are spread over the time that a whole run takes on this machine.
    let start = std::time::Instant::now();
    sandbox.succeed(&["train", "conf/run.toml", "--quiet", "--out", "whole"]);
    let whole = start.elapsed().as_millis() as u64;
    let mut killed = 0;
    for attempt in 0..12 {
        let mut arguments = vec!["train", "--quiet", "--out", "cut"];
        // On resume the configuration is that of the run's folder, with other relative paths.
        arguments.push(if sandbox.path("cut/config.toml").exists() { "--resume" } else { "conf/run.toml" });
        if !kill_after(&sandbox, &arguments, 20 + whole.max(600) * attempt / 8) {
            break;
        }
        killed += 1;
    }
    assert!(killed > 0);
    sandbox.succeed(&["train", "--quiet", "--out", "cut", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"), "other weights after {killed} kills");
    let log = std::fs::read_to_string(sandbox.path("cut/log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4, "every epoch once: {log}");
    let refused = sandbox
        .fail(&[
            "train",
            "--out",
            "cut",
            "--resume",
            "--set",
            "data.stages=[{ op = \"filter\", column = \"y\", not = 1 }]",
            "--batch",
            "16",
        ])
        .1;
    assert!(
        refused.starts_with("error: `data.stages` is [{ column = \"y\", not = 2, op = \"filter\" }, ")
            && refused.contains(" in the run that was saved, but [{ column = \"y\", not = 1, op = \"filter\" }] now; "),
        "{refused}"
    );
}

#[test]
fn plan_inspect_bench_and_predict_over_a_stream() {
    let sandbox = table("stream-used");
    let said = sandbox.succeed(&["data", "inspect", "conf/run.toml", "--rows", "1"]);
    let stages = "filter(y is not 2) → shuffle(seed 3, 4.00 KiB) → map(x: scale(0.1)) → batch(16) → prefetch(2)";
    let first = said.lines().next().unwrap();
    assert_eq!(first, format!("csv conf/rows.csv (rows 0 to 2000, a, b → class) → {stages}"));
    assert!(said.contains("  rows      at most 2000, 12 B each\n"), "{said}");
    let looked = sandbox.json(&["data", "inspect", "conf/run.toml", "--json"]);
    assert!(looked["rows"].is_null() && looked["batches"].is_null() && looked["at_most_rows"] == 2000, "{looked}");
    let bench = sandbox.json(&["data", "bench", "conf/run.toml", "--epochs", "2", "--json"]);
    assert!(bench["epochs"].as_array().unwrap().iter().all(|epoch| epoch["examples"] == 1334), "{bench}");
    assert!(bench["pipeline"].as_str().unwrap().ends_with(stages));

    // The reported minimum is feasible.
    let refused = sandbox.run(&["plan", "conf/run.toml", "--host-memory", "1MiB", "--json"]);
    let least = serde_json::from_slice::<serde_json::Value>(&refused.stdout).unwrap()["min_bytes"].as_u64().unwrap();
    let trained = sandbox.json(&["train", "conf/run.toml", "--host-memory", &least.to_string(), "--json", "--quiet", "--out", "run"]);
    assert!(trained["measured_peak_rss_bytes"].as_u64() <= trained["planned_bytes"].as_u64() && trained["steps"] == 4 * 84, "{trained}");
    let (code, _) = sandbox.fail(&["train", "conf/run.toml", "--host-memory", &(least - 1).to_string(), "--out", "less"]);
    assert_eq!(code, 3);

    let (last, scores) = (&trained["epochs"][3], sandbox.json(&["evaluate", "run", "--json"]));
    assert_eq!((&scores["loss"], &scores["accuracy"]), (&last["val_loss"], &last["val_accuracy"]));
    let on_training_rows = sandbox.json(&["evaluate", "run", "--rows", "training", "--json"]);
    assert!(on_training_rows["loss"].as_f64().unwrap() > 0.0);
    // Predictions are in source order: without shuffling, with filters.
    let predicted = sandbox.json(&["predict", "run", "--rows", "training", "--out", "p.npy", "--json"]);
    assert_eq!(predicted["outputs"][0]["count"], 1334);
    let predictions = std::fs::read(sandbox.path("p.npy")).unwrap();
    // Rows 0 and 255 of the table are equal; the filter keeps 170 of 255 rows.
    let row = |place: usize| &predictions[128 + place * 12..][..12];
    assert!(row(0) == row(170) && row(0) != row(1));
}

#[test]
fn unsupported_stream_operations_are_refused() {
    let sandbox = table("stream-wrong");
    let fail = |more: &[&str]| sandbox.fail(&[&["train", "conf/run.toml", "--quiet", "--out", "out"], more].concat()).1;
    let schedule = fail(&["--set", "train.schedule={ type = \"cosine\" }"]);
    assert!(schedule.starts_with("error: the cosine schedule is as long as the run, and how many rows csv conf/rows.csv"), "{schedule}");
    assert!(
        schedule.ends_with("give it `train.schedule.steps`, or say how many rows there are with { op = \"cardinality\", rows = … }"),
        "{schedule}"
    );
    let nothing = fail(&["--set", "data.stages=[{ op = \"filter\", column = \"y\", is = 9 }]"]);
    assert!(nothing.starts_with("error: there is nothing to train on: ") && nothing.ends_with("has no rows in epoch 1"), "{nothing}");
    let unknown = fail(&["--set", "data.stages=[{ op = \"shufle\" }]"]);
    assert!(unknown.starts_with("error: `data.stages[0].op` is \"shufle\", but should be one of map, filter,"), "{unknown}");
    assert!(unknown.ends_with("did you mean \"shuffle\"?"), "{unknown}");
    let beside = fail(&["--set", "data.shuffle=true"]);
    assert_eq!(beside, "error: `data.shuffle` has no place beside `data.stages`: write { op = \"shuffle\" } into the list instead");
    // A schedule with its own length ends with a warning; with a known cardinality it takes the length of the run.
    let steps = ["--set", "train.schedule={ type = \"cosine\", steps = 100 }"];
    let ended = sandbox.run(&[&["train", "conf/run.toml", "--quiet", "--out", "ended"], &steps[..]].concat());
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{told}");
    assert_eq!(told, "warning: the cosine schedule ended after 100 steps, in epoch 2; the learning rate stays where it ended\n");
    let stages = "data.stages=[{ op = \"filter\", column = \"y\", not = 2 }, { op = \"cardinality\", rows = 1334 }]";
    let known = sandbox.json(&[
        "train",
        "conf/run.toml",
        "--set",
        stages,
        "--set",
        "train.schedule={ type = \"cosine\" }",
        "--batch",
        "50",
        "--json",
        "--quiet",
    ]);
    assert!(known["steps"] == 4 * 27 && known["epochs"][3]["learning_rate"].as_f64().unwrap() < 1e-5, "{known}");
}

#[test]
fn the_stages_example_trains_within_its_budget() {
    let sandbox = Sandbox::new("stages-example");
    let trained = sandbox.json(&["train", &example("stages.toml"), "--json", "--quiet", "--out", "run"]);
    assert!(trained["epochs"][5]["val_accuracy"].as_f64().unwrap() > 0.95, "{trained}");
    assert!(trained["measured_peak_rss_bytes"].as_u64() <= trained["planned_bytes"].as_u64(), "{trained}");
}

/// The same images by shorthand keys and by a stage list give the same cache, counts and weights.
#[test]
fn a_stage_list_equals_the_shorthand_keys() {
    let sandbox = pictures("list-and-keys");
    sandbox.write("pictures/dark/3.png", "");
    let rest = "[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n[train]\nbatch = 4\nepochs = 2\n";
    let maps = "{ op = \"decode\" }, { op = \"resize\", size = [8, 8] }";
    let short = format!(
        "shuffle = {{ seed = 7 }}\nmap = [{maps}, {{ op = \"scale\", by = 0.01 }}]\ncache = {{ file = \"k.plc\" }}\nignore_errors = 2\n"
    );
    let list = format!(
        "stages = [{{ op = \"shuffle\", seed = 7 }}, {maps}, {{ op = \"cache\", in = {{ file = \"l.plc\" }} }}, {{ op = \"scale\", by = 0.01 }}, \
         {{ op = \"ignore_errors\", cap = 2 }}, {{ op = \"batch\", rows = 8 }}]\n"
    );
    for (name, keys) in [("keys", short), ("list", list)] {
        sandbox.write(&format!("{name}.toml"), format!("[data]\nsource = \"image_folder\"\npath = \"pictures\"\n{keys}{rest}"));
        let bench = sandbox.json(&["data", "bench", &format!("{name}.toml"), "--json"]);
        assert!(bench["epochs"][0]["examples"] == 19 && bench["epochs"][0]["left_out"] == 1, "{bench}");
        let trained = sandbox.json(&["train", &format!("{name}.toml"), "--json", "--quiet", "--out", name]);
        assert_eq!(trained["steps"], 2 * 5, "the last three of 19 rows are a batch too");
        // The run's folder has the path of the images.
        sandbox.succeed(&["evaluate", name]);
    }
    assert!(weights(&sandbox, "keys") == weights(&sandbox, "list"));

    std::fs::remove_file(sandbox.path("pictures/dark/3.png")).unwrap();
    let filled = sandbox.json(&["data", "cache", "list.toml", "--quiet", "--json"]);
    assert!(filled["rows"] == 19 && filled["path"] == "l.plc" && filled["found"] == false, "{filled}");
    assert_eq!(sandbox.json(&["data", "cache", "list.toml", "--quiet", "--json"])["found"], true);
}

#[test]
fn inspect_shows_padded_rows() {
    let sandbox = Sandbox::new("ragged");
    let records = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference/examples.tfrecord");
    std::fs::copy(records, sandbox.path("a.tfrecord")).unwrap();
    let words = "{ name = \"words\", dtype = \"i32\", shape = [50], up_to = true }";
    let stages = |stages: &str| {
        sandbox.write("run.toml", format!("[data]\nsource = \"tfrecord\"\npath = \"a.tfrecord\"\ninput = {words}\nstages = [{stages}]\n"));
    };
    stages("");
    assert_eq!(
        sandbox.fail(&["data", "inspect", "run.toml"]).1,
        "error: column `x` has rows that vary in length; batch it with padded_batch"
    );
    for (to, declared) in [("longest", false), ("declared", true)] {
        stages(&format!(
            "{{ op = \"filter\", column = \"x\", length_at_least = 1 }}, {{ op = \"padded_batch\", rows = 2, to = \"{to}\", value = -5 }}"
        ));
        let looked = sandbox.json(&["data", "inspect", "run.toml", "--json", "--rows", "3"]);
        let samples = looked["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 3, "{looked}");
        // Only padded rows contain the padding value.
        let padded = samples.iter().filter(|sample| sample["x"]["min"] == -5.0).count();
        assert_eq!(padded == 3, declared, "{looked}");
        assert!(sandbox.succeed(&["data", "inspect", "run.toml"]).contains("  rows      at most "));
        assert!(sandbox.json(&["data", "bench", "run.toml", "--json"])["epochs"][0]["examples"].as_u64() > Some(3));
    }
}
