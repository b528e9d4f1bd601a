//! TFLite files with smaller numbers: calibration, conversion, and what each tensor loses.

use super::ConvertedTflite;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::export::{ExportOptions, Origin, TfliteNumbers, TrainedNetwork};
use crate::files;
use crate::nn::matches_layer;
use crate::pipeline::Pipeline;
use crate::tflite::{
    Int8Options, Interpreter, Range, SmallModel, TensorError, compare, complete_ranges, observe, open, to_dynamic, to_half, to_int8,
};
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;
use plimsoll_data::Schema;
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::tflite::{BuiltinOp, TfliteModel};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What a smaller file keeps and loses.
#[derive(Clone, Debug, Default)]
pub struct SmallReport {
    /// Tensors in int8, in the order in which they are computed.
    pub tensors: Vec<TensorReport>,
    /// Layers that stayed in single precision, and why.
    pub float: Vec<(String, String)>,
    /// Rows of the calibration.
    pub calibrated: usize,
    /// The planned memory of the calibration: the process, the pipeline, and the network on one row.
    pub calibration_memory: Bytes,
    /// Bytes of the same model in single precision.
    pub single_bytes: u64,
    /// Bytes of the file after gzip.
    pub gzip_bytes: Option<u64>,
}

/// A tensor in int8 beside the same tensor in single precision.
#[derive(Clone, Debug)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its smallest and largest number over the rows of the calibration.
    pub range: (f32, f32),
    /// The scale of its integers.
    pub scale: f32,
    /// The integer that is zero.
    pub zero_point: i64,
    /// Signal-to-noise ratio in decibels, over the sample rows; none without sample rows.
    pub snr: Option<f64>,
    /// The cosine of the angle between both, over the sample rows; none without sample rows.
    pub cosine: Option<f64>,
}

/// Writes a network with the numbers that the options name; `single` is where the same model in single precision goes
/// first.
pub(crate) fn write_small(
    network: &TrainedNetwork,
    converted: &ConvertedTflite,
    single: &Path,
    path: &Path,
    options: &ExportOptions,
) -> Result<SmallReport> {
    converted.write(network, single)?;
    let model = open(single)?;
    let keep = |name: &str| options.keep_float.iter().any(|pattern| matches_layer(pattern, layer_of(name)));
    for pattern in &options.keep_float {
        if !model.operators.iter().any(|operator| matches_layer(pattern, layer_of(&model.tensors[operator.outputs[0] as usize].name))) {
            return Err(Error::Config(format!("--keep-float {pattern} matches no layer")));
        }
    }
    let mut report = SmallReport { single_bytes: std::fs::metadata(single).map_or(0, |file| file.len()), ..SmallReport::default() };
    let small = match &options.numbers {
        TfliteNumbers::Single => return Ok(report),
        TfliteNumbers::Half => to_half(&model),
        TfliteNumbers::Dynamic => to_dynamic(&model, &keep).map_err(Error::Config)?,
        TfliteNumbers::Int8 { calibrate, rows, integer_io } => {
            let calibration = match calibrate {
                Some(data) => Calibration::run(network, &model, data, *rows, options.rows)?,
                None => Calibration::trained(network, converted, &model, options.rows)?,
            };
            let chosen = Int8Options { keep: &keep, integer_io: *integer_io, trained: calibrate.is_none() };
            let small = to_int8(&model, &calibration.ranges, &chosen).map_err(Error::Config)?;
            write(&small, path)?;
            (report.calibrated, report.calibration_memory) = (calibration.rows, calibration.memory);
            report.tensors = calibration.losses(&model, &open(path)?)?;
            report.float = small.float;
            report.gzip_bytes = gzip_size(path);
            return Ok(report);
        }
    };
    report.float = small.float.clone();
    write(&small, path)?;
    report.gzip_bytes = gzip_size(path);
    Ok(report)
}

