//! The plan as people read it: one screen, and one JSON object.

use super::{AppliedStrategy, RunPlan};
use crate::allow::Permission;
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::{Buffer, Place};
use plimsoll_core::{Bytes, ValueId};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt;

/// Cells of the bar under the line.
const BAR: usize = 30;

/// How many layers are named that hold most.
const MOST_HOLDERS: usize = 4;

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, description) = &self.device;
        writeln!(f, "plan · {} · batch {} · {name} ({description})", self.model, self.batch)?;
        writeln!(f)?;
        if let Some(device) = &self.device_memory {
            let origin = origin(device.requested, device.given, "what is free there");
            line(f, "device line", device.budget, device.total(), &origin, &device.owners)?;
        }
        let origin = origin(self.requested_host_budget, self.host_budget_given, "what the system has");
        line(f, "host line", self.host_budget, self.total(), &origin, &self.owners)?;
        writeln!(f)?;
        let asked = if self.micro_batch_given { " (asked for)" } else { "" };
        let pieces = match self.accumulation_steps() {
            1 => "whole batches".to_string(),
            n => format!("{n} micro-batches of {}", self.micro_batch),
        };
        let precision = format!("{}{}", self.precision.name(), if self.eight_bit_state { " · optimiser state in 8 bits" } else { "" });
        writeln!(f, "  chosen       {pieces}{asked} · {precision} · arena {}, lower bound {}", self.memory.arena, self.memory.lower_bound)?;
        if let Some(holders) = self.at_peak() {
            writeln!(f, "  at the peak  {holders}")?;
        }
        for (i, taken) in self.strategies.iter().enumerate() {
            writeln!(f, "  {:<12} {}", if i == 0 { "saved" } else { "" }, self.choice(taken))?;
        }
        if self.strategies.is_empty() && !self.recomputation.nodes.is_empty() {
            writeln!(f, "               {}", self.computed_again())?;
        }
        if self.strategies.is_empty() && self.offload_bytes() > Bytes::ZERO {
            writeln!(f, "               {}", self.offloaded())?;
        }
        if let Some(split) = &self.split {
            let (layers, count) = (split.layers.join(", "), split.pieces);
            writeln!(f, "               {layers} computed in {count} pieces of their rows ({} less arena by itself)", split.saved)?;
        }
        let mut changes = Vec::new();
        for permission in self.used.iter().filter(|permission| permission.changes_results()) {
            changes.push(match permission {
                Permission::MicrobatchBatchnorm => "batch normalisation sees pieces instead of whole batches",
                Permission::MixedPrecision => "activations are rounded to 16 bits",
                _ => "the optimiser's state is rounded to 8 bits",
            });
        }
        let results = match changes.is_empty() {
            true => "unchanged by any memory choice".to_string(),
            false => format!("changed: {}, as was allowed", changes.join("; ")),
        };
        writeln!(f, "  results      {results}")?;
        let by = if self.measured_costs { "" } else { ", by built-in rates" };
        let without = self.strategies.first().map_or(String::new(), |first| {
            let (bytes, time) = first.before;
            format!(", {} in {bytes} without these choices", seconds(time))
        });
        writeln!(f, "  predicted    {} a batch{by}{without}", seconds(self.predicted_s))?;
        let cut = if self.may_micro_batch { ", cut into single rows if need be" } else { "" };
        match &self.device_memory {
            Some(device) => write!(f, "  least        {} there and {} on the host work too{cut}", device.minimum, self.minimum),
            None => write!(f, "  least        {} works too{cut}", self.minimum),
        }
    }
}

/// A time as people say it.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// Where a line comes from, if that is worth saying.
fn origin(promised: Option<Bytes>, given: bool, otherwise: &str) -> String {
    match promised {
        Some(promised) => format!(" ({promised} was promised, but only this is free)"),
        None if given => String::new(),
        None => format!(" ({otherwise})"),
    }
}

/// A line with its bar, and below it who stands under it.
fn line(f: &mut fmt::Formatter<'_>, name: &str, line: Bytes, total: Bytes, origin: &str, owners: &[(Owner, Bytes)]) -> fmt::Result {
    writeln!(f, "  {name:<12} {line}  {}  {total} planned{origin}", bar(total, line))?;
    wrapped(owners).iter().try_for_each(|owners| writeln!(f, "     {owners}"))
}

