//! The device as the rest of the system sees it. Where there is no GPU the tests that need one say so and check that
//! opening it is refused well.

use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, Block, DeviceSegments, Limit, OwnerId, Request};
use plimsoll_core::device::{DeviceError, StepInputs, StepMemory};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::plan::{CheckedPlan, Target};
use plimsoll_core::plan::{check, layout, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::selftest::{cases, check_device_gradient, check_forward};
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, DType, Device, Executor, Ledger, Op, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use plimsoll_cuda::{Convolutions, CudaDevice, KernelCache, PlanOnly, Profile, probe};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tests on the GPU take turns: some look at how much of it is free.
static TURN: Mutex<()> = Mutex::new(());

/// The first GPU; where there is none, says so after checking that the refusal names the reason and a way out.
fn gpu() -> Option<(Arc<dyn Device>, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::open(0, None) {
        Ok(device) => Some((Arc::new(device), turn)),
        Err(error) => {
            let (obstacle, error) = (probe().obstacle().expect("opening a GPU that is there works"), error.to_string());
            assert_eq!(error, format!("cuda:0: {obstacle}"));
            assert!(error.ends_with("compute with `--device cpu`"), "{error}");
            println!("not run on a GPU: {error}");
            None
        }
    }
}

fn planned() -> PlanOnly {
    PlanOnly::new(Profile::named("h200").unwrap(), 0)
}

#[test]
fn plans_from_a_profile_pass_the_checker() {
    for case in cases(0) {
        let graph = case.with_gradients().unwrap().unwrap_or_else(|| case.graph.clone());
        let plan = layout(&[(Role::Step, graph)], case.rows, &planned()).unwrap();
        check(&plan.certificate(), &[&plan.programs[0].graph]).unwrap();
        let staging = plan.staging.expect("a GPU does not share the host's memory");
        assert_eq!(staging.offset + staging.size(), plan.resident);
        assert_eq!(plan.by_owner().iter().map(|(_, size)| *size).sum::<Bytes>(), plan.total());
    }
}

/// `plimsoll selftest --device cuda:0` runs these cases.
#[test]
fn every_case_for_the_device_has_kernels() {
    let device = planned();
    let mut left_out = BTreeSet::new();
    for case in cases(0) {
        if !case.is_for(&device) {
            left_out.insert(case.op);
            continue;
        }
        let plan = CheckedPlan::new(layout(&[(Role::Step, case.graph.clone())], case.rows, &device).unwrap()).unwrap();
        let sources = device.diagnostics().unwrap().kernel_sources(&plan, Role::Step, case.rows);
        assert!(sources.is_ok(), "{} {}: {}", case.op, case.name, sources.unwrap_err());
    }
    // Sums in a fixed order run on the CPU only; the others where a device fuses the write, or loads and stores itself.
    assert!(left_out.contains("pairwise_sum"), "{left_out:?}");
    assert!(!left_out.contains("matmul") && !left_out.contains("reduce"), "{left_out:?}");
}

#[test]
fn a_profile_computes_nothing() {
    let error = planned().allocate(Bytes::mib(1)).err().expect("there is no memory behind a profile").to_string();
    assert_eq!(error, "cuda:0: only plans can be made from the profile `h200`; leave out `--device-profile` to compute");
}

/// A plan for more rows holds for fewer only if no kernel wants more scratch for fewer.
#[test]
fn workspaces_never_shrink_with_the_rows() {
    for case in cases(0) {
        let graph = case.with_gradients().unwrap().unwrap_or_else(|| case.graph.clone());
        for (_, node) in graph.nodes() {
            let sizes = [1, 2, 3, 7, 32, 33, 500, 4096, 100_000].map(|rows| planned().workspace(&graph, node, rows).0);
            assert!(sizes.is_sorted(), "{} of {}: {sizes:?}", node.op.rules().name(), case.name);
        }
    }
}

const ROWS: usize = 24;

/// Two dense layers, dropout between them, mean squared error, gradient descent with momentum.
fn network() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([9])));
    let y = g.input("y", TensorType::f32(Shape::batch_of([3])));
    let layer = |g: &mut Graph, name: &str, x: ValueId, from: usize, to: usize| {
        g.in_scope(name, |g| {
            let kernel =
                g.state("kernel", StateKind::Parameter, TensorType::f32(Shape::fixed([from, to])), Init::Uniform { limit: 0.5 })?;
            let bias = g.state("bias", StateKind::Parameter, TensorType::f32(Shape::fixed([to])), Init::Constant(0.0))?;
            let product = g.matmul(x, kernel)?;
            g.plus(product, bias)
        })
    };
    let hidden = layer(&mut g, "hidden", x, 9, 17)?;
    let stream = g.stream();
    let kept = g.map(hidden, |e, x| {
        let kept = e.binary(Binary::Less, e.random(stream), e.constant(0.8));
        e.mul(e.binary(Binary::Max, x, e.constant(0.0)), kept)
    })?;
    let out = layer(&mut g, "out", kept, 17, 3)?;
    let square = Expr::build(|e| {
        let error = e.sub(e.input(0), e.input(1));
        e.mul(e.constant(1.0 / (ROWS * 3) as f32), e.mul(error, error))
    });
    let squares = g.pointwise(square, &[out, y])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok(g)
}

