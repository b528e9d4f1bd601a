//! The memory of a plan as the page reads it: for every program its steps and its buffers, column by column, with names
//! as numbers.

use crate::nn::LayerSummary;
use plimsoll_core::ValueId;
use plimsoll_core::plan::{Buffer, BufferKind, Certificate, Place, Plan, Program};
use plimsoll_formats::json::write_string;
use std::collections::HashMap;
use std::io::{self, Write};

/// One op of a program.
struct StepRow<'a> {
    op: &'a str,
    scope: &'a str,
    flops: u64,
    bytes: u64,
}

/// One buffer of the arena.
struct BufferRow<'a> {
    owner: &'a str,
    kind: BufferKind,
    /// The type of its first value, where that is known.
    ty: Option<String>,
    offset: u64,
    size: u64,
    first: u32,
    last: u32,
}

/// What a program is, and the sizes of its arena.
struct Head<'a> {
    role: &'a str,
    arena: u64,
    lower_bound: u64,
    recomputed: usize,
    pieces: usize,
}

/// Writes the memory of a plan, with the model's layers.
pub(crate) fn write_map(writer: &mut impl Write, plan: &Plan, layers: &[LayerSummary]) -> io::Result<()> {
    let mut map = MapWriter::begin(writer, plan.rows, plan.arena.0, plan.resident.0, plan.backing.0)?;
    let owner = |kind| plimsoll_core::plan::state_owner(kind);
    map.states(plan.states.iter().map(|state| (&state.name[..], owner(state.kind).to_string(), state.offset.0, state.size.0)))?;
    map.layers(layers)?;
    for program in &plan.programs {
        let head = Head {
            role: program.role.name(),
            arena: program.arena.0,
            lower_bound: program.lower_bound.0,
            recomputed: program.recomputation.nodes.len(),
            pieces: program.graph.pieces(),
        };
        let graph = &program.graph;
        let steps = program.order.iter().map(|id| {
            let node = graph.node(*id);
            let (flops, bytes) = (graph.node_flops(node, plan.rows), graph.moved(node, plan.rows));
            StepRow { op: node.op.rules().name(), scope: &node.scope, flops, bytes }
        });
        let buffers = program.buffers.iter().map(|buffer| BufferRow {
            owner: &buffer.owner,
            kind: buffer.kind,
            ty: first_value(program, buffer).map(|value| graph.ty(value).to_string()),
            offset: buffer.offset.0,
            size: buffer.size.0,
            first: buffer.first,
            last: buffer.last,
        });
        map.program(&head, steps, buffers)?;
    }
    map.finish()
}

/// The first value of a buffer; of a proven plan, whose buffers list none, the one that its first op writes there.
fn first_value(program: &Program, buffer: &Buffer) -> Option<ValueId> {
    let listed = buffer.values.first().copied();
    listed.or_else(|| {
        let node = program.graph.node(*program.order.get(buffer.first as usize)?);
        let written = |value: &&ValueId| program.places[value.0 as usize] == Some(Place::Arena(buffer.offset));
        node.outputs.iter().find(written).copied().filter(|_| buffer.kind != BufferKind::Workspace)
    })
}

/// Writes the memory that a certificate states, where its graphs cannot be built. It has neither FLOPs nor types nor
/// layers.
pub(crate) fn write_map_of(writer: &mut impl Write, plan: &Certificate) -> io::Result<()> {
    let mut map = MapWriter::begin(writer, plan.rows, plan.arena.0, plan.resident.0, plan.backing.0)?;
    map.states(plan.states.iter().map(|(name, owner, offset, size)| (&name[..], owner.clone(), offset.0, size.0)))?;
    map.layers(&[])?;
    for claim in &plan.programs {
        let end = claim.buffers.iter().map(|(_, _, offset, size, ..)| offset.0 + size.0).max().unwrap_or(0);
        let recomputed = claim.sequence.len().saturating_sub(claim.sequence.iter().collect::<std::collections::HashSet<_>>().len());
        let head = Head { role: claim.role.name(), arena: end, lower_bound: 0, recomputed, pieces: claim.pieces };
        let steps = claim.steps.iter().map(|step| {
            let bytes = step.reads.iter().chain(&step.writes).map(|range| range.size.0).sum();
            StepRow { op: &step.op, scope: &step.scope, flops: 0, bytes }
        });
        let buffers = claim.buffers.iter().map(|(owner, kind, offset, size, first, last)| BufferRow {
            owner,
            kind: *kind,
            ty: None,
            offset: offset.0,
            size: size.0,
            first: *first,
            last: *last,
        });
        map.program(&head, steps, buffers)?;
    }
    map.finish()
}

/// Writes one document. Names are written at its end, each once.
struct MapWriter<'w, W> {
    writer: &'w mut W,
    names: Names,
    programs: usize,
}

#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    order: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = self.order.len() as u32;
        self.numbers.insert(name.to_string(), number);
        self.order.push(name.to_string());
        number
    }
}

