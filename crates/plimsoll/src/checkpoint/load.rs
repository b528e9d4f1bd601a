//! Checkpoints read back: the newest that is intact, or the best.

use super::{Checkpoints, Record, name_of, numbered};
use crate::error::{Error, Result};
use crate::tensors::{self, Unusable, Which};
use plimsoll_core::Executor;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be loaded: the file, and the reason.
type Refused = (PathBuf, Box<Unusable>);

/// The newest intact document, for planning: the tensors are read later.
pub(crate) fn newest_record(folder: &Path) -> Option<Record> {
    numbered(folder).iter().rev().find_map(|step| record(folder, &name_of(*step)).ok())
}

/// The newest intact checkpoint that `check` accepts, its tensors loaded; and the errors of newer ones. An error of `check` ends the search: a
/// checkpoint of another run is not a damaged one. None if there is no checkpoint at all.
pub(crate) fn load_newest(
    folder: &Path,
    executor: &mut Executor,
    check: impl Fn(&Record) -> Result<()>,
) -> Result<Option<(Record, Vec<String>)>> {
    let mut complaints = Vec::new();
    for step in numbered(folder).iter().rev() {
        match load(folder, &name_of(*step), executor, &check) {
            Ok(record) => return Ok(Some((record?, complaints))),
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
    match load(&settings.folder, "best", executor, &|_| Ok(())) {
        Ok(record) => record.map(|_| true),
        Err((path, unusable)) => Err(unusable.about(&path)),
    }
}

/// The inner error is one of `check`, which is asked once both files are known to be intact as far as their checksums tell.
fn load(folder: &Path, name: &str, executor: &mut Executor, check: &dyn Fn(&Record) -> Result<()>) -> Result<Result<Record>, Refused> {
    let record = record(folder, name)?;
    let path = folder.join(format!("{name}.safetensors"));
    let refused = |unusable| (path.clone(), Box::new(unusable));
    let file = tensors::open_written(&path, record.tensors).map_err(refused)?;
    if let Err(error) = check(&record) {
        return Ok(Err(error));
    }
    file.load_all(executor, Which::Everything).map_err(refused)?;
    Ok(Ok(record))
}

fn record(folder: &Path, name: &str) -> Result<Record, Refused> {
    let path = folder.join(format!("{name}.json"));
    match fs::read(&path) {
        Ok(text) => Record::from_document(&text).map_err(|what| (path, Box::new(Unusable::Damaged(what)))),
        Err(source) => {
            let error = Error::Io { action: "read", path: path.clone(), source };
            Err((path, Box::new(Unusable::Failed(error))))
        }
    }
}
