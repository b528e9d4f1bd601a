//! The entry points of the mutation test of `plimsoll-data`, for cargo-fuzz.

#[path = "../crates/plimsoll-data/tests/entries/mod.rs"]
mod entries;

use std::sync::OnceLock;
use tempfile::TempDir;

/// Parses the bytes of a file; every outcome but a panic is correct.
pub fn enter_with(name: &str, bytes: &[u8]) {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files"));
    let entry = entries::ENTRIES.into_iter().find(|entry| entry.0 == name).expect("a target has the name of an entry");
    let _ = entries::enter(entry, folder.path(), bytes);
}
