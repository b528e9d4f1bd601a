//! New tensors.

use super::call::Call;
use super::context::Context;
use super::dispatch::{apply, apply_with};
use super::element::Element;
use super::error::{Error, Result};
use super::tensor::{Data, Tensor};
use super::{placement, trace};
use plimsoll_core::allocator::OwnerId;
use plimsoll_core::normal::{LANES, normals};
use plimsoll_core::{DType, Shape, TensorType};
use std::panic::Location;

/// Where the random streams of [`Tensor::normal`] begin; those of other ops are lower.
const NORMAL_STREAM: u32 = 1 << 30;

impl Tensor {
    /// A tensor of these values, in row-major order.
    ///
    /// # Errors
    /// If their number is not that of the shape, or the memory does not suffice.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        let ty = TensorType::new(T::DTYPE, Shape::fixed(dims));
        let expected = ty.shape.elements().bind(1);
        if values.len() != expected {
            return Err(Error::Length { ty, expected, given: values.len() });
        }
        Tensor::from_bytes(ty, &T::write(values), Location::caller())
    }

    /// A tensor from its bytes.
    pub(super) fn from_bytes(ty: TensorType, bytes: &[u8], made: &'static Location<'static>) -> Result<Tensor> {
        let block = Context::current()?.allocate(ty.bytes(1), OwnerId::named("data"), made)?;
        block.write(bytes)?;
        Ok(Tensor::new(ty, Data::Own(block), made))
    }

    /// A scalar.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn scalar(value: f32) -> Result<Tensor> {
        Tensor::full([], value)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn zeros(dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        Tensor::full(dims, 0.0)
    }

    /// A tensor of ones.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn ones(dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        Tensor::full(dims, 1.0)
    }

    /// A tensor of one number.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn full(dims: impl IntoIterator<Item = usize>, value: f32) -> Result<Tensor> {
        apply_with(Call::Fill(TensorType::f32(Shape::fixed(dims))), &[], &[value])
    }

    /// Uniform random numbers in [0, 1). Each call of a context has its own numbers; in a compiled function, each run.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn uniform(dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        apply(Call::Uniform(Shape::fixed(dims)), &[])
    }

    /// Random numbers from the standard normal distribution.
    ///
    /// # Errors
    /// If the memory does not suffice, or a closure is traced.
    #[track_caller]
    pub fn normal(dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        if trace::is_active() {
            return Err(Error::Traced("normal"));
        }
        let ty = TensorType::f32(Shape::fixed(dims));
        let count = ty.shape.elements().bind(1);
        let draw = Context::current()?.draw();
        let blocks = (0..count.div_ceil(LANES)).flat_map(|i| normals((i * LANES) as u64, NORMAL_STREAM + draw.step, draw.seed));
        let values: Vec<f32> = blocks.take(count).map(|value| value as f32).collect();
        Tensor::from_bytes(ty, &f32::write(&values), Location::caller())
    }

    /// `0, 1, …, length - 1`.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn arange(length: usize) -> Result<Tensor> {
        apply(Call::Range(length), &[])
    }

    /// Zeros of another tensor's shape and type.
    ///
    /// # Errors
    /// If the memory does not suffice.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        apply_with(Call::Fill(self.ty().clone()), &[], &[0.0])
    }

    /// The same values on another device, such as `cuda:0`. The tensor itself, if it is there.
    ///
    /// # Errors
    /// If there is no such device, its memory does not suffice, or a closure is traced.
    #[track_caller]
    pub fn to(&self, device: &str) -> Result<Tensor> {
        self.to_context(&Context::of(device)?)
    }

    /// The same values in another context.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    #[track_caller]
    pub fn to_context(&self, context: &Context) -> Result<Tensor> {
        let made = Location::caller();
        if self.traced().is_none() && self.context()?.is(context) {
            return Ok(self.clone());
        }
        let bytes = self.to_bytes("to")?;
        let moved = context.scope(|| Tensor::from_bytes(self.ty().clone(), &bytes, made))?;
        placement::copied(self.context()?, context, self.bytes());
        Ok(moved)
    }

    /// The same values in another element type. Integers are cut towards zero.
    ///
    /// # Errors
    /// If ops do not compute with that type.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if matches!(dtype, DType::F64 | DType::I64) {
            return super::error::invalid("to_dtype", format!("{dtype} is a type of files; ops compute with f32, f16, bf16, i32 and u8"));
        }
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        apply(Call::Cast(dtype), &[self])
    }
}

impl<const N: usize> TryFrom<[f32; N]> for Tensor {
    type Error = Error;

    /// A vector.
    #[track_caller]
    fn try_from(values: [f32; N]) -> Result<Tensor> {
        Tensor::from_slice(&values, [N])
    }
}
