//! Compiled programs of eager ops: one per op, types and device.

use super::call::Call;
use super::error::Result;
use super::hash::{Fast, FastHasher};
use plimsoll_core::allocator::OwnerId;
use plimsoll_core::device::{Device, DeviceError, Executable, RunBuffers};
use plimsoll_core::function::{Function, Vjp};
use plimsoll_core::graph::{GraphError, Init, StateId, StateKind};
use plimsoll_core::plan::{CheckedPlan, plan};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph, TensorType, ValueId};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled op.
pub(super) struct Program {
    /// None if nothing is computed.
    executable: Option<Mutex<Box<dyn Executable>>>,
    /// The operand that each result is, if it is one.
    passed: Vec<Option<usize>>,
    /// The types of the other results.
    results: Vec<TensorType>,
    arena: Bytes,
    owner: OwnerId,
}

impl Program {
    /// Plans and loads the program of an op.
    fn compile(call: &Call, types: &[TensorType], scalars: usize, device: &dyn Device) -> Result<Program> {
        let mut graph = Graph::new();
        let inputs: Vec<ValueId> = types.iter().enumerate().map(|(i, ty)| graph.input(&format!("operand {i}"), ty.clone())).collect();
        let scalars: Vec<ValueId> = (0..scalars).map(|i| graph.scalar(&format!("scalar {i}"))).collect();
        let values = graph.in_scope(call.name(), |g| call.build(g, &inputs, &scalars))?;
        let passed: Vec<Option<usize>> = values.iter().map(|value| inputs.iter().position(|input| input == value)).collect();
        let computed: Vec<ValueId> = values.iter().zip(&passed).filter(|(_, passed)| passed.is_none()).map(|(value, _)| *value).collect();
        let (results, owner) = (computed.iter().map(|value| graph.ty(*value).clone()).collect(), OwnerId::named(call.name()));
        if computed.is_empty() {
            return Ok(Program { executable: None, passed, results, arena: Bytes::ZERO, owner });
        }
        write_results(&mut graph, &computed)?;
        let checked = CheckedPlan::new(plan(vec![(Role::Step, graph)], 1, device)?)?;
        Ok(Program { passed, ..Program::of(&checked, results, owner, device)? })
    }

    /// A program from a plan.
    pub fn of(plan: &CheckedPlan, results: Vec<TensorType>, owner: OwnerId, device: &dyn Device) -> Result<Program> {
        let executable = Some(Mutex::new(device.executable(plan, Role::Step)?));
        Ok(Program { executable, passed: vec![None; results.len()], results, arena: plan.arena, owner })
    }

    /// For each result, the operand that it is, if it is one.
    pub fn passed(&self) -> &[Option<usize>] {
        &self.passed
    }

    /// The types of the results that are computed.
    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// The owner of the results.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Bytes of workspace.
    pub fn arena(&self) -> Bytes {
        self.arena
    }

    pub fn run(&self, buffers: &RunBuffers<'_>) -> Result<(), DeviceError> {
        match &self.executable {
            Some(executable) => executable.lock().unwrap_or_else(PoisonError::into_inner).run(buffers),
            None => Ok(()),
        }
    }
}

/// Makes every result the new value of a state, so that a run names the memory it is written to.
pub(super) fn write_results(graph: &mut Graph, results: &[ValueId]) -> Result<(), GraphError> {
    for (i, result) in results.iter().enumerate() {
        let ty = graph.ty(*result).clone();
        graph.state(&format!("result {i}"), StateKind::Statistic, ty, Init::Constant(0.0))?;
        let state = StateId(graph.states().len() as u32 - 1);
        graph.update(state, *result);
    }
    Ok(())
}

/// Programs that were compiled, by op and types. Those that were not used for longest are dropped.
#[derive(Default)]
pub(super) struct ProgramCache(Mutex<Cache<Program>>);

