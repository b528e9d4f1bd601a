//! The implementation of a convolution: a generated kernel, a matrix product in cuBLASLt, or cuDNN; and its workspace.
//!
//! Both are rules over shapes and types. They ask no library, so that plans need none, and measure nothing, so that every run goes the same way. What a library
//! then refuses goes to the generated kernel after all, which fits into the same scratch.

use super::{ALIGNMENT, matmul};
use crate::kernels::{self, ConvShape};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::{DType, Op, ValueId};

/// What a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvPass {
    /// The result, from image and filter.
    Forward,
    /// The image's gradient, from the filter and the result's gradient.
    GradInput,
    /// The filter's gradient, from the image and the result's gradient.
    GradFilter,
}

/// Which implementations of convolutions may be selected.
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

/// The implementation of one convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvAlgorithm {
    Generated,
    /// A window of one pixel makes it a matrix product: in these types of the operands.
    Matmul(DType),
    /// cuDNN, in this type.
    Cudnn(DType),
}

/// What a node that is a convolution or a gradient of one computes, and the types of its image, filter and result or of their gradients.
pub(crate) fn of_node(graph: &Graph, node: &Node, rows: usize) -> (ConvPass, ConvShape, [DType; 3]) {
    let (pass, window, groups, [image, filter, result]) = match &node.op {
        Op::Conv2d(op) => (ConvPass::Forward, op.window, op.groups, [node.inputs[0], node.inputs[1], node.outputs[0]]),
        Op::Conv2dGradInput(op) => (ConvPass::GradInput, op.window, op.groups, [node.outputs[0], node.inputs[0], node.inputs[1]]),
        Op::Conv2dGradFilter(op) => (ConvPass::GradFilter, op.window, op.groups, [node.inputs[0], node.outputs[0], node.inputs[1]]),
        _ => unreachable!("only called for convolutions"),
    };
    let dims = |value: ValueId| <[usize; 4]>::try_from(graph.shape(value).bind(rows)).expect("images have four axes");
    let conv = ConvShape { window, groups, image: dims(image), result: dims(result) };
    (pass, conv, [image, filter, result].map(|value| graph.ty(value).dtype))
}

/// From this many multiplications on a library is worth its kernels beside the convolution: they move the filter, and apply what follows.
const LARGE: usize = 1 << 27;
/// With fewer taps than this the memory is the limit, and generated kernels write bias and ReLU with the result.
const TAPS: usize = 32;
/// The minimum channels of a layer for which cuDNN is worth its copies in single precision.
const WIDE: usize = 128;
/// The most scratch that is given to cuDNN.
const MOST: u64 = 64 << 20;
/// Scratch for sums in parts, and for tables of indices.
const PARTS: u64 = 4 << 20;

/// Selects the implementation of a convolution. The types are those of its image, filter and result, or of their gradients.
pub(crate) fn select(pass: ConvPass, conv: &ConvShape, types: [DType; 3], choice: Convolutions) -> ConvAlgorithm {
    let [image, filter, result] = types;
    // Activations are large and stay as they are; filters may be narrowed. Gradients of filters are single precision whatever the library makes.
    let narrows = pass == ConvPass::GradFilter || filter == DType::F32 || filter == image;
    if image != result || !(image == DType::F32 || image.is_half()) || !narrows || is_empty(conv) {
        return ConvAlgorithm::Generated;
    }
    let everywhere = choice == Convolutions::Libraries;
    let large = multiplications(conv) >= LARGE;
    if is_matmul(conv) && (large || everywhere) {
        return ConvAlgorithm::Matmul(image);
    }
    // In single precision its filter gradients are wrong where the padding differs from side to side, as a GPU showed.
    if pass == ConvPass::GradFilter && image == DType::F32 && !is_even(conv) {
        return ConvAlgorithm::Generated;
    }
    let wide = large && conv.groups == 1 && conv.taps() >= TAPS && conv.result[3] >= TAPS;
    // In single precision it copies images first, which only wide layers pay for; with a stride it gains nothing.
    let wide = wide && (image.is_half() || conv.window.stride == (1, 1) && conv.image[3].min(conv.result[3]) >= WIDE);
    if wide || everywhere { ConvAlgorithm::Cudnn(image) } else { ConvAlgorithm::Generated }
}

