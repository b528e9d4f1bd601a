//! Elementwise ops: arithmetic with broadcasting, functions.

use super::call::Call;
use super::dispatch::{apply, apply_with};
use super::error::{Result, invalid};
use super::tensor::Tensor;
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::{DType, Shape};

/// Refuses operands that arithmetic in single precision would round.
pub(super) fn expect_real(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.iter().find(|operand| !operand.dtype().is_float()) {
        Some(operand) => {
            invalid(op, format!("arithmetic is in single precision, but an operand is {}; convert it with `to_dtype` first", operand.ty()))
        }
        None => Ok(()),
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident: $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// If the elements are no real numbers, or the memory does not suffice.
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                expect_real(stringify!($name), &[self])?;
                apply(Call::Unary(Unary::$op), &[self])
            }
        )*}
    };
}

unary! {
    /// `-x`.
    neg: Neg;
    /// The absolute value.
    abs: Abs;
    /// -1, 0 or 1.
    sign: Sign;
    /// The largest integer that is not greater.
    floor: Floor;
    /// `eˣ`.
    exp: Exp;
    /// The natural logarithm.
    log: Log;
    /// The square root.
    sqrt: Sqrt;
    /// `1 / x`.
    reciprocal: Recip;
    /// Hyperbolic tangent.
    tanh: Tanh;
    /// `1 / (1 + e⁻ˣ)`.
    sigmoid: Sigmoid;
    /// `ln(1 + eˣ)`.
    softplus: Softplus;
    /// The error function.
    erf: Erf;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $scalar:ident: $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// If the shapes do not broadcast, the elements are no real numbers, or the memory does not suffice.
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                expect_real(stringify!($name), &[self, other])?;
                apply(Call::Binary(Binary::$op), &[self, other])
            }

            /// The same with a number.
            ///
            /// # Errors
            /// If the elements are no real numbers, or the memory does not suffice.
            #[track_caller]
            pub fn $scalar(&self, number: f32) -> Result<Tensor> {
                expect_real(stringify!($name), &[self])?;
                apply_with(Call::WithScalar(Binary::$op), &[self], &[number])
            }
        )*}
    };
}

binary! {
    /// `x + y`.
    add, add_scalar: Add;
    /// `x - y`.
    sub, sub_scalar: Sub;
    /// `x · y`, elementwise.
    mul, mul_scalar: Mul;
    /// `x / y`.
    div, div_scalar: Div;
    /// The larger of both.
    maximum, maximum_scalar: Max;
    /// The smaller of both.
    minimum, minimum_scalar: Min;
}

impl Tensor {
    /// `x + factor · y` in one op, such as a step of gradient descent.
    ///
    /// ```
    /// use plimsoll::eager::Tensor;
    /// let (w, gradient) = (Tensor::ones([2])?, Tensor::from_slice(&[1.0, -2.0], [2])?);
    /// assert_eq!(w.add_scaled(&gradient, -0.5)?.to_vec::<f32>()?, [0.5, 2.0]);
    /// # Ok::<(), plimsoll::eager::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::add`].
    #[track_caller]
    pub fn add_scaled(&self, other: &Tensor, factor: f32) -> Result<Tensor> {
        expect_real("add_scaled", &[self, other])?;
        apply_with(Call::AddScaled, &[self, other], &[factor])
    }

    /// `number - x`.
    ///
    /// # Errors
    /// If the elements are no real numbers, or the memory does not suffice.
    #[track_caller]
    pub fn scalar_sub(&self, number: f32) -> Result<Tensor> {
        expect_real("sub", &[self])?;
        apply_with(Call::ScalarWith(Binary::Sub), &[self], &[number])
    }

    /// `number / x`.
    ///
    /// # Errors
    /// If the elements are no real numbers, or the memory does not suffice.
    #[track_caller]
    pub fn scalar_div(&self, number: f32) -> Result<Tensor> {
        expect_real("div", &[self])?;
        apply_with(Call::ScalarWith(Binary::Div), &[self], &[number])
    }

    /// `xⁿ`, compiled once per exponent.
    ///
    /// # Errors
    /// If the elements are no real numbers, or the memory does not suffice.
    #[track_caller]
    pub fn powf(&self, exponent: f32) -> Result<Tensor> {
        expect_real("pow", &[self])?;
        apply(Call::Map("pow", Expr::build(|e| e.binary(Binary::Pow, e.input(0), e.constant(exponent)))), &[self])
    }

    /// `x²`.
    ///
    /// # Errors
    /// As [`Tensor::powf`].
    #[track_caller]
    pub fn square(&self) -> Result<Tensor> {
        self.powf(2.0)
    }

