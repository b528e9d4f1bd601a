//! Calibration of a device: times the nodes of a few small training steps of the zoo, which together cover every op at
//! several sizes.

use crate::config::Config;
use crate::cost::{
    self, Bandwidths, CostTable, FLUSH_BYTES, MAX_NODE_BYTES, NODE_DISTANCE, NodeTimer, StepNodes, max_step_bytes, profile_step,
    small_step_rest,
};
use crate::devices::OpenDevice;
use crate::error::Result;
use crate::trainer::Trainer;
use plimsoll_core::device::Device;
use plimsoll_core::{Bytes, Graph};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A network of the zoo with its batch and settings.
type CalibrationNetwork = (&'static str, usize, &'static [&'static str]);

macro_rules! narrow {
    ($filters:literal) => {
        concat!(
            "model.layers=[{type='conv2d', filters=",
            $filters,
            ", size=3, activation='relu'}, {type='flatten'}, {type='dense', units=10}]"
        )
    };
}

/// Networks whose nodes are timed one by one, the most telling first: convolutions over large and small images with few
/// and many channels, depthwise and transposed convolutions, matrix products, attention, normalization, recurrent
/// layers. They are small, so that other load on the machine is unlikely to hit every run of a node.
const NETWORKS: [CalibrationNetwork; 17] = [
    ("cifar-cnn", 16, &[]),
    ("mlp", 64, &[]),
    ("lenet5", 32, &[]),
    ("lstm", 32, &[]),
    ("resnet18", 2, &["model.input=[64, 64, 3]"]),
    ("char-gpt", 1, &["model.context=128"]),
    ("mobilenet-v1", 2, &["model.input=[96, 96, 3]"]),
    ("unet", 2, &["model.input=[32, 32, 3]", "model.width=0.5"]),
    ("autoencoder", 32, &["train.optimizer=adam"]),
    ("digits-cnn", 64, &["train.optimizer=adam"]),
    ("cifar-cnn", 64, &[]),
    ("lstm", 8, &[]),
    ("resnet50", 2, &["model.input=[64, 64, 3]"]),
    ("resnet18", 16, &["model.input=[32, 32, 3]"]),
    ("char-gpt", 2, &["train.optimizer=adam"]),
    ("unet", 1, &["model.input=[96, 96, 3]", "model.width=0.25"]),
    ("vit-tiny", 1, &[]),
];

/// The first of them also in 16 bits.
const HALF_PRECISION_NETWORKS: usize = 7;

/// The part of the time in which the graphs of networks are built.
const BUILDING: f64 = 0.25;

/// Networks whose whole steps are timed on a device with memory of its own, with their precisions, the most telling
/// first. The first ones are large: their tensors must not fit in the caches of a GPU, as those of real runs do not.
const DISCRETE_NETWORKS: [(CalibrationNetwork, &str); 18] = [
    (("gpt2-124m", 8, &["train.optimizer=adamw"]), "mixed_bf16"),
    (("resnet50", 128, &[]), "mixed_bf16"),
    (("mobilenet-v2", 96, &[]), "mixed_bf16"),
    (("resnet50", 96, &[]), "tf32"),
    (("unet", 16, &["model.input=[256, 256, 3]"]), "mixed_bf16"),
    (("vit-base", 32, &["train.optimizer=adamw"]), "mixed_bf16"),
    (("resnet50", 32, &[]), "f32"),
    (("gpt2-124m", 4, &["model.context=512"]), "f32"),
    (("cifar-cnn", 32, &[]), "f32"),
    (("cifar-cnn", 32, &[]), "mixed_bf16"),
    (("mlp", 32, &[]), "f32"),
    (("lstm", 64, &[]), "f32"),
    (("char-gpt", 8, &["train.optimizer=adam"]), "mixed_bf16"),
    (("mobilenet-v1", 32, &[]), "f32"),
    (("densenet121", 8, &["model.input=[128, 128, 3]"]), "mixed_bf16"),
    (("gpt2-124m", 4, &["model.context=512"]), "tf32"),
    (("resnet18", 8, &["model.input=[64, 64, 3]"]), "f32"),
    (("gru", 64, &[]), "f32"),
];

/// Small networks, beside the networks of the zoo: images, and classes as numbers.
const LAYERS: &str = "[data]\nsource = \"random\"\ny = [10]\n[model]\n[train]\nloss = \"mse\"\noptimizer = \"adam\"\n";

/// The name of networks of [`LAYERS`].
const OWN: &str = "layers";

/// Images of one channel through a convolution and a dense layer with few units, and dense layers alone. Products of
/// such shapes have little to run in parallel: those with long sums take ten times as long as moving their bytes.
const NARROW_NETWORKS: [CalibrationNetwork; 6] = [
    (OWN, 32, &["data.x=[48, 48, 1]", narrow!(48)]),
    (OWN, 32, &["data.x=[96, 96, 1]", narrow!(24)]),
    (OWN, 768, &["data.x=[48, 48, 1]", narrow!(48)]),
    (OWN, 768, &["data.x=[96, 96, 1]", narrow!(24)]),
    (OWN, 32, &["data.x=[64]", "model.layers=[{type='dense', units=10}]"]),
    (OWN, 64, &["data.x=[256]", "model.layers=[{type='dense', units=10}]"]),
];

/// Steps so small that their start counts, with their precisions.
const SMALL_NETWORKS: [CalibrationNetwork; 3] = [
    (OWN, 32, &["data.x=[64]", "model.layers=[{type='dense', units=10}]"]),
    (OWN, 64, &["data.x=[256]", "model.layers=[{type='dense', units=10}]"]),
    ("mlp", 32, &[]),
];

/// The first of them, which are larger than the caches.
const LARGE_NETWORKS: usize = 6;

/// On devices that time whole steps, nodes nearer than this to a sample are not added.
const STEP_DISTANCE: f64 = 0.15;

/// How long a calibration takes at most.
pub fn time_limit(device: &dyn Device) -> Duration {
    // A GPU compiles kernels first.
    if device.capabilities().shares_host_memory { Duration::from_millis(2600) } else { Duration::from_secs(30) }
}

/// Calibrates a device: times the nodes of small training steps, within about `limit` and less memory than
/// [`required_memory`]. What the limit leaves untimed is estimated from similar nodes.
///
/// ```no_run
/// use plimsoll::{CpuDevice, calibration};
/// let device = std::sync::Arc::new(CpuDevice::new(1)?);
/// let limit = calibration::time_limit(&*device);
/// let costs = calibration::calibrate(device, limit)?;
/// assert!(!costs.is_empty());
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub fn calibrate(device: Arc<dyn Device>, limit: Duration) -> Result<CostTable> {
    let begin = Instant::now();
    let mut costs = CostTable::of(&*device);
    if !device.capabilities().shares_host_memory {
        time_steps(&mut costs, &device, begin + limit)?;
        return Ok(costs);
    }
    let mut timer = NodeTimer::new(&*device, MAX_NODE_BYTES)?;
    costs.transfers = timer.bandwidths(cost::cache_dir().as_deref());
    let mut nodes = StepNodes::default();
    let in_half = NETWORKS[..HALF_PRECISION_NETWORKS].iter().map(|network| (network, "mixed_bf16"));
    let in_single = NETWORKS.iter().map(|network| (network, "f32"));
    // In 16 bits too, if only a few networks can be built in time.
    let (first, rest): (Vec<_>, Vec<_>) = in_single.enumerate().partition(|(i, _)| *i < HALF_PRECISION_NETWORKS);
    let networks = first.into_iter().map(|(_, network)| network).chain(in_half).chain(rest.into_iter().map(|(_, network)| network));
    for (network, precision) in networks {
        if begin.elapsed() > limit.mul_f64(BUILDING) && !nodes.is_empty() {
            break;
        }
        with_step(&device, network, precision, |graph, rows| nodes.add_short(&costs, graph, rows))?;
    }
    nodes.time(&mut costs, &mut timer, NODE_DISTANCE, begin + limit);
    Ok(costs)
}

/// Times whole steps with the device's own timers, and what they take beside their nodes.
fn time_steps(costs: &mut CostTable, device: &Arc<dyn Device>, deadline: Instant) -> Result<()> {
    let copies = device.diagnostics().map(|device| device.measure_copies()).transpose()?;
    costs.transfers = copies.map_or_else(Bandwidths::default, Bandwidths::pinned);
    let narrow = NARROW_NETWORKS.iter().map(|network| (network, "f32"));
    let (first, rest) = DISCRETE_NETWORKS.split_at(LARGE_NETWORKS);
    let zoo = |networks: &'static [(CalibrationNetwork, &'static str)]| networks.iter().map(|(network, precision)| (network, *precision));
    for (network, precision) in zoo(first).chain(narrow).chain(zoo(rest)) {
        if Instant::now() > deadline {
            break;
        }
        with_step(device, network, precision, |graph, rows| profile_step(costs, &**device, graph, rows, STEP_DISTANCE))??;
    }
    let mut rests = Vec::new();
    for network in &SMALL_NETWORKS {
        rests.extend(with_step(device, network, "f32", |graph, rows| small_step_rest(costs, &**device, graph, rows))??);
    }
    costs.set_start(rests);
    Ok(())
}

