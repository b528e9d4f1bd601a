//! What is exported: a network with its weights and what belongs to them, from a run folder, a file or the zoo.

use crate::config::{Config, usual_losses};
use crate::error::{Error, Result};
use crate::graphs::input_columns;
use crate::history::WeightSparsity;
use crate::import::{Assembly, ImportedInput, ImportedWeights, import, is_importable, open_safetensors, refuse_pickles};
use crate::nn::{Model, range_names};
use crate::output_kind::OutputKind;
use crate::output_loss::OutputLosses;
use crate::preprocessing::Preprocessing;
use crate::spec::RunSpec;
use crate::tflite::{FITTED, OUTPUTS, PREPARATION};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, GraphError};
use plimsoll_formats::tensor::{DType as Stored, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// A network with its weights, which are read when they are written elsewhere.
pub(crate) struct TrainedNetwork {
    pub model: Model,
    pub inputs: Vec<NetworkInput>,
    pub weights: ImportedWeights,
    /// Texts that belong to the model: fitted preprocessing, names of classes.
    pub metadata: BTreeMap<String, String>,
    /// Texts with which a TFLite file predicts raw inputs by itself: preprocessing, and what outputs mean.
    pub preparation: BTreeMap<String, String>,
    /// What preprocessing was fitted to.
    pub fitted: Preprocessing,
    /// Of a model that was trained for int8: the smallest and largest number of its tensors, by the names of their
    /// ranges.
    pub ranges: HashMap<String, (f32, f32)>,
    /// Where predictions of the network come from.
    pub origin: Origin,
}

/// An input of a network.
pub(crate) struct NetworkInput {
    /// Its name: in the file it was imported from, or the column of the data.
    pub name: String,
    /// The column of the data.
    pub column: String,
    pub ty: TensorType,
    /// Integers are below this.
    pub bound: Option<usize>,
}

/// Where a network comes from.
pub(crate) enum Origin {
    /// A run, with its weights.
    Run { spec: Box<RunSpec>, weights: PathBuf },
    /// A model of another program.
    File(PathBuf),
}

impl TrainedNetwork {
    /// The network of a run folder, or of a model of another program.
    pub fn open(path: &Path) -> Result<TrainedNetwork> {
        refuse_pickles(path)?;
        if is_importable(path) {
            return TrainedNetwork::imported(path);
        }
        if !path.is_dir() {
            let what = "name a run folder, or a model of Keras (.keras, .h5) or ONNX (.onnx)";
            return Err(Error::Config(format!("{} is neither a run folder nor a model that can be read; {what}", path.display())));
        }
        let weights = path.join("weights.safetensors");
        let mut config = Config::read(&path.join("config.toml"))?;
        if !weights.exists() {
            return Err(Error::Config(format!("{} has no weights.safetensors yet; train the run to its end", path.display())));
        }
        config.remove_teacher();
        let fitted = Preprocessing::read(&weights)?.unwrap_or_default();
        if !fitted.is_empty() {
            config.set_preprocessing(fitted.clone());
        }
        let mut network = TrainedNetwork::of_run(config.build()?, &weights, &fitted)?;
        if let Some(text) = config.preparation() {
            network.preparation.insert(PREPARATION.to_string(), text);
        }
        Ok(network)
    }

    /// The network of a run, with weights in a file.
    pub fn of_run(mut spec: RunSpec, weights: &Path, fitted: &Preprocessing) -> Result<TrainedNetwork> {
        let inputs = inputs_of(&spec)?;
        let mut metadata = BTreeMap::new();
        if let Some((_, text)) = fitted.metadata() {
            metadata.insert(FITTED.to_string(), text);
        }
        if !fitted.classes.is_empty() {
            let classes = serde_json::to_string(&fitted.classes).unwrap_or_default();
            metadata.insert("classes".to_string(), classes);
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
        let shape = |ty: &TensorType| ty.shape.bind(1).iter().map(|dim| *dim as u64).collect();
        let wanted: Vec<(String, Vec<u64>)> = spec.model.weights_for(&types)?.iter().map(|(name, ty)| (name.clone(), shape(ty))).collect();
        let read = open_safetensors(weights, &wanted)?.weights;
        for (name, shape) in &wanted {
            let other = |what| Error::Config(format!("{} does not have the weights of this model: {what}", weights.display()));
            read.check(name, shape).map_err(other)?;
        }
        let mut ranges = HashMap::new();
        for (observed, _) in spec.model.graph(&types, false)?.1.observed {
            let [min, max] = range_names(&observed);
            if wanted.iter().any(|(name, _)| *name == min) {
                ranges.insert(observed, (read.read(&min)?[0], read.read(&max)?[0]));
            }
        }
        // Other programs round by themselves, or not at all.
        spec.model = spec.model.without_rounding();
        let model = spec.model.clone();
        let preparation = meaning(&model, &types, &spec.losses).into_iter().collect();
        let origin = Origin::Run { spec: Box::new(spec), weights: weights.to_path_buf() };
        Ok(TrainedNetwork { model, inputs, weights: read, metadata, preparation, fitted: fitted.clone(), ranges, origin })
    }

    /// The network of a description with zeros for weights, to find out what a format can express.
    pub fn of_zeros(spec: &RunSpec) -> Result<TrainedNetwork> {
        let inputs = inputs_of(spec)?;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
        let mut weights = ImportedWeights::default();
        for (name, ty) in spec.model.weights_for(&types)? {
            let zeros = Tensor::zeros(Stored::F32, ty.shape.bind(1).iter().map(|dim| *dim as u64).collect());
            weights.insert(name, Assembly::Whole(zeros));
        }
        let origin = Origin::Run { spec: Box::new(spec.clone()), weights: PathBuf::new() };
        let fitted = Preprocessing::default();
        let (metadata, preparation, ranges) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
        Ok(TrainedNetwork { model: spec.model.clone(), inputs, weights, metadata, preparation, fitted, ranges, origin })
    }

    fn imported(path: &Path) -> Result<TrainedNetwork> {
        let imported = import(path)?;
        if !imported.has_weights() {
            return Err(Error::Config(format!("{} has no weights to export; save the whole model", path.display())));
        }
        let bounds: Vec<(usize, usize)> = imported.model.bounded_inputs().collect();
        let input = |(i, input): (usize, &ImportedInput)| NetworkInput {
            name: input.name.clone(),
            column: input.column.clone(),
            ty: input.ty(),
            bound: bounds.iter().filter(|(of, _)| *of == i).map(|(_, bound)| *bound).min(),
        };
        let inputs: Vec<NetworkInput> = imported.inputs.iter().enumerate().map(input).collect();
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
        let losses = imported.losses.clone().unwrap_or_else(|| usual_losses(&imported.model));
        let preparation = meaning(&imported.model, &types, &losses).into_iter().collect();
        let metadata = BTreeMap::new();
        let (fitted, origin) = (Preprocessing::default(), Origin::File(path.to_path_buf()));
        let ranges = HashMap::new();
        Ok(TrainedNetwork { model: imported.model, inputs, weights: imported.weights, metadata, preparation, fitted, ranges, origin })
    }

    /// The types of the inputs.
    pub fn types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(|input| input.ty.clone()).collect()
    }

    /// The weights that training pruned, with their zeros; none of a network that was not pruned.
    pub fn sparsity(&self) -> Result<Vec<WeightSparsity>> {
        let Origin::Run { spec, .. } = &self.origin else { return Ok(Vec::new()) };
        let Some(prune) = &spec.optimization.prune else { return Ok(Vec::new()) };
        let (graph, _) = self.model.graph(&self.types(), true)?;
        let mut counted = Vec::new();
        for weight in prune.weights_of(&self.model, graph.states())? {
            let numbers = self.weights.read(&weight.name)?;
            let zeros = numbers.iter().filter(|number| **number == 0.0).count() as u64;
            counted.push(WeightSparsity { name: weight.name, zeros, numbers: numbers.len() as u64 });
        }
        Ok(counted)
    }

    /// Names and types of the weights, in order.
    pub fn states(&self) -> Result<Vec<(String, TensorType)>, GraphError> {
        self.model.weights_for(&self.types())
    }
}

impl NetworkInput {
    /// Whether it has integers, such as token IDs.
    pub fn integers(&self) -> bool {
        matches!(self.ty.dtype, DType::I32 | DType::U8)
    }
}

/// What the outputs of a model mean, as metadata.
fn meaning(model: &Model, types: &[TensorType], losses: &OutputLosses) -> Option<(String, String)> {
    let (graph, lowered) = model.graph(types, false).ok()?;
    let shape = |value| graph.shape(value).bind(1)[1..].to_vec();
    let outputs: Vec<(String, Vec<usize>)> =
        model.outputs().zip(&lowered.outputs).map(|(name, output)| (name.to_string(), shape(output.value))).collect();
    let activations: Vec<_> = model.last_activations().collect();
    let kinds = OutputKind::by_loss(losses, &outputs, &activations).ok()?;
    Some((OUTPUTS.to_string(), serde_json::to_string(&kinds).ok()?))
}

/// The inputs of a run's model.
fn inputs_of(spec: &RunSpec) -> Result<Vec<NetworkInput>> {
    let schema = spec.data.output_schema()?;
    let columns = input_columns(&schema, &spec.model)?;
    let bounds: Vec<(usize, usize)> = spec.model.bounded_inputs().collect();
    let input = |(i, column): (usize, &usize)| {
        let column = &schema.columns()[*column];
        let ty = TensorType::new(column.dtype, Shape::batch_of(column.shape.iter().copied()));
        let bound = bounds.iter().filter(|(of, _)| *of == i).map(|(_, bound)| *bound).min();
        NetworkInput { name: column.name.clone(), column: column.name.clone(), ty, bound }
    };
    Ok(columns.iter().enumerate().map(input).collect())
}
