//! Models of ONNX from outside: planned, imported, fine-tuned and used.

use crate::Sandbox;
use crate::import::npy;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll/tests/references/onnx").join(name)
}

fn case(file: &str) -> Value {
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(model("models.json")).unwrap()).unwrap();
    cases.as_array().unwrap().iter().find(|case| case["file"] == file).unwrap().clone()
}

fn numbers(tensor: &Value) -> Vec<f32> {
    tensor["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn shape(tensor: &Value) -> Vec<usize> {
    tensor["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect()
}

/// Predicts the input of a case, in the order of axes that `reorder` gives, and compares with the reference.
fn check(sandbox: &Sandbox, file: &str, shape: &[usize], values: Vec<f32>) {
    sandbox.write("x.npy", npy(shape, values.into_iter()));
    let path = model(file).display().to_string();
    sandbox.succeed(&["predict", &path, "--input", "x.npy", "--out", "y.npy", "--host-memory", "64MiB"]);
    let written = std::fs::read(sandbox.path("y.npy")).unwrap();
    let wanted = numbers(&case(file)["outputs"][0]);
    let got = written[written.len() - wanted.len() * 4..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let largest = wanted.iter().fold(0f32, |most, number| most.max(number.abs()));
    let difference = got.zip(&wanted).fold(0f32, |most, (got, wanted)| most.max((got - wanted).abs()));
    assert!(difference <= 1e-4 * largest, "{file}: max|Δ| is {difference}, max|reference| {largest}");
    std::fs::remove_file(sandbox.path("y.npy")).unwrap();
}

#[test]
fn a_model_of_onnx_predicts_within_a_budget_what_onnxruntime_predicts() {
    let sandbox = Sandbox::new("onnx-predict");
    for file in ["residual.onnx", "channels_last.onnx", "recurrent.onnx"] {
        let input = case(file)["inputs"][0].clone();
        check(&sandbox, file, &shape(&input), numbers(&input));
    }
    // Rows with their channels last, as images are decoded, give the same.
    let input = case("residual.onnx")["inputs"][0].clone();
    let &[rows, channels, height, width] = &shape(&input)[..] else { panic!("images") };
    let (values, mut last) = (numbers(&input), Vec::new());
    for row in 0..rows {
        for place in 0..height * width {
            last.extend((0..channels).map(|channel| values[(row * channels + channel) * height * width + place]));
        }
    }
    check(&sandbox, "residual.onnx", &[rows, height, width, channels], last);
}

#[test]
fn a_model_of_onnx_is_planned_imported_and_fine_tuned() {
    let sandbox = Sandbox::new("onnx-plan");
    let file = model("residual.onnx").display().to_string();
    let peak = |more: &[&str]| {
        let plan = ["plan", &file, "--batch", "32", "--host-memory", "64MiB", "--json", "--no-calibrate"];
        sandbox.json(&[&plan[..], more].concat())["peak_bytes"]["host"].as_u64().unwrap()
    };
    let training = peak(&[]);
    assert!(training <= 64 << 20);
    // Frozen layers have neither gradients nor optimizer state; predictions hold nothing for training.
    let frozen = peak(&["--set", "model.freeze=true", "--set", "model.replace_head={classes = 3}"]);
    assert!(frozen < training && peak(&["--inference"]) < training, "{frozen} {training}");
    let text = sandbox.succeed(&["import", &file, "--to", "run.toml", "--classes", "3", "--freeze"]);
    assert!(text.contains("conv1") && text.contains("fc"), "{text}");
    let config = std::fs::read_to_string(sandbox.path("run.toml")).unwrap();
    assert!(config.contains("# Column `x` (input): numbers of shape [3, 12, 8], or with the channels last.\n"), "{config}");
    sandbox.succeed(&["train", "run.toml", "--quiet", "--epochs", "1", "--out", "run", "--set", "data.rows=64"]);
    assert!(sandbox.path("run/weights.safetensors").exists());
    for other in ["transformer.onnx", "recurrent.onnx", "mobile.onnx", "decoder.onnx"] {
        let other = model(other).display().to_string();
        sandbox.succeed(&["train", &other, "--epochs", "1", "--quiet", "--host-memory", "64MiB", "--set", "data.rows=64"]);
    }
    let error = sandbox.fail(&["plan", &model("refused.onnx").display().to_string()]).1;
    assert!(error.contains("`places` (NonZero): the shape of its output depends on the data\n"), "{error}");
    assert!(error.contains("`determinant` (Det)") && error.contains("`list` (SequenceConstruct)"), "{error}");
}
