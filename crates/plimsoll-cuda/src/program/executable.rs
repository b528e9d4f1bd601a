//! A program on memory that is given for every run, such as an eager op: kernels and library calls are enqueued in the
//! compute stream, and nothing is waited for.

use super::address::{Address, Addresses, HEADER, ProgramMemory};
use super::assembly::Assembly;
use super::lower::Lowering;
use super::tuning::Tuner;
use super::{StreamOp, name_of, wants_cudnn, workspace};
use crate::libraries::driver::Module;
use crate::runtime::arguments::{ArgumentRing, SLOT, SharedArguments};
use crate::runtime::memory::CudaMemory;
use crate::runtime::state::{DeviceState, lock};
use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Executable, Region, RunBuffers};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::step::Role;
use std::ops::Range;
use std::sync::Arc;

/// A program without memory of its own.
pub(crate) struct CudaExecutable {
    shared: Arc<DeviceState>,
    arguments: SharedArguments,
    /// The operations of every node, with its name.
    nodes: Vec<(String, Vec<StreamOp>)>,
    /// The columns, the states, and the arena: their bytes.
    extents: Vec<u64>,
    /// Alignment of each.
    alignment: u64,
    columns: usize,
    scalars: usize,
    /// Whether an operation reads a scalar or draws random numbers.
    reads_slot: bool,
    /// The address of each region in the current run.
    addresses: Vec<u64>,
    /// Dropped last, because the operations refer to them.
    _modules: Vec<Module>,
}

