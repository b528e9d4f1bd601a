//! Predictions by class over the validation data: a confusion matrix, and the rows with the largest loss.

use crate::thumbnails::{Thumbnails, write_base64};
use plimsoll_core::{Bytes, DType};
use plimsoll_data::{Schema, numbers};
use plimsoll_formats::json::{write_number, write_string};
use std::io::{self, Write};

/// Rows that are predicted, at most and at least.
const MAX_ROWS: u64 = 2000;
const MIN_ROWS: u64 = 64;

/// About how long that may take: a report must not take as long as the run.
const SECONDS: f64 = 0.4;

/// How many rows are predicted of a run that takes `row_s` predicted seconds per row to train; the forward pass is
/// about a third of that.
pub(crate) fn rows_to_count(row_s: f64) -> u64 {
    ((3.0 * SECONDS / row_s.max(1e-9)) as u64).clamp(MIN_ROWS, MAX_ROWS)
}

/// Classes of which every pair is counted, at most.
const MATRIX: usize = 64;

/// The rows with the largest loss that are shown.
const WORST: usize = 12;

/// Counts by class, and the worst rows.
pub(crate) struct Classes {
    names: Vec<String>,
    classes: usize,
    /// The columns of labels, and of images if there are any.
    label: usize,
    image: Option<usize>,
    dtype: DType,
    /// Rows with each label, and those of them that were predicted right.
    labels: Vec<u32>,
    right: Vec<u32>,
    /// By label, then prediction; empty if there are many classes.
    matrix: Vec<u32>,
    rows: u64,
    /// Every how manyth row was predicted.
    pub every: u64,
    worst: Vec<Worst>,
    thumbnails: Option<Thumbnails>,
}

/// A row and what was predicted for it.
struct Worst {
    row: u64,
    loss: f64,
    label: usize,
    predicted: usize,
    probability: f64,
    pixels: Vec<u8>,
}

/// Some rows with their predictions.
pub(crate) struct PredictedRows<'a> {
    pub first_row: u64,
    pub rows: usize,
    /// Values of the model's output, row after row.
    pub values: &'a [f32],
}

impl Classes {
    /// For a model with one value per class and a column of class labels; none otherwise.
    pub fn new(schema: &Schema, names: Vec<String>, label: usize, shape: &[usize]) -> Option<Classes> {
        let column = schema.columns().get(label)?;
        let [classes] = *shape else { return None };
        if classes < 2 || column.dtype != DType::I32 || column.elements() != 1 {
            return None;
        }
        let image = (0..schema.columns().len()).find(|index| Thumbnails::of(&schema.columns()[*index], &[]).is_some());
        let matrix = if classes <= MATRIX { vec![0; classes * classes] } else { Vec::new() };
        let (labels, right) = (vec![0; classes], vec![0; classes]);
        let worst = Vec::with_capacity(WORST + 1);
        Some(Classes {
            names,
            classes,
            label,
            image,
            dtype: column.dtype,
            labels,
            right,
            matrix,
            rows: 0,
            every: 1,
            worst,
            thumbnails: None,
        })
    }

    /// The memory it takes.
    pub fn footprint(&self) -> Bytes {
        let counts = 4 * (self.matrix.len() + 2 * self.classes);
        Bytes((counts + (WORST + 1) * (96 * 96 * 3 + 64)) as u64)
    }

