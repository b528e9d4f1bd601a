//! The first rows of a pipeline, as numbers and as a contact sheet of images.

use super::Pipeline;
use crate::error::{Error, Result};
use plimsoll_core::DType;
use plimsoll_data::source::FileUse;
use plimsoll_data::{Column, Extent, Schema, numbers};
use serde_json::{Value, json};
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// The first rows of a pipeline, as a consumer gets them.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The pipeline in words.
    pub pipeline: String,
    /// The columns of a batch.
    pub schema: Schema,
    /// Rows of an epoch, where that is known beforehand.
    pub rows: Option<u64>,
    /// Batches of an epoch, where that is known beforehand.
    pub batches: Option<u64>,
    /// An upper bound of the rows of an epoch, where there is one.
    pub at_most: Option<u64>,
    /// The names of the classes, if the source knows them.
    pub classes: Vec<String>,
    /// Which columns of its file are read, and which are not.
    pub file_use: FileUse,
    /// Files beside those of the source that are not read, in words.
    pub skipped_files: Option<String>,
    /// The elements of the sampled rows, column by column.
    values: Vec<Vec<f32>>,
    sampled: usize,
}

/// The largest side of an image on the contact sheet, which small images are enlarged towards.
const TILE: usize = 128;

/// Images side by side on it.
const ACROSS: usize = 4;

/// Classes that are named on the screen; JSON has them all.
const MAX_CLASSES: usize = 20;

impl Pipeline {
    /// Reads the first `count` rows; 0 reads none and describes the columns.
    pub fn sample(&self, count: usize) -> Result<Sample> {
        let data = self.data.clone().rebatch(count.max(1));
        let schema = data.output_schema()?;
        let (mut values, mut sampled) = (vec![Vec::new(); schema.columns().len()], 0);
        if count > 0 {
            let mut feed = self.plan(&data)?.start(&data, 1)?;
            if let Some(batch) = feed.next()? {
                sampled = batch.rows;
                for (index, column) in schema.columns().iter().enumerate() {
                    values[index] = numbers(column.dtype, batch.column(index)).map(|number| number as f32).collect();
                }
            }
        }
        Ok(Sample {
            pipeline: self.data.describe(),
            schema,
            rows: self.data.size(),
            batches: self.data.size().map(|_| self.data.batches()),
            at_most: Some(self.data.len()).filter(|rows| *rows < u64::MAX),
            classes: self.data.class_names(),
            file_use: self.data.file_use(),
            skipped_files: self.data.skipped_files(),
            values,
            sampled,
        })
    }
}

impl Sample {
    /// The elements of a column of one row.
    pub fn values(&self, column: usize, row: usize) -> &[f32] {
        self.row(column, row)
    }

    /// The elements of one row. Rows padded to the longest of the batch are shorter than the declared shape.
    fn row(&self, column: usize, row: usize) -> &[f32] {
        let elements = self.values[column].len() / self.sampled.max(1);
        &self.values[column][row * elements..][..elements]
    }

    /// A row of one column in words: the number itself, or the range of several.
    fn cell(&self, column: usize, row: usize) -> String {
        let values = self.row(column, row);
        match values {
            [label] if self.schema.columns()[column].dtype == DType::I32 => match self.classes.get(*label as usize) {
                Some(class) => format!("{label} ({class})"),
                None => format!("{label}"),
            },
            [value] => format!("{value}"),
            [] => "empty".to_string(),
            many => {
                let (min, max) = range(many);
                let mean = many.iter().map(|value| f64::from(*value)).sum::<f64>() / many.len() as f64;
                format!("{min:.3} … {max:.3}, mean {mean:.3}")
            }
        }
    }

    /// All of it as one JSON object.
    pub fn to_json(&self) -> Value {
        let columns =
            self.schema.columns().iter().map(
                |column| json!({ "name": column.name, "dtype": column.dtype, "shape": column.shape, "row_bytes": column.row_bytes().0 }),
            );
        let samples = (0..self.sampled).map(|row| {
            let cells = self.schema.columns().iter().enumerate().map(|(index, column)| {
                let (min, max) = range(self.row(index, row));
                (column.name.clone(), json!({ "min": min, "max": max }))
            });
            Value::Object(cells.collect())
        });
        json!({
            "pipeline": self.pipeline,
            "rows": self.rows,
            "batches": self.batches,
            "at_most_rows": self.at_most,
            "row_bytes": self.schema.row_bytes().0,
            "columns": columns.collect::<Vec<_>>(),
            "classes": self.classes,
            "used": self.file_use.used,
            "targets": self.file_use.targets,
            "unused": self.file_use.unused.iter().map(|(name, reason)| json!({ "name": name, "reason": reason })).collect::<Vec<_>>(),
            "passed_over": self.skipped_files,
            "samples": samples.collect::<Vec<_>>(),
        })
    }

