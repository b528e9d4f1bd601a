//! The op table, the planner and the executor together, on a device that computes every step with the reference.

use plimsoll_core::device::{BackingStore, Loaded, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::offload::{Direction, Overlap};
use plimsoll_core::plan::{Capabilities, CheckedPlan, Place, Program, Target};
use plimsoll_core::selftest::{self, CaseReport};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Device, DeviceError, Graph, NodeId, Op, TensorType, ValueId, reference};
use std::any::Any;
use std::sync::{Arc, Mutex};

/// Bytes that the device's programs and the host both reach.
#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Memory for Shared {
    fn size(&self) -> Bytes {
        Bytes(self.0.lock().unwrap().len() as u64)
    }

    fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap()[offset.get()..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&self.0.lock().unwrap()[offset.get()..][..bytes.len()]);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A device that runs the plan step by step in its memory, each step by the reference; scratch is filled with rubbish.
pub struct Slow {
    /// An op whose results are a little off.
    pub broken: Option<&'static str>,
}

/// The same device with copies made as late as they can be; it makes them as early as it can.
pub struct Late;

/// When copies are made, among all moments that their overlap allows.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Early,
    Late,
}

struct SlowProgram {
    program: Program,
    rows: usize,
    resident: Shared,
    arena: Shared,
    backing: Option<Arc<dyn BackingStore>>,
    overlap: Overlap,
    copies: When,
    /// Which copies of this run are made.
    made: Vec<bool>,
    broken: Option<&'static str>,
}

impl Target for Slow {
    fn name(&self) -> String {
        "slow".to_string()
    }

    fn description(&self) -> String {
        "the reference, in planned memory".to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reads_channel_views: true, ..Capabilities::host(Bytes(16)) }
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        let size = node.inputs.iter().map(|input| graph.ty(*input).bytes(rows)).max();
        if matches!(node.op, Op::Pointwise(_)) { Bytes::ZERO } else { size.unwrap_or_default() }
    }

    fn fuses_slice_write(&self, _: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        true
    }
}

impl Device for Slow {
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Ok(Box::new(Shared(Arc::new(Mutex::new(vec![0; size.get()])))))
    }

    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Ok(Box::new(SlowProgram::load(plan.expect_program(role), rows, memory, When::Early, self.broken)))
    }
}

impl Target for Late {
    fn name(&self) -> String {
        "late".to_string()
    }

    fn description(&self) -> String {
        "the reference, in planned memory, with late copies".to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::host(Bytes(16))
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        Slow { broken: None }.workspace(graph, node, rows)
    }

    fn fuses_slice_write(&self, _: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        true
    }
}

impl Device for Late {
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Slow { broken: None }.allocate(size)
    }

    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Ok(Box::new(SlowProgram::load(plan.expect_program(role), rows, memory, When::Late, None)))
    }
}

impl Loaded for SlowProgram {
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<(), DeviceError> {
        self.made.fill(false);
        for step in 0..self.program.order.len() {
            self.copy_before(step)?;
            if !self.overlap.copies.iter().any(|copy| copy.step == step) {
                self.step(step, inputs)?;
            }
        }
        self.copy_before(usize::MAX)
    }

