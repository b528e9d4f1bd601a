//! `evaluate` and `predict`: what a run trained, used.

use crate::output::{create_binary, print, say};
use crate::run_args::whole;
use crate::{Command, text};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll::{Bytes, Predicted, Preprocessing, Rows, Trained};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
struct TrainedArgs {
    /// Run folder
    run: PathBuf,

    /// Rows to use: training or held-out (validation) [default: held-out, or training if there are none]
    #[arg(long, value_name = "WHICH", value_parser = ["training", "held-out"])]
    rows: Option<String>,

    /// Memory budget of the process [default: that of the run]
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<Bytes>,

    /// Device to run on [default: that of the run]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Override a key of the run's configuration, such as data.validation.path=FOLDER; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Evaluate the trained model of a run
#[derive(Args)]
pub struct Evaluate {
    #[command(flatten)]
    trained: TrainedArgs,
}

/// Write the predictions of the trained model of a run
#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    trained: TrainedArgs,

    /// Output file: .npy for an array, .csv for one line per row
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl Command for Evaluate {
    const NAME: &'static str = "evaluate";

    fn run(&self) -> Result<ExitCode> {
        evaluate(&self.trained).map(|()| ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.trained.json
    }
}

impl Command for Predict {
    const NAME: &'static str = "predict";

    fn run(&self) -> Result<ExitCode> {
        predict(self).map(|()| ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.trained.json
    }
}

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
fn evaluate(args: &TrainedArgs) -> Result<()> {
    let mut trained = open(args)?;
    let scores = trained.evaluate()?;
    if args.json {
        let mut document: Map<String, Value> = scores.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
        document.insert("rows".to_string(), json!(name(trained.rows())));
        document.insert("preprocessing".to_string(), json!(trained.preprocessing()));
        print(&Value::Object(document))?;
    } else {
        say(&format!("{} rows: {}\n", name(trained.rows()), text::scores(&scores)))?;
        trained.preprocessing().notes().iter().try_for_each(|note| say(&format!("  {note}\n")))?;
    }
    Ok(())
}

/// The predictions in a file, written as they come.
fn predict(args: &Predict) -> Result<()> {
    let path = &args.out;
    let table = match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => false,
        Some("csv") => true,
        _ => bail!("`--out {}` should end in .npy or .csv", path.display()),
    };
    let trained = open(&args.trained)?;
    let (rows, fitted) = (trained.rows(), trained.preprocessing().clone());
    // Tried before anything is computed.
    if table {
        File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    } else {
        create_binary(path)?;
    }
    let mut outs: Vec<Out> = Vec::new();
    let predicted = trained.predict(|piece| {
        if outs.is_empty() {
            outs.extend(piece.outputs.iter().map(|output| Out::new(path, output, piece.outputs.len() > 1, table)));
        }
        outs.iter_mut().zip(piece.outputs).for_each(|(out, output)| out.add(output));
    });
    let finished = predicted.map_err(anyhow::Error::from).and_then(|()| outs.iter_mut().try_for_each(Out::finish));
    if finished.is_err() || outs.len() > 1 {
        let _ = std::fs::remove_file(path);
    }
    if let Err(error) = finished {
        // Half a file would pass for a whole one.
        outs.iter().for_each(|out| drop(std::fs::remove_file(&out.path)));
        return Err(error);
    }
    report(args, rows, &outs, &fitted)
}

fn report(args: &Predict, rows: Rows, outs: &[Out], fitted: &Preprocessing) -> Result<()> {
    if args.trained.json {
        let outputs: Vec<Value> =
            outs.iter().map(|out| json!({ "out": out.path, "name": out.name, "count": out.rows, "shape": out.shape })).collect();
        print(&json!({ "rows": name(rows), "outputs": outputs, "preprocessing": fitted }))?;
    } else {
        for out in outs {
            say(&format!("{} predictions for {} rows, {:?} numbers each: {}\n", out.rows, name(rows), out.shape, out.path.display()))?;
        }
        fitted.notes().iter().try_for_each(|note| say(&format!("  {note}\n")))?;
    }
    Ok(())
}

/// Where one result of the model goes.
struct Out {
    name: String,
    path: PathBuf,
    file: Option<BufWriter<File>>,
    table: bool,
    rows: u64,
    shape: Vec<usize>,
    failed: Option<std::io::Error>,
}

impl Out {
    /// An array's header, whatever its number of rows.
    const HEADER: usize = 128;

    /// A file, with the result's name in its own if there are several.
    fn new(path: &Path, output: &Predicted, several: bool, table: bool) -> Out {
        let path = match several {
            false => path.to_path_buf(),
            true => {
                let (stem, extension) = (path.file_stem().unwrap_or_default(), if table { "csv" } else { "npy" });
                path.with_file_name(format!("{}-{}.{extension}", stem.to_string_lossy(), output.name.replace('/', "-")))
            }
        };
        let mut out = Out { name: output.name.clone(), file: None, path, table, rows: 0, shape: output.shape.clone(), failed: None };
        match File::create(&out.path) {
            Ok(file) => out.file = Some(BufWriter::new(file)),
            Err(error) => out.failed = Some(error),
        }
        out
    }

    /// After an error nothing more is written; it is reported at the end.
    fn add(&mut self, output: &Predicted) {
        if let (None, Some(mut file)) = (&self.failed, self.file.take()) {
            self.failed = self.write(&mut file, &output.values).err();
            self.file = Some(file);
        }
    }

    fn write(&mut self, file: &mut BufWriter<File>, values: &[f32]) -> std::io::Result<()> {
        let per_row: usize = self.shape.iter().product();
        if self.rows == 0 {
            if self.table {
                let columns: String = (0..per_row).map(|i| format!(",y{i}")).collect();
                writeln!(file, "row,largest{columns}")?;
            } else {
                file.write_all(&[0; Out::HEADER])?;
            }
        }
        for row in values.chunks_exact(per_row.max(1)) {
            if self.table {
                let largest = (0..per_row).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
                write!(file, "{},{largest}", self.rows)?;
                row.iter().try_for_each(|value| write!(file, ",{value}"))?;
                writeln!(file)?;
            } else {
                row.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))?;
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// The header of an array says how many rows there are, so it comes last.
    fn finish(&mut self) -> Result<()> {
        match (self.failed.take(), self.file.take()) {
            (None, Some(mut file)) => self.end(&mut file),
            (failed, _) => failed.map_or(Ok(()), Err),
        }
        .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn end(&self, file: &mut BufWriter<File>) -> std::io::Result<()> {
        if !self.table {
            let shape: String = self.shape.iter().map(|size| format!("{size}, ")).collect();
            let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {shape}), }}", self.rows);
            let length = Out::HEADER - 10;
            let mut header = b"\x93NUMPY\x01\x00".to_vec();
            header.extend((length as u16).to_le_bytes());
            header.extend(format!("{text:<width$}\n", width = length - 1).bytes());
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
        }
        file.flush()
    }
}