impl<'w, W: Write> MapWriter<'w, W> {
    fn begin(writer: &'w mut W, rows: usize, arena: u64, resident: u64, backing: u64) -> io::Result<MapWriter<'w, W>> {
        write!(writer, "{{\"rows\":{rows},\"arena_bytes\":{arena},\"resident_bytes\":{resident},\"backing_bytes\":{backing}")?;
        Ok(MapWriter { writer, names: Names::default(), programs: 0 })
    }

    fn states<'a>(&mut self, states: impl Iterator<Item = (&'a str, String, u64, u64)>) -> io::Result<()> {
        self.writer.write_all(b",\"states\":[")?;
        for (i, (name, owner, offset, size)) in states.enumerate() {
            self.writer.write_all(if i > 0 { b",[" } else { b"[" })?;
            write_string(self.writer, name)?;
            self.writer.write_all(b",")?;
            write_string(self.writer, &owner)?;
            write!(self.writer, ",{offset},{size}]")?;
        }
        self.writer.write_all(b"]")
    }

    fn layers(&mut self, layers: &[LayerSummary]) -> io::Result<()> {
        self.writer.write_all(b",\"layers\":[")?;
        for (i, layer) in layers.iter().enumerate() {
            self.writer.write_all(if i > 0 { b",[" } else { b"[" })?;
            for text in [&layer.layer[..], layer.kind, &layer.output.to_string()] {
                write_string(self.writer, text)?;
                self.writer.write_all(b",")?;
            }
            write!(self.writer, "{},{}]", layer.parameters, layer.non_trainable)?;
        }
        self.writer.write_all(b"],\"programs\":[")
    }

    fn program<'a>(
        &mut self,
        head: &Head<'_>,
        steps: impl Iterator<Item = StepRow<'a>> + Clone,
        buffers: impl Iterator<Item = BufferRow<'a>> + Clone,
    ) -> io::Result<()> {
        let Head { role, arena, lower_bound, recomputed, pieces } = head;
        self.writer.write_all(if self.programs > 0 { b",{" } else { b"{" })?;
        self.programs += 1;
        write!(
            self.writer,
            "\"role\":\"{role}\",\"arena_bytes\":{arena},\"lower_bound_bytes\":{lower_bound},\"recomputed\":{recomputed},\"pieces\":{pieces}"
        )?;
        self.column("op", steps.clone(), |names, step| u64::from(names.number(step.op)))?;
        self.column("scope", steps.clone(), |names, step| u64::from(names.number(step.scope)))?;
        self.column("flops", steps.clone(), |_, step| step.flops)?;
        self.column("moved", steps, |_, step| step.bytes)?;
        self.column("owner", buffers.clone(), |names, buffer| u64::from(names.number(buffer.owner)))?;
        self.column("kind", buffers.clone(), |names, buffer| u64::from(names.number(kind_name(buffer.kind))))?;
        self.column("type", buffers.clone(), |names, buffer| u64::from(names.number(buffer.ty.as_deref().unwrap_or(""))))?;
        self.column("offset", buffers.clone(), |_, buffer| buffer.offset)?;
        self.column("size", buffers.clone(), |_, buffer| buffer.size)?;
        self.column("first", buffers.clone(), |_, buffer| u64::from(buffer.first))?;
        self.column("last", buffers, |_, buffer| u64::from(buffer.last))?;
        self.writer.write_all(b"}")
    }

    fn column<T>(&mut self, key: &str, rows: impl Iterator<Item = T>, of: impl Fn(&mut Names, T) -> u64) -> io::Result<()> {
        write!(self.writer, ",\"{key}\":[")?;
        for (i, row) in rows.enumerate() {
            let number = of(&mut self.names, row);
            if i > 0 {
                self.writer.write_all(b",")?;
            }
            write!(self.writer, "{number}")?;
        }
        self.writer.write_all(b"]")
    }

    fn finish(self) -> io::Result<()> {
        self.writer.write_all(b"],\"names\":[")?;
        for (i, name) in self.names.order.iter().enumerate() {
            if i > 0 {
                self.writer.write_all(b",")?;
            }
            write_string(self.writer, name)?;
        }
        self.writer.write_all(b"]}\n")
    }
}

fn kind_name(kind: BufferKind) -> &'static str {
    match kind {
        BufferKind::Activation => "activation",
        BufferKind::Gradient => "gradient",
        BufferKind::Loaded => "loaded",
        BufferKind::Workspace => "workspace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A plan of 60,000 buffers over as many steps, with long names.
    fn large() -> Certificate {
        let scope = |i: u64| format!("encoder/block{}/attention/layer{}", i / 120, i % 120);
        let steps: Vec<Value> = (0..60_000)
            .map(|i| {
                json!({ "node": i, "op": "pointwise", "scope": scope(i / 4), "reads": [], "writes": [], "workspace_offset": 0,
                        "workspace_size": 0 })
            })
            .collect();
        let buffers: Vec<Value> = (0..60_000u64)
            .map(|i| json!([scope(i / 4), "activation", i * 1_048_576, 1_048_576 + 64 * i, i, (i + 40).min(59_999)]))
            .collect();
        let claim = json!({ "role": "step", "steps": steps, "outputs": [], "buffers": buffers });
        let whole = json!({ "rows": 8, "alignment": 64, "arena": 1u64 << 40, "lower_bound": 1, "resident": 0, "states": [],
                            "programs": [claim] });
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn a_map_of_many_buffers_is_small_and_has_all_of_them() {
        let mut text = Vec::new();
        write_map_of(&mut text, &large()).unwrap();
        assert!(text.len() < 12 << 20, "{} bytes, of 15 MB for the page", text.len());
        let map: Value = serde_json::from_slice(&text).unwrap();
        let program = &map["programs"][0];
        for key in ["owner", "kind", "type", "offset", "size", "first", "last"] {
            assert_eq!(program[key].as_array().map(Vec::len), Some(60_000), "{key}");
        }
        assert_eq!((&program["size"][7], &program["offset"][7]), (&json!(1_048_576 + 448), &json!(7_340_032)));
        let owner = program["owner"][59_999].as_u64().unwrap() as usize;
        assert_eq!(map["names"][owner], "encoder/block124/attention/layer119");
    }
}