    /// Writes the images of the first image column as one PNG.
    pub fn write_contact_sheet(&self, path: &Path) -> Result<()> {
        let is_image = |column: &Column| column.extent == Extent::Fixed && matches!(column.shape[..], [_, _, 1 | 3]);
        let Some(index) = self.schema.columns().iter().position(is_image).filter(|_| self.sampled > 0) else {
            return Err(Error::Config("there are no images to draw (columns of shape [height, width, 1 or 3])".to_string()));
        };
        let shape = &self.schema.columns()[index].shape;
        let (height, width, channels) = (shape[0], shape[1], shape[2]);
        // Large images are reduced; small ones are enlarged by a whole factor, so that their pixels can be seen.
        let factor = (TILE / height.max(width)).max(1);
        let (tile_height, tile_width) = ((height * factor).min(TILE), (width * factor).min(TILE));
        let down = self.sampled.div_ceil(ACROSS);
        let across = self.sampled.min(ACROSS);
        let mut sheet = vec![255u8; down * tile_height * across * tile_width * 3];
        // Whatever the scale of the images, the smallest value is black and the largest white.
        let (min, max) = range(&self.values[index]);
        let span = (max - min).max(f32::MIN_POSITIVE);
        for tile in 0..self.sampled {
            let image = self.row(index, tile);
            for y in 0..tile_height {
                let from = (y * height / tile_height) * width;
                let to = ((tile / ACROSS * tile_height + y) * across + tile % ACROSS) * tile_width;
                for x in 0..tile_width {
                    let pixel = &image[(from + x * width / tile_width) * channels..][..channels];
                    for channel in 0..3 {
                        let value = (pixel[channel % channels] - min) / span;
                        sheet[(to + x) * 3 + channel] = (value * 255.0).round() as u8;
                    }
                }
            }
        }
        let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let file = BufWriter::new(File::create(path).map_err(io)?);
        let mut encoder = png::Encoder::new(file, (across * tile_width) as u32, (down * tile_height) as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&sheet));
        written.map_err(|error| io(error.into()))
    }
}

fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &value| (min.min(value), max.max(value)))
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.pipeline)?;
        let rows = match (self.rows.zip(self.batches), self.at_most) {
            (Some((rows, batches)), _) => format!("{rows} in {batches} batches"),
            (None, Some(max)) => format!("at most {max}"),
            (None, None) => "unknown".to_string(),
        };
        writeln!(f, "  rows      {rows}, {} each", self.schema.row_bytes())?;
        writeln!(f, "  columns   {}", self.schema)?;
        if !self.classes.is_empty() {
            let named = self.classes.len().min(MAX_CLASSES);
            let more = match self.classes.len() - named {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            writeln!(f, "  classes   {}{more}", self.classes[..named].join(", "))?;
        }
        for (label, line) in self.file_use.lines() {
            writeln!(f, "  {label:<9} {line}")?;
        }
        if let Some(others) = &self.skipped_files {
            writeln!(f, "  not read  {others}")?;
        }
        if self.sampled > 0 {
            write!(f, "  first rows")?;
        }
        for row in 0..self.sampled {
            let cells =
                self.schema.columns().iter().enumerate().map(|(index, column)| format!("{}: {}", column.name, self.cell(index, row)));
            write!(f, "\n    {}", cells.collect::<Vec<_>>().join(" · "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_classes_stay_on_one_screen() {
        let sample = |classes: usize| Sample {
            pipeline: "images".to_string(),
            schema: Schema::new(vec![Column::new("y", DType::I32, [])]).expect("one column"),
            rows: Some(classes as u64),
            batches: Some(1),
            at_most: Some(classes as u64),
            classes: (0..classes).map(|class| format!("c{class}")).collect(),
            values: Vec::new(),
            file_use: FileUse::default(),
            skipped_files: None,
            sampled: 0,
        };
        let line = |classes| sample(classes).to_string().lines().find_map(|line| line.strip_prefix("  classes   ").map(str::to_string));
        assert_eq!(line(3).as_deref(), Some("c0, c1, c2"));
        let many = line(1000).expect("a line of classes");
        assert!(many.starts_with("c0, c1, ") && many.ends_with("c18, c19 and 980 more"), "{many}");
        assert_eq!(sample(1000).to_json()["classes"].as_array().map(Vec::len), Some(1000));
    }
}
