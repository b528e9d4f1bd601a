//! The folder of a run: its configuration, plan, log, checkpoints, weights and report.

use crate::checkpoint::Checkpoints;
use crate::cost::record_rates;
use crate::error::{Error, Result};
use crate::files::{self, INCOMPLETE};
use crate::fit::{Event, FirstBatch, Fit};
use crate::history::{Epoch, History};
use crate::plan::RunPlan;
use crate::ranks::{Ranks, Shard, agree};
use crate::report::{self, ProgressLog, Report, Sampled};
use crate::spec::{FitSpec, RunSpec};
use crate::stop::StopHandle;
use crate::system;
use crate::tensors::{self, Which};
use crate::trainer::Trainer;
use plimsoll_core::Bytes;
use plimsoll_core::budget::{give_back_freed_memory, give_back_program_pages};
use plimsoll_core::device::Device;
use plimsoll_data::Dataset;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WEIGHTS: &str = "weights.safetensors";
const AVERAGE: &str = "weights-average.safetensors";
const REPORT: &str = "report.json";
const PLAN: &str = "plan.json";
const CONFIG: &str = "config.toml";
const CSV_LOG: &str = "log.csv";

/// The results of a run: what another run in the same folder would destroy.
const RESULTS: [&str; 6] = [WEIGHTS, AVERAGE, REPORT, report::PAGE, Log::NAME, CSV_LOG];

/// The file that a process locks as long as it uses the folder.
const LOCK: &str = ".lock";

/// Returns what the phase of a run that has ended needed, before the next one takes its own.
fn give_back() {
    give_back_freed_memory();
    give_back_program_pages();
}

/// What a run does with what is in its folder already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// A folder with the results of a run is refused.
    #[default]
    Refuse,
    /// The run in the folder is removed when the new one begins.
    Overwrite,
    /// The run continues from its newest checkpoint.
    Resume,
}

/// The folder of a run, locked: two processes cannot use one at the same time.
///
/// ```no_run
/// use plimsoll::config::Config;
/// use plimsoll::{Existing, RunFolder, StopHandle, Trainer};
///
/// let trainer = Trainer::from(Config::digits().build()?);
/// let folder = RunFolder::open("runs/mine".as_ref(), Existing::Refuse)?;
/// let plan = trainer.plan(&folder.fit(&trainer))?;
/// let history = folder.train(trainer, plan, &StopHandle::new(), |_| {})?;
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct RunFolder {
    path: PathBuf,
    existing: Existing,
    /// Locked until the folder is dropped, or the process ends; by rank 0 if there are several.
    _lock: Option<File>,
}

