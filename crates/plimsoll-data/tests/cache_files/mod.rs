//! What tests of caches read and write.
#![allow(dead_code)]

use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::source::CsvSpec;
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, FeedState, Options, Schema};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tempfile::TempDir;

/// The columns of batches, one after the other.
pub type Batches = Vec<Vec<Vec<u8>>>;

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub fn file(folder: &TempDir) -> Cache {
    Cache::File(path(folder))
}

pub fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("rows.plc")
}

/// What lies in the folder that is a cache, or part of one.
pub fn left(folder: &TempDir) -> Vec<String> {
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("plc")).collect();
    names.sort();
    names
}

pub fn csv(folder: &Path, rows: usize) -> Dataset {
    let path = folder.join("t.csv");
    if !path.exists() {
        write_csv(&path, rows, 1.0);
    }
    Dataset::csv(&path, &CsvSpec::new().targets(["y"])).unwrap()
}

pub fn write_csv(path: &Path, rows: usize, factor: f64) {
    let lines: String = (0..rows).map(|row| format!("{row},{},{}\n", row as f64 * 0.5 * factor, row % 3)).collect();
    fs::write(path, format!("a,b,y\n{lines}")).unwrap();
}

/// Batches of some epochs from where `options` say, the position after the last, and why nothing was kept, if so.
pub fn read(
    data: &Dataset,
    limit: Option<Bytes>,
    options: Options,
    epochs: u64,
) -> Result<(Batches, FeedState, Option<String>), DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(epochs), ..options })?;
    let mut batches = Vec::new();
    for _ in 0..epochs {
        while let Some(batch) = feed.next()? {
            batches.push((0..batch.columns()).map(|column| batch.column(column).to_vec()).collect());
        }
    }
    assert!(ledger.peak() <= plan.total(), "{} held, and planned was\n{plan}", ledger.peak());
    assert!(limit.is_none_or(|limit| plan.total() <= limit));
    let (state, given_up) = (feed.state(), feed.activity().cache_given_up);
    Ok((batches, state, given_up))
}

pub fn epochs(data: &Dataset, limit: Option<Bytes>, count: u64) -> Batches {
    read(data, limit, Options::default(), count).unwrap().0
}

/// Rows that count how often one was made.
pub fn counted(rows: u64) -> (Dataset, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    let schema = Schema::new(vec![Column::new("x", DType::F32, [3]), Column::new("y", DType::I32, [])]).unwrap();
    let data = Dataset::from_fn(schema, rows, move |n, row| {
        count.fetch_add(1, Relaxed);
        row.f32(0, &[n as f32, 0.5, -1.0])?;
        row.i32(1, &[n as i32 % 7])
    });
    (data, made)
}