/// Bytes of scratch for a convolution. Never less for more rows.
pub(crate) fn workspace(pass: ConvPass, conv: &ConvShape, types: [DType; 3], choice: Convolutions) -> u64 {
    let generated = if pass == ConvPass::GradFilter { kernels::grad_filter_workspace(conv) } else { 0 };
    generated.max(match select(pass, conv, types, choice) {
        ConvAlgorithm::Generated => 0,
        ConvAlgorithm::Matmul(dtype) => {
            let (m, n, _) = matmul_extents(pass, conv);
            matmul::workspace(m, n) + cast_bytes(pass, conv, types[1], dtype)
        }
        ConvAlgorithm::Cudnn(dtype) => filter_bytes(conv, dtype) + cudnn_workspace(pass, conv, dtype),
    })
}

/// The extents of a convolution that is a product: rows, columns, length of the sums.
pub(crate) fn matmul_extents(pass: ConvPass, conv: &ConvShape) -> (usize, usize, usize) {
    let (pixels, inner, out) = (conv.image[..3].iter().product(), conv.image[3], conv.result[3]);
    match pass {
        ConvPass::Forward => (pixels, out, inner),
        ConvPass::GradInput => (pixels, inner, out),
        ConvPass::GradFilter => (inner, out, pixels),
    }
}

/// Bytes of scratch for the filter as the product wants it.
pub(crate) fn cast_bytes(pass: ConvPass, conv: &ConvShape, filter: DType, dtype: DType) -> u64 {
    if pass == ConvPass::GradFilter { 0 } else { matmul::cast_bytes(filter, dtype, filter_elements(conv)) }
}

/// Bytes of scratch for the filter, or its gradient, in cuDNN's order.
pub(crate) fn filter_bytes(conv: &ConvShape, dtype: DType) -> u64 {
    ((filter_elements(conv) * dtype.size()) as u64).next_multiple_of(ALIGNMENT.0)
}

/// Bytes of scratch for cuDNN itself. In single precision without tensor cores its fast kernels want channels outermost, so it copies image, filter and result;
/// in two bytes it computes on them as they lie, unless the channels are no multiple of what tensor cores take.
fn cudnn_workspace(pass: ConvPass, conv: &ConvShape, dtype: DType) -> u64 {
    let eights = |n: usize| if dtype.is_half() { n.next_multiple_of(8) } else { n };
    let (inner, out) = (conv.image[3] / conv.groups, conv.result[3] / conv.groups);
    let fits = eights(inner) == inner && eights(out) == out;
    let copies = match dtype {
        DType::F32 => pass != ConvPass::GradFilter,
        _ => !fits,
    };
    if !copies {
        return PARTS;
    }
    let bytes =
        |dims: [usize; 4], channels: usize| (dims[..3].iter().product::<usize>() * conv.groups * eights(channels) * dtype.size()) as u64;
    let filter = conv.window.size.0 * conv.window.size.1 * eights(inner) * eights(out) * conv.groups * dtype.size();
    (bytes(conv.image, inner) + bytes(conv.result, out) + filter as u64 + PARTS).min(MOST)
}

fn filter_elements(conv: &ConvShape) -> usize {
    conv.taps() * conv.result[3]
}

fn multiplications(conv: &ConvShape) -> usize {
    conv.result[..3].iter().product::<usize>() * filter_elements(conv)
}

fn is_empty(conv: &ConvShape) -> bool {
    conv.image.iter().chain(&conv.result).any(|extent| *extent == 0)
}

