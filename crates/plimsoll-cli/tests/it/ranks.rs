//! Training on several ranks that `mpirun` starts, over every MPI library of this machine.

#[path = "../../../plimsoll-comm/tests/engines/mod.rs"]
#[allow(dead_code, reason = "these tests start the command instead of themselves")]
mod engines;

use super::cgroup::Group;
use super::{Sandbox, command, program};
use engines::{Engine, engines};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};

/// 1438 rows in batches of 48: the last batch has 46.
const RUN: [&str; 10] = ["train", "--seed", "3", "--batch", "48", "--threads", "1", "--no-calibrate", "--set", "checkpoint.every_steps=20"];

/// The variable with the rank, of any launcher here.
const RANK: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// A program as the ranks of a job.
fn job(sandbox: &Sandbox, engine: &Engine, ranks: usize, program: &[&str]) -> Command {
    let mut job = engine.command(ranks);
    job.args(program).current_dir(&sandbox.folder);
    let plimsoll = command();
    job.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?))));
    job
}

/// The run with more arguments as the ranks of a job.
fn training(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> Command {
    let plimsoll = program().to_str().unwrap();
    job(sandbox, engine, ranks, &[&[plimsoll], &RUN[..], arguments].concat())
}

fn run(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> Output {
    training(sandbox, engine, ranks, arguments).output().unwrap()
}

/// Standard error of ranks that succeed, and the document that they print.
fn succeed(sandbox: &Sandbox, engine: &Engine, ranks: usize, arguments: &[&str]) -> (String, Value) {
    let output = run(sandbox, engine, ranks, &[arguments, &["--json"]].concat());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{ranks} ranks of {}: {out}{err}", engine.mpirun.display());
    // One rank prints.
    let document = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    (err, document)
}

fn read(sandbox: &Sandbox, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(sandbox.path(file)).unwrap()).unwrap()
}

fn numbers(sandbox: &Sandbox, folder: &str) -> Vec<f32> {
    let file = super::resume::weights(sandbox, folder);
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[track_caller]
fn assert_same_weights(sandbox: &Sandbox, folder: &str) {
    let (one, many) = (numbers(sandbox, "one"), numbers(sandbox, folder));
    let largest = one.iter().zip(&many).map(|(one, many)| (one - many).abs()).fold(0.0, f32::max);
    assert!(one.len() == many.len() && largest <= 1e-6, "{folder}: weights differ by up to {largest}");
}

#[test]
fn ranks_train_the_weights_of_one_process_and_resume_on_others() {
    let sandbox = Sandbox::new("ranks");
    sandbox.succeed(&[&RUN[..], &["--out", "one", "--quiet", "--epochs", "2"]].concat());
    for (number, engine) in engines().iter().enumerate() {
        let folder = format!("many-{number}");
        let (err, report) = succeed(&sandbox, engine, 4, &["--out", &folder, "--epochs", "2"]);
        assert_eq!(err.matches("plan · digits-cnn").count(), 1, "rank 0 alone prints: {err}");
        assert_same_weights(&sandbox, &folder);
        assert_eq!(report["epochs"][1]["accuracy"], read(&sandbox, "one/report.json")["epochs"][1]["accuracy"]);
        // Every byte of the plan follows from its certificate and what it assumes, and no rank takes more.
        let plan = read(&sandbox, &format!("{folder}/plan.json"));
        assert_eq!((plan["ranks"].as_u64(), plan["batch"].as_u64()), (Some(4), Some(48)));
        let communication = plan["by_owner"]["communication"].as_u64().unwrap();
        assert!(communication >= 1 << 20, "{communication} bytes of communication");
        let (planned, measured) = (report["planned_bytes"].as_u64().unwrap(), report["measured_peak_rss_bytes"].as_u64().unwrap());
        assert!(measured <= planned, "{}: {measured} bytes were measured and {planned} planned", engine.mpirun.display());
        // Another number of ranks continues within the second epoch.
        for file in std::fs::read_dir(sandbox.path(&folder).join("checkpoints")).unwrap().map(|file| file.unwrap().path()) {
            if file.file_name().is_some_and(|name| name.to_string_lossy().contains("60")) {
                std::fs::remove_file(file).unwrap();
            }
        }
        let (err, _) = succeed(&sandbox, engine, 3, &["--out", &folder, "--resume", "--epochs", "2"]);
        assert!(err.contains("resumed after step 40, 1 epochs done"), "{err}");
        assert_same_weights(&sandbox, &folder);
    }
}

#[test]
fn ranks_with_parts_train_the_weights_of_one_process_and_resume_on_others() {
    let sandbox = Sandbox::new("ranks-parts");
    let run =
        ["--set", "train.optimizer={ type = \"adam\", epsilon = 1e-3 }", "--set", "train.clip={ global_norm = 1.0 }", "--epochs", "2"];
    sandbox.succeed(&[&RUN[..], &["--out", "one", "--quiet"], &run].concat());
    for (number, engine) in engines().iter().enumerate() {
        let folder = format!("many-{number}");
        let on = |ranks: usize, shard: &str, arguments: &[&str]| {
            let shard = format!("parallel.shard={shard}");
            succeed(&sandbox, engine, ranks, &[&["--out", &folder, "--set", &shard][..], &run, arguments].concat())
        };
        let (_, report) = on(4, "optimizer", &[]);
        assert_same_weights(&sandbox, &folder);
        let (planned, measured) = (report["planned_bytes"].as_u64().unwrap(), report["measured_peak_rss_bytes"].as_u64().unwrap());
        assert!(measured <= planned, "{}: {measured} bytes were measured and {planned} planned", engine.mpirun.display());
        let plan = read(&sandbox, &format!("{folder}/plan.json"));
        assert_eq!((plan["ranks"].as_u64(), plan["shard"].as_str()), (Some(4), Some("optimizer")));
        let whole = read(&sandbox, "one/plan.json")["by_owner"]["optimizer"].as_u64().unwrap();
        let part = plan["by_owner"]["optimizer"].as_u64().unwrap();
        assert!((whole / 4..whole / 4 + 1024).contains(&part), "{part} of {whole} bytes");
        let checkpoints = sandbox.path(&folder).join("checkpoints");
        let part = |step: u64, rank: usize| checkpoints.join(format!("step-{step:012}.rank-{rank}-of-4.safetensors"));
        assert!((0..4).all(|rank| part(40, rank).exists() && part(60, rank).exists()));
        // Other numbers of ranks continue within the second epoch, and one process with all of it.
        for (ranks, shard) in [(2, "optimizer"), (3, "gradients"), (1, "gradients"), (2, "none"), (4, "gradients")] {
            for file in fs::read_dir(&checkpoints).unwrap().map(|file| file.unwrap().path()) {
                if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-000000000060")) {
                    fs::remove_file(file).unwrap();
                }
            }
            let (err, _) = on(ranks, shard, &["--resume"]);
            assert!(err.contains("resumed after step 40, 1 epochs done"), "{err}");
            assert_same_weights(&sandbox, &folder);
        }
    }
    // Without machines: the checker derives everything again.
    let plan = |shard: &str, out: &str| {
        let arguments = ["plan", "--seed", "3", "--batch", "48", "--threads", "1", "--no-calibrate", "--ranks", "64", "--out", out];
        sandbox.succeed(&[&arguments[..], &["--set", &format!("parallel.shard={shard}")]].concat());
        sandbox.succeed(&["check", out]);
        read(&sandbox, out)["plan"]["by_owner"]["optimizer"].as_u64().unwrap()
    };
    let [whole, part] = [plan("none", "whole.json"), plan("optimizer", "part.json")];
    assert!((whole / 64..whole / 64 + 1024).contains(&part), "{part} of {whole} bytes");
}

/// A large network on more ranks than there are, whose certificate is checked.
#[test]
fn ranks_that_are_not_there_are_planned_with_shards() {
    let sandbox = Sandbox::new("ranks-planned");
    let network = ["--zoo", "gpt2-355m", "--batch", "4096", "--set", "data.rows=4096", "--threads", "8", "--no-calibrate"];
    let ranks = ["--ranks", "1024", "--micro-batch", "1", "--host-memory", "64GiB"];
    let plan = |arguments: &[&str]| sandbox.json(&[&["plan", "--json"], &network[..], &ranks, arguments].concat());
    let whole = plan(&["--shard", "none"]);
    // The flag comes before the key.
    let sharded = plan(&["--set", "parallel.shard=optimizer", "--shard", "gradients", "--out", "sharded.json"]);
    sandbox.succeed(&["check", "sharded.json"]);
    assert_eq!((&whole["shard"], &sharded["shard"]), (&"none".into(), &"gradients".into()));
    let by_rank = |plan: &Value, owner: &str| {
        let all = plan["by_rank"].as_array().unwrap();
        assert_eq!((all.len(), &all[0]["ranks"]), (1, &serde_json::json!([0, 1023])));
        all[0]["by_owner"][owner].as_u64().unwrap()
    };
    // With one moment per parameter.
    let parameters: u64 = 354_823_168;
    for (owner, bytes) in [("optimizer", 4), ("gradient sums", 4)] {
        let (before, after) = (by_rank(&whole, owner), by_rank(&sharded, owner));
        assert!(before >= bytes * parameters, "{owner}: {before}");
        // Each of some hundred tensors is padded.
        let part = bytes * parameters / 1024;
        assert!((part..part + (64 << 10)).contains(&after), "{owner}: {after} of {before} bytes");
    }
    assert_eq!(by_rank(&sharded, "weights"), 4 * parameters);

    let refused = ["plan", "--batch", "64", "--threads", "1", "--no-calibrate", "--ranks", "2", "--allow", "microbatch"];
    let budget = |shard: &str| sandbox.json(&[&refused[..], &["--json", "--shard", shard]].concat())["min_bytes"].as_u64().unwrap();
    assert!(budget("optimizer") < budget("none"));
    let budget = budget("optimizer").to_string();
    let (_, error) = sandbox.fail(&[&refused[..], &["--host-memory", &budget]].concat());
    let others = " ranks, or on 2 with `parallel.shard = \"optimizer\"`; the minimum budget is ";
    assert!(error.contains(" on each of 2 ranks, but does on ") && error.contains(others), "{error}");
}

#[test]
fn reproducible_ranks_have_the_bits_of_one_process() {
    let sandbox = Sandbox::new("ranks-reproducible");
    let flag = ["--set", "parallel.reproducible=true", "--epochs", "2"];
    sandbox.succeed(&[&RUN[..], &["--out", "one", "--quiet"], &flag].concat());
    let weights = |folder: &str| super::resume::weights(&sandbox, folder);
    // Everything that the plan states follows from the micro-batch that it states.
    assert_eq!(read(&sandbox, "one/plan.json")["micro_batch"].as_u64(), Some(3));
    for (number, engine) in engines().iter().enumerate() {
        let folder = format!("many-{number}");
        let (_, report) = succeed(&sandbox, engine, 3, &[&["--out", &folder][..], &flag].concat());
        assert!(weights(&folder) == weights("one"), "{}", engine.mpirun.display());
        let scores = |report: &Value| -> Vec<Value> {
            let epochs = report["epochs"].as_array().unwrap();
            epochs.iter().flat_map(|epoch| ["loss", "accuracy", "val_loss", "val_accuracy"].map(|score| epoch[score].clone())).collect()
        };
        assert_eq!(scores(&report), scores(&read(&sandbox, "one/report.json")));
        let plan = read(&sandbox, &format!("{folder}/plan.json"));
        // Of 16 micro-batches, rank 0 has eight.
        assert_eq!((plan["micro_batch"].as_u64(), plan["accumulation_steps"].as_u64()), (Some(3), Some(8)));
        for file in std::fs::read_dir(sandbox.path(&folder).join("checkpoints")).unwrap().map(|file| file.unwrap().path()) {
            if file.file_name().is_some_and(|name| name.to_string_lossy().contains("60")) {
                std::fs::remove_file(file).unwrap();
            }
        }
        let (err, _) = succeed(&sandbox, engine, 2, &["--out", &folder, "--resume", "--epochs", "2"]);
        assert!(err.contains("resumed after step 40, 1 epochs done"), "{err}");
        assert!(weights(&folder) == weights("one"), "resumed over {}", engine.mpirun.display());
    }
    let plan = |ranks: &str, out: &str| {
        let arguments = ["plan", "--seed", "3", "--batch", "48", "--threads", "1", "--no-calibrate", "--ranks", ranks, "--out", out];
        sandbox.succeed(&[&arguments[..], &flag[..2]].concat());
        sandbox.succeed(&["check", out]);
        read(&sandbox, out)["plan"]["micro_batch"].as_u64()
    };
    assert_eq!([plan("1", "plan-1.json"), plan("5", "plan-5.json"), plan("64", "plan-64.json")], [Some(3); 3]);
}

#[test]
fn what_ranks_cannot_do_is_one_error() {
    let sandbox = Sandbox::new("ranks-refused");
    // Whatever the library is.
    if let Some(engine) = engines().into_iter().next() {
        let refused = |arguments: &[&str], with: &str| {
            let output = run(&sandbox, &engine, 2, arguments);
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{err}");
            assert_eq!((err.matches("error: ").count(), err.matches(with).count()), (1, 1), "{}: {err}", engine.mpirun.display());
        };
        refused(&["--set", "parallel.data=none"], "error: 2 ranks were started, but `parallel.data` is \"none\"");
        refused(&["--set", "parallel.shards=optimizer"], "error: unknown key `parallel.shards`");
        refused(&["--set", "parallel.shard=parameters"], "error: `parallel.shard` is \"parameters\", but parameters cannot be sharded");
        let adafactor = ["--set", "parallel.shard=optimizer", "--set", "train.optimizer={ type = \"adafactor\" }"];
        refused(&adafactor, "error: `parallel.shard` cannot be met with the optimizer adafactor");
        refused(&["--host-memory", "4MiB"], "error: this run does not fit into 4.00 MiB of host memory");
        let output = training(&sandbox, &engine, 2, &[]).env("PLIMSOLL_MPI_TIMEOUT", "soon").output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        let timeout = "error: PLIMSOLL_MPI_TIMEOUT is `soon`, but should be the seconds that a rank waits for others, such as 600";
        assert!(!output.status.success() && err.contains(timeout), "{err}");
        if plimsoll::probe().obstacle().is_some() {
            // No rank waits for the other.
            refused(&["--device", "cuda"], "; compute with `--device cpu`");
        }
    }
}

/// The process of a rank whose current folder is that of the test.
fn process_of_rank(sandbox: &Sandbox, rank: usize) -> Option<String> {
    let here = fs::canonicalize(&sandbox.folder).unwrap();
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).find_map(|entry| {
        let path = entry.path();
        let is_plimsoll = fs::read_link(path.join("exe")).ok()? == fs::canonicalize(program()).unwrap();
        let variables = fs::read(path.join("environ")).ok()?;
        let is_rank = RANK.iter().any(|name| variables.split(|byte| *byte == 0).any(|pair| pair == format!("{name}={rank}").as_bytes()));
        let found = is_plimsoll && is_rank && fs::read_link(path.join("cwd")).ok()? == here;
        found.then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

#[test]
fn a_rank_that_is_killed_ends_the_job_which_resumes_on_fewer() {
    let sandbox = Sandbox::new("ranks-killed");
    sandbox.succeed(&[&RUN[..], &["--out", "one", "--quiet", "--epochs", "3"]].concat());
    for (number, engine) in engines().iter().enumerate() {
        let folder = format!("killed-{number}");
        let arguments = ["--out", &folder, "--quiet", "--epochs", "1000000", "--set", "checkpoint.keep=1000000"];
        let mut job = training(&sandbox, engine, 3, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let first = sandbox.path(&format!("{folder}/checkpoints/step-000000000020.json"));
        while !first.exists() {
            assert!(job.try_wait().unwrap().is_none(), "{}: the job has ended", engine.mpirun.display());
            std::thread::yield_now();
        }
        let rank = process_of_rank(&sandbox, 1).expect("rank 1 trains");
        assert!(Command::new("kill").args(["-9", &rank]).status().unwrap().success());
        // Its launcher ends the other ranks, which wait for it.
        assert!(!job.wait().unwrap().success(), "{}", engine.mpirun.display());
        for file in fs::read_dir(sandbox.path(&folder).join("checkpoints")).unwrap().map(|file| file.unwrap().path()) {
            let step: String = file.to_string_lossy().rsplit('/').next().unwrap().chars().filter(char::is_ascii_digit).collect();
            if step.parse::<u64>().is_ok_and(|step| step > 50) {
                fs::remove_file(file).unwrap();
            }
        }
        succeed(&sandbox, engine, 2, &["--out", &folder, "--resume", "--epochs", "3"]);
        assert_same_weights(&sandbox, &folder);
    }
}

#[test]
fn every_rank_stays_within_a_hard_limit_of_its_plan() {
    let sandbox = Sandbox::new("ranks-limited");
    let engines = engines();
    for (number, (engine, shard)) in engines.iter().flat_map(|engine| [(engine, "none"), (engine, "gradients")]).enumerate() {
        let folder = format!("measured-{number}");
        let shards = ["--epochs", "2", "--micro-batch", "5", "--set", "parallel.shard=gradients"];
        let run = if shard == "none" { &shards[..2] } else { &shards };
        succeed(&sandbox, engine, 2, &[&["--out", &folder], run].concat());
        // What MPI takes differs by some pages from start to start.
        let budget = read(&sandbox, &format!("{folder}/plan.json"))["min_bytes"].as_u64().unwrap() + (512 << 10);
        let limit = |rank: usize| Group::new(&format!("rank-{rank}"), budget);
        let Some(groups) = (0..2).map(limit).collect::<Option<Vec<Group>>>() else {
            println!("ranks: skipped, there are no control groups that this process may make");
            return;
        };
        let parent = groups[0].path().to_str().unwrap().strip_suffix('0').unwrap();
        let script = format!("echo $$ > {parent}${{{}:-${}}}/cgroup.procs && exec \"$0\" \"$@\"", RANK[0], RANK[1]);
        let (plimsoll, host, out) = (program().to_str().unwrap(), budget.to_string(), format!("limited-{number}"));
        let own = ["sh", "-c", &script, plimsoll];
        let limited = job(&sandbox, engine, 2, &[&own[..], &RUN[..], &["--out", &out, "--quiet", "--host-memory", &host], run].concat())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&limited.stderr);
        assert!(limited.status.success(), "{}: {err}", engine.mpirun.display());
        // Nothing was replanned, and the result is that of a run without limits.
        assert!(!err.contains("replanned"), "{err}");
        assert_eq!(read(&sandbox, &format!("{out}/plan.json"))["host_budget_bytes"].as_u64(), Some(budget));
        assert_eq!(numbers(&sandbox, &out), numbers(&sandbox, &folder));
    }
}