    fn outcome(&mut self, _: u64, _: &mut [f32]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn find_non_finite(&mut self, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError> {
        let inputs = inputs.expect("nobody asks this device for earlier runs");
        for step in 0..self.program.order.len() {
            if !self.step(step, inputs)? {
                return Ok(Some(self.program.order[step]));
            }
        }
        Ok(None)
    }
}

impl SlowProgram {
    fn load(program: &Program, rows: usize, memory: &StepMemory<'_>, copies: When, broken: Option<&'static str>) -> SlowProgram {
        let shared = |memory: &dyn Memory| memory.as_any().downcast_ref::<Shared>().expect("memory of this device").clone();
        let (resident, arena) = (shared(memory.resident), shared(memory.arena));
        let overlap = Overlap::of(program, rows, 0);
        let (backing, made) = (memory.backing.cloned(), vec![false; overlap.copies.len()]);
        SlowProgram { program: program.clone(), rows, resident, arena, backing, overlap, copies, made, broken }
    }

    /// Makes the copies that this moment allows, or only those that it asks for.
    fn copy_before(&mut self, step: usize) -> Result<(), DeviceError> {
        for i in 0..self.made.len() {
            let copy = &self.overlap.copies[i];
            let due = if self.copies == When::Early { copy.begin <= step } else { copy.needed <= step || step == usize::MAX };
            if due {
                self.make(i, step)?;
            }
        }
        Ok(())
    }

    /// Makes a copy, and before it those that it waits for.
    fn make(&mut self, i: usize, step: usize) -> Result<(), DeviceError> {
        if std::mem::replace(&mut self.made[i], true) {
            return Ok(());
        }
        let copy = self.overlap.copies[i].clone();
        assert!(copy.begin <= step, "a copy waits for a step that waits for it");
        let queue: Vec<usize> = (0..i).filter(|before| self.overlap.copies[*before].direction == copy.direction).collect();
        for before in queue.into_iter().chain(copy.after) {
            self.make(before, step)?;
        }
        let mut bytes = vec![0; copy.size.get()];
        let backing = self.backing.clone().expect("a program with copies has a backing store");
        let (Place::Arena(offset) | Place::Resident(offset)) = copy.place else { panic!("copied from {:?}", copy.place) };
        let memory = if matches!(copy.place, Place::Arena(_)) { &mut self.arena } else { &mut self.resident };
        match copy.direction {
            Direction::Out => {
                memory.read(offset, &mut bytes)?;
                backing.write(copy.backing, &bytes)
            }
            Direction::In => {
                backing.read(copy.backing, &mut bytes)?;
                memory.write(offset, &bytes)
            }
        }
    }

    /// Runs one step, and says whether all it made is finite.
    fn step(&mut self, step: usize, inputs: &StepInputs<'_>) -> Result<bool, DeviceError> {
        let graph = &self.program.graph;
        let node = graph.node(self.program.order[step]);
        let mut alone = Graph::new();
        let mut operands = Vec::new();
        let mut columns = Vec::new();
        for input in &node.inputs {
            operands.push(alone.input("operand", graph.ty(*input).clone()));
            columns.push(self.read(*input, inputs)?);
        }
        let results = alone.add(node.op.clone(), &operands).expect("the node was legal in its graph");
        let outcome = reference::run(&alone, self.rows, &columns, &[], &[], &inputs.random);
        let (offset, size) = self.program.workspaces[step];
        self.arena.write(offset, &vec![0xFF; size.get()])?;
        let off = if self.broken == Some(selftest::name_in_table(&node.op)) { 1.001 } else { 1.0 };
        let mut finite = true;
        for (output, result) in node.outputs.iter().zip(results) {
            let elements: Vec<f64> = outcome.value(result).iter().map(|x| x * off).collect();
            // Of a whole that is begun the rest is no number yet.
            finite &= matches!(node.op, Op::SliceWrite(_) | Op::FusedSliceWrite(_)) || elements.iter().all(|x| x.is_finite());
            let dtype = graph.ty(*output).dtype;
            let bytes = selftest::encode(dtype, &elements.iter().map(|x| dtype.stored(*x)).collect::<Vec<_>>());
            match self.program.places[output.0 as usize] {
                Some(Place::Arena(offset)) => self.arena.write(offset, &bytes)?,
                Some(Place::Resident(offset)) => self.resident.write(offset, &bytes)?,
                Some(Place::Backing(offset)) => self.backing.as_ref().expect("it is there").write(offset, &bytes)?,
                place => panic!("a step writes to {place:?}"),
            }
        }
        Ok(finite)
    }

    fn read(&self, value: ValueId, inputs: &StepInputs<'_>) -> Result<Vec<f64>, DeviceError> {
        let producer = self.program.graph.producer(value);
        if let Op::ChannelView(op) = &producer.op {
            let pitch = self.program.graph.shape(producer.inputs[0]).last().expect("it has an axis").factor();
            let rows = self.read(producer.inputs[0], inputs)?;
            return Ok(rows.chunks_exact(pitch).flat_map(|row| row[op.start..op.start + op.length].to_vec()).collect());
        }
        let ty = self.program.graph.ty(value);
        let mut bytes = vec![0; ty.bytes(self.rows).get()];
        match self.program.places[value.0 as usize].expect("every value has a place") {
            Place::Arena(offset) => self.arena.read(offset, &mut bytes)?,
            Place::Resident(offset) => self.resident.read(offset, &mut bytes)?,
            Place::Input(column) => bytes.copy_from_slice(inputs.columns[column.0 as usize]),
            Place::Backing(offset) => self.backing.as_ref().expect("it is there").read(offset, &mut bytes)?,
            Place::Scalar(scalar) => bytes.copy_from_slice(&inputs.scalars[scalar.0 as usize].to_ne_bytes()),
        }
        Ok(selftest::decode(ty.dtype, &bytes))
    }
}

#[test]
fn a_correct_device_passes_and_a_broken_op_is_named() {
    for correct in [Arc::new(Slow { broken: None }) as Arc<dyn Device>, Arc::new(Late)] {
        let reports = selftest::run(&correct, 1);
        let failures: Vec<&String> = reports.iter().flat_map(|report| &report.failures).collect();
        assert!(failures.is_empty(), "{failures:#?}");
    }

    let broken: Arc<dyn Device> = Arc::new(Slow { broken: Some("max_pool") });
    let reports = selftest::run(&broken, 1);
    let failed: Vec<&str> = reports.iter().filter(|report| !report.failures.is_empty()).map(|report| report.op).collect();
    assert!(failed.contains(&"max_pool") && !failed.contains(&"matmul"), "{failed:?}");
}

#[test]
fn a_report_is_one_line_and_one_more_per_failure() {
    let report =
        CaseReport { op: "matmul", cases: 19, forward: 1.2e-7, gradient: 3.4e-6, failures: vec!["matmul, with itself: off".into()] };
    insta::assert_snapshot!(report, @r"
    matmul              19 cases   forward 1e-7   gradient 3e-6   FAILED
      matmul, with itself: off
    ");
}
