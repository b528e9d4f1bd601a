//! Programs on memory that is given for every run: the same bits as programs with memory of their own, and checks of
//! what is given.

use plimsoll_core::device::{Executable, Memory, Region, RunBuffers, StepInputs};
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::{CheckedPlan, Place, layout};
use plimsoll_core::selftest::{self, encode};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Device, Executor, Graph, Ledger, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

#[test]
fn every_op_has_the_bits_of_a_program_with_its_own_memory() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2).unwrap());
    let mut compared = 0;
    for case in selftest::cases(5) {
        if !case.is_for(&*device) {
            continue;
        }
        for graph in [case.graph.clone(), optimize(&case.graph).unwrap()] {
            let plan = CheckedPlan::new(layout(&[(Role::Step, graph)], case.rows, &*device).unwrap()).unwrap();
            if plan.backing > Bytes::ZERO {
                continue;
            }
            compared += 1;
            compare(&case, &plan, &device);
        }
    }
    assert!(compared > 500, "{compared}");
}

fn compare(case: &selftest::Case, plan: &CheckedPlan, device: &Arc<dyn Device>) {
    let graph = &plan.programs[0].graph;
    let columns: Vec<Vec<u8>> = case.inputs.iter().zip(graph.inputs()).map(|(numbers, input)| encode(input.ty.dtype, numbers)).collect();
    let states: Vec<Vec<u8>> = case.states.iter().zip(graph.states()).map(|(numbers, state)| encode(state.ty.dtype, numbers)).collect();
    let scalars: Vec<f32> = case.scalars.iter().map(|number| *number as f32).collect();
    let outputs: Vec<(Place, usize)> = graph
        .outputs()
        .iter()
        .map(|(_, value)| {
            (plan.programs[0].places[value.0 as usize].expect("an output has a place"), graph.ty(*value).bytes(case.rows).get())
        })
        .collect();

    let mut executor = Executor::new(Arc::clone(device), plan.clone(), &Ledger::new("host", None)).unwrap();
    for (i, state) in states.iter().enumerate() {
        executor.write_state(plimsoll_core::graph::StateId(i as u32), state).unwrap();
    }
    let slices: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    executor.run(Role::Step, case.rows, &StepInputs { columns: &slices, scalars: &scalars, random: case.random }).unwrap();

    let mut program = device.executable(plan, Role::Step).unwrap();
    // Columns, states and the arena in one memory, as in an allocator.
    let mut memory = device.allocate(Bytes(1 << 22)).unwrap();
    let mut end = Bytes(64);
    let mut place = |size: Bytes| {
        let start = end;
        end = Bytes(end.0 + size.0.next_multiple_of(64) + 64);
        start
    };
    let at_columns: Vec<Bytes> = columns.iter().map(|column| place(Bytes(column.len() as u64))).collect();
    let at_states: Vec<Bytes> = plan.states.iter().map(|state| place(state.size)).collect();
    let at_arena = place(plan.arena);
    for (offset, bytes) in at_columns.iter().zip(&columns).chain(at_states.iter().zip(&states)) {
        memory.write(*offset, bytes).unwrap();
    }
    let region = |offset: &Bytes| Region { memory: &*memory, offset: *offset };
    let (given, kept): (Vec<Region<'_>>, Vec<Region<'_>>) =
        (at_columns.iter().map(region).collect(), at_states.iter().map(region).collect());
    program.run(&RunBuffers { columns: &given, states: &kept, arena: region(&at_arena), scalars: &scalars, random: case.random }).unwrap();

    for (i, offset) in at_states.iter().enumerate() {
        let (mut want, mut got) = (vec![0; plan.states[i].size.get()], vec![0; plan.states[i].size.get()]);
        executor.read_state(plimsoll_core::graph::StateId(i as u32), &mut want).unwrap();
        memory.read(*offset, &mut got).unwrap();
        assert_eq!(want, got, "{}: state {i}", case.name);
    }
    for (place, size) in outputs {
        let (mut want, mut got) = (vec![0; size], vec![0; size]);
        executor.read(place, &mut want).unwrap();
        let offset = match place {
            Place::Arena(offset) => at_arena + offset,
            Place::Resident(offset) => {
                let state = plan.states.iter().position(|state| state.offset == offset && state.size.get() >= size);
                at_states[state.expect("outputs in resident memory are states")]
            }
            other => panic!("an output is at {other:?}"),
        };
        memory.read(offset, &mut got).unwrap();
        assert_eq!(want, got, "{}: an output", case.name);
    }
}

