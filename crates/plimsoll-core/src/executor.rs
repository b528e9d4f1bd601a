//! The executor: owns a plan's memory on a device and runs its programs. After the first run of a program for a number
//! of rows it does not allocate.

use crate::base::budget::Owner;
use crate::base::normal::{LANES, normals};
use crate::base::random::StepRandom;
use crate::device::{BackingStore, Device, DeviceError, Loaded, Memory, NodeSpan, StepInputs, StepMemory};
use crate::ir::graph::{Init, State, StateId};
use crate::plan::{CheckedPlan, Place, Plan, state_owner};
use crate::transform::step::Role;
use crate::{Bytes, Ledger, NodeId, Reservation};
use std::ops::Range;
use std::sync::Arc;

/// Runs the programs of one plan.
pub struct Executor {
    plan: CheckedPlan,
    device: Arc<dyn Device>,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    backing: Option<Arc<dyn BackingStore>>,
    loaded: Vec<LoadedVariant>,
    /// How many programs of a role stay loaded.
    programs_per_role: usize,
    /// Counts the runs of all programs.
    uses: u64,
    _reservations: Vec<Reservation>,
}

/// A program that is loaded for a number of rows.
struct LoadedVariant {
    role: Role,
    rows: usize,
    /// None while another one is loaded in its place.
    program: Option<Box<dyn Loaded>>,
    runs: u64,
    /// When it was last used.
    used: u64,
}

impl LoadedVariant {
    fn program(&mut self) -> &mut dyn Loaded {
        &mut **self.program.as_mut().expect("loaded, or `find` failed")
    }
}

/// A handle to one run of a program.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    entry: usize,
    run: u64,
}

impl Executor {
    /// Allocates the plan's memory on the device, reserved in the ledger by owner before it exists. Offloaded tensors
    /// use the device's default backing store.
    pub fn new(device: Arc<dyn Device>, plan: CheckedPlan, ledger: &Ledger) -> Result<Executor, DeviceError> {
        let backing = if plan.backing > Bytes::ZERO { Some(device.backing_store(plan.backing)?) } else { None };
        Executor::with_backing(device, plan, ledger, backing)
    }

    /// Like [`Executor::new`], with a given backing store of at least the plan's size.
    pub fn with_backing(
        device: Arc<dyn Device>,
        plan: CheckedPlan,
        ledger: &Ledger,
        backing: Option<Arc<dyn BackingStore>>,
    ) -> Result<Executor, DeviceError> {
        let given = backing.as_ref().map_or(Bytes::ZERO, |backing| backing.size());
        if given < plan.backing {
            let what = format!("the plan keeps {} in a backing store, but there is one of {given}", plan.backing);
            return Err(DeviceError::Unsupported { device: device.name(), what });
        }
        let mut reservations = Vec::new();
        for state in plan.states.iter().filter(|state| !state.stored) {
            reservations.push(ledger.reserve(state_owner(state.kind), state.size.align_up(plan.alignment.0))?);
        }
        if let Some(staging) = &plan.staging {
            reservations.push(ledger.reserve(Owner::Staging, staging.size())?);
        }
        reservations.push(ledger.reserve(Owner::Arena, plan.arena)?);
        let resident = device.allocate(plan.resident)?;
        let arena = device.allocate(plan.arena)?;
        Ok(Executor {
            plan,
            device,
            resident,
            arena,
            backing,
            loaded: Vec::new(),
            programs_per_role: usize::MAX,
            uses: 0,
            _reservations: reservations,
        })
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Initializes every state from the seed. A state's values depend only on the seed and the state's number.
    pub fn initialize(&mut self, seed: u64) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        let Some(program) = plan.programs.iter().max_by_key(|program| program.graph.states().len()) else { return Ok(()) };
        for (i, state) in program.graph.states().iter().enumerate() {
            let mut draw = InitialValues::new(seed, i, 0);
            // Written in chunks, so that initialization never needs a second copy of a tensor.
            let mut piece = [0u8; 4096];
            let size = plan.states[i].size.0;
            let mut done = 0;
            while done < size {
                let length = (size - done).min(piece.len() as u64) as usize;
                for number in piece[..length].chunks_exact_mut(4) {
                    number.copy_from_slice(&draw.number(state).to_ne_bytes());
                }
                self.write_state_part(StateId(i as u32), Bytes(done), &piece[..length])?;
                done += length as u64;
            }
        }
        Ok(())
    }

