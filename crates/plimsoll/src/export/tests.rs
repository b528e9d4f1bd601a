//! Exports: files that ONNX Runtime was compared on (`tests/references/exports.py`), and files read back.

use super::onnx::convert;
use super::{ExportOptions, Opset, TrainedNetwork, Verified, export, export_zoo};
use crate::config::Config;
use plimsoll_formats::onnx::{Dim, OnnxModel};
use plimsoll_formats::source::Region;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn references() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references")
}

fn unverified(opset: Opset) -> ExportOptions {
    ExportOptions { opset, rows: 0, ..ExportOptions::default() }
}

fn read(path: &Path) -> OnnxModel {
    let mut none = |name: &str| panic!("{name} is not part of the model");
    OnnxModel::open(Region::bytes(std::fs::read(path).unwrap()), &mut none).unwrap()
}

/// A network of the zoo as ONNX.
fn exported(name: &str, keys: &[&str]) -> OnnxModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let mut config = Config::zoo(name).unwrap();
    keys.iter().for_each(|key| config.set(key).unwrap());
    export_zoo(&config, &path, &unverified(Opset::V18)).unwrap();
    read(&path)
}

#[test]
fn onnx_files_are_those_that_onnx_runtime_was_compared_on() {
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(references().join("exports.json")).unwrap()).unwrap();
    assert_eq!(cases.len(), 18);
    let folder = tempfile::tempdir().unwrap();
    for case in &cases {
        let (file, path) = (case["file"].as_str().unwrap(), folder.path().join("model.onnx"));
        let opset = if case["opset"] == 18 { Opset::V18 } else { Opset::V23 };
        export(&references().join("keras").join(file), &path, &unverified(opset)).unwrap();
        let crc = format!("{:08x}", crc32fast::hash(&std::fs::read(&path).unwrap()));
        assert_eq!(case["crc32"], crc, "{file} is written differently: run tests/references/exports.py");
        assert!(case["difference"].as_f64().unwrap() <= 1e-4, "{file}");
    }
}

#[test]
fn batch_normalization_is_folded_and_layouts_change_once() {
    let model = exported("resnet18", &["model.input=[32, 32, 3]", "model.width=0.125", "model.classes=3"]);
    let count = |op: &str| model.graph.nodes.iter().filter(|node| node.op == op).count();
    assert_eq!((count("Conv"), count("Transpose"), count("BatchNormalization"), count("Mul")), (20, 1, 0, 0));
    assert_eq!((model.ir_version, model.opsets[""]), (8, 18));
    let input = &model.graph.inputs[0];
    assert_eq!((input.name.as_str(), input.shape.as_ref().unwrap()[0].clone()), ("x", Dim::Symbolic("batch".to_string())));
    assert_eq!(model.graph.outputs[0].name, "prediction");
}

#[test]
fn large_weights_are_in_a_file_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("inside.onnx"), folder.path().join("outside.onnx"));
    let network = TrainedNetwork::open(&references().join("keras/images.keras")).unwrap();
    let converted = convert(&network, Opset::V18).unwrap();
    assert_eq!(converted.write(&network, &inside).unwrap(), None);
    assert_eq!(converted.write_within(&network, &outside, 1).unwrap().as_deref(), Some("outside.onnx.data"));
    let mut beside = |name: &str| Ok(Region::bytes(std::fs::read(folder.path().join(name)).unwrap()));
    let divided = OnnxModel::open(Region::bytes(std::fs::read(&outside).unwrap()), &mut beside).unwrap();
    let whole = read(&inside);
    assert!(!whole.graph.initializers.is_empty());
    for (name, tensor) in &whole.graph.initializers {
        assert_eq!(tensor.numbers(1 << 20).unwrap(), divided.graph.initializers[name].numbers(1 << 20).unwrap(), "{name}");
    }
}

#[test]
fn dropout_is_gone_and_recurrent_layers_are_one_node() {
    let model = exported("lstm", &[]);
    let ops: Vec<&str> = model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    assert!(ops.contains(&"LSTM") && ops.len() < 20, "{ops:?}");
    let words = exported("char-gpt", &["model.context=8", "model.width=0.17"]);
    assert!(words.graph.nodes.iter().all(|node| !node.op.contains("Random") && node.op != "Dropout"));
}

#[test]
fn files_of_keras_and_safetensors_compute_the_same_when_they_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("resnet18", vec!["model.input=[32, 32, 3]", "model.width=0.125", "model.classes=3"]),
        ("efficientnet-b0", vec!["model.input=[32, 32, 3]", "model.width=0.25", "model.classes=3"]),
        ("gru", vec!["model.input=[8, 3]"]),
    ];
    for (name, keys) in cases {
        for file in ["model.keras", "model.safetensors"] {
            let path = folder.path().join(file);
            let mut config = Config::zoo(name).unwrap();
            keys.iter().for_each(|key| config.set(key).unwrap());
            let exported = export_zoo(&config, &path, &ExportOptions::default()).unwrap();
            match exported.verified {
                Verified::Measured { rows: 4, difference } => assert!(difference < 1e-5, "{name} as {file}: {difference}"),
                other => panic!("{name} as {file}: {other:?}"),
            }
        }
    }
}

#[test]
fn what_cannot_be_written_is_listed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::zoo("vit-tiny").unwrap();
    let error = export_zoo(&config, &folder.path().join("model.keras"), &ExportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("Keras has no layer for:\n  `class_token` (class_token)\n  `positions` (position_embedding)"), "{error}");
    assert!(error.ends_with("Export it to .onnx instead"), "{error}");
    // All of them, before weights are drawn; nothing stays behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = export_zoo(&config, "model.pb".as_ref(), &ExportOptions::default()).unwrap_err().to_string();
    assert_eq!(error, "model.pb should end in .onnx, .keras, .safetensors or .tflite, the formats that are written");
    let error = export(folder.path(), "model.onnx".as_ref(), &ExportOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains("config.toml"), "{error}");
}

#[test]
fn models_with_several_outputs_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.onnx", "model.tflite"] {
        let exported = export(&references().join("keras/graph.keras"), &folder.path().join(file), &ExportOptions::default()).unwrap();
        assert_eq!(exported.outputs, ["values", "classes"]);
        assert!(matches!(exported.verified, Verified::Measured { difference, .. } if difference < 1e-5), "{file}: {}", exported.verified);
    }
}

#[test]
fn a_file_that_is_not_imported_is_written_and_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("segnet.onnx");
    let mut config = Config::zoo("segnet").unwrap();
    for setting in ["model.width=0.0625", "model.input=[32, 32, 3]"] {
        config.set(setting).unwrap();
    }
    let exported = export_zoo(&config, &path, &ExportOptions::default()).unwrap();
    let text = exported.verified.to_string();
    assert!(text.starts_with("not compared: the file is not imported here because of\n    `"), "{text}");
    assert_eq!(read(&path).producer, "plimsoll");
}

#[test]
fn an_export_is_complete_or_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    // Its weights end early.
    let broken = folder.path().join("broken.keras");
    let mut bytes = std::fs::read(references().join("keras/words.keras")).unwrap();
    let length = bytes.len();
    bytes.truncate(length - 4);
    std::fs::write(&broken, bytes).unwrap();
    export(&broken, &path, &ExportOptions::default()).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the damaged file");
    // An export replaces a file of the same name when it is complete, and leaves no other.
    std::fs::remove_file(&broken).unwrap();
    std::fs::write(&path, "another file").unwrap();
    export(&references().join("keras/words.keras"), &path, &ExportOptions::default()).unwrap();
    assert_eq!(read(&path).producer, "plimsoll");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
