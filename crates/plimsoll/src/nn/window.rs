//! Sliding windows over images: kernel size, stride, dilation and padding.

use plimsoll_core::ops::Window;
use plimsoll_core::{Graph, GraphError, ValueId};

/// Padding of images before windows slide over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// No padding.
    #[default]
    Valid,
    /// Zeros on all sides, so that the output size is the input size divided by the stride.
    Same,
    /// This many zeros on each side.
    Explicit {
        /// Rows at the top and bottom.
        rows: (usize, usize),
        /// Columns at the left and right.
        columns: (usize, usize),
    },
}

/// A window that slides over images.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingWindow {
    pub size: (usize, usize),
    pub stride: (usize, usize),
    pub dilation: (usize, usize),
    pub padding: Padding,
}

impl Padding {
    /// The variants without fields, by name.
    pub const NAMES: [(&'static str, Padding); 2] = [("valid", Padding::Valid), ("same", Padding::Same)];

    /// The same number of zeros on all four sides.
    pub fn all(zeros: usize) -> Padding {
        Padding::Explicit { rows: (zeros, zeros), columns: (zeros, zeros) }
    }

    /// A window on padded images of this height and width.
    pub(crate) fn window(self, size: (usize, usize), stride: (usize, usize), dilation: (usize, usize), image: (usize, usize)) -> Window {
        match self {
            Padding::Valid => Window { dilation, ..Window::valid(size, stride) },
            Padding::Same => Window::same(size, stride, dilation, image),
            Padding::Explicit { rows, columns } => Window { dilation, pad_rows: rows, pad_columns: columns, ..Window::valid(size, stride) },
        }
    }
}

impl SlidingWindow {
    pub fn new(size: usize, stride: usize) -> SlidingWindow {
        SlidingWindow { size: (size, size), stride: (stride, stride), dilation: (1, 1), padding: Padding::Valid }
    }

    /// The window on images of this height and width.
    pub fn on(&self, image: (usize, usize)) -> Window {
        self.padding.window(self.size, self.stride, self.dilation, image)
    }

    /// The window on images of the value's shape, and their channels.
    pub fn window(&self, g: &Graph, x: ValueId) -> Result<(Window, usize), GraphError> {
        let (height, width, channels) = image_dims(g, x)?;
        let (size, stride) = (self.size, self.stride);
        if size.0.min(size.1).min(stride.0).min(stride.1) == 0 || height.min(width) == 0 {
            return Err(g.error(format!(
                "the kernel size {}×{} and the stride {}×{} should be positive, and so should the image",
                size.0, size.1, stride.0, stride.1
            )));
        }
        Ok((self.on((height, width)), channels))
    }

    /// Elements of the window.
    pub fn elements(&self) -> usize {
        self.size.0.saturating_mul(self.size.1)
    }
}

/// Height, width and channels of a batch of images.
pub(super) fn image_dims(g: &Graph, x: ValueId) -> Result<(usize, usize, usize), GraphError> {
    let shape = g.shape(x);
    let fixed = |i: usize| shape.dims().get(i).and_then(|dim| dim.as_fixed());
    match (shape.rank(), fixed(1), fixed(2), fixed(3)) {
        (4, Some(height), Some(width), Some(channels)) => Ok((height, width, channels)),
        _ => Err(g.error(format!("expects images of shape [batch, height, width, channels], but received {shape}"))),
    }
}
