//! Pointwise kernels, reductions and normalizations beside a copy of the driver:
//! `cargo bench -p plimsoll-cuda --bench bandwidth`. Every row states the bytes that a kernel must read and write once,
//! over its time, and the share of the copy's rate. Without a GPU it says so.

use cudarc::driver::{result, sys};
use plimsoll_core::device::{StepInputs, StepMemory};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, Init, StateKind, ValueId};
use plimsoll_core::ops::{Reduce, Reduction};
use plimsoll_core::plan::{CheckedPlan, sketch};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{DType, Device, Op, Shape, TensorType};
use plimsoll_cuda::CudaDevice;

/// Bytes of the copy: several times the cache.
const COPIED: usize = 2 << 30;

fn main() {
    let device = match CudaDevice::open(0, None) {
        Ok(device) => device,
        Err(error) => return println!("nothing to measure: {error}"),
    };
    let copy = copy_rate();
    println!("{} ({})", plimsoll_core::plan::Target::name(&device), plimsoll_core::plan::Target::description(&device));
    println!("copy by the driver: {:.2} TB/s, read and written", copy * 1e-12);
    for dtype in [DType::F32, DType::BF16] {
        for (name, graph) in cases(dtype) {
            let (graph, value) = graph.expect("the graphs are legal");
            let (bytes, seconds) = time(&device, &graph, value);
            println!(
                "  {:<44} {:>8.1} µs {:>6.2} TB/s {:>5.0} %",
                format!("{dtype} {name}"),
                seconds * 1e6,
                bytes / seconds * 1e-12,
                100.0 * bytes / seconds / copy
            );
        }
    }
}

type Case = Result<(Graph, ValueId), GraphError>;

/// A network's tensors with many pixels and few channels, few and many, and rows of tokens.
fn cases(dtype: DType) -> Vec<(String, Case)> {
    let relu = || Expr::build(|e| e.binary(Binary::Max, e.input(0), e.constant(0.0)));
    let add = || Expr::build(|e| e.add(e.input(0), e.input(1)));
    let gelu = || {
        Expr::build(|e| {
            let x = e.input(0);
            let inner = e.mul(e.constant(0.797_884_6), e.add(x, e.mul(e.constant(0.044_715), e.mul(x, e.mul(x, x)))));
            e.mul(e.mul(e.constant(0.5), x), e.add(e.constant(1.0), e.unary(Unary::Tanh, inner)))
        })
    };
    // x · scale + shift, and ReLU, with one number of each per channel.
    let normalize = || {
        Expr::build(|e| {
            let y = e.add(e.mul(e.input(0), e.input(1)), e.input(2));
            e.binary(Binary::Max, y, e.constant(0.0))
        })
    };
    // The gradient of a normalization's input: two tensors and three numbers per channel.
    let normalize_grad = || Expr::build(|e| e.add(e.add(e.mul(e.input(0), e.input(2)), e.mul(e.input(1), e.input(3))), e.input(4)));
    let square = || Expr::build(|e| e.mul(e.input(0), e.input(0)));
    let product = || Expr::build(|e| e.mul(e.input(0), e.input(1)));
    let shapes = [("256·112² × 64", [256 * 112 * 112, 64]), ("256·56² × 256", [256 * 56 * 56, 256]), ("128·1024 × 768", [128 * 1024, 768])];
    let mut all = Vec::new();
    for (shape, dims) in shapes {
        let mut map = |name: &str, expr: Expr, whole: usize, channel: usize| {
            all.push((
                format!("{name}, {shape}"),
                graph(dims, dtype, whole, channel, |g, x, c| {
                    let inputs: Vec<ValueId> = x.iter().chain(c).copied().collect();
                    Ok(g.pointwise_many(expr, &inputs, Shape::fixed(dims), vec![dtype])?[0])
                }),
            ));
        };
        map("relu", relu(), 1, 0);
        map("gelu", gelu(), 1, 0);
        map("add", add(), 2, 0);
        map("normalize and relu", normalize(), 1, 2);
        map("gradient of a normalization", normalize_grad(), 2, 3);
        let mut reduce = |name: &str, expr: Expr, whole: usize, axis: usize, kind: Reduction| {
            all.push((
                format!("{name}, {shape}"),
                graph(dims, dtype, whole, 0, |g, x, _| {
                    g.add_one(Op::Reduce(Reduce { expr, shape: Shape::fixed(dims), kind, axes: vec![axis], onto: false }), x)
                }),
            ));
        };
        reduce("sum by channel", Expr::build(|e| e.input(0)), 1, 0, Reduction::Sum);
        reduce("sum of squares by channel", square(), 1, 0, Reduction::Sum);
        reduce("sum of products by channel", product(), 2, 0, Reduction::Sum);
        reduce("sum by row", Expr::build(|e| e.input(0)), 1, 1, Reduction::Sum);
        reduce("maximum by row", Expr::build(|e| e.input(0)), 1, 1, Reduction::Max);
    }
    all
}

