//! `plimsoll train`: plan, run, report.

use crate::calibrate::Rates;
use crate::output::{print, say};
use crate::progress::Progress;
use crate::run_args::RunArgs;
use crate::{Command, HEAP, ranks, refused, signals, text};
use anyhow::Result;
use clap::Args;
use plimsoll::{Count, DeviceSpec, Existing, Ranks, Report, RunFolder, Trainer, missing_libraries};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Train a model: plan, run, report
#[derive(Args)]
pub struct Train {
    #[command(flatten)]
    run: RunArgs,

    /// Replace the run that is in the run folder; without it, a folder with results is refused
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
}

impl Command for Train {
    const NAME: &'static str = "train";

    fn run(&self) -> Result<ExitCode> {
        let Some(ranks) = Ranks::launched()? else {
            return refused::explained(&self.run, Count::Everything, self.train(None));
        };
        ranks::set(&ranks);
        let result = self.train(Some(&ranks));
        if result.is_err() {
            // MPI is ended by the launcher: to end it here would wait for ranks that wait for this one.
            std::mem::forget(ranks);
        }
        result
    }

    fn json(&self) -> bool {
        self.run.json
    }
}

impl Train {
    /// Trains, on all ranks if there are several.
    fn train(&self, ranks: Option<&Ranks>) -> Result<ExitCode> {
        let args = &self.run;
        let (folder, existing, trainer) = ranks::agreed(ranks, self.described())?;
        let trainer = ranks.into_iter().fold(trainer, Trainer::ranks);
        let prints = ranks.is_none_or(Ranks::is_first);
        let quiet = args.quiet || !prints;
        let resumed = folder.as_deref().filter(|_| args.resume);
        let (trainer, rates) = Rates::stored(trainer, args, resumed)?;
        // Planned before the folder is created: a run that does not fit leaves none behind. A resumed run is planned as
        // its checkpoint requires.
        let (trainer, folder, plan) = if existing == Existing::Resume {
            let folder = RunFolder::on_all_ranks(ranks, existing, || open(folder.as_deref(), existing, &trainer))?;
            let (trainer, plan) = rates.plan(trainer, &|trainer| folder.fit(trainer))?;
            (trainer, folder, plan)
        } else {
            let (trainer, plan) = rates.plan(trainer, &Trainer::described_fit)?;
            let folder = RunFolder::on_all_ranks(ranks, existing, || open(folder.as_deref(), existing, &trainer))?;
            (trainer, folder, plan)
        };
        if let Some(path) = args.report.as_ref().filter(|_| prints) {
            Report::of_plan(plan.clone(), trainer.spec()).write(path)?;
        }
        let prediction = rates.prediction(&trainer, &plan);
        let mut progress = Progress::new(quiet, folder.path(), text::data_notes(trainer.spec()));
        if prints {
            trainer.spec().data_warnings()?.iter().for_each(|warning| progress.warn(warning));
        }
        if trainer.spec().device != DeviceSpec::Cpu && trainer.spec().device_profile.is_none() {
            missing_libraries().iter().for_each(|missing| progress.warn(missing));
        }
        if args.zoo.is_some() && prints {
            progress.note("--zoo trains on random rows: memory and times are real, loss and metrics mean nothing");
        }
        if let Some(device) = trainer.device_in_use()?.diagnostics().filter(|_| !quiet) {
            device.on_selection(Box::new(selection_progress(Instant::now())));
        }
        // The report has all names of columns, so it is made only while it is printed.
        let spec = (args.json && prints).then(|| trainer.spec().clone());
        let history = folder.train(trainer, plan, &signals::stop_handle(), |event| progress.show(event))?;
        rates.refine(prediction, &history);
        if args.json && prints {
            let mut document = history.to_json();
            document["out"] = json!(folder.path());
            document["data"] = spec.map(|spec| spec.data_report()).unwrap_or_default();
            document["heap_peak_bytes"] = json!(HEAP.peak().0);
            document["random_data"] = json!(args.zoo.is_some());
            print(&document)?;
        } else if !quiet && !history.stopped {
            say(&text::summary(&history, folder.path(), args.zoo.is_some()))?;
        }
        Ok(match signals::received() {
            Some((_, status)) if history.stopped => ExitCode::from(status),
            _ => ExitCode::SUCCESS,
        })
    }
}

/// Shows how many library calls have their algorithm, if measuring takes longer than a moment.
fn selection_progress(start: Instant) -> impl FnMut(usize, usize) + Send {
    let (mut shown, terminal) = (None, std::io::stderr().is_terminal());
    move |done, all| {
        let percent = 100 * done / all.max(1);
        // On a terminal every percent, in a file every tenth of them.
        let step = if terminal { percent } else { percent / 10 };
        if start.elapsed() > Duration::from_secs(1) && shown != Some(step) {
            shown = Some(step);
            let text = format!("measuring algorithms of matrix products and convolutions, once per shape and GPU: {percent} %");
            eprint!("{}{text}{}", if terminal { "\r" } else { "" }, if terminal && done + 1 < all { "" } else { "\n" });
        }
    }
}

/// The named folder, or the next one of the run's name.
fn open(folder: Option<&Path>, existing: Existing, trainer: &Trainer) -> plimsoll::Result<RunFolder> {
    match folder {
        Some(path) => RunFolder::open(path, existing),
        None => RunFolder::next(&trainer.spec().name),
    }
}

impl Train {
    /// The run folder, what happens to a run that is in it, and the run as it is described.
    fn described(&self) -> Result<(Option<PathBuf>, Existing, Trainer)> {
        let (folder, existing) = self.folder()?;
        let own = folder.as_deref().filter(|_| self.run.resume).and_then(RunFolder::config_in);
        let trainer = self.run.config_or(own.as_deref())?.build()?.into();
        Ok((folder, existing, trainer))
    }

    /// The run folder, if it is named or to be resumed, and what happens to a run that is in it. Refused before
    /// anything is planned.
    fn folder(&self) -> Result<(Option<PathBuf>, Existing)> {
        let args = &self.run;
        let folder = match (&args.out, args.resume) {
            (Some(path), _) => Some(path.clone()),
            (None, true) => Some(RunFolder::latest(&args.title())?),
            (None, false) => None,
        };
        let Some(path) = folder else { return Ok((None, Existing::Refuse)) };
        let existing = match (args.resume, self.overwrite) {
            (true, _) => self.resumed(&path)?,
            (false, true) => Existing::Overwrite,
            (false, false) => Existing::Refuse,
        };
        RunFolder::check(&path, existing)?;
        Ok((Some(path), existing))
    }

    /// With a configuration, `--resume` starts the run if it has not begun, so that one command serves every start of a
    /// job.
    fn resumed(&self, path: &Path) -> Result<Existing> {
        let configured = self.run.config.is_some() || self.run.zoo.is_some();
        match (RunFolder::config_in(path), configured) {
            (Some(_), _) => Ok(Existing::Resume),
            (None, true) if path.join("checkpoints").exists() => Ok(Existing::Resume),
            (None, true) => {
                Progress::new(self.run.quiet, path, String::new())
                    .warn(&format!("there is no run in {} to resume: a new one starts", path.display()));
                Ok(Existing::Refuse)
            }
            (None, false) if !path.exists() => {
                anyhow::bail!("there is no run to resume: {} does not exist; check the path, or name a configuration too", path.display())
            }
            (None, false) => {
                anyhow::bail!(
                    "there is no run to resume: {} has no config.toml; check the path, or name a configuration too",
                    path.display()
                )
            }
        }
    }
}
