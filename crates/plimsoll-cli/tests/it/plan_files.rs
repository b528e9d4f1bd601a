//! Plan files and sweeps: `plan --out` with `check`, and `plan --sweep`.

use super::Sandbox;
use serde_json::{Value, json};

/// A small network of the zoo with a budget that needs recomputation.
fn tight(sandbox: &Sandbox, out: &str) -> Value {
    let network = ["plan", "--zoo", "mobilenet-v1", "--input", "64x64", "--batch", "8", "--allow", "recompute", "--json"];
    let counted = ["--count", "weights+activations"];
    let free = sandbox.json(&[&network[..], &counted, &["--host-memory", "100GB"]].concat());
    let (total, arena) = (free["peak_bytes"]["host"].as_u64().unwrap(), free["arena_bytes"].as_u64().unwrap());
    let line = (total - arena / 4).to_string();
    sandbox.json(&[&network[..], &counted, &["--host-memory", &line, "--out", out]].concat())
}

#[test]
fn a_plan_file_is_verified_by_itself() {
    let sandbox = Sandbox::new("check");
    sandbox.succeed(&["plan", "--batch", "64", "--out", "plan.json", "--quiet"]);
    assert!(sandbox.succeed(&["check", "plan.json"]).starts_with("holds: "));
    let plan = tight(&sandbox, "tight.json");
    let checked = sandbox.json(&["check", "tight.json", "--json"]);
    assert_eq!(checked["holds"], true);
    assert_eq!((&checked["arena_bytes"], &checked["recomputed"]), (&plan["arena_bytes"], &plan["recomputed"]));
    assert!(checked["recomputed"].as_u64().unwrap() > 0, "nothing was recomputed: {plan}");
}

/// With validation and checkpoints, which the embedded digits have.
#[test]
fn the_printed_plan_is_the_plan_that_runs() {
    let sandbox = Sandbox::new("printed-plan");
    let arguments = ["--host-memory", "64MiB", "--threads", "1", "--epochs", "1"];
    let printed = sandbox.succeed(&[&["plan"], &arguments[..]].concat());
    let planned = sandbox.json(&[&["plan", "--json", "--out", "plan.json"], &arguments[..]].concat());
    let output = sandbox.run(&[&["train", "--out", "run"], &arguments[..]].concat());
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && shown.starts_with(&printed), "{printed}\n{shown}");
    let mut executed: Value = serde_json::from_slice(&std::fs::read(sandbox.path("run/plan.json")).unwrap()).unwrap();
    // Every process measures its own planning time.
    executed["plan_ms"] = planned["plan_ms"].clone();
    assert_eq!(executed, planned);
    assert!(planned["by_owner"]["checkpoint"].is_u64() && planned["pipeline"].to_string().contains("validation "), "{planned}");
}

#[test]
fn a_plan_with_split_layers_reports_them_and_is_verified() {
    let sandbox = Sandbox::new("check-split");
    let network = ["plan", "--zoo", "gpt2-124m", "--batch", "4", "--allow", "split", "--count", "weights+activations", "--json"];
    let free = sandbox.json(&[&network[..], &["--host-memory", "100GB"]].concat());
    assert_eq!((&free["split"], &free["used"]), (&Value::Null, &json!([])));
    let line = (free["peak_bytes"]["host"].as_u64().unwrap() - (300 << 20)).to_string();
    let plan = sandbox.json(&[&network[..], &["--host-memory", &line, "--out", "split.json"]].concat());
    assert_eq!((&plan["used"], &plan["results_unchanged"], &plan["split"]["pieces"]), (&json!(["split"]), &json!(true), &json!(4)));
    assert!(plan["split"]["saved_bytes"].as_u64().unwrap() > 300 << 20, "{plan}");
    assert_eq!(sandbox.json(&["check", "split.json", "--json"])["arena_bytes"], plan["arena_bytes"]);
    let written = std::fs::read_to_string(sandbox.path("split.json")).unwrap();
    assert!(written.contains("\"pieces\": 4"));
    sandbox.write("edited.json", written.replace("\"pieces\": 4", "\"pieces\": 3"));
    let (code, said) = sandbox.fail(&["check", "edited.json"]);
    assert!(code == 1 && said.contains("it states layers computed in 3 pieces, but this graph cannot be cut so"), "{said}");
    sandbox.write("edited.json", written.replace("\"pieces\": 4", "\"pieces\": 2"));
    assert_eq!(sandbox.fail(&["check", "edited.json"]).0, 1);
}

