//! The plan as people read it: one screen, and one JSON object.

use super::{AppliedStrategy, RunPlan};
use crate::allow::Permission;
use crate::ranks::Shard;
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::{Buffer, Place};
use plimsoll_core::{Bytes, ValueId};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt;

/// Cells of the bar of a budget.
const BAR: usize = 30;

/// How many of the largest layers at the peak are named.
const MAX_LAYERS: usize = 4;

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, description) = &self.device;
        let ranks = if self.ranks > 1 { format!(" · {} of them on each of {} ranks", self.rank_batch, self.ranks) } else { String::new() };
        writeln!(f, "plan · {} · batch {}{ranks} · {name} ({description})", self.model, self.batch)?;
        writeln!(f)?;
        if let Some(device) = &self.device_memory {
            let origin = origin(device.requested, device.given, "free device memory");
            budget(f, "device budget", device.budget, device.total(), &origin, &device.owners)?;
        }
        let origin = origin(self.requested_host_budget, self.host_budget_given, "available memory");
        budget(f, "host budget", self.host_budget, self.total(), &origin, &self.owners)?;
        writeln!(f)?;
        let requested = match (self.reproducible, self.micro_batch_given) {
            (true, _) => " (reproducible)",
            (false, true) => " (requested)",
            (false, false) => "",
        };
        let batches = match self.accumulation_steps() {
            1 => "whole batches".to_string(),
            n => format!("{n} micro-batches of {}", self.micro_batch),
        };
        let precision = format!("{}{}", self.precision.name(), if self.eight_bit_state { " · 8-bit optimizer state" } else { "" });
        writeln!(
            f,
            "  strategy       {batches}{requested} · {precision} · arena {}, lower bound {}",
            self.memory.arena, self.memory.lower_bound
        )?;
        if let Some(layers) = self.at_peak() {
            writeln!(f, "  at the peak    {layers}")?;
        }
        for (i, strategy) in self.strategies.iter().enumerate() {
            writeln!(f, "  {:<14} {}", if i == 0 { "saved" } else { "" }, self.describe(strategy))?;
        }
        if self.strategies.is_empty() && !self.recomputation.nodes.is_empty() {
            writeln!(f, "                 {}", self.recomputed())?;
        }
        if self.strategies.is_empty() && self.offload_bytes() > Bytes::ZERO {
            writeln!(f, "                 {}", self.offloaded())?;
        }
        if let Some(split) = &self.split {
            let (layers, count) = (split.layers.join(", "), split.pieces);
            writeln!(f, "                 {layers} split into {count} slices of their rows (arena {} smaller)", split.saved)?;
        }
        let mut changes = Vec::new();
        for permission in self.used.iter().filter(|permission| permission.changes_results()) {
            changes.push(match permission {
                Permission::MicrobatchBatchnorm if self.ranks > 1 => "batch normalization uses the statistics of each rank's rows",
                Permission::MicrobatchBatchnorm => "batch normalization uses the statistics of micro-batches",
                Permission::MixedPrecision => "activations are rounded to 16 bits",
                _ => "optimizer state is rounded to 8 bits",
            });
        }
        let results = match changes.is_empty() {
            true if self.sums_reordered => "unchanged by the memory strategy, up to the order of sums".to_string(),
            true if self.reproducible => "unchanged by the memory strategy, and the same bits on any number of ranks".to_string(),
            true => "unchanged by the memory strategy".to_string(),
            false => format!("changed: {}, as was allowed", changes.join("; ")),
        };
        writeln!(f, "  results        {results}")?;
        let by = if self.measured_costs { "" } else { ", by built-in rates" };
        let without = self.strategies.first().map_or(String::new(), |first| {
            let (bytes, time) = first.before;
            format!("; {} with {bytes}, without a strategy", seconds(time))
        });
        // Predictions have no step.
        if self.predicted_s > 0.0 {
            writeln!(f, "  step time      {} predicted{by}{without}", seconds(self.predicted_s))?;
        }
        let sharded = match self.shard {
            Shard::None => "",
            Shard::Optimizer => "optimizer states",
            Shard::Gradients => "optimizer states and accumulated gradients",
        };
        if self.shard != Shard::None {
            writeln!(f, "  sharded        {sharded}: each of {} ranks has its shard", self.ranks)?;
        }
        if self.ranks > 1 {
            let all = Bytes(self.total().0.saturating_mul(self.ranks as u64));
            writeln!(f, "  all ranks      {} × {} = {all}: they have equal plans", self.ranks, self.total())?;
            self.by_rank(f)?;
        }
        let smallest = if self.may_micro_batch { ", with micro-batches down to one row" } else { "" };
        match &self.device_memory {
            Some(device) => write!(f, "  minimum        {} on the device and {} on the host{smallest}", device.minimum, self.minimum),
            None => write!(f, "  minimum        {}{smallest}", self.minimum),
        }
    }
}

