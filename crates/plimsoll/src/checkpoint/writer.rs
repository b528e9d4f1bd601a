//! Checkpoints written while training continues.

use super::{Checkpoints, Record, checkpoint_of, name_of, numbered, part_name, step_of};
use crate::error::{Error, Result};
use crate::files::{self, INCOMPLETE, beside, remove};
use crate::ranks::Ranks;
use crate::tensors::{self, RankOf, Which, Written};
use plimsoll_core::{Bytes, Executor};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The stack of the thread that syncs a checkpoint to disk.
pub(super) const STACK: Bytes = Bytes::kib(if cfg!(debug_assertions) { 256 } else { 64 });

/// Writes checkpoints of one run. The tensors go to the system's buffers while training waits, which is a copy;
/// syncing, renaming and clearing up happen on a thread of its own.
pub(crate) struct Writer {
    settings: Checkpoints,
    last: Instant,
    pending: Option<JoinHandle<Result<()>>>,
    /// The last checkpoint: its step, its epochs, and its files of tensors.
    latest: Option<Latest>,
    /// Where tensors are divided over ranks, all of them: each writes its parts, and the first everything else.
    ranks: Option<Ranks>,
}

struct Latest {
    step: u64,
    epoch: u64,
    tensors: Written,
    parts: Vec<Written>,
}

/// What there is to write of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwritten {
    Nothing,
    /// Its tensors are those of the last one: no step ran since.
    Document,
    Everything,
}

impl Writer {
    /// For a run that is at this step. With `ranks`, tensors are divided over them.
    pub fn new(settings: Checkpoints, step: u64, ranks: Option<Ranks>) -> Result<Writer> {
        let path = settings.folder.clone();
        fs::create_dir_all(&path).map_err(|source| Error::Io { action: "make the folder", path, source })?;
        // An interrupted run may have left partial files, and this one may have nothing more to write. Newer
        // checkpoints, which this run could not use, are removed by the next one that is written.
        if ranks.as_ref().is_none_or(Ranks::is_first) {
            prune(&settings.folder, settings.keep, step, false);
        }
        Ok(Writer { settings, last: Instant::now(), pending: None, latest: None, ranks })
    }

    /// Whether a checkpoint is due after this step, which did not end an epoch.
    pub fn due(&self, step: u64) -> bool {
        self.settings.steps.is_some_and(|steps| step.is_multiple_of(steps)) || self.last.elapsed() >= self.settings.every
    }

    /// Whether the last one has been written.
    pub fn is_free(&self) -> Result<bool> {
        let free = self.pending.as_ref().is_none_or(JoinHandle::is_finished);
        match &self.ranks {
            Some(ranks) => Ok(ranks.least([u64::from(free)])? == [1]),
            None => Ok(free),
        }
    }

    /// Whether several ranks write.
    pub fn is_divided(&self) -> bool {
        self.ranks.is_some()
    }

    /// What there is to write of a checkpoint, as the first rank says, after it has finished the last one.
    pub fn unwritten(&self, record: &Record, best: bool) -> Result<Unwritten> {
        let latest = self.latest.as_ref().filter(|latest| latest.step == record.step);
        let known = || self.settings.folder.join(format!("{}.safetensors", name_of(record.step))).exists();
        let own = match latest {
            Some(latest) if latest.epoch == record.epoch && !best => Unwritten::Nothing,
            Some(_) if known() => Unwritten::Document,
            _ => Unwritten::Everything,
        };
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let all = [Unwritten::Nothing, Unwritten::Document, Unwritten::Everything];
        let number = if ranks.is_first() { own as u64 } else { 0 };
        Ok(all[ranks.most([number])?[0] as usize])
    }

    /// The newest checkpoint on disk: the path of its tensors.
    pub fn newest(&self) -> Option<PathBuf> {
        numbered(&self.settings.folder).last().map(|step| self.settings.folder.join(format!("{}.safetensors", name_of(*step))))
    }

