//! TFLite files of small networks, read back and run; what cannot be calibrated or converted is refused.

use crate::config::Config;
use crate::export::{ExportOptions, Exported, TfliteNumbers, Verified, export, export_zoo};
use crate::tflite::Interpreter;
use crate::trainer::Trainer;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, TfliteModel};
use std::path::{Path, PathBuf};

const IMAGE: &str = "model.input=[32, 32, 3]";

struct ExportCase {
    folder: tempfile::TempDir,
    config: Config,
}

impl ExportCase {
    fn zoo(name: &str, keys: &[&str]) -> ExportCase {
        let mut config = Config::zoo(name).unwrap();
        keys.iter().for_each(|key| config.set(key).unwrap());
        ExportCase { folder: tempfile::tempdir().unwrap(), config }
    }

    /// The network for digits, calibrated with digits.
    fn digits() -> ExportCase {
        ExportCase { folder: tempfile::tempdir().unwrap(), config: Config::digits() }
    }

    /// A network of these layers for digits.
    fn layers(layers: &str) -> ExportCase {
        let config = Config::from_text(&format!("{DIGITS}[model]\nlayers = [{layers}]\n[train]\nbatch = 8\n")).unwrap();
        ExportCase { folder: tempfile::tempdir().unwrap(), config }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.tflite")
    }

    fn export(&self, numbers: TfliteNumbers) -> crate::Result<Exported> {
        self.export_with(ExportOptions { numbers, rows: 2, ..ExportOptions::default() })
    }

    fn export_with(&self, options: ExportOptions) -> crate::Result<Exported> {
        export_zoo(&self.config, &self.path(), &options)
    }

    /// Exports in int8, calibrated with the data of a configuration.
    fn int8(&self, data: &str) -> crate::Result<Exported> {
        self.int8_with(data, false, &[])
    }

    fn int8_with(&self, data: &str, integer_io: bool, keep: &[&str]) -> crate::Result<Exported> {
        let calibrate = self.folder.path().join("calibrate.toml");
        std::fs::write(&calibrate, data).unwrap();
        let numbers = TfliteNumbers::Int8 { calibrate: Some(calibrate), rows: 8, integer_io };
        let keep_float = keep.iter().map(|pattern| pattern.to_string()).collect();
        self.export_with(ExportOptions { numbers, rows: 2, keep_float, ..ExportOptions::default() })
    }

    fn model(&self) -> TfliteModel {
        crate::tflite::open(&self.path()).unwrap()
    }

    /// The error of an export that leaves nothing behind.
    fn refused(&self, result: crate::Result<Exported>) -> String {
        let error = result.expect_err("it should be refused").to_string();
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let left: Vec<String> = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| name(entry.unwrap().path())).collect();
        assert!(left.iter().all(|name| name == "calibrate.toml"), "{left:?}");
        error.replace(&self.folder.path().display().to_string(), "FOLDER")
    }
}

const DIGITS: &str = "[data]\nsource = \"digits\"\nmap = [{ op = \"scale\", by = 0.0625 }]\n";

fn difference(exported: &Exported) -> f64 {
    match exported.verified {
        Verified::Measured { difference, .. } => difference,
        Verified::Not(ref why) => panic!("{why}"),
    }
}

fn count(model: &TfliteModel, op: BuiltinOp) -> usize {
    model.operators.iter().filter(|operator| operator.op == op).count()
}

#[test]
fn files_compute_what_the_networks_compute() {
    for (name, keys) in [
        ("lenet5", &[][..]),
        ("mobilenet-v1", &[IMAGE, "model.classes=3"]),
        ("mobilenet-v2", &[IMAGE, "model.classes=3"]),
        ("resnet18", &[IMAGE, "model.width=0.125", "model.classes=3"]),
        ("unet", &[IMAGE, "model.width=0.125"]),
        ("lstm", &[]),
        ("gru", &[]),
        ("char-gpt", &["model.context=8"]),
        ("vit-tiny", &[IMAGE, "model.classes=3"]),
    ] {
        let case = ExportCase::zoo(name, keys);
        let exported = case.export(TfliteNumbers::Single).unwrap();
        assert!(difference(&exported) < 1e-5, "{name}: {}", exported.verified);
    }
}

