//! Runs within a hard memory limit of the operating system.

use super::cgroup::{Group, run_within};
use super::{BUILT_IN, Sandbox, example, program};
use std::path::{Path, PathBuf};
use std::process::Output;

pub fn within(bytes: u64, name: &str, arguments: &[&str], sandbox: &Sandbox) -> Output {
    run_within(bytes, name, program(), arguments, &sandbox.folder, &[BUILT_IN])
}

fn check(name: &str, config: &str, line: &str, bytes: u64, rows: &str) {
    let sandbox = Sandbox::new(name);
    let arguments = ["train", config, "--host-memory", line, "--set", rows, "--epochs", "1", "--out", "out", "--json", "--quiet"];
    let output = within(bytes, name, &arguments, &sandbox);
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let measured = document["measured_peak_rss_bytes"].as_u64().unwrap();
    assert!(measured <= document["planned_bytes"].as_u64().unwrap() && measured <= bytes, "{document}");
}

#[test]
fn the_dense_example_runs_within_a_cgroup_limit() {
    check("dense", &example("dense_million.toml"), "96MiB", 96 << 20, "data.rows=50000");
}

#[test]
fn the_dense_example_runs_within_a_cgroup_limit_just_above_its_minimum() {
    check("dense-tight", &example("dense_million.toml"), "24MiB", 24 << 20, "data.rows=20000");
}

#[test]
fn the_convolution_example_runs_within_a_cgroup_limit() {
    check("conv", &example("conv_resized.toml"), "120MiB", 120 << 20, "data.rows=640");
}

#[test]
fn the_convolution_example_runs_within_a_cgroup_limit_with_micro_batches() {
    check("conv-tight", &example("conv_resized.toml"), "64MiB", 64 << 20, "data.rows=320");
}

/// The budget exceeds free memory; the run is replanned for what is free.
#[test]
fn a_budget_above_free_memory_is_replanned() {
    let (sandbox, bytes) = (Sandbox::new("promise"), 48 << 20);
    let config = example("conv_resized.toml");
    let arguments = ["train", &config, "--host-memory", "1TiB", "--set", "data.rows=320", "--out", "out"];
    if Group::new("probe", bytes).is_none() {
        // Without a control group memory cannot be limited here; the budget is then met.
        return sandbox.succeed(&arguments).clear();
    }
    let output = within(bytes, "promise", &arguments, &sandbox);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(error.contains("(1.00 TiB was requested, but only this is free)") && error.contains("\n  saved          "), "{error}");
}

/// Another process holds most of the budget; the run is replanned for the rest, reports it, and trains the same
/// weights.
#[test]
fn memory_taken_by_another_process_is_replanned() {
    let (sandbox, bytes, taken) = (Sandbox::new("taken"), 160u64 << 20, 120u64 << 20);
    let config = example("conv_resized.toml");
    let arguments = ["train", &config, "--host-memory", "150MiB", "--set", "data.rows=320", "--out", "out"];
    let Some(group) = Group::new("taken", bytes) else {
        // Without a control group memory cannot be limited here; the budget is then met.
        sandbox.succeed(&arguments);
        return;
    };
    // Holds the memory until its input ends.
    let hold =
        format!("echo $$ > {}/cgroup.procs; (head -c {taken} /dev/zero; exec sleep 600) | exec tail -c {taken}", group.path().display());
    let mut holder = std::process::Command::new("sh").args(["-c", &hold]).stdout(std::process::Stdio::null()).spawn().unwrap();
    while group.usage() < taken {
        assert!(holder.try_wait().unwrap().is_none(), "it ended early");
        std::thread::yield_now();
    }
    let output = group.run(program(), &arguments, &sandbox.folder, &[BUILT_IN]);
    group.end_all();
    holder.wait().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(error.contains("(150 MiB was requested, but only this is free)") && error.contains("micro-batches of"), "{error}");
}

/// Memory besides tensors grows with the model, and the plan covers it.
#[test]
fn a_deep_model_stays_within_its_minimum_budget() {
    let sandbox = Sandbox::new("deep");
    let layers = vec!["{ type = \"dense\", units = 8, activation = \"tanh\" }"; 150].join(", ");
    let data = "[data]\nsource = \"random\"\nrows = 64\nx = [8]\ny = [8]\n";
    sandbox.write("deep.toml", format!("{data}[model]\nlayers = [{layers}]\n[train]\nbatch = 16\nloss = \"mse\"\n"));
    let refused = sandbox.run(&["plan", "deep.toml", "--json", "--host-memory", "1MiB"]);
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let least = document["min_bytes"].as_u64().unwrap();
    let trained = sandbox.json(&["train", "deep.toml", "--json", "--quiet", "--out", "out", "--host-memory", &least.to_string()]);
    let measured = trained["measured_peak_rss_bytes"].as_u64().unwrap();
    assert!(measured <= least, "{measured} bytes measured within a budget of {least}");
}

