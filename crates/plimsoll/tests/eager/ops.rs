//! Values of ops, and errors by text.

use plimsoll::Bytes;
use plimsoll::eager::DType;
use plimsoll::eager::{Context, Error, Padding, Result, Tensor};

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[test]
fn arithmetic_broadcasts() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    let row = Tensor::from_slice(&[10.0, 20.0, 30.0], [3])?;
    assert_eq!(numbers(&(&x + &row)?), [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
    assert_eq!(numbers(&(&(&x * 2.0)? - &row)?), [-8.0, -16.0, -24.0, -2.0, -10.0, -18.0]);
    assert_eq!(numbers(&(1.0 - &row)?), [-9.0, -19.0, -29.0]);
    assert_eq!(numbers(&(60.0 / &row)?), [6.0, 3.0, 2.0]);
    assert_eq!(numbers(&(-&row)?), [-10.0, -20.0, -30.0]);
    // Errors pass through chains.
    assert_eq!(numbers(&((&x * &x) + &row)?), [11.0, 24.0, 39.0, 26.0, 45.0, 66.0]);
    assert_eq!(numbers(&x.clamp(2.0, 5.0)?), [2.0, 2.0, 3.0, 4.0, 5.0, 5.0]);
    assert_eq!(numbers(&x.powf(3.0)?)[2], 27.0);
    assert_eq!(x.le_scalar(3.0)?.to_vec::<bool>()?, [true, true, true, false, false, false]);
    assert_eq!(numbers(&x.gt_scalar(3.0)?.select(&x, &row)?), [10.0, 20.0, 30.0, 4.0, 5.0, 6.0]);
    Ok(())
}

#[test]
fn every_number_is_a_parameter_of_one_program() -> Result<()> {
    let context = Context::cpu(1, Bytes::mib(1))?;
    context.scope(|| {
        let x = Tensor::ones([3])?;
        let before = context.compiled_ops();
        for i in 0..10 {
            assert_eq!(numbers(&(&x * i as f32)?), [i as f32; 3]);
        }
        assert_eq!(context.compiled_ops(), before + 1);
        Ok(())
    })
}

#[test]
fn movement_is_in_row_major_order() -> Result<()> {
    let x = Tensor::arange(6)?.reshape([2, 3])?;
    assert_eq!(numbers(&x.t()?), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(numbers(&x.slice(1, 1..3)?), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(numbers(&x.get(1)?), [3.0, 4.0, 5.0]);
    assert_eq!(numbers(&Tensor::concat(&[&x, &x], 1)?)[..6], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    assert_eq!(Tensor::stack(&[&x, &x, &x], 0)?.dims(), [3, 2, 3]);
    assert_eq!(numbers(&x.pad(0, 1, 0)?)[..4], [0.0, 0.0, 0.0, 0.0]);
    assert_eq!(x.unsqueeze(1)?.dims(), [2, 1, 3]);
    assert_eq!(x.unsqueeze(1)?.squeeze(1)?.dims(), [2, 3]);
    assert_eq!(x.flatten()?.dims(), [2, 3]);
    assert_eq!(numbers(&x.slice(0, 0..1)?.broadcast_to([2, 3])?), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    let ids = Tensor::from_slice(&[1, 0, 7], [3])?;
    assert_eq!(numbers(&x.gather(&ids)?), [3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(numbers(&ids.one_hot(2)?), [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn reductions_remove_or_keep_axes() -> Result<()> {
    let x = Tensor::arange(6)?.reshape([2, 3])?;
    assert_eq!(x.sum()?.item::<f32>()?, 15.0);
    assert_eq!(numbers(&x.sum_axes(&[0])?), [3.0, 5.0, 7.0]);
    assert_eq!(x.mean_keepdim(&[1])?.dims(), [2, 1]);
    assert_eq!(numbers(&x.mean_axes(&[1])?), [1.0, 4.0]);
    assert_eq!((x.max()?.item::<f32>()?, x.min()?.item::<f32>()?), (5.0, 0.0));
    assert_eq!(x.argmax(1)?.to_vec::<i32>()?, [2, 2]);
    assert!((x.var_axes(&[1])?.to_vec::<f32>()?[0] - 2.0 / 3.0).abs() < 1e-6);
    Ok(())
}

#[test]
fn layers_compute_known_values() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], [2, 2])?;
    assert_eq!(numbers(&x.matmul(&x)?), [7.0, 10.0, 15.0, 22.0]);
    assert_eq!(x.reshape([1, 2, 2])?.matmul(&x)?.dims(), [1, 2, 2]);
    let softmax = numbers(&x.softmax(1)?);
    assert!((softmax[0] - 0.268_941_43).abs() < 1e-6 && (softmax[0] + softmax[1] - 1.0).abs() < 1e-6);
    let labels = Tensor::from_slice(&[1, 0], [2])?;
    let loss: f32 = x.cross_entropy(&labels)?.item()?;
    assert!((loss - (0.313_261_7 + 1.313_261_7) / 2.0).abs() < 1e-6, "{loss}");
    let image = Tensor::arange(16)?.reshape([1, 4, 4, 1])?;
    assert_eq!(numbers(&image.max_pool2d(2, 2, Padding::Valid)?), [5.0, 7.0, 13.0, 15.0]);
    assert_eq!(numbers(&image.avg_pool2d(2, 2, Padding::Valid)?), [2.5, 4.5, 10.5, 12.5]);
    let box_filter = Tensor::ones([3, 3, 1, 1])?;
    assert_eq!(image.conv2d(&box_filter, 1, Padding::Same)?.dims(), [1, 4, 4, 1]);
    assert_eq!(numbers(&image.conv2d(&box_filter, 1, Padding::Valid)?), [45.0, 54.0, 81.0, 90.0]);
    let (gain, bias) = (Tensor::ones([2])?, Tensor::zeros([2])?);
    let normalized = numbers(&x.layer_norm(&gain, &bias, 1e-5)?);
    assert!((normalized[0] + 1.0).abs() < 1e-4 && (normalized[1] - 1.0).abs() < 1e-4);
    let q = Tensor::uniform([2, 3, 8])?;
    assert_eq!(q.attention(&q, &q, 2, true)?.dims(), [2, 3, 8]);
    assert!((x.mse_loss(&x.zeros_like()?)?.item::<f32>()? - 7.5).abs() < 1e-6);
    Ok(())
}

#[test]
fn results_of_16_bits_keep_their_type() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let x = Tensor::from_slice(&[1.0, 2.5, -3.0], [3])?.to_dtype(dtype)?;
        let y = (&x * &x)?;
        assert_eq!((y.dtype(), numbers(&y)), (dtype, vec![1.0, 6.25, 9.0]));
        assert_eq!((&x + &Tensor::ones([3])?)?.dtype(), DType::F32, "mixed operands give single precision");
        assert_eq!(x.sum()?.dtype(), DType::F32, "sums are in single precision");
        assert_eq!(x.reshape([3, 1])?.matmul(&x.reshape([1, 3])?)?.dtype(), dtype);
    }
    Ok(())
}

#[test]
fn random_numbers_differ_between_calls_and_repeat_in_a_new_context() -> Result<()> {
    let draws = || -> Result<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let context = Context::cpu(1, Bytes::mib(1))?;
        context.scope(|| Ok((numbers(&Tensor::uniform([9])?), numbers(&Tensor::uniform([9])?), numbers(&Tensor::normal([9])?))))
    };
    let (first, second, normal) = draws()?;
    assert_ne!(first, second);
    assert_eq!((first, second, normal), draws()?);
    let dropped = numbers(&Tensor::ones([1000])?.dropout(0.25)?);
    let kept = dropped.iter().filter(|value| **value > 0.0).count();
    assert!((700..800).contains(&kept), "{kept}");
    assert!(dropped.iter().all(|value| *value == 0.0 || (*value - 4.0 / 3.0).abs() < 1e-6));
    Ok(())
}

#[test]
fn tensors_are_displayed_with_their_type() -> Result<()> {
    let x = Tensor::from_slice(&[1.0, -2.5, 3.0, 4.0], [2, 2])?;
    insta::assert_snapshot!(x, @r"
    [[ 1.0000, -2.5000],
     [ 3.0000,  4.0000]]
    f32[2, 2]
    ");
    insta::assert_snapshot!(Tensor::arange(1000)?, @r"
    [  0.0000,   1.0000,   2.0000, …, 997.0000, 998.0000, 999.0000]
    f32[1000]
    ");
    insta::assert_snapshot!(Tensor::scalar(2.0)?, @r"
    2.0000
    f32[]
    ");
    Ok(())
}

#[test]
fn what_does_not_go_together_is_refused_by_name() -> Result<()> {
    let (x, ids) = (Tensor::ones([2, 3])?, Tensor::from_slice(&[1, 2], [2])?);
    let text = |result: Result<Tensor>| result.expect_err("it is refused").to_string();
    assert_eq!(text(&x + &Tensor::ones([2])?), "layer `add`: shapes [2, 3] and [2] do not go together");
    assert_eq!(text(&ids + &ids), "add: arithmetic is in single precision, but an operand is i32[2]; convert it with `to_dtype` first");
    assert_eq!(
        text(x.matmul(&Tensor::ones([2])?)),
        "matmul: multiplies matrices, but got the shapes [2, 3] and [2]; for batches of matrices use `attention`"
    );
    assert_eq!(text(x.reshape([7])), "reshape: [2, 3] has 6 elements and cannot become [7]");
    assert_eq!(text(x.sum_axes(&[2])), "sum: there is no axis 2 in the shape [2, 3]");
    assert_eq!(text(x.slice(1, 2..5)), "layer `slice`: cannot take 2..5 along axis 1 of [2, 3]");
    assert_eq!(text(x.cross_entropy(&x)), "cross_entropy: takes class IDs in i32, u8 or bool, but got f32[2, 3]");
    assert_eq!(text(Tensor::from_slice(&[1.0], [2])), "a tensor f32[2] has 2 elements, but 1 were given");
    assert_eq!(text(x.dropout(1.0)), "dropout: the rate is at least 0 and less than 1, but is 1");
    assert_eq!(x.to_vec::<i32>().unwrap_err().to_string(), "the tensor is f32, but is read as i32; convert it with `to_dtype` first");
    assert_eq!(x.item::<f32>().unwrap_err().to_string(), "item: takes a tensor of one element, but got f32[2, 3]");
    Ok(())
}

#[test]
fn operands_of_two_contexts_are_refused() -> Result<()> {
    let (a, b) = (Context::cpu(1, Bytes::mib(1))?, Context::cpu(1, Bytes::mib(1))?);
    let (x, y) = (a.scope(|| Tensor::ones([2]))?, b.scope(|| Tensor::ones([2]))?);
    assert!(matches!((&x + &y).unwrap_err(), Error::Devices { op: "add", .. }));
    assert_eq!(numbers(&(&x + &y.to_context(&a)?)?), [2.0, 2.0]);
    Ok(())
}