impl RunPlan {
    /// A table of bytes by owner and rank. Ranks have equal plans: one column has all of them.
    fn by_rank(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_device = self.device_memory.iter().flat_map(|device| device.owners.iter().map(|(owner, size)| (format!("{owner}"), *size)));
        let place = if self.device_memory.is_some() { " (host)" } else { "" };
        let on_host = self.owners.iter().map(|(owner, size)| (format!("{owner}{place}"), *size));
        let totals = self.device_memory.iter().map(|device| ("all on the device".to_string(), device.total()));
        let rows: Vec<(String, Bytes)> = on_device.chain(on_host).chain(totals).chain([(format!("all{place}"), self.total())]).collect();
        let width = rows.iter().map(|(owner, _)| owner.chars().count()).max().unwrap_or(0);
        let each = format!("ranks 0–{}, each", self.ranks - 1);
        writeln!(f, "    {:<width$}  {each:>18}  {:>14}", "owner", "all of them")?;
        for (owner, size) in rows {
            let all = Bytes(size.0.saturating_mul(self.ranks as u64)).to_string();
            writeln!(f, "    {owner:<width$}  {:>18}  {all:>14}", size.to_string())?;
        }
        Ok(())
    }

    /// The bytes of each owner by rank: ranks with equal plans are one entry.
    pub fn by_rank_json(&self) -> Value {
        json!([{
            "ranks": [0, self.ranks - 1],
            "total_bytes": self.total().0,
            "by_owner": object(&self.owners),
            "device_by_owner": self.device_memory.as_ref().map(|device| object(&device.owners)),
        }])
    }
}

/// A time with a fitting unit.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// Where a budget comes from, unless it was given and is free.
fn origin(requested: Option<Bytes>, given: bool, otherwise: &str) -> String {
    match requested {
        Some(requested) => format!(" ({requested} was requested, but only this is free)"),
        None if given => String::new(),
        None => format!(" ({otherwise})"),
    }
}

/// A budget with its bar, and below it the owners.
fn budget(f: &mut fmt::Formatter<'_>, name: &str, budget: Bytes, total: Bytes, origin: &str, owners: &[(Owner, Bytes)]) -> fmt::Result {
    writeln!(f, "  {name:<14} {budget}  {}  {total} peak{origin}", bar(total, budget))?;
    wrapped(owners).iter().try_for_each(|owners| writeln!(f, "     {owners}"))
}

/// A bar that is as full as the budget.
fn bar(used: Bytes, budget: Bytes) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = (used.0 as f64 / budget.0.max(1) as f64).min(1.0);
    let eighths = (share * (BAR * 8) as f64).round() as usize;
    let (full, part) = (eighths / 8, EIGHTHS[eighths % 8]);
    let empty = BAR - full - usize::from(!part.is_empty());
    format!("{}{part}{}", "█".repeat(full), "·".repeat(empty))
}