/// The peak with copied concat inputs, and the fraction that is enough with in-place writes. Most of a dense block is
/// one growing tensor.
#[test]
fn concat_outputs_are_written_in_place_and_verified() {
    let sandbox = Sandbox::new("check-joins");
    for (network, copying, per_cent, how) in [
        ("googlenet", 810_359_104, 99.5, "\"putting\""),
        // Its pooling pads, which takes what the writes in place save.
        ("inception-v3", 2_381_511_104, 100.0, "\"putting\""),
        ("densenet121", 3_915_335_616u64, 71.0, "\"sharing\""),
    ] {
        let plan = [
            "plan",
            "--zoo",
            network,
            "--batch",
            "32",
            "--threads",
            "2",
            "--allow",
            "none",
            "--host-memory",
            "100GB",
            "--json",
            "--out",
            "plan.json",
        ];
        let held = sandbox.json(&plan)["lower_bound_bytes"].as_u64().unwrap();
        assert!(held as f64 <= copying as f64 * per_cent / 100.0, "{network}: {held} of {copying}");
        assert_eq!(sandbox.json(&["check", "plan.json", "--json"])["holds"], true);
        let written = std::fs::read_to_string(sandbox.path("plan.json")).unwrap();
        assert_eq!(written.contains("\"joining\""), written.contains("\"concats_fused\": true"), "{network}");
        assert!(written.contains(&format!("\"joining\": {how}")), "{network}");
        for edited in [written.replace(how, "\"copying\""), written.replace("\"concats_fused\": true", "\"concats_fused\": false")] {
            sandbox.write("edited.json", edited);
            assert_eq!(sandbox.fail(&["check", "edited.json"]).0, 1, "{network}");
        }
    }
}

/// Networks and batches whose buffer sizes leave gaps in every greedy order.
#[test]
fn arenas_are_within_a_thousandth_of_the_lower_bound() {
    let sandbox = Sandbox::new("packed");
    for (network, batch) in [("googlenet", "4"), ("googlenet", "8"), ("mobilenet-v2", "4"), ("resnet50", "4"), ("gpt2-124m", "4")] {
        let plan = sandbox.json(&["plan", "--zoo", network, "--batch", batch, "--allow", "none", "--host-memory", "100GB", "--json"]);
        let (arena, held) = (plan["arena_bytes"].as_u64().unwrap(), plan["lower_bound_bytes"].as_u64().unwrap());
        assert!(arena * 1000 <= held * 1001, "{network} with {batch} rows: {arena} where {held} are held");
    }
}

