//! Images and filters with zeros around them, for convolutions in cuDNN: tensor cores need whole vectors of channels.

use super::convolution::ConvShape;
use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use std::fmt::Write;

/// Copies an image `[n, h, w, c]` into the larger image of another convolution; the rest of that is zero. If it is
/// higher or wider, the padding of the window is part of it.
pub(crate) fn pad_image(conv: &ConvShape, padded: &ConvShape, dtype: DType, from: Argument, to: Argument) -> Kernel {
    let ([_, h, w, c], [n, height, width, channels]) = (conv.image, padded.image);
    let (top, left) = if (height, width) == (h, w) { (0, 0) } else { (conv.window.pad_rows.0, conv.window.pad_columns.0) };
    // Vectors of channels, if they are whole.
    let each = [8, 4, 1].into_iter().find(|each| channels.is_multiple_of(*each)).expect("one divides everything");
    let vectors = n * height * width * channels / each;
    let index = index_type(vectors * each);
    let mut body = format!("const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (thread >= {vectors}) return;\n");
    let (row, image) = (width * channels / each, height * width * channels / each);
    let _ = writeln!(body, "const {index} first = thread % {} * {each};", channels / each);
    let _ =
        writeln!(body, "const int x = (int)(thread % {row} / {}) - {left}, y = (int)(thread % {image} / {row}) - {top};", channels / each);
    let _ = writeln!(body, "const bool inside = x >= 0 && x < {w} && y >= 0 && y < {h};");
    let _ =
        writeln!(body, "const {index} pixel = inside ? (thread / {image} * {h} + y) * {w} + x : 0;\nfloat values[{each}];\n#pragma unroll");
    let _ = writeln!(
        body,
        "for (int u = 0; u < {each}; u++) values[u] = inside && first + u < {c} ? load(from[pixel * {c} + first + u]) : 0.0f;"
    );
    body += if each == 1 { "store(to + thread, values[0]);\n" } else { "store_vector(to + thread * EACH, values);\n" };
    let body = body.replace("EACH", &each.to_string());
    Kernel {
        name: "pad_image",
        what: format!("image {:?} in {:?}", conv.image, padded.image),
        parameters: vec![parameter(dtype, "from", from), parameter(dtype, "to", to)],
        body,
        grid: [block_count(vectors, THREADS), 1, 1],
        threads: THREADS as u32,
    }
}

/// Brings a filter `[kh, kw, c, out]` into the layout `[out, kh, kw, padded]`, or its gradient back.
pub(crate) fn pad_filter(conv: &ConvShape, padded: usize, from: (DType, Argument), to: (DType, Argument), back: bool) -> Kernel {
    let (c, out, pixels) = (conv.image[3], conv.result[3], conv.window.size.0 * conv.window.size.1);
    let n = pixels * out * if back { c } else { padded };
    let mut body = format!("const unsigned e = blockIdx.x * {THREADS} + threadIdx.x;\nif (e >= {n}u) return;\n");
    if back {
        let _ = writeln!(body, "const unsigned o = e % {out}, channel = e / {out} % {c}, pixel = e / {};", out * c);
        let _ = writeln!(body, "store(to + e, load(from[(o * {pixels} + pixel) * {padded} + channel]));");
    } else {
        let _ = writeln!(body, "const unsigned channel = e % {padded}, pixel = e / {padded} % {pixels}, o = e / {};", padded * pixels);
        let _ = writeln!(body, "store(to + e, channel < {c} ? load(from[(pixel * {c} + channel) * {out} + o]) : 0.0f);");
    }
    Kernel {
        name: "pad_filter",
        what: format!("filter of {:?} with {padded} channels{}", conv.image, if back { ", back" } else { "" }),
        parameters: vec![(format!("const {}* from", super::type_name(from.0)), from.1), parameter(to.0, "to", to.1)],
        body,
        grid: [block_count(n, THREADS), 1, 1],
        threads: THREADS as u32,
    }
}