/// Owners and sizes, joined into budgets that fit a terminal.
fn wrapped(owners: &[(Owner, Bytes)]) -> Vec<String> {
    let mut budgets = vec![String::new()];
    for (name, size) in owners {
        let item = format!("{name} {size}");
        let last = budgets.last_mut().expect("there is always a line");
        if last.is_empty() {
            *last = item;
        } else if last.chars().count() + item.chars().count() < 96 {
            *last += &format!(" · {item}");
        } else {
            budgets.push(item);
        }
    }
    budgets
}

impl RunPlan {
    /// The largest layers of the arena at its peak.
    fn at_peak(&self) -> Option<String> {
        let fullest = self.memory.programs.iter().max_by_key(|program| program.lower_bound)?;
        let mut holders: Vec<(&str, Bytes)> = Vec::new();
        for buffer in fullest.at_peak().filter(|buffer| !buffer.owner.is_empty()) {
            match holders.iter_mut().find(|(known, _)| buffer.owner == **known) {
                Some((_, size)) => *size += buffer.size,
                None => holders.push((&buffer.owner, buffer.size)),
            }
        }
        holders.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        let most: Vec<String> = holders.iter().take(MAX_LAYERS).map(|(name, size)| format!("{name} {size}")).collect();
        let others = match holders.len().saturating_sub(MAX_LAYERS) {
            0 => String::new(),
            1 => " · 1 more layer".to_string(),
            others => format!(" · {others} more layers"),
        };
        (!most.is_empty()).then(|| most.join(" · ") + &others)
    }

    /// A strategy, what it saved and what it cost.
    fn describe(&self, strategy: &AppliedStrategy) -> String {
        let each = |permission: &Permission| match permission {
            Permission::Microbatch => format!("{} micro-batches of {}", self.accumulation_steps(), self.micro_batch),
            Permission::Recompute => self.recomputed(),
            Permission::Offload => self.offloaded(),
            Permission::MixedPrecision => "16-bit activations".to_string(),
            Permission::State8bit => "8-bit optimizer state".to_string(),
            other => other.name().to_string(),
        };
        let what = strategy.permissions.iter().map(each).collect::<Vec<_>>().join(", ");
        let ((bytes, time), (less, longer)) = (strategy.before, strategy.after);
        let saved = match bytes.0.checked_sub(less.0) {
            Some(saved) => format!("{} less", Bytes(saved)),
            None => format!("{} more", less - bytes),
        };
        let cost = 100.0 * (longer / time.max(f64::MIN_POSITIVE) - 1.0);
        format!("{saved} · time {cost:+.1} % · {what}")
    }

    fn recomputed(&self) -> String {
        format!("{} activations recomputed (+{:.1} % FLOPs)", self.recomputation.nodes.len(), 100.0 * self.recomputation.flops_ratio())
    }

    /// What is offloaded, and where to.
    fn offloaded(&self) -> String {
        let states = self.memory.states.iter().filter(|state| state.stored).count();
        let values = self.memory.programs.iter().map(|program| program.offloaded.len()).max().unwrap_or(0);
        let what = match (states, values) {
            (states, 0) => format!("{states} optimizer tensors"),
            (0, values) => format!("{values} activations"),
            (states, values) => format!("{states} optimizer tensors and {values} activations"),
        };
        format!("{what} offloaded to {}: {}, {} copied per batch", self.elsewhere(), self.offload_bytes(), self.offload_copied())
    }

