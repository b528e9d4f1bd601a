//! The node tests of ONNX: one operator each, with inputs and outputs. A selection is in the repository;
//! `ONNX_NODE_TESTS` names the folder of all of them (`onnx/backend/test/data/node` of the Python package),
//! `ONNX_NODE_RESULTS` a file for the outcome of each.

use super::super::{OnnxImporter, Shapes, title, values::ElementKind};
use super::{difference, folder, run};
use plimsoll_core::Device;
use plimsoll_cpu::CpuDevice;

use plimsoll_formats::onnx::OnnxModel;
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::Tensor;
use plimsoll_formats::zip::Zip;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// The largest relative difference of a result: that of ONNX' own runner.
const TOLERANCE: f64 = 1e-3;

/// Inputs that say how a node works, by operator and place: shapes, axes, sizes. They are known when a model is
/// imported.
const SETTINGS: &[(&str, &[usize])] = &[
    ("Reshape", &[1]),
    ("Expand", &[1]),
    ("Tile", &[1]),
    ("Slice", &[1, 2, 3, 4]),
    ("Pad", &[1, 2, 3]),
    ("Squeeze", &[1]),
    ("Unsqueeze", &[1]),
    ("Split", &[1]),
    ("TopK", &[1]),
    ("Resize", &[1, 2, 3]),
    ("Upsample", &[1]),
    ("ConstantOfShape", &[0]),
    ("OneHot", &[1, 2]),
    ("Range", &[0, 1, 2]),
    ("CumSum", &[1]),
    ("Trilu", &[1]),
    ("CenterCropPad", &[1]),
    ("Compress", &[1]),
    ("Dropout", &[1, 2]),
    ("MaxUnpool", &[2]),
    ("ReverseSequence", &[1]),
    ("ReduceSum", &[1]),
    ("ReduceMean", &[1]),
    ("ReduceMax", &[1]),
    ("ReduceMin", &[1]),
    ("ReduceProd", &[1]),
    ("ReduceL1", &[1]),
    ("ReduceL2", &[1]),
    ("ReduceLogSum", &[1]),
    ("ReduceLogSumExp", &[1]),
    ("ReduceSumSquare", &[1]),
];

