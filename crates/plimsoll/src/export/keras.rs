//! A network as a `.keras` archive: its layers as a functional model, and the weights where Keras looks for them.

use super::TrainedNetwork;
use crate::error::{Error, Result};
use crate::files;
use crate::import::Numbered;
use crate::nn::{CallInput, KerasElements, KerasLayer, KerasWeight};
use plimsoll_core::{DType, Shape};
use plimsoll_formats::hdf5::{Hdf5Node, Layout};
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::zip::ZipWriter;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The version of Keras whose format is written.
const KERAS_VERSION: &str = "3.0.0";

/// A layer of the written model.
struct WrittenLayer {
    name: String,
    layer: KerasLayer,
    trainable: bool,
    /// The layer of the network that its weights belong to.
    of: String,
    /// The tensors that each call reads.
    calls: Vec<Vec<CallResult>>,
}

/// The result of a call of a written layer.
#[derive(Clone, Debug)]
struct CallResult {
    /// The layer, by its position among the written ones; inputs come first.
    layer: usize,
    call: usize,
    shape: Shape,
    integers: bool,
}

/// The configuration alone, or all layers that Keras has no counterpart for.
pub(super) fn configuration(network: &TrainedNetwork) -> Result<Value> {
    let (written, outputs) = layers(network)?;
    let order = keras_order(&written, &outputs);
    Ok(config(network, &written, &order, &outputs))
}

/// Writes the archive, or lists all layers that Keras has no counterpart for.
pub(super) fn write(network: &TrainedNetwork, path: &Path) -> Result<()> {
    let (written, outputs) = layers(network)?;
    let order = keras_order(&written, &outputs);
    let config = config(network, &written, &order, &outputs);
    let weights = weights(network, &written, &order)?;
    let mut root = Hdf5Node::group();
    root.insert("vars", Hdf5Node::group());
    for (path, (_, _, shape)) in &weights {
        root.insert(path, Hdf5Node::Dataset { dtype: Stored::F32, shape: shape.iter().map(|dim| *dim as u64).collect() });
    }
    let layout = Layout::new(&root);
    let mut failed = None;
    let result = files::replace(path, |file| {
        let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let mut zip = ZipWriter::new(BufWriter::new(file));
        let metadata = json!({ "keras_version": KERAS_VERSION, "date_saved": "1980-01-01@00:00:00" }).to_string();
        let config = config.to_string();
        for (name, text) in [("metadata.json", &metadata), ("config.json", &config)] {
            zip.member(name, text.len() as u64, |out| out.write_all(text.as_bytes())).map_err(error)?;
        }
        let elements = |path: &str, out: &mut dyn Write| {
            let (weight, of, _) = &weights[path];
            match read(network, weight, of) {
                Ok(numbers) => numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes())),
                Err(error) => {
                    failed = Some(error);
                    Err(io::Error::other("a weight cannot be read"))
                }
            }
        };
        zip.member("model.weights.h5", layout.length(), |out| layout.write(out, elements)).map_err(error)?;
        zip.finish().and_then(|mut out| out.flush()).map_err(error)
    });
    match failed {
        Some(error) => Err(error),
        None => result,
    }
}

/// The elements of a weight of Keras.
fn read(network: &TrainedNetwork, weight: &KerasWeight, of: &str) -> Result<Vec<f32>> {
    match &weight.of {
        KerasElements::All(names) => {
            let mut all = Vec::new();
            for name in names {
                all.append(&mut network.weights.read(&format!("{of}/{name}"))?);
            }
            Ok(all)
        }
        KerasElements::Columns { name, from, to, wide } => {
            let all = network.weights.read(&format!("{of}/{name}"))?;
            Ok(all.chunks_exact(*wide).flat_map(|row| row[*from..*to].iter().copied()).collect())
        }
    }
}

