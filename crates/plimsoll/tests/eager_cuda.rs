//! Eager tensors on a GPU compared with the CPU. Without a GPU each test reports so and checks the error.

use plimsoll::eager::{
    Context, DType, Error, Limit, Padding, Result, Tape, Tensor, compile_with_state, device, log_placement, value_and_grad,
};
use plimsoll::{Bytes, Device, DeviceSpec, probe};
use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, Block, OwnerId, PinnedSegments, Request};
use std::sync::Arc;

/// A context on the first GPU; if there is none, checks the error and reports it.
fn gpu(limit: Bytes) -> Option<Context> {
    let Some(obstacle) = probe().obstacle() else {
        return Some(Context::new(plimsoll::open_device(DeviceSpec::Cuda(0)).unwrap(), Limit::Bytes(limit)).unwrap());
    };
    let error = device("cuda:0", || ()).unwrap_err().to_string();
    assert_eq!(error, format!("cuda:0: {obstacle}"));
    println!("not run on a GPU: {error}");
    None
}

fn data(dims: &[usize], seed: usize) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 11 + 5) % 23) as f32 / 11.0 - 0.97).collect();
    Tensor::from_slice(&values, dims.iter().copied())
}

#[track_caller]
fn assert_close(name: &str, here: &[f32], there: &[f32], tolerance: f32) {
    assert_eq!(here.len(), there.len(), "{name}");
    for (i, (x, y)) in here.iter().zip(there).enumerate() {
        assert!((x - y).abs() <= tolerance * x.abs().max(1.0), "{name}, element {i}: {y} instead of {x}");
    }
}

/// Results of every kind of op, by name.
fn results() -> Result<Vec<(&'static str, Tensor)>> {
    let (x, y, row) = (data(&[5, 12], 1)?, data(&[5, 12], 2)?, data(&[12], 3)?);
    let positive = x.abs()?.add_scalar(0.5)?;
    let image = data(&[2, 9, 9, 4], 4)?;
    let (q, k, v) = (data(&[2, 16, 32], 5)?, data(&[2, 16, 32], 6)?, data(&[2, 16, 32], 7)?);
    let labels = Tensor::from_slice(&[3, 0, 11, 7, 2], [5])?;
    let mask = x.lt(&y)?;
    let mut all = vec![
        ("add", x.add(&y)?),
        ("broadcast", x.mul(&row)?),
        ("add_scalar", x.add_scalar(2.5)?),
        ("scalar_div", positive.scalar_div(2.0)?),
        ("div", x.div(&positive)?),
        ("exp", x.exp()?),
        ("log", positive.log()?),
        ("gelu", x.gelu()?),
        ("pow", positive.powf(1.7)?),
        ("clamp", x.clamp(-0.5, 0.5)?),
        ("select", mask.select(&x, &y)?),
        ("logical", (&mask & &x.gt_scalar(-0.5)?)?.to_dtype(DType::F32)?),
        ("full", Tensor::full([3, 7], 1.25)?),
        ("arange", Tensor::arange(37)?),
        ("uniform", Tensor::uniform([33])?),
        ("dropout", x.dropout(0.25)?),
        ("sum", x.sum()?),
        ("sum_axes", x.sum_axes(&[0])?),
        ("max_axes", x.max_axes(&[1])?),
        ("mean", x.mean_keepdim(&[1])?),
        ("var", x.var_axes(&[1])?),
        ("softmax", x.softmax(1)?),
        ("log_softmax", x.log_softmax(0)?),
        ("layer_norm", x.layer_norm(&row, &row, 1e-3)?),
        ("cross_entropy", x.cross_entropy(&labels)?),
        ("cross_entropy_rows", x.cross_entropy_rows(&labels)?),
        ("one_hot", labels.one_hot(12)?),
        ("gather", x.gather(&Tensor::from_slice(&[4, 0, 4], [3])?)?),
        ("transpose", x.t()?),
        ("slice", x.slice(1, 3..8)?),
        ("pad", x.pad(0, 1, 2)?),
        ("concat", Tensor::concat(&[&x, &y], 1)?),
        ("reshape", x.reshape([3, 20])?.add_scalar(1.0)?),
        ("matmul", x.matmul(&y.t()?)?),
        ("matmul of rows", q.matmul(&data(&[32, 8], 8)?)?),
        ("unaligned matmul", data(&[7, 13], 9)?.matmul(&data(&[13, 5], 10)?)?),
        ("conv2d", image.conv2d(&data(&[3, 3, 4, 8], 11)?, 1, Padding::Same)?),
        ("strided conv2d", image.conv2d(&data(&[3, 3, 4, 8], 11)?, 2, Padding::Valid)?),
        ("max_pool2d", image.max_pool2d(2, 2, Padding::Valid)?),
        ("avg_pool2d", image.avg_pool2d(3, 2, Padding::Same)?),
        ("attention", q.attention(&k, &v, 2, true)?),
    ];
    for dtype in [DType::F16, DType::BF16] {
        let half = x.to_dtype(dtype)?;
        all.push(("half", half.mul(&half)?.to_dtype(DType::F32)?));
        all.push(("half matmul", half.matmul(&y.to_dtype(dtype)?.t()?)?.to_dtype(DType::F32)?));
    }
    Ok(all)
}

