//! Reading a model of another program takes no more heap than its plan says, constants that ONNX graphs compute
//! included, and so do the files of weights. Models of the folder `PLIMSOLL_MODELS` are measured too:
//! `PLIMSOLL_MODELS=zoo cargo test -p plimsoll --test import_memory -- --nocapture`.

use plimsoll::config::Config;
use plimsoll::prelude::*;
use plimsoll::{Checkpoints, import};
use plimsoll_core::budget::Owner;
use plimsoll_formats::onnx::{Attribute, Dim, Graph, Node, OnnxModel, ValueInfo, WriteOptions, write};
use plimsoll_formats::tensor::{DType, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting the bytes of every thread by itself.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed to the system's allocator; the counters are plain numbers of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The heap of reading a model, and what a plan has for it.
fn measured_and_planned(path: &Path) -> (u64, u64) {
    let before = HELD.get();
    PEAK.set(before);
    drop(import(path).unwrap());
    let measured = (PEAK.get() - before) as u64;
    let trainer = Trainer::from(Config::imported(path).unwrap().build().unwrap());
    let plan = trainer.plan(&Fit::from(trainer.spec().fit.clone())).unwrap();
    let planned = plan.owners.iter().filter(|(owner, _)| *owner == Owner::ModelFile).map(|(_, size)| size.0).sum();
    (measured, planned)
}

fn models(folder: &Path) -> Vec<PathBuf> {
    let known = |path: &PathBuf| path.extension().is_some_and(|extension| ["keras", "h5", "onnx"].iter().any(|known| extension == *known));
    let readable = |path: &PathBuf| !path.file_name().unwrap().to_string_lossy().starts_with("refused");
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(known).filter(readable).collect()
}

#[test]
fn reading_a_model_takes_no_more_heap_than_planned() {
    let references = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references");
    let mut all = models(&references.join("keras"));
    all.extend(models(&references.join("onnx")));
    assert!(all.len() > 20);
    all.extend(std::env::var_os("PLIMSOLL_MODELS").iter().flat_map(|folder| models(folder.as_ref())));
    for path in all {
        let (measured, planned) = measured_and_planned(&path);
        println!("{measured:9} of {planned:9} bytes: {}", path.display());
        assert!(measured <= planned, "{}: {measured} bytes of heap, {planned} planned", path.display());
    }
}

/// `x + cast(integers)`, many times: integers are constants, and so is what is computed from them.
fn with_constants(count: usize, elements: usize) -> OnnxModel {
    let named = |name: &str, index: usize| format!("{name}{index}");
    let mut graph = Graph { name: "constants".to_string(), ..Graph::default() };
    let mut node = |op: &str, inputs: Vec<String>, output: String, attributes: BTreeMap<String, Attribute>| {
        graph.nodes.push(Node { op: op.to_string(), name: output.clone(), inputs, outputs: vec![output], attributes, ..Node::default() });
    };
    for index in 0..count {
        let to = BTreeMap::from([("to".to_string(), Attribute::Int(1))]);
        node("Cast", vec![named("integers", index)], named("floats", index), to);
        node("Add", vec![named("x", index), named("floats", index)], named("x", index + 1), BTreeMap::new());
    }
    for index in 0..count {
        let bytes = (0..elements as i64).flat_map(|number| (number % 1000).to_le_bytes()).collect();
        let tensor = Tensor::in_memory(DType::I64, vec![elements as u64], bytes).unwrap();
        graph.initializers.insert(named("integers", index), tensor);
    }
    let value = |name: String| ValueInfo {
        name,
        dtype: Some(DType::F32),
        shape: Some(vec![Dim::Symbolic("batch".to_string()), Dim::Fixed(elements as i64)]),
    };
    (graph.inputs, graph.outputs) = (vec![value(named("x", 0))], vec![value(named("x", count))]);
    OnnxModel { ir_version: 8, opsets: BTreeMap::from([(String::new(), 18)]), graph, ..OnnxModel::default() }
}

#[test]
fn constants_that_a_graph_computes_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("constants.onnx");
    let elements = 1 << 16;
    let mut file = File::create(&path).unwrap();
    write(&with_constants(10, elements), &[], &WriteOptions::default(), &mut file, |_, _| Ok(())).unwrap();
    let (measured, planned) = measured_and_planned(&path);
    assert!(measured > 10 * elements as u64 * 8, "the constants are held: {measured}");
    assert!(measured <= planned, "{measured} bytes of heap, {planned} planned");
}

/// The heap of what this thread does.
fn heap_of(work: impl FnOnce()) -> u64 {
    let before = HELD.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as u64
}

#[test]
fn weights_of_deep_models_are_written_and_read_within_the_memory_of_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut layers = Sequential::new();
    for _ in 0..800 {
        layers = layers.add(Dense::new(2).activation(Activation::Relu));
    }
    let data = Dataset::random(RandomSpec::new(4).floats("x", [2]).floats("y", [2])).unwrap().batch(4);
    let mut trainer = Trainer::new(layers, &data).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1)).threads(1);
    let planned = trainer.plan(&Fit::epochs(1).checkpoints(Checkpoints::new(folder.path().join("checkpoints")))).unwrap();
    let of_checkpoint = planned.owners.iter().find(|(owner, _)| *owner == Owner::Checkpoint).unwrap().1;
    trainer.fit(Fit::epochs(1)).unwrap();
    let path = folder.path().join("weights.safetensors");
    let written = heap_of(|| trainer.save_weights(&path).unwrap());
    let read = heap_of(|| trainer.load_weights(&path).unwrap());
    println!("{written} bytes to write, {read} to read 1,600 tensors, of {}", of_checkpoint.0);
    assert!(written.max(read) <= of_checkpoint.0, "{written} and {read} bytes of heap, {of_checkpoint} planned");
    // Beside a thread and its buffers, a plan does not ask for much that is not needed.
    assert!(of_checkpoint.0 <= (384 << 10) + 2 * written.max(read), "{written} and {read} bytes of heap, {of_checkpoint} planned");
}