/// The layers of the written model, inputs first, and its outputs.
fn layers(network: &TrainedNetwork) -> Result<(Vec<WrittenLayer>, Vec<CallResult>)> {
    let (graph, lowered) = network.model.graph(&network.types(), false)?;
    let mut names: HashSet<String> = HashSet::new();
    let mut unique = |wanted: &str| {
        // Keras allows no `/` in the names of layers.
        let wanted = wanted.replace('/', "_");
        let mut name = wanted.clone();
        let mut count = 0;
        while !names.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}_{count}");
        }
        name
    };
    let mut written: Vec<WrittenLayer> = Vec::new();
    let mut inputs = Vec::new();
    for input in &network.inputs {
        let dtype = match input.ty.dtype {
            DType::I32 => "int32",
            DType::U8 => "uint8",
            _ => "float32",
        };
        let config = json!({ "batch_shape": dims(&input.ty.shape), "dtype": dtype, "sparse": false });
        let (layer, name) = (KerasLayer::new("InputLayer", config), unique(&input.name));
        inputs.push(CallResult { layer: written.len(), call: 0, shape: input.ty.shape.clone(), integers: input.integers() });
        written.push(WrittenLayer { name, layer, trainable: true, of: String::new(), calls: vec![Vec::new()] });
    }
    let mut results: Vec<CallResult> = Vec::new();
    let mut positive: Vec<bool> = Vec::new();
    let mut known: HashMap<String, Vec<usize>> = HashMap::new();
    let mut problems = Vec::new();
    for (call, value) in network.model.calls().zip(&lowered.results) {
        let mut read: Vec<CallResult> = call
            .inputs
            .iter()
            .map(|input| match input {
                CallInput::Input(i) => inputs[*i].clone(),
                CallInput::Call(i) => results[*i].clone(),
            })
            .collect();
        let shapes: Vec<Shape> = read.iter().map(|symbol| symbol.shape.clone()).collect();
        let from_positive = call.inputs.iter().all(|input| matches!(input, CallInput::Call(i) if positive[*i]));
        let own = call.layer.last_activation();
        positive.push(own.map_or(from_positive && call.layer.keeps_sign(), |last| last.is_nonnegative()));
        let output = graph.shape(*value).clone();
        let chain = match known.get(call.name) {
            Some(chain) => chain.clone(),
            None => {
                let Some(layers) = call.layer.to_keras(&shapes).filter(|layers| fits(layers, from_positive)) else {
                    problems.push(format!("`{}` ({})", call.name, call.layer.kind()));
                    results.push(CallResult { layer: 0, call: 0, shape: output, integers: false });
                    continue;
                };
                let count = layers.len();
                let first = written.len();
                for (i, layer) in layers.into_iter().enumerate() {
                    let name = unique(&if i + 1 == count { call.name.to_string() } else { format!("{}_padding", call.name) });
                    written.push(WrittenLayer { name, layer, trainable: call.trainable, of: call.name.to_string(), calls: Vec::new() });
                }
                let chain: Vec<usize> = (first..written.len()).collect();
                known.insert(call.name.to_string(), chain.clone());
                chain
            }
        };
        for (i, layer) in chain.iter().enumerate() {
            let shape = if i + 1 == chain.len() { output.clone() } else { padded(&written[*layer].layer, &read[0].shape) };
            written[*layer].calls.push(read);
            read = vec![CallResult { layer: *layer, call: written[*layer].calls.len() - 1, shape, integers: false }];
        }
        results.push(read.remove(0));
    }
    if !problems.is_empty() {
        problems.dedup();
        return Err(Error::Config(format!("Keras has no layer for:\n  {}\nExport it to .onnx instead", problems.join("\n  "))));
    }
    let output = |call: CallInput| match call {
        CallInput::Input(i) => inputs[i].clone(),
        CallInput::Call(i) => results[i].clone(),
    };
    Ok((written, network.model.output_calls().into_iter().map(output).collect()))
}

/// Whether zeros before a pooling compute the same: before a maximum of numbers that are not negative, but not before a
/// mean.
fn fits(layers: &[KerasLayer], positive: bool) -> bool {
    match layers {
        [zeros, pool] if zeros.class == "ZeroPadding2D" => match pool.class {
            "MaxPooling2D" => positive,
            "AveragePooling2D" => false,
            _ => true,
        },
        _ => true,
    }
}

/// The shape behind a layer of zeros.
fn padded(layer: &KerasLayer, shape: &Shape) -> Shape {
    let edges = &layer.config["padding"];
    let along = |axis: usize| {
        let [before, after] = [0, 1].map(|side| edges[axis - 1][side].as_u64().unwrap_or(0) as usize);
        plimsoll_core::Dim::fixed(shape.dims()[axis].factor() + before + after)
    };
    if layer.class == "ZeroPadding2D" && shape.rank() == 4 { shape.with(1, along(1)).with(2, along(2)) } else { shape.clone() }
}

fn dims(shape: &Shape) -> Vec<Option<usize>> {
    shape.dims().iter().map(|dim| dim.as_fixed()).collect()
}

