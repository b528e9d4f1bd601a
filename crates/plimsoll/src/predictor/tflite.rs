//! Predictions of TFLite files: constants are held once, rows are computed in parallel, and the memory of both is
//! planned.

use crate::config::{Config, InputKind};
use crate::error::{Error, Result};
use crate::output_kind::OutputKind;
use crate::pipeline::Pipeline;
use crate::preprocessing::Preprocessing;
use crate::system;
use crate::tflite::{self, FITTED, Interpreter, OUTPUTS, PREPARATION};
use crate::trainer::Predicted;
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;
use plimsoll_data::{Dataset, RandomSpec, Schema};
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{TfliteModel, TfliteTensor};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stack of a computing thread.
const STACK: usize = 256 << 10;

/// Rows that every thread computes before results are handed over.
const ROWS_PER_THREAD: usize = 4;

/// A TFLite file, ready to predict.
pub(crate) struct TfliteFile {
    name: String,
    model: TfliteModel,
}

/// The memory of predictions with a TFLite file: what is held by whom, within a budget.
#[derive(Clone, Debug)]
pub struct TflitePlan {
    /// The file.
    pub name: String,
    /// The budget of the process.
    pub budget: Bytes,
    /// Bytes by owner, the process included.
    pub owners: Vec<(Owner, Bytes)>,
    /// Threads that compute a row each.
    pub threads: usize,
    /// Operators of the file.
    pub operators: usize,
}

impl TflitePlan {
    /// The plan of predictions with a file, for rows of the shapes that it takes.
    ///
    /// # Errors
    /// If the file cannot be run, or the budget is too small.
    pub fn of(path: &Path, budget: Option<Bytes>) -> Result<TflitePlan> {
        TfliteFile::open(path)?.plan(budget)
    }

    /// Whether a path is a TFLite file, by its name.
    pub fn is_for(path: &Path) -> bool {
        is_tflite(path)
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        self.owners.iter().fold(Bytes::ZERO, |sum, (_, size)| sum + *size)
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let owners = self.owners.iter().map(|(owner, size)| (owner.to_string(), json!(size.0))).collect();
        json!({
            "feasible": true,
            "model": self.name,
            "operators": self.operators,
            "threads": self.threads,
            "host_budget_bytes": self.budget.0,
            "peak_bytes": { "host": self.total().0, "device": 0 },
            "by_owner": Value::Object(owners),
        })
    }
}

impl fmt::Display for TflitePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.threads == 1 { "1 thread".to_string() } else { format!("{} threads", self.threads) };
        writeln!(f, "plan · {} · {} operators · {threads}\n", self.name, self.operators)?;
        writeln!(f, "  host budget    {} of {}", self.total(), self.budget)?;
        let mut owners: Vec<_> = self.owners.iter().filter(|(_, size)| *size > Bytes::ZERO).collect();
        owners.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        owners.iter().try_for_each(|(owner, size)| writeln!(f, "    {:<20} {size:>12}", owner.to_string()))
    }
}

impl TfliteFile {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read, or has operators that are not run: all are listed.
    pub fn open(path: &Path) -> Result<TfliteFile> {
        let model = tflite::open(path)?;
        let about = |what: String| Error::Config(format!("{} cannot be run: {what}", path.display()));
        tflite::check(&model).map_err(about)?;
        Ok(TfliteFile { name: path.display().to_string(), model })
    }

