//! What a step costs beside its arithmetic: `cargo bench -p plimsoll-cpu --bench program`.

use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::{layout, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{DType, Device, Executor, Ledger, Plan, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;
use std::time::Instant;

fn main() {
    for threads in [1, 2] {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(threads).unwrap());
        println!("{}", device.description());
        ten_tiny_ops(&device).unwrap();
        dense_adam(&device).unwrap();
    }
}

/// Ten ops over sixteen numbers each, not fused: the plan is laid out without the passes.
fn ten_tiny_ops(device: &Arc<dyn Device>) -> Result<(), GraphError> {
    let mut g = Graph::new();
    let mut x = g.input("x", TensorType::f32(Shape::batch_of([4])));
    for _ in 0..10 {
        x = g.unary(Unary::Abs, x)?;
    }
    g.output("y", x);
    let plan = layout(&[(Role::Predict, g)], 4, &**device)?;
    measure("ten ops over [4, 4]", device, plan, Role::Predict, 4, &[16], 0);
    Ok(())
}

/// A dense layer from 100 to 10 with mean squared error and Adam, over batches of 32.
fn dense_adam(device: &Arc<dyn Device>) -> Result<(), GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([100])));
    let y = g.input("y", TensorType::f32(Shape::batch_of([10])));
    let kernel = g.state("kernel", StateKind::Parameter, TensorType::f32(Shape::fixed([100, 10])), Init::Uniform { limit: 0.1 })?;
    let bias = g.state("bias", StateKind::Parameter, TensorType::f32(Shape::fixed([10])), Init::Constant(0.0))?;
    let product = g.matmul(x, kernel)?;
    let out = g.plus(product, bias)?;
    let square = Expr::build(|e| {
        let error = e.sub(e.input(0), e.input(1));
        e.mul(e.constant(1.0 / 320.0), e.mul(error, error))
    });
    let squares = g.pointwise(square, &[out, y])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    let plan = plan(training_programs(&g, loss, false, &adam)?, 32, &**device)?;
    measure("dense 100 to 10, batch 32, Adam", device, plan, Role::Step, 32, &[3200, 320], 1);
    Ok(())
}

fn adam(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = g.state_value(parameter).expect("parameters are read");
    let ty = g.ty(value).clone();
    let name = g.states()[parameter.0 as usize].name.clone();
    let mean = g.state(&format!("{name}_mean"), StateKind::Optimizer, ty.clone(), Init::Constant(0.0))?;
    let square = g.state(&format!("{name}_square"), StateKind::Optimizer, ty.clone(), Init::Constant(0.0))?;
    let last = g.states().len() as u32;
    let rate = g.scalar("rate");
    let step = Expr::build_many(|e| {
        let (p, gradient, rate, mean, square) = (e.input(0), e.input(1), e.input(2), e.input(3), e.input(4));
        let mean = e.add(mean, e.mul(e.constant(0.1), e.sub(gradient, mean)));
        let square = e.add(square, e.mul(e.constant(0.001), e.sub(e.mul(gradient, gradient), square)));
        let step = e.div(e.mul(rate, mean), e.add(e.unary(Unary::Sqrt, square), e.constant(1e-7)));
        vec![e.sub(p, step), mean, square]
    });
    let new = g.pointwise_many(step, &[value, gradient, rate, mean, square], ty.shape, vec![DType::F32; 3])?;
    g.update(parameter, new[0]);
    g.update(StateId(last - 2), new[1]);
    g.update(StateId(last - 1), new[2]);
    Ok(())
}

/// The fastest of many rounds: on a shared machine that is the one nobody disturbed.
fn measure(name: &str, device: &Arc<dyn Device>, plan: Plan, role: Role, rows: usize, columns: &[usize], scalars: usize) {
    let ledger = Ledger::new("host", None);
    let steps = plan.program(role).expect("just planned").order.len();
    let mut executor = Executor::new(Arc::clone(device), CheckedPlan::new(plan).unwrap(), &ledger).unwrap();
    executor.initialize(1).unwrap();
    let columns: Vec<Vec<f32>> = columns.iter().map(|count| vec![0.5; *count]).collect();
    // SAFETY: every byte of a float is a byte.
    let bytes = |floats: &Vec<f32>| unsafe { std::slice::from_raw_parts(floats.as_ptr().cast::<u8>(), 4 * floats.len()) };
    let columns: Vec<&[u8]> = columns.iter().map(bytes).collect();
    let inputs = StepInputs { columns: &columns, scalars: &[1e-4][..scalars], random: StepRandom::default() };
    let best = (0..200)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..200 {
                executor.run(role, rows, &inputs).unwrap();
            }
            start.elapsed().as_secs_f64() / 200.0
        })
        .fold(f64::INFINITY, f64::min);
    println!("  {name:<36} {steps:>3} instructions {:>9.2} µs", best * 1e6);
}