    fn elsewhere(&self) -> &'static str {
        if self.device_memory.is_some() { "pinned host memory" } else { "a file" }
    }

    /// Every op of every program, one line each: when it runs, the offset and lifetime of its output, and whether it is
    /// recomputed.
    pub fn placement(&self) -> String {
        let mut text = String::new();
        for program in &self.memory.programs {
            text += &format!("{} on {}\n", program.role.name(), self.device.0);
            let mut homes: HashMap<ValueId, &Buffer> = HashMap::new();
            program.buffers.iter().for_each(|buffer| homes.extend(buffer.values.iter().map(|value| (*value, buffer))));
            for (time, id) in program.order.iter().enumerate() {
                let node = program.graph.node(*id);
                let again = if program.recomputation.nodes.contains(id) { " · recomputed" } else { "" };
                for output in &node.outputs {
                    let place = match (homes.get(output), program.places[output.0 as usize]) {
                        (Some(buffer), _) => format!("{} at {} until step {}", buffer.size, buffer.offset.0, buffer.last),
                        (None, Some(Place::Backing(offset))) => format!("offloaded to {} at {}", self.elsewhere(), offset.0),
                        (None, _) => "updated in place".to_string(),
                    };
                    text += &format!("  {time:>5}  {:<18} {:<32} {place}{again}\n", node.op.rules().name(), node.scope);
                }
            }
        }
        text
    }
}

fn object(pairs: &[(impl fmt::Display, Bytes)]) -> Value {
    Value::Object(pairs.iter().map(|(name, size)| (name.to_string(), json!(size.0))).collect::<Map<_, _>>())
}

impl RunPlan {
    /// The plan as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "feasible": true,
            "model": self.model,
            "device": self.device.0,
            "count": self.count.name(),
            "batch": self.batch,
            "ranks": self.ranks,
            "shard": self.shard.name(),
            "peak_bytes": { "host": self.total().0, "device": self.device_memory.as_ref().map_or(0, |device| device.total().0) },
            "host_budget_bytes": self.host_budget.0,
            "device_budget_bytes": self.device_memory.as_ref().map(|device| device.budget.0),
            "device_promised_bytes": self.device_memory.as_ref().and_then(|device| device.requested).map(|bytes| bytes.0),
            "device_by_owner": self.device_memory.as_ref().map(|device| object(&device.owners)),
            "min_device_bytes": self.device_memory.as_ref().map(|device| device.minimum.0),
            "promised_bytes": self.requested_host_budget.map(|bytes| bytes.0),
            "arena_bytes": self.memory.arena.0,
            "lower_bound_bytes": self.memory.lower_bound.0,
            "resident_bytes": self.memory.resident.0,
            "micro_batch": self.micro_batch,
            "reproducible": self.reproducible,
            "accumulation_steps": self.accumulation_steps(),
            "precision": self.precision.name(),
            "optimizer_state_bits": if self.eight_bit_state { 8 } else { 32 },
            "results_unchanged": self.results_unchanged,
            "sums_reordered": self.sums_reordered,
            "allow": self.allow.to_string(),
            "used": self.used.iter().map(|permission| permission.name()).collect::<Vec<_>>(),
            "choices": self.strategies.iter().map(AppliedStrategy::to_json).collect::<Vec<_>>(),
            "recompute_flops_ratio": self.recomputation.flops_ratio(),
            "recomputed": self.recomputation.nodes.len(),
            "split": self.split.as_ref().map(|split| json!({ "layers": split.layers, "pieces": split.pieces, "saved_bytes": split.saved.0 })),
            "offload_bytes": self.offload_bytes().0,
            "offload_copied_bytes": self.offload_copied().0,
            "predicted_step_s": self.predicted_s,
            "predicted_by": if self.measured_costs { "measured speeds" } else { "built-in rates" },
            "by_owner": object(&self.owners),
            "pipeline": object(&self.pipeline_stages),
            "min_bytes": self.minimum.0,
            "flops_per_step": self.flops,
            "plan_ms": self.plan_ms,
        })
    }
}

impl AppliedStrategy {
    fn to_json(&self) -> Value {
        let ((bytes, time), (less, longer)) = (self.before, self.after);
        json!({
            "used": self.permissions.iter().map(|permission| permission.name()).collect::<Vec<_>>(),
            "saved_bytes": bytes.0 as i64 - less.0 as i64,
            "added_step_s": longer - time,
        })
    }
}
