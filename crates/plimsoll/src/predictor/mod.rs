//! A trained model, ready to predict: raw inputs in, predictions out. The data that it was trained on is not needed.

mod inputs;
mod mask_file;
mod tflite;

pub use inputs::{FileKind, Inputs, ToInputs, kind_of};
pub use mask_file::write_mask;
pub(crate) use tflite::TfliteFile;
pub use tflite::TflitePlan;

use crate::config::{Config, InputKind, RawInputs};
use crate::error::{Error, Result};
use crate::import::ImportedInput;
use crate::nn::Model;
use crate::output_columns::{ModelColumns, OutputColumns};
use crate::output_kind::{OutputKind, binary, top};
use crate::output_loss::OutputLosses;
use crate::preprocessing::Preprocessing;
use crate::spec::RunSpec;
use crate::trainer::{Predicted, Prediction, Trainer};
use plimsoll_core::{Budget, Bytes};
use plimsoll_data::ops::{Decode, Method, cast_f32, resize};
use plimsoll_data::source::ImageFiles;
use plimsoll_data::{Dataset, Schema};
use std::path::Path;

/// Reads the weights into the memory of a model.
type LoadWeights = Box<dyn Fn(&mut Trainer) -> Result<()>>;

/// Makes rows of the model of raw inputs.
type Prepare = Box<dyn Fn(RawInputs) -> Result<Dataset>>;

/// A trained model: its weights, and the preprocessing that belongs to it.
///
/// Raw inputs are decoded, resized, scaled and standardized as in training. Memory is planned within a budget,
/// allocated with the first prediction, and used again as long as inputs have the same shape.
///
/// ```no_run
/// use plimsoll::prelude::*;
///
/// let mut model = Model::load("runs/flowers-1")?;
/// let predictions = model.predict("photos/")?;
/// for (row, name) in predictions.rows.iter().enumerate() {
///     let (class, probability) = predictions.best(row);
///     println!("{name}: {} ({probability:.3})", model.class_name(class));
/// }
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Predictor {
    engine: Engine,
    budget: Budget,
    kind: InputKind,
    prepare: Prepare,
    fitted: Preprocessing,
    columns: ModelColumns,
    /// Those of the first output.
    first: OutputColumns,
}

/// What computes predictions.
enum Engine {
    /// A network, planned and run as in training.
    Network { spec: Box<RunSpec>, load: LoadWeights, opened: Option<Box<OpenModel>> },
    /// A TFLite file, run operator by operator.
    Tflite(Box<TfliteFile>),
}

/// The memory of a model, for rows of a schema.
struct OpenModel {
    schema: Schema,
    /// Rows that were to be predicted when it was planned.
    rows: u64,
    trainer: Trainer,
}

/// The predictions for some rows.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// The rows in words: file names, or positions in a table or an array.
    pub rows: Vec<String>,
    /// The outputs of the model as they are: logits, probabilities or values.
    pub outputs: Vec<Predicted>,
    /// What they mean.
    pub kinds: Vec<OutputKind>,
}

impl Predictions {
    /// The values of the first output, row after row.
    pub fn values(&self) -> &[f32] {
        self.outputs.first().map_or(&[], |output| &output.values)
    }

    /// The first output of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        let output = &self.outputs[0];
        let per_row = output.shape.iter().product::<usize>();
        &output.values[row * per_row..][..per_row]
    }

    /// The first output of a row as probabilities, if its loss is one of classes.
    pub fn probabilities(&self, row: usize) -> Vec<f32> {
        let mut values = self.row(row).to_vec();
        self.kinds[0].to_probabilities(&mut values);
        values
    }

    /// The most likely class of a row, and its probability.
    pub fn best(&self, row: usize) -> (usize, f32) {
        let probabilities = self.probabilities(row);
        match self.kinds[0] {
            OutputKind::Binary { .. } if probabilities.len() == 1 => binary(probabilities[0]),
            _ => top(&probabilities, 1).first().copied().unwrap_or_default(),
        }
    }
}

