//! Checkpoints: a run at the end of a step, in two files. The tensors are safetensors, everything else is one JSON document, which is
//! written last and has the tensors' checksums: a checkpoint with a document and matching checksums is complete.

use crate::error::{Error, Result};
use crate::tensors::{self, Unusable, Which, beside};
use plimsoll_core::{Bytes, Executor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The version of the document.
const FORMAT: u32 = 1;

/// The stack of the thread that syncs a checkpoint to disk.
const STACK: Bytes = Bytes::kib(256);

/// Where, when and how many checkpoints are written: between steps, while training continues during the sync.
///
/// ```
/// use plimsoll::{Checkpoints, Fit};
/// use std::time::Duration;
/// let checkpoints = Checkpoints::new("runs/mine/checkpoints").keep(3).every(Duration::from_secs(300)).best("val_loss");
/// let fit = Fit::epochs(10).checkpoints(checkpoints).resume(true);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    every: Duration,
    steps: Option<u64>,
    best: Option<String>,
}

impl Checkpoints {
    /// In this folder, at the end of every epoch and at least every ten minutes; the last two are kept.
    pub fn new(folder: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { folder: folder.into(), keep: 2, every: Duration::from_secs(600), steps: None, best: None }
    }

    /// Keeps this many of the last ones, at least one.
    pub fn keep(self, keep: usize) -> Checkpoints {
        Checkpoints { keep: keep.max(1), ..self }
    }

    /// At least this often, inside an epoch too.
    pub fn every(self, every: Duration) -> Checkpoints {
        Checkpoints { every, ..self }
    }

    /// Also after every this many steps.
    pub fn every_steps(self, steps: u64) -> Checkpoints {
        Checkpoints { steps: Some(steps.max(1)), ..self }
    }

    /// Also keeps the epoch with the best score, such as `val_loss` or `val_accuracy`, as `best.safetensors`.
    pub fn best(self, score: &str) -> Checkpoints {
        Checkpoints { best: Some(score.to_string()), ..self }
    }

    /// The folder they are in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes all of them, and nothing else from the folder.
    pub(crate) fn clear(&self) {
        remove(&self.folder.join("best.json"));
        remove(&self.folder.join("best.safetensors"));
        prune(&self.folder, 0);
    }

    /// The score by which the best epoch is kept.
    pub(crate) fn best_score(&self) -> Option<&str> {
        self.best.as_deref()
    }

    /// The memory of writing them: a thread, and the document of `states` tensors.
    pub(crate) fn footprint(states: usize) -> Bytes {
        (STACK + Checkpoints::document(states)).align_up(4096)
    }

    /// The memory of the document of `states` tensors, or of the header of their file.
    pub(crate) fn document(states: usize) -> Bytes {
        (Bytes::kib(64) + Bytes(states as u64 * 1024)).align_up(4096)
    }

    /// The same with its folder inside another, unless it is absolute.
    pub(crate) fn in_folder(&self, folder: &Path) -> Checkpoints {
        Checkpoints { folder: folder.join(&self.folder), ..self.clone() }
    }
}

/// Everything about a run that is not a tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The version of this document.
    pub format: u32,
    /// The model's name.
    pub model: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Epochs done.
    pub epoch: u64,
    /// The seed; with the step, the whole state of the random numbers.
    pub seed: u64,
    /// The position in the data.
    pub data: Position,
    /// Sums of the current epoch, as the bits of their values, so that they continue exactly.
    pub sums: Vec<(String, u64)>,
    /// The epochs done, the last thousand of them.
    pub epochs: Vec<Value>,
    /// The state of the schedule and the callbacks, by name.
    pub memories: Map<String, Value>,
    /// The run's configuration.
    pub config: String,
    /// A digest of the plan the run followed.
    pub plan: String,
    /// Bytes of the file of tensors.
    pub bytes: u64,
    /// Its tensors and their checksums.
    pub tensors: Vec<(String, u32)>,
}

/// The position of a run in its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Rows of this epoch that were trained on.
    pub rows: u64,
    /// Rows of an epoch.
    pub epoch_rows: u64,
    /// Rows of a batch.
    pub batch: usize,
    /// How rows are reordered, seeds included.
    pub order: String,
}

impl Record {
    pub fn empty() -> Record {
        Record {
            format: FORMAT,
            model: String::new(),
            step: 0,
            epoch: 0,
            seed: 0,
            data: Position { rows: 0, epoch_rows: 0, batch: 0, order: String::new() },
            sums: vec![],
            epochs: vec![],
            memories: Map::new(),
            config: String::new(),
            plan: String::new(),
            bytes: 0,
            tensors: vec![],
        }
    }
}