/// `y = 2x` of eight numbers, where `y` is a state.
fn doubling() -> (CpuDevice, CheckedPlan) {
    use plimsoll_core::expr::Expr;
    use plimsoll_core::graph::{Init, StateId, StateKind};
    let device = CpuDevice::new(1).unwrap();
    let ty = TensorType::f32(Shape::fixed([8]));
    let mut graph = Graph::new();
    let x = graph.input("x", ty.clone());
    let y = graph.pointwise(Expr::build(|e| e.add(e.input(0), e.input(0))), &[x]).unwrap();
    graph.state("y", StateKind::Statistic, ty, Init::Constant(0.0)).unwrap();
    graph.update(StateId(0), y);
    let plan = CheckedPlan::new(plimsoll_core::plan::plan(vec![(Role::Step, graph)], 1, &device).unwrap()).unwrap();
    (device, plan)
}

#[test]
fn what_a_run_gives_is_checked() {
    let (device, plan) = doubling();
    let mut program = device.executable(&plan, Role::Step).unwrap();
    let memory = device.allocate(Bytes(256)).unwrap();
    let mut run = |column: u64, state: u64| run_at(&mut *program, &*memory, column, state);
    assert_eq!(run(0, 64), Ok(()));
    assert_eq!(run(0, 16).unwrap_err(), "cpu: region 1 is outside of its memory, or not aligned to 64 bytes");
    assert_eq!(run(0, 256).unwrap_err(), "cpu: region 1 is outside of its memory, or not aligned to 64 bytes");
    assert_eq!(run(u64::MAX, 64).unwrap_err(), "cpu: region 0 is outside of its memory, or not aligned to 4 bytes");
    assert_eq!(run(64, 64).unwrap_err(), "cpu: region 1, which is written, overlaps another");
    assert_eq!(run(80, 64).unwrap_err(), "cpu: region 1, which is written, overlaps another");
    let region = Region { memory: &*memory, offset: Bytes::ZERO };
    let none = RunBuffers { columns: &[], states: &[region], arena: region, scalars: &[], random: Default::default() };
    let error = program.run(&none).unwrap_err().to_string();
    assert_eq!(error, "cpu: the program has [1, 1, 0] columns, states and scalars, but got [0, 1, 0]");
}

fn run_at(program: &mut dyn Executable, memory: &dyn Memory, column: u64, state: u64) -> Result<(), String> {
    let region = |offset: u64| Region { memory, offset: Bytes(offset) };
    let (columns, states) = ([region(column)], [region(state)]);
    let buffers = RunBuffers { columns: &columns, states: &states, arena: region(0), scalars: &[], random: Default::default() };
    program.run(&buffers).map_err(|error| error.to_string())
}

#[test]
fn memories_are_locked_in_one_order() {
    let (device, plan) = doubling();
    let (a, b) = (device.allocate(Bytes(64)).unwrap(), device.allocate(Bytes(64)).unwrap());
    let (mut one, mut other) = (device.executable(&plan, Role::Step).unwrap(), device.executable(&plan, Role::Step).unwrap());
    let between = |from: &dyn Memory, to: &dyn Memory, program: &mut dyn Executable| {
        let (columns, states) = ([Region { memory: from, offset: Bytes::ZERO }], [Region { memory: to, offset: Bytes::ZERO }]);
        let arena = columns[0];
        program.run(&RunBuffers { columns: &columns, states: &states, arena, scalars: &[], random: Default::default() }).unwrap();
    };
    for _ in 0..100 {
        between(&*a, &*b, &mut *one);
        between(&*b, &*a, &mut *other);
    }
    let mut bytes = [1; 32];
    a.read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 32], "two times zero");
}
