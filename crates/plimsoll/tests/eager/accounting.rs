//! Memory is given back with the last handle, and the limit holds.

use plimsoll::eager::{Context, Error, MemoryStats, Result, Snapshot, Tape, Tensor, compile, grad};
use plimsoll::{Bytes, CpuDevice};
use plimsoll_core::allocator::{Allocator, AllocatorError, BestFit, BestFitOptions, Block, BlockRange, Planned, Recorded, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn memory_is_given_back_with_the_last_handle() -> Result<()> {
    let context = Context::cpu(2, Bytes::mib(8))?;
    context.scope(|| {
        let x = Tensor::ones([256])?;
        let view = x.reshape([16, 16])?;
        assert_eq!(context.in_use(), Bytes::kib(1), "a view takes nothing");
        drop(x);
        assert_eq!(context.in_use(), Bytes::kib(1), "the view holds the memory");
        let y = view.matmul(&view)?.relu()?.sum()?;
        assert_eq!(context.in_use(), Bytes(1024 + 64), "results and workspace in between are gone");
        drop((y, view));
        assert_eq!(context.in_use(), Bytes::ZERO);
        Ok(())
    })
}

#[test]
fn gradients_and_compiled_functions_leave_nothing() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(8))?;
    context.scope(|| {
        let x = Tensor::uniform([8, 8])?;
        let network = |p: &[Tensor]| p[0].matmul(&p[0])?.tanh()?.softmax(1)?.layer_norm(&p[0], &p[0], 1e-3)?.sum();
        let gradients = grad(network)(std::slice::from_ref(&x))?;
        let twice = grad(|p: &[Tensor]| grad(network)(p)?[0].sum())(std::slice::from_ref(&x))?;
        let step = compile(|p| grad(network)(p), &[&x], Bytes::mib(1))?;
        let compiled = step.run(&[&x])?;
        assert_eq!(compiled[0].to_vec::<f32>()?, gradients[0].to_vec::<f32>()?);
        drop((x, gradients, twice, step, compiled));
        assert_eq!(context.in_use(), Bytes::ZERO);
        Ok(())
    })
}

#[test]
fn a_tape_holds_what_backward_needs_and_releases_it() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(8))?;
    context.scope(|| {
        let (w, x) = (Tensor::ones([16, 16])?, Tensor::ones([4, 16])?);
        let tape = Tape::new();
        tape.watch(&w);
        let loss = {
            let product = x.matmul(&w)?;
            let shifted = product.add_scalar(1.0)?;
            shifted.sigmoid()?.sum()?
        };
        // The product keeps the batch, the sigmoid its result; the sum and the addition keep nothing.
        assert_eq!(tape.held_bytes(), [("matmul", Bytes(256)), ("sigmoid", Bytes(256))]);
        assert_eq!(context.in_use(), Bytes(1024 + 256 + 256 + 64));
        let gradients = tape.gradient(&loss, &[&w])?;
        assert_eq!(gradients[0].dims(), [16, 16]);
        drop((gradients, loss, w, x));
        assert_eq!(context.in_use(), Bytes::ZERO);
        Ok(())
    })
}

#[test]
fn a_tape_that_is_dropped_stops_recording() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(8))?;
    context.scope(|| {
        let x = Tensor::ones([16])?;
        let tape = Tape::new();
        tape.watch(&x);
        drop(x.tanh()?);
        assert_eq!(context.in_use(), Bytes(128), "the tape keeps the result");
        drop(tape);
        assert_eq!(context.in_use(), Bytes(64));
        drop(x.tanh()?);
        assert_eq!(context.in_use(), Bytes(64));
        Ok(())
    })
}

#[test]
fn over_the_limit_nothing_is_lost() -> Result<()> {
    let context = Context::cpu(1, Bytes::kib(64))?;
    context.scope(|| {
        let large = Tensor::ones([12, 1024])?;
        let small = Tensor::ones([1024])?;
        let error = (&large + &large).unwrap_err();
        assert!(matches!(error, Error::OverLimit(_)));
        let text = error.to_string();
        assert!(text.contains("add") && text.contains("48.0 KiB") && text.contains("accounting.rs"), "{text}");
        assert_eq!(context.in_use(), Bytes::kib(52), "the refused op left nothing");
        drop(large);
        assert_eq!((&small + &small)?.to_vec::<f32>()?[0], 2.0);
        Ok(())
    })
}