/// Passes the training graph of a network, and its rows, to `look`.
fn with_step<T>(
    device: &Arc<dyn Device>,
    (name, rows, changes): &CalibrationNetwork,
    precision: &str,
    look: impl FnOnce(&Graph, usize) -> T,
) -> Result<T> {
    let mut config = if *name == OWN { Config::from_text(LAYERS)? } else { Config::zoo(name)? };
    config.set_value("train.batch", *rows as i64)?;
    config.set_value("data.rows", *rows as i64)?;
    config.set_value("train.precision", precision)?;
    changes.iter().try_for_each(|change| config.set(change))?;
    let opened = OpenDevice::alone(Arc::clone(device), None, Bytes::ZERO);
    Trainer::from(config.build()?).on_device(opened).with_step(look)
}

/// The peak memory of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredMemory {
    /// Of the host, on top of the process itself.
    pub host: Bytes,
    /// Of the device, if it has memory of its own.
    pub device: Bytes,
}

/// The peak memory that calibrating a device takes.
pub fn required_memory(device: &dyn Device) -> RequiredMemory {
    if device.capabilities().shares_host_memory {
        // The resident buffer, the arena, the batch, the buffer that flushes the caches, and the graphs.
        return RequiredMemory { host: Bytes(3 * MAX_NODE_BYTES.0) + FLUSH_BYTES + Bytes::mib(24), device: Bytes::ZERO };
    }
    // The GPU libraries with all that they load, and as much for kernels and graphs.
    RequiredMemory { host: Bytes::mib(2048), device: max_step_bytes(device) + Bytes::mib(1024) }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn every_network_of_a_gpu_is_a_network() {
        let device = crate::gpu::plan_only("h200", 0, false).unwrap();
        let zoo = DISCRETE_NETWORKS.iter().map(|(network, precision)| (network, *precision));
        let own = NARROW_NETWORKS.iter().chain(&SMALL_NETWORKS).map(|network| (network, "f32"));
        for (network, precision) in zoo.chain(own) {
            let trains = with_step(&device, network, precision, |graph, rows| !graph.updates().is_empty() && rows == network.1);
            assert!(trains.unwrap(), "{network:?}");
        }
    }
}
