//! Convolution and its two gradients as implicit GEMMs: no im2col matrix is materialized; elements are read from the
//! image in place. Images are `[n, h, w, c]`, filters `[kh, kw, c / groups, out]`.

use super::depthwise;
use super::expression::FusedExpr;
use super::reduce::reduce;
use super::tiled_matmul::{Tile, TiledMatmul};
use super::{Argument, Kernel, index_type, parameter};
use plimsoll_core::DType;
use plimsoll_core::expr::Expr;
use plimsoll_core::ops::{Reduction, Window};
use std::fmt::Write;

/// The extents of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvShape {
    pub window: Window,
    pub groups: usize,
    /// `[n, h, w, c]`.
    pub image: [usize; 4],
    /// `[n, h, w, out]`.
    pub result: [usize; 4],
}

/// Minimum products per chunk of a filter gradient's sum (split-K) …
const CHUNK: usize = 256;
/// … and the maximum number of resulting blocks.
const BLOCKS: usize = 1024;

impl ConvShape {
    fn inner(&self) -> usize {
        self.image[3] / self.groups
    }

    fn out(&self) -> usize {
        self.result[3] / self.groups
    }

    fn pixels(&self) -> usize {
        self.result[..3].iter().product()
    }

    /// Filter elements per output channel.
    pub fn taps(&self) -> usize {
        self.window.size.0 * self.window.size.1 * self.inner()
    }

    pub(super) fn extent(&self) -> usize {
        self.image.iter().product::<usize>().max(self.result.iter().product()).max(self.taps() * self.result[3])
    }

    pub(super) fn text(&self, what: &str) -> String {
        format!("{what} {:?} → {:?}, {}, {} groups", self.image, self.result, self.window, self.groups)
    }

    /// Sets `value` to the image element under tap `tap` of the window at pixel `pixel`; zero in the padding.
    fn image_element(&self, pixel: &str, tap: &str) -> String {
        let ConvShape { window, image: [_, h, w, c], result: [_, oh, ow, _], .. } = self;
        let (inner, (_, kw)) = (self.inner(), window.size);
        let mut text = String::new();
        let _ = writeln!(text, "const int x = {pixel} % {ow}, y = {pixel} / {ow} % {oh};");
        let _ = writeln!(text, "const int channel = {tap} % {inner}, j = {tap} / {inner} % {kw}, i = {tap} / {};", inner * kw);
        let _ = writeln!(text, "const int row = y * {} + i * {} - {};", window.stride.0, window.dilation.0, window.pad_rows.0);
        let _ = writeln!(text, "const int line = x * {} + j * {} - {};", window.stride.1, window.dilation.1, window.pad_columns.0);
        let inside = format!("(unsigned)row < {h}u && (unsigned)line < {w}u");
        let _ = writeln!(
            text,
            "if ({inside}) value = load(image[(({pixel} / {} * {h} + row) * {w} + line) * {c} + g * {inner} + channel]);",
            oh * ow
        );
        text
    }
}

/// The convolution with an optional epilogue, whose input 0 is the result; further inputs follow the filter. `types`
/// are those of the image, the filter and the result.
pub(crate) fn forward(conv: &ConvShape, types: [DType; 3], epilogue: Option<&FusedExpr<'_>>) -> Kernel {
    if depthwise::is_depthwise(conv) {
        return depthwise::forward(conv, types, epilogue);
    }
    let (out, all) = (conv.out(), conv.result[3]);
    let mut parameters = vec![parameter(types[0], "image", Argument::Input(0)), parameter(types[1], "filter", Argument::Input(1))];
    let index = index_type(conv.extent());
    let mut store = format!("const {index} at = m * {all} + g * {out} + n;\n");
    match epilogue {
        None => store += "store(result + at, value);\n",
        Some(site) => {
            // Input 0 is in a register; input 1 of the expression is input 2 of the node.
            parameters.extend(site.parameters(1));
            site.write(&mut store, index, "at");
            let _ = writeln!(store, "store(result + at, {});", site.root(0));
        }
    }
    parameters.push(parameter(types[2], "result", Argument::Output(0)));
    TiledMatmul {
        name: "conv2d",
        what: conv.text("convolution"),
        rows: conv.pixels(),
        columns: out,
        depth: conv.taps(),
        groups: conv.groups,
        chunks: 1,
        left: conv.image_element("m", "k"),
        left_along_depth: conv.inner() >= 4,
        right: format!("value = load(filter[k * {all} + g * {out} + n]);\n"),
        right_along_depth: false,
        store,
        parameters,
        extent: conv.extent(),
    }
    .kernel()
}

