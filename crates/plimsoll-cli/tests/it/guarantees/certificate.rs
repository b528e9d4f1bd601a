//! `plimsoll check` proves everything that a plan file states: every number, text and flag of it is changed, and the
//! file refused.
//!
//! A plan file has no checksum that an edit would have to repair: the checker recomputes what it states.

use crate::Sandbox;
use plimsoll::check_plan_file;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What a plan claims without proof: its times, and how other plans of the same run compare. `check` verifies the form
/// of these and that minima are between what every plan takes and what this one does. A `*` is any index.
const CLAIMS: [&str; 7] = [
    "/plan/plan_ms",
    "/plan/predicted_step_s",
    "/plan/min_bytes",
    "/plan/min_device_bytes",
    "/plan/split/saved_bytes",
    "/plan/choices/*/saved_bytes",
    "/plan/choices/*/added_step_s",
];

/// A network of a few dense layers on random rows.
fn dense(layers: &[usize]) -> String {
    let hidden = layers.iter().map(|units| format!("{{ type = \"dense\", units = {units}, activation = \"gelu\" }}, "));
    format!(
        "[data]\nsource = \"random\"\nrows = 96\nx = [8]\ny = [2]\n[model]\nlayers = [{}{{ type = \"dense\", units = 2 }}]\n\
         [train]\nbatch = 16\nloss = \"mse\"\nthreads = 1\n",
        hidden.collect::<String>()
    )
}

/// Writes a plan file, has another process accept it, and returns it.
fn planned(name: &str, configuration: &str, flags: &[&str]) -> (Sandbox, Value) {
    let sandbox = Sandbox::new(name);
    sandbox.write("run.toml", configuration);
    let plan = sandbox.json(&[&["plan", "run.toml", "--json", "--out", "plan.json"], flags].concat());
    let checked = sandbox.json(&["check", "plan.json", "--json"]);
    assert_eq!((&checked["holds"], &checked["peak_bytes"]), (&json!(true), &plan["peak_bytes"]), "{name}");
    let document: Value = serde_json::from_slice(&std::fs::read(sandbox.path("plan.json")).unwrap()).unwrap();
    let printed = plan.as_object().unwrap().iter().filter(|(key, _)| !["max_batch", "data", "by_rank"].contains(&key.as_str()));
    assert_eq!(document["plan"], Value::Object(printed.map(|(key, value)| (key.clone(), value.clone())).collect()));
    assert_eq!(checked["assumptions"], document["assumptions"]);
    (sandbox, document)
}

/// Every leaf of a document, by its JSON pointer.
fn leaves(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, format!("{path}/{}", key.replace('/', "~1")), found)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| leaves(value, format!("{path}/{i}"), found)),
        _ => found.push(path),
    }
}

/// Other values for a leaf.
fn changes(leaf: &Value) -> Vec<Value> {
    let changed = match leaf {
        Value::Null => vec![json!(1), json!("")],
        Value::Bool(flag) => vec![json!(!flag)],
        Value::String(text) => vec![json!(format!("{text}x")), json!(""), json!(text.chars().skip(1).collect::<String>())],
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(n), _) => [n.saturating_mul(2), n / 2, 0, n.saturating_add(1), n.saturating_sub(1), u64::MAX].map(|n| json!(n)).to_vec(),
            (None, Some(x)) => [x * 2.0, x / 2.0, 0.0, x + 1.0, x - 1.0, f64::MAX].map(|x| json!(x)).to_vec(),
            _ => Vec::new(),
        },
        _ => unreachable!("a leaf has no parts"),
    };
    changed.into_iter().filter(|other| other != leaf).collect()
}

fn is_claim(path: &str) -> bool {
    let general: Vec<&str> = path.split('/').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part }).collect();
    CLAIMS.contains(&path) || CLAIMS.contains(&general.join("/").as_str())
}