/// A graph of `whole` tensors and `channel` vectors over their last axis, and the value that `build` makes of them.
fn graph(
    dims: [usize; 2],
    dtype: DType,
    whole: usize,
    channel: usize,
    build: impl FnOnce(&mut Graph, &[ValueId], &[ValueId]) -> Result<ValueId, GraphError>,
) -> Case {
    let mut g = Graph::new();
    let mut state = |name: String, ty: TensorType| g.state(&name, StateKind::Statistic, ty, Init::Uniform { limit: 1.0 });
    let tensor = || TensorType { dtype, shape: Shape::fixed(dims) };
    let tensors = (0..whole).map(|i| state(format!("x{i}"), tensor())).collect::<Result<Vec<_>, _>>()?;
    let vectors = (0..channel).map(|i| state(format!("c{i}"), TensorType::f32(Shape::fixed([dims[1]])))).collect::<Result<Vec<_>, _>>()?;
    let value = build(&mut g, &tensors, &vectors)?;
    g.output("y", value);
    Ok((g, value))
}

/// Bytes and seconds of the node of a value.
fn time(device: &CudaDevice, graph: &Graph, value: ValueId) -> (f64, f64) {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], 1, device).expect("it fits")).expect("plans hold");
    let (mut resident, arena) =
        (device.allocate(plan.resident).expect("there is memory"), device.allocate(plan.arena).expect("there is memory"));
    let noise: Vec<u8> =
        (0..1 << 19).flat_map(|i: u64| (0x3f80 | (i.wrapping_mul(2_654_435_761) >> 9) as u16 & 0x807f).to_le_bytes()).collect();
    for start in (0..plan.resident.0).step_by(noise.len()) {
        let length = noise.len().min((plan.resident.0 - start) as usize);
        resident.write(plimsoll_core::Bytes(start), &noise[..length]).expect("it is inside");
    }
    let memory = StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let mut loaded = device.load(&plan, Role::Step, 1, &memory).expect("it loads");
    let inputs = StepInputs { columns: &[], scalars: &[], random: StepRandom::default() };
    let times = loaded.node_seconds(&inputs).expect("it runs");
    let graph = &plan.programs[0].graph;
    let own =
        |(id, seconds): &(plimsoll_core::NodeId, f64)| graph.node(*id).outputs.contains(&value).then_some((graph.node(*id), *seconds));
    let (node, seconds) = times.iter().find_map(own).expect("the node is timed");
    (graph.moved(node, 1) as f64, seconds)
}

/// Bytes read and written per second by a copy of the driver, the fastest of some.
fn copy_rate() -> f64 {
    // SAFETY: the context is current since the GPU was opened; both buffers have the copied size, and are freed once,
    // after the stream is idle.
    unsafe {
        let buffers = [0, 1].map(|_| result::malloc_sync(COPIED).expect("there is memory"));
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).expect("there is a stream");
        let events = [0, 1].map(|_| result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).expect("there is an event"));
        let mut least = f64::INFINITY;
        for _ in 0..10 {
            result::event::record(events[0], stream).expect("it records");
            result::memcpy_dtod_async(buffers[1], buffers[0], COPIED, stream).expect("it copies");
            result::event::record(events[1], stream).expect("it records");
            result::stream::synchronize(stream).expect("it ends");
            least = least.min(f64::from(result::event::elapsed(events[0], events[1]).expect("both happened")) * 1e-3);
        }
        for buffer in buffers {
            result::free_sync(buffer).expect("it is freed once");
        }
        2.0 * COPIED as f64 / least
    }
}