impl RunFolder {
    /// The fit that the trainer's description states, with its files in this folder. A resumed run has to be planned
    /// with it.
    pub fn fit(&self, trainer: &Trainer) -> Fit<'static> {
        fit_in(&self.path, self.existing, trainer)
    }

    /// Trains as planned, reports what happens, and writes configuration, plan, log, checkpoints, weights and report to
    /// the folder. The plan is one of [`fit`](RunFolder::fit). A run that is stopped leaves a checkpoint, but neither
    /// weights nor a report. Of several ranks, the first reports and writes.
    ///
    /// # Errors
    /// When training fails, the folder cannot be written, or its disk has no space for the weights.
    pub fn train(&self, trainer: Trainer, plan: RunPlan, stop: &StopHandle, mut observer: impl FnMut(&Event<'_>)) -> Result<History> {
        let mut trainer = trainer.offload_folder(self.file("."));
        let config = trainer.spec().config.clone();
        // The report has all names of columns, so it is made only while it is written.
        let spec = trainer.spec().clone();
        let costs = trainer.spec().costs.clone();
        let averages = trainer.spec().optimization.average.is_some();
        let (validation, samples) = (trainer.spec().fit.validation.clone(), trainer.spec().fit.log_samples);
        let fit = self.fit(&trainer).stop_handle(stop);
        let resume = self.existing == Existing::Resume;
        let (checkpoints, csv_log) = (fit.spec.checkpoints.clone(), fit.spec.csv_log.is_some());
        let ranks = trainer.ranks_in_use().cloned();
        let writes = ranks.as_ref().is_none_or(Ranks::is_first);
        agree(ranks.as_ref(), if writes { self.check_files(&trainer, &plan, checkpoints.as_ref()) } else { Ok(()) })?;
        if !writes {
            return trainer.run(plan, fit);
        }
        let mut log = Log { folder: self, file: None, synced: Instant::now() };
        let (mut failed, mut progress) = (None, None);
        let (device, mut algorithms) = (trainer.device_in_use()?, 0);
        let fit = fit.on_event(|event| {
            let written = match event {
                Event::Planned { plan, epochs } => self
                    .begin(checkpoints.as_ref(), csv_log)
                    .and_then(|()| self.write(CONFIG, config.as_bytes()))
                    .and_then(|()| {
                        self.write(PLAN, pretty(&with_data(record_rates(plan.to_json(), costs.as_deref()), spec.data_report())).as_bytes())
                    })
                    .inspect(|()| give_back_program_pages())
                    .and_then(|()| self.begin_details(plan, &spec))
                    .and_then(|()| self.progress_log(plan, *epochs, resume).map(|opened| progress = Some(opened)))
                    .and_then(|()| if resume { Ok(()) } else { log.begin() })
                    .inspect(|()| give_back_program_pages()),
                Event::Resumed { epoch, .. } => log.go_on(*epoch),
                Event::FirstBatch(first) if samples => self.write_samples(first),
                // Progress that is not recorded is no reason to end a run.
                Event::Progress { .. } => {
                    let _ = progress.as_mut().map(|log| log.note(event));
                    Ok(())
                }
                Event::EpochEnd(epoch) => self.record_algorithms(&*device, &mut algorithms).and_then(|()| log.add(epoch)),
                Event::Replanned { .. } | Event::FirstBatch(_) | Event::Warning(_) | Event::Stopped { .. } => Ok(()),
            };
            failed = failed.take().or(written.err());
            observer(event);
        });
        let history = trainer.run(plan, fit)?;
        give_back();
        if !history.stopped {
            // Weights are saved first: a log that could not be written must not lose the training.
            self.save_weights(&mut trainer, WEIGHTS, checkpoints.as_ref())?;
            if averages {
                trainer.averaged(|trainer| self.save_weights(trainer, AVERAGE, checkpoints.as_ref()))?;
            }
        }
        log.sync()?;
        give_back();
        if let Some(error) = failed {
            return Err(error);
        }
        if !history.stopped {
            self.write(REPORT, pretty(&with_data(history.to_json(), spec.data_report())).as_bytes())?;
            if let Some(validation) = validation.filter(|_| samples) {
                self.write_classes(&mut trainer, &validation)?;
            }
            // The page is put together from files.
            drop(trainer);
            give_back();
            Report::of(&self.path)?.write(&self.file(report::PAGE))?;
        }
        Ok(history)
    }

    /// Checks that a run can write its files, and that it continues where it is to be resumed.
    fn check_files(&self, trainer: &Trainer, plan: &RunPlan, checkpoints: Option<&Checkpoints>) -> Result<()> {
        let averages = trainer.spec().optimization.average.is_some();
        self.remove_incomplete();
        self.check_space(plan, averages)?;
        self.check_memory(plan, averages, trainer.spec().fit.checkpoints.as_ref())?;
        if self.existing == Existing::Resume && checkpoints.is_none() && self.usual_checkpoints().any() {
            let what = "`checkpoint.enabled` is false, so the run would start over instead of continuing from its checkpoint; leave it out";
            return Err(Error::Config(what.to_string()));
        }
        Ok(())
    }

    /// Writes the memory of the plan, which only the page shows. What an earlier run left is removed.
    fn begin_details(&self, plan: &RunPlan, spec: &RunSpec) -> Result<()> {
        let folder = self.file(report::DETAILS);
        let error = |source| Error::Io { action: "write", path: folder.clone(), source };
        if self.existing != Existing::Resume {
            match fs::remove_dir_all(&folder) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(error(source)),
                _ => {}
            }
        }
        fs::create_dir_all(&folder).map_err(error)?;
        let layers = report::layers(spec, &plan.memory);
        self.stream(report::MEMORY, |writer| report::write_map(writer, &plan.memory, &layers))
    }

    /// Adds the measured algorithms of a GPU to the plan, once programs that use them are loaded; `recorded` is how
    /// many it has.
    fn record_algorithms(&self, device: &dyn Device, recorded: &mut usize) -> Result<()> {
        let Some(algorithms) = device.diagnostics().and_then(|device| device.algorithms()).filter(|found| found.len() > *recorded) else {
            return Ok(());
        };
        *recorded = algorithms.len();
        let path = self.file(PLAN);
        let text = fs::read_to_string(&path).map_err(|source| Error::Io { action: "read", path, source })?;
        // A file that somebody else changed stays as it is.
        let Ok(mut document) = serde_json::from_str::<Value>(&text) else { return Ok(()) };
        document["algorithms"] = serde_json::json!(algorithms);
        self.write(PLAN, pretty(&document).as_bytes())
    }

    fn progress_log(&self, plan: &RunPlan, epochs: u64, resume: bool) -> Result<ProgressLog> {
        ProgressLog::open(&self.path, resume, plan.batch, epochs, plan.host_budget).map_err(|source| Error::Io {
            action: "write",
            path: self.file(report::DETAILS),
            source,
        })
    }

    fn write_samples(&self, first: &FirstBatch<'_>) -> Result<()> {
        let sampled = Sampled { batch: first.batch, schema: first.schema, classes: &first.data.class_names() };
        self.stream(report::SAMPLES, |writer| report::write_samples(writer, &sampled))
    }

    /// Counts predictions by class over the validation data.
    fn write_classes(&self, trainer: &mut Trainer, validation: &Dataset) -> Result<()> {
        let Some(classes) = trainer.count_classes(validation)? else { return Ok(()) };
        self.stream(report::CLASSES, |writer| classes.write(writer))?;
        self.stream(report::WORST, |writer| classes.write_worst(writer, |row| validation.row_name(row)))
    }

    /// Writes a file as it comes.
    fn stream(&self, name: &str, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
        let path = self.file(name);
        let written = File::create(&path).and_then(|file| {
            let mut writer = BufWriter::new(file);
            write(&mut writer)?;
            writer.flush()
        });
        written.map_err(|source| Error::Io { action: "write", path, source })
    }

    /// Removes what an earlier run left, unless this one continues it. Its weights and its report stay until this run
    /// has its own.
    fn begin(&self, checkpoints: Option<&Checkpoints>, csv_log: bool) -> Result<()> {
        if self.existing == Existing::Resume {
            return Ok(());
        }
        checkpoints.into_iter().for_each(Checkpoints::clear);
        self.usual_checkpoints().clear();
        // The logs of this run are open already.
        let open = |name: &str| name == Log::NAME || (csv_log && name == CSV_LOG);
        RESULTS.iter().filter(|name| !open(name)).try_for_each(|name| self.remove(name))
    }

    /// Those that a configuration writes.
    fn usual_checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.file("checkpoints"))
    }

    /// Checks that the disk has space for the weights, before anything is computed.
    fn check_space(&self, plan: &RunPlan, averages: bool) -> Result<()> {
        let one = tensors::file_size(&plan.memory.states, Which::Weights);
        let needed = if averages { one + one } else { one };
        match files::free_space(&self.path) {
            Some(free) if free < needed => Err(Error::Config(format!(
                "the disk of {} has no space for the weights of this run: they take {needed} ({} bytes), and {free} ({} bytes) can be \
                 written; make space there, or name a folder on another disk with --out",
                self.path.display(),
                needed.0,
                free.0
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that there is memory for the files of the run beside its plan, if the folder is in memory: whatever is
    /// written to a `tmpfs` counts for the control group of the process.
    fn check_memory(&self, plan: &RunPlan, averages: bool, checkpoints: Option<&Checkpoints>) -> Result<()> {
        if !files::is_in_memory(&self.path) {
            return Ok(());
        }
        let weights = tensors::file_size(&plan.memory.states, Which::Weights);
        let checkpoints = checkpoints.map_or(Bytes::ZERO, |checkpoints| {
            checkpoints.space(&plan.memory.states, if plan.shard == Shard::None { 1 } else { plan.ranks })
        });
        let all = [weights, if averages { weights } else { Bytes::ZERO }, checkpoints, plan.offload_bytes()].into_iter().sum::<Bytes>();
        // A run that continues replaces what is there.
        let needed = all - all.min(files::size_of_folder(&self.path));
        let (planned, free) = (plan.total(), system::available_memory());
        if planned + needed <= free {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{} is in memory (tmpfs), where the files of this run take {needed} ({} bytes) beside the {planned} that are planned, and {free} \
             ({} bytes) are free; name a folder on a disk with --out, or keep fewer checkpoints with --set checkpoint.keep=1",
            self.path.display(),
            needed.0,
            free.0
        )))
    }

    /// Saves weights. On a full disk, they are worth more than all checkpoints but the newest.
    fn save_weights(&self, trainer: &mut Trainer, name: &str, checkpoints: Option<&Checkpoints>) -> Result<()> {
        match (trainer.save_weights(&self.file(name)), checkpoints) {
            (Err(error), Some(checkpoints)) if files::is_disk_full(&error) && checkpoints.keep_newest() => {
                trainer.save_weights(&self.file(name))
            }
            (saved, _) => saved,
        }
    }

    /// Removes what an interrupted run was writing.
    fn remove_incomplete(&self) {
        for name in RESULTS.iter().chain(&[PLAN, CONFIG]) {
            files::remove(&self.file(&format!("{name}{INCOMPLETE}")));
        }
    }
}

/// The fit of a trainer's description, with its files in a folder.
fn fit_in(folder: &Path, existing: Existing, trainer: &Trainer) -> Fit<'static> {
    FitSpec { resume: existing == Existing::Resume, ..trainer.spec().fit.in_folder(folder) }.into()
}

/// The file with one JSON object per epoch.
struct Log<'a> {
    folder: &'a RunFolder,
    file: Option<File>,
    synced: Instant,
}