    /// What was fitted to the training data of the model.
    pub fn fitted(&self) -> Preprocessing {
        self.text(FITTED).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The preprocessing of the model's data, if it was exported from a run.
    pub fn preparation(&self) -> Result<Option<Config>> {
        let Some(text) = self.text(PREPARATION) else { return Ok(None) };
        let mut config = Config::from_text(text)?;
        let fitted = self.fitted();
        if !fitted.is_empty() {
            config.set_preprocessing(fitted);
        }
        Ok(Some(config))
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.model.metadata.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// What the outputs mean: as stored, or classes where softmax is last.
    pub fn kinds(&self) -> Vec<OutputKind> {
        let stored: Option<Vec<OutputKind>> = self.text(OUTPUTS).and_then(|text| serde_json::from_str(text).ok());
        stored.filter(|kinds| kinds.len() == self.model.outputs.len()).unwrap_or_else(|| vec![OutputKind::Values; self.model.outputs.len()])
    }

    /// The size of images that the model takes, if its only input is one: height, width, channels.
    pub fn image(&self) -> Option<(usize, usize, usize)> {
        let [input] = self.model.inputs[..] else { return None };
        let tensor = &self.model.tensors[input as usize];
        match row_shape(tensor)[..] {
            [height, width, channels @ (1 | 3)] if matches!(tensor.dtype, DType::F32 | DType::I8) => Some((height, width, channels)),
            _ => None,
        }
    }

    /// What inputs of a file without preprocessing are.
    pub fn input_kind(&self) -> InputKind {
        if self.image().is_some() { InputKind::Images } else { InputKind::Arrays }
    }

    /// Random rows of its inputs, to plan without data.
    fn random_rows(&self) -> Result<Dataset> {
        let mut random = RandomSpec::new(1);
        for (at, input) in self.model.inputs.iter().enumerate() {
            let tensor = &self.model.tensors[*input as usize];
            random = match tensor.dtype {
                DType::I32 | DType::I64 => random.classes(self.input_name(at), row_shape(tensor), 2),
                _ => random.floats(self.input_name(at), row_shape(tensor)),
            };
        }
        Ok(Dataset::random(random)?.batch(1))
    }

    fn input_name(&self, at: usize) -> &str {
        match self.model.signature.as_ref().and_then(|(inputs, _)| inputs.get(at)) {
            Some(name) if !name.is_empty() => name,
            _ => &self.model.tensors[self.model.inputs[at] as usize].name,
        }
    }

    /// The memory of predictions for rows of its own shapes.
    pub fn plan(&self, budget: Option<Bytes>) -> Result<TflitePlan> {
        Ok(self.pipeline(&self.random_rows()?, budget)?.0)
    }

    /// A plan with as many threads as fit, and the rows within it.
    fn pipeline(&self, data: &Dataset, budget: Option<Bytes>) -> Result<(TflitePlan, Pipeline)> {
        let interpreter = Interpreter::new(&self.model);
        let elements = |tensors: &[i32]| tensors.iter().map(|tensor| self.model.tensors[*tensor as usize].elements()).sum::<u64>();
        let row = 4 * (elements(&self.model.inputs) + elements(&self.model.outputs));
        // Names, shapes and options of all tensors and operators.
        let description = self.model.metadata_bytes + 512 * self.model.tensors.len() as u64 + 1024 * self.model.operators.len() as u64;
        let mut threads = system::cores();
        loop {
            let count = threads as u64;
            let owners = vec![
                (Owner::Weights, Bytes(interpreter.resident_bytes())),
                (Owner::Activations, Bytes(count * interpreter.bytes(true))),
                (Owner::Predictions, Bytes(2 * ROWS_PER_THREAD as u64 * count * row)),
                (Owner::ThreadStacks, Bytes(count * STACK as u64)),
                (Owner::ModelFile, Bytes(description)),
            ];
            let reader = format!("running {}", self.name);
            let pipeline = Pipeline::new(data.clone(), budget).read_by(&reader, owners.clone());
            match pipeline.row_memory() {
                Ok(total) => {
                    let beside = owners.iter().fold(system::process_footprint(), |sum, (_, size)| sum + *size);
                    let mut owners = owners;
                    owners.push((Owner::Process, system::process_footprint()));
                    owners.push((Owner::Pipeline, total.saturating_sub(beside)));
                    let budget = budget.unwrap_or_else(system::available_memory);
                    let operators = self.model.operators.len();
                    return Ok((TflitePlan { name: self.name.clone(), budget, owners, threads, operators }, pipeline));
                }
                Err(Error::PipelineInfeasible(_)) if threads > 1 => threads -= 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes the outputs of all rows to `sink`: the first row of a piece, its number of rows, and their outputs.
    pub fn predict(&self, data: &Dataset, budget: Option<Bytes>, mut sink: impl FnMut(u64, usize, &[Predicted])) -> Result<()> {
        self.predict_rows(data, budget, |first, rows, outputs| {
            sink(first, rows.len(), outputs);
            Ok(())
        })
    }

    /// Like [`predict`](TfliteFile::predict), with the rows themselves: all columns of the data.
    pub fn predict_rows(
        &self,
        data: &Dataset,
        budget: Option<Bytes>,
        mut sink: impl FnMut(u64, &[Vec<Vec<f32>>], &[Predicted]) -> Result<()>,
    ) -> Result<()> {
        let columns = self.columns_of(&data.output_schema()?)?;
        let (plan, pipeline) = self.pipeline(data, budget)?;
        let about = |what: String| Error::Config(format!("{} cannot be run: {what}", self.name));
        let interpreter = Interpreter::resident(&self.model).map_err(about)?;
        let mut outputs = self.empty_outputs();
        let mut waiting: Vec<Vec<Vec<f32>>> = Vec::new();
        let mut done = 0;
        let mut compute = |waiting: &mut Vec<Vec<Vec<f32>>>| -> Result<()> {
            outputs.iter_mut().for_each(|output| output.values.clear());
            for row in run_all(&interpreter, waiting, &columns, plan.threads).map_err(about)? {
                outputs.iter_mut().zip(row).for_each(|(all, row)| all.values.extend(row));
            }
            sink(done, waiting, &outputs)?;
            done += waiting.len() as u64;
            waiting.clear();
            Ok(())
        };
        pipeline.for_each_row(usize::MAX, |_, row| {
            waiting.push(row.to_vec());
            if waiting.len() == plan.threads * ROWS_PER_THREAD { compute(&mut waiting) } else { Ok(()) }
        })?;
        if waiting.is_empty() { Ok(()) } else { compute(&mut waiting) }
    }

    fn empty_outputs(&self) -> Vec<Predicted> {
        let named = self.model.signature.as_ref().map(|(_, outputs)| outputs);
        let output = |(i, tensor): (usize, &i32)| {
            let tensor = &self.model.tensors[*tensor as usize];
            let name = named.and_then(|names| names.get(i)).filter(|name| !name.is_empty()).unwrap_or(&tensor.name);
            Predicted { name: name.clone(), shape: row_shape(tensor), values: Vec::new() }
        };
        self.model.outputs.iter().enumerate().map(output).collect()
    }

    /// The columns of rows that are its inputs.
    fn columns_of(&self, schema: &Schema) -> Result<Vec<usize>> {
        let mut found = Vec::with_capacity(self.model.inputs.len());
        for (i, input) in self.model.inputs.iter().enumerate() {
            let name = self.input_name(i);
            let only = (self.model.inputs.len() == 1 && !schema.columns().is_empty()).then_some(0);
            let Some(at) = schema.index_of(name).or(only) else {
                let names: Vec<&str> = schema.columns().iter().map(|column| column.name.as_str()).collect();
                let what = format!("the rows have no column `{name}`, which {} takes; they have {}", self.name, names.join(", "));
                return Err(Error::Config(what));
            };
            let (column, wanted) = (&schema.columns()[at], row_shape(&self.model.tensors[*input as usize]));
            if column.shape.to_vec() != wanted {
                return Err(Error::Config(format!(
                    "the rows have the shape {:?}, but `{name}` of {} takes rows of the shape {wanted:?}",
                    column.shape, self.name
                )));
            }
            found.push(at);
        }
        Ok(found)
    }
}

/// Whether a path is a TFLite file, by its name.
pub(crate) fn is_tflite(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tflite"))
}

/// The shape of one row.
fn row_shape(tensor: &TfliteTensor) -> Vec<usize> {
    tensor.shape.iter().skip(1).map(|dim| *dim as usize).collect()
}

/// The outputs of some rows in order, computed by several threads.
fn run_all(interpreter: &Interpreter<'_>, rows: &[Vec<Vec<f32>>], columns: &[usize], threads: usize) -> Result<Vec<Vec<Vec<f32>>>, String> {
    let run = |row: &Vec<Vec<f32>>| {
        let inputs: Vec<Vec<f32>> = columns.iter().map(|column| row[*column].clone()).collect();
        let outputs = interpreter.run(&inputs, |_, _| {})?;
        Ok::<_, String>(outputs.into_iter().map(|output| output.numbers).collect::<Vec<_>>())
    };
    if threads == 1 || rows.len() == 1 {
        return rows.iter().map(run).collect();
    }
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![Ok(Vec::new()); rows.len()]));
    let work = || {
        while let Some((at, row)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, rows.get(at)?))) {
            let result = run(row);
            results.lock().expect("no thread panics")[at] = result;
        }
    };
    std::thread::scope(|scope| {
        let spawned: std::io::Result<Vec<_>> =
            (1..threads.min(rows.len())).map(|_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)).collect();
        work();
        spawned.map(drop).map_err(|error| format!("a thread cannot be started: {error}"))
    })?;
    results.into_inner().expect("no thread panics").into_iter().collect()
}
