//! Calibration of a device: times the nodes of a few small training steps of the zoo, which together cover every op at several sizes.

use crate::config::Config;
use crate::cost::{self, Bandwidths, CostTable, FLUSH_BYTES, MAX_NODE_BYTES, MAX_STEP_BYTES, NodeTimer, Pass, profile_nodes, profile_step};
use crate::devices::OpenDevice;
use crate::error::Result;
use crate::trainer::Trainer;
use plimsoll_core::Bytes;
use plimsoll_core::device::Device;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Networks of the zoo whose nodes are timed one by one, with their batch and settings: convolutions over large and small images with few and
/// many channels, depthwise and transposed convolutions, matrix products, attention, normalization, recurrent layers. They are small, so that
/// other load on the machine is unlikely to hit every run of a node.
const NETWORKS: [(&str, usize, &[&str]); 22] = [
    ("cifar-cnn", 16, &[]),
    ("char-gpt", 1, &["model.context=128"]),
    ("resnet18", 2, &["model.input=[64, 64, 3]"]),
    ("mobilenet-v1", 2, &["model.input=[96, 96, 3]"]),
    ("lstm", 32, &[]),
    ("unet", 2, &["model.input=[32, 32, 3]", "model.width=0.5"]),
    ("resnet50", 2, &["model.input=[64, 64, 3]"]),
    ("vit-tiny", 1, &[]),
    ("mlp", 64, &[]),
    ("gru", 32, &[]),
    ("cifar-cnn", 128, &[]),
    ("char-gpt", 2, &["train.optimizer=adam"]),
    ("mobilenet-v1", 8, &["model.input=[128, 128, 3]"]),
    ("resnet18", 16, &["model.input=[32, 32, 3]"]),
    ("unet", 1, &["model.input=[96, 96, 3]", "model.width=0.25"]),
    ("autoencoder", 32, &["train.optimizer=adam"]),
    ("lstm", 8, &[]),
    ("densenet121", 1, &["model.input=[64, 64, 3]"]),
    ("efficientnet-b0", 2, &["model.input=[64, 64, 3]"]),
    ("lstm", 96, &[]),
    ("gru", 96, &[]),
    ("unet", 8, &["model.input=[128, 128, 3]", "model.width=0.125"]),
];

/// Networks whose whole steps are timed on a device with memory of its own: larger, to fill it.
const DISCRETE_NETWORKS: [(&str, usize, &[&str]); 11] = [
    ("cifar-cnn", 32, &[]),
    ("mlp", 32, &[]),
    ("gpt2-124m", 4, &["model.context=512"]),
    ("resnet50", 32, &[]),
    ("mobilenet-v1", 32, &[]),
    ("lstm", 64, &[]),
    ("unet", 4, &["model.input=[208, 304, 3]"]),
    ("char-gpt", 8, &["train.optimizer=adam"]),
    ("densenet121", 8, &["model.input=[128, 128, 3]"]),
    ("resnet18", 8, &["model.input=[64, 64, 3]"]),
    ("gru", 64, &[]),
];

/// On devices that time whole steps, nodes nearer than this to a sample are not added.
const STEP_DISTANCE: f64 = 0.15;

/// Nodes nearer than this to a sample, as the logarithm of a ratio of sizes, are not timed.
const NODE_DISTANCE: f64 = 0.6;

/// Calibrates a device: times the nodes of small training steps, in a few seconds and less memory than [`required_memory`]. What the limit
/// leaves untimed is estimated from similar nodes.
///
/// ```no_run
/// use plimsoll::{CpuDevice, calibration};
/// use std::time::Duration;
/// let costs = calibration::calibrate(std::sync::Arc::new(CpuDevice::new(1)?), Duration::from_secs(20))?;
/// assert!(!costs.is_empty());
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub fn calibrate(device: Arc<dyn Device>, limit: Duration) -> Result<CostTable> {
    let deadline = Instant::now() + limit;
    let mut costs = CostTable::of(&*device);
    let own_timers = !device.capabilities().shares_host_memory;
    let networks: &[(&str, usize, &[&str])] = if own_timers { &DISCRETE_NETWORKS } else { &NETWORKS };
    let mut timer = if own_timers { None } else { Some(NodeTimer::new(&*device, MAX_NODE_BYTES)?) };
    costs.transfers = match &mut timer {
        Some(timer) => timer.bandwidths(cost::cache_dir().as_deref()),
        None => device.diagnostics().map_or(Ok(Bandwidths::default()), |device| device.measure_copies().map(Bandwidths::pinned))?,
    };
    let steps = |precision: &'static str| networks.iter().map(move |network| (network, precision));
    let mut steps: Vec<_> = steps("f32").chain(steps("mixed_bf16")).collect();
    let first_pass = steps.len();
    if own_timers {
        // Each network in both precisions before the next one, so that a short limit still covers 16 bits.
        steps.sort_by_key(|((name, ..), _)| networks.iter().position(|(other, ..)| other == name));
    } else {
        // Other load slows a machine down for longer than a node runs: repeat every measurement seconds later.
        steps.extend(steps.clone());
    }
    for (i, ((name, rows, changes), precision)) in steps.into_iter().enumerate() {
        if Instant::now() > deadline {
            break;
        }
        let mut config = Config::zoo(name)?;
        config.set_value("train.batch", *rows as i64)?;
        config.set_value("data.rows", *rows as i64)?;
        config.set_value("train.precision", precision)?;
        changes.iter().try_for_each(|change| config.set(change))?;
        let opened = OpenDevice { device: Arc::clone(&device), threads: None, thread_stacks: Bytes::ZERO };
        let trainer = Trainer::from(config.build()?).on_device(opened);
        let pass = if i < first_pass { Pass::New(NODE_DISTANCE) } else { Pass::Repeat };
        trainer.with_step(|graph, rows| match &timer {
            Some(timer) => Ok(profile_nodes(&mut costs, timer, graph, rows, pass, deadline)),
            None => profile_step(&mut costs, &*device, graph, rows, STEP_DISTANCE),
        })??;
    }
    Ok(costs)
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
    RequiredMemory { host: Bytes::mib(2048), device: MAX_STEP_BYTES + Bytes::mib(1024) }
}