    /// As [`initialize`](Executor::initialize), with the same bits, in chunks that `map` computes, from several threads
    /// if it likes.
    pub fn initialize_by(&mut self, seed: u64, map: &ChunkMap<'_>) -> Result<(), DeviceError> {
        const CHUNK: u64 = 1 << 17;
        let plan = self.plan.clone();
        let Some(program) = plan.programs.iter().max_by_key(|program| program.graph.states().len()) else { return Ok(()) };
        let states = program.graph.states();
        let mut chunks: Vec<(usize, Range<u64>)> = Vec::new();
        for (i, state) in states.iter().enumerate() {
            let size = plan.states[i].size;
            match state.init {
                Init::Constant(value) if value.to_bits() == 0 => self.zero_state(StateId(i as u32), size)?,
                _ => {
                    let draws = expected_draws(state.init, size.0 / 4);
                    chunks.extend((0..draws).step_by(CHUNK as usize).map(|start| (i, start..(start + CHUNK).min(draws))));
                }
            }
        }
        let generate = |chunk: usize| {
            let (i, draws) = chunks[chunk].clone();
            let mut bytes = Vec::with_capacity(4 * (draws.end - draws.start) as usize);
            let mut draw = InitialValues::new(seed, i, draws.start);
            draws.filter_map(|_| draw.draw(&states[i])).for_each(|number| bytes.extend_from_slice(&number.to_ne_bytes()));
            bytes
        };
        let mut done = vec![0; states.len()];
        let write = |chunk: usize, values: Vec<u8>| {
            let (i, _) = chunks[chunk];
            let length = (plan.states[i].size.0 - done[i]).min(values.len() as u64);
            self.write_state_part(StateId(i as u32), Bytes(done[i]), &values[..length as usize])?;
            done[i] += length;
            Ok(())
        };
        map(chunks.len(), &generate, &mut { write })?;
        // More draws than expected were rejected.
        for (i, state) in states.iter().enumerate().filter(|(_, state)| !matches!(state.init, Init::Constant(_))) {
            let mut draw = InitialValues::new(seed, i, expected_draws(state.init, plan.states[i].size.0 / 4));
            for at in (done[i]..plan.states[i].size.0).step_by(4) {
                self.write_state_part(StateId(i as u32), Bytes(at), &draw.number(state).to_ne_bytes())?;
            }
        }
        Ok(())
    }

    fn zero_state(&mut self, state: StateId, size: Bytes) -> Result<(), DeviceError> {
        match self.plan.states[state.0 as usize].place() {
            Place::Backing(_) => {
                let zeros = [0; 4096];
                let length = |at: u64| (size.0 - at).min(zeros.len() as u64) as usize;
                (0..size.0).step_by(zeros.len()).try_for_each(|at| self.write_state_part(state, Bytes(at), &zeros[..length(at)]))
            }
            _ => self.resident.zero(self.plan.states[state.0 as usize].offset, size),
        }
    }

    /// What loads a program without this executor, on another thread for example, if the device supports that. What it
    /// loads is given to [`adopt`](Executor::adopt).
    pub fn loader(&self, role: Role, rows: usize) -> Option<ProgramLoader> {
        Some(ProgramLoader {
            plan: self.plan.clone(),
            device: Arc::clone(&self.device),
            resident: self.resident.share()?,
            arena: self.arena.share()?,
            backing: self.backing.clone(),
            role,
            rows,
        })
    }

    /// Takes a program that one of its own [loaders](Executor::loader) has loaded.
    pub fn adopt(&mut self, loaded: LoadedProgram) {
        let LoadedProgram { role, rows, program } = loaded;
        if !self.loaded.iter().any(|entry| entry.role == role && entry.rows == rows) {
            self.loaded.push(LoadedVariant { role, rows, program: Some(program), runs: 0, used: self.uses });
        }
    }

