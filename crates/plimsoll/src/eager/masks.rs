//! Masks: comparisons, logical ops, and selection by a mask.

use super::arithmetic::expect_real;
use super::call::Call;
use super::dispatch::{apply, apply_with};
use super::error::{Result, invalid};
use super::tensor::Tensor;
use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Expr, Unary};

/// Refuses operands that are no masks.
fn expect_masks(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.iter().find(|operand| operand.dtype() != DType::Bool) {
        Some(operand) => invalid(op, format!("takes masks in bool, but an operand is {}; compare it first", operand.ty())),
        None => Ok(()),
    }
}

macro_rules! compare {
    ($($(#[$doc:meta])* $name:ident, $scalar:ident: $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            /// The result is a mask in `bool`.
            ///
            /// Integers are compared in single precision, which is exact up to 16,777,216.
            ///
            /// # Errors
            /// If the shapes do not broadcast, or the memory does not suffice.
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                apply(Call::Compare(Binary::$op), &[self, other])
            }

            /// The same with a number.
            ///
            /// # Errors
            /// If the memory does not suffice.
            #[track_caller]
            pub fn $scalar(&self, number: f32) -> Result<Tensor> {
                apply_with(Call::CompareScalar(Binary::$op), &[self], &[number])
            }
        )*}
    };
}

compare! {
    /// Whether `x < y`.
    lt, lt_scalar: Less;
    /// Whether `x ≤ y`.
    le, le_scalar: LessEq;
    /// Whether `x = y`.
    eq, eq_scalar: Equal;
}

impl Tensor {
    /// Whether `x > y`, as a mask.
    ///
    /// # Errors
    /// As [`Tensor::lt`].
    #[track_caller]
    pub fn gt(&self, other: &Tensor) -> Result<Tensor> {
        other.lt(self)
    }

    /// Whether `x ≥ y`, as a mask.
    ///
    /// # Errors
    /// As [`Tensor::lt`].
    #[track_caller]
    pub fn ge(&self, other: &Tensor) -> Result<Tensor> {
        other.le(self)
    }

    /// Whether `x ≠ y`, as a mask.
    ///
    /// # Errors
    /// As [`Tensor::lt`].
    #[track_caller]
    pub fn ne(&self, other: &Tensor) -> Result<Tensor> {
        let differs = Expr::build(|e| e.sub(e.constant(1.0), e.binary(Binary::Equal, e.input(0), e.input(1))));
        apply(Call::Mask("ne", differs), &[self, other])
    }

    /// Whether `x > number`, as a mask.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn gt_scalar(&self, number: f32) -> Result<Tensor> {
        apply_with(Call::ScalarCompare(Binary::Less), &[self], &[number])
    }

    /// Whether `x ≥ number`, as a mask.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn ge_scalar(&self, number: f32) -> Result<Tensor> {
        apply_with(Call::ScalarCompare(Binary::LessEq), &[self], &[number])
    }

    /// Whether both masks are true. `&a & &b` is the same.
    ///
    /// # Errors
    /// If an operand is no mask, or the shapes do not broadcast.
    #[track_caller]
    pub fn logical_and(&self, other: &Tensor) -> Result<Tensor> {
        expect_masks("logical_and", &[self, other])?;
        apply(Call::Mask("logical_and", Expr::build(|e| e.mul(e.input(0), e.input(1)))), &[self, other])
    }

    /// Whether one of the masks is true. `&a | &b` is the same.
    ///
    /// # Errors
    /// As [`Tensor::logical_and`].
    #[track_caller]
    pub fn logical_or(&self, other: &Tensor) -> Result<Tensor> {
        expect_masks("logical_or", &[self, other])?;
        apply(Call::Mask("logical_or", Expr::build(|e| e.binary(Binary::Max, e.input(0), e.input(1)))), &[self, other])
    }

    /// Whether the masks differ. `&a ^ &b` is the same.
    ///
    /// # Errors
    /// As [`Tensor::logical_and`].
    #[track_caller]
    pub fn logical_xor(&self, other: &Tensor) -> Result<Tensor> {
        expect_masks("logical_xor", &[self, other])?;
        apply(Call::Mask("logical_xor", Expr::build(|e| e.unary(Unary::Abs, e.sub(e.input(0), e.input(1))))), &[self, other])
    }

    /// The mask that is true where this one is false. `!&a` is the same.
    ///
    /// # Errors
    /// If it is no mask.
    #[track_caller]
    pub fn logical_not(&self) -> Result<Tensor> {
        expect_masks("logical_not", &[self])?;
        apply(Call::Mask("logical_not", Expr::build(|e| e.sub(e.constant(1.0), e.input(0)))), &[self])
    }

    /// Whether an element of a mask is true, as a scalar.
    ///
    /// # Errors
    /// If it is no mask.
    #[track_caller]
    pub fn any(&self) -> Result<Tensor> {
        expect_masks("any", &[self])?;
        self.to_dtype(DType::F32)?.max()?.to_dtype(DType::Bool)
    }

    /// Whether every element of a mask is true, as a scalar.
    ///
    /// # Errors
    /// If it is no mask.
    #[track_caller]
    pub fn all(&self) -> Result<Tensor> {
        self.logical_not()?.any()?.logical_not()
    }

    /// `x` where the mask is true, `other` elsewhere. The mask, the receiver, is of any type: what is not zero is true.
    ///
    /// ```
    /// use plimsoll::eager::Tensor;
    /// let x = Tensor::from_slice(&[-1.0, 2.0], [2])?;
    /// let positive = x.gt_scalar(0.0)?.select(&x, &x.zeros_like()?)?;
    /// assert_eq!(positive.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), plimsoll::eager::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes do not broadcast, or the memory does not suffice.
    #[track_caller]
    pub fn select(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        expect_real("where", &[x, other])?;
        apply(Call::Select, &[self, x, other])
    }
}

macro_rules! operator {
    ($($trait:ident, $method:ident, $of:ident;)*) => {$(
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                self.$of(other)
            }
        }
    )*};
}

operator! {
    BitAnd, bitand, logical_and;
    BitOr, bitor, logical_or;
    BitXor, bitxor, logical_xor;
}

impl std::ops::Not for &Tensor {
    type Output = Result<Tensor>;

    #[track_caller]
    fn not(self) -> Result<Tensor> {
        self.logical_not()
    }
}
