//! What is timed: the nodes of a few small training steps that between them do every kind of work, at several sizes.

use super::kind::kind;
use super::measure::{FLUSH, Stopwatch};
use super::whole::time_step;
use super::{Speeds, Transfers};
use crate::config::Config;
use crate::devices::Opened;
use crate::error::Result;
use plimsoll_core::device::Device;
use plimsoll_core::{Bytes, Graph};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What one node may take of memory while it is timed.
const MOST: Bytes = Bytes::mib(24);

/// Networks of the zoo whose steps are taken apart, with their rows: convolutions on large and small images with few and many channels,
/// by channel, and back up again; products, attention, normalisation; recurrent layers. Small, so that other load on the machine is unlikely
/// to hit every run of a node.
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

/// What is timed on a device with memory of its own, a step at a time: larger, because it does much at once.
const OWN_MEMORY: [(&str, usize, &[&str]); 11] = [
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

/// What a step may take of such a device.
const STEP: Bytes = Bytes::mib(4096);

/// Measures a device: a few seconds, and less memory than [`needed`]. Whatever was not reached within the limit is judged by its likes.
///
/// ```no_run
/// use plimsoll::{CpuDevice, speed};
/// use std::time::Duration;
/// let speeds = speed::calibrate(std::sync::Arc::new(CpuDevice::new(1)), Duration::from_secs(20))?;
/// assert!(!speeds.is_empty());
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub fn calibrate(device: Arc<dyn Device>, limit: Duration) -> Result<Speeds> {
    let until = Instant::now() + limit;
    let mut speeds = Speeds::of(&*device);
    let own_clock = !device.shares_host_memory();
    let networks: &[(&str, usize, &[&str])] = if own_clock { &OWN_MEMORY } else { &NETWORKS };
    let mut watch = if own_clock { None } else { Some(Stopwatch::new(&*device, MOST)?) };
    speeds.transfers = match &mut watch {
        Some(watch) => watch.transfers(super::folder().as_deref()),
        None => device.measure_copies()?.map_or_else(Transfers::default, Transfers::pinned),
    };
    let steps = |precision: &'static str| networks.iter().map(move |network| (network, precision));
    let mut steps: Vec<_> = steps("f32").chain(steps("mixed_bf16")).collect();
    let first_round = steps.len();
    if own_clock {
        // 16 bits are what such devices are for: no network waits for them until all others are done.
        steps.sort_by_key(|((name, ..), _)| networks.iter().position(|(other, ..)| other == name));
    } else {
        // Other programs slow a machine down for longer than a node takes: everything is timed a second time, seconds later.
        steps.extend(steps.clone());
    }
    for (i, ((name, rows, changes), precision)) in steps.into_iter().enumerate() {
        if Instant::now() > until {
            break;
        }
        let mut config = Config::zoo(name)?;
        config.set_value("train.batch", *rows as i64)?;
        config.set_value("data.rows", *rows as i64)?;
        config.set_value("train.precision", precision)?;
        changes.iter().try_for_each(|change| config.set(change))?;
        let mut trainer = config.build()?.into_trainer();
        trainer.use_device(Opened { device: Arc::clone(&device), thread_stacks: Bytes::ZERO });
        trainer.with_step(|graph, rows| match &watch {
            Some(watch) => Ok(time_nodes(&mut speeds, watch, graph, rows, (i < first_round).then_some(ALIKE), until)),
            None => time_whole(&mut speeds, &*device, graph, rows, NEARLY),
        })??;
    }
    Ok(speeds)
}

/// The most memory that calibrating takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Of the host's, besides what the process takes anyhow.
    pub host: Bytes,
    /// Of the device's own, if it has any.
    pub device: Bytes,
}

/// What calibrating a device takes at most.
pub fn needed(device: &dyn Device) -> Needed {
    if device.shares_host_memory() {
        // What stays, the arena, the batch, what empties the caches, and the graphs.
        return Needed { host: Bytes(3 * MOST.0) + FLUSH + Bytes::mib(24), device: Bytes::ZERO };
    }
    // The libraries of a GPU with all that they load, and as much for kernels and graphs.
    Needed { host: Bytes::mib(2048), device: STEP + Bytes::mib(1024) }
}

/// On devices that time whole steps, nodes nearer than this to a known one are not kept.
const NEARLY: f64 = 0.15;

/// Sizes that differ by less than this, as the logarithm of a ratio, are not measured twice.
const ALIKE: f64 = 0.6;

/// Sizes that are the same but for the digits that are kept.
const EXACTLY: f64 = 0.02;

/// Times the nodes of a graph that are not known yet.
pub(crate) fn time_own_nodes(speeds: &mut Speeds, device: &dyn Device, graph: &Graph, rows: usize, limit: Duration) -> Result<usize> {
    if device.shares_host_memory() {
        return Ok(time_nodes(speeds, &Stopwatch::new(device, MOST)?, graph, rows, Some(EXACTLY), Instant::now() + limit));
    }
    time_whole(speeds, device, graph, rows, EXACTLY)
}

/// Times all nodes of a step at once, and keeps those that are not known yet.
fn time_whole(speeds: &mut Speeds, device: &dyn Device, graph: &Graph, rows: usize, away: f64) -> Result<usize> {
    let before = speeds.len();
    for (kind, seconds) in time_step(device, graph, rows, STEP)?.unwrap_or_default() {
        if !speeds.knows(&kind, away) {
            speeds.add(&kind, seconds);
        }
    }
    Ok(speeds.len() - before)
}

/// Times the nodes of a graph that are farther than this from all that are known; or, if nothing is said, those that were timed once before, of which the least counts.
fn time_nodes(speeds: &mut Speeds, watch: &Stopwatch<'_>, graph: &Graph, rows: usize, away: Option<f64>, until: Instant) -> usize {
    let mut timed = 0;
    for (_, node) in graph.nodes().filter(|(_, node)| !node.op.is_leaf() && !node.op.define().is_view()) {
        let kind = kind(graph, node, rows);
        let wanted = match away {
            Some(away) => !speeds.knows(&kind, away),
            None => speeds.once(&kind, EXACTLY).is_some(),
        };
        if Instant::now() > until || !wanted {
            continue;
        }
        if let Some(seconds) = watch.time(graph, node, rows) {
            match speeds.once(&kind, EXACTLY).filter(|_| away.is_none()) {
                Some(sample) => sample.again(seconds),
                None => speeds.add(&kind, seconds),
            }
            timed += 1;
        }
    }
    timed
}
