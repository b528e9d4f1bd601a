//! `plimsoll plan`: the memory of a run, without running it.

use crate::calibrate::Rates;
use crate::output::{print, say};
use crate::run_args::RunArgs;
use crate::{Command, refused, sweep, text};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll::{Count, Report, RunPlan, TflitePlan, Trainer, write_plan_file};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Plan the memory of a run without running it
#[derive(Args)]
pub struct Plan {
    #[command(flatten)]
    pub run: RunArgs,

    /// Plan predictions: nothing is held for training
    #[arg(long, conflicts_with_all = ["max_batch", "sweep", "out"])]
    pub inference: bool,

    /// Find the largest batch that fits without micro-batches, recomputing at most one forward pass
    #[arg(long, conflicts_with_all = ["batch", "micro_batch"])]
    pub max_batch: bool,

    /// Plan with smaller and smaller budgets: step time against memory
    #[arg(long, conflicts_with_all = ["max_batch", "log_placement"])]
    pub sweep: bool,

    /// Plan for this many ranks, which need not be there: each has its part of every batch, and all have the same plan
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), conflicts_with_all = ["max_batch", "sweep", "inference"])]
    pub ranks: Option<u32>,

    /// Shard optimizer states over the ranks (ZeRO 1), gradients too (ZeRO 2), or nothing, in place of `parallel.shard`
    #[arg(long, value_name = "WHAT", value_parser = ["none", "optimizer", "gradients"])]
    pub shard: Option<String>,

    /// Plot the result of --sweep as SVG
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,

    /// What counts towards the budget: everything, or weights+activations to compare with papers
    #[arg(long, value_name = "WHAT", default_value = "everything", value_parser = ["everything", "weights+activations"])]
    pub count: String,

    /// List every op with its lifetime, offset, and whether it is recomputed
    #[arg(long)]
    pub log_placement: bool,
}

impl Command for Plan {
    const NAME: &'static str = "plan";

    fn run(&self) -> Result<ExitCode> {
        refused::explained(&self.run, self.counted(), self.plan())
    }

    fn json(&self) -> bool {
        self.run.json
    }
}

impl Plan {
    /// What counts towards the budget.
    fn counted(&self) -> Count {
        if self.count == "weights+activations" { Count::WeightsAndActivations } else { Count::Everything }
    }

    /// The plan of a TFLite file: predictions only.
    fn tflite(&self, path: &Path) -> Result<ExitCode> {
        if !self.inference {
            bail!("{} is for predictions: plan it with --inference", path.display());
        }
        let plan = TflitePlan::of(path, self.run.host_memory)?;
        if self.run.json {
            print(&plan.to_json())?;
        } else if !self.run.quiet {
            say(&plan.to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Result<ExitCode> {
        if let Some(path) = self.run.config.as_deref().filter(|path| TflitePlan::is_for(path)) {
            return self.tflite(path);
        }
        let mut config = self.run.config()?;
        if let Some(shard) = &self.shard {
            config.set_value("parallel.shard", shard.as_str())?;
        }
        let trainer = Trainer::from(config.build()?);
        // Before stored rates: ranks are planned with built-in ones.
        let trainer = self.ranks.into_iter().fold(trainer, |trainer, ranks| trainer.plan_for_ranks(ranks as usize));
        let (mut trainer, rates) = Rates::stored(trainer, &self.run, None)?;
        trainer = trainer.count(self.counted());
        if self.inference {
            trainer = trainer.for_prediction();
        }
        if self.sweep {
            sweep::run(&rates.measured(trainer)?, self)?;
            return Ok(ExitCode::SUCCESS);
        }
        trainer.spec().data_warnings()?.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let (trainer, plan, largest) = if self.max_batch {
            match trainer.largest_batch()? {
                Some(largest) => (trainer, largest.plan, Some(largest.batch)),
                // Not even one row: the refusal of a single row says why.
                None => (trainer, single_row(&self.run)?, None),
            }
        } else {
            let (trainer, plan) = rates.plan(trainer, &Trainer::described_fit)?;
            (trainer, plan, None)
        };
        if let Some(path) = &self.run.out {
            write_plan_file(trainer.spec(), &plan, path)?;
        }
        if let Some(path) = &self.run.report {
            Report::of_plan(plan.clone(), trainer.spec()).write(path)?;
        }
        if self.run.json {
            let mut document = plan.to_json();
            document["data"] = trainer.spec().data_report();
            if plan.ranks > 1 {
                document["by_rank"] = plan.by_rank_json();
            }
            if self.max_batch {
                document["max_batch"] = json!(largest);
            }
            print(&document)?;
        } else if !self.run.quiet {
            say(&format!("{plan}\n{}", text::data_notes(trainer.spec())))?;
            if self.log_placement {
                say(&format!("\n{}", plan.placement()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The plan of a batch of one row.
fn single_row(args: &RunArgs) -> Result<RunPlan> {
    let mut config = args.config()?;
    config.set_value("train.batch", 1)?;
    let trainer = Trainer::from(config.build()?);
    Ok(trainer.plan(&trainer.described_fit())?)
}
