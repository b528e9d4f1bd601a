//! Eager tensors: explore, take gradients, compile, and stay within a byte limit.
//!
//! Trains a small network eagerly with a tape, compiles the same closure, shows that both compute the same bits,
//! prints the statistics of the allocator, and recovers from an allocation over the limit.
//!
//! ```text
//! cargo run --release -p plimsoll --example eager [-- STEPS]
//! ```

use plimsoll::Bytes;
use plimsoll::eager::{Context, Error, Result, Tape, Tensor, compile_with_state, value_and_grad};

/// Points of the training data.
const POINTS: usize = 256;
/// Units of the hidden layer.
const HIDDEN: usize = 64;

fn main() -> Result<()> {
    let steps = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(200);
    let losses = run(steps, Bytes::mib(4))?;
    println!("loss {:.4} before, {:.4} after {steps} steps", losses[0], losses[losses.len() - 1]);
    Ok(())
}

/// Trains for some steps within a limit. Returns the loss of every step.
pub fn run(steps: usize, limit: Bytes) -> Result<Vec<f32>> {
    let context = Context::cpu(std::thread::available_parallelism().map_or(1, usize::from).min(4), limit)?;
    context.scope(|| {
        // Two rings: a point belongs to class 1 if it is inside of the inner one.
        let points = Tensor::uniform([POINTS, 2])?.mul_scalar(4.0)?.sub_scalar(2.0)?;
        let radius = points.square()?.sum_axes(&[1])?;
        let labels = radius.lt_scalar(1.2)?;
        println!("{points}\n");

        let initial = [
            Tensor::normal([2, HIDDEN])?.mul_scalar(0.7)?,
            Tensor::zeros([HIDDEN])?,
            Tensor::normal([HIDDEN, 2])?.mul_scalar(0.2)?,
            Tensor::zeros([2])?,
        ];

        // A tape keeps what the backward pass reads, and says what that is.
        let tape = Tape::new();
        initial.iter().for_each(|parameter| tape.watch(parameter));
        let value = loss(&initial, &points, &labels)?;
        println!("the tape holds for the backward pass:");
        tape.held_bytes().iter().for_each(|(op, bytes)| println!("  {op:<14} {bytes}"));
        let gradients = tape.gradient(&value, &initial.iter().collect::<Vec<_>>())?;
        println!("  gradients of {} tensors; nothing is held any more\n", gradients.len());
        drop((value, gradients));

        // The same closure, eagerly and compiled.
        let step = |state: &[Tensor], batch: &[Tensor]| {
            let (value, gradients) = value_and_grad(|p: &[Tensor]| loss(p, &batch[0], &batch[1]))(state)?;
            let updated = state.iter().zip(&gradients).map(|(p, g)| p - &(g * 0.5)?).collect::<Result<Vec<_>>>()?;
            Ok((updated, vec![value]))
        };
        let compiled = compile_with_state(step, &initial.iter().collect::<Vec<_>>(), &[&points, &labels], Bytes::mib(1))?;
        println!("compiled: a step takes exactly {}\n", compiled.peak());

        let (mut state, mut losses) = (initial.to_vec(), Vec::new());
        for i in 0..steps.max(1) {
            let (updated, eager) = step(&state, &[points.clone(), labels.clone()])?;
            let planned = compiled.run(&[&points, &labels])?;
            let (eager, planned): (f32, f32) = (eager[0].item()?, planned[0].item()?);
            assert_eq!(eager.to_bits(), planned.to_bits(), "step {i}: eager and compiled agree to the bit");
            losses.push(eager);
            state = updated;
        }
        println!("eager and compiled steps had the same losses, to the bit\n\n{}\n", context.stats());

        // Over the limit, an op fails and nothing is lost.
        let mut kept = Vec::new();
        let refused = loop {
            match Tensor::zeros([256, 256]) {
                Ok(tensor) => kept.push(tensor),
                Err(error) => break error,
            }
        };
        println!("after {} tensors: {refused}\n", kept.len());
        if !matches!(refused, Error::OverLimit(_)) {
            return Err(refused);
        }
        kept.clear();
        println!("dropped them, and one more fits: {:?}", Tensor::zeros([256, 256])?);
        Ok(losses)
    })
}

/// The mean cross-entropy of a network with one hidden layer.
fn loss(p: &[Tensor], points: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let hidden = points.matmul(&p[0])?.add(&p[1])?.tanh()?;
    hidden.matmul(&p[2])?.add(&p[3])?.cross_entropy(labels)
}
