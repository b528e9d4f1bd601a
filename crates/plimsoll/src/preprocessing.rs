//! Fitted preprocessing: what a model learned about its data before the first step. It is stored with the weights.

use crate::error::Result;
use crate::tensors;
use plimsoll_core::Bytes;
use plimsoll_data::Dataset;
use plimsoll_data::source::{ColumnScale, Encoding, FittedColumn};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The columns, statistics and classes of the data that a model was trained on.
///
/// ```
/// use plimsoll::{Dataset, Preprocessing, Split};
/// assert!(Preprocessing::of(&Dataset::digits(Split::Train)).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preprocessing {
    /// The columns of the input, in order, where the data is a table.
    pub features: Vec<String>,
    /// The columns of the labels.
    pub targets: Vec<String>,
    /// The labels of a model with several outputs, each with its columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(String, Vec<String>)>,
    /// Mean and standard deviation of each column, if columns are standardized.
    pub scales: Vec<ColumnScale>,
    /// The class names of labels 0, 1, 2 …, if the data has them.
    pub classes: Vec<String>,
    /// The columns of a table as they were fitted: what cells hold, what missing ones are filled with, categories,
    /// vocabularies, bins. Features, labels and weights, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<FittedColumn>,
}

/// Names that take less memory than this while they are written are not planned for.
const WRITTEN_IN_RESERVE: Bytes = Bytes::kib(256);

/// The key in the metadata of a safetensors file.
const KEY: &str = "preprocessing";

impl Preprocessing {
    /// That of a dataset.
    pub fn of(data: &Dataset) -> Preprocessing {
        let read = data.file_use();
        let (scales, classes, columns) = (data.scales(), data.class_names(), data.fitted_columns());
        Preprocessing { features: read.used, targets: read.targets, outputs: read.outputs, scales, classes, columns }
    }

    /// The memory of writing the names of a dataset with checkpoints, weights and reports: as they are, as JSON
    /// documents and as text. Zero where they are so few that the heap's reserve has space for them.
    pub(crate) fn footprint(data: &Dataset, validation: bool) -> Bytes {
        let fitted = Preprocessing::of(data);
        let copies_of = |documents: u64, name: &String| {
            let (length, allocated) = (name.len() as u64, (name.len() as u64 + 8).next_multiple_of(16).max(32));
            documents * (allocated + 32) + 3 * (length + 8)
        };
        // Reports list the columns, of training and of validation data, but not the classes.
        let copies = |name: &String| copies_of(if validation { 3 } else { 2 }, name);
        let classes = fitted.classes.iter().map(|name| copies_of(2, name)).sum::<u64>();
        let outputs = fitted.outputs.iter().flat_map(|(name, columns)| std::iter::once(name).chain(columns));
        let names = fitted.features.iter().chain(&fitted.targets).chain(outputs).map(copies).sum::<u64>() + classes;
        let scales = fitted.scales.iter().map(|scale| copies_of(3, &scale.name) + 640).sum::<u64>();
        let columns = fitted.columns.iter().map(|column| copies_of(3, &column.name) + column_bytes(column)).sum::<u64>();
        drop(fitted);
        let unused = data.file_use().unused.iter().map(|(name, reason)| copies(name) + copies(reason)).sum::<u64>();
        let bytes = Bytes(names + scales + unused + columns);
        if bytes < WRITTEN_IN_RESERVE { Bytes::ZERO } else { bytes }
    }

    /// Whether nothing was fitted.
    pub fn is_empty(&self) -> bool {
        *self == Preprocessing::default()
    }

    /// As metadata of a file of weights.
    pub(crate) fn metadata(&self) -> Option<(&'static str, String)> {
        let text = serde_json::to_string(self).ok().filter(|_| !self.is_empty())?;
        Some((KEY, text))
    }

    /// That of the weights in a file, if it was stored there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(weights: &Path) -> Result<Option<Preprocessing>> {
        Ok(tensors::metadata(weights, KEY)?.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// What maps predictions of these columns to the units of the data, as offset and factor; empty if all stay as they
    /// are.
    pub(crate) fn inverses_of(&self, columns: &[String]) -> Vec<(f64, f64)> {
        let inverse = |name: &String| match self.columns.iter().find(|column| column.name == *name) {
            Some(column) => column.inverse(),
            None => self.scales.iter().find(|scale| scale.name == *name).map_or((0.0, 1.0), |scale| (scale.mean, scale.std)),
        };
        let inverses: Vec<(f64, f64)> = columns.iter().map(inverse).collect();
        if inverses.iter().all(|inverse| *inverse == (0.0, 1.0)) { Vec::new() } else { inverses }
    }

    /// The class names of a label that consists of these columns, if it is one of classes.
    pub(crate) fn classes_of(&self, columns: &[String]) -> Vec<String> {
        let [only] = columns else { return Vec::new() };
        self.columns.iter().find(|column| column.name == *only).map(FittedColumn::class_names).unwrap_or_default()
    }

    /// Whether predictions of some labels are mapped to their units.
    fn has_units(&self) -> bool {
        let outputs = self.outputs.iter().map(|(_, columns)| columns);
        outputs.chain([&self.targets]).any(|columns| !self.inverses_of(columns).is_empty())
    }

    /// What is used of it, in words.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let columns_are = |count: usize| if count == 1 { "1 column is".to_string() } else { format!("{count} columns are") };
        let encoded = self.columns.iter().filter(|column| column.categories().is_some()).count();
        if encoded > 0 {
            notes.push(format!("{} encoded with the categories and vocabularies of the training rows", columns_are(encoded)));
        }
        // Categories, Booleans and classes are not.
        let scaled = self.scales.iter().filter(|scale| (scale.mean, scale.std) != (0.0, 1.0)).count();
        if scaled > 0 {
            notes.push(format!("{} standardized with the mean and deviation of the training rows", columns_are(scaled)));
        }
        if self.has_units() {
            notes.push("predictions are in the units of the file; losses are of standardized values".to_string());
        }
        notes
    }
}

/// The memory of writing a column: as it is, as a JSON document and as text.
fn column_bytes(column: &FittedColumn) -> u64 {
    let of = |texts: &[String]| {
        texts.iter().map(|text| 2 * ((text.len() as u64 + 8).next_multiple_of(16).max(32) + 56) + 2 * text.len() as u64 + 8).sum::<u64>()
    };
    600 + match &column.encoding {
        Encoding::Lookup { vocabulary, .. } => of(vocabulary),
        Encoding::Vectorize { vocabulary, idf, .. } => of(vocabulary) + 100 * idf.len() as u64,
        Encoding::Discretize { boundaries, .. } => 100 * boundaries.len() as u64,
        Encoding::BytePair { pairs, .. } => 400 * pairs.len() as u64,
        _ => 0,
    }
}