#[test]
fn every_op_matches_the_cpu() {
    let Some(gpu) = gpu(Bytes::mib(512)) else { return };
    let here = Context::cpu(2, Bytes::mib(64)).unwrap().scope(results).unwrap();
    let there = gpu.scope(results).unwrap();
    for ((name, here), (_, there)) in here.iter().zip(&there) {
        assert_eq!((here.ty_text(), there.device().unwrap()), (there.ty_text(), "cuda:0"), "{name}");
        let tolerance = if name.starts_with("half") { 2e-2 } else { 2e-4 };
        assert_close(name, &here.to_vec::<f32>().unwrap(), &there.to_vec::<f32>().unwrap(), tolerance);
    }
    drop(there);
    assert_eq!(gpu.in_use(), Bytes::ZERO);
}

/// The type of a tensor as text.
trait TypeText {
    fn ty_text(&self) -> String;
}

impl TypeText for Tensor {
    fn ty_text(&self) -> String {
        format!("{}{}", self.dtype(), self.shape())
    }
}

/// The loss of a small convolutional network.
fn loss(p: &[Tensor], image: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let hidden = image.conv2d(&p[0], 1, Padding::Same)?.add(&p[1])?.relu()?.max_pool2d(2, 2, Padding::Valid)?;
    hidden.flatten()?.matmul(&p[2])?.add(&p[3])?.cross_entropy(labels)
}

/// Losses of some steps, eagerly and compiled.
fn trained() -> Result<(Vec<f32>, Vec<f32>)> {
    let (image, labels) = (data(&[8, 6, 6, 4], 1)?, Tensor::from_slice(&[0, 1, 2, 0, 1, 2, 0, 1], [8])?);
    let initial = [data(&[3, 3, 4, 8], 2)?.mul_scalar(0.3)?, Tensor::zeros([8])?, data(&[72, 3], 3)?.mul_scalar(0.2)?, Tensor::zeros([3])?];
    let step = |state: &[Tensor], batch: &[Tensor]| -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let (value, gradients) = value_and_grad(|p: &[Tensor]| loss(p, &batch[0], &batch[1]))(state)?;
        let updated = state.iter().zip(&gradients).map(|(p, g)| p - &(g * 0.1)?).collect::<Result<Vec<_>>>()?;
        Ok((updated, vec![value]))
    };
    let compiled = compile_with_state(step, &initial.iter().collect::<Vec<_>>(), &[&image, &labels], Bytes::mib(64))?;
    let (mut state, mut eager, mut planned) = (initial.to_vec(), Vec::new(), Vec::new());
    for _ in 0..10 {
        let (updated, value) = step(&state, &[image.clone(), labels.clone()])?;
        state = updated;
        eager.push(value[0].item::<f32>()?);
        planned.push(compiled.run(&[&image, &labels])?[0].item::<f32>()?);
    }
    Ok((eager, planned))
}

