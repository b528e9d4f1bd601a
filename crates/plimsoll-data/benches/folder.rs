//! How long it takes to begin with a folder of a million files, and what that holds.
//!
//! ```text
//! cargo bench -p plimsoll-data --bench folder [-- DIRECTORY]
//! ```
//!
//! Makes 1,000 folders of 1,000 empty files each (in a temporary directory, or in DIRECTORY where they are kept and
//! found again), then lists them, plans a pipeline and starts it, as training would.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, decode, resize};
use plimsoll_data::{Dataset, Feed, Options, Shuffle};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() {
    // Cargo passes `--bench`.
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.unwrap_or_else(|| temporary.path().join("million"));
    make(&directory);
    let before = peak();
    for _ in 0..3 {
        let start = Instant::now();
        let data = Dataset::image_folder(&directory).expect("the folder just made");
        let listed = start.elapsed();
        let data = data.shuffle(Shuffle::seed(7)).map("x", [decode(), resize(224, 224, Method::Bilinear)]).batch(64);
        let limit = Some(Bytes::mib(100));
        let plan = data.plan(limit).expect("a plan");
        let feed = Feed::start(&data, &plan, &Ledger::new("host", limit), Options::default()).expect("a feed");
        let begun = start.elapsed();
        println!("{} files: listed in {listed:.2?}, begun after {begun:.2?}, {} planned", data.len(), plan.total());
        drop(feed);
    }
    println!("resident at most {} ({before} before)", peak());
}

fn make(directory: &Path) {
    if directory.exists() {
        return;
    }
    for class in 0..1000 {
        let folder = directory.join(format!("class-{class:04}"));
        fs::create_dir_all(&folder).expect("space for folders");
        for number in 0..1000 {
            File::create(folder.join(format!("photo-{number:07}.jpg"))).expect("space for files");
        }
    }
}

/// The most memory this process had, as the system counts it.
fn peak() -> Bytes {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|number| number.trim().parse().ok());
    Bytes::kib(kib.unwrap_or(0))
}
