//! `plimsoll report`: a run or a plan as one HTML page, or two side by side.

use crate::calibrate::Rates;
use crate::output::say;
use crate::run_args::RunArgs;
use crate::{Command, sweep};
use anyhow::{Result, bail};
use clap::{Args, FromArgMatches};
use plimsoll::config::Config;
use plimsoll::{Report as Page, RunFolder, Trainer};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

/// Write a run or a plan as one HTML page: memory, strategy, curves, pipeline, model
#[derive(Args)]
pub struct Report {
    /// Run folder, or plan that `plimsoll plan --out` wrote
    subject: PathBuf,

    /// Another one, to compare with
    other: Option<PathBuf>,

    /// File to write [default: report.html in the run folder, or beside the plan]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Open the page in a browser
    #[arg(long)]
    open: bool,

    /// Plan the run under smaller budgets too, and plot step time against budget
    #[arg(long)]
    curve: bool,

    /// Leave out rows of the training and validation data
    #[arg(long)]
    no_samples: bool,

    /// Print nothing
    #[arg(long, short)]
    quiet: bool,
}

impl Command for Report {
    const NAME: &'static str = "report";

    fn run(&self) -> Result<ExitCode> {
        let mut page = Page::of(&self.subject)?;
        if let Some(other) = &self.other {
            page = page.beside(other)?;
        }
        if self.no_samples {
            page = page.without_samples();
        }
        if self.curve {
            page = page.curve(&sweep::planned(&self.trainer()?, self.quiet)?);
        }
        let out = self.out.clone().unwrap_or_else(|| default_out(&self.subject, self.other.is_some()));
        page.write(&out)?;
        if !self.quiet {
            say(&format!("{}\n", out.display()))?;
        }
        if self.open {
            open(&out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Report {
    /// The run with the rates it was planned with.
    fn trainer(&self) -> Result<Trainer> {
        let Some(config) = RunFolder::config_in(&self.subject) else {
            bail!("--curve needs the configuration of a run: name a run folder, or use `plimsoll plan CONFIG --sweep --plot curve.svg`");
        };
        let trainer = Trainer::from(Config::read(&config)?.build()?);
        let none = RunArgs::augment_args(clap::Command::new("plan")).get_matches_from(["plan", "--quiet"]);
        let args = RunArgs::from_arg_matches(&none)?;
        Ok(Rates::stored(trainer, &args, Some(&self.subject))?.0)
    }
}

/// In the run folder, or beside the plan; a comparison is not written over a run's own page.
fn default_out(subject: &Path, compared: bool) -> PathBuf {
    match (compared, subject.is_dir()) {
        (true, _) => "comparison.html".into(),
        (false, true) => subject.join("report.html"),
        (false, false) => subject.with_extension("html"),
    }
}

/// Opens a file with what the desktop uses for it.
fn open(path: &Path) -> Result<()> {
    let opened = std::process::Command::new("xdg-open").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    match opened {
        Ok(_) => Ok(()),
        Err(error) => bail!("cannot open {} (xdg-open: {error}); open it in a browser", path.display()),
    }
}
