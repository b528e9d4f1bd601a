//! The planned memory of a step as a snapshot for PyTorch's memory viewer.

use super::Profile;
use plimsoll_core::plan::{Plan, Program, state_owner};
use plimsoll_formats::memory_snapshot::{self, Action, Block, Event, Frame, Segment};
use std::collections::HashMap;
use std::io::{self, Write};

/// The addresses of the two segments: they must not meet, and not be zero.
const RESIDENT: u64 = 1 << 40;
const ARENA: u64 = 1 << 41;

impl Profile {
    /// Writes a snapshot that `torch.cuda._memory_viz` and `pytorch.org/memory_viz` read: the states, and every buffer
    /// of the arena at its address from the op that writes it to the last that reads it, at the times of the last
    /// traced step.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_memory_snapshot(&self, writer: impl Write) -> io::Result<()> {
        let plan = &self.plan.memory;
        let role = self.spans.first().map(|span| span.role);
        let Some(program) = role.and_then(|role| plan.program(role)).or(plan.programs.first()) else { return Ok(()) };
        let begin = self.spans.first().map_or(0.0, |span| span.start_s);
        let mut times: Vec<u64> = (0..=program.order.len() as u64).collect();
        for span in self.spans.iter().filter(|span| Some(span.role) == role) {
            times[span.at] = ((span.start_s - begin) * 1e6) as u64;
        }
        // An op that was not timed begins with the one before.
        (1..times.len()).for_each(|i| times[i] = times[i].max(times[i - 1]));
        write(writer, plan, program, &times)
    }
}

fn write(writer: impl Write, plan: &Plan, program: &Program, times: &[u64]) -> io::Result<()> {
    let mut frames = Frames::default();
    let states: Vec<Block> = plan
        .states
        .iter()
        .filter(|state| !state.stored && state.size.0 > 0)
        .map(|state| {
            let frame = frames.number(&state.name, &state_owner(state.kind).to_string());
            Block { address: RESIDENT + state.offset.0, size: state.size.0, frame }
        })
        .collect();
    let buffers: Vec<u32> = program
        .buffers
        .iter()
        .map(|buffer| {
            let ty = buffer.values.first().map_or(String::new(), |value| program.graph.ty(*value).to_string());
            let producer = program.order.get(buffer.first as usize).map_or("", |id| program.graph.node(*id).op.rules().name());
            frames.number(&format!("{} {ty}", buffer.owner), &format!("{producer} ({:?})", buffer.kind).to_lowercase())
        })
        .collect();
    let mut events: Vec<(u32, Event)> = Vec::with_capacity(2 * buffers.len() + states.len() + 2);
    let memory = frames.number("memory of the plan", "plan");
    for (address, size) in [(RESIDENT, plan.resident.0), (ARENA, plan.arena.0)] {
        events.push((0, Event { action: Action::Segment, address, size, frame: memory, time_us: 0 }));
    }
    events.extend(states.iter().map(|block| {
        let Block { address, size, frame } = *block;
        (0, Event { action: Action::Allocate, address, size, frame, time_us: 0 })
    }));
    for (buffer, frame) in program.buffers.iter().zip(&buffers).filter(|(buffer, _)| buffer.size.0 > 0) {
        let event = |action, step: u32| {
            let time_us = times[(step as usize).min(times.len() - 1)];
            Event { action, address: ARENA + buffer.offset.0, size: buffer.size.0, frame: *frame, time_us }
        };
        events.push((2 * buffer.first + 1, event(Action::Allocate, buffer.first)));
        // Freed before the next step allocates.
        events.push((2 * buffer.last + 2, event(Action::Free, buffer.last + 1)));
    }
    events.sort_by_key(|(place, _)| *place);
    let mut states = states;
    states.sort_by_key(|block| block.address);
    let segments = [
        Segment { address: RESIDENT, size: plan.resident.0, blocks: states },
        Segment { address: ARENA, size: plan.arena.0, blocks: Vec::new() },
    ];
    memory_snapshot::write(writer, &frames.list, &segments, events.into_iter().map(|(_, event)| event)).map(drop)
}

/// Frames, each once.
#[derive(Default)]
struct Frames {
    list: Vec<Frame>,
    numbers: HashMap<(String, String), u32>,
}

impl Frames {
    fn number(&mut self, name: &str, file: &str) -> u32 {
        let key = (name.to_string(), file.to_string());
        *self.numbers.entry(key).or_insert_with(|| {
            self.list.push(Frame { name: name.to_string(), file: file.to_string() });
            self.list.len() as u32 - 1
        })
    }
}