/// A bar that is as full as the line is.
fn bar(used: Bytes, line: Bytes) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = (used.0 as f64 / line.0.max(1) as f64).min(1.0);
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
    /// The layers that hold the most of the arena when it is fullest.
    fn at_peak(&self) -> Option<String> {
        let fullest = self.memory.programs.iter().max_by_key(|program| program.lower_bound)?;
        let mut holders: Vec<(&str, Bytes)> = Vec::new();
        for buffer in fullest.at_peak().filter(|buffer| !buffer.owner.is_empty()) {
            match holders.iter_mut().find(|(known, _)| *known == buffer.owner) {
                Some((_, size)) => *size += buffer.size,
                None => holders.push((&buffer.owner, buffer.size)),
            }
        }
        holders.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        let most: Vec<String> = holders.iter().take(MOST_HOLDERS).map(|(name, size)| format!("{name} {size}")).collect();
        let others = match holders.len().saturating_sub(MOST_HOLDERS) {
            0 => String::new(),
            others => format!(" · {others} more layers"),
        };
        (!most.is_empty()).then(|| most.join(" · ") + &others)
    }

    /// What a choice was, what it saved and what it cost.
    fn choice(&self, taken: &AppliedStrategy) -> String {
        let each = |permission: &Permission| match permission {
            Permission::Microbatch => format!("{} micro-batches of {}", self.accumulation_steps(), self.micro_batch),
            Permission::Recompute => self.computed_again(),
            Permission::Offload => self.offloaded(),
            Permission::MixedPrecision => "activations in 16 bits".to_string(),
            Permission::State8bit => "optimiser state in 8 bits".to_string(),
            other => other.name().to_string(),
        };
        let what = taken.permissions.iter().map(each).collect::<Vec<_>>().join(", ");
        let ((bytes, time), (less, longer)) = (taken.before, taken.after);
        let saved = match bytes.0.checked_sub(less.0) {
            Some(saved) => format!("{} less", Bytes(saved)),
            None => format!("{} more", less - bytes),
        };
        let cost = 100.0 * (longer / time.max(f64::MIN_POSITIVE) - 1.0);
        format!("{saved} · time {cost:+.1} % · {what}")
    }

    fn computed_again(&self) -> String {
        format!("{} results computed again (+{:.1} % operations)", self.recomputation.nodes.len(), 100.0 * self.recomputation.flops_ratio())
    }

    /// What leaves the device's memory, in words.
    fn offloaded(&self) -> String {
        let states = self.memory.states.iter().filter(|state| state.stored).count();
        let values = self.memory.programs.iter().map(|program| program.offloaded.len()).max().unwrap_or(0);
        let what = match (states, values) {
            (states, 0) => format!("{states} tensors of the optimiser"),
            (0, values) => format!("{values} results"),
            (states, values) => format!("{states} tensors of the optimiser and {values} results"),
        };
        format!("{what} kept in {}: {} there, {} copied a batch", self.elsewhere(), self.offload_bytes(), self.offload_copied())
    }

    fn elsewhere(&self) -> &'static str {
        if self.device_memory.is_some() { "pinned host memory" } else { "a file" }
    }

    /// Every operation of every program, one line each: when it runs, what it makes and where, and whether it is made again.
    pub fn placement(&self) -> String {
        let mut text = String::new();
        for program in &self.memory.programs {
            text += &format!("{} on {}\n", program.role.name(), self.device.0);
            let mut homes: HashMap<ValueId, &Buffer> = HashMap::new();
            program.buffers.iter().for_each(|buffer| homes.extend(buffer.values.iter().map(|value| (*value, buffer))));
            for (time, id) in program.order.iter().enumerate() {
                let node = program.graph.node(*id);
                let again = if program.recomputation.nodes.contains(id) { " · again" } else { "" };
                for output in &node.outputs {
                    let place = match (homes.get(output), program.places[output.0 as usize]) {
                        (Some(buffer), _) => format!("{} at {} until step {}", buffer.size, buffer.offset.0, buffer.last),
                        (None, Some(Place::Backing(offset))) => format!("offloaded to {} at {}", self.elsewhere(), offset.0),
                        (None, _) => "in place of its old value".to_string(),
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
            "batch": self.batch,
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
            "accumulation_steps": self.accumulation_steps(),
            "precision": self.precision.name(),
            "optimizer_state_bits": if self.eight_bit_state { 8 } else { 32 },
            "results_unchanged": self.results_unchanged,
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
