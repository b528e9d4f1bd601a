//! What is timed: the nodes of a few small training steps that between them do every kind of work, at several sizes.

use super::Speeds;
use super::kind::kind;
use super::measure::{FLUSH, Stopwatch};
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

/// Measures a device: a few seconds, and less memory than [`memory`]. Whatever was not reached within the limit is judged by its likes.
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
    let mut speeds = Speeds { key: super::key(&*device), ..Speeds::default() };
    let mut watch = Stopwatch::new(&*device, MOST)?;
    speeds.transfers = watch.transfers(super::folder().as_deref());
    for precision in ["f32", "mixed_bf16"] {
        for (name, rows, changes) in NETWORKS {
            if Instant::now() > until {
                return Ok(speeds);
            }
            let mut config = Config::zoo(name)?;
            config.set_value("train.batch", rows as i64)?;
            config.set_value("data.rows", rows as i64)?;
            config.set_value("train.precision", precision)?;
            changes.iter().try_for_each(|change| config.set(change))?;
            let mut trainer = config.build()?.into_trainer();
            trainer.use_device(Opened { device: Arc::clone(&device), thread_stacks: Bytes::ZERO });
            trainer.with_step(|graph, rows| time_nodes(&mut speeds, &watch, graph, rows, ALIKE, until))?;
        }
    }
    Ok(speeds)
}

/// The most memory that calibrating takes of the host.
pub fn memory() -> Bytes {
    // What stays, the arena, the batch, what empties the caches, and the graphs.
    Bytes(3 * MOST.0) + FLUSH + Bytes::mib(24)
}

/// Sizes that differ by less than this, as the logarithm of a ratio, are not measured twice.
const ALIKE: f64 = 0.6;

/// Times the nodes of a graph that are not known yet.
pub(crate) fn time_own_nodes(speeds: &mut Speeds, device: &dyn Device, graph: &Graph, rows: usize, limit: Duration) -> Result<usize> {
    Ok(time_nodes(speeds, &Stopwatch::new(device, MOST)?, graph, rows, 1e-3, Instant::now() + limit))
}

fn time_nodes(speeds: &mut Speeds, watch: &Stopwatch<'_>, graph: &Graph, rows: usize, away: f64, until: Instant) -> usize {
    let mut timed = 0;
    for (_, node) in graph.nodes().filter(|(_, node)| !node.op.is_leaf() && !node.op.define().is_view()) {
        let kind = kind(graph, node, rows);
        if Instant::now() > until || speeds.knows(&kind, away) {
            continue;
        }
        if let Some(seconds) = watch.time(graph, node, rows) {
            speeds.add(&kind, seconds);
            timed += 1;
        }
    }
    timed
}