/// The image gradient: every pixel gathers from the windows that cover it. `types` are those of the filter, the
/// gradient and the result.
pub(crate) fn grad_input(conv: &ConvShape, types: [DType; 3]) -> Kernel {
    if depthwise::is_depthwise(conv) {
        return depthwise::grad_input(conv, types);
    }
    let ConvShape { window, image: [n, h, w, c], result: [_, oh, ow, all], groups } = *conv;
    let (inner, out, (kh, kw)) = (conv.inner(), conv.out(), window.size);
    let mut left = String::new();
    let _ = writeln!(left, "const int line = m % {w}, row = m / {w} % {h};");
    let _ = writeln!(left, "const int channel = k % {out}, j = k / {out} % {kw}, i = k / {};", out * kw);
    let _ = writeln!(
        left,
        "const int down = row + {} - i * {}, right = line + {} - j * {};",
        window.pad_rows.0, window.dilation.0, window.pad_columns.0, window.dilation.1
    );
    let _ = writeln!(left, "const int y = down / {}, x = right / {};", window.stride.0, window.stride.1);
    let fits =
        format!("down >= 0 && right >= 0 && y < {oh} && x < {ow} && down % {} == 0 && right % {} == 0", window.stride.0, window.stride.1);
    let _ = writeln!(left, "if ({fits}) value = load(gradient[((m / {} * {oh} + y) * {ow} + x) * {all} + g * {out} + channel]);", h * w);
    TiledMatmul {
        name: "conv2d_grad_input",
        what: conv.text("gradient by the image of"),
        rows: n * h * w,
        columns: inner,
        depth: kh * kw * out,
        groups,
        chunks: 1,
        left,
        left_along_depth: out >= 4,
        right: format!("value = load(filter[(k / {out} * {inner} + n) * {all} + g * {out} + k % {out}]);\n"),
        right_along_depth: true,
        store: format!("store(result + m * {c} + g * {inner} + n, value);\n"),
        parameters: vec![
            parameter(types[0], "filter", Argument::Input(0)),
            parameter(types[1], "gradient", Argument::Input(1)),
            parameter(types[2], "result", Argument::Output(0)),
        ],
        extent: conv.extent(),
    }
    .kernel()
}

/// Number of chunks of a filter gradient's sum; monotone in the rows.
fn chunks(conv: &ConvShape) -> usize {
    if depthwise::is_depthwise(conv) {
        return depthwise::chunks(conv);
    }
    let tiles = Tile::new(conv.taps(), conv.out()).count(conv.taps(), conv.out()) * conv.groups;
    conv.pixels().div_ceil(CHUNK).min(BLOCKS / tiles).max(1)
}

/// Workspace bytes of the filter gradient.
pub(crate) fn grad_filter_workspace(conv: &ConvShape) -> u64 {
    match chunks(conv) {
        1 => 0,
        chunks => (4 * chunks * conv.taps() * conv.result[3]) as u64 + joining_workspace(conv, chunks),
    }
}

/// Summing the chunks is a reduction, which may need its own workspace.
fn joining_workspace(conv: &ConvShape, chunks: usize) -> u64 {
    super::reduce_workspace(&[chunks, conv.taps() * conv.result[3]], &[0])
}

/// The filter gradient: sums over all pixels, split into chunks that are reduced in order. `types` are those of the
/// image and the gradient; filters are single precision.
pub(crate) fn grad_filter(conv: &ConvShape, types: [DType; 2]) -> Vec<Kernel> {
    let chunks = chunks(conv);
    let size = conv.taps() * conv.result[3];
    let target = if chunks == 1 { Argument::Output(0) } else { Argument::Workspace };
    let product = if depthwise::is_depthwise(conv) {
        depthwise::grad_filter(conv, types, target)
    } else {
        tiled_grad_filter(conv, types, target, chunks)
    };
    if chunks == 1 {
        return vec![product];
    }
    let expr = Expr::identity();
    let dims = [chunks, size];
    let operands = [super::Operand { dtype: DType::F32, dims: &dims, strip: None }];
    let mut joining = reduce(&FusedExpr { expr: &expr, dims: &dims, operands: &operands, row: 0, in_registers: &[] }, &[0], Reduction::Sum);
    // The chunks are at the start of the workspace, followed by the workspace of the reduction.
    for kernel in &mut joining {
        kernel.name = "conv2d_grad_filter_sum";
        for (_, argument) in &mut kernel.parameters {
            *argument = match *argument {
                Argument::Input(0) => Argument::Workspace,
                Argument::Workspace => Argument::WorkspaceAt(4 * chunks * size),
                other => other,
            };
        }
    }
    [vec![product], joining].concat()
}

/// The filter gradient of each chunk as a product of images and gradients.
fn tiled_grad_filter(conv: &ConvShape, types: [DType; 2], target: Argument, chunks: usize) -> Kernel {
    let (out, all) = (conv.out(), conv.result[3]);
    let size = conv.taps() * all;
    TiledMatmul {
        name: "conv2d_grad_filter",
        what: conv.text("gradient by the filter of"),
        rows: conv.taps(),
        columns: out,
        depth: conv.pixels(),
        groups: conv.groups,
        chunks,
        left: conv.image_element("k", "m"),
        left_along_depth: conv.inner() < 4,
        right: format!("value = load(gradient[k * {all} + g * {out} + n]);\n"),
        right_along_depth: false,
        store: format!(
            "result[{}m * {all} + g * {out} + n] = value;\n",
            if chunks > 1 { format!("chunk * {size} + ") } else { String::new() }
        ),
        parameters: vec![
            parameter(types[0], "image", Argument::Input(0)),
            parameter(types[1], "gradient", Argument::Input(1)),
            parameter(DType::F32, "result", target),
        ],
        extent: conv.extent().max(chunks * size),
    }
    .kernel()
}