fn descend(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = g.state_value(parameter).expect("parameters are read");
    let rate = g.scalar("rate");
    let step = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(2), e.input(1))));
    let new = g.pointwise(step, &[value, gradient, rate])?;
    g.update(parameter, new);
    Ok(())
}

struct Model {
    executor: Executor,
    columns: [Vec<f32>; 2],
}

impl Model {
    fn new(device: &Arc<dyn Device>) -> Model {
        Model::of(device, network().unwrap())
    }

    fn of(device: &Arc<dyn Device>, graph: Graph) -> Model {
        let loss = graph.outputs()[0].1;
        let plan = plan(training_programs(&graph, loss, false, &descend).unwrap(), ROWS, &**device).unwrap();
        check(&plan.certificate(), &[&plan.programs[0].graph]).unwrap();
        let mut executor = Executor::new(Arc::clone(device), CheckedPlan::new(plan).unwrap(), &Ledger::new("test", None)).unwrap();
        executor.initialize(7).unwrap();
        let x: Vec<f32> = (0..ROWS * 9).map(|i| (i as f32 * 0.7).sin()).collect();
        let y = (0..ROWS * 3).map(|i| x[i / 3 * 9 + i % 3] - 0.5 * x[i / 3 * 9 + 8 - i % 3]).collect();
        Model { executor, columns: [x, y] }
    }

    fn step(&mut self, step: u32) -> Result<f32, DeviceError> {
        // SAFETY: every byte of a float is a byte.
        let bytes = |floats: &Vec<f32>| unsafe { std::slice::from_raw_parts(floats.as_ptr().cast::<u8>(), 4 * floats.len()) };
        let columns = [bytes(&self.columns[0]), bytes(&self.columns[1])];
        let random = StepRandom { seed: 3, step, first_row: 0 };
        let ticket = self.executor.run(Role::Step, ROWS, &StepInputs { columns: &columns, scalars: &[0.2], random })?;
        let mut loss = [0.0];
        self.executor.outcome(ticket, &mut loss)?;
        Ok(loss[0])
    }

    fn states(&self) -> Vec<Vec<u8>> {
        let states = self.executor.plan().states.iter().enumerate();
        states
            .map(|(i, state)| {
                let mut bytes = vec![0; state.size.get()];
                self.executor.read_state(StateId(i as u32), &mut bytes).unwrap();
                bytes
            })
            .collect()
    }
}

/// The first run is launched kernel by kernel, later ones are replayed; random numbers and scalars reach both.
#[test]
fn losses_agree_with_the_cpu() {
    let Some((device, _turn)) = gpu() else { return };
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let (mut here, mut there) = (Model::new(&device), Model::new(&cpu));
    for step in 0..20 {
        let (a, b) = (here.step(step).unwrap(), there.step(step).unwrap());
        assert!((a - b).abs() <= 1e-5 * b.abs(), "step {step}: {a} instead of {b}");
    }
}

