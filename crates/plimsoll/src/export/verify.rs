//! The network and the file it was written to, run on the same sample rows.

use super::{ExportFormat, Origin, TrainedNetwork};
use crate::error::{Error, Result};
use crate::import::{import, is_importable};
use crate::loss::Loss;
use crate::nn::Model;
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::pipeline::Pipeline;
use crate::spec::{FitSpec, RunSpec};
use crate::tflite::{Interpreter, open};
use crate::trainer::{Predicted, Trainer};
use plimsoll_core::budget::Owner;
use plimsoll_core::shape::TensorType;
use plimsoll_core::{Bytes, DType};
use plimsoll_data::{Dataset, RandomSpec};
use std::fmt;
use std::path::Path;

/// The comparison of a network and the file it was written to.
#[derive(Clone, Debug, PartialEq)]
pub enum Verified {
    /// Both were run on this many sample rows.
    Measured {
        /// The rows.
        rows: usize,
        /// The greatest difference of an output, relative to the greatest output of the network.
        difference: f64,
    },
    /// Nothing was compared, and why.
    Not(String),
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verified::Measured { rows, difference } => {
                write!(f, "greatest difference on {rows} sample rows: {difference:.1e} of the largest output")
            }
            Verified::Not(why) => write!(f, "not compared: {why}"),
        }
    }
}

/// Runs the network and the written file on the same random rows, within the budget of the run.
pub(super) fn compare(network: &TrainedNetwork, path: &Path, format: ExportFormat, rows: usize) -> Result<Verified> {
    if rows == 0 {
        return Ok(Verified::Not("no sample rows were asked for".to_string()));
    }
    let (spec, weights) = match &network.origin {
        Origin::Run { spec, weights } => ((**spec).clone(), weights),
        Origin::File(path) => (any_losses(&network.model), path),
    };
    if format == ExportFormat::Tflite {
        let wanted = predictions(&spec, network.model.clone(), network, &columns_of(network), weights, rows)?;
        return compare_tflite(network, path, &spec, rows, &wanted);
    }
    let columns = columns_of(network);
    let read_back = match format {
        ExportFormat::SafeTensors => Some((network.model.clone(), columns.clone())),
        _ if is_importable(path) => {
            let imported = import(path)?;
            let columns = imported.inputs.iter().map(|input| (input.column.clone(), input.ty())).collect();
            Some((imported.model, columns))
        }
        _ => None,
    };
    let Some((model, read_columns)) = read_back else {
        return Ok(Verified::Not(format!("{} files are not read back yet", format.name())));
    };
    let wanted = predictions(&spec, network.model.clone(), network, &columns, weights, rows)?;
    let found = predictions(&spec, model, network, &read_columns, path, rows)?;
    let largest = wanted.iter().flat_map(|output| &output.values).fold(0.0_f64, |most, value| most.max(f64::from(value.abs())));
    let mut difference = 0.0_f64;
    for (wanted, found) in wanted.iter().zip(&found) {
        if wanted.values.len() != found.values.len() {
            return Err(Error::Config(format!(
                "{} gives {} numbers for `{}`, but the network gives {}",
                path.display(),
                found.values.len(),
                wanted.name,
                wanted.values.len()
            )));
        }
        let differences = wanted.values.iter().zip(&found.values).map(|(wanted, found)| f64::from((wanted - found).abs()));
        // A number that is not finite is as different as can be.
        difference = differences.fold(difference, |most, value| if value.is_nan() { f64::INFINITY } else { most.max(value) });
    }
    Ok(Verified::Measured { rows, difference: if largest > 0.0 { difference / largest } else { difference } })
}

/// A description with a loss for every output, which predictions do not depend on.
fn any_losses(model: &Model) -> RunSpec {
    let named: Vec<(String, OutputLoss)> = model.outputs().map(|name| (name.to_string(), Loss::MeanSquaredError.into())).collect();
    let spec = RunSpec::default();
    if named.len() > 1 { RunSpec { losses: OutputLosses::Named(named), ..spec } } else { spec }
}

/// The outputs of a model with weights of a file, for random rows that depend on the inputs of the network only.
fn predictions(
    spec: &RunSpec,
    model: Model,
    network: &TrainedNetwork,
    columns: &[(String, TensorType)],
    weights: &Path,
    rows: usize,
) -> Result<Vec<Predicted>> {
    let data = random_rows(network, columns, rows)?;
    let mut trainer = Trainer::from(RunSpec { model, data: data.clone(), fit: FitSpec::default(), ..spec.clone() }).for_prediction();
    trainer.load_weights(weights)?;
    trainer.predict_all(&data)
}

/// The columns of the network's inputs.
fn columns_of(network: &TrainedNetwork) -> Vec<(String, TensorType)> {
    network.inputs.iter().map(|input| (input.column.clone(), input.ty.clone())).collect()
}

/// Random rows that depend on the inputs of the network only.
fn random_rows(network: &TrainedNetwork, columns: &[(String, TensorType)], rows: usize) -> Result<Dataset> {
    let mut random = RandomSpec::new(rows as u64);
    for ((name, ty), input) in columns.iter().zip(&network.inputs) {
        let shape = ty.shape.bind(1)[1..].to_vec();
        random = match ty.dtype {
            DType::U8 => random.bytes(name, shape),
            DType::I32 => random.classes(name, shape, u32::try_from(input.bound.unwrap_or(2)).unwrap_or(u32::MAX)),
            _ => random.floats(name, shape),
        };
    }
    Ok(Dataset::random(random)?.batch(rows))
}

/// Runs a TFLite file on the rows that the network gave `wanted` for.
fn compare_tflite(network: &TrainedNetwork, path: &Path, spec: &RunSpec, rows: usize, wanted: &[Predicted]) -> Result<Verified> {
    let model = open(path)?;
    let interpreter = Interpreter::new(&model);
    let data = random_rows(network, &columns_of(network), rows)?;
    let mut found: Vec<Vec<f32>> = vec![Vec::new(); wanted.len()];
    let memory = vec![(Owner::Activations, Bytes(interpreter.bytes(false)))];
    let pipeline = Pipeline::new(data, spec.budget.host).read_by("running the file", memory);
    pipeline.for_each_row(rows, |_, row| {
        let outputs = interpreter.run(row, |_, _| {}).map_err(Error::Config)?;
        found.iter_mut().zip(outputs).for_each(|(all, output)| all.extend(output.numbers));
        Ok(())
    })?;
    let largest = wanted.iter().flat_map(|output| &output.values).fold(0.0_f64, |most, value| most.max(f64::from(value.abs())));
    let mut difference = 0.0_f64;
    for (wanted, found) in wanted.iter().zip(&found) {
        if wanted.values.len() != found.len() {
            let name = &wanted.name;
            return Err(Error::Config(format!("the file gives {} numbers for `{name}`, the network {}", found.len(), wanted.values.len())));
        }
        let differences = wanted.values.iter().zip(found).map(|(wanted, found)| f64::from((wanted - found).abs()));
        difference = differences.fold(difference, |most, value| if value.is_nan() { f64::INFINITY } else { most.max(value) });
    }
    Ok(Verified::Measured { rows, difference: if largest > 0.0 { difference / largest } else { difference } })
}
