//! Operations for `map`: they transform one column, row by row, in memory of the caller.

mod apply;
mod class_index;
mod colour;
mod crop;
mod decode;
mod fill;
mod finite;
mod flip;
mod kernel;
mod mix;
mod one_hot;
mod pad;
mod pointwise;
mod resize;
mod resized_crop;
mod rot90;
mod rotate;
mod standardize;

pub use apply::apply;
pub use class_index::class_index;
pub use colour::{brightness, contrast, grey, hue, random_brightness, random_contrast, random_hue, random_saturation, saturation};

pub(crate) use crop::corner;
pub use crop::{center_crop, random_crop};
pub use decode::{Decode, decode, decode_mask};
pub use fill::fill;
pub(crate) use fill::{Padder, Padding, is_ragged};
pub use finite::finite;
pub use flip::{flip_left_right, flip_up_down};
pub(crate) use flip::{flips, reverse};
pub use mix::Mix;
pub(crate) use mix::Mixer;
pub use one_hot::one_hot;
pub use pad::{Fit, crop_or_pad, pad};
pub use pointwise::{cast_f32, normalize, scale};
pub use resize::{resize, resize_mask};
pub(crate) use resized_crop::CropRect;
pub use resized_crop::{CropArea, random_resized_crop};
pub use rot90::{random_rot90, rot90};
pub use rotate::{random_rotate, rotate};
pub use standardize::standardize;

pub use crate::image::Method;

use crate::block::Rows;
use crate::schema::Extent;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// An operation on the rows of one column. Its output and its memory are known before anything runs.
pub trait Op: Send + Sync {
    /// Its name and arguments, such as `scale(0.0625)`.
    fn describe(&self) -> String;

    /// The output column, or why the operation cannot be applied.
    fn output(&self, input: &Column) -> Result<Column, DataError>;

    /// Whether rows of `input` can be mapped in place, without changing dtype or shape; that needs no buffer.
    fn in_place(&self, _input: &Column) -> bool {
        false
    }

    /// Bytes of the tables and scratch memory of a [`kernel`](Self::kernel) for `input`, which
    /// [`output`](Self::output) must accept.
    fn kernel_bytes(&self, _input: &Column) -> Bytes {
        Bytes::ZERO
    }

    /// Creates the kernel for this column, which [`output`](Self::output) must accept.
    fn kernel(&self, input: &Column) -> Box<dyn Kernel>;

    /// Its effect on rows of variable size, if it supports them.
    fn item(&self) -> Option<ItemStep> {
        None
    }

    /// The factor, if the operation only multiplies; the previous operation may then apply it.
    fn factor(&self) -> Option<f32> {
        None
    }

    /// The same operation on the segmentation mask of an image, with the same random choices: class indices are moved,
    /// not interpolated. `None` if it only changes the values of pixels.
    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        None
    }

    /// Whether it accepts rows that vary in length, followed by their lengths.
    fn takes_lengths(&self) -> bool {
        false
    }

    /// Whether a row takes long enough (microseconds) that more threads help, compared to reading it.
    /// [`Parallelism::Auto`](crate::Parallelism::Auto) then uses one thread per core.
    fn takes_long(&self) -> bool {
        true
    }

    /// What takes the place of a random operation where there is nothing to train, if something must: a random crop
    /// becomes the centre, and random flips and colours are left out.
    fn without_randomness(&self) -> Option<Arc<dyn Op>> {
        None
    }

    /// Whether its output differs between epochs; it cannot come before a cache.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether it is user code that its description does not identify: a cache file after it needs a
    /// [version](crate::Dataset::version).
    fn is_code(&self) -> bool {
        false
    }
}

/// An operation on files and on images of variable size, one row at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ItemStep {
    /// Decodes a file to an image.
    Decode(Decode),
    /// Flips half of the images, chosen by seed, epoch and row.
    Flip {
        /// Horizontally; otherwise vertically.
        left_right: bool,
        /// The random seed.
        seed: u64,
    },
    /// Resizes all images to one size.
    Resize {
        /// Height in pixels.
        height: usize,
        /// Width in pixels.
        width: usize,
        /// The interpolation method.
        method: Method,
    },
    /// Crops all images to one size.
    Crop {
        /// Height in pixels.
        height: usize,
        /// Width in pixels.
        width: usize,
        /// The random seed of the position; the center if `None`.
        seed: Option<u64>,
    },
    /// Crops a random part of each image and resizes it.
    ResizedCrop {
        /// Height in pixels.
        height: usize,
        /// Width in pixels.
        width: usize,
        /// How it is chosen.
        part: CropArea,
    },
    /// Centers each image in a frame.
    Fit(Fit),
}

/// An operation prepared for one column. Each thread has its own.
pub trait Kernel: Send {
    /// Maps whole rows from `input` to `output`; `rows` are their indices, for errors and random operations. Called
    /// only if [`Op::in_place`] returns false.
    fn run(&mut self, _rows: Rows<'_>, _input: &[u8], _output: &mut [u8]) -> Result<(), DataError> {
        unreachable!("this operation says it works in place")
    }

    /// Maps whole rows in place. Called only if [`Op::in_place`] returns true.
    fn run_in_place(&mut self, _rows: Rows<'_>, _data: &mut [u8]) -> Result<(), DataError> {
        unreachable!("this operation does not say it works in place")
    }

    /// Sets the epoch of the rows that follow; random operations depend on epoch and row.
    fn set_epoch(&mut self, _epoch: u64) {}
}

/// Height, width and channels of a column of images of one size, or an error.
fn image_shape(op: &dyn Op, input: &Column) -> Result<[usize; 3], DataError> {
    match (input.extent, input.shape.as_slice()) {
        (Extent::Fixed, &[height, width, channels]) => Ok([height, width, channels]),
        _ => Err(refuse(op, input, format!("its rows have shape {:?}, and images are [height, width, channels]", input.shape))),
    }
}

/// Height and width of a column of images, if they are of one size, and their channels.
fn image_size(op: &dyn Op, input: &Column) -> Result<(Option<(usize, usize)>, usize), DataError> {
    if input.extent == Extent::Images {
        return Ok((None, input.shape[0]));
    }
    image_shape(op, input).map(|[height, width, channels]| (Some((height, width)), channels))
}

/// Height, width and channels of a column that was accepted.
fn shape_of(input: &Column) -> [usize; 3] {
    [input.shape[0], input.shape[1], input.shape[2]]
}

/// The same for pixels of u8 or f32.
fn pixel_shape(op: &dyn Op, input: &Column) -> Result<[usize; 3], DataError> {
    let shape = image_shape(op, input)?;
    if !matches!(input.dtype, DType::U8 | DType::F32) {
        return Err(refuse(op, input, format!("its elements are {}, and pixels are u8 or f32", input.dtype)));
    }
    Ok(shape)
}

fn refuse(op: &dyn Op, input: &Column, problem: impl Into<String>) -> DataError {
    DataError::Op { op: op.describe(), column: input.name.clone(), problem: problem.into() }
}