    /// `min(max(x, low), high)`.
    ///
    /// # Errors
    /// As [`Tensor::powf`].
    #[track_caller]
    pub fn clamp(&self, low: f32, high: f32) -> Result<Tensor> {
        expect_real("clamp", &[self])?;
        let clamped = Expr::build(|e| {
            let above = e.binary(Binary::Max, e.input(0), e.constant(low));
            e.binary(Binary::Min, above, e.constant(high))
        });
        apply(Call::Map("clamp", clamped), &[self])
    }

    /// Broadcasts to a shape, as arithmetic does.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn broadcast_to(&self, dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        let shape = Shape::fixed(dims);
        if !self.shape().broadcasts_to(&shape) {
            return invalid("broadcast_to", format!("{} does not broadcast to {shape}", self.shape()));
        }
        apply(Call::Broadcast(shape), &[self])
    }

    /// An activation function of [`nn`](crate::nn).
    ///
    /// # Errors
    /// If the elements are no real numbers, or the memory does not suffice.
    #[track_caller]
    pub fn activation(&self, activation: Activation) -> Result<Tensor> {
        expect_real(activation.name(), &[self])?;
        match activation {
            Activation::Linear => Ok(self.clone()),
            Activation::Softmax | Activation::LogSoftmax if self.rank() == 0 => {
                invalid(activation.name(), "takes at least one axis, but got a scalar")
            }
            Activation::Softmax => self.softmax(self.rank() - 1),
            Activation::LogSoftmax => self.log_softmax(self.rank() - 1),
            _ => apply(Call::Map(activation.name(), activation.expression()), &[self]),
        }
    }

    /// `max(x, 0)`.
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        self.activation(Activation::Relu)
    }

    /// `x · Φ(x)`.
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    #[track_caller]
    pub fn gelu(&self) -> Result<Tensor> {
        self.activation(Activation::Gelu)
    }

    /// `x · sigmoid(x)`.
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    #[track_caller]
    pub fn silu(&self) -> Result<Tensor> {
        self.activation(Activation::Silu)
    }

    /// Sets elements to zero with this probability and scales the others, so that the expected value is the same.
    ///
    /// # Errors
    /// If the rate is not at least 0 and less than 1, or the memory does not suffice.
    #[track_caller]
    pub fn dropout(&self, rate: f32) -> Result<Tensor> {
        expect_real("dropout", &[self])?;
        if !(0.0..1.0).contains(&rate) {
            return invalid("dropout", format!("the rate is at least 0 and less than 1, but is {rate}"));
        }
        let keep = apply(Call::Uniform(self.shape().clone()), &[])?;
        let kept = Expr::build(|e| {
            let dropped = e.binary(Binary::Less, e.input(1), e.constant(rate));
            e.select(dropped, e.constant(0.0), e.mul(e.input(0), e.constant(1.0 / (1.0 - rate))))
        });
        let dtype = self.dtype();
        let result = apply(Call::Map("dropout", kept), &[self, &keep])?;
        if dtype == DType::F32 { Ok(result) } else { result.to_dtype(dtype) }
    }
}

macro_rules! operator {
    ($($trait:ident, $method:ident, $scalar:ident, $swapped:expr;)*) => {$(
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(self, other)
            }
        }

        impl std::ops::$trait<Tensor> for Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                Tensor::$method(&self, &other)
            }
        }

        impl std::ops::$trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(&self, other)
            }
        }

        impl std::ops::$trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                Tensor::$method(self, &other)
            }
        }

        impl std::ops::$trait<f32> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, number: f32) -> Result<Tensor> {
                self.$scalar(number)
            }
        }

        impl std::ops::$trait<f32> for Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, number: f32) -> Result<Tensor> {
                self.$scalar(number)
            }
        }

        impl std::ops::$trait<&Tensor> for f32 {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, x: &Tensor) -> Result<Tensor> {
                let swapped: fn(&Tensor, f32) -> Result<Tensor> = $swapped;
                swapped(x, self)
            }
        }

        impl std::ops::$trait<&Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(&self?, other)
            }
        }

        impl std::ops::$trait<Result<Tensor>> for &Tensor {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: Result<Tensor>) -> Result<Tensor> {
                Tensor::$method(self, &other?)
            }
        }
    )*};
}

operator! {
    Add, add, add_scalar, Tensor::add_scalar;
    Sub, sub, sub_scalar, Tensor::scalar_sub;
    Mul, mul, mul_scalar, Tensor::mul_scalar;
    Div, div, div_scalar, Tensor::scalar_div;
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;

    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