/// The weights of a run.
fn weights(sandbox: &Sandbox, out: &str) -> Vec<f32> {
    let bytes = std::fs::read(sandbox.path(out).join("weights.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Trains a network without a limit, then within fractions of that memory, enforced by the system. Returns the
/// permissions used.
fn in_shares(name: &str, network: &[&str], shares: &[u64]) -> Vec<String> {
    let sandbox = Sandbox::new(name);
    let free = sandbox.json(&[&["train", "--json", "--quiet", "--out", "free", "--host-memory", "64GiB"], network].concat());
    let all = free["planned_bytes"].as_u64().unwrap();
    let expected = weights(&sandbox, "free");
    let mut used = Vec::new();
    for share in shares {
        let (line, out) = (all * share / 100, format!("share{share}"));
        let text = line.to_string();
        let arguments = [&["train", "--json", "--quiet", "--out", &out, "--host-memory", &text], network].concat();
        let output = within(line, &format!("{name}{share}"), &arguments, &sandbox);
        assert!(output.status.success(), "{share} %: {:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let measured = document["measured_peak_rss_bytes"].as_u64().unwrap();
        assert!(measured <= document["planned_bytes"].as_u64().unwrap() && measured <= line, "{share} %: {document}");
        let plan: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(sandbox.path(&out).join("plan.json")).unwrap()).unwrap();
        assert_eq!(plan["results_unchanged"], true);
        let found = weights(&sandbox, &out);
        if plan["micro_batch"] == plan["batch"] {
            assert!(found == expected, "{share} %: recomputation changed a bit");
        } else {
            // Sums in another order.
            let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let apart = found.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(found.len() == expected.len() && apart <= 1e-4 * largest, "{share} %: {apart} apart");
        }
        used.push(plan["used"].to_string());
    }
    used
}

#[test]
fn a_batch_normalized_network_trains_bit_identically_in_less_memory() {
    let network = ["--zoo", "mobilenet-v1", "--input", "64x64", "--batch", "96", "--set", "data.rows=96", "--set", "model.width=0.25"];
    let used = in_shares("shares-mobilenet", &network, &[60, 40]);
    assert!(used.iter().all(|used| used == "[\"recompute\"]"), "{used:?}");
}

#[test]
fn a_network_without_batch_statistics_trains_the_same_in_a_quarter_of_the_memory() {
    let used = in_shares("shares-cifar", &["--zoo", "cifar-cnn", "--batch", "448", "--set", "data.rows=896"], &[60, 25]);
    assert!(used.iter().any(|used| used.contains("microbatch")), "{used:?}");
}

/// Many small layers: the graphs and the planner take more memory than the tensors.
#[test]
fn planning_a_deep_network_stays_within_its_budget() {
    let network = ["--zoo", "vit-tiny", "--input", "64x64", "--batch", "72", "--set", "data.rows=72", "--set", "model.width=0.34"];
    let network = [&network[..], &["--allow", "recompute"]].concat();
    let used = in_shares("shares-vit", &network, &[60]);
    assert!(used.iter().all(|used| !used.is_empty()), "{used:?}");
}

/// Files in memory count for the control group: a run whose files do not fit beside its plan is refused before it
/// starts.
#[test]
fn a_run_folder_in_memory_needs_memory_for_its_files() {
    let sandbox = Sandbox::new("in-memory");
    // 8 MiB of weights and 24 MiB with the states of Adam: two checkpoints and the one that replaces the first, and the
    // weights.
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"random\"\nrows = 64\nx = [1024]\ny = [1]\nbatch = 32\n\
         [model]\nlayers = [{ type = \"dense\", units = 2048 }, { type = \"dense\", units = 1 }]\n\
         [train]\nepochs = 4\nloss = \"mse\"\noptimizer = { type = \"adam\" }\n",
    );
    let out = PathBuf::from(format!("/dev/shm/plimsoll-in-memory-{}", std::process::id()));
    if Group::new("probe-in-memory", 96 << 20).is_none() || !out.parent().is_some_and(Path::is_dir) {
        // Nothing limits the memory here.
        return;
    }
    let run = |bytes| {
        let arguments = ["train", "run.toml", "--host-memory", "60MiB", "--quiet", "--out", out.to_str().unwrap()];
        within(bytes, "in-memory", &arguments, &sandbox)
    };
    let (refused, enough) = (run(96 << 20), run(180 << 20));
    let _ = std::fs::remove_dir_all(&out);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("is in memory (tmpfs), where the files of this run take 80.2 MiB"), "{error}");
    assert!(enough.status.success(), "{:?}: {}", enough.status, String::from_utf8_lossy(&enough.stderr));
}