/// Changes every leaf of a plan file. Those of the statement and the assumptions are changed in every way, those of the
/// certificate in one way each, in turn.
fn every_change_is_refused(good: &Value) {
    let mut paths = Vec::new();
    leaves(good, String::new(), &mut paths);
    assert!(paths.len() > 200, "{} leaves", paths.len());
    let (mut document, mut accepted) = (good.clone(), Vec::new());
    for (turn, path) in paths.iter().enumerate().filter(|(_, path)| !is_claim(path)) {
        let leaf = good.pointer(path).unwrap();
        let mut ways = changes(leaf);
        if path.starts_with("/certificate/") {
            ways = ways.into_iter().cycle().skip(turn).take(1).collect();
        }
        for other in ways {
            *document.pointer_mut(path).unwrap() = other.clone();
            if check_plan_file(&document.to_string()).is_ok() {
                accepted.push(format!("{path}: {leaf} → {other}"));
            }
        }
        *document.pointer_mut(path).unwrap() = leaf.clone();
    }
    assert!(check_plan_file(&document.to_string()).is_ok(), "the document is the good one again");
    assert!(accepted.is_empty(), "{} changes were accepted: {:#?}", accepted.len(), &accepted[..accepted.len().min(20)]);
}

#[test]
fn every_change_of_a_plain_plan_is_refused() {
    let (_sandbox, plan) = planned("cert-plain", &dense(&[8]), &["--host-memory", "64MiB", "--threads", "2"]);
    assert_eq!((&plan["plan"]["used"], &plan["plan"]["accumulation_steps"]), (&json!([]), &json!(1)));
    every_change_is_refused(&plan);
}

/// Without a budget, what is free is an assumption.
#[test]
fn every_change_of_a_plan_with_micro_batches_is_refused() {
    let (_sandbox, plan) = planned("cert-micro", &dense(&[8]), &["--micro-batch", "4"]);
    assert_eq!((&plan["plan"]["used"], &plan["plan"]["accumulation_steps"]), (&json!(["microbatch"]), &json!(4)));
    assert!(plan["assumptions"]["free_host_bytes"].is_u64());
    every_change_is_refused(&plan);
}

/// Ranks change the graphs and the rows of a batch; communication is an assumption.
#[test]
fn every_change_of_a_plan_for_ranks_is_refused() {
    let ranks = ["--ranks", "4", "--micro-batch", "2", "--host-memory", "96MiB"];
    let (_sandbox, plan) = planned("cert-ranks", &dense(&[8]), &ranks);
    assert_eq!((&plan["plan"]["ranks"], &plan["plan"]["batch"]), (&json!(4), &json!(16)));
    assert_eq!((&plan["plan"]["micro_batch"], &plan["plan"]["accumulation_steps"]), (&json!(2), &json!(2)));
    assert_eq!(plan["plan"]["by_owner"]["communication"], plan["assumptions"]["communication_bytes"]);
    every_change_is_refused(&plan);
    // Micro-batches that follow from the batch, and partial sums of them.
    let parts = ["--ranks", "4", "--micro-batch", "2", "--set", "parallel.shard=gradients", "--host-memory", "96MiB"];
    let (_sandbox, plan) = planned("cert-ranks-parts", &dense(&[8]), &parts);
    assert_eq!((&plan["plan"]["shard"], &plan["plan"]["sums_reordered"]), (&json!("gradients"), &json!(true)));
    every_change_is_refused(&plan);
    let reproducible = ["--ranks", "4", "--set", "parallel.reproducible=true", "--host-memory", "96MiB"];
    let (_sandbox, plan) = planned("cert-reproducible", &dense(&[8]), &reproducible);
    assert_eq!((&plan["plan"]["reproducible"], &plan["plan"]["micro_batch"]), (&json!(true), &json!(1)));
    assert_eq!(plan["plan"]["accumulation_steps"], json!(4));
    assert!(plan["plan"]["by_owner"]["gradient sums"].as_u64().unwrap() > 0);
    every_change_is_refused(&plan);
}

#[test]
fn every_change_of_a_plan_with_recomputation_is_refused() {
    let configuration = dense(&[16, 16, 16]).replace("batch = 16", "batch = 2048").replace("rows = 96", "rows = 4096");
    let counted = ["--count", "weights+activations", "--allow", "recompute", "--host-memory"];
    let free = planned("cert-recomputed-free", &configuration, &[&counted[..], &["1GiB"]].concat()).1;
    let (total, arena) = (free["plan"]["peak_bytes"]["host"].as_u64().unwrap(), free["plan"]["arena_bytes"].as_u64().unwrap());
    let budget = (total - arena / 6).to_string();
    let (_sandbox, plan) = planned("cert-recomputed", &configuration, &[&counted[..], &[&budget]].concat());
    assert!(plan["plan"]["recomputed"].as_u64().unwrap() > 0, "{}", plan["plan"]);
    every_change_is_refused(&plan);
}