/// Whether there is as much padding before as behind.
fn is_even(conv: &ConvShape) -> bool {
    let window = conv.window;
    window.pad_rows.0 == window.pad_rows.1 && window.pad_columns.0 == window.pad_columns.1
}

/// Whether every pixel sees itself only.
fn is_matmul(conv: &ConvShape) -> bool {
    let window = conv.window;
    let still = window.size == (1, 1) && window.stride == (1, 1) && conv.groups == 1;
    still && window.pad_rows == (0, 0) && window.pad_columns == (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::ops::Window;

    const SINGLE: [DType; 3] = [DType::F32; 3];
    const MIXED: [DType; 3] = [DType::BF16, DType::F32, DType::BF16];
    const KINDS: [ConvPass; 3] = [ConvPass::Forward, ConvPass::GradInput, ConvPass::GradFilter];

    fn conv(rows: usize, side: usize, (size, stride): (usize, usize), groups: usize, channels: usize, filters: usize) -> ConvShape {
        let window = Window::same((size, size), (stride, stride), (1, 1), (side, side));
        let (h, w) = window.output((side, side)).unwrap();
        ConvShape { window, groups, image: [rows, side, side, channels], result: [rows, h, w, filters] }
    }

    #[test]
    fn large_layers_go_to_libraries_and_small_or_thin_ones_do_not() {
        let wide = conv(32, 56, (3, 1), 1, 64, 64);
        let cases = [
            ("3×3 of a residual network", conv(32, 28, (3, 1), 1, 128, 128), SINGLE, ConvAlgorithm::Cudnn(DType::F32)),
            ("a narrower one", wide, SINGLE, ConvAlgorithm::Generated),
            ("the same in two bytes", wide, MIXED, ConvAlgorithm::Cudnn(DType::BF16)),
            ("with a stride", conv(32, 56, (3, 2), 1, 128, 128), SINGLE, ConvAlgorithm::Generated),
            ("its first layer", conv(32, 224, (7, 2), 1, 3, 64), SINGLE, ConvAlgorithm::Generated),
            ("1×1", conv(32, 56, (1, 1), 1, 256, 64), MIXED, ConvAlgorithm::Matmul(DType::BF16)),
            ("1×1 with a stride", conv(32, 56, (1, 2), 1, 256, 512), MIXED, ConvAlgorithm::Cudnn(DType::BF16)),
            ("the example, batch 32", conv(32, 64, (3, 1), 1, 1, 32), SINGLE, ConvAlgorithm::Generated),
            ("the example, batch 1,024", conv(1024, 64, (3, 1), 1, 1, 32), SINGLE, ConvAlgorithm::Generated),
            ("digits", conv(32, 8, (3, 1), 1, 16, 32), SINGLE, ConvAlgorithm::Generated),
            ("channel by channel", conv(256, 56, (3, 1), 128, 128, 128), SINGLE, ConvAlgorithm::Generated),
            ("a result in another type", wide, [DType::BF16, DType::F32, DType::F32], ConvAlgorithm::Generated),
            ("a filter that would be widened", wide, [DType::F32, DType::BF16, DType::F32], ConvAlgorithm::Generated),
            ("no images", conv(0, 56, (3, 1), 1, 64, 64), SINGLE, ConvAlgorithm::Generated),
        ];
        for (name, conv, types, want) in cases {
            assert_eq!(select(ConvPass::Forward, &conv, types, Convolutions::Auto), want, "{name}");
        }
    }

    #[test]
    fn filter_gradients_of_one_sided_padding_are_not_left_to_cudnn_in_single_precision() {
        let one_sided = conv(32, 56, (3, 2), 1, 128, 128);
        for choice in [Convolutions::Auto, Convolutions::Libraries] {
            assert_eq!(select(ConvPass::GradFilter, &one_sided, SINGLE, choice), ConvAlgorithm::Generated);
            assert_eq!(select(ConvPass::GradFilter, &one_sided, MIXED, choice), ConvAlgorithm::Cudnn(DType::BF16));
        }
        assert_eq!(select(ConvPass::GradInput, &one_sided, SINGLE, Convolutions::Libraries), ConvAlgorithm::Cudnn(DType::F32));
    }

    #[test]
    fn libraries_can_be_asked_for_everywhere() {
        let small = conv(2, 5, (3, 2), 2, 6, 4);
        assert_eq!(select(ConvPass::Forward, &small, SINGLE, Convolutions::Libraries), ConvAlgorithm::Cudnn(DType::F32));
        assert_eq!(
            select(ConvPass::GradFilter, &conv(2, 5, (1, 1), 1, 3, 5), SINGLE, Convolutions::Libraries),
            ConvAlgorithm::Matmul(DType::F32)
        );
    }

    /// Image and result, twice 12.25 MiB, are copied in single precision only. The filter in the library's order comes before.
    #[test]
    fn scratch_is_what_the_rule_says() {
        let wide = conv(32, 28, (3, 1), 1, 128, 128);
        let (image, filter) = (32 * 28 * 28 * 128 * 4, 9 * 128 * 128 * 4);
        let at = |pass, types| workspace(pass, &wide, types, Convolutions::Auto);
        assert_eq!(at(ConvPass::Forward, SINGLE), filter + (2 * image + filter + PARTS).min(MOST));
        assert_eq!(at(ConvPass::GradInput, SINGLE), at(ConvPass::Forward, SINGLE));
        assert_eq!(at(ConvPass::Forward, MIXED), filter / 2 + PARTS);
        // The filter's gradient has at least what the generated kernels take.
        assert_eq!(at(ConvPass::GradFilter, MIXED), kernels::grad_filter_workspace(&wide).max(filter / 2 + PARTS));
        let product = conv(32, 56, (1, 1), 1, 256, 64);
        assert_eq!(workspace(ConvPass::Forward, &product, MIXED, Convolutions::Auto), matmul::workspace(32 * 56 * 56, 64) + 256 * 64 * 2);
        // Channels that are no multiple of eight are filled up in two bytes.
        let first = conv(4, 224, (7, 2), 1, 3, 64);
        let filled = (4 * 224 * 224 * 8 + 4 * 112 * 112 * 64 + 49 * 8 * 64) * 2;
        assert_eq!(workspace(ConvPass::Forward, &first, MIXED, Convolutions::Auto), filter_bytes(&first, DType::BF16) + filled + PARTS);
    }

    /// What is switched at run time may not change a plan, and a plan for more rows has to hold for fewer.
    #[test]
    fn scratch_depends_on_shapes_only_and_never_shrinks() {
        for (size, stride, channels, filters) in [(3, 1, 64, 64), (1, 1, 256, 64), (7, 2, 3, 64), (1, 2, 64, 128), (3, 1, 4, 2)] {
            for (pass, types) in KINDS.into_iter().flat_map(|pass| [(pass, SINGLE), (pass, MIXED)]) {
                let sizes = [1, 2, 3, 7, 16, 32, 33, 100, 257, 1000].map(|rows| {
                    let conv = conv(rows, 56, (size, stride), 1, channels, filters);
                    let size = workspace(pass, &conv, types, Convolutions::Auto);
                    assert_eq!(size, workspace(pass, &conv, types, Convolutions::Generated));
                    size
                });
                assert!(sizes.is_sorted(), "{size}×{size} by {stride} {pass:?} {types:?}: {sizes:?}");
            }
        }
    }

    #[test]
    fn names_are_read() {
        for (name, choice) in [("auto", Convolutions::Auto), ("generated", Convolutions::Generated), ("libraries", Convolutions::Libraries)]
        {
            assert_eq!(name.parse(), Ok(choice));
        }
        let error = "cudnn".parse::<Convolutions>().unwrap_err();
        assert_eq!(error, "convolutions are computed by `auto`, `generated` or `libraries`, not by `cudnn`");
    }
}