    /// Writes one; [`finish`](Writer::finish) comes before, so that the previous one is on disk. With `best`, it is
    /// also linked as the best one. If that fails, nothing is left of it.
    pub fn write(&mut self, executor: &Executor, mut record: Record, unwritten: Unwritten, best: bool) -> Result<()> {
        debug_assert!(self.pending.is_none(), "the previous one is on disk");
        let (step, epoch) = (record.step, record.epoch);
        let path = self.settings.folder.join(format!("{}.safetensors", name_of(step)));
        let known = self.latest.take().filter(|_| unwritten == Unwritten::Document);
        if let Some(ranks) = self.ranks.clone() {
            if unwritten == Unwritten::Everything {
                record.parts = self.write_parts(executor, step, &ranks)?;
            }
            if !ranks.is_first() {
                let tensors = record.tensors;
                self.latest = Some(Latest { step, epoch, tensors, parts: record.parts });
                self.last = Instant::now();
                return Ok(());
            }
        }
        let file = match known {
            Some(latest) => {
                (record.tensors, record.parts) = (latest.tensors, latest.parts);
                None
            }
            None => {
                let first = self.write_tensors(executor, &path);
                let (file, tensors) = match first {
                    // Older checkpoints are worth less than a new one. The parts of other ranks would be removed too.
                    Err(error) if files::is_disk_full(&error) && self.ranks.is_none() && prune(&self.settings.folder, 1, step, false) => {
                        self.write_tensors(executor, &path)
                    }
                    other => other,
                }?;
                record.tensors = tensors;
                Some(file)
            }
        };
        self.latest = Some(Latest { step, epoch, tensors: record.tensors, parts: record.parts.clone() });
        let (folder, keep) = (self.settings.folder.clone(), self.settings.keep);
        let to_disk = move || {
            let (name, temporary) = (name_of(step), beside(&path));
            let complete = || {
                if let Some(file) = &file {
                    let written = file.sync_all().and_then(|()| fs::rename(&temporary, &path));
                    written.map_err(|source| Error::Io { action: "write", path: path.clone(), source })?;
                }
                files::replace_with(&folder.join(format!("{name}.json")), &record.to_document())
            };
            complete().inspect_err(|_| {
                remove(&temporary);
                // Tensors without a document are no checkpoint, and take space that the next one needs.
                if !folder.join(format!("{name}.json")).exists() {
                    remove(&path);
                }
            })?;
            if best {
                link(&folder, &name, "best", record.parts.len())?;
            }
            prune(&folder, keep, step, true);
            Ok(())
        };
        let thread = thread::Builder::new().name("plimsoll-checkpoint".to_string()).stack_size(STACK.get()).spawn(to_disk);
        let folder = self.settings.folder.clone();
        self.pending = Some(thread.map_err(|source| Error::Io { action: "start a thread that writes to", path: folder, source })?);
        self.last = Instant::now();
        Ok(())
    }

    /// Writes the tensors under a temporary name.
    fn write_tensors(&self, executor: &Executor, path: &Path) -> Result<(File, Written)> {
        let temporary = beside(path);
        let write = || {
            let file = File::create(&temporary).map_err(|source| Error::Io { action: "write", path: path.to_path_buf(), source })?;
            let written = tensors::write(executor, Which::Everything, &file, path)?;
            Ok((file, written))
        };
        write().inspect_err(|_| remove(&temporary))
    }

    /// Writes this rank's part, while all others write theirs; gives the files of all of them, which are then on the
    /// disk.
    fn write_parts(&self, executor: &Executor, step: u64, ranks: &Ranks) -> Result<Vec<Written>> {
        let of = RankOf { rank: ranks.rank(), ranks: ranks.size() };
        let path = self.settings.folder.join(part_name(&name_of(step), of));
        let write = || files::replace(&path, |file| tensors::write_part(executor, of, file, &path));
        let mut written = write();
        let full = written.as_ref().is_err_and(files::is_disk_full);
        if ranks.most([u64::from(full)])? == [1] {
            // As of one process; what the others have written has no document yet, and is removed too.
            let pruned = ranks.is_first() && prune(&self.settings.folder, 1, step, false);
            if ranks.most([u64::from(pruned)])? == [1] {
                written = write();
            }
        }
        let written = ranks.agree(written).inspect_err(|_| remove(&path))?;
        let all = ranks.of_all([written.bytes, u64::from(written.checksum)])?;
        Ok(all.into_iter().map(|[bytes, checksum]| Written { bytes, checksum: checksum as u32 }).collect())
    }

    /// Waits until the last one has reached the disk.
    pub fn finish(&mut self) -> Result<()> {
        let finished = match self.pending.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                let source = std::io::Error::other("the thread that writes it ended early");
                Err(Error::Io { action: "write a checkpoint to", path: self.settings.folder.clone(), source })
            }
        };
        finished.inspect_err(|_| self.latest = None)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error was already on its way to the user when a run is dropped without finishing.
        let _ = self.finish();
    }
}