/// Writes checkpoints of one run. The tensors go to the system's buffers while training waits, which is a copy; syncing, renaming and
/// clearing up happen on a thread of its own.
pub(crate) struct Writer {
    settings: Checkpoints,
    last: Instant,
    pending: Option<JoinHandle<Result<()>>>,
}

impl Writer {
    pub fn new(settings: Checkpoints) -> Result<Writer> {
        let path = settings.folder.clone();
        fs::create_dir_all(&path).map_err(|source| Error::Io { action: "make the folder", path, source })?;
        // An interrupted run may have left partial files, and this one may have nothing more to write.
        prune(&settings.folder, settings.keep);
        Ok(Writer { settings, last: Instant::now(), pending: None })
    }

    /// Whether a checkpoint is due after this step, which did not end an epoch.
    pub fn due(&self, step: u64) -> bool {
        self.settings.steps.is_some_and(|steps| step.is_multiple_of(steps)) || self.last.elapsed() >= self.settings.every
    }

    /// Whether the last one is still being written.
    pub fn busy(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.is_finished())
    }

    /// Writes one, once the previous one is on disk. With `best`, it is also linked as the best one.
    pub fn write(&mut self, executor: &Executor, mut record: Record, best: bool) -> Result<()> {
        self.finish()?;
        let name = format!("step-{:012}", record.step);
        let path = self.settings.folder.join(format!("{name}.safetensors"));
        let temporary = beside(&path);
        let error = |source| Error::Io { action: "write", path: path.clone(), source };
        let file = File::create(&temporary).map_err(error)?;
        record.tensors = tensors::write(executor, Which::Everything, &file, &path)?;
        record.bytes = file.metadata().map_err(error)?.len();
        let (folder, keep) = (self.settings.folder.clone(), self.settings.keep);
        let to_disk = move || {
            file.sync_all().and_then(|()| fs::rename(&temporary, &path)).map_err(|source| Error::Io { action: "write", path, source })?;
            put_document(&folder, &name, &record)?;
            if best {
                link(&folder, &name, "best")?;
            }
            prune(&folder, keep);
            Ok(())
        };
        let thread = thread::Builder::new().name("plimsoll-checkpoint".to_string()).stack_size(STACK.get()).spawn(to_disk);
        let folder = self.settings.folder.clone();
        self.pending = Some(thread.map_err(|source| Error::Io { action: "start a thread that writes to", path: folder, source })?);
        self.last = Instant::now();
        Ok(())
    }

    /// Waits until the last one has reached the disk.
    pub fn finish(&mut self) -> Result<()> {
        match self.pending.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                let source = std::io::Error::other("the thread that writes it ended early");
                Err(Error::Io { action: "write a checkpoint to", path: self.settings.folder.clone(), source })
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error was already on its way to the user when a run is dropped without finishing.
        let _ = self.finish();
    }
}

/// Writes the document of a checkpoint whose tensors are on the disk.
fn put_document(folder: &Path, name: &str, record: &Record) -> Result<()> {
    let path = folder.join(format!("{name}.json"));
    let temporary = beside(&path);
    let text = serde_json::to_vec(record).expect("a record is plain data");
    let write = || {
        use std::io::Write;
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        sync_folder(folder)
    };
    write().map_err(|source| Error::Io { action: "write", path: path.clone(), source })
}

/// Makes renamed files survive a power cut.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Gives a checkpoint a second name, under which it survives when the first one goes. The old document goes first, so that it never stands
/// beside new tensors.
fn link(folder: &Path, from: &str, to: &str) -> Result<()> {
    let error = |source| Error::Io { action: "write", path: folder.join(format!("{to}.safetensors")), source };
    for (suffix, first) in [("json", true), ("safetensors", false), ("json", false)] {
        let target = folder.join(format!("{to}.{suffix}"));
        if first {
            remove(&target);
            continue;
        }
        let (source, temporary) = (folder.join(format!("{from}.{suffix}")), beside(&target));
        remove(&temporary);
        // A file system without links gets a copy.
        fs::hard_link(&source, &temporary).or_else(|_| fs::copy(&source, &temporary).map(drop)).map_err(error)?;
        fs::rename(&temporary, &target).map_err(error)?;
    }
    sync_folder(folder).map_err(error)
}