#[test]
fn operators_are_those_of_tensorflows_converter() {
    let case = ExportCase::zoo("resnet18", &["model.input=[64, 64, 3]", "model.width=0.125", "model.classes=3"]);
    case.export(TfliteNumbers::Single).unwrap();
    let model = case.model();
    // Batch normalization is folded, rectifiers are part of the operator before them, the mean is one operator.
    let counts = [BuiltinOp::Conv2d, BuiltinOp::Add, BuiltinOp::Mul, BuiltinOp::Relu, BuiltinOp::Mean].map(|op| count(&model, op));
    assert_eq!(counts, [20, 8, 0, 0, 1]);
    assert_eq!(model.tensors[model.inputs[0] as usize].signature, [-1, 64, 64, 3]);
    let (inputs, outputs) = model.signature.unwrap();
    assert_eq!((inputs, outputs), (vec!["x".to_string()], vec!["prediction".to_string()]));

    let case = ExportCase::zoo("lstm", &[]);
    case.export(TfliteNumbers::Single).unwrap();
    let model = case.model();
    assert_eq!((count(&model, BuiltinOp::UnidirectionalSequenceLstm), count(&model, BuiltinOp::FullyConnected)), (2, 1));
    assert_eq!(model.tensors.iter().filter(|tensor| tensor.variable).count(), 4);

    let case = ExportCase::zoo("vit-tiny", &[IMAGE, "model.classes=3"]);
    case.export(TfliteNumbers::Single).unwrap();
    let model = case.model();
    let counts = [BuiltinOp::BatchMatmul, BuiltinOp::Softmax, BuiltinOp::Gelu, BuiltinOp::Rsqrt].map(|op| count(&model, op));
    assert_eq!(counts, [24, 12, 12, 25]);
    let product = model.operators.iter().find(|operator| operator.op == BuiltinOp::FullyConnected).unwrap();
    assert_eq!((product.integer("keep_num_dims"), product.version), (1, 5));
}

/// Layers that Keras' ReLU becomes: those with limits of an operator are part of the operator before them.
#[test]
fn rectifiers_with_a_limit_are_operators_of_tflite() {
    let case = ExportCase::layers(
        "{ type = 'conv2d', filters = 3, size = 3 }, { type = 're_lu', max_value = 6.0 }, \
         { type = 'conv2d', filters = 3, size = 3 }, { type = 're_lu' }, { type = 'flatten' }, { type = 'dense', units = 10 }",
    );
    case.export(TfliteNumbers::Single).unwrap();
    let model = case.model();
    let found: Vec<(BuiltinOp, i32)> =
        model.operators.iter().map(|operator| (operator.op, operator.integer("fused_activation_function"))).collect();
    // A convolution of one channel is one per channel.
    let wanted = [(BuiltinOp::DepthwiseConv2d, 3), (BuiltinOp::Conv2d, 1), (BuiltinOp::Reshape, 0), (BuiltinOp::FullyConnected, 0)];
    assert_eq!(found, wanted);
}

#[test]
fn weights_in_half_precision_and_int8_are_smaller_and_close() {
    let case = ExportCase::zoo("mobilenet-v1", &[IMAGE, "model.classes=3"]);
    let half = case.export(TfliteNumbers::Half).unwrap();
    let small = half.small.as_ref().unwrap();
    let bytes = std::fs::metadata(case.path()).unwrap().len();
    assert!(difference(&half) < 1e-2 && bytes * 19 < small.single_bytes * 10, "{} {bytes}", half.verified);
    let dequantized =
        case.model().operators.iter().filter(|operator| operator.op == BuiltinOp::Dequantize).all(|operator| operator.version == 3);
    assert!(dequantized);

    let dynamic = case.export(TfliteNumbers::Dynamic).unwrap();
    let bytes = std::fs::metadata(case.path()).unwrap().len();
    let small = dynamic.small.as_ref().unwrap();
    assert!(difference(&dynamic) < 0.2 && bytes * 36 < small.single_bytes * 10, "{} {bytes}", dynamic.verified);
    assert!(small.float.iter().any(|(_, why)| why == "fewer than 1024 weights"), "{:?}", small.float);
    let model = case.model();
    let convolution = model.operators.iter().find(|operator| operator.op == BuiltinOp::Conv2d).unwrap();
    assert_eq!(convolution.version, 5);
}