#[test]
fn the_same_run_gives_the_same_bits() {
    let Some((device, _turn)) = gpu() else { return };
    let run = || {
        let mut model = Model::new(&device);
        (0..10).for_each(|step| assert!(model.step(step).is_ok()));
        model.states()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_loss_that_is_not_finite_changes_nothing_and_is_found() {
    let Some((device, _turn)) = gpu() else { return };
    let mut model = Model::new(&device);
    (0..3).for_each(|step| assert!(model.step(step).unwrap().is_finite()));
    let before = model.states();
    let good = std::mem::replace(&mut model.columns[0][5], f32::INFINITY);
    assert!(matches!(model.step(3), Err(DeviceError::NonFinite)));
    assert_eq!(model.states(), before);
    let found = model.executor.find_non_finite(Role::Step, ROWS, None).unwrap().expect("the batch is broken");
    assert_eq!(model.executor.plan().program(Role::Step).unwrap().graph.node(found).op.rules().name(), "input");
    // With the batch repaired, training continues.
    model.columns[0][5] = good;
    assert!(model.step(3).unwrap().is_finite());
    assert_ne!(model.states(), before);
}

/// Every node that runs has a time, whatever became of the numbers meanwhile; so have the ways to the host and back.
#[test]
fn nodes_are_timed_by_the_clock_of_the_gpu() {
    let Some((device, _turn)) = gpu() else { return };
    let graph = network().unwrap();
    let loss = graph.outputs()[0].1;
    let plan = plan(training_programs(&graph, loss, false, &descend).unwrap(), ROWS, &*device).unwrap();
    let plan = CheckedPlan::new(plan).unwrap();
    let (resident, arena) = (device.allocate(plan.resident).unwrap(), device.allocate(plan.arena).unwrap());
    let memory = StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let program = &plan.programs[0];
    let mut loaded = device.load(&plan, program.role, ROWS, &memory).unwrap();
    let columns = [vec![0u8; ROWS * 9 * 4], vec![0xFF; ROWS * 3 * 4]];
    let random = StepRandom { seed: 3, step: 0, first_row: 0 };
    let times = loaded.node_seconds(&StepInputs { columns: &[&columns[0], &columns[1]], scalars: &[0.2], random }).unwrap();
    assert_eq!(times.iter().map(|(node, _)| *node).collect::<Vec<_>>(), program.order);
    assert!(times.iter().all(|(_, seconds)| *seconds > 0.0 && seconds.is_finite()), "{times:?}");
    let (to_host, back) = device.diagnostics().expect("a GPU measures them").measure_copies().unwrap();
    assert!(to_host > 1e6 && back > 1e6, "{to_host} and {back} bytes a second");
}

/// Batches that were made in pinned memory are copied from there, and may be written over as soon as a run has begun.
#[test]
fn batches_in_slots_of_the_gpu_give_the_same_bits() {
    let Some((device, _turn)) = gpu() else { return };
    let (mut plain, mut pinned) = (Model::new(&device), Model::new(&device));
    let bytes = |floats: &[f32]| floats.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let columns = pinned.columns.each_ref().map(|column| bytes(column));
    let mut slot = device.slot_memory(Bytes(4096)).unwrap().expect("a GPU has its own kind of host memory");
    assert!(slot.bytes().len() >= 4096 && slot.bytes().iter().all(|byte| *byte == 0));
    let place = columns[0].len().next_multiple_of(64);
    for step in 0..6 {
        let expected = plain.step(step).unwrap();
        slot.bytes_mut()[..columns[0].len()].copy_from_slice(&columns[0]);
        slot.bytes_mut()[place..place + columns[1].len()].copy_from_slice(&columns[1]);
        let parts = [&slot.bytes()[..columns[0].len()], &slot.bytes()[place..place + columns[1].len()]];
        let inputs = StepInputs { columns: &parts, scalars: &[0.2], random: StepRandom { seed: 3, step, first_row: 0 } };
        let ticket = pinned.executor.run(Role::Step, ROWS, &inputs).unwrap();
        slot.bytes_mut().fill(0xFF);
        let mut loss = [0.0];
        pinned.executor.outcome(ticket, &mut loss).unwrap();
        assert_eq!(loss[0].to_bits(), expected.to_bits(), "step {step}");
    }
    assert_eq!(plain.states(), pinned.states());
}

#[test]
fn memory_stays_as_it_is_and_is_given_back() {
    let Some((device, _turn)) = gpu() else { return };
    let before = device.memory_info().unwrap().available;
    let mut model = Model::new(&device);
    (0..10).for_each(|step| assert!(model.step(step).is_ok()));
    let early = device.memory_info().unwrap().available;
    (10..1000).for_each(|step| assert!(model.step(step).is_ok()));
    assert_eq!(device.memory_info().unwrap().available, early);
    drop(model);
    // Modules may leave a page or two with the driver.
    assert!(before.saturating_sub(device.memory_info().unwrap().available) <= Bytes::mib(2));
}

#[test]
fn products_hold_without_the_library() {
    if gpu().is_none() {
        return;
    }
    let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0, None).unwrap().without_cublaslt());
    for case in cases(0).iter().filter(|case| case.op == "matmul") {
        check_forward(case, &device).unwrap();
        check_device_gradient(case, &device).unwrap();
    }
}

