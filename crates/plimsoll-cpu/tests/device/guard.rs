//! What must not run does not, and changes nothing.

use crate::model::{Model, ROWS, bytes};
use plimsoll_core::device::{Device, DeviceError, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Init, StateId, StateKind};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::plan;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Executor, Ledger, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

#[test]
fn a_loss_that_is_not_finite_stops_the_step_before_anything_changes() {
    let mut model = Model::new(1);
    model.step(0).unwrap();
    let before = model.states();
    model.break_batch();
    let error = model.step(1).unwrap_err();
    assert!(matches!(error, DeviceError::NonFinite), "{error}");
    assert_eq!(model.states(), before);
}

#[test]
fn the_first_node_that_breaks_is_named_and_nothing_changes() {
    let mut model = Model::new(1);
    let before = model.states();
    assert_eq!(model.with_inputs(0, |executor, inputs| executor.find_non_finite(Role::Step, ROWS, Some(inputs))).unwrap(), None);
    model.break_batch();
    let found = model.with_inputs(0, |executor, inputs| executor.find_non_finite(Role::Step, ROWS, Some(inputs))).unwrap();
    let program = model.executor.plan().program(Role::Step).unwrap();
    assert_eq!(program.graph.node(found.expect("the batch is broken")).scope, "hidden");
    assert_eq!(model.states(), before);
}

#[test]
fn inputs_of_the_wrong_size_are_refused() {
    let mut model = Model::new(1);
    let (x, y) = ([0f32; ROWS * 9], [0f32; ROWS * 3]);
    let mut refuse = |columns: &[&[u8]], scalars: &[f32]| {
        let inputs = StepInputs { columns, scalars, random: StepRandom::default() };
        model.executor.run(Role::Step, ROWS, &inputs).unwrap_err().to_string()
    };
    assert_eq!(refuse(&[bytes(&x)], &[0.1]), "cpu: the program reads 2 columns, but got 1");
    assert_eq!(refuse(&[bytes(&x), bytes(&y)], &[]), "cpu: the program reads 1 scalars, but got 0");
    assert_eq!(refuse(&[bytes(&x), &bytes(&y)[4..]], &[0.1]), "cpu: the column `y` has 288 bytes, but got 284");
    let shifted = [0u8; ROWS * 9 * 4 + 4];
    let odd = (0..4).find(|i| (shifted.as_ptr() as usize + i) % 4 == 1).unwrap();
    let odd = &shifted[odd..odd + ROWS * 9 * 4];
    assert_eq!(refuse(&[odd, bytes(&y)], &[0.1]), "cpu: the column `x` does not begin at a multiple of 4 bytes");
}

/// Kernels trust the plan's addresses, so a plan that does not hold for this device or these rows is not loaded.
#[test]
fn plans_that_do_not_hold_here_are_refused() {
    let device = CpuDevice::new(1).unwrap();
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([3])));
    let doubled = g.map(x, |e, x| e.add(x, x)).unwrap();
    g.output("doubled", doubled);
    let mut plan = plan(vec![(Role::Predict, g)], 4, &device).unwrap();
    // Larger than planned, so that bounds alone would admit more rows.
    let (resident, arena) = (device.allocate(plan.resident).unwrap(), device.allocate(Bytes::kib(64)).unwrap());
    let load = |plan: &CheckedPlan, rows: usize, memory: StepMemory<'_>| device.load(plan, Role::Predict, rows, &memory).map(drop);
    let separate = || StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let checked = CheckedPlan::new(plan.clone()).unwrap();
    assert!(load(&checked, 4, separate()).is_ok());
    let refuse = |plan: &CheckedPlan, rows: usize, memory: StepMemory<'_>| load(plan, rows, memory).unwrap_err().to_string();
    assert_eq!(refuse(&checked, 5, separate()), "cpu: the plan holds for 4 rows, not for 5; plan for more rows");
    let shared = StepMemory { resident: &*arena, arena: &*arena, backing: None };
    assert_eq!(refuse(&checked, 4, shared), "cpu: states and the arena have the same memory; allocate one for each");
    plan.alignment = Bytes(2);
    let unaligned = CheckedPlan::new(plan).unwrap();
    let expected = "cpu: the plan aligns buffers to 2 B, but this device needs 64 B; plan for this device";
    assert_eq!(refuse(&unaligned, 4, separate()), expected);
}

/// A state that shrinks whatever the loss, which a plan may therefore change before the loss is known.
#[test]
fn a_state_changed_before_the_loss_is_known_is_reported_at_the_end() {
    for change_first in [false, true] {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([])));
        let state = g.state("s", StateKind::Statistic, TensorType::f32(Shape::scalar()), Init::Constant(8.0)).unwrap();
        let half = g.map(state, |e, x| e.mul(x, e.constant(0.5))).unwrap();
        g.update(StateId(0), half);
        let loss = g.sum(x).unwrap();
        g.output("loss", loss);
        let device = CpuDevice::new(1).unwrap();
        let mut plan = plan(vec![(Role::Step, g)], 2, &device).unwrap();
        let program = &mut plan.programs[0];
        let writes = |id: &plimsoll_core::NodeId| program.graph.node(*id).op.rules().name() == "pointwise";
        if writes(&program.order[0]) != change_first {
            program.order.reverse();
            program.workspaces.reverse();
        }
        let mut executor = Executor::new(Arc::new(device), CheckedPlan::new(plan).unwrap(), &Ledger::new("host", None)).unwrap();
        executor.initialize(0).unwrap();
        let inputs = StepInputs { columns: &[bytes(&[1.0, f32::NAN])], scalars: &[], random: StepRandom::default() };
        assert!(matches!(executor.run(Role::Step, 2, &inputs), Err(DeviceError::NonFinite)));
        let mut left = [0; 4];
        executor.read_state(StateId(0), &mut left).unwrap();
        assert_eq!(f32::from_ne_bytes(left), if change_first { 4.0 } else { 8.0 });
    }
}
