//! Rows of the first batch, as the model gets them.

use crate::thumbnails::Thumbnails;
use plimsoll_core::DType;
use plimsoll_data::{Batch, Schema, numbers};
use plimsoll_formats::json::{write_number, write_string};
use std::io::{self, Write};

/// How many rows are shown, and how many numbers of a column that is no image.
const ROWS: usize = 24;
const NUMBERS: usize = 8;

/// A batch with the names of its columns and classes.
pub(crate) struct Sampled<'a> {
    pub batch: &'a Batch<'a>,
    pub schema: &'a Schema,
    pub classes: &'a [String],
}

/// Writes the first rows of a batch as one JSON document: images as pixels in base64, other columns as their first
/// numbers.
pub(crate) fn write_samples(writer: &mut impl Write, sampled: &Sampled<'_>) -> io::Result<()> {
    let Sampled { batch, schema, classes } = sampled;
    let columns = schema.columns();
    writer.write_all(b"{\"classes\":[")?;
    // Names of many classes are not all shown.
    for (i, class) in classes.iter().take(1000).enumerate() {
        writer.write_all(if i > 0 { b"," } else { b"" })?;
        write_string(writer, class)?;
    }
    write!(writer, "],\"batch_rows\":{},\"columns\":[", batch.rows)?;
    for (index, column) in columns.iter().enumerate() {
        writer.write_all(if index > 0 { b",{\"name\":" } else { b"{\"name\":" })?;
        write_string(writer, &column.name)?;
        let (shape, label) = (&column.shape, column.dtype == DType::I32 && column.elements() == 1);
        write!(writer, ",\"dtype\":\"{}\",\"shape\":{shape:?},\"label\":{label}", column.dtype)?;
        let thumbnails = Thumbnails::of(column, batch.column(index));
        if let Some((height, width, channels)) = thumbnails.map(|thumbnails| thumbnails.shown()) {
            write!(writer, ",\"image\":[{height},{width},{channels}]")?;
        }
        writer.write_all(b",\"rows\":[")?;
        for row in 0..batch.rows.min(ROWS) {
            writer.write_all(if row > 0 { b"," } else { b"" })?;
            match &thumbnails {
                Some(thumbnails) => {
                    writer.write_all(b"\"")?;
                    thumbnails.write(writer, batch.column(index), row)?;
                    writer.write_all(b"\"")?;
                }
                None => {
                    let bytes = batch.column(index);
                    let bytes = &bytes[row * (bytes.len() / batch.rows)..][..bytes.len() / batch.rows];
                    writer.write_all(b"[")?;
                    for (i, number) in numbers(column.dtype, bytes).take(NUMBERS).enumerate() {
                        writer.write_all(if i > 0 { b"," } else { b"" })?;
                        write_number(writer, number)?;
                    }
                    writer.write_all(b"]")?;
                }
            }
        }
        writer.write_all(b"]}")?;
    }
    writer.write_all(b"]}\n")
}
