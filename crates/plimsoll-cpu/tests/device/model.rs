//! A small network, planned, and its batch.

use plimsoll_comm::{Alone, Group};
use plimsoll_core::data_parallel::DataParallel;
use plimsoll_core::device::{DeviceError, StepInputs};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::{check, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::sharding::Sharding;
use plimsoll_core::step::{Role, Training, training_programs_with};
use plimsoll_core::{Bytes, Device, Executor, Ledger, Plan, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use std::ops::Range;
use std::sync::Arc;

pub const ROWS: usize = 24;
const INPUTS: usize = 9;
const HIDDEN: usize = 17;
const OUTPUTS: usize = 3;

/// Two dense layers with a ReLU between them, and the squared error of the batch.
fn forward() -> Result<(Graph, ValueId), GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([INPUTS])));
    let y = g.input("y", TensorType::f32(Shape::batch_of([OUTPUTS])));
    let relu = |e: &plimsoll_core::expr::ExprBuilder, x| e.binary(Binary::Max, x, e.constant(0.0));
    let hidden = g.in_scope("hidden", |g| -> Result<_, GraphError> {
        let product = dense(g, x, INPUTS, HIDDEN)?;
        g.map(product, relu)
    })?;
    let out = g.in_scope("out", |g| dense(g, hidden, HIDDEN, OUTPUTS))?;
    let square = Expr::build(|e| {
        let error = e.sub(e.input(0), e.input(1));
        e.mul(e.constant(1.0 / (ROWS * OUTPUTS) as f32), e.mul(error, error))
    });
    let squares = g.pointwise(square, &[out, y])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok((g, loss))
}

fn dense(g: &mut Graph, x: ValueId, from: usize, to: usize) -> Result<ValueId, GraphError> {
    let kernel = g.state("kernel", StateKind::Parameter, TensorType::f32(Shape::fixed([from, to])), Init::Uniform { limit: 0.5 })?;
    let bias = g.state("bias", StateKind::Parameter, TensorType::f32(Shape::fixed([to])), Init::Constant(0.0))?;
    let product = g.matmul(x, kernel)?;
    g.plus(product, bias)
}

/// Plain gradient descent.
fn descend(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = g.updated_value(parameter).expect("parameters are read");
    let rate = g.scalar("rate");
    let step = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(2), e.input(1))));
    let new = g.pointwise(step, &[value, gradient, rate])?;
    g.update(parameter, new);
    Ok(())
}

/// The network on a device, with first values.
pub struct Model {
    pub executor: Executor,
    columns: [Vec<f32>; 2],
    pub rate: f32,
}

impl Model {
    pub fn new(threads: usize) -> Model {
        Model::planned(threads, Arc::new(Alone), None)
    }

    /// The network on one rank of a group, which sums gradients in buckets of this size.
    pub fn on_rank(threads: usize, group: Arc<dyn Group>, bucket: Bytes) -> Model {
        let ranks = group.size() as u32;
        Model::planned(threads, group, Some((ranks, bucket)))
    }

    /// The network in a group, planned for a number of ranks.
    pub fn planned(threads: usize, group: Arc<dyn Group>, ranks: Option<(u32, Bytes)>) -> Model {
        Model::on_device(Arc::new(CpuDevice::new(threads).unwrap().with_group(group)), ranks)
    }

    /// The network on one rank of a group, which updates its shard of every parameter.
    pub fn with_shards(threads: usize, group: Arc<dyn Group>, bucket: Bytes) -> Model {
        let ranks = Some((group.size() as u32, bucket));
        Model::of(Arc::new(CpuDevice::new(threads).unwrap().with_group(group)), ranks, Some(Sharding::Optimizer))
    }

    /// The network on a device, planned for a number of ranks.
    pub fn on_device(device: Arc<dyn Device>, ranks: Option<(u32, Bytes)>) -> Model {
        Model::of(device, ranks, None)
    }

    /// The network on a device, planned for a number of ranks, with what is divided over them.
    pub fn of(device: Arc<dyn Device>, ranks: Option<(u32, Bytes)>, sharding: Option<Sharding>) -> Model {
        let (graph, loss) = forward().unwrap();
        let data_parallel = ranks.map(|(ranks, bucket)| DataParallel { ranks, bucket });
        let training = Training { data_parallel, sharding, ..Training::new(&descend) };
        let programs = training_programs_with(&graph, loss, false, &training).unwrap();
        let plan: Plan = plan(programs, ROWS, &*device).unwrap();
        check(&plan.certificate(), &plan.programs.iter().map(|program| &program.graph).collect::<Vec<_>>()).unwrap();
        let ledger = Ledger::new("host", Some(Bytes::mib(16)));
        let mut executor = Executor::new(device, CheckedPlan::new(plan).unwrap(), &ledger).unwrap();
        executor.initialize(7).unwrap();
        // The network can learn this: every output follows from two inputs.
        let x: Vec<f32> = (0..ROWS * INPUTS).map(|i| (i as f32 * 0.7).sin()).collect();
        let y =
            (0..ROWS * OUTPUTS).map(|i| x[i / OUTPUTS * INPUTS + i % OUTPUTS] - 0.5 * x[i / OUTPUTS * INPUTS + 8 - i % OUTPUTS]).collect();
        Model { executor, columns: [x, y], rate: 0.2 }
    }

    /// Makes one number of the batch infinite.
    pub fn break_batch(&mut self) {
        self.columns[0][5] = f32::INFINITY;
    }

    /// Calls a function with this step's inputs.
    pub fn with_inputs<T>(&mut self, step: u32, body: impl FnOnce(&mut Executor, &StepInputs<'_>) -> T) -> T {
        let bytes = self.columns.each_ref().map(|column| bytes(column));
        let inputs = StepInputs { columns: &bytes, scalars: &[self.rate], random: StepRandom { seed: 1, step, first_row: 0 } };
        body(&mut self.executor, &inputs)
    }

    pub fn step(&mut self, step: u32) -> Result<f32, DeviceError> {
        self.with_inputs(step, |executor, inputs| executor.run(Role::Step, ROWS, inputs))?;
        let place = self.executor.output(Role::Step, "loss").expect("the loss is an output");
        let mut loss = [0; 4];
        self.executor.read(place, &mut loss)?;
        Ok(f32::from_ne_bytes(loss))
    }

    /// A step on some rows of the batch.
    pub fn step_of(&mut self, step: u32, rows: Range<usize>) -> Result<(), DeviceError> {
        let [x, y] = &self.columns;
        let columns = [bytes(&x[rows.start * INPUTS..rows.end * INPUTS]), bytes(&y[rows.start * OUTPUTS..rows.end * OUTPUTS])];
        let random = StepRandom { seed: 1, step, first_row: rows.start as u64 };
        let inputs = StepInputs { columns: &columns, scalars: &[self.rate], random };
        self.executor.run(Role::Step, rows.len(), &inputs).map(drop)
    }

    pub fn states(&self) -> Vec<Vec<u8>> {
        let sizes = self.executor.plan().states.iter().map(|state| state.size.0 as usize);
        sizes
            .enumerate()
            .map(|(i, size)| {
                let mut bytes = vec![0; size];
                self.executor.read_state(StateId(i as u32), &mut bytes).unwrap();
                bytes
            })
            .collect()
    }
}

/// Floats as the bytes they are.
pub fn bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of a float is a byte.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}
