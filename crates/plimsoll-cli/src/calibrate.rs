//! `plimsoll calibrate`, and what `train` and `plan` do about it by themselves.

use crate::args::{CalibrateArgs, RunArgs};
use crate::{print, say, whole};
use anyhow::{Result, bail};
use plimsoll::calibration::{calibrate, required_memory};
use plimsoll::config::Config;
use plimsoll::cost::{self, CostTable};
use plimsoll::{Budget, Bytes, Device, Run, system};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set, it stands for `--no-calibrate`: so that tests plan the same everywhere.
const OFF: &str = "PLIMSOLL_NO_CALIBRATE";

/// A calibration ends after this long with what it has by then. It takes a few seconds unless the machine is busy.
const LIMIT: Duration = Duration::from_secs(30);

/// Measures the device, and with a configuration also the nodes of its own step; keeps and prints what came out.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    let start = Instant::now();
    let mut config = match (&args.zoo, &args.config) {
        (Some(name), _) => Config::zoo(name)?,
        (None, Some(path)) => Config::read(path)?,
        (None, None) => Config::digits(),
    };
    if let Some(device) = &args.device {
        config.set_value("train.device", device.as_str())?;
    }
    if let Some(threads) = args.threads {
        config.set_value("train.threads", whole("train.threads", threads)?)?;
    }
    args.set.iter().try_for_each(|assignment| config.set(assignment))?;
    let mut run = config.build()?;
    let device = run.open_device()?;
    let mut costs = calibrate(device, LIMIT)?;
    let own = args.zoo.is_some() || args.config.is_some();
    let timed = own.then(|| run.profile_own_step(&mut costs, LIMIT)).transpose()?;
    let folder = cost::cache_dir();
    let Some(folder) = folder else { bail!("there is no folder to keep what was measured in; set HOME or XDG_CACHE_HOME") };
    let kept = cost::save(&folder, &costs)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let mut document = document(&costs);
        document["seconds"] = json!(seconds);
        document["file"] = json!(kept);
        print(&document);
    } else if !args.quiet {
        say(&table(&costs));
        let own = timed.map_or(String::new(), |timed| format!(", {timed} of them of this run's own step"));
        say(&format!("\n{} nodes timed{own}, in {seconds:.1} s; kept in {}\n", costs.len(), kept.display()));
    }
    Ok(())
}

/// Lets a run be planned by what was measured of its device. If nothing was yet, it is measured now, by a process of its own, so that what
/// that takes is not held by this one.
pub fn apply(run: &mut Run, args: &RunArgs) -> Result<()> {
    if args.no_calibrate || args.device_profile.is_some() || std::env::var_os(OFF).is_some_and(|value| !value.is_empty()) {
        return Ok(());
    }
    let Some(folder) = cost::cache_dir() else { return Ok(()) };
    let key = run.cost_key()?;
    if let Some(costs) = cost::load(&folder, &key) {
        run.cost_table(Arc::new(costs));
        return Ok(());
    }
    let device = run.open_device()?;
    if let Some(why) = too_little(&*device, run.lines()) {
        note(args, &format!("times are predicted by built-in rates: measuring {} would take {why}", device.name()));
        return Ok(());
    }
    note(args, &format!("measuring {} once, which takes some seconds (--no-calibrate does without)", device.name()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["calibrate", "--quiet"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(["--device", &device.name()]);
    if let Some(threads) = run.threads() {
        command.args(["--threads", &threads.to_string()]);
    }
    let output = command.output()?;
    match cost::load(&folder, &key) {
        Some(costs) => run.cost_table(Arc::new(costs)),
        None => {
            let why = String::from_utf8_lossy(&output.stderr);
            note(args, &format!("times are predicted by built-in rates: {}", why.trim().trim_start_matches("error: ")));
        }
    }
    Ok(())
}

/// What measuring a device would take more than there is, in words.
fn too_little(device: &dyn Device, budget: Budget) -> Option<String> {
    let needed = required_memory(device);
    let host = needed.host + system::process_footprint();
    let over = |needed: Bytes, line: Option<Bytes>, free: Option<Bytes>, whose: &str| {
        let line = line.into_iter().chain(free).min()?;
        (line < needed).then(|| format!("{needed} of the {whose}'s memory, where there is {line}"))
    };
    let own = if device.capabilities().shares_host_memory {
        None
    } else {
        over(needed.device, budget.device, device.memory_info().map(|memory| memory.available), "device")
    };
    own.or_else(|| over(host, budget.host, Some(system::available_memory()), "host"))
}

fn note(args: &RunArgs, what: &str) {
    if !args.quiet {
        eprintln!("{what}");
    }
}

fn document(costs: &CostTable) -> Value {
    let rates: Vec<Value> = costs
        .rates()
        .iter()
        .map(|rate| {
            json!({
                "kind": rate.class,
                "nodes": rate.nodes,
                "flops_per_s": { "median": rate.flops_per_s.0, "most": rate.flops_per_s.1 },
                "bytes_per_s": { "median": rate.bytes_per_s.0, "most": rate.bytes_per_s.1 },
            })
        })
        .collect();
    json!({ "device": costs.key, "nodes": costs.len(), "transfers": costs.transfers, "rates": rates })
}

fn table(costs: &CostTable) -> String {
    let mut text = format!("{}\n\n{:<44} {:>6} {:>18} {:>18}\n", costs.key, "kind of work", "nodes", "GFLOP/s, most", "GB/s, most");
    for rate in costs.rates() {
        let pair = |(median, most): (f64, f64)| format!("{:.1}, {:.1}", median * 1e-9, most * 1e-9);
        text += &format!("{:<44} {:>6} {:>18} {:>18}\n", rate.class, rate.nodes, pair(rate.flops_per_s), pair(rate.bytes_per_s));
    }
    let of = |rate: Option<f64>| rate.map_or("not known".to_string(), |rate| format!("{:.2} GB/s", rate * 1e-9));
    let moved = &costs.transfers;
    text += &format!("\ncopies to the device {}, back {}", of(moved.to_device), of(moved.to_host));
    text + &format!(" · files written {}, read again {}\n", of(moved.to_file), of(moved.from_file))
}