    /// Keeps no more than this many programs of a role loaded, two at least: where batches have ever different numbers
    /// of rows, the program that was not used for longest is unloaded. Without a limit they add up.
    pub fn limit_loaded(&mut self, programs_per_role: usize) {
        self.programs_per_role = programs_per_role.max(2);
    }

    /// How many programs are loaded.
    pub fn loaded(&self) -> usize {
        self.loaded.iter().filter(|entry| entry.program.is_some()).count()
    }

    /// Loads a program for a number of rows, so that its first run does not allocate either.
    pub fn prepare(&mut self, role: Role, rows: usize) -> Result<(), DeviceError> {
        self.find(role, rows).map(|_| ())
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Runs a program over `rows` rows. On a device with its own memory the run may be asynchronous; see
    /// [`Executor::outcome`].
    pub fn run(&mut self, role: Role, rows: usize, inputs: &StepInputs<'_>) -> Result<Ticket, DeviceError> {
        let entry = self.find(role, rows)?;
        let known = &mut self.loaded[entry];
        known.program().run(inputs)?;
        known.runs += 1;
        Ok(Ticket { entry, run: known.runs })
    }

    /// Runs a program once and returns when each of its nodes ran, see [`Loaded::trace`].
    pub fn trace(&mut self, role: Role, rows: usize, inputs: &StepInputs<'_>) -> Result<Vec<NodeSpan>, DeviceError> {
        let entry = self.find(role, rows)?;
        self.loaded[entry].program().trace(inputs)
    }

    /// Waits for a run: the last one or, on a device with its own memory, the one before. Fills `numbers` with the
    /// program's [scalar outputs](crate::plan::Program::numbers).
    pub fn outcome(&mut self, ticket: Ticket, numbers: &mut [f32]) -> Result<(), DeviceError> {
        let known = &mut self.loaded[ticket.entry];
        let back = known.runs - ticket.run;
        known.program().outcome(back, numbers)
    }

    /// The scalar outputs of a program's last run, even if that run was aborted.
    pub fn last_numbers(&mut self, role: Role, rows: usize, numbers: &mut [f32]) -> Result<(), DeviceError> {
        let entry = self.find(role, rows)?;
        self.loaded[entry].program().outcome(0, numbers)
    }

    /// The first node of a program with a non-finite output; without inputs, for those of the run with the non-finite
    /// loss.
    pub fn find_non_finite(&mut self, role: Role, rows: usize, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError> {
        let entry = self.find(role, rows)?;
        self.loaded[entry].program().find_non_finite(inputs)
    }

    /// The location of an output, which can be read after each run.
    pub fn output(&self, role: Role, name: &str) -> Option<Place> {
        let program = self.plan.program(role)?;
        let (_, value) = program.graph.outputs().iter().find(|(output, _)| output == name)?;
        program.places[value.index()]
    }

    /// Reads an output of the last run; `bytes` has the output's length.
    pub fn read(&self, output: Place, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match output {
            Place::Arena(offset) => self.arena.read(offset, bytes),
            Place::Resident(offset) => self.resident.read(offset, bytes),
            Place::Backing(offset) => self.elsewhere().read(offset, bytes),
            Place::Input(_) | Place::Scalar(_) => unreachable!("a step never leaves anything where the host writes"),
        }
    }

    /// Reads a state.
    pub fn read_state(&self, state: StateId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read_state_part(state, Bytes::ZERO, bytes)
    }

    /// Reads part of a state, starting at a byte offset.
    pub fn read_state_part(&self, state: StateId, from: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read(self.plan.states[state.0 as usize].place().offset_by(from.0), bytes)
    }

    /// Overwrites a state.
    pub fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_state_part(state, Bytes::ZERO, bytes)
    }

    /// Overwrites part of a state, starting at a byte offset.
    pub fn write_state_part(&mut self, state: StateId, from: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.plan.states[state.0 as usize].place().offset_by(from.0) {
            Place::Backing(offset) => self.elsewhere().write(offset, bytes),
            _ => self.resident.write(self.plan.states[state.0 as usize].offset + from, bytes),
        }
    }

    fn elsewhere(&self) -> &dyn BackingStore {
        &**self.backing.as_ref().expect("a plan that keeps something elsewhere is given a backing store")
    }

    fn find(&mut self, role: Role, rows: usize) -> Result<usize, DeviceError> {
        self.uses += 1;
        let known = self.loaded.iter().position(|entry| entry.role == role && entry.rows == rows && entry.program.is_some());
        if let Some(known) = known {
            self.loaded[known].used = self.uses;
            return Ok(known);
        }
        assert!(rows <= self.plan.rows, "{rows} rows were asked for, but the plan holds for {}", self.plan.rows);
        let place = self.place_for(role);
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: self.backing.as_ref() };
        let program = Some(self.device.load(&self.plan, role, rows, &memory)?);
        let entry = LoadedVariant { role, rows, program, runs: 0, used: self.uses };
        match place {
            Some(place) => self.loaded[place] = entry,
            None => self.loaded.push(entry),
        }
        Ok(place.unwrap_or(self.loaded.len() - 1))
    }

