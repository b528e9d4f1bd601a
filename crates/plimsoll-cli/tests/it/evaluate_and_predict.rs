//! `plimsoll evaluate` and `plimsoll predict` on a finished run.

use super::Sandbox;

fn run(sandbox: &Sandbox) -> serde_json::Value {
    let document = sandbox.json(&["train", "--json", "--epochs", "2", "--seed", "1", "--out", "run"]);
    document["epochs"][1].clone()
}

#[test]
fn evaluate_reproduces_the_scores_of_a_run() {
    let sandbox = Sandbox::new("evaluate");
    let last = run(&sandbox);
    let scores = sandbox.json(&["evaluate", "run", "--json"]);
    assert_eq!((&scores["loss"], &scores["accuracy"]), (&last["val_loss"], &last["val_accuracy"]));
    assert_eq!(scores["rows"], "held-out");
    // The classes are those that predictions have, and their counts give the accuracy.
    let report = &scores["report"];
    let matrix: Vec<Vec<u64>> = serde_json::from_value(report["confusion_matrix"].clone()).unwrap();
    let (all, right): (u64, u64) = (matrix.iter().flatten().sum(), (0..10).map(|class| matrix[class][class]).sum());
    assert_eq!(all, 359);
    assert!((right as f64 / 359.0 - scores["accuracy"].as_f64().unwrap()).abs() < 1e-6, "{scores}");
    assert!(report["mean"]["auc"].as_f64().unwrap() > 0.95 && report["classes"][3]["f1"].as_f64().unwrap() > 0.6, "{report}");
    let said = sandbox.succeed(&["evaluate", "run"]);
    assert!(said.contains("precision  recall      F1     AUC  support") && said.contains("← predicted"), "{said}");
    let on_training_rows = sandbox.json(&["evaluate", "run", "--json", "--rows", "training"]);
    assert!(on_training_rows["accuracy"].as_f64().unwrap() > 0.8 && on_training_rows["loss"] != scores["loss"]);
    let (code, error) = sandbox.fail(&["evaluate", "run", "--host-memory", "1MiB"]);
    assert_eq!(code, 3, "{error}");
    let (code, error) = sandbox.fail(&["evaluate", "nowhere"]);
    assert!(code == 1 && error.contains("nowhere"), "{error}");
    std::fs::remove_file(sandbox.path("run/weights.safetensors")).unwrap();
    let (_, error) = sandbox.fail(&["evaluate", "run"]);
    assert_eq!(error, "error: run has no weights.safetensors yet; train the run to its end");
}

#[test]
fn predict_writes_one_line_per_row() {
    let sandbox = Sandbox::new("predict");
    let last = run(&sandbox);
    let said = sandbox.json(&["predict", "run", "--out", "p.npy", "--json"]);
    let said = &said["outputs"][0];
    assert_eq!((said["count"].as_u64(), &said["shape"]), (Some(359), &serde_json::json!([10])));
    sandbox.succeed(&["predict", "run", "--out", "p.csv"]);
    let array = std::fs::read(sandbox.path("p.npy")).unwrap();
    assert!(array.starts_with(b"\x93NUMPY\x01\x00") && array.len() == 128 + 359 * 10 * 4);
    assert!(String::from_utf8_lossy(&array[10..128]).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (359, 10, ), }"));
    let table = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("row,class,probability"));
    let mut right = 0;
    for (i, (line, row)) in lines.zip(array[128..].chunks_exact(40)).enumerate() {
        let numbers: Vec<f64> = row.chunks_exact(4).map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()))).collect();
        let cells: Vec<&str> = line.split(',').collect();
        let largest = (0..10).max_by(|a, b| numbers[*a].total_cmp(&numbers[*b])).unwrap();
        assert_eq!((cells[0], cells[1]), (&*i.to_string(), &*largest.to_string()));
        let probability = 1.0 / numbers.iter().map(|number| (number - numbers[largest]).exp()).sum::<f64>();
        assert!((cells[2].parse::<f64>().unwrap() - probability).abs() < 1e-6, "{line}");
        right += 1;
    }
    assert_eq!(right, 359);
    sandbox.succeed(&["predict", "run", "--out", "p.csv", "--top", "3"]);
    let three = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
    assert_eq!(three.lines().next(), Some("row,class,probability,class_2,probability_2,class_3,probability_3"));
    let first = table.lines().nth(1).unwrap();
    assert!(three.lines().nth(1).unwrap().starts_with(first), "{first}");
    assert!(last["val_accuracy"].as_f64().unwrap() > 0.8);
    let (_, error) = sandbox.fail(&["predict", "run", "--out", "p.txt"]);
    assert_eq!(error, "error: `--out p.txt` should end in .npy or .csv, or be a folder for masks");
}

#[test]
fn predict_writes_one_file_per_output() {
    let sandbox = Sandbox::new("results");
    let config = r#"
[data]
source = "digits"

[model]
outputs = ["digit", "again"]
[[model.layers]]
type = "flatten"
[[model.layers]]
type = "dense"
name = "digit"
units = 10
[[model.layers]]
type = "dense"
name = "again"
units = 12

[train]
epochs = 1
batch = 32
loss = { digit = { type = "softmax_cross_entropy", labels = "y" }, again = { type = "softmax_cross_entropy", labels = "y", weight = 0.5 } }
"#;
    std::fs::write(sandbox.path("two.toml"), config).unwrap();
    let trained = sandbox.json(&["train", "two.toml", "--json", "--out", "run"]);
    let scores = sandbox.json(&["evaluate", "run", "--json"]);
    for name in ["loss", "digit_loss", "again_loss", "again_accuracy"] {
        assert!(scores[name].is_f64(), "{name} in {scores}");
        assert_eq!(scores[name], trained["epochs"][0][format!("val_{name}")], "{name}");
    }
    let said = sandbox.json(&["predict", "run", "--out", "p.npy", "--json"]);
    let files: Vec<&str> = said["outputs"].as_array().unwrap().iter().map(|output| output["out"].as_str().unwrap()).collect();
    assert_eq!(files, ["p-digit.npy", "p-again.npy"]);
    for (file, classes) in files.into_iter().zip([10, 12]) {
        assert_eq!(std::fs::metadata(sandbox.path(file)).unwrap().len(), 128 + 359 * classes * 4);
    }
    assert!(!sandbox.path("p.npy").exists());
}