fn gzip_size(path: &Path) -> Option<u64> {
    File::open(path).and_then(plimsoll_formats::gzip::compressed_size).ok()
}

fn write(small: &SmallModel, path: &Path) -> Result<()> {
    files::replace(path, |file| {
        let mut out = BufWriter::new(file);
        let about = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        small.write(&mut out).and_then(|()| out.flush()).map_err(about)
    })
}

/// The layer of a tensor: its name without the operator.
fn layer_of(name: &str) -> &str {
    let is_operator = |part: &str| {
        BuiltinOp::ALL.iter().any(|op| part.strip_prefix(op.name()).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
    };
    match name.rsplit_once('/') {
        Some((layer, part)) if is_operator(part) => layer,
        _ => name,
    }
}

/// The ranges of all tensors over rows of a data set.
struct Calibration {
    ranges: Vec<Range>,
    /// The first rows, on which the smaller model is compared.
    samples: Vec<Vec<Vec<f32>>>,
    rows: usize,
    memory: Bytes,
}

impl Calibration {
    /// The ranges that the run was trained with; the sample rows are those of its validation, or else of its training.
    fn trained(network: &TrainedNetwork, converted: &ConvertedTflite, model: &TfliteModel, samples: usize) -> Result<Calibration> {
        if converted.ranges.is_empty() {
            let what = "the network was not trained for int8, so that activations have no ranges";
            return Err(Error::Config(format!("{what}; name a configuration with --calibrate, or train with `[quantize]`")));
        }
        let range = |tensor: &plimsoll_formats::tflite::TfliteTensor| {
            let (min, max) = converted.ranges.get(&tensor.name).copied().filter(|(min, max)| min < max)?;
            Some(Range { min, max, broken: !min.is_finite() || !max.is_finite() })
        };
        let mut ranges: Vec<Range> = model.tensors.iter().map(|tensor| range(tensor).unwrap_or_default()).collect();
        complete_ranges(model, &mut ranges);
        let mut calibration = Calibration { ranges, samples: Vec::new(), rows: 0, memory: Bytes::ZERO };
        if let (Origin::Run { spec, .. }, true) = (&network.origin, samples > 0) {
            let data = spec.fit.validation.as_ref().unwrap_or(&spec.data).clone();
            let beside = vec![(Owner::Activations, memory_of(model, &Interpreter::new(model), samples))];
            let pipeline = Pipeline::new(data, spec.budget.host).read_by("the comparison of tensors", beside);
            for_each_input(network, model, &pipeline, samples, "cannot compare tensors on the rows of the run", |row| {
                calibration.samples.push(row);
                Ok(())
            })?;
        }
        Ok(calibration)
    }

    fn run(network: &TrainedNetwork, model: &TfliteModel, data: &Path, rows: usize, samples: usize) -> Result<Calibration> {
        let mut config = Config::read(data)?;
        if !network.fitted.is_empty() {
            config.set_preprocessing(network.fitted.clone());
        }
        let interpreter = Interpreter::new(model);
        let mut calibration =
            Calibration { ranges: vec![Range::default(); model.tensors.len()], samples: Vec::new(), rows: 0, memory: Bytes::ZERO };
        let beside = vec![(Owner::Activations, memory_of(model, &interpreter, samples))];
        let pipeline = config.pipeline()?.read_by("calibration", beside);
        calibration.memory = pipeline.row_memory()?;
        let refused = format!("cannot calibrate with {}", data.display());
        calibration.rows = for_each_input(network, model, &pipeline, rows, &refused, |row| {
            observe(&interpreter, &row, &mut calibration.ranges)?;
            if calibration.samples.len() < samples {
                calibration.samples.push(row);
            }
            Ok(())
        })?;
        if calibration.rows == 0 {
            return Err(Error::Config(format!("{refused}: it has no rows")));
        }
        Ok(calibration)
    }

    /// What each tensor loses on the sample rows.
    fn losses(&self, single: &TfliteModel, small: &TfliteModel) -> Result<Vec<TensorReport>> {
        let (mut errors, mut outputs) = (HashMap::new(), vec![TensorError::default(); single.outputs.len()]);
        for row in &self.samples {
            compare(single, small, row, &mut errors, &mut outputs).map_err(Error::Config)?;
        }
        let ranges: HashMap<&str, &Range> =
            single.tensors.iter().zip(&self.ranges).map(|(tensor, range)| (tensor.name.as_str(), range)).collect();
        let computed = small.operators.iter().flat_map(|operator| &operator.outputs).map(|tensor| &small.tensors[*tensor as usize]);
        let report = |tensor: &plimsoll_formats::tflite::TfliteTensor| {
            let name = tensor.name.strip_suffix("/int8").filter(|_| tensor.dtype == Stored::I8)?;
            let (range, quantization) = (ranges.get(name)?, tensor.quantization.as_ref()?);
            let error = errors.get(name);
            Some(TensorReport {
                name: name.to_string(),
                range: (range.min, range.max),
                scale: quantization.scales[0],
                zero_point: quantization.zero_points[0],
                snr: error.map(TensorError::snr),
                cosine: error.map(TensorError::cosine),
            })
        };
        Ok(computed.filter_map(report).collect())
    }
}

/// What one row through a model takes, beside sample rows that are kept. The comparison of two models keeps the tensors
/// of one row in single precision while it runs the smaller model.
fn memory_of(model: &TfliteModel, interpreter: &Interpreter<'_>, samples: usize) -> Bytes {
    let size = |tensor: &i32| 4 * model.tensors[*tensor as usize].elements();
    let inputs: u64 = model.inputs.iter().map(size).sum();
    let computed: u64 = model.operators.iter().flat_map(|operator| &operator.outputs).map(size).sum();
    Bytes(2 * interpreter.bytes(false) + computed + (samples as u64 + 2) * inputs)
}

/// Hands the first rows of a pipeline to `visit`, as inputs of a model. Returns how many there were. Errors begin with
/// `refused`.
fn for_each_input(
    network: &TrainedNetwork,
    model: &TfliteModel,
    pipeline: &Pipeline,
    rows: usize,
    refused: &str,
    mut visit: impl FnMut(Vec<Vec<f32>>) -> Result<(), String>,
) -> Result<usize> {
    let about = |what: String| Error::Config(format!("{refused}: {what}"));
    let mut columns = None;
    pipeline.for_each_row(rows, |schema, row| {
        if columns.is_none() {
            columns = Some(columns_of(network, model, schema).map_err(about)?);
        }
        visit(columns.iter().flatten().map(|column| row[*column].clone()).collect()).map_err(about)
    })
}

/// The columns of the data that are the inputs of a model.
fn columns_of(network: &TrainedNetwork, model: &TfliteModel, schema: &Schema) -> Result<Vec<usize>, String> {
    let mut found = Vec::with_capacity(network.inputs.len());
    for (input, tensor) in network.inputs.iter().zip(&model.inputs) {
        let named = schema.columns().iter().position(|column| column.name == input.column);
        let only = (network.inputs.len() == 1 && !schema.columns().is_empty()).then_some(0);
        let Some(at) = named.or(only) else {
            let names: Vec<&str> = schema.columns().iter().map(|column| column.name.as_str()).collect();
            return Err(format!("it has no column `{}`; its columns are {}", input.column, names.join(", ")));
        };
        let column = &schema.columns()[at];
        let wanted: Vec<usize> = model.tensors[*tensor as usize].shape[1..].iter().map(|dim| *dim as usize).collect();
        if column.shape.to_vec() != wanted {
            return Err(format!("its column `{}` has the shape {:?}, but the model takes {wanted:?}", column.name, column.shape));
        }
        found.push(at);
    }
    Ok(found)
}
