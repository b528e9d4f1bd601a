//! Gradients against finite differences and against the graph's own.

use plimsoll::eager::{Error, Padding, Result, Tape, Tensor, custom_gradient, grad, stop_gradient, value_and_grad};

/// Numbers without a pattern, away from kinks.
fn data(dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 11 + 5) % 23) as f32 / 11.0 - 0.97).collect();
    Tensor::from_slice(&values, dims.iter().copied()).unwrap()
}

/// Compares a gradient with central differences in every element.
#[track_caller]
fn check(name: &str, inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let weighted = |inputs: &[Tensor]| {
        let y = f(inputs)?;
        let weights: Vec<f32> = (0..y.len()).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.4).collect();
        (&y * &Tensor::from_slice(&weights, y.dims())?)?.sum()
    };
    let gradients = grad(weighted)(inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let nudge = 1e-2;
    for (i, input) in inputs.iter().enumerate() {
        let values: Vec<f32> = input.to_vec().unwrap();
        let gradient: Vec<f32> = gradients[i].to_vec().unwrap();
        for element in 0..values.len() {
            let at = |offset: f32| {
                let mut moved = values.clone();
                moved[element] += offset;
                let mut inputs = inputs.to_vec();
                inputs[i] = Tensor::from_slice(&moved, input.dims()).unwrap();
                weighted(&inputs).unwrap().item::<f32>().unwrap()
            };
            let slope = (at(nudge) - at(-nudge)) / (2.0 * nudge);
            let allowed = 0.01 + 0.02 * slope.abs();
            assert!((gradient[element] - slope).abs() < allowed, "{name}, input {i}, element {element}: {} vs {slope}", gradient[element]);
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    let (x, y) = (data(&[3, 4], 1), data(&[3, 4], 2));
    let positive = x.abs().unwrap().add_scalar(0.5).unwrap();
    let one = |name: &str, x: &Tensor, f: fn(&Tensor) -> Result<Tensor>| check(name, std::slice::from_ref(x), |p| f(&p[0]));
    one("neg", &x, Tensor::neg);
    one("abs", &x, Tensor::abs);
    one("exp", &x, Tensor::exp);
    one("tanh", &x, Tensor::tanh);
    one("sigmoid", &x, Tensor::sigmoid);
    one("softplus", &x, Tensor::softplus);
    one("erf", &x, Tensor::erf);
    one("relu", &x, Tensor::relu);
    one("gelu", &x, Tensor::gelu);
    one("silu", &x, Tensor::silu);
    one("square", &x, Tensor::square);
    one("log", &positive, Tensor::log);
    one("sqrt", &positive, Tensor::sqrt);
    one("reciprocal", &positive, Tensor::reciprocal);
    one("clamp", &x, |x| x.clamp(-0.5, 0.5));
    one("add_scalar", &x, |x| x.add_scalar(2.0));
    one("mul_scalar", &x, |x| x.mul_scalar(3.0));
    one("scalar_sub", &x, |x| x.scalar_sub(1.0));
    one("scalar_div", &positive, |x| x.scalar_div(2.0));
    one("sum", &x, Tensor::sum);
    one("mean", &x, |x| x.mean_axes(&[0]));
    one("var", &x, |x| x.var_axes(&[1]));
    one("max", &x, |x| x.max_axes(&[1]));
    one("min", &x, Tensor::min);
    one("logsumexp", &x, |x| x.logsumexp_keepdim(&[1]));
    one("softmax", &x, |x| x.softmax(1));
    one("softmax of the first axis", &x, |x| x.softmax(0));
    one("log_softmax", &x, |x| x.log_softmax(1));
    one("reshape", &x, |x| x.reshape([2, 6]));
    one("transpose", &x, Tensor::t);
    one("slice", &x, |x| x.slice(1, 1..3));
    one("pad", &x, |x| x.pad(0, 1, 2));
    one("broadcast_to", &x, |x| x.slice(0, 0..1)?.broadcast_to([5, 4]));
    one("gather", &x, |x| x.gather(&Tensor::from_slice(&[2, 0, 2], [3])?));
    one("select", &x, |x| x.gt_scalar(0.0)?.select(x, &x.square()?));
    one("cross_entropy", &x, |x| x.cross_entropy(&Tensor::from_slice(&[3, 0, 1], [3])?));
    let pair = [x.clone(), y.clone()];
    check("add", &pair, |p| &p[0] + &p[1]);
    check("add_scaled", &pair, |p| p[0].add_scaled(&p[1], -1.5));
    check("sub", &pair, |p| &p[0] - &p[1]);
    check("mul", &pair, |p| &p[0] * &p[1]);
    check("div", &[x.clone(), positive], |p| &p[0] / &p[1]);
    check("maximum", &pair, |p| p[0].maximum(&p[1]));
    check("minimum", &pair, |p| p[0].minimum(&p[1]));
    check("mse_loss", &pair, |p| p[0].mse_loss(&p[1]));
    check("binary_cross_entropy", std::slice::from_ref(&x), |p| p[0].binary_cross_entropy(&y.sigmoid()?));
    check("concat", &pair, |p| Tensor::concat(&[&p[0], &p[1], &p[0]], 1));
    check("stack", &pair, |p| Tensor::stack(&[&p[0], &p[1]], 1));
    check("broadcast add", &[x.clone(), data(&[4], 3)], |p| &p[0] + &p[1]);
    check("broadcast mul", &[data(&[3, 1], 4), data(&[1, 4], 5)], |p| &p[0] * &p[1]);
    check("matmul", &[x.clone(), data(&[4, 2], 6)], |p| p[0].matmul(&p[1]));
    check("matmul of rows", &[data(&[2, 2, 3], 8), data(&[3, 2], 6)], |p| p[0].matmul(&p[1]));
    check("layer_norm", &[x, data(&[4], 7), data(&[4], 8)], |p| p[0].layer_norm(&p[1], &p[2], 0.1));
    let image = data(&[1, 4, 4, 2], 9);
    check("batch_norm", &[image.clone(), data(&[2], 7), data(&[2], 8)], |p| p[0].batch_norm(&p[1], &p[2], 0.1));
    check("conv2d", &[image.clone(), data(&[3, 3, 2, 2], 10)], |p| p[0].conv2d(&p[1], 1, Padding::Same));
    check("grouped conv2d", &[image.clone(), data(&[2, 2, 1, 2], 11)], |p| p[0].conv2d(&p[1], 2, Padding::Valid));
    check("avg_pool2d", std::slice::from_ref(&image), |p| p[0].avg_pool2d(2, 2, Padding::Valid));
    let distinct = Tensor::arange(32).unwrap().mul_scalar(0.1).unwrap().reshape([1, 4, 4, 2]).unwrap();
    check("max_pool2d", &[distinct], |p| p[0].max_pool2d(2, 2, Padding::Valid));
    let (q, k, v) = (data(&[1, 3, 4], 12), data(&[1, 3, 4], 13), data(&[1, 3, 4], 14));
    check("attention", &[q, k, v], |p| p[0].attention(&p[1], &p[2], 2, false));
}

#[test]
fn second_gradients_match_finite_differences_of_first() {
    let x = data(&[2, 3], 1);
    let first =
        |f: fn(&Tensor) -> Result<Tensor>| move |p: &[Tensor]| grad(|p: &[Tensor]| f(&p[0])?.sum())(p).map(|mut g| g.swap_remove(0));
    for (name, f) in [
        ("tanh", Tensor::tanh as fn(&Tensor) -> Result<Tensor>),
        ("sigmoid", Tensor::sigmoid),
        ("exp", Tensor::exp),
        ("softmax", |x| x.softmax(1)?.square()),
        ("matmul", |x| x.matmul(&x.t()?)?.tanh()),
        ("layer_norm", |x| x.layer_norm(&Tensor::ones([3])?, &Tensor::zeros([3])?, 0.5)?.square()),
        ("logsumexp", |x| x.logsumexp_axes(&[1])),
        ("conv2d", |x| x.reshape([1, 2, 3, 1])?.conv2d(&Tensor::ones([2, 2, 1, 1])?, 1, Padding::Valid)?.tanh()),
    ] {
        check(name, std::slice::from_ref(&x), first(f));
    }
}

#[test]
fn third_gradients_of_a_polynomial_are_exact() -> Result<()> {
    let power = |x: &[Tensor]| (&(&x[0] * &x[0])? * &(&x[0] * &x[0])?)?.sum();
    let first = grad(power);
    let second = grad(|x: &[Tensor]| first(x)?[0].sum());
    let third = grad(|x: &[Tensor]| second(x)?[0].sum());
    let x = [Tensor::from_slice(&[2.0, -1.0], [2])?];
    assert_eq!(first(&x)?[0].to_vec::<f32>()?, [32.0, -4.0]);
    assert_eq!(second(&x)?[0].to_vec::<f32>()?, [48.0, 12.0]);
    assert_eq!(third(&x)?[0].to_vec::<f32>()?, [48.0, -24.0]);
    Ok(())
}

#[test]
fn an_op_without_a_second_gradient_is_refused_by_name() -> Result<()> {
    let image = data(&[1, 4, 4, 1], 1);
    let first = grad(|x: &[Tensor]| x[0].max_pool2d(2, 2, Padding::Valid)?.square()?.sum());
    assert_eq!(first(std::slice::from_ref(&image))?[0].dims(), [1, 4, 4, 1]);
    let error = grad(|x: &[Tensor]| first(x)?[0].square()?.sum())(&[image]).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("max_pool at ") && text.ends_with("the gradient of max pooling cannot be differentiated again"), "{text}");
    assert!(matches!(error, Error::NoGradient { .. }));
    Ok(())
}

#[test]
fn constants_have_no_gradient() -> Result<()> {
    let (x, y) = (data(&[3], 1), data(&[3], 2));
    let gradients = grad(|p: &[Tensor]| (&p[0] * &stop_gradient(&p[0]))?.sum())(&[x.clone(), y])?;
    assert_eq!(gradients[0].to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(gradients[1].to_vec::<f32>()?, [0.0; 3], "the loss does not depend on it");
    let error = grad(|p: &[Tensor]| p[0].square())(&[x]).unwrap_err();
    assert_eq!(error.to_string(), "gradients are taken of a single number, but the loss is f32[3]; sum or average it first");
    Ok(())
}

#[test]
fn intermediate_tensors_have_gradients_too() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, 2.0], [2])?;
    let tape = Tape::new();
    tape.watch(&x);
    let middle = (&x * 3.0)?;
    let loss = middle.square()?.sum()?;
    let gradients = tape.gradient(&loss, &[&middle, &x])?;
    assert_eq!(gradients[0].to_vec::<f32>()?, [6.0, 12.0]);
    assert_eq!(gradients[1].to_vec::<f32>()?, [18.0, 36.0]);
    Ok(())
}

#[test]
fn custom_gradients_replace_those_of_the_ops() -> Result<()> {
    let x = Tensor::from_slice(&[0.2, 1.7], [2])?;
    let clipped = |x: &Tensor| custom_gradient(&[x], |x| Ok(vec![x[0].square()?]), |dy| Ok(vec![dy[0].clamp(-1.0, 1.0)?]));
    let (value, gradients) = value_and_grad(|p: &[Tensor]| (&clipped(&p[0])?[0] * 5.0)?.sum())(std::slice::from_ref(&x))?;
    assert!((value.item::<f32>()? - 5.0 * (0.04 + 2.89)).abs() < 1e-4);
    assert_eq!(gradients[0].to_vec::<f32>()?, [1.0, 1.0]);
    let wrong = |x: &Tensor| custom_gradient(&[x], |x| Ok(vec![x[0].sum()?]), |dy| Ok(vec![dy[0].clone()]));
    let error = grad(|p: &[Tensor]| wrong(&p[0])?[0].sum())(&[x]).unwrap_err();
    assert_eq!(error.to_string(), "custom_gradient: the gradient of input 0 is f32[], but the input is f32[2]");
    Ok(())
}
