//! The folder of a run: its configuration, plan, log, checkpoints, weights and report.

use crate::error::{Error, Result};
use crate::fit::{Event, Fit};
use crate::history::{Epoch, History};
use crate::plan::RunPlan;
use crate::spec::FitSpec;
use crate::trainer::Trainer;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder of a run.
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Trains as planned, reports what happens, and writes configuration, plan, log, checkpoints, weights and report to the folder. The plan
    /// is one of the trainer's own description. With `resume`, it continues from the newest checkpoint in the folder, if there is one.
    ///
    /// # Errors
    /// When training fails, or the folder cannot be written.
    pub fn train(&self, trainer: Trainer, plan: RunPlan, resume: bool, mut observer: impl FnMut(&Event<'_>)) -> Result<History> {
        let mut trainer = trainer.offload_folder(self.file("."));
        let spec = FitSpec { resume, ..trainer.spec().fit.in_folder(&self.path) };
        let config = trainer.spec().config.clone();
        let data = trainer.spec().data_report();
        let averages = trainer.spec().optimization.average.is_some();
        if let (false, Some(checkpoints)) = (resume, &spec.checkpoints) {
            // Checkpoints that an earlier run left here are not this run's.
            checkpoints.clear();
        }
        let mut log = Log { folder: self, file: None };
        let mut failed = None;
        let fit = Fit::from(spec).on_event(|event| {
            let written = match event {
                Event::Planned { plan, .. } => self
                    .remove("report.json")
                    .and(self.remove("weights.safetensors"))
                    .and(self.remove("weights-average.safetensors"))
                    .and_then(|()| self.write("config.toml", config.as_bytes()))
                    .and_then(|()| self.write("plan.json", pretty(&plan.to_json()).as_bytes()))
                    .and_then(|()| if resume { Ok(()) } else { log.begin() }),
                Event::Resumed { epoch, .. } => log.go_on(*epoch),
                Event::EpochEnd(epoch) => log.add(epoch),
                Event::Replanned { .. } | Event::Progress { .. } | Event::Warning(_) => Ok(()),
            };
            failed = failed.take().or(written.err());
            observer(event);
        });
        let history = trainer.run(plan, fit)?;
        // Weights are saved first: a log that could not be written must not lose the training.
        trainer.save_weights(&self.file("weights.safetensors"))?;
        if averages {
            trainer.averaged(|trainer| trainer.save_weights(&self.file("weights-average.safetensors")))?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut report = history.to_json();
        report["data"] = data;
        self.write("report.json", pretty(&report).as_bytes())?;
        Ok(history)
    }
}

/// The file with one JSON object per epoch.
struct Log<'a> {
    folder: &'a RunFolder,
    file: Option<File>,
}

impl<'a> Log<'a> {
    const NAME: &'static str = "log.jsonl";

    /// Empties it.
    fn begin(&mut self) -> Result<()> {
        self.file = Some(File::create(self.folder.file(Log::NAME)).map_err(|source| self.error(source))?);
        Ok(())
    }

    /// Keeps the lines of completed epochs.
    fn go_on(&mut self, epochs: u64) -> Result<()> {
        let path = self.folder.file(Log::NAME);
        let done = |line: &&str| {
            let object: Option<Value> = serde_json::from_str(line).ok();
            object.is_some_and(|object| object["epoch"].as_u64().is_some_and(|epoch| epoch <= epochs))
        };
        let earlier = fs::read_to_string(&path).unwrap_or_default();
        let kept: String = earlier.lines().filter(done).map(|line| format!("{line}\n")).collect();
        self.folder.write(Log::NAME, kept.as_bytes())?;
        self.file = Some(File::options().append(true).open(&path).map_err(|source| self.error(source))?);
        Ok(())
    }

    fn add(&mut self, epoch: &Epoch) -> Result<()> {
        if self.file.is_none() {
            self.begin()?;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| writeln!(file, "{}", epoch.to_json()));
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::Io { action: "write", path: self.folder.file(Log::NAME), source }
    }
}

impl RunFolder {
    /// Opens a folder, created if need be, and tests that it can be written before anything is computed.
    pub fn open(path: &Path) -> Result<RunFolder> {
        let error = |source| Error::Io { action: "write to the run folder", path: path.to_path_buf(), source };
        fs::create_dir_all(path).map_err(error)?;
        let probe = path.join(".writable");
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(error)?;
        Ok(RunFolder { path: path.to_path_buf() })
    }

    /// The newest `runs/TITLE-N`, to resume.
    pub fn latest(title: &str) -> Result<RunFolder> {
        let path = |n: u64| PathBuf::from(format!("runs/{title}-{n}"));
        match (1..).take_while(|n| path(*n).exists()).last() {
            Some(n) => RunFolder::open(&path(n)),
            None => {
                Err(Error::Config(format!("there is no run to resume: {} does not exist; name its folder with --out", path(1).display())))
            }
        }
    }

    /// The configuration of the run that is in a folder.
    pub fn config_in(path: &Path) -> Option<PathBuf> {
        Some(path.join("config.toml")).filter(|path| path.exists())
    }

    /// The next free `runs/TITLE-N`.
    pub fn next(title: &str) -> Result<RunFolder> {
        let free = (1..).map(|n| PathBuf::from(format!("runs/{title}-{n}"))).find(|path| !path.exists());
        RunFolder::open(&free.expect("numbers do not run out"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let temporary = self.file(&format!("{name}.tmp"));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, self.file(name)));
        written.map_err(|source| Error::Io { action: "write", path: self.file(name), source })
    }

    /// Removes a file of an earlier run.
    fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { action: "remove", path: self.file(name), source })
            }
            _ => Ok(()),
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
