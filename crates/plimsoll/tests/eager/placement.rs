//! Device scopes, the placement log, leaks and compaction.

use plimsoll::Bytes;
use plimsoll::eager::{Context, Result, Tensor, device, log_placement};

#[test]
fn the_log_counts_ops_and_copies() -> Result<()> {
    let other = Context::cpu(1, Bytes::mib(1))?;
    let (result, log) = log_placement(|| {
        let x = device("cpu", || Tensor::ones([4]))??;
        let (inner, inner_log) = log_placement(|| x.tanh()?.tanh());
        assert_eq!(inner_log.to_string(), "cpu: 2 tanh");
        inner?.to_context(&other)
    });
    result?;
    assert_eq!(log.to_string(), "cpu: 1 full, 2 tanh\ncpu to cpu: 16 B");
    Ok(())
}

#[test]
fn devices_that_do_not_exist_are_refused_by_name() {
    let error = device("tpu", || ()).unwrap_err().to_string();
    assert_eq!(error, "there is no device `tpu`; there are `cpu` and `cuda:0`, `cuda:1`, …");
}

#[test]
fn snapshots_name_the_line_of_what_grew() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(8))?;
    context.scope(|| {
        let mut kept = Vec::new();
        let before = context.snapshot();
        for _ in 0..3 {
            kept.push(Tensor::ones([256])?);
            drop(Tensor::ones([512])?);
        }
        let grown = context.snapshot().diff(&before);
        assert_eq!((grown.len(), grown[0].blocks, grown[0].bytes), (1, 3, 3 * 1024));
        assert!(grown[0].location.contains("placement.rs"), "{}", grown[0]);
        Ok(())
    })
}

#[test]
fn compaction_moves_live_tensors_while_others_compute() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(8))?;
    let tensors: Vec<Tensor> = context.scope(|| (0..64).map(|i| Tensor::full([256], i as f32)).collect::<Result<_>>())?;
    let kept: Vec<Tensor> = tensors.into_iter().step_by(2).collect();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for _ in 0..200 {
                for (i, tensor) in kept.iter().enumerate() {
                    assert_eq!(tensor.add_scalar(1.0)?.to_vec::<f32>()?, [2.0 * i as f32 + 1.0; 256]);
                }
            }
            Ok::<(), plimsoll::eager::Error>(())
        });
        for _ in 0..50 {
            context.compact();
        }
        worker.join().expect("no thread panics")
    })?;
    context.compact();
    assert!(context.stats().fragmentation() < 0.5, "{}", context.stats());
    assert!(context.give_back()? <= Bytes::mib(8));
    Ok(())
}
