//! The document of a checkpoint: everything about a run that is not a tensor.

use crate::numerics::Numerics;
use crate::tensors::Written;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of the document.
const FORMAT: u32 = 2;

/// How a document begins.
const HEAD: &str = "{\"checksum\":\"";

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
    /// Ranks that trained together.
    #[serde(default = "one")]
    pub ranks: u64,
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
    /// The model of the GPU the run computes on, or `cpu`.
    pub device: String,
    /// The planner's choices that result bits depend on.
    pub numerics: Numerics,
    /// The file of tensors.
    pub tensors: Written,
    /// The files with the ranks' parts of tensors that are divided over them; none if none are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Written>,
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
            ranks: 1,
            data: Position { rows: 0, epoch_rows: 0, batch: 0, order: String::new() },
            sums: vec![],
            epochs: vec![],
            memories: Map::new(),
            config: String::new(),
            plan: String::new(),
            device: String::new(),
            numerics: Numerics::default(),
            tensors: Written { bytes: 0, checksum: 0 },
            parts: Vec::new(),
        }
    }

    /// The document: this record as JSON, with the checksum of everything behind it as first key.
    pub fn to_document(&self) -> Vec<u8> {
        let record = serde_json::to_vec(self).expect("a record is plain data");
        let mut document = format!("{HEAD}{:08x}\",", crc32fast::hash(&record)).into_bytes();
        document.extend_from_slice(&record[1..]);
        document
    }

    /// The record of a document, or what is wrong with it.
    pub fn from_document(document: &[u8]) -> Result<Record, String> {
        let split =
            document.strip_prefix(HEAD.as_bytes()).and_then(|rest| rest.split_at_checked(8)).filter(|(_, rest)| rest.starts_with(b"\","));
        let Some((digits, rest)) = split else {
            let version = serde_json::from_slice::<Value>(document).ok().and_then(|document| document["format"].as_u64());
            return Err(match version {
                Some(version) if version != u64::from(FORMAT) => other_version(version),
                _ => "it is not a checkpoint's document".to_string(),
            });
        };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(b"{");
        checksum.update(&rest[2..]);
        if digits != format!("{:08x}", checksum.finalize()).as_bytes() {
            return Err("it was changed after it was written (the checksum differs)".to_string());
        }
        let record: Record = serde_json::from_slice(document).map_err(|error| format!("it is not a checkpoint's document: {error}"))?;
        if record.format != FORMAT { Err(other_version(u64::from(record.format))) } else { Ok(record) }
    }
}

fn one() -> u64 {
    1
}

fn other_version(version: u64) -> String {
    format!("it is of version {version}, but this program reads version {FORMAT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_changed_byte_of_a_document_goes_unnoticed() {
        let record = Record { step: 12, epoch: 3, model: "mlp".to_string(), ..Record::empty() };
        let document = record.to_document();
        assert_eq!(Record::from_document(&document).unwrap().step, 12);
        for at in 0..document.len() {
            for bit in 0..8 {
                let mut damaged = document.clone();
                damaged[at] ^= 1 << bit;
                assert!(Record::from_document(&damaged).is_err(), "bit {bit} of byte {at}: {}", String::from_utf8_lossy(&damaged));
            }
            assert!(Record::from_document(&document[..at]).is_err(), "cut after {at} bytes");
        }
    }

    #[test]
    fn a_document_of_another_version_says_so() {
        let what = Record::from_document(b"{\"format\":1,\"step\":3}").unwrap_err();
        assert_eq!(what, "it is of version 1, but this program reads version 2");
    }
}
