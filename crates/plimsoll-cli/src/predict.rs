//! `predict`: the predictions of a trained model for new data, or for rows of its run.

use crate::Command;
use crate::output::{print, say};
use crate::predict_files::{Format, Out, Table, beside};
use crate::trained::{TrainedArgs, name};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll::{Inputs, ModelColumns, OutputKind, Prediction, Predictor, Preprocessing};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the predictions of a trained model, for new data or rows of the run
#[derive(Args)]
pub struct Predict {
    #[command(flatten)]
    trained: TrainedArgs,

    /// New data without labels: images, folders of images, a table, a .npy array, or - for standard input (a table, an
    /// array, an image, or names of images) [default: the run's validation rows]
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,

    /// Like INPUT
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,

    /// Output: .csv with class and probability of every row, .npy with all outputs, or a folder for masks as PNG
    /// [default: the table on standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Most likely classes per row
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    top: u64,
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

/// The predictions in files, written as they come.
fn predict(args: &Predict) -> Result<()> {
    let printed = Path::new("-");
    let path = args.out.as_deref().unwrap_or(printed);
    let format = match path.extension().and_then(|extension| extension.to_str()) {
        _ if path == printed && args.trained.json => bail!("the document of --json is on standard output; name a file with --out"),
        _ if path == printed => Format::Printed,
        Some("npy") => Format::Array,
        Some("csv") => Format::Table,
        None => Format::Masks,
        Some(_) => bail!("`--out {}` should end in .npy or .csv, or be a folder for masks", path.display()),
    };
    let inputs: Vec<PathBuf> = args.inputs.iter().chain(&args.input).cloned().collect();
    if !inputs.is_empty() && args.trained.rows.is_some() {
        bail!("`--rows` chooses rows of the run, and new data was given too; use one of the two");
    }
    let is_new = format == Format::Masks && !path.exists();
    // Tried before anything is computed. An earlier file stays until the new one is complete.
    let probe = match format {
        Format::Printed => Ok(None),
        Format::Masks => fs::create_dir_all(path).map(|()| Some(path.join(".writable"))),
        Format::Array | Format::Table => Ok(Some(beside(path))),
    };
    let probe = probe.and_then(|probe| probe.map(|probe| File::create(&probe).map(|_| probe)).transpose());
    let probe = probe.with_context(|| format!("cannot write {}", path.display()))?;
    let top = args.top as usize;
    let mut writer = Writer { path, format, top, first: "row", columns: ModelColumns::default(), folders: Vec::new(), outs: Vec::new() };
    let predicted = writer.run(args, inputs);
    let complete = predicted.and_then(|done| writer.outs.iter_mut().try_for_each(Out::finish).map(|()| done));
    let renamed = complete.and_then(|done| writer.outs.iter().try_for_each(Out::rename).map(|()| done));
    writer.outs.iter().flat_map(Out::temporary).chain(&probe).for_each(|path| drop(fs::remove_file(path)));
    if is_new && renamed.is_err() {
        // Only an empty folder is removed.
        _ = fs::remove_dir(path);
    }
    let (rows, fitted) = renamed?;
    if format == Format::Printed {
        return Ok(());
    }
    report(args, &rows, &writer.outs, &fitted)
}

/// Passes predictions to the files of the outputs.
struct Writer<'a> {
    path: &'a Path,
    format: Format,
    top: usize,
    /// The name of the first column of tables.
    first: &'static str,
    columns: ModelColumns,
    /// The folders among the inputs.
    folders: Vec<PathBuf>,
    outs: Vec<Out>,
}

impl Writer<'_> {
    /// Predicts; returns what the rows are, and the preprocessing.
    fn run(&mut self, args: &Predict, inputs: Vec<PathBuf>) -> Result<(String, Preprocessing)> {
        if inputs.is_empty() {
            let trained = args.trained.open()?;
            let (rows, fitted) = (name(trained.rows()).to_string(), trained.preprocessing().clone());
            self.columns = trained.columns().clone();
            trained.predict(|piece, kinds| self.add(piece, kinds, &|row| row.to_string()))?;
            return Ok((rows, fitted));
        }
        let mut model = Predictor::open(&args.trained.run, |config| args.trained.change(config))?;
        self.first = if model.reads_images() { "file" } else { "row" };
        let fitted = model.preprocessing().clone();
        self.columns = model.columns().clone();
        self.folders = inputs.iter().filter(|path| path.is_dir()).cloned().collect();
        let spooled = Spooled::of(inputs, model.reads_images())?;
        let predicted = model.predict_as(&Inputs::Files(spooled.paths.clone()), |piece, row_name, kinds| {
            self.add(piece, kinds, &|row| match &spooled.file {
                // The name of the temporary file says nothing.
                Some(file) if row_name(row) == file.display().to_string() => "-".to_string(),
                _ => row_name(row),
            });
        });
        predicted.map_err(|error| spooled.named(error.into()))?;
        Ok(("new".to_string(), fitted))
    }

    fn add(&mut self, piece: &Prediction<'_>, kinds: &[OutputKind], row_name: &dyn Fn(u64) -> String) {
        if self.outs.is_empty() {
            let several = piece.outputs.len() > 1;
            let outs = piece.outputs.iter().zip(kinds).map(|(output, kind)| {
                let table =
                    Table { first: self.first, columns: self.columns.of(&output.name), top: self.top, folders: self.folders.clone() };
                Out::new(self.path, output, *kind, several, self.format, table)
            });
            self.outs.extend(outs);
        }
        self.outs.iter_mut().zip(piece.outputs).for_each(|(out, output)| out.add(output, piece.first_row, row_name));
    }
}