#[test]
fn every_change_of_a_plan_with_offload_is_refused() {
    let configuration = dense(&[384, 384, 384]);
    let free = planned("cert-offloaded-free", &configuration, &["--host-memory", "1GiB"]).1;
    let (total, optimizer) = (&free["plan"]["peak_bytes"]["host"], &free["plan"]["by_owner"]["optimizer"]);
    let budget = (total.as_u64().unwrap() - optimizer.as_u64().unwrap() / 2).to_string();
    let (_sandbox, plan) = planned("cert-offloaded", &configuration, &["--allow", "offload", "--host-memory", &budget]);
    assert!(plan["plan"]["offload_copied_bytes"].as_u64().unwrap() > 0, "{}", plan["plan"]);
    every_change_is_refused(&plan);
}

#[test]
fn every_change_of_a_plan_with_validation_and_checkpoints_is_refused() {
    let digits = "[data]\nsource = \"digits\"\nshuffle = true\n[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 10 }]\n\
                  [train]\nbatch = 32\nloss = \"softmax_cross_entropy\"\n[checkpoint]\nevery_steps = 20\n";
    let (_sandbox, plan) = planned("cert-validated", digits, &["--host-memory", "64MiB"]);
    assert!(plan["plan"]["by_owner"]["checkpoint"].is_u64() && plan["assumptions"]["data"]["validation"].is_object());
    every_change_is_refused(&plan);
}

#[test]
fn every_change_of_a_plan_for_a_gpu_is_refused() {
    let on_gpu = dense(&[8]).replace("threads = 1\n", "");
    let profile = ["--device", "cuda:0", "--device-profile", "h200", "--host-memory", "4GiB"];
    let (_sandbox, plan) = planned("cert-gpu", &on_gpu, &profile);
    assert!(plan["plan"]["device_by_owner"]["staging"].is_u64() && plan["assumptions"]["runtime"]["device_bytes"].is_u64());
    every_change_is_refused(&plan);
}

/// Activations in pinned memory, and nothing that evaluation would have there.
#[test]
fn a_plan_for_a_gpu_with_offloaded_activations_is_verified() {
    let on_gpu =
        dense(&[64, 64, 64]).replace("threads = 1\n", "").replace("batch = 16", "batch = 16384").replace("rows = 96", "rows = 32768");
    let profile = ["--device", "cuda:0", "--device-profile", "h200", "--host-memory", "4GiB", "--allow", "offload"];
    let free = planned("cert-gpu-free", &on_gpu, &profile).1;
    let (total, arena) = (&free["plan"]["peak_bytes"]["device"], &free["plan"]["arena_bytes"]);
    let budget = (total.as_u64().unwrap() - arena.as_u64().unwrap() / 4).to_string();
    let (_sandbox, mut plan) = planned("cert-gpu-offloaded", &on_gpu, &[&profile[..], &["--device-memory", &budget]].concat());
    assert!(plan["plan"]["by_owner"]["offload"].is_u64() && plan["certificate"].get("stored").is_none(), "{}", plan["plan"]);
    plan["plan"]["by_owner"]["offload"] = json!(1);
    assert!(check_plan_file(&plan.to_string()).is_err());
}