    /// Counts rows whose columns `column` gives, by number.
    pub fn add<'a>(&mut self, schema: &Schema, predicted: &PredictedRows<'_>, column: impl Fn(usize) -> &'a [u8]) {
        let labels: &[u8] = column(self.label);
        if let (Some(image), None) = (self.image, self.thumbnails) {
            self.thumbnails = Thumbnails::of(&schema.columns()[image], column(image));
        }
        for row in 0..predicted.rows {
            let label = numbers(self.dtype, &labels[4 * row..][..4]).next().unwrap_or(-1.0);
            // Ignored labels are outside the classes.
            let Some(label) = Some(label as usize).filter(|class| label >= 0.0 && *class < self.classes) else { continue };
            let values = &predicted.values[row * self.classes..][..self.classes];
            let best = (0..self.classes).fold(0, |best, class| if values[class] > values[best] { class } else { best });
            self.rows += 1;
            self.labels[label] += 1;
            self.right[label] += u32::from(best == label);
            if !self.matrix.is_empty() {
                self.matrix[label * self.classes + best] += 1;
            }
            let loss = -probability(values, label).max(1e-30).ln();
            if self.worst.len() == WORST && self.worst[WORST - 1].loss >= loss {
                continue;
            }
            let pixels = match (&self.thumbnails, self.image) {
                (Some(thumbnails), Some(image)) => thumbnails.pixels(column(image), row).collect(),
                _ => Vec::new(),
            };
            let at = self.worst.partition_point(|other| other.loss >= loss);
            let row = (predicted.first_row + row as u64) * self.every;
            self.worst.insert(at, Worst { row, loss, label, predicted: best, probability: probability(values, best), pixels });
            self.worst.truncate(WORST);
        }
    }

    /// Writes the counts as one JSON document.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        write!(writer, "{{\"rows\":{},\"every\":{},\"names\":[", self.rows, self.every)?;
        for (i, name) in self.names.iter().enumerate() {
            writer.write_all(if i > 0 { b"," } else { b"" })?;
            write_string(writer, name)?;
        }
        writeln!(writer, "],\"labels\":{:?},\"right\":{:?},\"matrix\":{:?}}}", self.labels, self.right, self.matrix)
    }

    /// Writes the worst rows as one JSON document, with their thumbnails.
    pub fn write_worst(&self, writer: &mut impl Write, row_name: impl Fn(u64) -> Option<String>) -> io::Result<()> {
        writer.write_all(b"{")?;
        if let Some((height, width, channels)) = self.thumbnails.map(|thumbnails| thumbnails.shown()) {
            write!(writer, "\"image\":[{height},{width},{channels}],")?;
        }
        writer.write_all(b"\"rows\":[")?;
        for (i, worst) in self.worst.iter().enumerate() {
            let Worst { row, label, predicted, .. } = worst;
            writer.write_all(if i > 0 { b"," } else { b"" })?;
            write!(writer, "{{\"row\":{row},\"label\":{label},\"predicted\":{predicted},\"loss\":")?;
            write_number(writer, worst.loss)?;
            writer.write_all(b",\"probability\":")?;
            write_number(writer, worst.probability)?;
            if let Some(name) = row_name(*row) {
                writer.write_all(b",\"name\":")?;
                write_string(writer, &name)?;
            }
            if !worst.pixels.is_empty() {
                writer.write_all(b",\"pixels\":\"")?;
                write_base64(writer, worst.pixels.iter().copied())?;
                writer.write_all(b"\"")?;
            }
            writer.write_all(b"}")?;
        }
        writer.write_all(b"]}\n")
    }
}

/// The probability of a class. Outputs that are no probabilities yet are logits.
fn probability(values: &[f32], class: usize) -> f64 {
    let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
    if values.iter().all(|value| (0.0..=1.0).contains(value)) && (sum - 1.0).abs() < 1e-3 {
        return f64::from(values[class]);
    }
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |value: f32| f64::from(value - most).exp();
    weight(values[class]) / values.iter().map(|value| weight(*value)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_data::Column;
    use serde_json::Value;

    #[test]
    fn every_row_is_counted_once_and_the_worst_come_first() {
        let columns = vec![Column::new("x", DType::F32, [2, 2, 1]), Column::new("y", DType::I32, [])];
        let schema = Schema::new(columns).unwrap();
        let names = ["a", "b"].map(str::to_string).to_vec();
        let mut classes = Classes::new(&schema, names, 1, &[2]).unwrap();
        let labels: Vec<u8> = [0i32, 1, 1, -1].into_iter().flat_map(i32::to_ne_bytes).collect();
        let pixels: Vec<u8> = (0..16).flat_map(|i| (i as f32).to_ne_bytes()).collect();
        let values = [4.0, 0.0, 3.0, 0.0, 0.0, 2.0, 9.0, 9.0];
        let predicted = PredictedRows { first_row: 10, rows: 4, values: &values };
        classes.add(&schema, &predicted, |index| if index == 1 { &labels } else { &pixels });
        let (mut text, mut rows) = (Vec::new(), Vec::new());
        classes.write(&mut text).unwrap();
        classes.write_worst(&mut rows, |row| Some(format!("row {row}"))).unwrap();
        let [document, rows] = [text, rows].map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        assert_eq!(document["rows"], 3, "an ignored label is not counted");
        assert_eq!(document["matrix"], serde_json::json!([1, 0, 1, 1]));
        assert_eq!(document["right"], serde_json::json!([1, 1]));
        let worst = &rows["rows"][0];
        assert_eq!((&worst["row"], &worst["label"], &worst["predicted"]), (&11.into(), &1.into(), &0.into()));
        assert_eq!(worst["name"], "row 11");
        assert!(worst["pixels"].as_str().unwrap().len() == 8);
        let mut sampled = Classes { every: 3, ..Classes::new(&schema, vec![], 1, &[2]).unwrap() };
        sampled.add(&schema, &predicted, |index| if index == 1 { &labels } else { &pixels });
        assert_eq!(sampled.worst[0].row, 33, "every third row was predicted");
        assert!(Classes::new(&schema, vec![], 0, &[2]).is_none(), "labels are integers");
        assert!(Classes::new(&schema, vec![], 1, &[4, 2]).is_none(), "one prediction per row");
    }
}
