//! What `map` does to a column, row by row, into memory that somebody else owns.

mod apply;
mod colour;
mod crop;
mod decode;
mod fill;
mod finite;
mod flip;
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
pub use colour::{brightness, contrast, grey, hue, random_brightness, random_contrast, random_hue, random_saturation, saturation};

pub(crate) use crop::corner;
pub use crop::{center_crop, random_crop};
pub use decode::{Decode, decode};
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
pub use resize::resize;
pub(crate) use resized_crop::CropRect;
pub use resized_crop::{CropArea, random_resized_crop};
pub use rot90::{random_rot90, rot90};
pub use rotate::{random_rotate, rotate};
pub use standardize::standardize;

pub use crate::image::Method;

use crate::block::Rows;
use crate::schema::Extent;
use crate::{Column, DataError};
use plimsoll_core::Bytes;

/// An operation on the rows of one column. What comes out and what it takes are known before anything runs.
pub trait Op: Send + Sync {
    /// As people write it, such as `scale(0.0625)`.
    fn describe(&self) -> String;

    /// The column that comes out, or why the operation cannot be applied.
    fn output(&self, input: &Column) -> Result<Column, DataError>;

    /// Whether rows of `input` may be mapped in place, their type and shape unchanged; that needs no buffer.
    fn in_place(&self, _input: &Column) -> bool {
        false
    }

    /// The memory a [`kernel`](Self::kernel) for `input` holds: tables and scratch. `input` is one that
    /// [`output`](Self::output) accepts.
    fn kernel_bytes(&self, input: &Column) -> Bytes;

    /// Tables and code for exactly this column; the same condition holds.
    fn kernel(&self, input: &Column) -> Box<dyn Kernel>;

    /// What it does to a row whose size is its own, if it can.
    fn item(&self) -> Option<ItemStep> {
        None
    }

    /// The factor, if all it does is multiply; the operation before may then do it on the way.
    fn factor(&self) -> Option<f32> {
        None
    }

    /// Whether it takes rows that vary in length, with their lengths behind them.
    fn takes_lengths(&self) -> bool {
        false
    }

    /// Whether a row takes it long enough that more threads are a help: microseconds, where taking a row out of a file or a stream is quicker.
    /// With [`Parallelism::Auto`](crate::Parallelism::Auto) it then has one for each core.
    fn takes_long(&self) -> bool {
        true
    }

    /// Whether it changes from epoch to epoch; what comes after cannot be cached.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether it is code that its description does not tell all about: a cache in a file behind it needs a
    /// [version](crate::Dataset::version).
    fn is_code(&self) -> bool {
        false
    }
}

/// What can be done to files and to images that differ in size, one row at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ItemStep {
    /// A file becomes an image.
    Decode(Decode),
    /// Mirrors half of the images, chosen by seed, epoch and row.
    Flip {
        /// Left and right exchanged; otherwise top and bottom.
        left_right: bool,
        /// Chooses which.
        seed: u64,
    },
    /// All images become alike in size.
    Resize {
        /// Rows of pixels.
        height: usize,
        /// Pixels in a row.
        width: usize,
        /// How pixels between pixels are made.
        method: Method,
    },
    /// A part of each image, all alike in size.
    Crop {
        /// Rows of pixels.
        height: usize,
        /// Pixels in a row.
        width: usize,
        /// Chooses where, together with epoch and row; the middle if there is none.
        seed: Option<u64>,
    },
    /// A part of each image chosen at random, brought to one size.
    ResizedCrop {
        /// Rows of pixels.
        height: usize,
        /// Pixels in a row.
        width: usize,
        /// How it is chosen.
        part: CropArea,
    },
    /// Each image in the middle of a frame.
    Fit(Fit),
}

/// An operation made ready for one column. Each thread has its own.
pub trait Kernel: Send {
    /// Maps whole rows from `input` to `output`; `rows` says which they are, for errors.
    fn run(&mut self, rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError>;

    /// Maps whole rows where they are. Called only where [`Op::in_place`] says so.
    fn run_in_place(&mut self, _rows: Rows<'_>, _data: &mut [u8]) -> Result<(), DataError> {
        unreachable!("this operation does not say it works in place")
    }

    /// The rows that follow are of this epoch; operations that are random do so by epoch and row.
    fn set_epoch(&mut self, _epoch: u64) {}
}

/// Height, width and channels of a column that an operation takes as images of one size.
fn image_shape(op: &dyn Op, input: &Column) -> Result<[usize; 3], DataError> {
    match (input.extent, input.shape.as_slice()) {
        (Extent::Fixed, &[height, width, channels]) => Ok([height, width, channels]),
        _ => Err(refuse(op, input, format!("its rows have shape {:?}, and images are [height, width, channels]", input.shape))),
    }
}

/// The same where the operation has accepted the column.
fn shape_of(input: &Column) -> [usize; 3] {
    [input.shape[0], input.shape[1], input.shape[2]]
}

fn refuse(op: &dyn Op, input: &Column, problem: impl Into<String>) -> DataError {
    DataError::Op { op: op.describe(), column: input.name.clone(), problem: problem.into() }
}
