//! Checkpoints read back: the newest that is intact, or the best.

use super::{Checkpoints, Record, name_of, numbered, part_name};
use crate::error::{Error, Result};
use crate::ranks::Ranks;
use crate::tensors::{self, RankOf, Unusable, Which};
use plimsoll_core::Executor;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be loaded: the file, and the reason.
type Refused = (PathBuf, Box<Unusable>);

/// The newest intact document, for planning: the tensors are read later.
pub(crate) fn newest_record(folder: &Path) -> Option<Record> {
    numbered(folder).iter().rev().find_map(|step| record(folder, &name_of(*step)).ok())
}

/// The newest intact checkpoint that `check` accepts, its tensors loaded; and the errors of newer ones. An error of
/// `check` ends the search: a checkpoint of another run is not a damaged one. None if there is no checkpoint at all. Of
/// several ranks, all load the same one: each reads other parts, and a file that one of them cannot read counts as
/// damaged for all.
pub(crate) fn load_newest(
    folder: &Path,
    executor: &mut Executor,
    ranks: Option<&Ranks>,
    check: impl Fn(&Record) -> Result<()>,
) -> Result<Option<(Record, Vec<String>)>> {
    let mut complaints = Vec::new();
    // All ranks try the same ones, whatever their views of the file system are.
    let steps: Vec<u8> = numbered(folder).iter().flat_map(|step| step.to_le_bytes()).collect();
    let steps = ranks.map_or(Ok(steps.clone()), |ranks| ranks.of_first(&steps))?;
    for step in steps.as_chunks().0.iter().rev() {
        let name = name_of(u64::from_le_bytes(*step));
        let loaded = load(folder, &name, executor, rank_of(ranks), &check);
        match on_all_ranks(ranks, folder, &name, loaded)? {
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
pub(crate) fn load_best(settings: &Checkpoints, executor: &mut Executor, ranks: Option<&Ranks>) -> Result<bool> {
    if !settings.folder.join("best.json").exists() {
        return Ok(false);
    }
    match load(&settings.folder, "best", executor, rank_of(ranks), &|_| Ok(())) {
        Ok(record) => record.map(|_| true),
        Err((path, unusable)) => Err(unusable.about(&path)),
    }
}

fn rank_of(ranks: Option<&Ranks>) -> RankOf {
    ranks.map_or(RankOf::ALONE, |ranks| RankOf { rank: ranks.rank(), ranks: ranks.size() })
}

/// What a rank has loaded, unless another one could not.
fn on_all_ranks(
    ranks: Option<&Ranks>,
    folder: &Path,
    name: &str,
    loaded: Result<Result<Record>, Refused>,
) -> Result<Result<Result<Record>, Refused>> {
    let Some(ranks) = ranks else { return Ok(loaded) };
    // The search ends with an error on all ranks, goes on on all of them, or has found a checkpoint.
    let own = match &loaded {
        Ok(Err(_)) => 0,
        Err((_, unusable)) if matches!(**unusable, Unusable::OtherModel(_)) => 0,
        Err(_) => 1,
        Ok(Ok(_)) => 2,
    };
    Ok(match (own, ranks.least([own])?[0]) {
        (own, all) if own == all => loaded,
        (_, 0) => Ok(Err(Error::Config("another rank cannot continue from the checkpoint; look for its error".to_string()))),
        _ => {
            let what = "another rank cannot read its part of it".to_string();
            Err((folder.join(format!("{name}.json")), Box::new(Unusable::Damaged(what))))
        }
    })
}

/// The inner error is one of `check`, which is asked once both files are known to be intact as far as their checksums
/// tell.
fn load(
    folder: &Path,
    name: &str,
    executor: &mut Executor,
    of: RankOf,
    check: &dyn Fn(&Record) -> Result<()>,
) -> Result<Result<Record>, Refused> {
    let record = record(folder, name)?;
    let path = folder.join(format!("{name}.safetensors"));
    let refused = |unusable| (path.clone(), Box::new(unusable));
    let file = tensors::open_written(&path, record.tensors).map_err(refused)?;
    if let Err(error) = check(&record) {
        return Ok(Err(error));
    }
    let mut missing = file.load_all(executor, Which::Everything, of, !record.parts.is_empty()).map_err(refused)?;
    for (rank, written) in record.parts.iter().enumerate() {
        let part = RankOf { rank, ranks: record.parts.len() };
        if missing.needs(part) {
            let path = folder.join(part_name(name, part));
            let file = tensors::open_written(&path, *written).and_then(|file| missing.load(executor, file));
            file.map_err(|unusable| (path, Box::new(unusable)))?;
        }
    }
    missing.complete().map_err(refused)?;
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