/// A test: the model, and its inputs and outputs.
struct Case {
    model: Vec<u8>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

/// What came of a test.
enum Outcome {
    /// The largest relative difference.
    Same(f64),
    /// It is not imported, for this reason.
    Refused(String),
    Wrong(String),
}

fn tensor(bytes: &[u8]) -> Result<(String, Tensor), plimsoll_formats::FormatError> {
    OnnxModel::open_tensor(Region::bytes(bytes.to_vec()))
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    match ElementKind::of(tensor.dtype) {
        ElementKind::Int => tensor.integers(1 << 24).unwrap().into_iter().map(|number| number as f64).collect(),
        _ => tensor.numbers(1 << 24).unwrap(),
    }
}

fn check(case: &Case, device: &Arc<dyn Device>) -> Outcome {
    let refused = |error: &dyn std::fmt::Display| Outcome::Refused(error.to_string());
    let saved = match OnnxModel::open(Region::bytes(case.model.clone()), &mut |_| unreachable!("tests have one file")) {
        Ok(saved) => saved,
        Err(error) => return refused(&error),
    };
    let mut given = BTreeMap::new();
    // Files of test data may have no names; they are in the order of the graph's inputs.
    for (bytes, info) in case.inputs.iter().zip(&saved.graph.inputs) {
        match tensor(bytes) {
            Ok((_, tensor)) => drop(given.insert(info.name.clone(), tensor)),
            Err(error) => return refused(&error),
        }
    }
    let setting = |name: &String| {
        let reads = |op: &str, places: &[usize], node: &plimsoll_formats::onnx::Node| {
            node.op == op && places.iter().any(|place| node.inputs.get(*place) == Some(name))
        };
        saved.graph.nodes.iter().any(|node| SETTINGS.iter().any(|(op, places)| reads(op, places, node)))
    };
    let few: BTreeMap<String, Tensor> = given.iter().filter(|(name, _)| setting(name)).map(|(name, t)| (name.clone(), t.clone())).collect();
    let outcome = with_constants(&saved, &given, &few, case, device);
    if let Outcome::Refused(reason) = &outcome
        && reason.contains("must be a constant")
    {
        // The input reaches a shape through other nodes.
        let whole = |(_, tensor): &(&String, &Tensor)| ElementKind::of(tensor.dtype) == ElementKind::Int || tensor.shape.is_empty();
        let more = given.iter().filter(whole).map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        return with_constants(&saved, &given, &more, case, device);
    }
    outcome
}

/// That the gradient of every real input can be computed; gives how many there are.
fn check_gradients(graph: &plimsoll_core::Graph, outputs: &[(String, super::super::Computed)]) -> Result<usize, String> {
    let mut graph = graph.clone();
    let mut loss = None;
    for (_, output) in outputs.iter().filter(|(_, output)| output.kind == ElementKind::Float) {
        let sum = graph.sum(output.value).map_err(|error| error.to_string())?;
        loss = Some(loss.map_or(Ok(sum), |before| graph.plus(before, sum)).map_err(|error| error.to_string())?);
    }
    let Some(loss) = loss else { return Ok(0) };
    let leaf = |node: &plimsoll_core::graph::Node| matches!(node.op, plimsoll_core::Op::Input(_));
    let leaves = graph.nodes().filter(|(_, node)| leaf(node)).map(|(_, node)| node.outputs[0]);
    let real: Vec<_> = leaves.filter(|value| graph.ty(*value).dtype.is_float()).collect();
    let gradients = plimsoll_core::autodiff::gradients(&mut graph, loss, &real).map_err(|error| error.to_string())?;
    gradients.iter().enumerate().for_each(|(index, gradient)| graph.output(&format!("gradient {index}"), *gradient));
    plimsoll_core::passes::optimize(&graph).map_err(|error| error.to_string())?;
    Ok(gradients.len())
}

fn with_constants(
    saved: &OnnxModel,
    given: &BTreeMap<String, Tensor>,
    constants: &BTreeMap<String, Tensor>,
    case: &Case,
    device: &Arc<dyn Device>,
) -> Outcome {
    let mut importer = match OnnxImporter::new(saved, "node") {
        Ok(importer) => importer,
        Err(problem) => return Outcome::Refused(problem),
    };
    let shapes = given.iter().map(|(name, t)| (name.clone(), t.shape.iter().map(|dim| *dim as usize).collect())).collect();
    let inputs = match importer.inputs(saved, &Shapes::Exact(shapes), constants) {
        Ok(inputs) => inputs,
        Err(problem) => return Outcome::Refused(problem),
    };
    let mut problems = Vec::new();
    importer.nodes(saved, &mut problems);
    if !problems.is_empty() {
        return Outcome::Refused(problems.join("; "));
    }
    let outputs = match importer.outputs(saved) {
        Ok(outputs) => outputs,
        Err(problem) => return Outcome::Refused(problem),
    };
    let mut graph = importer.graph.clone();
    outputs.iter().enumerate().for_each(|(index, (_, output))| graph.output(&index.to_string(), output.value));
    if let Err(error) = check_gradients(&importer.graph, &outputs) {
        return Outcome::Wrong(format!("its gradient: {error}"));
    }
    let columns: Vec<Vec<f64>> = inputs.iter().map(|input| elements(&given[&input.name])).collect();
    let states: Vec<Vec<f64>> = graph.states().iter().map(|state| importer.state(&state.name)).collect();
    let got = match run(device, &graph, 1, &columns, &states) {
        Ok(got) => got,
        Err(error) => return Outcome::Wrong(error),
    };
    let mut worst: f64 = 0.0;
    for (index, (got, wanted)) in got.iter().zip(&case.outputs).enumerate() {
        let wanted = match tensor(wanted) {
            Ok((_, tensor)) => tensor,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let shape: Vec<u64> = importer.dims(&outputs[index].1).iter().map(|dim| dim.factor() as u64).collect();
        if shape != wanted.shape {
            return Outcome::Wrong(format!("output {index} has the shape {shape:?}, not {:?}", wanted.shape));
        }
        worst = worst.max(difference(got, &elements(&wanted)));
    }
    if worst <= TOLERANCE { Outcome::Same(worst) } else { Outcome::Wrong(format!("max|Δ| / max|reference| is {worst:.1e}")) }
}

/// All cases of a folder of ONNX, by name.
fn from_folder(folder: &Path) -> BTreeMap<String, Case> {
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let mut cases = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let data = path.join("test_data_set_0");
        let list = |kind: &str| -> Vec<Vec<u8>> {
            let file = |index: usize| data.join(format!("{kind}_{index}.pb"));
            (0..).take_while(|index| file(*index).exists()).map(|index| read(&file(index))).collect()
        };
        let case = Case { model: read(&path.join("model.onnx")), inputs: list("input"), outputs: list("output") };
        cases.insert(path.file_name().unwrap().to_string_lossy().into_owned(), case);
    }
    cases
}

/// All cases of the archive in the repository.
pub(super) fn from_archive() -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
    let zip = Zip::open(Region::file(File::open(folder().join("nodes.zip")).unwrap()).unwrap()).unwrap();
    let mut cases: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for name in zip.names() {
        let (case, file) = name.split_once('/').unwrap();
        cases.entry(case.to_string()).or_default().push((file.to_string(), zip.read(name, 1 << 20).unwrap().unwrap()));
    }
    cases
}