/// Edits that keep the sums of a statement consistent.
#[test]
fn consistent_edits_of_a_statement_are_refused_with_the_number() {
    let (_sandbox, good) = planned("cert-consistent", &dense(&[8]), &["--host-memory", "64MiB"]);
    let refusal = |edit: &dyn Fn(&mut Value)| {
        let mut edited = good.clone();
        edit(&mut edited);
        check_plan_file(&edited.to_string()).unwrap_err().to_string()
    };
    let peak = good["plan"]["peak_bytes"]["host"].as_u64().unwrap();
    let weights = good["plan"]["by_owner"]["weights"].as_u64().unwrap();
    // Half of everything, in every place that states it.
    let said = refusal(&|file| {
        file["plan"]["by_owner"].as_object_mut().unwrap().values_mut().for_each(|size| *size = json!(size.as_u64().unwrap() / 2));
        file["plan"]["peak_bytes"]["host"] = json!(peak / 2);
    });
    assert!(said.starts_with("the plan does not hold: the plan states by_owner."), "{said}");
    // An owner that is left out of the sum.
    let said = refusal(&|file| {
        file["plan"]["by_owner"].as_object_mut().unwrap().remove("weights");
        file["plan"]["peak_bytes"]["host"] = json!(peak - weights);
    });
    assert_eq!(said, format!("the plan does not hold: the plan does not state by_owner.weights, which is {weights}"));
    // A budget below the peak, also in the configuration.
    let budget = format!("host = {}", 64 << 20);
    let said = refusal(&|file| {
        let configuration = file["configuration"].as_str().unwrap().replace(&budget, &format!("host = {}", peak / 2));
        (file["configuration"], file["plan"]["host_budget_bytes"]) = (json!(configuration), json!(peak / 2));
    });
    assert!(said.contains("and the budget is "), "{said}");
    // Another batch, in the statement and the configuration.
    let said = refusal(&|file| {
        let configuration = file["configuration"].as_str().unwrap().replace("batch = 16", "batch = 32");
        (file["configuration"], file["plan"]["batch"]) = (json!(configuration), json!(32));
    });
    assert!(said.starts_with("the plan does not hold"), "{said}");
    // A smaller process than the one that was measured.
    let said = refusal(&|file| file["assumptions"]["process_bytes"] = json!(1 << 20));
    assert!(said.starts_with("the plan does not hold: the plan states "), "{said}");
    // More than belongs to a plan file.
    let said = refusal(&|file| file["certificate"]["note"] = json!("none"));
    assert_eq!(said, "the plan does not hold: its certificate has more than a plan has there");
}

/// The largest batch is not the one of the configuration.
#[test]
fn the_plan_of_the_largest_batch_is_verified() {
    let (_sandbox, good) = planned("cert-max-batch", &dense(&[8]), &["--max-batch", "--host-memory", "32MiB", "--allow", "none"]);
    assert_eq!(good["max_batch"], good["plan"]["batch"]);
    for rows in [0, 1, good["max_batch"].as_u64().unwrap() + 1, u64::MAX] {
        let edited = json!({ "max_batch": rows, "plan": good["plan"], "configuration": good["configuration"],
            "assumptions": good["assumptions"], "certificate": good["certificate"] });
        assert!(check_plan_file(&edited.to_string()).is_err(), "{rows}");
    }
}

/// What is left of a document without claims and without its configuration, of which not everything takes memory.
fn proven_part(document: &Value) -> BTreeMap<String, Value> {
    let mut paths = Vec::new();
    leaves(document, String::new(), &mut paths);
    let kept = paths.into_iter().filter(|path| !is_claim(path) && path != "/configuration" && path != "/plan/predicted_by");
    kept.map(|path| (path.clone(), document.pointer(&path).unwrap().clone())).collect()
}

#[test]
fn random_edits_never_panic_and_never_change_what_is_proven() {
    let (_sandbox, good) = planned("cert-random", &dense(&[4]), &["--host-memory", "64MiB"]);
    let text = format!("{good:#}");
    let known = proven_part(&good);
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), b' '..=b'~'), 1..4);
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) }, |(edits in edits)| {
        let mut bytes = text.clone().into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let Ok(edited) = String::from_utf8(bytes) else { return Ok(()) };
        if check_plan_file(&edited).is_ok() {
            let document: Value = serde_json::from_str(&edited).unwrap();
            prop_assert_eq!(&proven_part(&document), &known);
        }
    });
    // Cut off, empty, and deeply nested.
    for text in [&text[..text.len() / 2], "", "null", "[]", &"[".repeat(100_000)] {
        assert!(check_plan_file(text).is_err());
    }
    let parts: Map<String, Value> = good.as_object().unwrap().clone();
    for key in parts.keys() {
        let mut without = parts.clone();
        without.remove(key);
        assert!(check_plan_file(&Value::Object(without).to_string()).is_err(), "without {key}");
    }
}