impl<'a> Log<'a> {
    const NAME: &'static str = "log.jsonl";

    /// How often it reaches the disk, at most: epochs can be short.
    const SYNC: Duration = Duration::from_secs(1);

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
        let mut line = epoch.to_json();
        line["resident_bytes"] = system::resident().0.into();
        let written = self.file.as_mut().map_or(Ok(()), |file| writeln!(file, "{line}"));
        written.map_err(|source| self.error(source))?;
        if self.synced.elapsed() >= Log::SYNC { self.sync() } else { Ok(()) }
    }

    /// Makes its lines survive a power cut.
    fn sync(&mut self) -> Result<()> {
        self.synced = Instant::now();
        match self.file.as_ref().map_or(Ok(()), File::sync_data) {
            // Not a file on a disk.
            Err(source) if source.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(|source| self.error(source)),
        }
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::Io { action: "write", path: self.folder.file(Log::NAME), source }
    }
}

impl RunFolder {
    /// Opens and locks a folder, created if need be, and tests that it can be written before anything is computed.
    ///
    /// # Errors
    /// If it has a run that `existing` does not allow for, none to resume, or another process uses it.
    pub fn open(path: &Path, existing: Existing) -> Result<RunFolder> {
        let error = |source| Error::Io { action: "write to the run folder", path: path.to_path_buf(), source };
        RunFolder::check(path, existing)?;
        fs::create_dir_all(path).map_err(error)?;
        let probe = path.join(".writable");
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(error)?;
        let lock = lock(path)?;
        // Another process may have finished meanwhile.
        RunFolder::check(path, existing)?;
        Ok(RunFolder { path: path.to_path_buf(), existing, _lock: Some(lock) })
    }

