//! What a run reads of its data, what it leaves out, and how rows are held out: a few lines, and one JSON object.

use super::RunSpec;
use crate::error::Result;
use crate::image_scan::scan_images;
use plimsoll_data::Dataset;
use plimsoll_data::source::ImageScan;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How validation rows were chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum HeldOut {
    /// They were given, or there are none.
    #[default]
    Given,
    /// A random share of the rows, stratified, chosen by a seed of its own.
    Random {
        /// The share.
        share: f64,
        /// The seed.
        seed: u64,
    },
    /// The last rows, in the order of time.
    Last {
        /// The share that is trained on.
        split: f64,
    },
    /// Another split, in words.
    Split(String),
}

impl HeldOut {
    fn text(&self) -> Option<String> {
        match self {
            HeldOut::Given => None,
            HeldOut::Random { share, seed } => Some(format!("{share} of the rows, drawn at random, stratified (holdout, seed {seed})")),
            HeldOut::Split(how) => Some(how.clone()),
            HeldOut::Last { split } => Some(format!("the rows after the first {split}, in time order (split)")),
        }
    }
}

/// How many headers of images were read, and what the largest image takes.
fn scan_text(scan: &ImageScan) -> String {
    let largest = format!("the largest takes {} to decode", scan.largest());
    match scan.is_complete() {
        true => format!("{} headers read; {largest}", scan.images),
        false if scan.images == u64::MAX => format!("the first {} headers read; {largest}", scan.scanned),
        false => format!("{} of {} headers read, a random sample; {largest}", scan.scanned, scan.images),
    }
}

/// Layers that are named in a line.
const NAMED: usize = 3;

impl RunSpec {
    /// Which layers are trained for int8 and which are not, and why.
    fn training_notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = Vec::new();
        if self.model.int8_kernels() > 0 {
            notes.push(("int8", format!("{} layers with int8 weights", self.model.int8_kernels())));
        }
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (layer, why) in self.model.float_layers() {
            reasons.entry(why).or_default().push(layer);
        }
        for (why, layers) in reasons {
            let more = if layers.len() > NAMED { format!(" and {} more", layers.len() - NAMED) } else { String::new() };
            notes.push(("single", format!("{}{more}: {why}", layers[..layers.len().min(NAMED)].join(", "))));
        }
        notes
    }

    /// Lines about the data, each with a label. They are few and of limited length.
    pub fn data_notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = self.data.file_use().lines();
        notes.extend(self.training_notes());
        notes.extend(self.data.skipped_files().map(|files| ("not read", files)));
        // Datasets that cannot be planned are reported when they are.
        notes.extend(scan_images(&self.data).ok().flatten().map(|scan| ("images", scan_text(&scan))));
        notes.extend(self.held_out.text().map(|text| ("validation", text)));
        notes.extend(self.test.as_ref().and_then(Dataset::size).map(|rows| ("test", format!("{rows} rows, set aside"))));
        notes
    }

    /// Warnings about the selection of rows.
    ///
    /// # Errors
    /// If labels cannot be read.
    pub fn data_warnings(&self) -> Result<Vec<String>> {
        Ok(self.data.warnings()?)
    }

    /// The same as one JSON object, with all names.
    pub fn data_report(&self) -> Value {
        let of = |data: &Dataset| {
            let read = data.file_use();
            let unused: Vec<Value> = read.unused.iter().map(|(name, reason)| json!({ "name": name, "reason": reason })).collect();
            json!({
                "pipeline": data.describe(),
                "rows": data.size(),
                "used": read.used,
                "targets": read.targets,
                "unused": unused,
                "skipped_files": data.skipped_files(),
                "images": scan_images(data).ok().flatten().map(|scan| {
                    json!({ "files": (scan.images < u64::MAX).then_some(scan.images), "scanned": scan.scanned, "largest_bytes": scan.largest().0 })
                }),
            })
        };
        json!({
            "training": of(&self.data),
            "validation": self.fit.validation.as_ref().map(of),
            "test": self.test.as_ref().map(of),
            "holdout": match &self.held_out {
                HeldOut::Given => Value::Null,
                HeldOut::Random { share, seed } => json!({ "share": share, "seed": seed, "rows": "random" }),
                HeldOut::Split(how) => json!({ "rows": how }),
                HeldOut::Last { split } => json!({ "split": split, "rows": "last" }),
            },
        })
    }
}