impl CudaExecutable {
    /// # Errors
    /// If no kernel supports an op's configuration, a kernel does not compile, or the plan offloads tensors.
    pub fn new(
        shared: &Arc<DeviceState>,
        arguments: &SharedArguments,
        plan: &CheckedPlan,
        role: Role,
    ) -> Result<CudaExecutable, DeviceError> {
        let unsupported = |what: String| DeviceError::Unsupported { device: shared.context.name(), what };
        let program = plan.expect_program(role);
        let (graph, rows) = (&program.graph, plan.rows);
        if plan.backing > Bytes::ZERO {
            return Err(unsupported("a plan with a backing store needs memory of its own; load it instead".to_string()));
        }
        if HEADER + 4 * graph.scalars().len() > SLOT {
            return Err(unsupported(format!("a program of {} scalars needs memory of its own; load it instead", graph.scalars().len())));
        }
        shared.bind()?;
        let lowering = Lowering {
            plan,
            program,
            rows,
            loss: None,
            library: shared.products.is_some(),
            cudnn: wants_cudnn(program, rows, shared.convolutions) && shared.cudnn().is_some(),
            convolutions: shared.convolutions,
            tensor_cores: shared.tensor_cores(),
            rank: 0,
        };
        let memory = ProgramMemory::Given { states: &plan.states, arena: plan.arena.0 };
        let addresses = Addresses { lowering: &lowering, memory };
        let mut assembly = Assembly::new(shared, &addresses, None, Tuner::new(shared, (0, 0)));
        let mut unlinked = Vec::with_capacity(program.order.len());
        for (step, id) in program.order.iter().enumerate() {
            let node = graph.node(*id);
            let name = name_of(node);
            let named = |what: String| unsupported(format!("{name}: {what}"));
            let (offset, size) = program.workspaces[step];
            let needed = workspace(graph, node, rows, shared.convolutions);
            if needed > size || offset.0 + needed.0 > plan.arena.0 {
                return Err(named(format!("needs {needed} of workspace, but the plan gives it {size}")));
            }
            assembly.scope = &node.scope;
            let mut ops = Vec::new();
            for work in lowering.lower(node, false, false).map_err(named)? {
                ops.extend(assembly.resolve(work, &node.inputs, &node.outputs, offset, needed).map_err(named)?);
            }
            unlinked.push((name, ops));
        }
        assembly.tuner.store();

        let failed = |error| shared.context.failed("loading the kernels", error);
        let compiled = assembly.compile().map_err(|log| unsupported(format!("a kernel does not compile: {log}")))?;
        // SAFETY: the images come from NVRTC, or from the cache, which verifies a checksum.
        let modules = compiled.iter().map(|image| unsafe { Module::new(&shared.context, &image.code) });
        let modules = modules.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut nodes = Vec::with_capacity(unlinked.len());
        for (name, ops) in unlinked {
            let ops = ops.into_iter().map(|op| op.link(&modules, &compiled)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            nodes.push((name, ops));
        }

        let alignment = plan.alignment.0;
        let columns = graph.inputs().iter();
        let columns = columns.map(|input| input.ty.bytes(rows).0);
        let extents: Vec<u64> = columns.chain(plan.states.iter().map(|state| state.size.0)).chain([plan.arena.0]).collect();
        Ok(CudaExecutable {
            shared: Arc::clone(shared),
            arguments: Arc::clone(arguments),
            reads_slot: nodes.iter().flat_map(|(_, ops)| ops).any(StreamOp::reads_slot),
            nodes,
            addresses: Vec::with_capacity(extents.len()),
            columns: graph.inputs().len(),
            scalars: graph.scalars().len(),
            extents,
            alignment,
            _modules: modules,
        })
    }

    /// Sets the addresses of a run, after checking every region.
    fn bind(&mut self, buffers: &RunBuffers<'_>) -> Result<(), DeviceError> {
        let unsupported = |what: String| DeviceError::Unsupported { device: self.shared.context.name(), what };
        let given = [buffers.columns.len(), buffers.states.len(), buffers.scalars.len()];
        let expected = [self.columns, self.extents.len() - self.columns - 1, self.scalars];
        if given != expected {
            return Err(unsupported(format!("the program has {expected:?} columns, states and scalars, but got {given:?}")));
        }
        self.addresses.clear();
        let regions = buffers.columns.iter().chain(buffers.states).chain([&buffers.arena]);
        for (i, (region, bytes)) in regions.zip(&self.extents).enumerate() {
            let address =
                address(&self.shared, region, *bytes, self.alignment).map_err(|what| unsupported(format!("region {i} {what}")))?;
            self.addresses.push(address);
        }
        match overlap(&self.addresses, &self.extents, self.columns) {
            Some(written) => Err(unsupported(format!("region {written}, which is written, overlaps another"))),
            None => Ok(()),
        }
    }

    /// Enqueues all operations.
    fn enqueue(&mut self, slot: u64) -> Result<(), DeviceError> {
        let addresses = &self.addresses;
        let at = |address: Address| match address {
            Address::Fixed(address) => address,
            Address::Slot(offset) => slot + offset,
            Address::Region(region, offset) => addresses[region] + offset,
            Address::Results => unreachable!("the host reads no results of this program"),
        };
        for (name, ops) in &mut self.nodes {
            for op in ops {
                if let StreamOp::Matmul { product, bias: Some(bias), .. } = op {
                    let refused = |what| DeviceError::Failed { device: self.shared.context.name(), what: format!("{name}: {what}") };
                    product.set_bias(at(*bias)).map_err(refused)?;
                }
                // SAFETY: every region was just checked: it is inside of device memory of this GPU, aligned, and
                // overlaps no region that is written. Types, sizes, and that values alias within a region only where
                // allowed follow from `CheckedPlan`. Memory is freed only after all work of the stream, and so are the
                // kernels.
                unsafe { op.enqueue(&self.shared, name, at) }?;
            }
            if self.shared.one_by_one {
                self.shared.compute.wait().map_err(|error| self.shared.context.op_failed(name, error))?;
            }
        }
        Ok(())
    }
}

/// The address of a region, or what is wrong with it.
fn address(shared: &Arc<DeviceState>, region: &Region<'_>, bytes: u64, alignment: u64) -> Result<u64, String> {
    let memory = region.memory.as_any().downcast_ref::<CudaMemory>().filter(|memory| memory.0.is_of(shared));
    let Some(CudaMemory(memory)) = memory else { return Err("is memory of another device".to_string()) };
    let inside = memory.contains(region.offset.0, bytes);
    match memory.start.wrapping_add(region.offset.0) {
        address if inside && address.is_multiple_of(alignment) => Ok(address),
        _ => Err(format!("is outside of its memory, or not aligned to {alignment} bytes")),
    }
}

/// The first region from `columns` on, all of which are written, that overlaps an earlier one.
fn overlap(addresses: &[u64], extents: &[u64], columns: usize) -> Option<usize> {
    let range = |i: usize| addresses[i]..addresses[i] + extents[i];
    let meet = |a: Range<u64>, b: Range<u64>| !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end;
    (columns..addresses.len()).find(|written| (0..*written).any(|other| meet(range(other), range(*written))))
}

impl Executable for CudaExecutable {
    fn run(&mut self, buffers: &RunBuffers<'_>) -> Result<(), DeviceError> {
        self.bind(buffers)?;
        self.shared.bind()?;
        if !self.reads_slot {
            return self.enqueue(0);
        }
        let mut image = [0; SLOT];
        image[..8].copy_from_slice(&buffers.random.seed.to_ne_bytes());
        image[8..16].copy_from_slice(&buffers.random.first_row.to_ne_bytes());
        image[16..20].copy_from_slice(&buffers.random.step.to_ne_bytes());
        for (place, scalar) in image[HEADER..].chunks_exact_mut(4).zip(buffers.scalars) {
            place.copy_from_slice(&scalar.to_ne_bytes());
        }
        let arguments = Arc::clone(&self.arguments);
        // Held until everything that reads the slot is enqueued.
        let mut ring = lock(&arguments);
        let ring = match &mut *ring {
            Some(ring) => ring,
            empty => empty.insert(ArgumentRing::new(&self.shared)?),
        };
        let slot = ring.put(&self.shared, &image[..HEADER + 4 * self.scalars])?;
        self.enqueue(slot)
    }
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Kernels must not be unloaded while they run. An error of the device cannot be handled here.
        let _ = self.shared.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_regions_must_not_overlap_others() {
        // Columns may be the same memory.
        assert_eq!(overlap(&[0, 0, 64], &[64, 64, 64], 2), None);
        assert_eq!(overlap(&[0, 0, 32], &[64, 64, 64], 2), Some(2));
        assert_eq!(overlap(&[0, 64, 64], &[64, 64, 64], 1), Some(2));
        // An arena of no bytes may be anywhere.
        assert_eq!(overlap(&[0, 64, 64], &[64, 64, 0], 1), None);
    }
}