#[test]
fn everything_in_int8_has_scales_and_a_report() {
    let case = ExportCase::digits();
    let exported = case.int8(DIGITS).unwrap();
    let small = exported.small.as_ref().unwrap();
    assert_eq!((small.calibrated, small.float.len()), (8, 0));
    assert!(small.tensors.iter().all(|tensor| tensor.snr > Some(15.0) && tensor.cosine > Some(0.98)), "{:?}", small.tensors);
    assert!(small.gzip_bytes.unwrap() > 0);
    let model = case.model();
    let tensor = |index: i32| &model.tensors[index as usize];
    for operator in &model.operators {
        match operator.op {
            BuiltinOp::Conv2d => {
                let [data, weight, bias] = [0, 1, 2].map(|i| tensor(operator.inputs[i]));
                assert_eq!((data.dtype, weight.dtype, bias.dtype, operator.version), (DType::I8, DType::I8, DType::I32, 3));
                let [data, weight, bias] = [data, weight, bias].map(|tensor| tensor.quantization.clone().unwrap());
                assert_eq!((weight.axis, weight.zero_points.iter().any(|zero| *zero != 0)), (0, false));
                let products: Vec<f32> = weight.scales.iter().map(|scale| scale * data.scales[0]).collect();
                assert_eq!(bias.scales, products);
            }
            BuiltinOp::MaxPool2d | BuiltinOp::Reshape => {
                assert_eq!(tensor(operator.inputs[0]).quantization, tensor(operator.outputs[0]).quantization);
            }
            _ => {}
        }
    }
    assert_eq!((model.operators[0].op, model.operators.last().unwrap().op), (BuiltinOp::Quantize, BuiltinOp::Dequantize));
    case.int8_with(DIGITS, true, &[]).unwrap();
    let model = case.model();
    assert_eq!(model.tensors[model.inputs[0] as usize].dtype, DType::I8);
    assert_eq!(model.tensors[model.outputs[0] as usize].dtype, DType::I8);
}

#[test]
fn an_lstm_is_int8_with_a_cell_in_16_bits() {
    let case = ExportCase::layers("{ type = 'reshape', shape = [8, 8] }, { type = 'lstm', units = 12 }, { type = 'dense', units = 10 }");
    let exported = case.int8(DIGITS).unwrap();
    let small = exported.small.as_ref().unwrap();
    assert!(small.float.is_empty(), "{:?}", small.float);
    assert!(small.tensors.iter().all(|tensor| tensor.snr > Some(15.0)), "{:?}", small.tensors);
    let model = case.model();
    let operator = model.operators.iter().find(|operator| operator.op == BuiltinOp::UnidirectionalSequenceLstm).unwrap();
    let tensor = |index: i32| &model.tensors[index as usize];
    let [state, cell] = [18, 19].map(|at| tensor(operator.inputs[at]));
    assert_eq!((operator.version, state.dtype, cell.dtype), (1, DType::I8, DType::I16));
    assert!(state.variable && cell.variable && state.quantization == tensor(operator.outputs[0]).quantization);
    let scale = cell.quantization.as_ref().unwrap().scales[0];
    assert_eq!(scale.log2().fract(), 0.0, "{scale}");
    for gate in 0..4 {
        let [kernel, recurrent, bias] = [1, 5, 12].map(|at| tensor(operator.inputs[at + gate]));
        assert_eq!((kernel.dtype, recurrent.dtype, bias.dtype), (DType::I8, DType::I8, DType::I32));
        let scales = [tensor(operator.inputs[0]), kernel, bias].map(|tensor| tensor.quantization.as_ref().unwrap().scales[0]);
        assert_eq!(scales[0] * scales[1], scales[2]);
    }
    assert_eq!(operator.intermediates.len(), 5);
}

#[test]
fn layers_that_match_a_pattern_stay_in_single_precision() {
    let case = ExportCase::digits();
    let exported = case.int8_with(DIGITS, false, &["dense*"]).unwrap();
    let small = exported.small.as_ref().unwrap();
    assert!(!small.float.is_empty() && small.float.iter().all(|(_, why)| why == "kept by a pattern"), "{:?}", small.float);
    let model = case.model();
    let product = model.operators.iter().find(|operator| operator.op == BuiltinOp::FullyConnected).unwrap();
    assert_eq!(model.tensors[product.inputs[1] as usize].dtype, DType::F32);
    let case = ExportCase::digits();
    let error = case.refused(case.int8_with(DIGITS, false, &["missing"]));
    assert_eq!(error, "cannot write FOLDER/model.tflite: --keep-float missing matches no layer");
}

