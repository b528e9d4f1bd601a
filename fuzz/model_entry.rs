//! The entry points of the mutation test of `plimsoll-formats`, for cargo-fuzz.

#[path = "../crates/plimsoll-formats/tests/entries/mod.rs"]
mod entries;

use plimsoll_formats::source::Region;

/// Reads the bytes of a model; every outcome but a panic is correct.
pub fn enter_with(name: &str, bytes: &[u8]) {
    let (_, enter) = entries::ENTRIES.into_iter().find(|entry| entry.0 == name).expect("a target has the name of an entry");
    let _ = enter(Region::bytes(bytes.to_vec()));
}
