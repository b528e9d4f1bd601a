//! Selects the implementation of a convolution (a generated kernel, a matrix product in cuBLASLt, or cuDNN) and its
//! workspace.
//!
//! Both are rules over shapes and types. They query no library, so that planning needs none, and measure nothing, so
//! that every run makes the same choice. If a library rejects a convolution at load time, the generated kernel is used;
//! it fits in the same workspace.

use super::{ALIGNMENT, ComputeType, matmul};
use crate::kernels::{self, ConvShape};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::{DType, Op, ValueId};

/// The pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvPass {
    /// The output, from image and filter.
    Forward,
    /// The image gradient, from the filter and the output gradient.
    GradInput,
    /// The filter gradient, from the image and the output gradient.
    GradFilter,
}

/// Which implementations of convolutions and of attention may be selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convolutions {
    /// cuBLASLt and cuDNN where they are available and expected to be faster, generated kernels elsewhere.
    #[default]
    Auto,
    /// Always plain generated kernels, also for attention; plans are those of `Auto`.
    Generated,
    /// Libraries wherever they support the convolution, regardless of its size: for tests. Plans have workspace for it.
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
    /// A 1×1 convolution is a matrix product, with operands of this type.
    Matmul(ComputeType),
    /// cuDNN, in this type.
    Cudnn(ComputeType),
}

/// The pass of a convolution node, and the types of its image, filter and output, or of their gradients.
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

/// Minimum multiplications for a library: smaller convolutions do not pay for the extra kernels that reorder the filter
/// and apply the epilogue.
const LARGE: usize = 1 << 27;
/// With fewer taps the convolution is memory-bound, and generated kernels fuse bias and ReLU.
const TAPS: usize = 32;
/// Minimum channels for which cuDNN pays for its copies in single precision.
const WIDE: usize = 128;
/// Maximum workspace for cuDNN.
const MOST: u64 = 64 << 20;
/// Workspace for split sums and index tables.
const PARTS: u64 = 4 << 20;

/// Selects the implementation of a convolution. The types are those of its image, filter and result, or of their
/// gradients; `tf32` tells whether the graph allows TF32.
pub(crate) fn select(pass: ConvPass, conv: &ConvShape, types: [DType; 3], tf32: bool, choice: Convolutions) -> ConvAlgorithm {
    let [image, filter, result] = types;
    // Activations are large and keep their type; filters may be narrowed. Filter gradients are single precision for any
    // library.
    let narrows = pass == ConvPass::GradFilter || filter == DType::F32 || filter == image;
    if image != result || !(image == DType::F32 || image.is_half()) || !narrows || is_empty(conv) {
        return ConvAlgorithm::Generated;
    }
    // In groups, cuDNN's convolutions are wrong with asymmetric padding (observed on a GPU).
    if conv.groups > 1 && !is_even(conv) {
        return ConvAlgorithm::Generated;
    }
    let everywhere = choice == Convolutions::Libraries;
    let large = multiplications(conv) >= LARGE;
    if is_matmul(conv) && (large || everywhere) {
        return ConvAlgorithm::Matmul(ComputeType::new(image, tf32));
    }
    let ty = ComputeType::new(image, tf32);
    let taps = padded(pass, conv, ty).map_or(conv.taps(), |padded| padded.taps());
    let wide = large && conv.groups == 1 && taps >= TAPS && conv.result[3] >= TAPS;
    // In single precision cuDNN copies images first, which only pays off for wide layers; with a stride it gains
    // nothing.
    let wide = wide && (ty.on_tensor_cores() || conv.window.stride == (1, 1) && conv.image[3].min(conv.result[3]) >= WIDE);
    if wide || everywhere { ConvAlgorithm::Cudnn(ty) } else { ConvAlgorithm::Generated }
}