#[test]
fn calibration_that_gives_no_scales_is_refused() {
    let case = ExportCase::digits();
    let zeros = "[data]\nsource = \"digits\"\nmap = [{ op = \"scale\", by = 0.0 }]\n";
    let error = case.refused(case.int8(zeros));
    assert!(error.contains("the rows of the calibration give no scale:\n  `x` is always zero: its range is empty"), "{error}");
    assert!(error.contains("--keep-float"), "{error}");

    let other = ExportCase::zoo("lenet5", &[]);
    let error = other.refused(other.int8(DIGITS));
    assert!(error.contains("cannot calibrate with FOLDER/calibrate.toml: its column `x` has the shape"), "{error}");

    let case = ExportCase::digits();
    let error = case.refused(case.int8(&format!("{DIGITS}[budget]\nhost = \"1MiB\"\n")));
    assert!(error.contains("calibration does not fit into 1.00 MiB of host memory; the minimum budget is"), "{error}");
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    let case = ExportCase::digits();
    let rows: Vec<f32> = (0..8 * 64).map(|i| if i == 70 { f32::NAN } else { i as f32 }).collect();
    write_npy(&case.folder.path().join("calibrate.toml").with_file_name("rows.npy"), "(8, 8, 8, 1)", &rows);
    let error = case.int8("[data]\nsource = \"npy\"\nx = \"rows.npy\"\n").unwrap_err().to_string();
    assert!(error.contains("`x` has numbers that are not finite"), "{error}");
    assert!(!case.path().exists());
}

fn write_npy(path: &Path, shape: &str, numbers: &[f32]) {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn smaller_numbers_are_for_tflite_files() {
    let case = ExportCase::digits();
    let options = ExportOptions { numbers: TfliteNumbers::Half, rows: 0, ..ExportOptions::default() };
    let error = export_zoo(&case.config, &case.folder.path().join("model.onnx"), &options).unwrap_err().to_string();
    assert!(error.ends_with("has one type of numbers: smaller ones are written to .tflite files"), "{error}");
}

#[test]
fn what_tflite_lacks_is_listed_at_once() {
    let case = ExportCase::zoo("segnet", &[IMAGE]);
    let error = case.refused(case.export(TfliteNumbers::Single));
    assert!(error.contains("TFLite has no counterpart for:\n  `") && error.matches("\n  `").count() > 1, "{error}");
}

/// A run that was trained for int8 needs no calibration: the file has its ranges, and predicts what the run predicts.
#[test]
fn a_run_that_was_trained_for_int8_is_exported_with_its_own_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{}\n[quantize]\nmomentum = 0.9\n[prune]\nfinal = 0.5\nend = 40\nfrequency = 10\n", crate::config::DIGITS);
    let mut config = Config::from_text(&text).unwrap();
    config.set("train.epochs=2").unwrap();
    std::fs::write(folder.path().join("config.toml"), config.to_toml()).unwrap();
    let spec = config.build().unwrap();
    let held_out = spec.fit.validation.clone().unwrap();
    let mut trainer = Trainer::from(spec);
    trainer.fit(crate::Fit::epochs(2)).unwrap();
    trainer.save_weights(&folder.path().join("weights.safetensors")).unwrap();
    let accuracy = trainer.evaluate(&held_out).unwrap().accuracy.unwrap();

    let path = folder.path().join("model.tflite");
    let numbers = TfliteNumbers::Int8 { calibrate: None, rows: 0, integer_io: false };
    let exported = export(folder.path(), &path, &ExportOptions { numbers, rows: 2, ..ExportOptions::default() }).unwrap();
    let small = exported.small.unwrap();
    assert!(small.float.is_empty(), "{:?}", small.float);
    // Tensors are compared on rows of the run.
    assert!(!small.tensors.is_empty() && small.tensors.iter().all(|tensor| tensor.snr > Some(10.0)), "{:?}", small.tensors);
    let model = crate::tflite::open(&path).unwrap();
    let interpreter = Interpreter::new(&model);
    let (mut right, mut rows) = (0, 0);
    let held_out = crate::pipeline::Pipeline::new(held_out, None);
    held_out
        .for_each_row(400, |_, row| {
            let scores = interpreter.run(&row[..1], |_, _| {}).unwrap()[0].numbers.clone();
            let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
            (right, rows) = (right + u64::from(best as f32 == row[1][0]), rows + 1);
            Ok(())
        })
        .unwrap();
    let found = right as f64 / f64::from(rows);
    assert!((found - accuracy).abs() < 0.02 && found > 0.8, "{found} in int8, {accuracy} in training");
    // Half of the weights are zero in int8 too.
    let sparsity = trainer.sparsity().unwrap();
    assert!(sparsity.iter().all(|weight| weight.share() >= 0.5), "{sparsity:?}");

    let float = ExportCase::digits();
    let numbers = TfliteNumbers::Int8 { calibrate: None, rows: 0, integer_io: false };
    insta::assert_snapshot!(
        float.refused(float.export(numbers)),
        @"cannot write FOLDER/model.tflite: the network was not trained for int8, so that activations have no ranges; name a configuration with --calibrate, or train with `[quantize]`"
    );
}
