//! `plimsoll train`: plan, run, report.

use crate::output::{print, say};
use crate::progress::Progress;
use crate::run_args::RunArgs;
use crate::{Command, HEAP, calibrate, text};
use anyhow::Result;
use clap::Args;
use plimsoll::RunFolder;
use serde_json::json;
use std::process::ExitCode;

/// Train a model: plan, run, report
#[derive(Args)]
pub struct Train {
    #[command(flatten)]
    run: RunArgs,
}

impl Command for Train {
    const NAME: &'static str = "train";

    fn run(&self) -> Result<ExitCode> {
        let args = &self.run;
        let trainer = calibrate::apply(args.config()?.build()?.into(), args)?;
        // Planned once, and before the folder is created: a run that does not fit leaves none behind.
        let plan = trainer.plan(&trainer.described_fit())?;
        let name = &trainer.spec().name;
        let folder = match &args.out {
            Some(path) => RunFolder::open(path)?,
            None if args.resume => RunFolder::latest(name)?,
            None => RunFolder::next(name)?,
        };
        let mut progress = Progress::new(args.quiet, text::data_notes(trainer.spec()));
        trainer.spec().data_warnings()?.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let data = trainer.spec().data_report();
        let history = folder.train(trainer, plan, args.resume, |event| progress.show(event))?;
        if args.json {
            let mut document = history.to_json();
            document["out"] = json!(folder.path());
            document["data"] = data;
            document["heap_peak_bytes"] = json!(HEAP.peak().0);
            print(&document);
        } else if !args.quiet {
            say(&text::summary(&history, folder.path()));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.run.json
    }
}
