//! Columns of tables against Keras' preprocessing layers: `tests/references/preprocessing.py` writes what they give.

use super::Config;
use serde_json::Value;
use std::path::Path;

#[test]
fn columns_are_encoded_as_keras_layers_encode_them() {
    let references = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references/preprocessing.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(references).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let quoted = |cell: &Value| format!("\"{}\",0\n", cell.as_str().unwrap().replace('"', "\"\""));
        let rows: String = case["cells"].as_array().unwrap().iter().map(quoted).collect();
        std::fs::write(&path, format!("c,y\n{rows}")).unwrap();
        let options = case["options"].as_str().unwrap();
        let toml = format!(
            "[data]\nsource = \"csv\"\npath = {:?}\ntarget = \"y\"\nbatch = 1000\n[data.columns]\nc = {options}\n",
            path.display().to_string()
        );
        let config = Config::from_text(&toml).unwrap();
        let sample = config.pipeline().and_then(|pipeline| pipeline.sample(1000)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = case["rows"].as_array().unwrap();
        for (at, wanted) in expected.iter().enumerate() {
            let wanted: Vec<f32> = wanted.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect();
            let found = sample.values(0, at);
            let close = found.len() == wanted.len() && found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0));
            assert!(close, "{name}, row {at} ({}): {found:?}, but Keras has {wanted:?}", case["cells"][at]);
        }
    }
    assert!(cases.len() >= 30);
}