/// Workspace of a convolution in bytes. Monotone in the rows.
pub(crate) fn workspace(pass: ConvPass, conv: &ConvShape, types: [DType; 3], tf32: bool, choice: Convolutions) -> u64 {
    let generated = if pass == ConvPass::GradFilter { kernels::grad_filter_workspace(conv) } else { 0 };
    generated.max(match select(pass, conv, types, tf32, choice) {
        ConvAlgorithm::Generated => 0,
        ConvAlgorithm::Matmul(ty) => {
            let (m, n, _) = matmul_extents(pass, conv);
            matmul::workspace(m, n) + cast_bytes(pass, conv, types[1], ty.dtype)
        }
        ConvAlgorithm::Cudnn(ty) => {
            let (conv, taken) = copies(pass, conv, ty);
            taken + cudnn_workspace(pass, &conv, ty)
        }
    })
}

/// The convolution that cuDNN computes, and the workspace bytes for its filter and for a padded image.
pub(crate) fn copies(pass: ConvPass, conv: &ConvShape, ty: ComputeType) -> (ConvShape, u64) {
    match padded(pass, conv, ty) {
        None => (side_by_side(conv, ty).unwrap_or(*conv), filter_bytes(conv, ty.dtype)),
        Some(padded) => (padded, filter_bytes(&padded, ty.dtype) + image_bytes(&padded, ty.dtype)),
    }
}

/// A convolution whose windows lie side by side in a row reads whole rows of pixels: the pixels of a window row are as
/// many channels of a convolution that is one pixel wide. Used where the channels alone are no whole vectors.
fn side_by_side(conv: &ConvShape, ty: ComputeType) -> Option<ConvShape> {
    let ConvShape { mut window, groups, image: [n, h, w, c], result } = *conv;
    let columns = window.size.1;
    let apart = window.stride.1 == columns && window.dilation.1 == 1 && window.pad_columns == (0, 0) && w == result[2] * columns;
    let whole = |channels: usize| channels.is_multiple_of(ty.vector());
    let helps = ty.on_tensor_cores() && !whole(c) && whole(columns * c) && groups == 1;
    (window.size.1, window.stride.1) = (1, 1);
    (apart && helps).then_some(ConvShape { window, groups, image: [n, h, result[2], columns * c], result })
}

/// The convolution over a copy of the image with zeros around it, if cuDNN needs one:
///
/// - Tensor cores need whole vectors of channels, so zero channels are appended. The image gradient would have to be
///   copied back, and is left to the library.
/// - In single precision, cuDNN's filter gradients are wrong with asymmetric padding (observed on a GPU), so the
///   padding is part of the copy.
pub(crate) fn padded(pass: ConvPass, conv: &ConvShape, ty: ComputeType) -> Option<ConvShape> {
    let ConvShape { mut window, image: [n, h, w, c], .. } = *conv;
    let explicit = pass == ConvPass::GradFilter && ty.dtype == DType::F32 && conv.groups == 1 && !is_even(conv);
    let narrow = ty.on_tensor_cores() && conv.groups == 1 && pass != ConvPass::GradInput && !c.is_multiple_of(ty.vector());
    if !explicit && (!narrow || side_by_side(conv, ty).is_some()) {
        return None;
    }
    let (mut height, mut width) = (h, w);
    if explicit {
        (height, width) = (h + window.pad_rows.0 + window.pad_rows.1, w + window.pad_columns.0 + window.pad_columns.1);
        (window.pad_rows, window.pad_columns) = ((0, 0), (0, 0));
    }
    let channels = if narrow { c.next_multiple_of(ty.vector()) } else { c };
    Some(ConvShape { window, image: [n, height, width, channels], ..*conv })
}

/// Workspace bytes for an image.
fn image_bytes(conv: &ConvShape, dtype: DType) -> u64 {
    ((conv.image.iter().product::<usize>() * dtype.size()) as u64).next_multiple_of(ALIGNMENT.0)
}

/// The dimensions m, n and k of a convolution that is a matrix product.
pub(crate) fn matmul_extents(pass: ConvPass, conv: &ConvShape) -> (usize, usize, usize) {
    let (pixels, inner, out) = (conv.image[..3].iter().product(), conv.image[3], conv.result[3]);
    match pass {
        ConvPass::Forward => (pixels, out, inner),
        ConvPass::GradInput => (pixels, inner, out),
        ConvPass::GradFilter => (inner, out, pixels),
    }
}