    /// The place of a program that is unloaded for another one of its role. Tickets name places, so the others stay
    /// where they are; the program that ran last, whose numbers may not have been read yet, is not unloaded.
    fn place_for(&mut self, role: Role) -> Option<usize> {
        let of_role = || self.loaded.iter().enumerate().filter(|(_, entry)| entry.role == role);
        let oldest = of_role().min_by_key(|(_, entry)| (entry.program.is_some(), entry.used)).map(|(place, _)| place)?;
        if self.loaded[oldest].program.is_some() && of_role().count() < self.programs_per_role {
            return None;
        }
        self.loaded[oldest].program = None;
        Some(oldest)
    }
}

/// Applies the first function to the numbers below a count, and the second to each number and its result, in their
/// order.
pub type ChunkMap<'a> = dyn Fn(usize, &(dyn Fn(usize) -> Vec<u8> + Sync), &mut dyn FnMut(usize, Vec<u8>) -> Result<(), DeviceError>) -> Result<(), DeviceError>
    + 'a;

/// Loads a program of an executor, without the executor.
pub struct ProgramLoader {
    plan: CheckedPlan,
    device: Arc<dyn Device>,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    backing: Option<Arc<dyn BackingStore>>,
    role: Role,
    rows: usize,
}

/// A program that was loaded without its executor.
pub struct LoadedProgram {
    role: Role,
    rows: usize,
    program: Box<dyn Loaded>,
}

impl ProgramLoader {
    /// Loads the program.
    pub fn load(self) -> Result<LoadedProgram, DeviceError> {
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: self.backing.as_ref() };
        let program = self.device.load(&self.plan, self.role, self.rows, &memory)?;
        Ok(LoadedProgram { role: self.role, rows: self.rows, program })
    }
}

/// Draws that yield this many values, in all likelihood: a truncated normal distribution rejects 4.6 % of them.
fn expected_draws(init: Init, values: u64) -> u64 {
    match init {
        Init::TruncatedNormal { .. } => values + values / 20 + (values as f64).sqrt() as u64 + 8,
        _ => values,
    }
}

/// The generator of a state's initial values.
struct InitialValues {
    seed: u64,
    state: u32,
    next: u64,
    /// The normal numbers of the draws from `first` on.
    normals: [f64; LANES],
    first: Option<u64>,
}

impl InitialValues {
    /// First random stream of initial values; steps use lower ones.
    const STREAM: u32 = 0x8000_0000;

    /// The values of a state, from this draw on.
    fn new(seed: u64, state: usize, next: u64) -> InitialValues {
        InitialValues { seed, state: state as u32, next, normals: [0.0; LANES], first: None }
    }

    fn number(&mut self, state: &State) -> f32 {
        loop {
            if let Some(number) = self.draw(state) {
                return number;
            }
        }
    }