    /// The folder that rank 0 has opened, on all ranks: those after it read its checkpoints and write nothing. `open`
    /// is called by rank 0.
    ///
    /// # Errors
    /// If it cannot be opened, or another rank does not take part.
    pub fn on_all_ranks(ranks: Option<&Ranks>, existing: Existing, open: impl FnOnce() -> Result<RunFolder>) -> Result<RunFolder> {
        let Some(ranks) = ranks else { return open() };
        let opened = ranks.agree(if ranks.is_first() { open().map(Some) } else { Ok(None) })?;
        let path = opened.as_ref().map(|folder| folder.path.as_os_str().as_bytes()).unwrap_or_default();
        let path = PathBuf::from(OsString::from_vec(ranks.of_first(path)?));
        Ok(opened.unwrap_or(RunFolder { path, existing, _lock: None }))
    }

    /// Checks that [`open`](RunFolder::open) allows for what is in a folder, which is not changed.
    ///
    /// # Errors
    /// As those of `open`.
    pub fn check(path: &Path, existing: Existing) -> Result<()> {
        let checkpoints = Checkpoints::new(path.join("checkpoints"));
        // An empty file is no result.
        let result = RESULTS.iter().find(|name| fs::metadata(path.join(name)).is_ok_and(|file| file.is_file() && file.len() > 0));
        match existing {
            Existing::Overwrite => Ok(()),
            Existing::Refuse => {
                let found = if checkpoints.any() { Some("checkpoints") } else { result.copied() };
                found.map_or(Ok(()), |found| {
                    Err(Error::Config(format!(
                        "{} has a run already ({found}); resume it with --resume, replace it with --overwrite, or name another folder with --out",
                        path.display()
                    )))
                })
            }
            Existing::Resume if !path.exists() => {
                Err(Error::Config(format!("there is no run to resume: {} does not exist; check the path", path.display())))
            }
            Existing::Resume => match RESULTS[..4].iter().find(|name| result == Some(name)) {
                Some(name) if !checkpoints.any() => Err(Error::Config(format!(
                    "{} has a finished run ({name}) without checkpoints, which cannot be resumed; replace it with --overwrite, or name another \
                     folder with --out",
                    path.display()
                ))),
                _ => Ok(()),
            },
        }
    }