/// The nine numbers of a row spread over an image of 6×6×8, a 3×3 and a 1×1 convolution, and the mean of their results.
fn convolutional() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([9])));
    let y = g.input("y", TensorType::f32(Shape::batch_of([3])));
    let parameter = |g: &mut Graph, name: &str, dims: &[usize]| {
        g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(dims.iter().copied())), Init::Uniform { limit: 0.2 })
    };
    let spread = parameter(&mut g, "spread", &[9, 6 * 6 * 8])?;
    let (wide, thin) = (parameter(&mut g, "wide", &[3, 3, 8, 16])?, parameter(&mut g, "thin", &[1, 1, 16, 3])?);
    let image = g.matmul(x, spread)?;
    let image = g.reshape(image, Shape::batch_of([6, 6, 8]))?;
    let window = Window::same((3, 3), (1, 1), (1, 1), (6, 6));
    let conv = |window| Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 });
    let hidden = g.add_one(conv(window), &[image, wide])?;
    let hidden = g.map(hidden, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))?;
    let out = g.add_one(conv(Window::valid((1, 1), (1, 1))), &[hidden, thin])?;
    let target = g.reshape(y, Shape::batch_of([1, 1, 3]))?;
    let square = Expr::build(|e| {
        let error = e.sub(e.input(0), e.input(1));
        e.mul(e.constant(1.0 / (ROWS * 36 * 3) as f32), e.mul(error, error))
    });
    let squares = g.pointwise(square, &[out, target])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    Ok(g)
}

/// Launched one by one and then replayed, through libraries and in generated kernels, and the same bits each time.
#[test]
fn convolutions_agree_with_the_cpu_every_way() {
    if gpu().is_none() {
        return;
    }
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    for way in [Convolutions::Libraries, Convolutions::Generated, Convolutions::Auto] {
        let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0, None).unwrap().with_convolutions(way));
        let run = |device: &Arc<dyn Device>| {
            let mut model = Model::of(device, convolutional().unwrap());
            let losses: Vec<f32> = (0..6).map(|step| model.step(step).unwrap()).collect();
            (losses, model.states())
        };
        let (here, there) = (run(&device), run(&cpu));
        for (a, b) in here.0.iter().zip(&there.0) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{way:?}: {a} instead of {b}");
        }
        assert_eq!(here, run(&device), "{way:?}");
        let taken = device.diagnostics().expect("a GPU counts them").convolution_algorithms();
        println!("{way:?}: {taken:?}");
        let by = |name: &str| taken.iter().any(|(way, _)| way == name);
        let found = |name: &str| probe().libraries.iter().any(|library| library.name == name && library.found);
        for library in ["cuDNN", "cuBLASLt"] {
            assert_eq!(by(library), way == Convolutions::Libraries && found(library), "{way:?}, {library}: {taken:?}");
        }
    }
}

/// Measured once, stored with the kernels, and used again by the next run and by one that is resumed.
#[test]
fn measured_algorithms_are_kept_and_give_the_same_bits() {
    if gpu().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("plimsoll-measured-{}", std::process::id()));
    let open = || {
        let device = CudaDevice::open(0, Some(KernelCache::new(&folder))).unwrap().with_convolutions(Convolutions::Libraries);
        Arc::new(device.with_measured_algorithms()) as Arc<dyn Device>
    };
    let run = |device: &Arc<dyn Device>| {
        let mut model = Model::of(device, convolutional().unwrap());
        (0..4).for_each(|step| assert!(model.step(step).unwrap().is_finite()));
        (model.states(), device.diagnostics().expect("a GPU has some").algorithms().expect("they are measured"))
    };
    let first = run(&open());
    assert!(first.1.keys().any(|request| request.starts_with("matmul ")), "{:?}", first.1);
    assert_eq!(run(&open()), first, "stored with the kernels");
    let resumed = open();
    let diagnostics = resumed.diagnostics().expect("a GPU has some");
    // A run that recorded others keeps them, where the library has them.
    diagnostics.keep_algorithms(&first.1);
    assert_eq!(run(&resumed), first);
    assert_eq!(diagnostics.rejected_algorithms(&first.1), None);
    let damaged = open();
    let diagnostics = damaged.diagnostics().expect("a GPU has some");
    let unknown = first.1.keys().map(|request| (request.clone(), "unknown".to_string())).collect();
    diagnostics.keep_algorithms(&unknown);
    run(&damaged);
    assert!(diagnostics.rejected_algorithms(&unknown).is_some());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn convolutions_hold_every_way() {
    if gpu().is_none() {
        return;
    }
    for way in [Convolutions::Libraries, Convolutions::Generated] {
        let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0, None).unwrap().with_convolutions(way));
        for case in cases(0).iter().filter(|case| case.op.starts_with("conv2d")).step_by(7) {
            check_forward(case, &device).unwrap();
            check_device_gradient(case, &device).unwrap();
        }
    }
}

