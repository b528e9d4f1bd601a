//! Compiled functions within a budget, and what a traced closure may not do.

use plimsoll::Bytes;
use plimsoll::eager::{Compiled, Context, Error, Result, Tensor, compile, compile_with_state, value_and_grad};

/// The gradient of a deep network with wide activations, within a budget.
fn deep(budget: Bytes, w: &Tensor, x: &Tensor) -> Result<Compiled> {
    let loss = |x: &Tensor, w: &Tensor| {
        let mut hidden = x.clone();
        for _ in 0..8 {
            hidden = hidden.matmul(w)?.tanh()?;
        }
        hidden.square()?.mean()
    };
    compile(
        |t| {
            let (value, gradients) = value_and_grad(|p: &[Tensor]| loss(&t[1], &p[0]))(&t[..1])?;
            Ok(vec![value, gradients[0].clone()])
        },
        &[w, x],
        budget,
    )
}

#[test]
fn a_smaller_budget_recomputes_and_changes_no_bit() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(64))?;
    context.scope(|| {
        let (w, x) = (Tensor::normal([64, 64])?.mul_scalar(0.15)?, Tensor::uniform([512, 64])?);
        let ample = deep(Bytes::mib(64), &w, &x)?;
        let refused = deep(Bytes::kib(64), &w, &x).err().expect("that is less than two activations");
        let Error::Infeasible { least, .. } = refused else { panic!("{refused}") };
        assert!(least < ample.peak(), "{least} of {}", ample.peak());
        let tight = deep(least, &w, &x)?;
        assert!(tight.peak() <= least, "{} within {least}", tight.peak());
        assert!(!tight.plan().programs[0].recomputation.nodes.is_empty());
        let (a, b) = (ample.run(&[&w, &x])?, tight.run(&[&w, &x])?);
        for (a, b) in a.iter().zip(&b) {
            assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        }
        Ok(())
    })
}

#[test]
fn the_peak_is_what_a_run_takes() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(64))?;
    context.scope(|| {
        let (w, x) = (Tensor::normal([64, 64])?, Tensor::uniform([512, 64])?);
        let function = deep(Bytes::mib(8), &w, &x)?;
        let before = context.in_use();
        let results = function.run(&[&w, &x])?;
        assert_eq!(context.stats().peak, before + function.peak());
        drop(results);
        assert_eq!(context.in_use(), before);
        Ok(())
    })
}

#[test]
fn values_are_not_known_while_a_closure_is_traced() -> Result<()> {
    let x = Tensor::ones([2])?;
    let error = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        compile(|t| Ok(vec![f(&t[0])?]), &[&x], Bytes::mib(1)).err().expect("it is refused").to_string()
    };
    let text = error(&|t| Tensor::scalar(t.sum()?.item()?));
    assert!(text.starts_with("to_vec: while a closure is traced, tensors have shapes but no values"), "{text}");
    assert!(error(&|_| Tensor::normal([2])).starts_with("normal: while a closure is traced"));
    let nested = error(&|t| Ok(compile(|t| Ok(t.to_vec()), &[t], Bytes::mib(1))?.run(&[t])?.swap_remove(0)));
    assert!(nested.starts_with("context: a tensor from inside of a traced closure has no values"), "{nested}");

    let mut kept = None;
    compile(
        |t| {
            kept = Some(t[0].clone());
            Ok(vec![t[0].clone()])
        },
        &[&x],
        Bytes::mib(1),
    )?;
    let kept = kept.expect("the closure ran");
    assert_eq!(
        (&kept + &x).unwrap_err().to_string(),
        "add: a tensor from inside of a traced closure has no values; return it from the closure instead"
    );
    assert_eq!((&x + &x)?.to_vec::<f32>()?, [2.0, 2.0], "ops run again after a refused trace");
    Ok(())
}

#[test]
fn arguments_and_states_keep_their_types() -> Result<()> {
    let x = Tensor::ones([2])?;
    let double = compile(|t| Ok(vec![(&t[0] * 2.0)?]), &[&x], Bytes::mib(1))?;
    let text = |result: Result<Vec<Tensor>>| result.expect_err("it is refused").to_string();
    assert_eq!(text(double.run(&[&Tensor::ones([3])?])), "argument 0 is f32[3], but the function was compiled for f32[2]");
    assert_eq!(text(double.run(&[])), "compiled function: the function takes 1 tensors, but got 0");
    let grown = compile_with_state(|s, _| Ok((vec![s[0].sum()?], vec![])), &[&x], &[], Bytes::mib(1));
    assert_eq!(grown.err().expect("refused").to_string(), "compile: the closure returned f32[] for state 0, which is f32[2]");
    Ok(())
}

#[test]
fn captured_tensors_are_read_in_every_run() -> Result<()> {
    let (x, shift) = (Tensor::ones([2])?, Tensor::from_slice(&[5.0, 7.0], [2])?);
    let function = compile(|t| Ok(vec![(&t[0] + &shift)?, shift.clone(), t[0].clone()]), &[&x], Bytes::mib(1))?;
    let results = function.run(&[&Tensor::zeros([2])?])?;
    assert_eq!(results[0].to_vec::<f32>()?, [5.0, 7.0]);
    assert_eq!(results[1].to_vec::<f32>()?, [5.0, 7.0]);
    assert_eq!(results[2].to_vec::<f32>()?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn random_numbers_differ_between_runs_of_a_compiled_function() -> Result<()> {
    let x = Tensor::ones([64])?;
    let function = compile(|t| Ok(vec![t[0].dropout(0.5)?, t[0].dropout(0.5)?]), &[&x], Bytes::mib(1))?;
    let (first, second) = (function.run(&[&x])?, function.run(&[&x])?);
    assert_ne!(first[0].to_vec::<f32>()?, first[1].to_vec::<f32>()?, "two ops have two streams");
    assert_ne!(first[0].to_vec::<f32>()?, second[0].to_vec::<f32>()?);
    Ok(())
}