#[test]
fn threads_share_a_context() -> Result<()> {
    let context = Context::cpu(2, Bytes::mib(8))?;
    let work = |seed: usize| {
        context.scope(|| -> Result<f32> {
            let mut x = Tensor::full([64], seed as f32)?;
            for _ in 0..50 {
                x = (&(&x + 1.0)? * 0.5)?;
            }
            x.sum()?.item()
        })
    };
    let sums: Vec<f32> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no thread panics").expect("the limit suffices")).collect()
    });
    assert!(sums.iter().all(|sum| (sum - 64.0).abs() < 1e-3), "{sums:?}");
    assert_eq!(context.in_use(), Bytes::ZERO);
    Ok(())
}

/// Counts what passes through to another allocator.
struct Counted {
    inner: BestFit,
    allocations: AtomicU64,
}

impl Allocator for Counted {
    fn allocate(&self, request: Request) -> std::result::Result<Block, AllocatorError> {
        self.allocations.fetch_add(1, Relaxed);
        self.inner.allocate(request)
    }

    fn free(&self, block: Block) -> std::result::Result<(), AllocatorError> {
        self.inner.free(block)
    }

    fn range(&self, block: &Block) -> BlockRange {
        self.inner.range(block)
    }

    fn stats(&self) -> MemoryStats {
        self.inner.stats()
    }

    fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }
}

#[test]
fn tensors_are_blocks_of_a_supplied_allocator() -> Result<()> {
    let mut counted = None;
    let context = Context::with_allocator(Arc::new(CpuDevice::new(1)?), |memory| {
        let allocator = Arc::new(Counted { inner: BestFit::new(memory, BestFitOptions::default())?, allocations: AtomicU64::new(0) });
        counted = Some(Arc::clone(&allocator));
        Ok(allocator)
    })?;
    let counted = counted.expect("the context made it");
    let sum = context.scope(|| Tensor::ones([4])?.add(&Tensor::ones([4])?)?.to_vec::<f32>())?;
    assert_eq!((sum, counted.allocations.load(Relaxed), context.in_use()), (vec![2.0; 4], 3, Bytes::ZERO));
    Ok(())
}

/// A loop that repeats, in an arena that was planned from a recording of its first step: nothing is fragmented, and the
/// peak is the smallest that the step can have.
#[test]
fn a_repeated_step_moves_to_a_planned_arena() -> Result<()> {
    let device = || -> Result<Arc<CpuDevice>> { Ok(Arc::new(CpuDevice::new(1)?)) };
    let step = |x: &Tensor| -> Result<Vec<f32>> {
        let wide = x.matmul(&Tensor::full([64, 512], 0.01)?)?.tanh()?;
        wide.matmul(&Tensor::full([512, 8], 0.1)?)?.sum_axes(&[0])?.to_vec()
    };
    let mut recorded = None;
    let first = Context::with_allocator(device()?, |memory| {
        let inner: Arc<dyn Allocator> = Arc::new(BestFit::new(memory, BestFitOptions::default())?);
        let allocator = Arc::new(Recorded::new(inner));
        recorded = Some(Arc::clone(&allocator));
        Ok(allocator)
    })?;
    let recorded = recorded.expect("the context made it");
    let expected = first.scope(|| {
        let x = Tensor::full([32, 64], 0.5)?;
        step(&x)?;
        recorded.start();
        step(&x)
    })?;
    let trace = recorded.finish();

    let mut planned = None;
    let context = Context::with_allocator(device()?, |memory| {
        let rest: Arc<dyn Allocator> = Arc::new(BestFit::new(memory.clone(), BestFitOptions::default())?);
        let allocator = Arc::new(Planned::new(memory, &trace, Some(rest))?);
        planned = Some(Arc::clone(&allocator));
        Ok(allocator)
    })?;
    let planned = planned.expect("the context made it");
    context.scope(|| {
        let x = Tensor::full([32, 64], 0.5)?;
        for _ in 0..3 {
            planned.begin();
            assert_eq!(step(&x)?, expected);
        }
        Ok(())
    })
}
