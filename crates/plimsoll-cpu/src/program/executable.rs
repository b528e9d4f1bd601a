//! A program on memory that is given for every run.

use super::instruction::Bindings;
use super::lower::{Lowering, ProgramMemory};
use super::{Work, unsupported, work};
use crate::runtime::memory::{CpuMemory, HostBuffer};
use crate::runtime::threads::ThreadPool;
use plimsoll_comm::Group;
use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Executable, Region, RunBuffers};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::step::Role;
use std::sync::Arc;

/// Error for a plan that offloads tensors.
const STORES: &str = "a plan with a backing store needs memory of its own; load it instead";

/// A program without memory of its own.
pub(crate) struct CpuExecutable {
    pool: Arc<ThreadPool>,
    calls: Vec<Work>,
    /// The columns, the states, and the arena.
    extents: Vec<Extent>,
    columns: usize,
    scalars: usize,
    /// The address of each region in the current run.
    addresses: Vec<*mut u8>,
}

// SAFETY: the addresses are set and used within one run, by one thread.
unsafe impl Send for CpuExecutable {}

/// What a region must have.
struct Extent {
    bytes: usize,
    alignment: usize,
}

impl CpuExecutable {
    /// # Errors
    /// If no kernel supports an op's configuration, or the plan offloads tensors.
    pub fn new(pool: &Arc<ThreadPool>, group: &Arc<dyn Group>, plan: &CheckedPlan, role: Role) -> Result<CpuExecutable, DeviceError> {
        let program = plan.expect_program(role);
        if plan.backing > Bytes::ZERO {
            return Err(unsupported(STORES));
        }
        let memory = ProgramMemory::Given { states: &plan.states, arena: plan.arena };
        let lowering = Lowering { program, rows: plan.rows, threads: pool.threads(), memory };
        let mut calls = Vec::with_capacity(program.order.len());
        for (step, id) in program.order.iter().enumerate() {
            let node = program.graph.node(*id);
            let call = work(&lowering, node, program.workspaces[step], group);
            match call.map_err(|what| unsupported(format!("{}: {what}", node.op.rules().name())))? {
                Work::Copy => return Err(unsupported(STORES)),
                call => calls.push(call),
            }
        }
        let alignment = plan.alignment.get();
        let columns = program.graph.inputs().iter();
        let columns = columns.map(|input| Extent { bytes: input.ty.bytes(plan.rows).get(), alignment: input.ty.dtype.size() });
        let states = plan.states.iter().map(|state| Extent { bytes: state.size.get(), alignment });
        let extents: Vec<Extent> = columns.chain(states).chain([Extent { bytes: plan.arena.get(), alignment }]).collect();
        Ok(CpuExecutable {
            pool: Arc::clone(pool),
            addresses: Vec::with_capacity(extents.len()),
            columns: program.graph.inputs().len(),
            scalars: program.graph.scalars().len(),
            calls,
            extents,
        })
    }

    /// Sets the addresses of a run, after checking every region; returns the memories.
    fn bind<'a>(&mut self, buffers: &RunBuffers<'a>) -> Result<Memories<'a>, DeviceError> {
        let given = [buffers.columns.len(), buffers.states.len(), buffers.scalars.len()];
        let expected = [self.columns, self.extents.len() - self.columns - 1, self.scalars];
        if given != expected {
            return Err(unsupported(format!("the program has {expected:?} columns, states and scalars, but got {given:?}")));
        }
        self.addresses.clear();
        let mut memories = Memories::default();
        let regions = buffers.columns.iter().chain(buffers.states).chain([&buffers.arena]);
        for (i, (region, extent)) in regions.zip(&self.extents).enumerate() {
            let buffer = host_buffer(region)?;
            let inside = region.offset.0.checked_add(extent.bytes as u64).is_some_and(|end| end <= buffer.size() as u64);
            let address = buffer.start().wrapping_add(region.offset.0 as usize);
            if !inside || !(address as usize).is_multiple_of(extent.alignment) {
                return Err(unsupported(format!("region {i} is outside of its memory, or not aligned to {} bytes", extent.alignment)));
            }
            memories.add(buffer);
            self.addresses.push(address);
        }
        // States and the arena are written. Columns may be the same.
        for written in self.columns..self.extents.len() {
            let range = |i: usize| (self.addresses[i] as usize, self.addresses[i] as usize + self.extents[i].bytes);
            let (start, end) = range(written);
            let meets = |(from, until): (usize, usize)| from < end && start < until && from < until && start < end;
            if (0..written).any(|other| meets(range(other))) {
                return Err(unsupported(format!("region {written}, which is written, overlaps another")));
            }
        }
        Ok(memories)
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, buffers: &RunBuffers<'_>) -> Result<(), DeviceError> {
        let memories = self.bind(buffers)?;
        let _alone = memories.lock();
        let bindings = Bindings { columns: &[], scalars: buffers.scalars, random: buffers.random, regions: &self.addresses };
        for call in &mut self.calls {
            match call {
                // SAFETY: every region was just checked: it is inside of a memory whose lock is held, aligned, and
                // overlaps no region that is written. Types, sizes, and that values alias within a region only where
                // allowed follow from `CheckedPlan` and `check_load`.
                Work::Kernel(call) => unsafe { call.run(&self.pool, &bindings) },
                // SAFETY: as above.
                Work::Collective(call) => unsafe { call.run(&bindings) }?,
                // SAFETY: as above.
                Work::Shards(call) => unsafe { call.run(&bindings) }?,
                Work::Copy => unreachable!("refused when the program is made"),
            }
        }
        Ok(())
    }
}

fn host_buffer<'a>(region: &Region<'a>) -> Result<&'a HostBuffer, DeviceError> {
    let memory = region.memory.as_any().downcast_ref::<CpuMemory>();
    memory.map(|memory| &*memory.0).ok_or_else(|| unsupported("the memory was made by another device"))
}

/// The different memories of a run; most often one.
#[derive(Default)]
struct Memories<'a> {
    first: Option<&'a HostBuffer>,
    others: Vec<&'a HostBuffer>,
}

impl<'a> Memories<'a> {
    fn add(&mut self, buffer: &'a HostBuffer) {
        match self.first {
            None => self.first = Some(buffer),
            Some(first) if std::ptr::eq(first, buffer) => {}
            Some(_) if self.others.iter().any(|other| std::ptr::eq(*other, buffer)) => {}
            Some(_) => self.others.push(buffer),
        }
    }

    /// The locks, taken in the order of addresses, so that two runs never wait for each other.
    fn lock(&self) -> (Option<std::sync::MutexGuard<'a, ()>>, Vec<std::sync::MutexGuard<'a, ()>>) {
        if self.others.is_empty() {
            return (self.first.map(HostBuffer::lock), Vec::new());
        }
        let mut all: Vec<&HostBuffer> = self.first.iter().chain(&self.others).copied().collect();
        all.sort_by_key(|buffer| *buffer as *const HostBuffer as usize);
        (None, all.into_iter().map(HostBuffer::lock).collect())
    }
}