/// Workspace bytes for the cast filter of a matrix product.
pub(crate) fn cast_bytes(pass: ConvPass, conv: &ConvShape, filter: DType, dtype: DType) -> u64 {
    if pass == ConvPass::GradFilter { 0 } else { matmul::cast_bytes(filter, dtype, filter_elements(conv)) }
}

/// Workspace bytes for the filter, or its gradient, in cuDNN's layout.
pub(crate) fn filter_bytes(conv: &ConvShape, dtype: DType) -> u64 {
    ((filter_elements(conv) * dtype.size()) as u64).next_multiple_of(ALIGNMENT.0)
}

/// Workspace bytes for cuDNN itself. In single precision without tensor cores its fast kernels use NCHW, so it copies
/// image, filter and output. On tensor cores it reads them in place, unless the channels are not a multiple of the
/// tensor-core granularity.
fn cudnn_workspace(pass: ConvPass, conv: &ConvShape, ty: ComputeType) -> u64 {
    let dtype = ty.dtype;
    let whole_vectors = |n: usize| if ty.on_tensor_cores() { n.next_multiple_of(ty.vector()) } else { n };
    let (inner, out) = (conv.image[3] / conv.groups, conv.result[3] / conv.groups);
    let fits = whole_vectors(inner) == inner && whole_vectors(out) == out;
    let copies = if ty.on_tensor_cores() { !fits } else { pass != ConvPass::GradFilter };
    if !copies {
        return PARTS;
    }
    let bytes = |dims: [usize; 4], channels: usize| {
        (dims[..3].iter().product::<usize>() * conv.groups * whole_vectors(channels) * dtype.size()) as u64
    };
    let filter = conv.window.size.0 * conv.window.size.1 * whole_vectors(inner) * whole_vectors(out) * conv.groups * dtype.size();
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

/// Whether the padding is symmetric.
fn is_even(conv: &ConvShape) -> bool {
    let window = conv.window;
    window.pad_rows.0 == window.pad_rows.1 && window.pad_columns.0 == window.pad_columns.1
}

/// Whether the convolution is 1×1 without stride, padding and groups.
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
    const EXACT: ComputeType = ComputeType { dtype: DType::F32, tf32: false };
    const ROUNDED: ComputeType = ComputeType { dtype: DType::F32, tf32: true };
    const HALF: ComputeType = ComputeType { dtype: DType::BF16, tf32: false };
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
            ("3×3 of a residual network", conv(32, 28, (3, 1), 1, 128, 128), SINGLE, ConvAlgorithm::Cudnn(EXACT)),
            ("a narrower one", wide, SINGLE, ConvAlgorithm::Generated),
            ("the same in two bytes", wide, MIXED, ConvAlgorithm::Cudnn(HALF)),
            ("with a stride", conv(32, 56, (3, 2), 1, 128, 128), SINGLE, ConvAlgorithm::Generated),
            ("its first layer", conv(32, 224, (7, 2), 1, 3, 64), SINGLE, ConvAlgorithm::Generated),
            ("1×1", conv(32, 56, (1, 1), 1, 256, 64), MIXED, ConvAlgorithm::Matmul(HALF)),
            ("1×1 with a stride", conv(32, 56, (1, 2), 1, 256, 512), MIXED, ConvAlgorithm::Cudnn(HALF)),
            ("the example, batch 32", conv(32, 64, (3, 1), 1, 1, 32), SINGLE, ConvAlgorithm::Generated),
            ("the example, batch 1,024", conv(1024, 64, (3, 1), 1, 1, 32), SINGLE, ConvAlgorithm::Generated),
            ("digits", conv(32, 8, (3, 1), 1, 16, 32), SINGLE, ConvAlgorithm::Generated),
            ("channel by channel", conv(256, 56, (3, 1), 128, 128, 128), SINGLE, ConvAlgorithm::Generated),
            ("a result in another type", wide, [DType::BF16, DType::F32, DType::F32], ConvAlgorithm::Generated),
            ("a filter that would be widened", wide, [DType::F32, DType::BF16, DType::F32], ConvAlgorithm::Generated),
            ("no images", conv(0, 56, (3, 1), 1, 64, 64), SINGLE, ConvAlgorithm::Generated),
        ];
        for (name, conv, types, want) in cases {
            assert_eq!(select(ConvPass::Forward, &conv, types, false, Convolutions::Auto), want, "{name}");
        }
    }

    #[test]
    fn filter_gradients_of_one_sided_padding_read_a_padded_image_in_single_precision() {
        let one_sided = conv(32, 56, (3, 2), 1, 128, 128);
        for (ty, types) in [(EXACT, SINGLE), (ROUNDED, SINGLE), (HALF, MIXED)] {
            let choice = select(ConvPass::GradFilter, &one_sided, types, ty.tf32, Convolutions::Libraries);
            assert_eq!(choice, ConvAlgorithm::Cudnn(ty));
            let (used, taken) = copies(ConvPass::GradFilter, &one_sided, ty);
            let filter = filter_bytes(&one_sided, ty.dtype);
            if ty == HALF {
                assert_eq!((used, taken), (one_sided, filter));
                continue;
            }
            assert_eq!((used.image, used.window.pad_rows, used.window.pad_columns), ([32, 57, 57, 128], (0, 0), (0, 0)));
            assert_eq!(used.window.output((57, 57)), Ok((one_sided.result[1], one_sided.result[2])));
            assert_eq!(taken, filter + 32 * 57 * 57 * 128 * 4);
            assert_eq!(copies(ConvPass::GradInput, &one_sided, ty).0, one_sided);
        }
        // It pays where tensor cores multiply.
        assert_eq!(select(ConvPass::GradFilter, &one_sided, SINGLE, false, Convolutions::Auto), ConvAlgorithm::Generated);
        assert_eq!(select(ConvPass::GradFilter, &one_sided, SINGLE, true, Convolutions::Auto), ConvAlgorithm::Cudnn(ROUNDED));
    }

    /// TF32 has the rules of 16 bits with vectors of four channels, and other types do not become TF32.
    #[test]
    fn tf32_goes_to_tensor_cores() {
        let (wide, stem, product) = (conv(32, 56, (3, 1), 1, 64, 64), conv(32, 224, (7, 2), 1, 3, 64), conv(32, 56, (1, 1), 1, 256, 64));
        let selected = |conv, types, tf32| select(ConvPass::Forward, conv, types, tf32, Convolutions::Auto);
        assert_eq!([false, true].map(|tf32| selected(&wide, SINGLE, tf32)), [ConvAlgorithm::Generated, ConvAlgorithm::Cudnn(ROUNDED)]);
        assert_eq!([false, true].map(|tf32| selected(&product, SINGLE, tf32)), [EXACT, ROUNDED].map(ConvAlgorithm::Matmul));
        assert_eq!(selected(&wide, MIXED, true), ConvAlgorithm::Cudnn(HALF));
        assert_eq!(copies(ConvPass::Forward, &stem, ROUNDED).0.image, [32, 224, 224, 4]);
        assert_eq!(workspace(ConvPass::Forward, &wide, SINGLE, true, Convolutions::Auto), filter_bytes(&wide, DType::F32) + PARTS);
    }

    #[test]
    fn libraries_can_be_asked_for_everywhere() {
        let small = conv(2, 5, (3, 2), 2, 6, 4);
        assert_eq!(select(ConvPass::Forward, &small, SINGLE, false, Convolutions::Libraries), ConvAlgorithm::Cudnn(EXACT));
        // In groups, only with symmetric padding.
        let one_sided = conv(2, 6, (3, 2), 2, 6, 4);
        assert_eq!(select(ConvPass::Forward, &one_sided, SINGLE, false, Convolutions::Libraries), ConvAlgorithm::Generated);
        assert_eq!(
            select(ConvPass::GradFilter, &conv(2, 5, (1, 1), 1, 3, 5), SINGLE, false, Convolutions::Libraries),
            ConvAlgorithm::Matmul(EXACT)
        );
    }

    /// Image and output, twice 12.25 MiB, are copied in single precision only. The filter in the library's layout comes
    /// before.
    #[test]
    fn scratch_is_what_the_rule_says() {
        let wide = conv(32, 28, (3, 1), 1, 128, 128);
        let (image, filter) = (32 * 28 * 28 * 128 * 4, 9 * 128 * 128 * 4);
        let at = |pass, types| workspace(pass, &wide, types, false, Convolutions::Auto);
        assert_eq!(at(ConvPass::Forward, SINGLE), filter + (2 * image + filter + PARTS).min(MOST));
        assert_eq!(at(ConvPass::GradInput, SINGLE), at(ConvPass::Forward, SINGLE));
        assert_eq!(at(ConvPass::Forward, MIXED), filter / 2 + PARTS);
        // The filter gradient has at least the workspace of the generated kernels.
        assert_eq!(at(ConvPass::GradFilter, MIXED), kernels::grad_filter_workspace(&wide).max(filter / 2 + PARTS));
        let product = conv(32, 56, (1, 1), 1, 256, 64);
        assert_eq!(
            workspace(ConvPass::Forward, &product, MIXED, false, Convolutions::Auto),
            matmul::workspace(32 * 56 * 56, 64) + 256 * 64 * 2
        );
        // In 16 bits, channels are padded to a multiple of eight.
        let first = conv(4, 224, (7, 2), 1, 3, 64);
        let filled = (4 * 224 * 224 * 8 + 49 * 8 * 64) * 2;
        assert_eq!(workspace(ConvPass::Forward, &first, MIXED, false, Convolutions::Auto), filled + PARTS);
    }

    /// A run-time switch must not change a plan, and a plan for more rows must be valid for fewer.
    #[test]
    fn scratch_depends_on_shapes_only_and_never_shrinks() {
        for (size, stride, channels, filters) in [(3, 1, 64, 64), (1, 1, 256, 64), (7, 2, 3, 64), (1, 2, 64, 128), (3, 1, 4, 2)] {
            for (pass, types, tf32) in
                KINDS.into_iter().flat_map(|pass| [(pass, SINGLE, false), (pass, SINGLE, true), (pass, MIXED, false)])
            {
                let sizes = [1, 2, 3, 7, 16, 32, 33, 100, 257, 1000].map(|rows| {
                    let conv = conv(rows, 56, (size, stride), 1, channels, filters);
                    let size = workspace(pass, &conv, types, tf32, Convolutions::Auto);
                    assert_eq!(size, workspace(pass, &conv, types, tf32, Convolutions::Generated));
                    size
                });
                assert!(sizes.is_sorted(), "{size}×{size} by {stride} {pass:?} {types:?}: {sizes:?}");
            }
        }
    }

    #[test]
    fn channels_are_completed_only_where_they_are_no_whole_vectors() {
        let patches = ConvShape { window: Window::valid((16, 16), (16, 16)), groups: 1, image: [2, 224, 224, 3], result: [2, 14, 14, 768] };
        for pass in KINDS {
            let (merged, taken) = copies(pass, &patches, HALF);
            assert_eq!((merged.image, merged.window.size, merged.window.stride), ([2, 224, 14, 48], (16, 1), (16, 1)));
            assert_eq!(taken, filter_bytes(&patches, DType::BF16));
            assert_eq!(copies(pass, &patches, EXACT).0.image, patches.image);
        }
        let stem = conv(2, 224, (7, 2), 1, 3, 64);
        assert_eq!(copies(ConvPass::Forward, &stem, HALF).0.image, [2, 224, 224, 8]);
        assert_eq!(copies(ConvPass::GradInput, &stem, HALF).0.image, stem.image);
        let wide = conv(2, 56, (3, 1), 1, 64, 64);
        assert_eq!(copies(ConvPass::Forward, &wide, HALF), (wide, filter_bytes(&wide, DType::BF16)));
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