impl ProgramCache {
    /// The program of a call on operands of these types.
    pub fn get<'t>(
        &self,
        call: &Call,
        types: impl Iterator<Item = &'t TensorType> + Clone,
        scalars: usize,
        device: &dyn Device,
    ) -> Result<Arc<Program>> {
        let key = hash(call, types.clone(), &[]);
        if let Some(known) = lock(&self.0).find(key, call, types.clone(), &[]) {
            return Ok(known);
        }
        let types: Vec<TensorType> = types.cloned().collect();
        let program = Arc::new(Program::compile(call, &types, scalars, device)?);
        lock(&self.0).insert(key, CacheEntry { call: call.clone(), types, wants: Vec::new(), value: Arc::clone(&program), used: 0 });
        Ok(program)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.0).count
    }
}

/// Gradients that were derived. They depend on no device.
static GRADIENTS: Mutex<Option<Cache<Result<Vjp, GraphError>>>> = Mutex::new(None);

/// The gradient of a call with respect to the operands that are wanted, or why there is none.
pub(super) fn gradient<'t>(
    call: &Call,
    types: impl Iterator<Item = &'t TensorType> + Clone,
    scalars: usize,
    wants: &[bool],
) -> Arc<Result<Vjp, GraphError>> {
    let key = hash(call, types.clone(), wants);
    if let Some(known) = lock(&GRADIENTS).get_or_insert_default().find(key, call, types.clone(), wants) {
        return known;
    }
    let types: Vec<TensorType> = types.cloned().collect();
    let function = Function::new(&types, scalars, |g, inputs, scalars| g.in_scope(call.name(), |g| call.build(g, inputs, scalars)));
    let vjp = Arc::new(function.and_then(|function| function.vjp(wants, call.statistics())));
    let entry = CacheEntry { call: call.clone(), types, wants: wants.to_vec(), value: Arc::clone(&vjp), used: 0 };
    lock(&GRADIENTS).get_or_insert_default().insert(key, entry);
    vjp
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most this many entries of a cache.
const MOST: usize = 4096;

struct Cache<T> {
    entries: HashMap<u64, Vec<CacheEntry<T>>, Fast>,
    count: usize,
    clock: u64,
}

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache { entries: HashMap::default(), count: 0, clock: 0 }
    }
}

struct CacheEntry<T> {
    call: Call,
    types: Vec<TensorType>,
    wants: Vec<bool>,
    value: Arc<T>,
    /// When it was used last.
    used: u64,
}

impl<T> Cache<T> {
    fn find<'t>(&mut self, key: u64, call: &Call, types: impl Iterator<Item = &'t TensorType> + Clone, wants: &[bool]) -> Option<Arc<T>> {
        self.clock += 1;
        let entries = self.entries.get_mut(&key)?;
        let found = entries.iter_mut().find(|entry| entry.call == *call && entry.wants == wants && types.clone().eq(&entry.types))?;
        found.used = self.clock;
        Some(Arc::clone(&found.value))
    }

    fn insert(&mut self, key: u64, entry: CacheEntry<T>) {
        if self.count >= MOST {
            let mut used: Vec<u64> = self.entries.values().flatten().map(|entry| entry.used).collect();
            used.sort_unstable();
            let median = used[used.len() / 2];
            self.entries.retain(|_, entries| {
                entries.retain(|entry| entry.used > median);
                !entries.is_empty()
            });
            self.count = self.entries.values().map(Vec::len).sum();
        }
        self.count += 1;
        self.entries.entry(key).or_default().push(CacheEntry { used: self.clock, ..entry });
    }
}

fn hash<'t>(call: &Call, types: impl Iterator<Item = &'t TensorType>, wants: &[bool]) -> u64 {
    let mut hasher = FastHasher::default();
    call.hash(&mut hasher);
    types.for_each(|ty| ty.hash(&mut hasher));
    wants.iter().for_each(|wanted| hasher.write_u8(u8::from(*wanted)));
    hasher.finish()
}