/// Gives a checkpoint with files of this many ranks a second name, under which it survives when the first one goes. The
/// old document goes first, so that it never stands beside new tensors.
fn link(folder: &Path, from: &str, to: &str, parts: usize) -> Result<()> {
    let error = |source| Error::Io { action: "write", path: folder.join(format!("{to}.safetensors")), source };
    remove(&folder.join(format!("{to}.json")));
    remove_parts(folder, to);
    let names = |name: &str| {
        let parts = (0..parts).map(|rank| part_name(name, RankOf { rank, ranks: parts }));
        parts.chain(["safetensors", "json"].map(|suffix| format!("{name}.{suffix}"))).collect::<Vec<_>>()
    };
    for (source, target) in names(from).iter().zip(names(to)) {
        let (source, target) = (folder.join(source), folder.join(target));
        let temporary = beside(&target);
        remove(&temporary);
        // A file system without links gets a copy.
        let linked = fs::hard_link(&source, &temporary).or_else(|_| fs::copy(&source, &temporary).map(drop));
        linked.and_then(|()| fs::rename(&temporary, &target)).inspect_err(|_| remove(&temporary)).map_err(error)?;
    }
    files::sync_folder(folder).map_err(error)
}

/// Removes the files of ranks that belong to a checkpoint.
fn remove_parts(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if checkpoint_of(&file) == Some(name) && file != format!("{name}.safetensors") {
            remove(&entry.path());
        }
    }
}

/// Removes all checkpoints of a run up to `step` but the last ones, and what an interrupted write left; with `newer`,
/// also those after that step. Whether a checkpoint was removed. What cannot be removed is no reason to stop a run.
pub(super) fn prune(folder: &Path, keep: usize, step: u64, newer: bool) -> bool {
    let steps = numbered(folder);
    let (before, after) = steps.split_at(steps.partition_point(|known| *known <= step));
    let old = &before[..before.len().saturating_sub(keep)];
    let gone = |known: u64| old.contains(&known) || (newer && after.contains(&known));
    for known in steps.iter().filter(|known| gone(**known)) {
        // The document first: without it, the tensors are no checkpoint.
        remove(&folder.join(format!("{}.json", name_of(*known))));
    }
    let kept = |known: u64| steps.contains(&known) && !gone(known);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let orphan = checkpoint_of(&name).and_then(step_of).is_some_and(|known| !kept(known));
        if orphan || name.ends_with(INCOMPLETE) {
            remove(&entry.path());
        }
    }
    steps.iter().any(|known| gone(*known))
}

/// Removes all checkpoints, and nothing else.
pub(super) fn clear(folder: &Path) {
    remove(&folder.join("best.json"));
    remove(&folder.join("best.safetensors"));
    remove_parts(folder, "best");
    prune(folder, 0, u64::MAX, true);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    fn checkpoints(folder: &Path, names: &[&str]) {
        for name in names.iter().flat_map(|name| [format!("{name}.json"), format!("{name}.safetensors")]) {
            fs::write(folder.join(name), "x").unwrap();
        }
    }

    /// A kill can come between any two of the calls that write or remove a checkpoint.
    #[test]
    fn what_a_kill_left_is_cleared_up() {
        let folder = tempfile::tempdir().unwrap();
        checkpoints(folder.path(), &["step-000000000014", "step-000000000021", "step-000000000007"]);
        for left in [
            "step-000000000028.rank-1-of-3.safetensors",
            "step-000000000028.safetensors",
            "step-000000000003.safetensors",
            "step-000000000028.json.tmp",
        ] {
            fs::write(folder.path().join(left), "x").unwrap();
        }
        for other in ["best.safetensors", "best.json", "mine.safetensors", "step-by-step.safetensors"] {
            fs::write(folder.path().join(other), "x").unwrap();
        }
        Writer::new(Checkpoints::new(folder.path()), 21, None).unwrap();
        let kept = ["step-000000000014", "step-000000000021"].map(|name| [format!("{name}.json"), format!("{name}.safetensors")]).concat();
        let mut expected = [
            &["best.json", "best.safetensors", "mine.safetensors"].map(str::to_string)[..],
            &kept,
            &["step-by-step.safetensors".to_string()],
        ]
        .concat();
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }

    /// Damaged checkpoints that are newer than the one in use must not push it out.
    #[test]
    fn newer_checkpoints_that_cannot_be_used_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        checkpoints(folder.path(), &["step-000000000007", "step-000000000014", "step-000000000021"]);
        Writer::new(Checkpoints::new(folder.path()).keep(1), 7, None).unwrap();
        assert_eq!(numbered(folder.path()), [7, 14, 21]);
        prune(folder.path(), 1, 7, true);
        assert_eq!(numbered(folder.path()), [7]);
        assert_eq!(names(folder.path()).len(), 2);
    }
}
