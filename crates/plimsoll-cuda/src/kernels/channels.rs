//! Images and filters with zero channels appended, for convolutions on tensor cores: they need channels in multiples of
//! eight.

use super::convolution::ConvShape;
use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use std::fmt::Write;

/// Copies an image `[n, h, w, c]` into one with `padded` channels.
pub(crate) fn pad_image(conv: &ConvShape, padded: usize, dtype: DType, from: Argument, to: Argument) -> Kernel {
    let [n, h, w, c] = conv.image;
    let vectors = n * h * w * padded / 8;
    let index = index_type(vectors * 8);
    let mut body = format!("const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (thread >= {vectors}) return;\n");
    let _ =
        writeln!(body, "const {index} pixel = thread / {}, first = thread % {} * 8;\nfloat x[8];\n#pragma unroll", padded / 8, padded / 8);
    let _ = writeln!(body, "for (int u = 0; u < 8; u++) x[u] = first + u < {c} ? load(from[pixel * {c} + first + u]) : 0.0f;");
    body += "store_vector(to + thread * 8, x);\n";
    Kernel {
        name: "pad_channels",
        what: format!("image {:?} with {padded} channels", conv.image),
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
