//! The examples inside a hard limit of the operating system: a control group where one can be made, else a limit on private memory.

use super::{Sandbox, example, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A control group with a memory limit, removed when dropped.
struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes one under either version of the interface, if this process may.
    fn new(name: &str, bytes: u64) -> Option<Group> {
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        roots.iter().find_map(|(root, file)| {
            let path = Path::new(root).join(format!("plimsoll-test-{}-{name}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Group { path };
            let limited = group.path.join(file).exists() && fs::write(group.path.join(file), bytes.to_string()).is_ok();
            // Without swap the limit is hard; where there is no such file there is no swap accounting to get around it.
            let _ = fs::write(group.path.join("memory.swap.max"), "0");
            limited.then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Runs the command so that the system kills it, or refuses it memory, above `bytes`.
pub fn run_within(bytes: u64, name: &str, arguments: &[&str], sandbox: &Sandbox) -> Output {
    let group = Group::new(name, bytes);
    let script = match &group {
        Some(group) => format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.path.display()),
        None => format!("ulimit -d {} && exec \"$0\" \"$@\"", bytes >> 10),
    };
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program()).args(arguments).env("PLIMSOLL_NO_CALIBRATE", "1");
    command.current_dir(&sandbox.folder).output().unwrap()
}

fn check(name: &str, config: &str, line: &str, bytes: u64, rows: &str) {
    let sandbox = Sandbox::new(name);
    let arguments = ["train", config, "--host-memory", line, "--set", rows, "--epochs", "1", "--out", "out", "--json", "--quiet"];
    let output = run_within(bytes, name, &arguments, &sandbox);
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let measured = document["measured_peak_rss_bytes"].as_u64().unwrap();
    assert!(measured <= document["planned_bytes"].as_u64().unwrap() && measured <= bytes, "{document}");
}

#[test]
fn the_dense_example_runs_inside_a_hard_limit() {
    check("dense", &example("dense_million.toml"), "96MiB", 96 << 20, "data.rows=50000");
}

#[test]
fn the_dense_example_runs_inside_a_limit_barely_above_its_least() {
    check("dense-tight", &example("dense_million.toml"), "24MiB", 24 << 20, "data.rows=20000");
}

#[test]
fn the_convolution_example_runs_inside_a_hard_limit() {
    check("conv", &example("conv_resized.toml"), "120MiB", 120 << 20, "data.rows=640");
}

#[test]
fn the_convolution_example_runs_inside_a_limit_that_needs_micro_batches() {
    check("conv-tight", &example("conv_resized.toml"), "64MiB", 64 << 20, "data.rows=320");
}

/// The line promises more than the system will give; the run is planned again for what is there.
#[test]
fn a_promise_that_is_not_kept_is_planned_around() {
    let (sandbox, bytes) = (Sandbox::new("promise"), 48 << 20);
    let config = example("conv_resized.toml");
    let arguments = ["train", &config, "--host-memory", "1TiB", "--set", "data.rows=320", "--out", "out"];
    if Group::new("probe", bytes).is_none() {
        // Without a control group nothing makes less free than there is; the promise is then met.
        return sandbox.succeed(&arguments).clear();
    }
    let output = run_within(bytes, "promise", &arguments, &sandbox);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(error.contains("(1.00 TiB was promised, but only this is free)") && error.contains("micro-batches of"), "{error}");
}

/// What a process holds besides tensors grows with the model; that too is planned.
#[test]
fn a_deep_model_stays_under_its_least_line() {
    let sandbox = Sandbox::new("deep");
    let layers = vec!["{ type = \"dense\", units = 8, activation = \"tanh\" }"; 150].join(", ");
    let data = "[data]\nsource = \"random\"\nrows = 64\nx = [8]\ny = [8]\n";
    sandbox.write("deep.toml", format!("{data}[model]\nlayers = [{layers}]\n[train]\nbatch = 16\nloss = \"mse\"\n"));
    let refused = sandbox.run(&["plan", "deep.toml", "--json", "--host-memory", "1MiB"]);
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let least = document["min_bytes"].as_u64().unwrap();
    let trained = sandbox.json(&["train", "deep.toml", "--json", "--quiet", "--out", "out", "--host-memory", &least.to_string()]);
    let measured = trained["measured_peak_rss_bytes"].as_u64().unwrap();
    assert!(measured <= least, "{measured} bytes measured under a line of {least}");
}