impl Model {
    /// Loads the trained model of a run folder, with the preprocessing of its data, or a model of Keras, ONNX or
    /// TFLite.
    ///
    /// # Errors
    /// If there is no trained run in the folder, or the file cannot be imported.
    pub fn load(folder: impl AsRef<Path>) -> Result<Predictor> {
        Predictor::open(folder.as_ref(), |_| Ok(()))
    }
}

impl Predictor {
    /// Opens the trained model of a run folder. `change` may edit the run's configuration first, to set another budget
    /// or device.
    ///
    /// # Errors
    /// If there is no trained run in the folder.
    pub fn open(folder: &Path, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Predictor> {
        if tflite::is_tflite(folder) {
            return Predictor::open_tflite(folder, change);
        }
        if Config::is_model_file(folder) {
            return Predictor::open_file(folder, change);
        }
        let weights = folder.join("weights.safetensors");
        let mut config = Config::read(&folder.join("config.toml"))?;
        if !weights.exists() {
            return Err(Error::Config(format!("{} has no weights.safetensors yet; train the run to its end", folder.display())));
        }
        change(&mut config)?;
        let fitted = Preprocessing::read(&weights)?.unwrap_or_default();
        if !fitted.is_empty() {
            config.set_preprocessing(fitted.clone());
        }
        let (spec, kind) = (config.model_spec()?, config.input_kind()?);
        let columns = config.model_columns(&fitted, &spec.losses)?;
        let load: LoadWeights = Box::new(move |trainer| trainer.load_weights(&weights));
        let prepare: Prepare = Box::new(move |raw| config.prepared(raw));
        let first = spec.model.outputs().next().map(|name| columns.of(name)).unwrap_or_default();
        Ok(Predictor { columns, first, ..Predictor::of_network(spec, load, kind, prepare, fitted) })
    }

    fn of_network(spec: RunSpec, load: LoadWeights, kind: InputKind, prepare: Prepare, fitted: Preprocessing) -> Predictor {
        let budget = spec.budget;
        let engine = Engine::Network { spec: Box::new(spec), load, opened: None };
        Predictor { engine, budget, kind, prepare, fitted, columns: ModelColumns::default(), first: OutputColumns::default() }
    }

    /// Opens a TFLite file. Where it was exported from a run, inputs are prepared as for the run.
    fn open_tflite(path: &Path, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Predictor> {
        let file = TfliteFile::open(path)?;
        let mut config = file.preparation()?.map_or_else(|| Config::from_text(""), Ok)?;
        change(&mut config)?;
        let budget = config.cpu_budget("TFLite files")?;
        let fitted = file.fitted();
        let columns = config.model_columns(&fitted, &OutputLosses::Named(Vec::new()))?;
        let (kind, prepare): (InputKind, Prepare) = match file.preparation()? {
            Some(_) => (config.input_kind()?, Box::new(move |raw| config.prepared(raw))),
            None => {
                let image = file.image();
                (file.input_kind(), Box::new(move |raw| raw_rows(raw, image)))
            }
        };
        Ok(Predictor { engine: Engine::Tflite(Box::new(file)), budget, kind, prepare, fitted, first: columns.first(), columns })
    }

    /// Opens a model of another program. Rows are arrays of the shape of its input; images are decoded and resized to
    /// it, and their pixels are numbers from 0 to 255.
    fn open_file(path: &Path, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Predictor> {
        let mut config = Config::imported(path)?;
        change(&mut config)?;
        let imported = crate::import::import(path)?;
        if !imported.has_weights() {
            return Err(Error::Config(format!("{} has no weights to predict with; save the whole model", path.display())));
        }
        let image = match &imported.inputs[..] {
            [input] if !input.integers => match input.row[..] {
                // Decoded images have their channels last, which the model accepts too.
                [channels @ (1 | 3), height, width] if input.channels_first => Some((height, width, channels)),
                [height, width, channels @ (1 | 3)] if !input.channels_first => Some((height, width, channels)),
                _ => None,
            },
            _ => None,
        };
        let kind = if image.is_some() { InputKind::Images } else { InputKind::Arrays };
        let (spec, weights) = (config.model_spec()?, path.to_path_buf());
        let load: LoadWeights = Box::new(move |trainer| trainer.load_weights(&weights));
        let (name, inputs) = (path.display().to_string(), imported.inputs);
        let prepare: Prepare = Box::new(move |raw| {
            let rows = raw_rows(raw, image)?;
            check_rows(&name, &inputs, &rows.output_schema()?)?;
            Ok(rows)
        });
        Ok(Predictor::of_network(spec, load, kind, prepare, Preprocessing::default()))
    }

    /// Sets the memory budget of the process.
    pub fn budget(mut self, host: Bytes) -> Predictor {
        self.budget = Budget { host: Some(host), ..self.budget };
        if let Engine::Network { opened, .. } = &mut self.engine {
            *opened = None;
        }
        self
    }

    /// The names of the classes of the first output; empty if the data had none.
    pub fn classes(&self) -> &[String] {
        &self.first.classes
    }

    /// The name of a class of the first output, or its number.
    pub fn class_name(&self, class: usize) -> String {
        self.classes().get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The columns that the outputs of the model predict.
    pub fn columns(&self) -> &ModelColumns {
        &self.columns
    }

    /// The preprocessing that was stored with the weights.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.fitted
    }

    /// Whether inputs are images.
    pub fn reads_images(&self) -> bool {
        self.kind == InputKind::Images
    }

    /// The predictions for raw inputs: a [`Tensor`](crate::Tensor), files, a folder, or a [`Dataset`] without
    /// preprocessing.
    ///
    /// # Errors
    /// If inputs cannot be read or do not fit the model, or the budget is too small.
    pub fn predict(&mut self, inputs: &(impl ToInputs + ?Sized)) -> Result<Predictions> {
        let (mut rows, mut outputs, mut kinds): (Vec<String>, Vec<Predicted>, _) = (Vec::new(), Vec::new(), Vec::new());
        self.predict_as(inputs, |piece, name, known| {
            rows.extend((0..piece.rows as u64).map(|row| name(piece.first_row + row)));
            match outputs.is_empty() {
                true => {
                    outputs.extend_from_slice(piece.outputs);
                    kinds.extend_from_slice(known);
                }
                false => outputs.iter_mut().zip(piece.outputs).for_each(|(all, piece)| all.values.extend_from_slice(&piece.values)),
            }
        })?;
        Ok(Predictions { rows, outputs, kinds })
    }

    /// Passes the predictions to `sink`, one micro-batch at a time, with a function that names rows. Memory does not
    /// grow with their number.
    ///
    /// # Errors
    /// As [`predict`](Predictor::predict).
    pub fn predict_with(
        &mut self,
        inputs: &(impl ToInputs + ?Sized),
        mut sink: impl FnMut(&Prediction<'_>, &dyn Fn(u64) -> String),
    ) -> Result<()> {
        self.predict_as(inputs, |prediction, name, _| sink(prediction, name))
    }

    /// Like [`predict_with`](Predictor::predict_with), also with what the outputs mean.
    ///
    /// # Errors
    /// As [`predict`](Predictor::predict).
    pub fn predict_as(
        &mut self,
        inputs: &(impl ToInputs + ?Sized),
        mut sink: impl FnMut(&Prediction<'_>, &dyn Fn(u64) -> String, &[OutputKind]),
    ) -> Result<()> {
        let data = (self.prepare)(inputs.to_inputs().resolve(self.kind)?)?;
        if data.size() == Some(0) {
            return Err(Error::Config(format!("there is nothing to predict: {} has no rows", data.describe())));
        }
        let named = self.kind == InputKind::Images;
        let names = data.clone();
        let name = move |row: u64| names.row_name(row).filter(|_| named).unwrap_or_else(|| row.to_string());
        if let Engine::Tflite(file) = &self.engine {
            let (kinds, columns) = (file.kinds(), &self.columns);
            return file.predict(&data, self.budget.host, |first_row, rows, outputs| {
                let mut outputs = outputs.to_vec();
                outputs.iter_mut().for_each(|output| columns.of(&output.name).rescale(&mut output.values));
                let (shape, values) = (&outputs[0].shape[..], &outputs[0].values[..]);
                sink(&Prediction { first_row, rows, shape, values, outputs: &outputs }, &name, &kinds);
            });
        }
        let columns = self.columns.clone();
        let trainer = self.trainer(&data)?;
        let kinds = trainer.output_kinds()?;
        trainer.predict_rescaled(&data, &columns, |prediction| sink(prediction, &name, &kinds))
    }

    /// The model in memory, for rows of this data.
    fn trainer(&mut self, data: &Dataset) -> Result<&mut Trainer> {
        let Engine::Network { spec, load, opened } = &mut self.engine else {
            return Err(Error::Config("a TFLite file has no trainer".to_string()));
        };
        let (schema, rows) = (data.output_schema()?, data.len());
        // A plan for few rows has a small batch.
        let batch = data.batch_size().unwrap_or(1) as u64;
        let fits = |opened: &OpenModel| opened.schema == schema && (opened.rows >= batch || rows <= opened.rows);
        if !opened.as_deref().is_some_and(fits) {
            // The old memory is freed before new memory is allocated.
            *opened = None;
            let spec = RunSpec { data: data.clone(), budget: self.budget, ..(**spec).clone() };
            let mut trainer = Trainer::from(spec).for_prediction();
            load(&mut trainer).map_err(|error| match error {
                Error::Config(what) => {
                    Error::Config(format!("{what}; rows to predict need the shape of those it was trained on, and have {schema}"))
                }
                other => other,
            })?;
            *opened = Some(Box::new(OpenModel { schema, rows, trainer }));
        }
        Ok(&mut opened.as_mut().expect("just opened").trainer)
    }
}

/// Rows of a model without stored preprocessing: arrays as they are, images decoded and resized to its input.
fn raw_rows(raw: RawInputs, image: Option<(usize, usize, usize)>) -> Result<Dataset> {
    let rows = match (raw, image) {
        (RawInputs::Images(files), Some((height, width, channels))) => {
            let rows: Dataset = ImageFiles::list(files)?.into();
            let decode = if channels == 1 { Decode::new().grey() } else { Decode::new() };
            let decoded = rows.map("x", [decode.op()]);
            let resized = decoded.map("x", [resize(height, width, Method::Bilinear)]);
            resized.map("x", [cast_f32()])
        }
        (RawInputs::Array(path), _) => Dataset::npy(&[("x", path)])?,
        (RawInputs::Rows(rows), _) => rows,
        _ => {
            let what = "this model reads arrays; give it one .npy file whose first dimension is the row";
            return Err(Error::Config(what.to_string()));
        }
    };
    Ok(if rows.batch_size().is_some() { rows } else { rows.batch(32) })
}

/// That rows have the shapes that a model of another program was saved with; images may have their channels last.
fn check_rows(model: &str, inputs: &[ImportedInput], schema: &Schema) -> Result<()> {
    for input in inputs {
        let Some(index) = schema.index_of(&input.column) else { continue };
        let (found, mut last) = (&schema.columns()[index].shape, input.row.clone());
        if input.channels_first {
            last.rotate_left(1);
        }
        if *found != input.row && *found != last {
            let (name, row) = (&input.name, &input.row);
            return Err(Error::Config(format!(
                "the rows have the shape {found:?}, but `{name}` of {model} takes rows of the shape {row:?}"
            )));
        }
    }
    Ok(())
}