/// Removes all but the last checkpoints, and what an interrupted write left. What cannot be removed is no reason to stop a run.
fn prune(folder: &Path, keep: usize) {
    let names = numbered(folder);
    let (old, kept) = names.split_at(names.len().saturating_sub(keep));
    for name in old {
        // The document first: without it, the tensors are no checkpoint.
        remove(&folder.join(format!("{name}.json")));
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let orphan = name.strip_suffix(".safetensors").is_some_and(|name| is_numbered(name) && kept.iter().all(|kept| kept != name));
        if orphan || name.ends_with(".tmp") {
            remove(&entry.path());
        }
    }
}

/// Whether a file of this name, its suffix apart, belongs to a numbered checkpoint.
fn is_numbered(name: &str) -> bool {
    name.strip_prefix("step-").is_some_and(|digits| digits.parse::<u64>().is_ok())
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// The names of the numbered checkpoints, oldest first.
fn numbered(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().strip_suffix(".json").map(str::to_string))
        .filter(|name| is_numbered(name))
        .collect();
    names.sort_unstable();
    names
}

/// The newest complete checkpoint, its tensors loaded; and the errors of newer ones.
/// None if there is no checkpoint at all.
pub(crate) fn load_newest(folder: &Path, executor: &mut Executor) -> Result<Option<(Record, Vec<String>)>> {
    let names = numbered(folder);
    let mut complaints = Vec::new();
    for name in names.iter().rev() {
        match load(folder, name, Which::Everything, executor) {
            Ok(record) => return Ok(Some((record, complaints))),
            Err((path, unusable)) if matches!(*unusable, Unusable::OtherModel(_)) => return Err(unusable.about(&path)),
            Err((path, unusable)) => complaints.push(unusable.about(&path).to_string()),
        }
    }
    match complaints.first() {
        None => Ok(None),
        Some(first) => {
            let folder = folder.display();
            Err(Error::Config(format!("no checkpoint in {folder} can be used: {first}; remove the folder to start a new run")))
        }
    }
}

/// The weights of the best checkpoint, if there is one.
pub(crate) fn load_best(settings: &Checkpoints, executor: &mut Executor) -> Result<bool> {
    if !settings.folder.join("best.json").exists() {
        return Ok(false);
    }
    match load(&settings.folder, "best", Which::Everything, executor) {
        Ok(_) => Ok(true),
        Err((path, unusable)) => Err(unusable.about(&path)),
    }
}

fn load(folder: &Path, name: &str, which: Which, executor: &mut Executor) -> Result<Record, (PathBuf, Box<Unusable>)> {
    let (document, path) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.safetensors")));
    let damaged = |path: &Path, what: String| (path.to_path_buf(), Box::new(Unusable::Damaged(what)));
    let failed = |path: &Path, source| {
        let error = Error::Io { action: "read", path: path.to_path_buf(), source };
        (path.to_path_buf(), Box::new(Unusable::Failed(error)))
    };
    let text = fs::read(&document).map_err(|source| failed(&document, source))?;
    let record: Record =
        serde_json::from_slice(&text).map_err(|error| damaged(&document, format!("it is not a checkpoint's document: {error}")))?;
    if record.format != FORMAT {
        let what = format!("it is of version {}, but this program reads version {FORMAT}", record.format);
        return Err(damaged(&document, what));
    }
    let length = fs::metadata(&path).map_err(|source| failed(&path, source))?.len();
    if length != record.bytes {
        return Err(damaged(&path, format!("it has {length} bytes, but {} were written", record.bytes)));
    }
    tensors::read(executor, which, &path, Some(&record.tensors)).map_err(|unusable| (path, Box::new(unusable)))?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kill can come between any two of the calls that write or remove a checkpoint.
    #[test]
    fn what_a_kill_left_is_cleared_up() {
        let folder = tempfile::tempdir().unwrap();
        let whole = ["step-000000000014", "step-000000000021", "step-000000000007"];
        for name in whole.iter().flat_map(|name| [format!("{name}.json"), format!("{name}.safetensors")]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        for left in ["step-000000000028.safetensors", "step-000000000003.safetensors", "step-000000000028.json.tmp"] {
            fs::write(folder.path().join(left), "x").unwrap();
        }
        for other in ["best.safetensors", "best.json", "mine.safetensors", "step-by-step.safetensors"] {
            fs::write(folder.path().join(other), "x").unwrap();
        }
        Writer::new(Checkpoints::new(folder.path())).unwrap();
        let mut names: Vec<String> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        let kept = ["step-000000000014", "step-000000000021"].map(|name| [format!("{name}.json"), format!("{name}.safetensors")]).concat();
        let mut expected = [
            &["best.json", "best.safetensors", "mine.safetensors"].map(str::to_string)[..],
            &kept,
            &["step-by-step.safetensors".to_string()],
        ]
        .concat();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
}