    /// One draw, which may yield no value: a truncated distribution rejects some.
    fn draw(&mut self, state: &State) -> Option<f32> {
        match state.init {
            Init::Constant(value) => Some(value),
            Init::Uniform { limit } => Some((2.0 * f64::from(self.uniform()) - 1.0) as f32 * limit),
            Init::TruncatedNormal { std } => {
                Some(self.normal()).filter(|normal| normal.abs() <= 2.0).map(|normal| (normal * f64::from(std)) as f32)
            }
            Init::Stretch { value, from, to } => {
                self.next += 1;
                Some(if (from as u64..to as u64).contains(&(self.next - 1)) { value } else { 0.0 })
            }
            Init::Orthogonal => {
                self.next += 1;
                Some(self.orthogonal(state, self.next - 1))
            }
        }
    }

    /// An element of a matrix with orthogonal rows or columns, whichever are fewer.
    fn orthogonal(&self, state: &State, index: u64) -> f32 {
        let dims = state.ty.shape.bind(1);
        let columns = dims.last().copied().unwrap_or(1).max(1) as u64;
        let rows = (dims.iter().product::<usize>() as u64 / columns).max(1);
        let (row, column) = (index / columns, index % columns);
        let (wave, place, length) = if rows <= columns { (row, column, columns) } else { (column, row, rows) };
        let random = StepRandom { seed: self.seed, step: u32::MAX, first_row: 0 };
        let draw = |index: u64| random.uniform(InitialValues::STREAM + self.state, index);
        // A stride coprime to the length visits every basis vector once.
        let step = (0..).map(|i| 1 + (f64::from(draw(length)) * length as f64) as u64 + i).find(|step| coprime(*step, length));
        let first = (f64::from(draw(length + 1)) * length as f64) as u64;
        let wave = (first + wave * step.expect("the length plus one is one such step")) % length;
        let scale = if wave == 0 { 1.0 } else { 2.0 } / length as f64;
        let angle = std::f64::consts::PI * (2 * place + 1) as f64 * wave as f64 / (2 * length) as f64;
        let sign = if draw(place) < 0.5 { -1.0 } else { 1.0 };
        (sign * scale.sqrt() * angle.cos()) as f32
    }

    fn uniform(&mut self) -> f32 {
        let random = StepRandom { seed: self.seed, step: u32::MAX, first_row: 0 };
        self.next += 1;
        random.uniform(InitialValues::STREAM + self.state, self.next - 1)
    }

    fn normal(&mut self) -> f64 {
        let lane = (self.next % LANES as u64) as usize;
        let first = self.next - lane as u64;
        if self.first != Some(first) {
            self.normals = normals(first, InitialValues::STREAM + self.state, self.seed);
            self.first = Some(first);
        }
        self.next += 1;
        self.normals[lane]
    }
}

/// Whether two numbers are coprime.
fn coprime(mut a: u64, mut b: u64) -> bool {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::shape::{Shape, TensorType};
    use crate::ir::graph::StateKind;

    #[test]
    fn orthogonal_rows_are_orthogonal() {
        for (rows, columns) in [(3, 12), (5, 5), (7, 2), (1, 1)] {
            let ty = TensorType::f32(Shape::fixed([rows, columns]));
            let state = State { name: "u".to_string(), kind: StateKind::Parameter, ty, init: Init::Orthogonal, shard: None };
            let mut draw = InitialValues::new(5, 2, 0);
            let matrix: Vec<f32> = (0..rows * columns).map(|_| draw.number(&state)).collect();
            let at = |wave: usize, place: usize| {
                f64::from(if rows <= columns { matrix[wave * columns + place] } else { matrix[place * columns + wave] })
            };
            for (a, b) in (0..rows.min(columns)).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                let product: f64 = (0..rows.max(columns)).map(|place| at(a, place) * at(b, place)).sum();
                assert!((product - f64::from(u8::from(a == b))).abs() < 1e-6, "{rows}×{columns}: {a}·{b} = {product}");
            }
        }
    }
}
