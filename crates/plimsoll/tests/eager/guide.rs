//! The programs of `docs/eager.md` and `docs/allocators.md`. Every line of their examples is here, so that it compiles
//! and runs.

#![expect(clippy::cloned_ref_to_slice_refs, clippy::redundant_closure, reason = "the guides are written for readers")]

use plimsoll::Bytes;
use plimsoll::eager::Result;
use plimsoll::eager::Tensor;

/// The lines of the Rust examples of a page.
fn example_lines(page: &str) -> Vec<&str> {
    let (mut inside, mut lines) = (false, Vec::new());
    for line in page.lines().map(str::trim) {
        if line.starts_with("```") {
            inside = !inside && line == "```rust";
        } else if inside && !code(line).is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim()
}

#[test]
fn every_line_of_the_guides_runs() {
    let here: Vec<&str> = include_str!("guide.rs").lines().map(code).collect();
    for page in [include_str!("../../../../docs/eager.md"), include_str!("../../../../docs/allocators.md")] {
        let lines = example_lines(page);
        assert!(lines.len() > 20, "{lines:?}");
        let missing: Vec<&&str> = lines.iter().filter(|line| !here.contains(&code(line))).collect();
        assert!(missing.is_empty(), "these lines are in no test of guide.rs: {missing:#?}");
    }
}

#[test]
fn tensors() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], [2, 2])?;
    let w = Tensor::normal([2, 3])?;
    let y = x.matmul(&w)?.relu()?;
    let scaled = (&y * 2.0)?;
    let mean: f32 = scaled.mean()?.item()?;
    println!("{y}");
    assert!(mean >= 0.0 && y.to_string().ends_with("f32[2, 3]"));
    Ok(())
}

#[test]
fn gradients() -> Result<()> {
    use plimsoll::eager::Tape;
    use plimsoll::eager::{grad, value_and_grad};

    let (x, target, w) = (Tensor::uniform([8, 3])?, Tensor::ones([8, 2])?, Tensor::zeros([3, 2])?);
    let loss = |p: &[Tensor]| x.matmul(&p[0])?.mse_loss(&target);
    let (value, gradients) = value_and_grad(loss)(&[w.clone()])?;
    let (first, taken) = (value.item::<f32>()?, gradients[0].to_vec::<f32>()?);
    {
        let w = w.clone();
        let second = grad(|p: &[Tensor]| grad(loss)(p)?[0].square()?.sum())(&[w])?;
        assert_eq!((first, second[0].dims()), (1.0, vec![3, 2]));
    }
    let tape = Tape::new();
    tape.watch(&w);
    let value = loss(&[w.clone()])?;
    println!("{:?}", tape.held_bytes());
    assert!(tape.held_bytes().iter().any(|(op, _)| *op == "matmul"));
    let gradients = tape.gradient(&value, &[&w])?;
    assert_eq!(gradients[0].to_vec::<f32>()?, taken);
    Ok(())
}

#[test]
fn compiled_functions() -> Result<()> {
    use plimsoll::eager::compile_with_state;
    use plimsoll::eager::value_and_grad;

    let (x, target, w) = (Tensor::uniform([8, 3])?, Tensor::ones([8, 2])?, Tensor::zeros([3, 2])?);
    let step = compile_with_state(
        |state, batch| {
            let (loss, gradients) = value_and_grad(|p: &[Tensor]| batch[0].matmul(&p[0])?.mse_loss(&batch[1]))(state)?;
            Ok((vec![(&state[0] - &(&gradients[0] * 0.1)?)?], vec![loss]))
        },
        &[&w],
        &[&x, &target],
        Bytes::mib(16),
    )?;
    println!("{} at the peak, exactly", step.peak());
    // Mostly the workspace of the products.
    assert!(step.peak() < Bytes::mib(1), "{}", step.peak());
    let first: f32 = step.run(&[&x, &target])?[0].item()?;
    let loss: f32 = step.run(&[&x, &target])?[0].item()?;
    let w = &step.state()?[0];
    assert!(loss < first && w.dims() == [3, 2]);
    Ok(())
}

