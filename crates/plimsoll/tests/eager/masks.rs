//! Masks: comparisons, logical ops, selection.

use plimsoll::eager::{DType, Result, Tensor};

#[test]
fn comparisons_give_masks_in_bool() -> Result<()> {
    let (x, y) = (Tensor::from_slice(&[1.0, 2.0, 3.0, f32::NAN], [4])?, Tensor::from_slice(&[2.0, 2.0, 2.0, 2.0], [4])?);
    let bools = |mask: Result<Tensor>| mask?.to_vec::<bool>();
    assert_eq!(bools(x.lt(&y))?, [true, false, false, false]);
    assert_eq!(bools(x.le(&y))?, [true, true, false, false]);
    assert_eq!(bools(x.gt(&y))?, [false, false, true, false]);
    assert_eq!(bools(x.ge(&y))?, [false, true, true, false]);
    assert_eq!(bools(x.eq(&y))?, [false, true, false, false]);
    assert_eq!(bools(x.ne(&y))?, [true, false, true, true]);
    assert_eq!(bools(x.gt_scalar(2.0))?, [false, false, true, false]);
    assert_eq!(bools(x.ge_scalar(2.0))?, [false, true, true, false]);
    assert_eq!(bools(x.eq_scalar(3.0))?, [false, false, true, false]);
    let mask = x.lt(&y)?;
    assert_eq!((mask.dtype(), mask.bytes().0), (DType::Bool, 4));
    assert_eq!(mask.select(&x, &y)?.to_vec::<f32>()?, [1.0, 2.0, 2.0, 2.0]);
    assert_eq!(mask.to_dtype(DType::F32)?.sum()?.item::<f32>()?, 1.0, "masks are counted as numbers");
    insta::assert_snapshot!(mask, @r"
    [ true, false, false, false]
    bool[4]
    ");
    Ok(())
}

#[test]
fn masks_combine() -> Result<()> {
    let (a, b) = (Tensor::from_slice(&[true, true, false, false], [4])?, Tensor::from_slice(&[true, false, true, false], [4])?);
    assert_eq!((&a & &b)?.to_vec::<bool>()?, [true, false, false, false]);
    assert_eq!((&a | &b)?.to_vec::<bool>()?, [true, true, true, false]);
    assert_eq!((&a ^ &b)?.to_vec::<bool>()?, [false, true, true, false]);
    assert_eq!((!&a)?.to_vec::<bool>()?, [false, false, true, true]);
    assert!(a.any()?.item::<bool>()? && !a.all()?.item::<bool>()?);
    assert!((&a | &(!&a)?)?.all()?.item::<bool>()? && !(&a & &(!&a)?)?.any()?.item::<bool>()?);
    let odd = Tensor::from_slice(&[0.0, -0.5, 3.0], [3])?.to_dtype(DType::Bool)?;
    assert_eq!(odd.to_vec::<bool>()?, [false, true, true]);
    Ok(())
}

#[test]
fn what_is_no_mask_is_refused() -> Result<()> {
    let (x, mask) = (Tensor::ones([2])?, Tensor::from_slice(&[true, false], [2])?);
    let text = |result: Result<Tensor>| result.expect_err("it is refused").to_string();
    assert_eq!(text(&x & &mask), "logical_and: takes masks in bool, but an operand is f32[2]; compare it first");
    assert_eq!(
        text(mask.add(&mask)),
        "add: arithmetic is in single precision, but an operand is bool[2]; convert it with `to_dtype` first"
    );
    assert_eq!(mask.to_vec::<u8>().unwrap_err().to_string(), "the tensor is bool, but is read as u8; convert it with `to_dtype` first");
    Ok(())
}
