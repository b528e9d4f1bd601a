//! `evaluate` and `predict`: what a run learnt, used.

use crate::args::{PredictArgs, TrainedArgs};
use crate::{print, say, text, whole};
use anyhow::{Context, Result, bail};
use plimsoll::{Prediction, Rows, Trained};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

fn open(args: &TrainedArgs) -> Result<Trained> {
    let rows = args.rows.as_deref().map(|rows| if rows == "training" { Rows::Training } else { Rows::HeldOut });
    let line = args.host_memory.map(|line| whole("budget.host", line.0)).transpose()?;
    let trained = Trained::open(&args.run, rows, |config| {
        if let Some(line) = line {
            config.set_value("budget.host", line)?;
        }
        if let Some(device) = &args.device {
            config.set_value("train.device", device.as_str())?;
        }
        args.set.iter().try_for_each(|assignment| config.set(assignment))
    })?;
    Ok(trained)
}

fn name(rows: Rows) -> &'static str {
    match rows {
        Rows::Training => "training",
        Rows::HeldOut => "held-out",
    }
}

/// Loss and metrics of the run's rows.
pub fn evaluate(args: &TrainedArgs) -> Result<()> {
    let mut trained = open(args)?;
    let scores = trained.evaluate()?;
    if args.json {
        let mut document: Map<String, Value> = scores.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
        document.insert("rows".to_string(), json!(name(trained.rows())));
        print(&Value::Object(document));
    } else {
        say(&format!("{} rows: {}\n", name(trained.rows()), text::scores(&scores)));
    }
    Ok(())
}

/// The predictions in a file, written as they come.
pub fn predict(args: &PredictArgs) -> Result<()> {
    let path = &args.out;
    let table = match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => false,
        Some("csv") => true,
        _ => bail!("`--out {}` should end in .npy or .csv", path.display()),
    };
    let trained = open(&args.trained)?;
    let rows = trained.rows();
    let unwritable = || format!("cannot write {}", path.display());
    let mut out = Out { file: BufWriter::new(File::create(path).with_context(unwritable)?), table, rows: 0, shape: vec![], failed: None };
    let predicted = trained.predict(|piece| out.add(piece)).map_err(anyhow::Error::from);
    if let Err(error) = predicted.and_then(|()| out.finish().with_context(unwritable)) {
        // Half a file would pass for a whole one.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    report(args, path, rows, &out);
    Ok(())
}

fn report(args: &PredictArgs, path: &Path, rows: Rows, out: &Out) {
    if args.trained.json {
        print(&json!({ "out": path, "rows": name(rows), "count": out.rows, "shape": out.shape }));
    } else {
        say(&format!("{} predictions for {} rows, {:?} numbers each: {}\n", out.rows, name(rows), out.shape, path.display()));
    }
}

/// Where predictions go.
struct Out {
    file: BufWriter<File>,
    table: bool,
    rows: u64,
    shape: Vec<usize>,
    failed: Option<std::io::Error>,
}

impl Out {
    /// An array's header, whatever its number of rows.
    const HEADER: usize = 128;

    /// After an error nothing more is written; it is told at the end.
    fn add(&mut self, piece: &Prediction<'_>) {
        if self.failed.is_none() {
            self.failed = self.write(piece).err();
        }
    }

    fn write(&mut self, piece: &Prediction<'_>) -> std::io::Result<()> {
        let per_row: usize = piece.shape.iter().product();
        if self.rows == 0 {
            self.shape = piece.shape.to_vec();
            if self.table {
                let columns: String = (0..per_row).map(|i| format!(",y{i}")).collect();
                writeln!(self.file, "row,largest{columns}")?;
            } else {
                self.file.write_all(&[0; Out::HEADER])?;
            }
        }
        for row in piece.values.chunks_exact(per_row.max(1)) {
            if self.table {
                let largest = (0..per_row).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
                write!(self.file, "{},{largest}", self.rows)?;
                row.iter().try_for_each(|value| write!(self.file, ",{value}"))?;
                writeln!(self.file)?;
            } else {
                row.iter().try_for_each(|value| self.file.write_all(&value.to_le_bytes()))?;
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// The header of an array says how many rows there are, so it comes last.
    fn finish(&mut self) -> std::io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if !self.table {
            let shape: String = self.shape.iter().map(|size| format!("{size}, ")).collect();
            let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {shape}), }}", self.rows);
            let length = Out::HEADER - 10;
            let mut header = b"\x93NUMPY\x01\x00".to_vec();
            header.extend((length as u16).to_le_bytes());
            header.extend(format!("{text:<width$}\n", width = length - 1).bytes());
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)?;
        }
        self.file.flush()
    }
}
