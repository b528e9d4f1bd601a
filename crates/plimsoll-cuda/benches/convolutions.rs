//! Layers of a residual network, there and back, in generated kernels and through the libraries, beside each other:
//! `cargo bench -p plimsoll-cuda --bench convolutions`. Each layer stands between the same few kernels both times, so
//! that it has an image's gradient too; where there is no GPU it says so.

use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::plan;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, DType, Device, Executor, Ledger, Op, Shape, TensorType};
use plimsoll_cuda::{Convolutions, CudaDevice, probe};
use std::sync::Arc;
use std::time::Instant;

/// Side of the image, size and stride of the window, channels in and out.
type Layer = (usize, usize, usize, usize, usize);

const LAYERS: [Layer; 12] = [
    (224, 7, 2, 3, 64),
    (56, 1, 1, 64, 256),
    (56, 1, 1, 256, 64),
    (56, 3, 1, 64, 64),
    (56, 1, 2, 256, 512),
    (56, 3, 2, 128, 128),
    (28, 3, 1, 128, 128),
    (28, 1, 1, 128, 512),
    (14, 3, 1, 256, 256),
    (14, 1, 1, 1024, 256),
    (7, 3, 1, 512, 512),
    (7, 1, 1, 512, 2048),
];

const BATCH: usize = 32;

fn main() {
    if let Some(obstacle) = probe().obstacle() {
        return println!("nothing to measure: {obstacle}");
    }
    println!("{:<36} {:>12} {:>12} {:>7}   planned, and who computed", "there and back, batch 32", "generated", "libraries", "faster");
    for dtype in [DType::F32, DType::BF16] {
        // Kernels are compiled by all at once; only the measuring takes turns.
        let mut pairs: Vec<[Measured; 2]> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                LAYERS.iter().map(|layer| scope.spawn(move || WAYS.map(|way| Measured::new(*layer, dtype, way)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("layers load")).collect()
        });
        for (layer, pair) in LAYERS.iter().zip(&mut pairs) {
            let [generated, libraries] = pair;
            // Taken in turns, so that what else happens on the machine hits both.
            let rounds: Vec<[f64; 2]> = (0..7).map(|_| [generated.time(), libraries.time()]).collect();
            let median = |side: usize| {
                let mut times: Vec<f64> = rounds.iter().map(|round| round[side]).collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 2] * 1e6
            };
            let (a, b) = (median(0), median(1));
            let ways: Vec<String> = libraries
                .device
                .diagnostics()
                .expect("a GPU counts them")
                .convolution_algorithms()
                .iter()
                .map(|(way, count)| format!("{way} {count}"))
                .collect();
            println!("{:<36} {a:>9.1} µs {b:>9.1} µs {:>6.2}×   {}, {}", name(*layer, dtype), a / b, libraries.planned, ways.join(" · "));
        }
    }
}

const WAYS: [Convolutions; 2] = [Convolutions::Generated, Convolutions::Auto];

fn name((side, size, stride, channels, filters): Layer, dtype: DType) -> String {
    let by = if stride == 1 { String::new() } else { format!(" by {stride}") };
    format!("{dtype} {size}×{size}{by}, {channels} to {filters} on {side}×{side}")
}

/// A layer that is loaded and has run.
struct Measured {
    device: Arc<dyn Device>,
    executor: Executor,
    planned: Bytes,
}

impl Measured {
    fn new(layer: Layer, dtype: DType, way: Convolutions) -> Measured {
        let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0, None).expect("there is a GPU").with_convolutions(way));
        let (graph, loss) = graph(layer, dtype).expect("layers are legal");
        let plan = plan(training_programs(&graph, loss, false, &keep).expect("layers are legal"), BATCH, &*device).expect("layers fit");
        let planned = plan.total();
        let mut executor =
            Executor::new(Arc::clone(&device), CheckedPlan::new(plan).unwrap(), &Ledger::new("device", None)).expect("layers fit");
        executor.initialize(1).expect("there is memory");
        let mut measured = Measured { device, executor, planned };
        (0..2).for_each(|_| assert!(measured.time() > 0.0));
        measured
    }

    /// Seconds of a step.
    fn time(&mut self) -> f64 {
        const STEPS: usize = 10;
        let inputs = StepInputs { columns: &[], scalars: &[1e-9], random: StepRandom::default() };
        let start = Instant::now();
        let mut last = None;
        (0..STEPS).for_each(|_| last = Some(self.executor.run(Role::Step, BATCH, &inputs).expect("the step runs")));
        self.executor.outcome(last.expect("at least one"), &mut [0.0]).expect("the loss is finite");
        start.elapsed().as_secs_f64() / STEPS as f64
    }
}

/// Images that stay on the GPU, scaled channel by channel, convolved, and the sum of squares. The scales make the
/// image's gradient needed.
fn graph((side, size, stride, channels, filters): Layer, dtype: DType) -> Result<(Graph, ValueId), GraphError> {
    let mut g = Graph::new();
    let shape = Shape::fixed([BATCH, side, side, channels]);
    let images = g.state("images", StateKind::Statistic, TensorType::f32(shape.clone()), Init::Uniform { limit: 1.0 })?;
    let mut parameter =
        |name: &str, dims: &[usize], init| g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(dims.iter().copied())), init);
    let scales = parameter("scales", &[channels], Init::Constant(1.0))?;
    let filter = parameter("filter", &[size, size, channels, filters], Init::Uniform { limit: 0.01 })?;
    let product = Expr::build_many(|e| vec![e.mul(e.input(0), e.input(1))]);
    let x = g.pointwise_many(product, &[images, scales], shape, vec![dtype])?[0];
    let window = Window::same((size, size), (stride, stride), (1, 1), (side, side));
    let y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype }), &[x, filter])?;
    let squares = g.map(y, |e, y| e.mul(e.constant(1e-6), e.mul(y, y)))?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok((g, loss))
}

/// Plain gradient descent.
fn keep(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = g.state_value(parameter).expect("parameters are read");
    let rate = g.scalar("rate");
    let step = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(2), e.input(1))));
    let new = g.pointwise(step, &[value, gradient, rate])?;
    g.update(parameter, new);
    Ok(())
}