/// The order in which Keras keeps the layers of a functional model, which numbers the groups of weights: by depth from
/// the outputs, within a depth as a depth-first search from the outputs meets them.
fn keras_order(written: &[WrittenLayer], outputs: &[CallResult]) -> Vec<usize> {
    let mut met: Vec<Option<usize>> = vec![None; written.len()];
    let (mut finished, mut count): (Vec<(usize, usize)>, usize) = (Vec::new(), 0);
    let mut done: HashSet<(usize, usize)> = HashSet::new();
    for output in outputs {
        // A stack instead of recursion: networks have thousands of layers. The second number is the next input to
        // visit.
        let mut stack = vec![((output.layer, output.call), 0)];
        while let Some(((layer, call), next)) = stack.pop() {
            if next == 0 {
                if done.contains(&(layer, call)) {
                    continue;
                }
                met[layer].get_or_insert_with(|| {
                    count += 1;
                    count - 1
                });
            }
            match written[layer].calls[call].get(next) {
                Some(input) => {
                    stack.push(((layer, call), next + 1));
                    if !done.contains(&(input.layer, input.call)) {
                        stack.push(((input.layer, input.call), 0));
                    }
                }
                None => {
                    if done.insert((layer, call)) {
                        finished.push((layer, call));
                    }
                }
            }
        }
    }
    let mut of_call: HashMap<(usize, usize), usize> = HashMap::new();
    let mut of_layer: BTreeMap<usize, usize> = BTreeMap::new();
    for node in finished.iter().rev() {
        let depth = of_call.get(node).copied().unwrap_or(0).max(of_layer.get(&node.0).copied().unwrap_or(0));
        of_call.insert(*node, depth);
        of_layer.insert(node.0, depth);
        for input in &written[node.0].calls[node.1] {
            let before = of_call.entry((input.layer, input.call)).or_default();
            *before = (*before).max(depth + 1);
        }
    }
    let mut order: Vec<usize> = (0..written.len()).collect();
    // Inputs that nothing reads come last, before the others of depth zero.
    order.sort_by_key(|layer| {
        let depth = of_layer.get(layer).copied().unwrap_or(0);
        (std::cmp::Reverse(depth), met[*layer].map_or(-1, |place| place as i64))
    });
    order
}

fn config(network: &TrainedNetwork, written: &[WrittenLayer], order: &[usize], outputs: &[CallResult]) -> Value {
    let tensor = |symbol: &CallResult| {
        let dtype = if symbol.integers { written[symbol.layer].layer.config["dtype"].clone() } else { json!("float32") };
        json!({
            "class_name": "__keras_tensor__",
            "config": { "shape": dims(&symbol.shape), "dtype": dtype, "keras_history": [written[symbol.layer].name, symbol.call, 0] },
        })
    };
    let merges = |class: &str| matches!(class, "Add" | "Subtract" | "Multiply" | "Maximum" | "Minimum" | "Average" | "Concatenate");
    let layer = |index: &usize| {
        let WrittenLayer { name, layer, trainable, calls, .. } = &written[*index];
        let nodes: Vec<Value> = calls
            .iter()
            .filter(|read| !read.is_empty())
            .map(|read| {
                let tensors: Vec<Value> = read.iter().map(tensor).collect();
                let args = if merges(layer.class) { json!([tensors]) } else { json!(tensors) };
                json!({ "args": args, "kwargs": {} })
            })
            .collect();
        let mut config = layer.config.clone();
        config.insert("name".to_string(), json!(name));
        if layer.class != "InputLayer" {
            config.insert("trainable".to_string(), json!(trainable));
        }
        json!({
            "module": "keras.layers",
            "class_name": layer.class,
            "config": config,
            "registered_name": null,
            "name": name,
            "inbound_nodes": nodes,
        })
    };
    let layers: Vec<Value> = order.iter().map(layer).collect();
    let place = |index: usize, call: usize| json!([written[index].name, call, 0]);
    let inputs: Vec<Value> = (0..network.inputs.len()).map(|input| place(input, 0)).collect();
    let results: Vec<Value> = outputs.iter().map(|output| place(output.layer, output.call)).collect();
    // A single tensor is not a list of one: `predict` gives an array then.
    let flat = |mut places: Vec<Value>| if places.len() == 1 { places.remove(0) } else { Value::Array(places) };
    json!({
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": {
            "name": network.model.title().replace('/', "_"),
            "trainable": true,
            "layers": layers,
            "input_layers": flat(inputs),
            "output_layers": flat(results),
        },
        "registered_name": "Functional",
    })
}

/// The weights by their paths in the file, each with its layer and shape.
type LayerWeights<'a> = BTreeMap<String, (&'a KerasWeight, &'a str, Vec<usize>)>;

fn weights<'a>(network: &TrainedNetwork, written: &'a [WrittenLayer], order: &[usize]) -> Result<LayerWeights<'a>> {
    let shapes: HashMap<String, Vec<usize>> = network.states()?.into_iter().map(|(name, ty)| (name, ty.shape.bind(1))).collect();
    let mut numbered = Numbered::default();
    let mut weights = BTreeMap::new();
    for index in order {
        let WrittenLayer { layer, of, .. } = &written[*index];
        let group = numbered.next(layer.class);
        for weight in &layer.weights {
            let shape = match (&weight.of, weight.shape.is_empty()) {
                (KerasElements::All(names), true) => {
                    let own = names.first().and_then(|name| shapes.get(&format!("{of}/{name}")));
                    own.cloned().ok_or_else(|| Error::Config(format!("the layer `{of}` has no weight for {}", weight.path)))?
                }
                _ => weight.shape.clone(),
            };
            weights.insert(format!("layers/{group}/{}", weight.path), (weight, of.as_str(), shape));
        }
    }
    Ok(weights)
}
