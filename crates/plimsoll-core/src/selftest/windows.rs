//! Windows over images, including every configuration that once had a bug.

use super::draw::Draw;
use crate::ir::ops::Window;

/// A window, its image, and a label.
#[derive(Clone)]
pub(super) struct Walk {
    pub name: &'static str,
    pub window: Window,
    pub image: (usize, usize),
}

/// Windows for convolutions.
pub(super) fn for_convolution(draw: &mut Draw) -> Vec<Walk> {
    let mut walks = vec![
        Walk { name: "1×1", window: Window::valid((1, 1), (1, 1)), image: (4, 3) },
        Walk { name: "1×1, stride 2", window: Window::valid((1, 1), (2, 2)), image: (5, 4) },
        Walk { name: "same", window: Window::same((3, 3), (1, 1), (1, 1), (5, 6)), image: (5, 6) },
        Walk { name: "same, stride 2", window: Window::same((3, 3), (2, 2), (1, 1), (6, 5)), image: (6, 5) },
        Walk { name: "same, dilated", window: Window::same((3, 2), (1, 1), (2, 3), (5, 7)), image: (5, 7) },
        Walk { name: "even window", window: Window::same((2, 4), (1, 2), (1, 1), (5, 5)), image: (5, 5) },
        Walk { name: "columns left over", window: Window::valid((2, 2), (3, 3)), image: (7, 6) },
        Walk {
            name: "window larger than the image",
            window: Window { pad_rows: (2, 2), pad_columns: (3, 1), ..Window::valid((4, 5), (1, 1)) },
            image: (2, 3),
        },
        Walk {
            name: "more padding than window",
            window: Window { pad_rows: (3, 0), pad_columns: (0, 2), ..Window::valid((2, 1), (2, 1)) },
            image: (3, 2),
        },
    ];
    for _ in 0..4 {
        walks.push(Walk { name: "drawn", ..drawn(draw, true) });
    }
    walks
}

/// Windows for pooling: no dilation, and no window entirely in the padding.
pub(super) fn for_pooling(draw: &mut Draw) -> Vec<Walk> {
    let mut walks = vec![
        Walk { name: "2×2, stride 2", window: Window::valid((2, 2), (2, 2)), image: (6, 4) },
        Walk { name: "columns left over", window: Window::valid((2, 3), (2, 3)), image: (5, 7) },
        Walk { name: "overlapping, same", window: Window::same((3, 3), (2, 2), (1, 1), (6, 5)), image: (6, 5) },
        Walk { name: "whole image", window: Window::valid((4, 3), (1, 1)), image: (4, 3) },
        Walk { name: "1×1", window: Window::valid((1, 1), (1, 1)), image: (2, 3) },
    ];
    for _ in 0..4 {
        walks.push(Walk { name: "drawn", ..drawn(draw, false) });
    }
    walks
}

fn drawn(draw: &mut Draw, convolution: bool) -> Walk {
    loop {
        let image = (draw.between(1, 7), draw.between(1, 7));
        let size = (draw.between(1, 4), draw.between(1, 4));
        let mut pad = |size: usize| {
            let end = if convolution { 3 } else { size - 1 };
            (draw.between(0, end), draw.between(0, end))
        };
        let (pad_rows, pad_columns) = (pad(size.0), pad(size.1));
        let stride = (draw.between(1, 3), draw.between(1, 3));
        let dilation = if convolution { (draw.between(1, 3), draw.between(1, 3)) } else { (1, 1) };
        let window = Window { size, stride, dilation, pad_rows, pad_columns };
        if window.output(image).is_ok() {
            return Walk { name: "", window, image };
        }
    }
}
