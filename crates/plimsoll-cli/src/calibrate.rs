//! `plimsoll calibrate`, and the calibration that `train` and `plan` start themselves.

use crate::Command;
use crate::output::{print, say};
use crate::run_args::{RunArgs, whole};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll::calibration::{calibrate, required_memory, time_limit};
use plimsoll::config::Config;
use plimsoll::cost::{self, CostTable, RecordedRates, StepCosts};
use plimsoll::{Budget, Bytes, Device, Fit, History, RunPlan, Trainer, system};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// If set, it acts as `--no-calibrate`, so that tests plan the same everywhere.
const OFF: &str = "PLIMSOLL_NO_CALIBRATE";

/// Measure the speed of this machine once, for predicted step times
#[derive(Args)]
pub struct Calibrate {
    /// Configuration (TOML) of a run whose ops are measured too
    config: Option<PathBuf>,

    /// Network of the zoo instead of a configuration
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    zoo: Option<String>,

    /// Device to measure (see `plimsoll devices`)
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Compute threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    threads: Option<u64>,

    /// Override a configuration key, such as train.batch=64; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Print nothing
    #[arg(long, short)]
    quiet: bool,
}

impl Command for Calibrate {
    const NAME: &'static str = "calibrate";

    /// Measures the device, and with a configuration also the nodes of its own step.
    fn run(&self) -> Result<ExitCode> {
        let start = Instant::now();
        let mut config = match (&self.zoo, &self.config) {
            (Some(name), _) => Config::zoo(name)?,
            (None, Some(path)) => Config::read(path)?,
            (None, None) => Config::digits(),
        };
        if let Some(device) = &self.device {
            config.set_value("train.device", device.as_str())?;
        }
        if let Some(threads) = self.threads {
            config.set_value("train.threads", whole("train.threads", threads)?)?;
        }
        self.set.iter().try_for_each(|assignment| config.set(assignment))?;
        let trainer = Trainer::from(config.build()?);
        let device = trainer.device_in_use()?;
        let limit = time_limit(&*device);
        let mut costs = calibrate(device, limit)?;
        let own = self.zoo.is_some() || self.config.is_some();
        let timed = own.then(|| trainer.profile_own_step(&mut costs, limit)).transpose()?;
        let folder = cost::cache_dir();
        let Some(folder) = folder else { bail!("there is no folder to keep what was measured in; set HOME or XDG_CACHE_HOME") };
        let kept = cost::save(&folder, &costs)?;
        let seconds = start.elapsed().as_secs_f64();
        if self.json {
            let mut document = document(&costs);
            document["seconds"] = json!(seconds);
            document["file"] = json!(kept);
            print(&document)?;
        } else if !self.quiet {
            say(&table(&costs))?;
            let own = timed.map_or(String::new(), |timed| format!(", {timed} of them of this run's own step"));
            say(&format!("\n{} nodes timed{own}, in {seconds:.1} s; kept in {}\n", costs.len(), kept.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}

/// The rates that a run is planned with.
pub struct Rates<'a> {
    args: &'a RunArgs,
    /// Where measured rates are stored; none if built-in ones are to be used.
    folder: Option<PathBuf>,
}

impl<'a> Rates<'a> {
    /// The trainer with the stored rates of its device, if there are any. A run that is resumed in a folder keeps the
    /// rates it was planned with.
    pub fn stored(trainer: Trainer, args: &'a RunArgs, resumed: Option<&Path>) -> Result<(Trainer, Rates<'a>)> {
        // All ranks make the same plan, whatever was measured on their machines.
        let off = args.no_calibrate
            || args.device_profile.is_some()
            || trainer.spec().ranks > 1
            || std::env::var_os(OFF).is_some_and(|value| !value.is_empty());
        let recorded = resumed.and_then(|folder| cost::recorded_rates(&folder.join("plan.json")));
        let folder = cost::cache_dir().filter(|_| !off && recorded != Some(RecordedRates::BuiltIn));
        let rates = Rates { args, folder };
        let Some(costs) = rates.load(&trainer)? else { return Ok((trainer, rates)) };
        let costs = match recorded {
            Some(RecordedRates::Measured(correction)) => costs.with_correction(correction),
            _ => costs,
        };
        Ok((trainer.cost_table(Arc::new(costs)), rates))
    }

    fn load(&self, trainer: &Trainer) -> Result<Option<CostTable>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        Ok(cost::load(folder, &cost::key(&*trainer.device_in_use()?)))
    }

    /// The plan of the run. The device is measured first if there are no rates of it yet and the choice among
    /// strategies depends on them.
    pub fn plan(&self, trainer: Trainer, fit: &dyn Fn(&Trainer) -> Fit<'static>) -> Result<(Trainer, RunPlan)> {
        let plan = trainer.plan(&fit(&trainer))?;
        if self.folder.is_none() || trainer.spec().costs.is_some() || !plan.depends_on_rates() {
            return Ok((trainer, plan));
        }
        // The graphs of one plan must not be live beside those of the next.
        drop(plan);
        let trainer = self.measured(trainer)?;
        let plan = trainer.plan(&fit(&trainer))?;
        Ok((trainer, plan))
    }

    /// The trainer with measured rates. If there are none yet, they are measured now, by a process of its own, so that
    /// this one does not hold the memory of that.
    pub fn measured(&self, trainer: Trainer) -> Result<Trainer> {
        let Some(folder) = self.folder.as_ref().filter(|_| trainer.spec().costs.is_none()) else { return Ok(trainer) };
        let device = trainer.device_in_use()?;
        if let Some(why) = too_little(&*device, trainer.spec().budget) {
            self.note(&format!("times are predicted by built-in rates: measuring {} would take {why}", device.name()));
            return Ok(trainer);
        }
        let seconds = time_limit(&*device).as_secs_f64().ceil();
        self.note(&format!("measuring the speed of {}: once, about {seconds} s (--no-calibrate does without)", device.name()));
        let mut command = process::Command::new(std::env::current_exe()?);
        command.args(["calibrate", "--quiet"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.args(["--device", &device.name()]);
        if let Some(threads) = trainer.spec().threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let output = command.output()?;
        let Some(costs) = cost::load(folder, &cost::key(&*device)) else {
            let why = String::from_utf8_lossy(&output.stderr);
            self.note(&format!("times are predicted by built-in rates: {}", why.trim().trim_start_matches("error: ")));
            return Ok(trainer);
        };
        Ok(trainer.cost_table(Arc::new(costs)))
    }

    /// What is needed to compare a run with its prediction; none if it was not planned with stored rates.
    pub fn prediction(&self, trainer: &Trainer, plan: &RunPlan) -> Option<Prediction> {
        let (folder, costs) = (self.folder.clone()?, trainer.spec().costs.clone()?);
        let step = plan.step_costs(&costs)?;
        Some(Prediction { folder, costs, step })
    }

    /// Refines the stored rates by a run that has ended.
    pub fn refine(&self, prediction: Option<Prediction>, history: &History) {
        let (Some(prediction), Some(measured)) = (prediction, history.measured_step_s) else { return };
        let Prediction { folder, costs, step } = prediction;
        // A run that was replanned at its start has other steps.
        if step.predicted_s != history.predicted_step_s {
            return;
        }
        if let Err(error) = cost::refine(&folder, &costs, &step, history.steps, measured) {
            self.note(&format!("the measured step time could not be kept for later predictions: {error}"));
        }
    }

    fn note(&self, what: &str) {
        if !self.args.quiet {
            eprintln!("{what}");
        }
    }
}

/// The prediction of a run's step time, by class of nodes.
pub struct Prediction {
    folder: PathBuf,
    costs: Arc<CostTable>,
    step: StepCosts,
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