fn all_cases() -> BTreeMap<String, Case> {
    if let Some(folder) = std::env::var_os("ONNX_NODE_TESTS") {
        return from_folder(folder.as_ref());
    }
    let case = |(name, files): (String, Vec<(String, Vec<u8>)>)| {
        let find = |wanted: &str| files.iter().find(|(file, _)| file == wanted).map(|(_, bytes)| bytes.clone());
        let list = |kind: &str| (0..).map_while(|index| find(&format!("{kind}_{index}.pb"))).collect();
        (name, Case { model: find("model.onnx").unwrap(), inputs: list("input"), outputs: list("output") })
    };
    from_archive().into_iter().map(case).collect()
}

#[test]
fn operators_compute_what_onnx_says() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let whole = std::env::var_os("ONNX_NODE_TESTS").is_some();
    let (mut results, mut wrong, mut same) = (Vec::new(), Vec::new(), 0);
    for (name, case) in all_cases() {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&case, &device))).unwrap_or(Outcome::Wrong("panicked".to_string()));
        results.push(match &outcome {
            Outcome::Same(error) => json!({ "case": name, "outcome": "same", "difference": error }),
            Outcome::Refused(reason) => json!({ "case": name, "outcome": "refused", "reason": reason }),
            Outcome::Wrong(what) => json!({ "case": name, "outcome": "wrong", "reason": what }),
        });
        match outcome {
            Outcome::Same(_) => same += 1,
            Outcome::Refused(reason) if !whole => wrong.push(format!("{name}: {reason}")),
            Outcome::Refused(_) => {}
            Outcome::Wrong(what) => wrong.push(format!("{name}: {what}")),
        }
    }
    if let Some(path) = std::env::var_os("ONNX_NODE_RESULTS") {
        std::fs::write(path, serde_json::to_string_pretty(&results).unwrap()).unwrap();
        return;
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), wrong.len() + same, wrong.join("\n"));
    assert!(same >= 100, "only {same} cases ran");
}

#[test]
fn the_table_of_operators_has_no_doubles() {
    let names = super::super::ops::names();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    assert!(names.len() > 130);
    let node = plimsoll_formats::onnx::Node { op: "Relu".to_string(), ..Default::default() };
    assert_eq!(title(&node), "relu");
}
