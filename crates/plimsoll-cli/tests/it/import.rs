//! Models of Keras from outside: planned, imported, fine-tuned and used.

use crate::Sandbox;
use std::path::{Path, PathBuf};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll/tests/references/keras").join(name)
}

/// Writes an array as NumPy does.
pub(crate) fn npy(shape: &[usize], values: impl Iterator<Item = f32>) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(|dim| format!("{dim},")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims.join(" "));
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let head = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    head.into_iter().chain(values.flat_map(f32::to_le_bytes)).collect()
}

#[test]
fn a_model_of_keras_is_planned_and_trained_within_a_budget() {
    let sandbox = Sandbox::new("import-plan");
    let file = model("graph.keras").display().to_string();
    let peak = |more: &[&str]| {
        let plan = ["plan", &file, "--batch", "8", "--host-memory", "64MiB", "--json", "--no-calibrate"];
        sandbox.json(&[&plan[..], more].concat())["peak_bytes"]["host"].as_u64().unwrap()
    };
    assert!(peak(&[]) <= 64 << 20);
    // Frozen layers have neither gradients nor optimizer state.
    assert!(peak(&["--set", "model.freeze=[\"first\", \"inner\"]"]) < peak(&[]));
    let error = sandbox.fail(&["plan", &file, "--set", "model.freeze=[\"block9*\"]"]).1;
    assert!(error.contains("no layer matches `block9*`; the model has"), "{error}");
    // Legacy files and files of Keras 2 have the same commands.
    for other in ["words.h5", "keras2.h5", "shared.keras"] {
        let other = model(other).display().to_string();
        sandbox.succeed(&["train", &other, "--epochs", "1", "--quiet", "--host-memory", "64MiB", "--set", "data.rows=64"]);
    }
    let error = sandbox.fail(&["plan", &model("refused.keras").display().to_string()]).1;
    assert!(error.contains("`conv3d` (Conv3D): there is no such layer here\n") && error.contains("`unit_normalization`"), "{error}");
}

#[test]
fn an_imported_configuration_trains_a_new_head_and_nothing_else() {
    let sandbox = Sandbox::new("import-head");
    let file = model("keras2.h5").display().to_string();
    let text = sandbox.succeed(&["import", &file, "--to", "run.toml", "--classes", "3", "--freeze"]);
    assert!(text.contains("body/conv2d") && text.contains("run.toml"), "{text}");
    let error = sandbox.fail(&["import", &file, "--to", "run.toml"]).1;
    assert!(error.contains("run.toml exists already"), "{error}");
    sandbox.succeed(&["train", "run.toml", "--quiet", "--epochs", "2", "--out", "run", "--set", "data.rows=64"]);
    let weights = std::fs::read(sandbox.path("run/weights.safetensors")).unwrap();
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        let offset = |index: usize| header[name]["data_offsets"][index].as_u64().unwrap() as usize + 8 + length;
        weights[offset(0)..offset(1)].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    assert_eq!(header["head/kernel"]["shape"], serde_json::json!([3, 3]));
    // Weights of the file have three digits: frozen ones still do, those of the new head do not.
    let digits = |value: &f32| (value * 1000.0 - (value * 1000.0).round()).abs() < 1e-3;
    assert!(numbers("body/conv2d/kernel").iter().all(digits));
    assert!(numbers("body/batch_normalization/moving_mean").iter().all(digits));
    assert!(!numbers("head/kernel").iter().all(digits));
}

