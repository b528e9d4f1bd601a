//! What steps of the two examples cost on a GPU without their pipelines, and what they take there:
//! `cargo bench -p plimsoll-cuda`. Where there is no GPU it says so.

use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, Init, Input, StateId, StateKind, ValueId};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::plan;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, DType, Device, Executor, Ledger, Op, Shape, TensorType};
use plimsoll_cuda::CudaDevice;
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let device: Arc<dyn Device> = match CudaDevice::open(0, None) {
        Ok(device) => Arc::new(device),
        Err(error) => return println!("nothing to measure: {error}"),
    };
    println!("{} ({})", device.name(), device.description());
    for (name, rows, model) in [
        ("dense 100 to 10", 32, dense as fn() -> Result<(Graph, ValueId), GraphError>),
        ("conv 3×3 to 32, dense 10", 32, || conv(64, 1, 32)),
        ("conv 3×3 to 32, dense 10", 1024, || conv(64, 1, 32)),
        ("conv 3×3 from 64 to 128, dense 10", 32, || conv(56, 64, 128)),
        // Forward and the filter's gradient alone, on images that stay on the GPU: shapes of a residual network.
        ("alone: 3×3 from 64 to 64 on 56×56", 32, || alone(56, (3, 1), 64, 64)),
        ("alone: 1×1 from 256 to 64 on 56×56", 32, || alone(56, (1, 1), 256, 64)),
        ("alone: 7×7 by 2 from 3 to 64 on 224×224", 32, || alone(224, (7, 2), 3, 64)),
        ("alone: 3×3 from 256 to 256 on 14×14", 32, || alone(14, (3, 1), 256, 256)),
    ] {
        measure(name, &device, rows, model).unwrap();
    }
}

fn parameter(g: &mut Graph, name: &str, shape: impl IntoIterator<Item = usize>) -> Result<ValueId, GraphError> {
    g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(shape)), Init::Uniform { limit: 0.01 })
}

fn dense() -> Result<(Graph, ValueId), GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([100])));
    let loss = head(&mut g, x, 100)?;
    Ok((g, loss))
}

/// A convolution over square images, ReLU, and a dense layer over all of it.
fn conv(side: usize, channels: usize, filters: usize) -> Result<(Graph, ValueId), GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([side, side, channels])));
    let filter = parameter(&mut g, "filter", [3, 3, channels, filters])?;
    let bias = parameter(&mut g, "filter_bias", [filters])?;
    let convolution = Conv2d { window: Window::valid((3, 3), (1, 1)), groups: 1, epilogue: None, dtype: DType::F32 };
    let result = g.add_one(Op::Conv2d(convolution), &[x, filter])?;
    let biased = g.plus(result, bias)?;
    let hidden = g.map(biased, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))?;
    let length = (side - 2) * (side - 2) * filters;
    let flat = g.reshape(hidden, Shape::batch_of([length]))?;
    let loss = head(&mut g, flat, length)?;
    Ok((g, loss))
}

/// A convolution of 32 square images that are a state, and the sum of its squares.
fn alone(side: usize, (size, stride): (usize, usize), channels: usize, filters: usize) -> Result<(Graph, ValueId), GraphError> {
    let mut g = Graph::new();
    let images = TensorType::f32(Shape::fixed([32, side, side, channels]));
    let x = g.state("images", StateKind::Statistic, images, Init::Uniform { limit: 1.0 })?;
    let filter = parameter(&mut g, "filter", [size, size, channels, filters])?;
    let window = Window::same((size, size), (stride, stride), (1, 1), (side, side));
    let y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
    let squares = g.map(y, |e, y| e.mul(e.constant(1e-6), e.mul(y, y)))?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok((g, loss))
}

/// A dense layer with ten results, and the mean squared error.
fn head(g: &mut Graph, x: ValueId, length: usize) -> Result<ValueId, GraphError> {
    let y = g.input("y", TensorType::f32(Shape::batch_of([10])));
    let (kernel, bias) = (parameter(g, "kernel", [length, 10])?, parameter(g, "bias", [10])?);
    let product = g.matmul(x, kernel)?;
    let out = g.plus(product, bias)?;
    let square = Expr::build(|e| {
        let error = e.sub(e.input(0), e.input(1));
        e.mul(e.constant(1e-3), e.mul(error, error))
    });
    let squares = g.pointwise(square, &[out, y])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok(loss)
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

/// The median of twenty rounds of steps; batches are copied each time, as in training.
fn measure(
    name: &str,
    device: &Arc<dyn Device>,
    rows: usize,
    model: fn() -> Result<(Graph, ValueId), GraphError>,
) -> Result<(), GraphError> {
    let (graph, loss) = model()?;
    // As pipelines make them: in memory that the GPU copies from by itself.
    let column = |input: &Input| {
        let numbers = noise(input.ty.shape.elements().bind(rows));
        let mut memory = device.slot_memory(Bytes(numbers.len() as u64)).unwrap().expect("a GPU has its own kind");
        memory.bytes_mut()[..numbers.len()].copy_from_slice(&numbers);
        (memory, numbers.len())
    };
    let columns: Vec<_> = graph.inputs().iter().map(column).collect();
    let columns: Vec<&[u8]> = columns.iter().map(|(memory, length)| &memory.bytes()[..*length]).collect();
    let plan = plan(training_programs(&graph, loss, false, &adam)?, rows, &**device)?;
    let size = plan.total();
    let mut executor = Executor::new(Arc::clone(device), CheckedPlan::new(plan).unwrap(), &Ledger::new("device", None)).unwrap();
    executor.initialize(1).unwrap();
    let inputs = StepInputs { columns: &columns, scalars: &[1e-4], random: StepRandom::default() };
    let mut steps = |count: usize| {
        let start = Instant::now();
        let mut last = None;
        (0..count).for_each(|_| last = Some(executor.run(Role::Step, rows, &inputs).unwrap()));
        executor.outcome(last.expect("at least one"), &mut [0.0]).unwrap();
        start.elapsed().as_secs_f64() / count as f64
    };
    steps(20);
    let mut times: Vec<f64> = (0..20).map(|_| steps(50)).collect();
    times.sort_by(f64::total_cmp);
    println!("  {name:<40} batch {rows:>4} {:>9.1} µs a step, {size} planned", times[10] * 1e6);
    Ok(())
}

/// Numbers between -1 and 1 that are no pattern.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64).flat_map(|i| (StepRandom::default().uniform(7, i) * 2.0 - 1.0).to_ne_bytes()).collect()
}