#[test]
fn more_than_there_is_is_refused() {
    let Some((device, _turn)) = gpu() else { return };
    let error = device.allocate(Bytes::gib(1 << 20)).err().expect("nobody has that much").to_string();
    assert!(error.starts_with("cuda:0 could not give 1024 TiB of memory: "), "{error}");
}

#[test]
fn reserved_addresses_have_memory_where_it_is_committed() {
    let Some((device, _turn)) = gpu() else { return };
    let available = || device.memory_info().unwrap().available;
    let Some(mut memory) = device.reserve(Bytes::gib(1024)).unwrap() else { return };
    let (granule, before) = (memory.granule(), available());
    assert!(granule.0.is_power_of_two() && memory.size() >= Bytes::gib(1024));
    let part = Bytes(granule.0 * 256);
    let mut bytes = [9; 8];
    assert!(memory.read(part, &mut bytes).is_err(), "no memory yet");
    memory.commit(part, part).unwrap();
    // The driver may have some of it left from memory that was given back.
    assert!((before - available()).0 >= part.0 / 2);
    memory.read(part, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    let last = part + part - Bytes(8);
    memory.write(last, &[7; 8]).unwrap();
    memory.copy_within(last, last - Bytes(4), Bytes(8)).unwrap();
    memory.read(last - Bytes(8), &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 0, 7, 7, 7, 7]);
    assert!(memory.write(last, &[7; 9]).is_err(), "the end of the part");
    assert!(memory.commit(part, granule).is_err(), "it has memory");
    assert!(memory.commit(Bytes(1), granule).is_err(), "not whole granules");
    // All but the last granule: what is in it stays, and what is committed again is zero.
    memory.decommit(part, part - granule).unwrap();
    memory.read(last, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8]);
    assert!(memory.read(part, &mut bytes).is_err());
    memory.commit(part, granule).unwrap();
    memory.zero(part, granule).unwrap();
    drop(memory);
    assert!(before.saturating_sub(available()) <= Bytes::mib(2));
}

#[test]
fn an_allocator_on_the_gpu_grows_in_place_and_gives_back() {
    let Some((device, _turn)) = gpu() else { return };
    let available = || device.memory_info().unwrap().available;
    let segments = DeviceSegments::new(Arc::clone(&device)).unwrap();
    let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(256)), ..BestFitOptions::default() };
    let allocator = BestFit::new(segments.clone(), options).unwrap();
    let (before, request) = (available(), |size| Request::new(size, OwnerId::named("tensor")));
    let mut blocks: Vec<Option<Block>> = (0..48).map(|_| Some(allocator.allocate(request(Bytes::mib(4))).unwrap())).collect();
    let segment = allocator.range(blocks[0].as_ref().unwrap()).segment;
    for (i, block) in blocks.iter().enumerate() {
        let range = allocator.range(block.as_ref().unwrap());
        assert_eq!(range.segment, segment, "one range of addresses");
        segments.with(segment, |memory| memory.write(range.offset, &[i as u8; 16])).unwrap().unwrap();
    }
    // Holes of 4 MiB: a block of 64 MiB fits within the limit, because memory behind them is given back.
    blocks.iter_mut().step_by(2).for_each(|block| allocator.free(block.take().unwrap()).unwrap());
    let large = allocator.allocate(request(Bytes::mib(128))).unwrap();
    assert!(allocator.stats().reserved <= Bytes::mib(256));
    for (i, block) in blocks.iter().enumerate().filter_map(|(i, block)| Some((i, block.as_ref()?))) {
        let (range, mut bytes) = (allocator.range(block), [0; 16]);
        segments.with(range.segment, |memory| memory.read(range.offset, &mut bytes)).unwrap().unwrap();
        assert_eq!(bytes, [i as u8; 16]);
    }
    allocator.free(large).unwrap();
    allocator.compact(&mut |moved| segments.copy(moved).is_ok());
    for (i, block) in blocks.into_iter().enumerate().filter_map(|(i, block)| Some((i, block?))) {
        let (range, mut bytes) = (allocator.range(&block), [0; 16]);
        segments.with(range.segment, |memory| memory.read(range.offset, &mut bytes)).unwrap().unwrap();
        assert_eq!(bytes, [i as u8; 16], "moved with its bytes");
        allocator.free(block).unwrap();
    }
    allocator.give_back().unwrap();
    assert_eq!(allocator.stats().in_use, Bytes::ZERO);
    assert!(before.saturating_sub(available()) <= Bytes::mib(8));
}
