//! The programs of `docs/eager.md`.

use plimsoll::Bytes;
use plimsoll::eager::{Context, Result, Tape, Tensor, compile_with_state, grad, value_and_grad};

#[test]
fn tensors() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], [2, 2])?;
    let w = Tensor::normal([2, 3])?;
    let y = x.matmul(&w)?.relu()?;
    let scaled = (&y * 2.0)?;
    let mean: f32 = scaled.mean()?.item()?;
    assert!(mean >= 0.0 && y.to_string().ends_with("f32[2, 3]"));
    Ok(())
}

#[test]
fn gradients_and_compiled_functions() -> Result<()> {
    let (x, target, w) = (Tensor::uniform([8, 3])?, Tensor::ones([8, 2])?, Tensor::zeros([3, 2])?);
    let loss = |p: &[Tensor]| x.matmul(&p[0])?.mse_loss(&target);
    let (value, gradients) = value_and_grad(loss)(std::slice::from_ref(&w))?;
    let second = grad(|p: &[Tensor]| grad(loss)(p)?[0].square()?.sum())(std::slice::from_ref(&w))?;
    assert_eq!((value.item::<f32>()?, gradients[0].dims(), second[0].dims()), (1.0, vec![3, 2], vec![3, 2]));

    let tape = Tape::new();
    tape.watch(&w);
    let value = loss(std::slice::from_ref(&w))?;
    assert!(tape.held_bytes().iter().any(|(op, _)| *op == "matmul"));
    assert_eq!(tape.gradient(&value, &[&w])?[0].to_vec::<f32>()?, gradients[0].to_vec::<f32>()?);

    let step = compile_with_state(
        |state, batch| {
            let (loss, gradients) = value_and_grad(|p: &[Tensor]| batch[0].matmul(&p[0])?.mse_loss(&batch[1]))(state)?;
            Ok((vec![(&state[0] - &(&gradients[0] * 0.1)?)?], vec![loss]))
        },
        &[&w],
        &[&x, &target],
        Bytes::mib(16),
    )?;
    // Mostly the workspace of the products.
    assert!(step.peak() < Bytes::mib(1), "{}", step.peak());
    let first: f32 = step.run(&[&x, &target])?[0].item()?;
    let second: f32 = step.run(&[&x, &target])?[0].item()?;
    assert!(second < first);
    assert_eq!(step.state()?[0].dims(), [3, 2]);
    Ok(())
}

#[test]
fn memory() -> Result<()> {
    let context = Context::cpu(4, Bytes::mib(512))?;
    let kept = context.scope(|| Tensor::ones([4]))?;
    assert!(context.stats().to_string().contains("fragmentation"));
    drop(kept);
    Ok(())
}
