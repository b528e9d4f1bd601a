//! Eager and compiled functions compute the same bits.

use plimsoll::Bytes;
use plimsoll::eager::{Padding, Result, Tensor, compile, compile_with_state, value_and_grad};
use proptest::prelude::*;

/// An op of a random program on matrices of one size.
#[derive(Clone, Debug)]
enum Step {
    Unary(u8, usize),
    Binary(u8, usize, usize),
    Number(u8, usize, f32),
    Shape(u8, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..9u8, 0..8usize).prop_map(|(op, x)| Step::Unary(op, x)),
        (0..7u8, 0..8usize, 0..8usize).prop_map(|(op, x, y)| Step::Binary(op, x, y)),
        (0..6u8, 0..8usize, -2.0f32..2.0).prop_map(|(op, x, number)| Step::Number(op, x, number)),
        (0..6u8, 0..8usize).prop_map(|(op, x)| Step::Shape(op, x)),
    ]
}

/// Runs a random program on square matrices; every step's result is one.
fn program(steps: &[Step], inputs: &[Tensor]) -> Result<Tensor> {
    let mut values = inputs.to_vec();
    let n = inputs[0].dims()[0];
    for step in steps {
        let pick = |i: usize| &values[i % values.len()];
        let value = match step {
            Step::Unary(op, x) => {
                let x = pick(*x);
                match op {
                    0 => x.tanh()?,
                    1 => x.sigmoid()?,
                    2 => x.relu()?,
                    3 => x.gelu()?,
                    4 => x.abs()?.add_scalar(0.1)?.sqrt()?,
                    5 => x.softmax(1)?,
                    6 => x.log_softmax(0)?,
                    7 => x.square()?,
                    _ => x.clamp(-1.0, 1.0)?,
                }
            }
            Step::Binary(op, x, y) => {
                let (x, y) = (pick(*x), pick(*y));
                match op {
                    0 => (x + y)?,
                    1 => (x - y)?,
                    2 => (x * y)?,
                    3 => x.matmul(y)?.mul_scalar(0.25)?,
                    4 => x.maximum(y)?,
                    5 => (x / &y.square()?.add_scalar(1.0)?)?,
                    _ => x.lt(y)?.select(x, y)?,
                }
            }
            Step::Number(op, x, number) => {
                let x = pick(*x);
                match op {
                    0 => (x + *number)?,
                    1 => (x * *number)?,
                    2 => x.div_scalar(number + 3.0)?,
                    3 => x.scalar_sub(*number)?,
                    4 => x.maximum_scalar(*number)?,
                    _ => x.sub_scalar(*number)?,
                }
            }
            Step::Shape(op, x) => {
                let x = pick(*x);
                match op {
                    0 => x.t()?,
                    1 => Tensor::concat(&[&x.slice(0, 1..n)?, &x.slice(0, 0..1)?], 0)?,
                    2 => (x - &x.mean_keepdim(&[1])?)?,
                    3 => x.slice(1, 1..n)?.pad(1, 0, 1)?,
                    4 => x.sum_axes(&[0])?.broadcast_to([n, n])?,
                    _ => x.reshape([n * n])?.reshape([n, n])?,
                }
            }
        };
        values.push(value);
    }
    values.last().expect("there are inputs").mean()
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u32>> {
    tensors.iter().map(|tensor| tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn eager_and_compiled_programs_have_the_same_bits(steps in prop::collection::vec(step(), 1..12), n in 2..9usize) {
        let x: Vec<f32> = (0..n * n).map(|i| ((i * 29 + 7) % 31) as f32 / 16.0 - 1.0).collect();
        let y: Vec<f32> = (0..n * n).map(|i| ((i * 17 + 3) % 37) as f32 / 18.0 - 1.0).collect();
        let inputs = [Tensor::from_slice(&x, [n, n]).unwrap(), Tensor::from_slice(&y, [n, n]).unwrap()];
        let both = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
            let (value, gradients) = value_and_grad(|inputs: &[Tensor]| program(&steps, inputs))(inputs)?;
            Ok([value].into_iter().chain(gradients).collect())
        };
        let eager = both(&inputs).unwrap();
        let compiled = compile(|inputs| both(inputs), &[&inputs[0], &inputs[1]], Bytes::mib(4)).unwrap();
        let again = compiled.run(&[&inputs[0], &inputs[1]]).unwrap();
        prop_assert_eq!(bits(&eager), bits(&again));
    }
}

#[test]
fn a_training_step_of_a_small_network_has_the_same_bits() -> Result<()> {
    let image = Tensor::uniform([8, 6, 6, 1])?;
    let labels = Tensor::from_slice(&[0, 1, 2, 0, 1, 2, 0, 1], [8])?;
    let state = [Tensor::normal([3, 3, 1, 4])?.mul_scalar(0.3)?, Tensor::zeros([4])?, Tensor::normal([36, 3])?.mul_scalar(0.2)?];
    let step = |state: &[Tensor], batch: &[Tensor]| -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let loss = |p: &[Tensor]| {
            let hidden = batch[0].conv2d(&p[0], 1, Padding::Same)?.add(&p[1])?.relu()?.max_pool2d(2, 2, Padding::Valid)?;
            hidden.flatten()?.matmul(&p[2])?.cross_entropy(&batch[1])
        };
        let (loss, gradients) = value_and_grad(loss)(state)?;
        let updated = state.iter().zip(&gradients).map(|(p, g)| p - &(g * 0.1)?).collect::<Result<Vec<_>>>()?;
        Ok((updated, vec![loss]))
    };
    let compiled = compile_with_state(step, &state.iter().collect::<Vec<_>>(), &[&image, &labels], Bytes::mib(4))?;
    let (mut eager, mut losses) = (state.to_vec(), Vec::new());
    for _ in 0..5 {
        let (new, loss) = step(&eager, &[image.clone(), labels.clone()])?;
        let again = compiled.run(&[&image, &labels])?;
        assert_eq!(bits(&loss), bits(&again));
        assert_eq!(bits(&new), bits(&compiled.state()?));
        losses.push(loss[0].item::<f32>()?);
        eager = new;
    }
    assert!(losses[4] < losses[0], "{losses:?}");
    Ok(())
}
