//! `plimsoll profile`: the time of every op of a training step on a GPU, with its share of the peak rates.

use crate::Command;
use crate::output::{print, say};
use crate::run_args::RunArgs;
use anyhow::{Result, bail};
use clap::Args;
use plimsoll::Trainer;
use plimsoll::cost::{NodeTime, StepProfile};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Time every op of a training step on a GPU
#[derive(Args)]
pub struct Profile {
    #[command(flatten)]
    run: RunArgs,

    /// Number of nodes to list, the slowest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Only write the generated source of every kernel into this folder; works with --device-profile
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,
}

impl Command for Profile {
    const NAME: &'static str = "profile";

    fn run(&self) -> Result<ExitCode> {
        let trainer = Trainer::from(self.run.config()?.build()?);
        if let Some(folder) = &self.sources {
            std::fs::create_dir_all(folder)?;
            for (i, source) in trainer.kernel_sources()?.iter().enumerate() {
                let path = folder.join(format!("{i}.cu"));
                std::fs::write(&path, source).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let StepProfile { step_seconds, nodes } = trainer.profile()?;
        if nodes.is_empty() {
            bail!("{} has no clock of its own for single ops; profile a run on a GPU (--device cuda:0)", trainer.device_in_use()?.name());
        }
        if self.run.json {
            let node = |node: &NodeTime| {
                json!({
                    "op": node.op, "scope": node.scope, "types": node.types, "attributes": node.attributes,
                    "seconds": node.seconds, "flops": node.flops, "bytes": node.bytes,
                })
            };
            print(&json!({ "step_s": step_seconds, "nodes": nodes.iter().map(node).collect::<Vec<_>>() }))?;
        } else {
            say(&table(step_seconds, &nodes, self.top))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.run.json
    }
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
