//! Networks as files of other programs, from outside.

use crate::Sandbox;

#[test]
fn a_trained_run_is_exported_to_every_format() {
    let sandbox = Sandbox::new("export-run");
    sandbox.succeed(&["train", "--quiet", "--epochs", "1", "--out", "run", "--no-calibrate"]);
    for (file, format) in [("digits.onnx", "ONNX"), ("digits.keras", "Keras"), ("digits.safetensors", "safetensors")] {
        let text = sandbox.succeed(&["export", "run", "--to", file]);
        assert!(text.starts_with(&format!("wrote {file} ({format}, ")), "{text}");
        assert!(text.contains("  input x: ") && text.contains("  outputs: prediction\n"), "{text}");
    }
    let document = sandbox.json(&["export", "run", "--to", "digits.keras", "--json"]);
    assert!(document["verified"]["greatest_difference"].as_f64().unwrap() < 1e-5, "{document}");
    assert_eq!(document["outputs"], serde_json::json!(["prediction"]));
    // What was written is read again.
    let text = sandbox.succeed(&["convert", "digits.keras", "again.safetensors"]);
    assert!(text.contains("greatest difference on 4 sample rows: "), "{text}");
    let summary = sandbox.succeed(&["import", "digits.keras"]);
    assert!(summary.contains("dense"), "{summary}");
}

#[test]
fn a_trained_run_is_exported_to_tflite_with_smaller_numbers() {
    let sandbox = Sandbox::new("export-tflite");
    sandbox.succeed(&["train", "--quiet", "--epochs", "1", "--out", "run", "--no-calibrate"]);
    let text = sandbox.succeed(&["export", "run", "--to", "digits.tflite"]);
    assert!(text.starts_with("wrote digits.tflite (TFLite, ") && text.contains("greatest difference on 4 sample rows: "), "{text}");
    let single = std::fs::metadata(sandbox.path("digits.tflite")).unwrap().len();
    let text = sandbox.succeed(&["export", "run", "--to", "half.tflite", "--f16"]);
    assert!(text.contains(" times smaller than in single precision; "), "{text}");
    sandbox.succeed(&["export", "run", "--to", "dynamic.tflite", "--dynamic"]);

    let int8 = ["export", "run", "--to", "int8.tflite", "--int8", "--calibrate", "run/config.toml", "--calibrate-rows", "16"];
    let text = sandbox.succeed(&int8);
    assert!(
        text.contains("  calibrated on 16 rows within ") && text.contains("\n  tensors that lose most (--json lists all):\n"),
        "{text}"
    );
    assert!(text.contains(" after, on 359 validation rows of the run\n"), "{text}");
    let small = std::fs::metadata(sandbox.path("int8.tflite")).unwrap().len();
    assert!(small * 3 < single, "{small} of {single}");
    let document = sandbox.json(&[&int8[..], &["--json", "--keep-float", "dense*"]].concat());
    let bytes = document["bytes"].as_u64().unwrap();
    assert!(bytes < single && document["gzip_bytes"].as_u64().unwrap() < bytes, "{document}");
    let tensor = &document["int8"]["tensors"][0];
    assert!(tensor["snr_db"].as_f64().unwrap() > 20.0 && tensor["cosine"].as_f64().unwrap() > 0.99, "{tensor}");
    assert_eq!(document["int8"]["float"][0]["why"], "kept by a pattern");

    let error = sandbox.fail(&["train", "int8.tflite"]).1;
    assert!(error.contains("int8.tflite is a TFLite file, which is for predictions"), "{error}");
    let error = sandbox.fail(&["export", "run", "--to", "int8.tflite", "--int8"]).1;
    assert!(error.contains("name a configuration with --calibrate, or train with `[quantize]`"), "{error}");
    let error = sandbox.fail(&["export", "run", "--to", "model.onnx", "--f16"]).1;
    assert!(error.contains("smaller ones are written to .tflite files"), "{error}");
}

/// Pruned, trained for int8 and distilled at the same time; the teacher is not needed afterwards.
#[test]
fn a_small_model_is_trained_and_exported_without_masks_calibration_and_teacher() {
    let sandbox = Sandbox::new("export-small-model");
    sandbox.succeed(&["train", "--quiet", "--epochs", "1", "--out", "teacher", "--no-calibrate"]);
    let keys =
        ["prune.final=0.75", "prune.end=80", "prune.frequency=10", "quantize.momentum=0.9", "distill.teacher=teacher", "model.zoo=mlp"];
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    let plan = sandbox.succeed(&[&["plan"][..], &keys].concat());
    for owner in ["pruning masks", "mask updates", "teacher"] {
        assert!(plan.contains(owner), "{plan}");
    }
    let text = sandbox.succeed(&[&["train", "--epochs", "2", "--out", "student", "--no-calibrate"][..], &keys].concat());
    assert!(text.contains("  sparsity    75.0 % of "), "{text}");
    std::fs::remove_dir_all(sandbox.path("teacher")).unwrap();
    let scores = sandbox.json(&["evaluate", "student", "--json"]);
    assert!(scores["accuracy"].as_f64().unwrap() > 0.3, "{scores}");
    let exported = sandbox.json(&["export", "student", "--to", "small.tflite", "--int8", "--json"]);
    assert_eq!(exported["int8"]["float"], serde_json::json!([]), "{exported}");
    let (bytes, gzip) = (exported["bytes"].as_u64().unwrap(), exported["gzip_bytes"].as_u64().unwrap());
    assert!(3 * gzip < 2 * bytes, "{gzip} of {bytes}");
    for weight in exported["sparsity"].as_array().unwrap() {
        assert!(4 * weight["zeros"].as_u64().unwrap() >= 3 * weight["numbers"].as_u64().unwrap() - 4, "{weight}");
    }
}

#[test]
fn exports_that_cannot_be_are_refused_with_a_reason() {
    let sandbox = Sandbox::new("export-refused");
    let error = sandbox.fail(&["export", "nowhere", "--to", "model.onnx"]).1;
    assert!(error.contains("nowhere is neither a run folder nor a model that can be read"), "{error}");
    let error = sandbox.fail(&["export", "--zoo", "bert-base", "--to", "model.keras", "--set", "model.context=8"]).1;
    assert!(error.contains("cannot write model.keras: Keras has no layer for:\n"), "{error}");
    assert!(!sandbox.path("model.keras").exists());
    let error = sandbox.fail(&["convert", "model.pt", "model.onnx"]).1;
    assert!(error.contains("model.pt is a PyTorch checkpoint") && error.contains("save_file(torch.load('model.pt'"), "{error}");
    let error = sandbox.fail(&["train", "--zoo", "lenet5", "--weights", "model.pth"]).1;
    assert!(error.contains("is a PyTorch checkpoint"), "{error}");
}
