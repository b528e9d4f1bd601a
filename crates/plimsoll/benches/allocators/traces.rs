//! Traces of training as an eager framework allocates it: from the step graphs of the zoo, before any pass.

use plimsoll::zoo::{self, Options};
use plimsoll::{OutputLosses, RunSpec};
use plimsoll_core::allocator::{AllocationTrace, Event};
use plimsoll_core::graph::{Graph, NodeId, ValueId};
use plimsoll_core::{Bytes, Op};
use std::collections::HashMap;

/// The networks and, for each, the rows of its two alternating batches.
pub const NETWORKS: &[(&str, [usize; 2])] = &[
    ("mlp", [128, 80]),
    ("lenet5", [128, 80]),
    ("cifar-cnn", [128, 80]),
    ("autoencoder", [128, 80]),
    ("vgg16", [32, 20]),
    ("resnet18", [32, 20]),
    ("resnet50", [32, 20]),
    ("mobilenet-v2", [32, 20]),
    ("densenet121", [16, 10]),
    ("googlenet", [32, 20]),
    ("inception-v3", [16, 10]),
    ("efficientnet-b0", [16, 10]),
    ("unet", [8, 5]),
    ("segnet", [8, 5]),
    ("vit-tiny", [32, 20]),
    ("vit-base", [16, 10]),
    ("char-gpt", [64, 40]),
    ("gpt2-124m", [4, 2]),
    ("bert-base", [8, 5]),
    ("lstm", [128, 80]),
    ("gru", [128, 80]),
];

/// Steps of a trace; sizes alternate.
pub const STEPS: usize = 6;

/// The training step of a network before any pass.
pub fn step(name: &str, rows: usize) -> Result<Graph, plimsoll::Error> {
    let network = zoo::find(name)?.build(&Options::default())?;
    let spec = RunSpec::new(network.model.clone(), &network.synthetic(rows as u64)?.batch(rows));
    let spec = RunSpec { losses: OutputLosses::Only(network.loss.into()), ..spec };
    Ok(spec.unoptimized_step(&network.schema)?.expect("it trains"))
}

/// Weights and optimizer state first, then steps with alternating rows. In a step, the batch is allocated first, each
/// result when it is computed, and each is freed after its last use. Updates write to the states.
pub fn trace(graph: &Graph, rows: [usize; 2]) -> AllocationTrace {
    let mut writer = Writer::default();
    for state in graph.states() {
        writer.allocate(state.ty.bytes(0));
    }
    for step in 0..STEPS {
        writer.step(graph, rows[step % 2]);
    }
    writer.trace
}

/// The trace up to the end of a step: states are never freed, and every step ends with no other block live.
pub fn first_steps(trace: &AllocationTrace, steps: usize) -> AllocationTrace {
    let allocations = trace.events.iter().filter(|event| matches!(event, Event::Allocate(_))).count();
    let mut freed = vec![false; allocations];
    for event in &trace.events {
        if let Event::Free(block) = event {
            freed[*block as usize] = true;
        }
    }
    let (mut live, mut made, mut ended, mut end) = (0u32, 0, 0, 0);
    for (index, event) in trace.events.iter().enumerate() {
        match event {
            Event::Allocate(_) => {
                live += u32::from(freed[made]);
                made += 1;
            }
            Event::Free(_) => {
                live -= 1;
                if live == 0 {
                    (ended, end) = (ended + 1, index + 1);
                }
            }
        }
        if ended == steps {
            break;
        }
    }
    AllocationTrace { events: trace.events[..end].to_vec() }
}

#[derive(Default)]
struct Writer {
    trace: AllocationTrace,
    blocks: u32,
}

impl Writer {
    fn allocate(&mut self, size: Bytes) -> u32 {
        self.trace.events.push(Event::Allocate(size));
        self.blocks += 1;
        self.blocks - 1
    }

    fn step(&mut self, graph: &Graph, rows: usize) {
        let root = |value: ValueId| {
            let mut value = value;
            while graph.producer(value).op.rules().is_view() {
                value = graph.producer(value).inputs[0];
            }
            value
        };
        let mut last: HashMap<ValueId, NodeId> = HashMap::new();
        for (id, node) in graph.nodes() {
            for value in node.outputs.iter().chain(&node.inputs) {
                last.insert(root(*value), id);
            }
        }
        let updates: Vec<ValueId> = graph.updates().iter().map(|(_, value)| root(*value)).collect();
        let kept: Vec<ValueId> = graph.outputs().iter().map(|(_, value)| root(*value)).collect();
        let mut live: HashMap<ValueId, u32> = HashMap::new();
        for (_, node) in graph.nodes().filter(|(_, node)| matches!(node.op, Op::Input(_))) {
            let value = node.outputs[0];
            live.insert(value, self.allocate(graph.ty(value).bytes(rows)));
        }
        for (id, node) in graph.nodes() {
            if !node.op.is_leaf() && !node.op.rules().is_view() {
                for value in node.outputs.iter().filter(|value| !updates.contains(value)) {
                    live.insert(*value, self.allocate(graph.ty(*value).bytes(rows)));
                }
            }
            let mut ended: Vec<ValueId> = node.outputs.iter().chain(&node.inputs).map(|value| root(*value)).collect();
            ended.retain(|value| last[value] == id && !kept.contains(value));
            for value in ended {
                if let Some(block) = live.remove(&value) {
                    self.trace.events.push(Event::Free(block));
                }
            }
        }
        // The loss and the metrics are read at the end.
        let mut rest: Vec<u32> = live.into_values().collect();
        rest.sort_unstable();
        self.trace.events.extend(rest.into_iter().map(Event::Free));
    }
}
