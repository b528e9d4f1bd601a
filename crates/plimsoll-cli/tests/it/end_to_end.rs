//! End-to-end runs of the command.

use super::{Sandbox, example, npy};

#[test]
fn training_the_digits_reports_and_writes_its_files() {
    let sandbox = Sandbox::new("digits");
    let document = sandbox.json(&["train", "--json", "--epochs", "4", "--seed", "1", "--host-memory", "64MiB"]);
    let epochs = document["epochs"].as_array().unwrap();
    assert_eq!((epochs.len(), document["steps"].as_u64()), (4, Some(4 * 45)));
    assert!(epochs[3]["val_accuracy"].as_f64().unwrap() > 0.9 && epochs[3]["loss"].as_f64().unwrap() < 0.5);
    let bytes = |key: &str| document[key].as_u64().unwrap();
    assert!(bytes("measured_peak_rss_bytes") <= bytes("planned_bytes") && bytes("planned_bytes") <= bytes("host_budget_bytes"));
    assert_eq!(bytes("host_budget_bytes"), 64 << 20);
    for file in ["config.toml", "plan.json", "log.jsonl", "report.json", "weights.safetensors"] {
        assert!(sandbox.path("runs/digits-1").join(file).exists(), "{file}");
    }
    assert_eq!(document["out"], "runs/digits-1");
    let log = std::fs::read_to_string(sandbox.path("runs/digits-1/log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4);
}

#[test]
fn progress_is_plain_lines_without_a_terminal() {
    let sandbox = Sandbox::new("plain");
    let output = sandbox.run(&["train", "--epochs", "2", "--out", "here", "--host-memory", "64MiB"]);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(err.contains("host budget") && err.contains("epoch 1/2 loss ") && err.contains("epoch 2/2 loss "), "{err}");
    assert!(!err.contains('\r'), "no live line when nobody watches");
    for word in [
        "trained 2 epochs, 90 steps",
        "validation  loss ",
        "accuracy",
        "examples/s",
        "planned",
        "measured peak",
        "here (report.html, weights",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let quiet = sandbox.run(&["train", "--epochs", "1", "--out", "there", "--quiet"]);
    assert!(quiet.status.success() && quiet.stdout.is_empty() && quiet.stderr.is_empty());
}

#[test]
fn weights_files_are_identical_for_any_number_of_threads() {
    let sandbox = Sandbox::new("threads");
    for threads in ["1", "2"] {
        sandbox.succeed(&["train", "--epochs", "1", "--threads", threads, "--out", threads, "--quiet"]);
    }
    let weights = |threads: &str| std::fs::read(sandbox.path(threads).join("weights.safetensors")).unwrap();
    assert!(weights("1") == weights("2"));
}

#[test]
fn a_plan_is_complete_and_its_minimum_is_feasible() {
    let sandbox = Sandbox::new("plan");
    let plan = sandbox.json(&["plan", "--json", "--host-memory", "64MiB"]);
    for key in ["feasible", "arena_bytes", "lower_bound_bytes", "micro_batch", "accumulation_steps", "precision", "by_owner", "plan_ms"] {
        assert!(!plan[key].is_null(), "{key}");
    }
    let owners: u64 = plan["by_owner"].as_object().unwrap().values().map(|size| size.as_u64().unwrap()).sum();
    assert_eq!(plan["peak_bytes"]["host"].as_u64(), Some(owners), "the owners add up");

    let refused = sandbox.run(&["plan", "--json", "--host-memory", "1MiB"]);
    assert_eq!(refused.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(document["feasible"], false);
    let least = document["min_bytes"].as_u64().unwrap();
    let exact = sandbox.json(&["plan", "--json", "--host-memory", &least.to_string()]);
    assert_eq!((exact["feasible"].as_bool(), exact["peak_bytes"]["host"].as_u64()), (Some(true), Some(least)));
    assert_eq!(sandbox.fail(&["plan", "--host-memory", &(least - 1).to_string()]).0, 3, "one byte less does not");
}

#[test]
fn training_succeeds_at_the_minimum_budget() {
    let sandbox = Sandbox::new("least");
    let refused = sandbox.run(&["plan", "--json", "--host-memory", "1MiB"]);
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let least = document["min_bytes"].as_u64().unwrap();
    let trained = sandbox.json(&["train", "--json", "--quiet", "--epochs", "1", "--host-memory", &least.to_string()]);
    assert!(trained["measured_peak_rss_bytes"].as_u64().unwrap() <= least);
}

#[test]
fn plan_out_writes_a_plan_file() {
    let sandbox = Sandbox::new("certificate");
    sandbox.succeed(&["plan", "--out", "plan.json"]);
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(sandbox.path("plan.json")).unwrap()).unwrap();
    assert!(!document["certificate"]["programs"][0]["steps"].as_array().unwrap().is_empty());
}

#[test]
fn training_from_npy_files() {
    let sandbox = Sandbox::new("npy");
    let x: Vec<u8> = (0..300).flat_map(|i| f64::from(i % 7).to_le_bytes()).collect();
    let y: Vec<u8> = (0..100).flat_map(|i: i64| (i % 3).to_le_bytes()).collect();
    sandbox.write("x.npy", npy("<f8", "(100, 3)", &x));
    sandbox.write("y.npy", npy("<i8", "(100,)", &y));
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\nholdout = 0.1\nshuffle = { seed = 3 }\n\
         [model]\nlayers = [{ type = \"dense\", units = 3 }]\n[train]\nbatch = 16\nepochs = 2\n",
    );
    let document = sandbox.json(&["train", "run.toml", "--json", "--quiet", "--out", "out"]);
    assert_eq!(document["steps"], 2 * 6);
    assert!(document["epochs"][1]["val_accuracy"].is_number());
}

#[test]
fn flags_and_set_override_the_configuration() {
    let sandbox = Sandbox::new("flags");
    let plan = sandbox.json(&["plan", "--json", "--batch", "48", "--micro-batch", "20"]);
    assert_eq!((plan["batch"].as_u64(), plan["micro_batch"].as_u64(), plan["accumulation_steps"].as_u64()), (Some(48), Some(20), Some(3)));
    let plan = sandbox.json(&["plan", "--json", "--set", "train.batch=8", "--set", "model.zoo=mlp"]);
    assert_eq!((plan["batch"].as_u64(), plan["model"].as_str()), (Some(8), Some("mlp")));
}

#[test]
fn a_small_host_budget_is_met_with_micro_batches() {
    let sandbox = Sandbox::new("micro");
    let config = example("conv_resized.toml");
    let free = sandbox.json(&["plan", &config, "--json", "--host-memory", "1GiB"]);
    assert_eq!(free["accumulation_steps"], 1);
    let least = free["peak_bytes"]["host"].as_u64().unwrap() - (8 << 20);
    let tight = sandbox.json(&["plan", &config, "--json", "--host-memory", &least.to_string()]);
    assert!(tight["accumulation_steps"].as_u64().unwrap() > 1 && tight["peak_bytes"]["host"].as_u64().unwrap() <= least);
}

#[test]
fn devices_lists_the_cpu() {
    let sandbox = Sandbox::new("devices");
    assert!(sandbox.succeed(&["devices"]).starts_with("cpu   "));
    assert_eq!(sandbox.json(&["devices", "--json"])["devices"][0]["name"], "cpu");
}

/// A small run on files, in a folder of its own.
fn small_run(sandbox: &Sandbox) {
    std::fs::create_dir_all(sandbox.path("conf")).unwrap();
    let numbers: Vec<u8> = (0..60u8).flat_map(|i| f32::from(i % 5).to_le_bytes()).collect();
    sandbox.write("conf/x.npy", npy("<f4", "(20, 3)", &numbers));
    sandbox.write("conf/y.npy", npy("<f4", "(20, 3)", &numbers));
    let data = "[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\n";
    sandbox.write("conf/run.toml", format!("{data}[model]\nlayers = [{{ type = \"dense\", units = 3 }}]\n[train]\nloss = \"mse\"\n"));
}

#[test]
fn a_saved_configuration_runs_from_any_folder() {
    let sandbox = Sandbox::new("again");
    small_run(&sandbox);
    sandbox.succeed(&["train", "conf/run.toml", "--quiet", "--out", "first"]);
    sandbox.succeed(&["train", "first/config.toml", "--quiet", "--out", "second"]);
    let weights = |folder: &str| std::fs::read(sandbox.path(folder).join("weights.safetensors")).unwrap();
    assert!(weights("first") == weights("second"), "it is the same run");
}

#[test]
fn a_failed_run_removes_files_of_an_earlier_run() {
    let sandbox = Sandbox::new("stale");
    small_run(&sandbox);
    sandbox.succeed(&["train", "conf/run.toml", "--quiet", "--out", "out"]);
    sandbox.write("conf/x.npy", npy("<f4", "(20, 3)", &f32::NAN.to_le_bytes().repeat(60)));
    sandbox.fail(&["train", "conf/run.toml", "--quiet", "--out", "out", "--overwrite"]);
    for file in ["weights.safetensors", "report.json"] {
        assert!(!sandbox.path("out").join(file).exists(), "{file}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_unwritable_log_does_not_lose_the_weights() {
    let sandbox = Sandbox::new("log");
    small_run(&sandbox);
    std::fs::create_dir(sandbox.path("out")).unwrap();
    std::os::unix::fs::symlink("/dev/full", sandbox.path("out/log.jsonl")).unwrap();
    let (_, error) = sandbox.fail(&["train", "conf/run.toml", "--quiet", "--out", "out"]);
    insta::assert_snapshot!(error, @"error: cannot write out/log.jsonl: No space left on device (os error 28)");
    assert!(sandbox.path("out/weights.safetensors").exists());
}

#[test]
fn help_texts() {
    let sandbox = Sandbox::new("help");
    insta::assert_snapshot!(sandbox.succeed(&["--help"]), @"
    Train neural networks within a memory budget that is planned before the first step

    Usage: plimsoll <COMMAND>

    Commands:
      train        Train a model: plan, run, report
      plan         Plan the memory of a run without running it
      calibrate    Measure the speed of this machine once, for predicted step times
      check        Verify a plan written by `plan --out`, independently of the planner
      report       Write a run or a plan as one HTML page: memory, strategy, curves, pipeline, model
      profile      Measure some steps of a run: time per op, roofline, memory, input pipeline
      watch        Follow a run from another terminal: curves, memory, throughput
      runs         List runs with their state, best scores, memory and speed
      data         Inspect, benchmark or cache an input pipeline
      evaluate     Evaluate the trained model of a run, with a report by class
      predict      Write the predictions of a trained model, for new data or rows of the run
      generate     Generate text with a trained character model
      import       Write a configuration that trains a model of Keras or ONNX
      export       Write the trained network of a run as ONNX, Keras, safetensors or TFLite
      convert      Write a model of another program in another format
      zoo          List the networks of the zoo, or the layers of one
      arena        Assign offsets to buffers with known lifetimes, from a table
      devices      List devices and the libraries found
      selftest     Compare every op of a device with a float64 reference
      schema       Print the JSON schema of configurations, with which editors complete and check them
      completions  Print completions for a shell
      man          Print the manual page, or write those of all commands to a folder
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Examples:
      plimsoll train                                 a small network on the embedded digits
      plimsoll plan run.toml --host-memory 96MiB     the memory of a run, before it runs
      plimsoll train run.toml --set train.loss=mse   any key of the configuration from the command line
    ");
    insta::assert_snapshot!(sandbox.succeed(&["train", "--help"]), @"
    Train a model: plan, run, report

    Usage: plimsoll train [OPTIONS] [CONFIG]

    Arguments:
      [CONFIG]  Configuration of the run (TOML), the folder of a run, or a model (.keras, .h5, .onnx) on
                synthetic data [default: the embedded digits]

    Options:
          --zoo <NAME>             Network of the zoo on synthetic data, instead of a configuration (see
                                   `plimsoll zoo`)
          --input <HxW>            Input size of the network, such as 416x608 or 416x608x3
          --allow <LIST>           Strategies the planner may use to fit the budget, separated by
                                   commas: recompute, split, microbatch, offload, mixed_precision,
                                   state_8bit, microbatch_batchnorm, or none [default: all that leave
                                   results unchanged]
          --host-memory <SIZE>     Memory budget of the process, such as 256MiB or 2GB [default:
                                   available memory]
          --device-memory <SIZE>   Memory budget of the GPU [default: free device memory]; the CPU uses
                                   --host-memory
          --device <NAME>          Device to run on (see `plimsoll devices`)
          --device-profile <NAME>  Plan for a GPU that is not present, with a stored profile such as
                                   h200
          --batch <ROWS>           Batch size
          --micro-batch <ROWS>     Micro-batch size for gradient accumulation [default: the largest that
                                   divides the batch and fits]
          --epochs <N>             Number of epochs
          --seed <N>               Seed of the initial weights and of shuffling
          --fold <K/N>             Fold of a cross-validation to validate on, such as 3/5
          --weights <FILE>         Initial weights, from a safetensors file; ignored when a run is
                                   resumed
          --threads <N>            Compute threads [default: one per core]; results do not depend on it,
                                   unless --allow lets the plan change them
          --out <PATH>             Run folder [default: the next runs/NAME-N]; for `plan`, the file for
                                   plan and certificate
          --resume                 Resume from the newest checkpoint in the run folder, bit for bit;
                                   with a configuration, start the run if it has not begun
          --set <KEY=VALUE>        Override a configuration key, such as train.loss=mse (a list as a
                                   whole); may be repeated
          --no-calibrate           Plan with built-in rates instead of measured ones, for the same plan
                                   on every machine
          --report <FILE.html>     Write the report of the plan to this HTML file; of a refused budget,
                                   what holds the peak and the cheapest changes
          --json                   Print one JSON document on standard output, everything else on
                                   standard error
      -q, --quiet                  No plan, no progress, no summary; warnings and where a stopped run
                                   continues are still printed
          --overwrite              Replace the run that is in the run folder; without it, a folder with
                                   results is refused
      -h, --help                   Print help
    ");
}

#[test]
fn a_run_starts_from_pretrained_weights() {
    let sandbox = Sandbox::new("weights");
    sandbox.succeed(&["train", "--epochs", "3", "--seed", "1", "--quiet", "--out", "first"]);
    let finetuned = sandbox.json(&["train", "--json", "--epochs", "1", "--seed", "2", "--weights", "first/weights.safetensors"]);
    let from_scratch = sandbox.json(&["train", "--json", "--epochs", "1", "--seed", "2"]);
    let accuracy = |run: &serde_json::Value| run["epochs"][0]["accuracy"].as_f64().unwrap();
    assert!(accuracy(&finetuned) > 0.9 && accuracy(&from_scratch) < 0.8, "{} and {}", accuracy(&finetuned), accuracy(&from_scratch));

    // Another head: the file does not match, unless `partial` is set.
    let other = ["train", "--epochs", "1", "--set", "model.classes=12", "--out", "other", "--set"];
    let (code, error) = sandbox.fail(&[&other[..], &["train.weights=first/weights.safetensors", "--quiet"]].concat());
    assert_eq!(code, 1);
    assert!(
        error.contains(
            "does not have the tensors of this model: `dense_1/kernel` is F32 [64, 10] in the file and F32 [64, 12] in the model"
        ),
        "{error}"
    );
    let output = sandbox.run(&[&other[..], &["train.weights={ path = \"first/weights.safetensors\", partial = true }"]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(error.contains("weights.safetensors has no `dense_1/kernel` and 1 more of the model's shape"), "{error}");
    let (_, missing) = sandbox.fail(&["train", "--weights", "no.safetensors", "--quiet"]);
    assert!(missing.contains("cannot read") && missing.contains("no.safetensors"), "{missing}");
}
