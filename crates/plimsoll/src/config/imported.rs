//! `[model] file`: a model of another program, with a new head and frozen layers where wanted.

use super::Config;
use crate::error::{Error, Result};
use crate::import::{Imported, ImportedInput, import};
use crate::loss::Loss;
use crate::nn::{Activation, Model};
use crate::optim::{Continued, Optimizer};
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::reader::Reader;
use crate::spec::{InitialWeights, RunSpec};
use plimsoll_core::Bytes;
use plimsoll_core::shape::TensorType;
use plimsoll_data::{Dataset, RandomSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a file tells about a run beyond the model.
pub(crate) struct FromFile {
    path: PathBuf,
    pub inputs: Vec<ImportedInput>,
    optimizer: Option<Arc<dyn Optimizer>>,
    /// The steps of the optimizer whose state the file has.
    optimizer_steps: Option<u64>,
    losses: OutputLosses,
    has_weights: bool,
    heap: Bytes,
    new_head: bool,
}

/// Reads the keys of a model from a file.
pub(super) fn read(table: &Reader<'_>, path: &Path) -> Result<(Model, FromFile)> {
    let imported = import(path)?;
    let (optimizer_steps, heap) = (imported.optimizer_steps(), imported.heap);
    let Imported { mut model, inputs, optimizer, losses, weights, .. } = imported;
    let types: Vec<TensorType> = inputs.iter().map(ImportedInput::ty).collect();
    let (freeze_all, frozen) = match table.value("freeze") {
        None => (false, Vec::new()),
        Some(toml::Value::Boolean(all)) => (*all, Vec::new()),
        Some(_) => (false, table.texts("freeze")?.unwrap_or_default()),
    };
    let trainable = table.texts("trainable")?;
    if freeze_all || trainable.is_some() {
        model = model.trainable_matching("*", false)?;
    }
    for (patterns, flag) in [(trainable.unwrap_or_default(), true), (frozen, false)] {
        for pattern in patterns {
            model = model.trainable_matching(&pattern, flag)?;
        }
    }
    let mut new_head = false;
    if let Some(head) = table.section("replace_head")? {
        let classes = head.required_count("classes", 1, "the number of outputs of the new head")?;
        head.finish()?;
        model = model.replace_head(classes)?;
        new_head = true;
    }
    let losses = losses.unwrap_or_else(|| usual_losses(&model));
    let has_weights = !weights.is_empty();
    let file = FromFile { path: path.to_path_buf(), has_weights, heap, inputs, optimizer, optimizer_steps, losses, new_head };
    // The shapes of a new head are checked where the keys are.
    model.weights_for(&types)?;
    Ok((model, file))
}

/// The usual loss of each output, by its activation.
pub(crate) fn usual_losses(model: &Model) -> OutputLosses {
    let loss = |last: Option<Activation>| match last {
        Some(Activation::Softmax) => Loss::SoftmaxCrossEntropy,
        Some(Activation::Sigmoid) => Loss::BinaryCrossEntropy,
        _ => Loss::MeanSquaredError,
    };
    let mut named: Vec<(String, OutputLoss)> =
        model.outputs().map(str::to_string).zip(model.last_activations().map(|last| loss(last).into())).collect();
    match named.len() {
        1 => OutputLosses::Only(named.remove(0).1),
        _ => OutputLosses::Named(named),
    }
}

impl FromFile {
    /// Uses optimizer, losses and weights of the file where the configuration has none.
    pub(super) fn complete(&self, spec: &mut RunSpec, loss_given: bool, optimizer_given: bool) {
        // A new head has no moments: the optimizer begins from scratch. So does one that reads other weights.
        let continues = self.optimizer_steps.filter(|_| !optimizer_given && !self.new_head && spec.fit.initial_weights.is_none());
        if let Some(optimizer) = self.optimizer.as_ref().filter(|_| !optimizer_given) {
            spec.optimization.optimizer = match continues {
                Some(steps) => Arc::new(Continued::new(Arc::clone(optimizer), steps)),
                None => Arc::clone(optimizer),
            };
        }
        if !loss_given {
            spec.losses = self.losses.clone();
        }
        if self.has_weights && spec.fit.initial_weights.is_none() {
            spec.fit.initial_weights =
                Some(InitialWeights::new(&self.path).partial(self.new_head).of_model(continues.is_some(), self.heap));
        }
    }

    /// Random rows of the model's inputs and labels, to plan or try it without data.
    pub(super) fn synthetic(&self, model: &Model, losses: &OutputLosses, rows: u64) -> Result<Dataset> {
        let types: Vec<TensorType> = self.inputs.iter().map(ImportedInput::ty).collect();
        let (graph, lowered) = model.graph(&types, false)?;
        let mut random = RandomSpec::new(rows);
        for (index, input) in self.inputs.iter().enumerate() {
            let bound = model.bounded_inputs().filter(|(of, _)| *of == index).map(|(_, bound)| bound).min();
            random = match (input.integers, bound) {
                (true, bound) => {
                    let classes = u32::try_from(bound.unwrap_or(2)).unwrap_or(u32::MAX);
                    random.classes(&input.column, input.row.clone(), classes)
                }
                (false, _) => random.floats(&input.column, input.row.clone()),
            };
        }
        for (index, (name, output)) in model.outputs().zip(&lowered.outputs).enumerate() {
            let shape = graph.shape(output.value).bind(1)[1..].to_vec();
            let (loss, column) = match losses {
                OutputLosses::Only(loss) => (loss, loss.labels.clone().unwrap_or_else(|| "y".to_string())),
                OutputLosses::Named(named) => {
                    let Some((_, loss)) = named.iter().find(|(known, _)| known == name).or(named.get(index)) else { continue };
                    (loss, loss.labels.clone().unwrap_or_else(|| name.to_string()))
                }
            };
            random = match (loss.objective.loss(), shape.split_last()) {
                (Loss::SoftmaxCrossEntropy | Loss::CategoricalFocal { .. }, Some((classes, rest))) => {
                    random.classes(&column, rest.to_vec(), u32::try_from(*classes).unwrap_or(u32::MAX))
                }
                _ => random.floats(&column, shape),
            };
        }
        Ok(Dataset::random(random)?)
    }
}

impl Config {
    /// A model of another program on synthetic rows, to plan or try it without data.
    ///
    /// # Errors
    /// If its path is not text.
    pub fn imported(path: &Path) -> Result<Config> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let Some(file) = absolute.to_str() else { return Err(Error::Config(format!("{} is not a text", path.display()))) };
        let title = path.file_stem().map_or("model".to_string(), |stem| stem.to_string_lossy().into_owned());
        let mut config = Config::from_text("[data]\nsource = \"synthetic\"\n[train]\nbatch = 32\n")?;
        config.set_value("model.file", file)?;
        Ok(Config { title, ..config })
    }

    /// Whether a path is a model of another program, by its name; also one that cannot be imported, whose error says
    /// what to do.
    pub fn is_model_file(path: &Path) -> bool {
        crate::import::is_foreign(path)
    }
}