fn report(args: &Predict, rows: &str, outs: &[Out], fitted: &Preprocessing) -> Result<()> {
    if args.trained.json {
        let outputs: Vec<Value> =
            outs.iter().map(|out| json!({ "out": out.path, "name": out.name, "count": out.rows, "shape": out.shape })).collect();
        print(&json!({ "rows": rows, "outputs": outputs, "preprocessing": fitted }))?;
    } else {
        for out in outs {
            say(&format!("{} predictions for {rows} rows, {:?} numbers each: {}\n", out.rows, out.shape, out.path.display()))?;
        }
        fitted.notes().iter().try_for_each(|note| say(&format!("  {note}\n")))?;
    }
    Ok(())
}

/// Inputs, with standard input in a temporary file.
struct Spooled {
    paths: Vec<PathBuf>,
    /// Removed at the end.
    file: Option<PathBuf>,
}

impl Spooled {
    /// An error that names standard input instead of the temporary file.
    fn named(&self, error: anyhow::Error) -> anyhow::Error {
        match self.file.as_ref().map(|file| file.display().to_string()) {
            Some(file) if error.to_string().contains(&file) => anyhow::anyhow!(error.to_string().replace(&file, "standard input")),
            _ => error,
        }
    }

    /// A text is a list of files for a model that reads images.
    fn of(paths: Vec<PathBuf>, images: bool) -> Result<Spooled> {
        let is_standard = |path: &PathBuf| path.as_os_str() == "-";
        if !paths.iter().any(is_standard) {
            return Ok(Spooled { paths, file: None });
        }
        if paths.len() > 1 {
            bail!("standard input (-) cannot be combined with other inputs");
        }
        let path = std::env::temp_dir().join(format!("plimsoll-predict-{}", std::process::id()));
        let mut spooled = Spooled { paths: vec![path.clone()], file: Some(path.clone()) };
        let copied = File::options().read(true).write(true).create_new(true).open(&path).and_then(|mut file| {
            let bytes = io::copy(&mut io::stdin().lock(), &mut file)?;
            file.flush()?;
            file.rewind()?;
            let mut head = [0; 8];
            let count = file.read(&mut head)?;
            Ok((file, bytes, head, count))
        });
        let (mut file, bytes, head, count) = copied.with_context(|| format!("cannot copy standard input to {}", path.display()))?;
        if bytes == 0 {
            bail!("standard input is empty; pipe a table, an array, an image or names of images into it");
        }
        match plimsoll::kind_of(&head[..count]) {
            // Names are read at once; what they name is not.
            plimsoll::FileKind::Text if images || is_list(&path)? => {
                let mut names = String::new();
                file.rewind()?;
                file.read_to_string(&mut names)?;
                spooled.paths = names.lines().map(str::trim).filter(|name| !name.is_empty()).map(PathBuf::from).collect();
            }
            plimsoll::FileKind::Array => {
                let named = path.with_extension("npy");
                fs::rename(&path, &named)?;
                (spooled.paths, spooled.file) = (vec![named.clone()], Some(named));
            }
            _ => {}
        }
        Ok(spooled)
    }
}

/// Whether the first line of a text is the name of an existing file.
fn is_list(path: &Path) -> Result<bool> {
    let mut start = String::new();
    File::open(path)?
        .take(1 << 16)
        .read_to_string(&mut start)
        .or_else(|error| if error.kind() == io::ErrorKind::InvalidData { Ok(0) } else { Err(error) })?;
    Ok(start.lines().map(str::trim).find(|line| !line.is_empty()).is_some_and(|line| Path::new(line).exists()))
}

impl Drop for Spooled {
    fn drop(&mut self) {
        self.file.iter().for_each(|file| _ = fs::remove_file(file));
    }
}