#[test]
fn custom_pieces_of_a_trainer() -> std::result::Result<(), Box<dyn std::error::Error>> {
    use plimsoll::eager::{CustomLayer, CustomOptimizer, LayerCall, UpdateCall};
    use plimsoll::nn::Initializer;
    use plimsoll::prelude::*;

    fn gated(x: &Tensor, w: &[Tensor]) -> Result<Tensor> {
        x.matmul(&w[0])?.sigmoid()?.mul(&x.matmul(&w[1])?)
    }
    fn squared(prediction: &Tensor, labels: &Tensor) -> Result<Tensor> {
        prediction.sub(labels)?.square()?.mean_axes(&[1])
    }
    fn momentum(call: &UpdateCall<'_>) -> Result<Vec<Tensor>> {
        let velocity = call.slots[0].mul_scalar(0.9)?.sub(&call.gradient.mul(call.learning_rate)?)?;
        Ok(vec![call.parameter.add(&velocity)?, velocity])
    }
    let data = Dataset::random(RandomSpec::new(24).floats("x", [8]).floats("y", [1]))?.batch(8);

    let layer = CustomLayer::new("gated", |call: &LayerCall<'_>| gated(&call.inputs[0], call.weights))
        .weight("gate", |inputs| vec![inputs[0][1], 32], Initializer::GlorotUniform)
        .weight("kernel", |inputs| vec![inputs[0][1], 32], Initializer::GlorotUniform);
    let mut trainer = Trainer::new(Sequential::new().add(layer).add(Dense::new(1)), &data)
        .loss(Loss::custom("squared", squared))
        .metrics([Metric::custom("largest_error", |p, y| p.sub(y)?.abs()?.max_axes(&[1]))])
        .optimizer(CustomOptimizer::new("momentum", 0.01, momentum).slot("velocity", 0.0));
    trainer.fit(Fit::epochs(2))?;
    Ok(())
}

#[test]
fn memory() -> Result<()> {
    use plimsoll::eager::{Context, Limit};

    let train = || Tensor::ones([4]).map(drop);
    let context = Context::cpu(4, Bytes::mib(512))?;
    context.scope(|| train())?;
    println!("{}", context.stats());
    assert!(context.stats().to_string().contains("fragmentation"));
    assert_eq!(context.stats().limit.map(Limit::Bytes), Some(Limit::Bytes(Bytes::mib(512))));
    Ok(())
}

#[test]
fn allocators() -> std::result::Result<(), Box<dyn std::error::Error>> {
    use plimsoll::allocator::{Allocation, Allocator, BestFit, BestFitOptions, DeviceSegments, Limit, OwnerId, Request};
    use plimsoll_core::Bytes;
    use std::sync::Arc;

    let device = Arc::new(plimsoll::CpuDevice::new(1)?);
    let segments = DeviceSegments::new(device)?;
    let options = BestFitOptions { limit: Limit::Bytes("2GiB".parse()?), ..BestFitOptions::default() };
    let allocator: Arc<dyn Allocator> = Arc::new(BestFit::new(segments.clone(), options)?);

    let block = Allocation::new(&allocator, Request::new(Bytes::mib(64), OwnerId::named("conv2d")))?;
    let range = block.range();
    segments.with(range.segment, |memory| memory.zero(range.offset, range.size));
    println!("{}", allocator.stats());
    drop(block);
    assert_eq!(allocator.stats().in_use, Bytes::ZERO);

    let kept = std::cell::RefCell::new(Vec::new());
    let train_one_epoch = || kept.borrow_mut().push(Allocation::new(&allocator, Request::new(Bytes::mib(3), OwnerId::named("callback"))));
    let before = allocator.snapshot();
    train_one_epoch();
    for growth in allocator.snapshot().diff(&before) {
        println!("{growth}");
    }
    assert_eq!(allocator.snapshot().diff(&before).len(), 1);
    allocator.compact(&mut |moved| segments.copy(moved).is_ok());
    Ok(())
}

#[test]
fn planned_allocations() -> std::result::Result<(), Box<dyn std::error::Error>> {
    use plimsoll::allocator::{Allocator, BestFit, BestFitOptions, DeviceSegments, OwnerId, Planned, Recorded, Request};
    use std::sync::Arc;

    let segments = DeviceSegments::new(Arc::new(plimsoll::CpuDevice::new(1)?))?;
    let allocator: Arc<dyn Allocator> = Arc::new(BestFit::new(segments.clone(), BestFitOptions::default())?);
    fn step(allocator: &dyn Allocator) {
        let block = |size| allocator.allocate(Request::new(size, OwnerId::named("step"))).expect("there is no limit");
        let (first, second) = (block(Bytes::kib(3)), block(Bytes::kib(5)));
        [first, second].into_iter().for_each(|block| allocator.free(block).expect("it is its own"));
    }
    let recorded = Recorded::new(Arc::clone(&allocator));
    recorded.start();
    step(&recorded);
    let planned = Planned::new(segments, &recorded.finish(), Some(allocator))?;
    planned.begin();
    step(&planned);
    Ok(())
}
