//! Six networks trained under smaller and smaller budgets, each enforced by the operating system: what that costs, and
//! whether it was foreseen.
//!
//! ```text
//! cargo bench -p plimsoll-cli --bench budgets [-- [--threads N] [--rounds N] [NETWORK…]]
//! ```
//!
//! A line is a share of what the run takes when it may take all it likes. Runs under different lines take turns, and
//! the fastest step of all rounds counts, because a busy machine only ever adds to it. On one that is very busy,
//! `--threads 1` gives steadier numbers: what a thread waits for its processor can be left out of its time, what
//! threads wait for each other cannot.

#[path = "../tests/it/cgroup.rs"]
mod cgroup;

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// In hundredths of the unconstrained run.
const SHARES: [u64; 4] = [100, 60, 40, 25];

/// The networks, with batches for which a step takes about a second on one core and a quarter of the memory is more
/// than the process, its parameters and its optimizer's state.
const NETWORKS: [(&str, u64, &[&str]); 6] = [
    ("cifar-cnn", 384, &[]),
    ("resnet18", 256, &["model.input=[128, 128, 3]", "model.width=0.25"]),
    ("mobilenet-v1", 96, &["model.input=[128, 128, 3]", "model.width=0.5"]),
    ("unet", 64, &["model.input=[128, 128, 3]", "model.width=0.125"]),
    ("vit-tiny", 32, &["model.input=[112, 112, 3]"]),
    ("lstm", 768, &[]),
];

struct Measured {
    line: u64,
    plan: Value,
    report: Value,
    fastest: f64,
    weights: Vec<f32>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)?.parse().ok());
    let (threads, rounds): (Option<u64>, u64) = (number("--threads"), number("--rounds").unwrap_or(2));
    let folder = std::env::temp_dir().join(format!("plimsoll-budgets-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    println!(
        "{:<14} {:>5} {:>10} {:>10} {:>10} {:>9} {:>9} {:>6} {:>6}  {:<14} used",
        "network", "share", "line", "planned", "resident", "predicted", "measured", "ratio", "cost", "weights"
    );
    for (name, batch, changes) in NETWORKS.iter().filter(|(name, ..)| {
        let wanted = arguments.iter().any(|argument| NETWORKS.iter().any(|(known, ..)| known == argument));
        !wanted || arguments.iter().any(|argument| argument == name)
    }) {
        let mut common: Vec<String> = ["--zoo", name, "--json", "--batch"].map(str::to_string).to_vec();
        common.push(batch.to_string());
        threads.iter().for_each(|threads| common.extend(["--threads".to_string(), threads.to_string()]));
        for change in changes.iter().map(|change| change.to_string()).chain([format!("data.rows={}", 5 * batch)]) {
            common.extend(["--set".to_string(), change]);
        }
        network(name, &common, rounds, &folder);
    }
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

fn network(name: &str, common: &[String], rounds: u64, folder: &Path) {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let planned = Command::new(program).arg("plan").args(&common).args(["--host-memory", "64GiB"]).output().expect("the command runs");
    let all = document(&planned.stdout, &planned.stderr)["peak_bytes"]["host"].as_u64().expect("a plan has a peak");
    let mut measured: Vec<Option<Measured>> = SHARES.iter().map(|_| None).collect();
    for _ in 0..rounds {
        for (share, best) in SHARES.iter().zip(&mut measured) {
            let (line, out) = (all * share / 100, folder.join("run"));
            let text = line.to_string();
            let arguments = [&["train", "--quiet", "--out", "run", "--host-memory", &text], &common[..]].concat();
            let output = cgroup::run_within(line, &format!("{name}{share}"), program, &arguments, folder, &[]);
            if !output.status.success() {
                println!("{name:<14} {share:>3} %  {}", String::from_utf8_lossy(&output.stderr).trim());
                continue;
            }
            let report = document(&output.stdout, &output.stderr);
            let plan = std::fs::read(out.join("plan.json")).expect("a run leaves its plan");
            let fastest = report["fastest_step_s"].as_f64().expect("there was more than one step");
            if best.as_ref().is_none_or(|best| fastest < best.fastest) {
                let weights = weights(&std::fs::read(out.join("weights.safetensors")).expect("a run leaves its weights"));
                *best = Some(Measured { line, plan: document(&plan, &[]), report, fastest, weights });
            }
        }
    }
    let Some(free) = measured[0].as_ref() else { return };
    for (share, found) in SHARES.iter().zip(&measured).filter_map(|(share, found)| Some((share, found.as_ref()?))) {
        row(name, *share, found, free);
    }
}

fn row(name: &str, share: u64, found: &Measured, free: &Measured) {
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let number = |document: &Value, key: &str| document[key].as_u64().unwrap_or(0);
    let predicted = found.plan["predicted_step_s"].as_f64().unwrap_or(0.0);
    let resident = number(&found.report, "measured_peak_rss_bytes");
    let apart = found.weights.iter().zip(&free.weights).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    let weights = if found.weights == free.weights { "same bits".to_string() } else { format!("{apart:.1e} apart") };
    println!(
        "{name:<14} {share:>3} % {:>10} {:>10} {:>10} {predicted:>7.3} s {:>7.3} s {:>6.2} {:>6.2}  {weights:<14} {}{}{}",
        mebibytes(found.line),
        mebibytes(number(&found.report, "planned_bytes")),
        mebibytes(resident),
        found.fastest,
        predicted / found.fastest,
        found.fastest / free.fastest,
        found.plan["used"].as_array().map_or(String::new(), |used| used.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        if number(&found.plan, "micro_batch") < number(&found.plan, "batch") {
            format!(" ({} rows)", found.plan["micro_batch"])
        } else {
            String::new()
        },
        if resident > found.line { " ABOVE THE BUDGET" } else { "" },
    );
}

fn document(text: &[u8], complaints: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(complaints)))
}

/// The numbers of a safetensors file, all of which are single precision.
fn weights(bytes: &[u8]) -> Vec<f32> {
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[header..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