    /// The path of the newest `runs/TITLE-N`, to resume.
    ///
    /// # Errors
    /// If there is none.
    pub fn latest(title: &str) -> Result<PathBuf> {
        let path = |n: u64| PathBuf::from(format!("runs/{title}-{n}"));
        (1..).take_while(|n| path(*n).exists()).last().map(path).ok_or_else(|| {
            Error::Config(format!("there is no run to resume: {} does not exist; name its folder with --out", path(1).display()))
        })
    }

    /// The configuration of the run that is in a folder.
    pub fn config_in(path: &Path) -> Option<PathBuf> {
        Some(path.join(CONFIG)).filter(|path| path.exists())
    }

    /// The next free `runs/TITLE-N`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn next(title: &str) -> Result<RunFolder> {
        let error = |path: &Path, source| Error::Io { action: "write to the run folder", path: path.to_path_buf(), source };
        fs::create_dir_all("runs").map_err(|source| error(Path::new("runs"), source))?;
        for path in (1..).map(|n| PathBuf::from(format!("runs/{title}-{n}"))) {
            // Another process may look for a number at the same time.
            match fs::create_dir(&path) {
                Ok(()) => return RunFolder::open(&path, Existing::Refuse),
                Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(error(&path, source)),
            }
        }
        unreachable!("numbers do not run out")
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
        files::replace_with(&self.file(name), bytes)
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

/// Locks a folder for this process. The lock ends with the process, however that ends.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let error = |source| Error::Io { action: "lock", path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let what = "is in use by another process; wait until it ends, or name another folder with --out";
            Err(Error::Config(format!("{} {what}", folder.display())))
        }
        // Some file systems have no locks.
        Err(TryLockError::Error(source)) if source.kind() == std::io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}

/// A document with what the run reads of its data.
fn with_data(mut document: Value, data: Value) -> Value {
    document["data"] = data;
    document
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