#[test]
fn a_model_of_keras_predicts_within_a_budget_what_keras_predicts() {
    let sandbox = Sandbox::new("import-predict");
    let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(model("models.json")).unwrap()).unwrap();
    let case = cases.as_array().unwrap().iter().find(|case| case["file"] == "images.keras").unwrap();
    let numbers = |tensor: &serde_json::Value| -> Vec<f32> {
        tensor["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    };
    let shape: Vec<usize> = case["inputs"][0]["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect();
    sandbox.write("x.npy", npy(&shape, numbers(&case["inputs"][0]).into_iter()));
    let file = model("images.keras").display().to_string();
    sandbox.succeed(&["predict", &file, "--input", "x.npy", "--out", "y.npy", "--host-memory", "64MiB"]);
    let written = std::fs::read(sandbox.path("y.npy")).unwrap();
    let wanted = numbers(&case["outputs"][0]);
    let got: Vec<f32> =
        written[written.len() - wanted.len() * 4..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let largest = wanted.iter().fold(0f32, |most, number| most.max(number.abs()));
    let difference = got.iter().zip(&wanted).fold(0f32, |most, (got, wanted)| most.max((got - wanted).abs()));
    assert!(difference <= 1e-4 * largest, "max|Δ| is {difference}, max|reference| {largest}");
}

#[test]
fn training_continues_from_the_state_of_the_optimizer() {
    let sandbox = Sandbox::new("import-optimizer");
    let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(model("optimizers.json")).unwrap()).unwrap();
    let numbers =
        |value: &serde_json::Value| -> Vec<f64> { value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect() };
    for case in cases.as_array().unwrap() {
        let (name, steps) = (case["file"].as_str().unwrap(), case["steps"].as_u64().unwrap());
        let file = model(name).display().to_string();
        let document = sandbox.json(&["import", &file, "--json"]);
        if name.contains("adamax") {
            let notes = document["notes"].to_string();
            assert!(notes.contains("the state of the optimizer Adamax (") && notes.contains("there is no such optimizer here"), "{notes}");
            continue;
        }
        assert_eq!((&document["optimizer"]["steps"], &document["notes"][1]), (&case["steps"], &serde_json::Value::Null), "{name}");
        let rows = numbers(&case["y"]).len() / 2;
        let mut shape = vec![rows];
        shape.extend(numbers(&case["shape"]).iter().map(|dim| *dim as usize));
        sandbox.write("x.npy", npy(&shape, numbers(&case["x"]).into_iter().map(|number| number as f32)));
        sandbox.write("y.npy", npy(&[rows, 2], numbers(&case["y"]).into_iter().map(|number| number as f32)));
        let config = format!(
            "[model]\nfile = {file:?}\n[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\nshuffle = false\n\
             [train]\nbatch = {rows}\nepochs = {steps}\n"
        );
        sandbox.write("run.toml", config.into_bytes());
        let losses = |out: &str, more: &[&str]| -> Vec<f64> {
            sandbox.succeed(&[&["train", "run.toml", "--quiet", "--no-calibrate", "--out", out][..], more].concat());
            let log = std::fs::read_to_string(sandbox.path(out).join("log.jsonl")).unwrap();
            log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap()).collect()
        };
        let wanted = numbers(&case["losses"]);
        let differs = |found: &[f64]| found.iter().zip(&wanted).fold(0f64, |most, (found, wanted)| most.max((found / wanted - 1.0).abs()));
        let found = losses(name, &[]);
        assert_eq!(found.len() as u64, steps);
        assert!(differs(&found) < 1e-5, "{name}: {found:?} after {wanted:?} in Keras");
        if name == "optimizer_adam.keras" {
            // An optimizer of the configuration begins from scratch.
            let fresh = losses("fresh", &["--set", "train.optimizer={ type = \"adam\", lr = 0.02 }"]);
            assert!(differs(&fresh) > 1e-3, "{fresh:?}");
        }
    }
}

#[test]
fn files_that_are_no_models_are_refused_with_what_to_do() {
    let sandbox = Sandbox::new("import-no-models");
    sandbox.write("x.npy", npy(&[2, 3], std::iter::repeat_n(0.5, 6)));
    sandbox.write("model.pt", b"PK\x03\x04 a pickle");
    sandbox.write("weights.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    let predict = |file: &str| sandbox.fail(&["predict", file, "--input", "x.npy", "--out", "y.npy"]).1;
    for command in [&["plan", "model.pt"][..], &["train", "model.pt"], &["import", "model.pt"], &["convert", "model.pt", "model.onnx"]] {
        let error = sandbox.fail(command).1;
        assert!(error.contains("is a PyTorch checkpoint") && error.contains("save_file(torch.load("), "{command:?}: {error}");
    }
    assert!(predict("model.pt").contains("model.pt is a PyTorch checkpoint"));
    for error in [sandbox.fail(&["plan", "weights.safetensors"]).1, predict("weights.safetensors")] {
        assert!(error.contains("weights.safetensors has weights and no network. Name the network too: `plimsoll train --zoo"), "{error}");
    }
    std::fs::copy(model("images.keras"), sandbox.path("images.onnx")).unwrap();
    let error = predict("images.onnx");
    assert!(error.contains("images.onnx is not an ONNX model but an archive, as Keras writes them; if"), "{error}");
    // Data of a model that lies in another file.
    std::fs::copy(model("../onnx/channels_last.onnx"), sandbox.path("alone.onnx")).unwrap();
    let error = predict("alone.onnx");
    assert!(error.contains("cannot import alone.onnx: its data is in `channels_last.onnx.data`, which cannot be read"), "{error}");
    assert!(error.contains("copy it into the folder of the model"), "{error}");
}

#[test]
fn rows_of_another_shape_than_the_model_takes_are_refused() {
    let sandbox = Sandbox::new("import-shapes");
    let predict = |file: PathBuf| sandbox.fail(&["predict", &file.display().to_string(), "--input", "x.npy", "--out", "y.npy"]).1;
    // Convolutions could be computed for images of any size.
    for shape in [vec![2, 8, 8, 4], vec![2, 9, 7, 3], vec![2, 5]] {
        sandbox.write("x.npy", npy(&shape, std::iter::repeat_n(0.5, shape.iter().product())));
        let (error, row) = (predict(model("images.keras")), &shape[1..]);
        assert!(error.contains(&format!("the rows have the shape {row:?}, but `input_layer_5` of ")), "{error}");
        assert!(error.contains("images.keras takes rows of the shape [9, 7, 4]"), "{error}");
    }
    sandbox.write("x.npy", npy(&[2, 5], std::iter::repeat_n(0.5, 10)));
    assert!(predict(model("../onnx/residual.onnx")).contains("takes rows of the shape [3, 12, 8]"));
}