#[test]
fn training_matches_the_cpu_eagerly_and_compiled() {
    let Some(gpu) = gpu(Bytes::mib(512)) else { return };
    let (here, _) = Context::cpu(2, Bytes::mib(64)).unwrap().scope(trained).unwrap();
    let (eager, planned) = gpu.scope(trained).unwrap();
    assert!(here[9] < here[0], "{here:?}");
    assert_close("eager", &here, &eager, 1e-3);
    assert_close("compiled", &here, &planned, 1e-3);
    assert_eq!(gpu.in_use(), Bytes::ZERO);
}

/// More runs with numbers than there are slots for numbers, none of which is waited for.
#[test]
fn thousands_of_ops_are_enqueued_in_order() {
    let Some(gpu) = gpu(Bytes::mib(64)) else { return };
    let sum = gpu.scope(|| {
        let mut x = Tensor::zeros([8])?;
        for i in 0..10_000 {
            x = x.add_scalar((i % 7) as f32)?;
        }
        x.to_vec::<f32>()
    });
    let expected: u32 = (0..10_000).map(|i| i % 7).sum();
    assert_eq!(sum.unwrap(), [expected as f32; 8]);
}

#[test]
fn limits_hold_on_the_gpu_and_tensors_move() {
    let Some(gpu) = gpu(Bytes::mib(64)) else { return };
    gpu.scope(|| {
        let mut kept = Vec::new();
        let refused = loop {
            match Tensor::ones([1024, 1024]) {
                Ok(tensor) => kept.push(tensor),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::OverLimit(_)), "{refused}");
        assert!((8..=16).contains(&kept.len()), "{}", kept.len());
        kept.truncate(2);
        assert_eq!(kept[1].sum()?.item::<f32>()?, 1024.0 * 1024.0, "nothing is lost");
        let tape = Tape::new();
        tape.watch(&kept[0]);
        let total = kept[0].mul(&kept[1])?.sum()?;
        assert_eq!(tape.gradient(&total, &[&kept[0]])?[0].sum()?.item::<f32>()?, 1024.0 * 1024.0);
        Ok::<(), Error>(())
    })
    .unwrap();
    assert_eq!(gpu.in_use(), Bytes::ZERO);

    let (moved, log) = log_placement(|| {
        let x = device("cpu", || Tensor::arange(4))??;
        x.to("cuda:0")?.mul_scalar(2.0)?.to("cpu")?.to_vec::<f32>()
    });
    assert_eq!(moved.unwrap(), [0.0, 2.0, 4.0, 6.0]);
    assert_eq!(log.to_string(), "cpu: 1 arange\ncuda:0: 1 mul\ncpu to cuda:0: 16 B\ncuda:0 to cpu: 16 B");
}

/// Pinned host memory has the same allocators.
#[test]
fn blocks_of_pinned_memory_are_allocated_within_a_limit() {
    if gpu(Bytes::mib(1)).is_none() {
        return;
    }
    let device: Arc<dyn Device> = plimsoll::open_device(DeviceSpec::Cuda(0)).unwrap();
    let segments = PinnedSegments::new(device);
    let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(4)), ..BestFitOptions::default() };
    let allocator = BestFit::new(segments.clone(), options).unwrap();
    let request = |size| Request::new(size, OwnerId::named("batch"));
    let blocks: Vec<Block> = (0..4).map(|_| allocator.allocate(request(Bytes::kib(512))).unwrap()).collect();
    for (i, block) in blocks.iter().enumerate() {
        let range = allocator.range(block);
        segments.with(range.segment, |bytes| bytes[range.offset.get()..][..range.size.get()].fill(i as u8)).unwrap();
    }
    for (i, block) in blocks.iter().enumerate() {
        let range = allocator.range(block);
        let intact = segments.with(range.segment, |bytes| bytes[range.offset.get()..][..range.size.get()].iter().all(|b| *b == i as u8));
        assert_eq!(intact, Some(true));
    }
    assert!(allocator.allocate(request(Bytes::mib(3))).is_err());
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    assert_eq!(allocator.stats().in_use, Bytes::ZERO);
}
