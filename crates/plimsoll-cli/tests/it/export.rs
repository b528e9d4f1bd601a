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