#[test]
fn edited_plan_files_are_refused_with_the_violation() {
    let sandbox = Sandbox::new("check-edited");
    tight(&sandbox, "plan.json");
    let good: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path("plan.json")).unwrap()).unwrap();
    let refusal = |edit: &dyn Fn(&mut Value)| {
        let mut edited = good.clone();
        edit(&mut edited);
        assert_ne!(edited, good, "the edit changed nothing");
        sandbox.write("edited.json", edited.to_string());
        let (code, said) = sandbox.fail(&["check", "edited.json"]);
        assert_eq!(code, 1, "{said}");
        said
    };
    let step = "/certificate/programs/0/steps/5";
    let add = |document: &mut Value, pointer: &str, more: i64| {
        let number = document.pointer_mut(pointer).unwrap();
        *number = json!(number.as_i64().unwrap() + more);
    };
    let said = refusal(&|plan| add(plan, &format!("{step}/writes/0/offset"), 64));
    assert!(said.contains("the plan does not hold at step step "), "{said}");
    let said = refusal(&|plan| add(plan, &format!("{step}/writes/0/size"), -4));
    assert!(said.contains("the plan does not hold at step step "), "{said}");
    // The first buffer live longer, the last one larger: perhaps valid, but not the plan.
    let said = refusal(&|plan| add(plan, "/certificate/programs/2/buffers/0/5", 1));
    assert!(said.contains("the plan does not hold at predict"), "{said}");
    let said = refusal(&|plan| add(plan, "/certificate/programs/2/buffers/0/3", 64));
    assert!(said.contains("the plan does not hold"), "{said}");
    let said = refusal(&|plan| add(plan, "/certificate/states/3/2", 64));
    assert!(said.contains("the plan does not hold"), "{said}");
    let said = refusal(&|plan| add(plan, "/certificate/arena", 64));
    assert!(said.contains("the plan states arena_bytes"), "{said}");
    let said = refusal(&|plan| plan["certificate"]["programs"][0]["sequence"][0] = json!(1_000_000));
    assert!(said.contains("entry 0 of its sequence is 1000000, which is nothing that runs"), "{said}");
    let said = refusal(&|plan| plan["certificate"]["programs"][0]["sequence"].as_array_mut().unwrap().swap(0, 20));
    assert!(said.contains("of its sequence"), "{said}");
}

#[test]
fn plan_files_of_another_model_and_other_files_are_refused() {
    let sandbox = Sandbox::new("check-other");
    sandbox.succeed(&["plan", "--batch", "64", "--out", "plan.json", "--quiet"]);
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path("plan.json")).unwrap()).unwrap();
    sandbox.succeed(&["plan", "--zoo", "mobilenet-v1", "--input", "64x64", "--batch", "64", "--out", "other.json", "--quiet"]);
    let other: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path("other.json")).unwrap()).unwrap();
    document["configuration"] = other["configuration"].clone();
    sandbox.write("mixed.json", document.to_string());
    let (code, said) = sandbox.fail(&["check", "mixed.json"]);
    assert_eq!(code, 1);
    assert!(said.contains("the plan does not hold"), "{said}");
    for (text, what) in [("{", "EOF"), ("{}", "it has no `configuration`"), ("{\"configuration\": \"\"}", "it has no `certificate`")] {
        sandbox.write("none.json", text);
        let (code, said) = sandbox.fail(&["check", "none.json"]);
        assert_eq!(code, 1);
        assert!(said.contains("this is not a plan that `plimsoll plan --out` wrote") && said.contains(what), "{said}");
    }
    assert!(sandbox.fail(&["check", "missing.json"]).1.contains("cannot read missing.json"));
}

#[test]
fn a_sweep_reports_step_time_by_budget() {
    let sandbox = Sandbox::new("sweep");
    let network = ["plan", "--zoo", "mobilenet-v1", "--input", "64x64", "--batch", "4", "--allow", "recompute", "--sweep"];
    let counted = ["--count", "weights+activations", "--host-memory", "100GB", "--json", "--out", "curve.svg"];
    let document = sandbox.json(&[&network[..], &counted].concat());
    let points = document["points"].as_array().unwrap();
    assert!(points.len() > 2, "{document}");
    assert_eq!(points[0]["recompute_flops_ratio"], 0.0, "the first line asks nothing of the run");
    for pair in points.windows(2) {
        assert!(pair[0]["budget_bytes"].as_u64() > pair[1]["budget_bytes"].as_u64());
        assert!(pair[1]["arena_bytes"].as_u64() < pair[1]["budget_bytes"].as_u64());
    }
    let refused = &document["refused"];
    assert!(refused["budget_bytes"].as_u64() < refused["least_bytes"].as_u64(), "{document}");
    let picture = std::fs::read_to_string(sandbox.path("curve.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<circle ").count(), points.len() + 1, "and one in the legend");
    assert!(picture.contains("fastest plan within the budget") && picture.contains("refused: the minimum is"));
}
