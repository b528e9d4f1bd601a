//! `plimsoll profile --kernels`: the time of every op of a training step alone, by the clock of a GPU, and the sources
//! of its kernels.

use crate::output::{print, say};
use anyhow::{Result, bail};
use plimsoll::Trainer;
use plimsoll::cost::{NodeTime, StepProfile};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes the generated source of every kernel into a folder.
pub fn write_sources(trainer: &Trainer, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for (i, source) in trainer.kernel_sources()?.iter().enumerate() {
        let path = folder.join(format!("{i}.cu"));
        std::fs::write(&path, source).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Times every op with the device's clock and prints them, the slowest `top` with their types.
pub fn time_ops(trainer: &Trainer, top: usize, as_json: bool) -> Result<()> {
    let StepProfile { step_seconds, nodes } = trainer.step_profile()?;
    if nodes.is_empty() {
        bail!("{} has no clock of its own for single ops; leave out --kernels, or use --device cuda:0", trainer.device_in_use()?.name());
    }
    if !as_json {
        return say(&table(step_seconds, &nodes, top));
    }
    let node = |node: &NodeTime| {
        json!({
            "op": node.op, "scope": node.scope, "types": node.types, "attributes": node.attributes,
            "seconds": node.seconds, "flops": node.flops, "bytes": node.bytes,
        })
    };
    print(&json!({ "step_s": step_seconds, "nodes": nodes.iter().map(node).collect::<Vec<_>>() }))
}

/// Times by op, then the slowest nodes.
fn table(step_seconds: Option<f64>, nodes: &[NodeTime], top: usize) -> String {
    let total: f64 = nodes.iter().map(|node| node.seconds).sum();
    let mut ops: BTreeMap<&str, Vec<&NodeTime>> = BTreeMap::new();
    nodes.iter().for_each(|node| ops.entry(node.op).or_default().push(node));
    let mut ops: Vec<(String, Vec<&NodeTime>)> = ops.into_iter().map(|(op, nodes)| (format!("{op} × {}", nodes.len()), nodes)).collect();
    ops.sort_by(|a, b| seconds(&b.1).total_cmp(&seconds(&a.1)));
    let step = step_seconds.map_or(String::new(), |seconds| format!("step {:.3} ms, ", 1e3 * seconds));
    let mut text = format!("{step}{} ops that take {:.3} ms\n\n{HEADER}", nodes.len(), 1e3 * total);
    ops.iter().for_each(|(name, nodes)| text += &line(name, nodes, total));
    let mut slowest: Vec<&NodeTime> = nodes.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    if top > 0 {
        text += &format!("\n{HEADER}");
    }
    for node in slowest.into_iter().take(top) {
        text += &line(&format!("{} of {}", node.op, node.scope), &[node], total);
        text += &format!("    {} · {}\n", node.types, node.attributes);
    }
    text
}

const HEADER: &str = "        ms      %   TFLOP/s    GB/s  op\n";

fn line(name: &str, nodes: &[&NodeTime], total: f64) -> String {
    let seconds = seconds(nodes);
    let (flops, bytes) = nodes.iter().fold((0, 0), |(flops, bytes), node| (flops + node.flops, bytes + node.bytes));
    let rate = |work: u64, unit: f64| work as f64 / seconds.max(1e-12) / unit;
    format!("{:>10.3} {:>6.2} {:>9.2} {:>7.0}  {name}\n", 1e3 * seconds, 100.0 * seconds / total, rate(flops, 1e12), rate(bytes, 1e9))
}

fn seconds(nodes: &[&NodeTime]) -> f64 {
    nodes.iter().map(|node| node.seconds).sum()
}
