//! Plans for a GPU, which need none, and runs on one, which report its absence.

use super::{Sandbox, command, example};
use plimsoll::probe;
use serde_json::Value;

const PROFILE: [&str; 4] = ["--device", "cuda:0", "--device-profile", "h200"];

fn plan(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    sandbox.json(&[&["plan", "--json"], arguments, &PROFILE].concat())
}

#[test]
fn a_gpu_run_trains_or_reports_what_is_missing() {
    let sandbox = Sandbox::new("gpu");
    let arguments = ["train", "--device", "cuda:0", "--epochs", "4", "--seed", "1", "--out", "out"];
    if let Some(obstacle) = probe().obstacle() {
        println!("not run on a GPU: {obstacle}");
        let (code, error) = sandbox.fail(&arguments);
        assert_eq!((code, error.trim()), (1, format!("error: cuda:0: {obstacle}").as_str()));
        assert!(!sandbox.path("out").join("report.json").exists());
        return;
    }
    let document = sandbox.json(&[&arguments[..], &["--json"]].concat());
    assert!(document["epochs"][3]["val_accuracy"].as_f64().unwrap() > 0.9);
}

#[test]
fn a_gpu_plan_reports_both_budgets() {
    let sandbox = Sandbox::new("gpu-plan");
    let document = plan(&sandbox, &["--device-memory", "1GiB", "--host-memory", "1GiB"]);
    let sum = |owners: &Value| owners.as_object().unwrap().values().map(|size| size.as_u64().unwrap()).sum::<u64>();
    assert_eq!(document["peak_bytes"]["device"].as_u64(), Some(sum(&document["device_by_owner"])));
    assert_eq!(document["peak_bytes"]["host"].as_u64(), Some(sum(&document["by_owner"])));
    for owner in ["CUDA context", "weights", "optimizer", "activations", "workspace", "staging"] {
        assert!(document["device_by_owner"][owner].as_u64().is_some_and(|size| size > 0), "{owner}");
    }
    let text = sandbox.succeed(&[&["plan", "--device-memory", "1GiB"], &PROFILE[..]].concat());
    for part in
        ["cuda:0 (NVIDIA H200, from its profile)", "device budget  1.00 GiB", "host budget", "CUDA context 348 MiB", "pinned staging"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_small_device_budget_is_met_with_micro_batches() {
    let (sandbox, config) = (Sandbox::new("gpu-micro"), example("conv_resized.toml"));
    let wide = plan(&sandbox, &[&config, "--host-memory", "1GiB", "--device-memory", "1GiB"]);
    assert_eq!(wide["accumulation_steps"], 1);
    let line = wide["peak_bytes"]["device"].as_u64().unwrap() - (8 << 20);
    let tight = plan(&sandbox, &[&config, "--allow", "microbatch", "--host-memory", "1GiB", "--device-memory", &line.to_string()]);
    assert!(tight["accumulation_steps"].as_u64().unwrap() > 1 && tight["peak_bytes"]["device"].as_u64().unwrap() <= line);
}

#[test]
fn tf32_is_planned_as_requested_and_predicted_to_be_faster() {
    let sandbox = Sandbox::new("gpu-tf32");
    let network =
        |precision: &str| plan(&sandbox, &["--zoo", "resnet18", "--batch", "16", "--set", &format!("train.precision={precision}")]);
    let (exact, rounded) = (network("f32"), network("tf32"));
    assert_eq!([&exact, &rounded].map(|plan| plan["precision"].as_str().unwrap().to_string()), ["f32", "tf32"]);
    let seconds = |plan: &Value| plan["predicted_step_s"].as_f64().unwrap();
    assert!(seconds(&rounded) < 0.6 * seconds(&exact), "{} and {}", seconds(&rounded), seconds(&exact));
}

/// Without a budget, a GPU recomputes what costs next to nothing.
#[test]
fn cheap_activations_are_recomputed_without_a_budget() {
    let sandbox = Sandbox::new("gpu-economy");
    let network = ["--zoo", "resnet18", "--batch", "192", "--set", "train.precision=mixed_bf16"];
    let whole = plan(&sandbox, &[&network[..], &["--allow", "none"]].concat());
    let cheap = plan(&sandbox, &network);
    let bytes = |plan: &Value| plan["peak_bytes"]["device"].as_f64().unwrap();
    let seconds = |plan: &Value| plan["predicted_step_s"].as_f64().unwrap();
    assert!(bytes(&cheap) < 0.97 * bytes(&whole), "{} and {}", bytes(&cheap), bytes(&whole));
    assert!(seconds(&cheap) <= 1.025 * seconds(&whole) && cheap["results_unchanged"] == true);
    assert_eq!((cheap["used"].to_string(), whole["used"].to_string()), ("[\"recompute\"]".to_string(), "[]".to_string()));
}

#[test]
fn an_infeasible_device_budget_reports_the_minimum() {
    let sandbox = Sandbox::new("gpu-refused");
    let refused = sandbox.run(&[&["plan", "--json", "--device-memory", "100MiB"], &PROFILE[..]].concat());
    assert_eq!(refused.status.code(), Some(3));
    let document: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((document["feasible"].as_bool(), document["space"].as_str()), (Some(false), Some("memory of cuda:0")));
    let error = document["error"].as_str().unwrap();
    assert!(error.starts_with("this run does not fit into 100 MiB of memory of cuda:0; the minimum budget is "), "{error}");
    let least = document["min_bytes"].as_u64().unwrap();
    let exact = plan(&sandbox, &["--device-memory", &least.to_string()]);
    assert_eq!(exact["peak_bytes"]["device"].as_u64(), Some(least));
    let short = (least - 1).to_string();
    assert_eq!(sandbox.fail(&[&["plan", "--device-memory", &short], &PROFILE[..]].concat()).0, 3, "one byte less does not");
}

/// The examples' budgets are for the CPU: CUDA takes more host memory. The refusal states the minimum, and it works.
#[test]
fn a_host_budget_below_the_cuda_context_reports_the_minimum() {
    let (sandbox, config) = (Sandbox::new("gpu-host-line"), example("dense_million.toml"));
    let (code, error) = sandbox.fail(&[&["plan", &config], &PROFILE[..]].concat());
    assert_eq!(code, 3);
    assert!(error.contains("does not fit into 96.0 MiB of host memory"), "{error}");
    let hint = error.split("for any run: give it --host-memory ").nth(1).unwrap_or_else(|| panic!("{error}"));
    let line = hint.split(' ').next().unwrap();
    plan(&sandbox, &[&config, "--host-memory", line]);
}

#[test]
fn incompatible_devices_and_profiles_are_refused() {
    let sandbox = Sandbox::new("gpu-names");
    let refused = |arguments: &[&str]| sandbox.fail(arguments).1;
    insta::assert_snapshot!(refused(&["plan", "--device", "tpu"]), @"error: there is no device `tpu`; there are `cpu` and `cuda:0`, `cuda:1`, …");
    insta::assert_snapshot!(refused(&["plan", "--device", "cuda:0", "--device-profile", "abacus"]), @"error: there is no profile `abacus`; there are: h200");
    insta::assert_snapshot!(refused(&["plan", "--device-profile", "h200"]), @"error: the profile `h200` is a GPU's; say `--device cuda:0` too");
    insta::assert_snapshot!(refused(&["train", "--device", "cuda:0", "--device-profile", "h200", "--quiet"]), @"error: cuda:0: only plans can be made from the profile `h200`; leave out `--device-profile` to compute");
}

#[test]
fn the_selftest_reports_each_check() {
    let sandbox = Sandbox::new("selftest");
    let text = sandbox.succeed(&["selftest", "--seed", "1"]);
    assert!(text.starts_with("selftest · cpu (") && text.contains("matmul "), "{text}");
    assert!(text.trim_end().ends_with("every result and gradient holds"), "{text}");
}

#[test]
fn devices_lists_the_libraries_it_searched() {
    let document = Sandbox::new("gpu-devices").json(&["devices", "--json"]);
    let libraries = document["cuda"]["libraries"].as_array().unwrap();
    let names: Vec<&str> = libraries.iter().map(|library| library["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["CUDA driver", "NVRTC", "cuBLASLt", "cuDNN"]);
    assert_eq!(document["cuda"]["obstacle"].is_null(), document["devices"].as_array().unwrap().len() > 1);
}

/// Libraries can be hidden, so that their absence is tested on every machine.
#[test]
fn a_missing_driver_or_compiler_is_reported_before_planning() {
    let sandbox = Sandbox::new("gpu-without");
    let refused = |hidden: &str| {
        let mut command = command();
        command.args(["train", "--device", "cuda:0", "--out", "out"]).current_dir(&sandbox.folder);
        let output = command.env("PLIMSOLL_CUDA_WITHOUT", hidden).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{hidden}");
        String::from_utf8(output.stderr).unwrap()
    };
    insta::assert_snapshot!(refused("driver").trim(), @"error: cuda:0: there is no CUDA driver on this machine (libcuda was not found); compute with `--device cpu`");
    if probe().obstacle().is_none() {
        insta::assert_snapshot!(refused("nvrtc").trim(), @"error: cuda:0: the CUDA compiler NVRTC (libnvrtc) was not found; install it, or compute with `--device cpu`");
    }
    assert!(!sandbox.path("out").exists());
}

/// Measuring algorithms needs a reserve for the kernels of candidates, which plans have everywhere.
#[test]
fn measured_algorithms_are_planned_for() {
    let sandbox = Sandbox::new("gpu-algorithms");
    let context = |algorithms: &str| {
        let set = format!("train.algorithms={algorithms}");
        plan(&sandbox, &["--zoo", "mlp", "--set", &set])["device_by_owner"]["CUDA context"].as_u64().unwrap()
    };
    assert_eq!(context("measured") - context("rules"), 32 << 20);
    let (code, error) = sandbox.fail(&["plan", "--zoo", "mlp", "--set", "train.algorithms=fastest"]);
    assert!(code != 0 && error.contains("train.algorithms") && error.contains("rules") && error.contains("measured"), "{error}");
}

/// Predictions of a large vocabulary would need more memory than training, which does not compute them.
#[test]
fn a_language_model_trains_in_less_memory_than_its_predictions_take() {
    let sandbox = Sandbox::new("gpu-vocabulary");
    let model = ["--zoo", "gpt2-124m", "--batch", "16", "--set", "train.precision=mixed_bf16"];
    let tight = plan(&sandbox, &[&model[..], &["--allow", "recompute", "--device-memory", "4.2GiB"]].concat());
    assert_eq!((tight["accumulation_steps"].as_u64(), tight["used"].to_string()), (Some(1), "[\"recompute\"]".to_string()));
}
