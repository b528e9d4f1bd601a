//! Runs with offloaded optimizer state: planned, verified, within a hard limit, killed, resumed, and on a full disk.

use super::memory_limits::within;
use super::resume::{kill_after, weights};
use super::{Sandbox, program};
use serde_json::{Value, json};
use std::process::Command;

/// A run dominated by optimizer state, with a budget that needs half of it offloaded to a file.
fn wide(sandbox: &Sandbox) -> String {
    let layers = ["{ type = \"dense\", units = 384, activation = \"relu\" }"; 6].join(", ");
    let data = "[data]\nsource = \"random\"\nrows = 192\nx = [64]\ny = [8]\n";
    let train = "[train]\nbatch = 32\nepochs = 3\nloss = \"mse\"\nseed = 3\n[checkpoint]\nevery_steps = 4\n";
    sandbox.write("wide.toml", format!("{data}[model]\nlayers = [{layers}, {{ type = \"dense\", units = 8 }}]\n{train}"));
    let free = sandbox.json(&["plan", "wide.toml", "--json", "--host-memory", "1GiB"]);
    let (total, optimizer) = (free["peak_bytes"]["host"].as_u64().unwrap(), free["by_owner"]["optimizer"].as_u64().unwrap());
    assert!(free["arena_bytes"].as_u64().unwrap() < optimizer / 2, "{free}");
    (total - optimizer / 2).to_string()
}

fn tight<'a>(line: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["train", "wide.toml", "--host-memory", line, "--allow", "offload", "--quiet"].into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn an_offloaded_run_stays_within_a_cgroup_limit_and_is_bit_identical() {
    let sandbox = Sandbox::new("offload");
    let line = wide(&sandbox);
    sandbox.succeed(&["train", "wide.toml", "--out", "free", "--quiet"]);
    let bytes = line.parse().unwrap();
    let output = within(bytes, "offload", &tight(&line, &["--out", "tight", "--json"]), &sandbox);
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let measured = document["measured_peak_rss_bytes"].as_u64().unwrap();
    assert!(measured <= document["planned_bytes"].as_u64().unwrap() && measured <= bytes, "{document}");
    assert!(weights(&sandbox, "free") == weights(&sandbox, "tight"));
    let plan: Value = serde_json::from_slice(&std::fs::read(sandbox.path("tight/plan.json")).unwrap()).unwrap();
    assert_eq!((&plan["used"], &plan["results_unchanged"]), (&json!(["offload"]), &json!(true)));
    assert!(plan["offload_bytes"].as_u64().unwrap() > 1 << 20, "{plan}");
    let names = sandbox.path("tight").read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("offload")).count(), 0, "nothing is left of the file");
}

#[test]
fn a_killed_offloaded_run_resumes_bit_identically() {
    let sandbox = Sandbox::new("offload-killed");
    let line = wide(&sandbox);
    // Kills are spread over the time that a whole run takes on this machine.
    let start = std::time::Instant::now();
    sandbox.succeed(&tight(&line, &["--out", "whole"]));
    let whole = start.elapsed().as_millis() as u64;
    let mut killed = 0;
    for attempt in 0..8 {
        let begun = sandbox.path("cut/config.toml").exists();
        let more: &[&str] = if begun { &["--out", "cut", "--resume"] } else { &["--out", "cut"] };
        if !kill_after(&sandbox, &tight(&line, more), 60 + whole.max(400) * attempt / 5) {
            break;
        }
        killed += 1;
    }
    sandbox.succeed(&tight(&line, &["--out", "cut", "--resume"]));
    assert!(killed > 0);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "cut"), "other weights after {killed} kills");
    let names = sandbox.path("cut").read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("offload")).count(), 0, "kills leave nothing behind");
}

#[test]
fn a_full_offload_disk_is_an_error_with_a_remedy() {
    let sandbox = Sandbox::new("offload-full");
    let line = wide(&sandbox);
    // Files are limited to 3.5 MiB, which the weights fit into; the state takes more.
    let script = "trap '' XFSZ; ulimit -f 7168; exec \"$0\" \"$@\"";
    let arguments = tight(&line, &["--out", "run"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program()).args(&arguments).env("PLIMSOLL_NO_CALIBRATE", "1");
    let output = shell.current_dir(&sandbox.folder).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: cpu: the file of ") && error.contains("could not be written: File too large"), "{error}");
    assert!(
        error.trim_end().ends_with("make space there, run in a folder on another disk, or leave `offload` out of what is allowed"),
        "{error}"
    );
}

#[test]
fn an_offload_plan_file_is_verified_and_an_edited_one_refused() {
    let sandbox = Sandbox::new("offload-check");
    let line = wide(&sandbox);
    let plan = ["plan", "wide.toml", "--host-memory", &line, "--allow", "offload", "--out", "plan.json", "--json"];
    assert!(sandbox.json(&plan)["offload_bytes"].as_u64().unwrap() > 0);
    assert!(sandbox.succeed(&["check", "plan.json"]).starts_with("holds: "));
    let good: Value = serde_json::from_slice(&std::fs::read(sandbox.path("plan.json")).unwrap()).unwrap();
    let refusal = |edit: &dyn Fn(&mut Value)| {
        let mut edited = good.clone();
        edit(&mut edited);
        assert_ne!(edited, good, "the edit changed nothing");
        sandbox.write("edited.json", edited.to_string());
        let (code, said) = sandbox.fail(&["check", "edited.json"]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("the plan"), "{said}");
    };
    let steps = "/certificate/programs/0/steps";
    let find = |plan: &Value, op: &str| plan.pointer(steps).unwrap().as_array().unwrap().iter().position(|step| step["op"] == op).unwrap();
    refusal(&|plan| {
        let load = find(plan, "load");
        plan.pointer_mut(steps).unwrap().as_array_mut().unwrap().remove(load);
    });
    refusal(&|plan| {
        let store = find(plan, "store");
        let list = plan.pointer_mut(steps).unwrap().as_array_mut().unwrap();
        let step = list.remove(store);
        list.push(step);
    });
    refusal(&|plan| plan["certificate"]["backing"] = json!(64));
    refusal(&|plan| plan["certificate"]["stored"] = json!([]));
    let listed = sandbox.succeed(&["plan", "wide.toml", "--host-memory", &line, "--allow", "offload", "--log-placement"]);
    assert!(listed.contains("offloaded to a file at "), "{listed}");
}
