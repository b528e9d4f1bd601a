//! Which way a convolution goes: a generated kernel, a matrix product through cuBLASLt, or cuDNN; and what scratch it is given for that.
//!
//! Both are rules over shapes and types. They ask no library, so that plans need none, and measure nothing, so that every run goes the same way. What a library
//! then refuses goes to the generated kernel after all, which fits into the same scratch.

use crate::kernels::{self, Conv};
use crate::products;
use crate::profile::ALIGNMENT;
use plimsoll_core::DType;

/// What a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The result, from image and filter.
    Forward,
    /// The image's gradient, from the filter and the result's gradient.
    GradInput,
    /// The filter's gradient, from the image and the result's gradient.
    GradFilter,
}

/// Who computes convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convolutions {
    /// cuBLASLt and cuDNN where they are found and expected to be faster, generated kernels elsewhere.
    #[default]
    Auto,
    /// Generated kernels, always; plans stay those of `Auto`.
    Generated,
    /// The libraries wherever they can, however small the convolution: for tests. Plans have scratch for it.
    Libraries,
}

impl std::str::FromStr for Convolutions {
    type Err = String;

    fn from_str(name: &str) -> Result<Convolutions, String> {
        match name {
            "auto" => Ok(Convolutions::Auto),
            "generated" => Ok(Convolutions::Generated),
            "libraries" => Ok(Convolutions::Libraries),
            _ => Err(format!("convolutions are computed by `auto`, `generated` or `libraries`, not by `{name}`")),
        }
    }
}

/// Who computes one convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Generated,
    /// A window of one pixel makes it a matrix product: in these types of the operands.
    Product(DType),
    /// cuDNN, in this type.
    Cudnn(DType),
}

/// From this many multiplications on a library is worth its kernels beside the convolution: they move the filter, and apply what follows.
const LARGE: usize = 1 << 27;
/// With fewer taps than this the memory is the limit, and generated kernels write bias and ReLU with the result.
const TAPS: usize = 32;
/// The most scratch that is given to cuDNN.
const MOST: u64 = 256 << 20;
/// Scratch for sums in parts, and for tables of indices.
const PARTS: u64 = 4 << 20;

/// Which way a convolution goes. The types are those of its image, filter and result, or of their gradients.
pub(crate) fn way(kind: Kind, conv: &Conv, types: [DType; 3], who: Convolutions) -> Way {
    let [image, filter, result] = types;
    // Activations are large and stay as they are; filters may be narrowed. Gradients of filters are single precision whatever the library makes.
    let narrows = kind == Kind::GradFilter || filter == DType::F32 || filter == image;
    if image != result || !(image == DType::F32 || image.is_half()) || !narrows || is_empty(conv) {
        return Way::Generated;
    }
    let everywhere = who == Convolutions::Libraries;
    let large = multiplications(conv) >= LARGE;
    if is_product(conv) && (large || everywhere) {
        return Way::Product(image);
    }
    let wide = large && conv.groups == 1 && conv.taps() >= TAPS && conv.result[3] >= TAPS;
    if wide || everywhere { Way::Cudnn(image) } else { Way::Generated }
}

/// Bytes of scratch for a convolution. Never less for more rows.
pub(crate) fn workspace(kind: Kind, conv: &Conv, types: [DType; 3], who: Convolutions) -> u64 {
    let generated = if kind == Kind::GradFilter { kernels::grad_filter_workspace(conv) } else { 0 };
    generated.max(match way(kind, conv, types, who) {
        Way::Generated => 0,
        Way::Product(dtype) => {
            let (m, n, _) = extents(kind, conv);
            products::workspace(m, n) + narrowed_bytes(kind, conv, types[1], dtype)
        }
        Way::Cudnn(dtype) => filter_bytes(conv, dtype) + library_bytes(kind, conv, dtype),
    })
}

/// The extents of a convolution that is a product: rows, columns, length of the sums.
pub(crate) fn extents(kind: Kind, conv: &Conv) -> (usize, usize, usize) {
    let (pixels, inner, out) = (conv.image[..3].iter().product(), conv.image[3], conv.result[3]);
    match kind {
        Kind::Forward => (pixels, out, inner),
        Kind::GradInput => (pixels, inner, out),
        Kind::GradFilter => (inner, out, pixels),
    }
}

/// Bytes of scratch for the filter as the product wants it.
pub(crate) fn narrowed_bytes(kind: Kind, conv: &Conv, filter: DType, dtype: DType) -> u64 {
    if kind == Kind::GradFilter { 0 } else { products::narrowed_bytes(filter, dtype, filter_elements(conv)) }
}

/// Bytes of scratch for the filter, or its gradient, in cuDNN's order.
pub(crate) fn filter_bytes(conv: &Conv, dtype: DType) -> u64 {
    ((filter_elements(conv) * dtype.size()) as u64).next_multiple_of(ALIGNMENT.0)
}

/// Bytes of scratch for cuDNN itself. In single precision without tensor cores its fast kernels want channels outermost, so it copies image, filter and result;
/// in two bytes it computes on them as they lie, unless the channels are no multiple of what tensor cores take.
fn library_bytes(kind: Kind, conv: &Conv, dtype: DType) -> u64 {
    let eights = |n: usize| if dtype.is_half() { n.next_multiple_of(8) } else { n };
    let (inner, out) = (conv.image[3] / conv.groups, conv.result[3] / conv.groups);
    let fits = eights(inner) == inner && eights(out) == out;
    let copies = match dtype {
        DType::F32 => kind != Kind::GradFilter,
        _ => !fits,
    };
    if !copies {
        return PARTS;
    }
    let bytes = |dims: [usize; 4], channels: usize| (dims[..3].iter().product::<usize>() * conv.groups * eights(channels) * dtype.size()) as u64;
    let filter = conv.window.size.0 * conv.window.size.1 * eights(inner) * eights(out) * conv.groups * dtype.size();
    (bytes(conv.image, inner) + bytes(conv.result, out) + filter as u64 + PARTS).min(MOST)
}

fn filter_elements(conv: &Conv) -> usize {
    conv.taps() * conv.result[3]
}

fn multiplications(conv: &Conv) -> usize {
    conv.result[..3].iter().product::<usize>() * filter_elements(conv)
}

fn is_empty(conv: &Conv) -> bool {
    conv.image.iter().chain(&conv.result).any(|extent| *extent == 0)
}

/// Whether every pixel sees itself only.
fn is_product(conv: &Conv) -> bool {
    let window = conv.window;
    let still = window.size == (1, 1) && window.stride == (1, 1) && conv.groups == 1;
    still && window.pad_rows == (0, 0) && window.pad_columns == (0, 0)
}
