//! Depthwise convolutions: every channel has its own filter, so they move much more memory than they compute.
//!
//! A thread computes a tile of pixels for some adjacent channels, and reads every element of the image around the tile
//! once. Loops over taps are written out: which taps an element takes part in is known when the source is generated.

use super::convolution::ConvShape;
use super::expression::FusedExpr;
use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum filter elements that a thread keeps in registers.
const REGISTERS: usize = 40;
/// Maximum taps: the code of larger windows would be too long.
const TAPS: usize = 49;
/// Pixels of a tile.
const TILE: (usize, usize) = (2, 4);
/// Pixels per step of a filter gradient.
const STRETCH: usize = 4;
/// Tiles per lane before a filter gradient is split into chunks.
const LANE: usize = 4;
/// Number of blocks that fill a large device.
const BLOCKS: usize = 1056;

/// Whether these kernels compute a convolution.
pub(super) fn is_depthwise(conv: &ConvShape) -> bool {
    let channels = conv.image[3];
    conv.groups == channels && conv.result[3] == channels && channels > 1 && conv.taps() <= TAPS
}

/// Adjacent channels per thread.
fn width(conv: &ConvShape) -> usize {
    let fits = |width: &usize| conv.image[3].is_multiple_of(*width) && (*width == 1 || width * conv.taps() <= REGISTERS);
    [4, 2, 1].into_iter().find(fits).expect("one channel always fits")
}

/// A pixel of a tile, and a tap.
type Use = ((usize, usize), usize);

/// The offset of a source element from the tile's source, and the pixels and taps that read it.
type Reads = BTreeMap<(isize, isize), Vec<Use>>;

/// The convolution with an optional epilogue, whose input 0 is the result; further inputs follow the filter.
pub(super) fn forward(conv: &ConvShape, types: [DType; 3], epilogue: Option<&FusedExpr<'_>>) -> Kernel {
    let window = conv.window;
    let mut reads = Reads::new();
    over(TILE, |pixel| {
        over(window.size, |tap| {
            let at = |pixel: usize, stride: usize, tap: usize, dilation: usize| (pixel * stride + tap * dilation) as isize;
            let row = at(pixel.0, window.stride.0, tap.0, window.dilation.0);
            let column = at(pixel.1, window.stride.1, tap.1, window.dilation.1);
            reads.entry((row, column)).or_default().push((pixel, tap.0 * window.size.1 + tap.1));
        });
    });
    let mut parameters = vec![parameter(types[0], "source", Argument::Input(0)), parameter(types[1], "filter", Argument::Input(1))];
    let origin =
        [format!("y0 * {} - {}", window.stride.0, window.pad_rows.0), format!("x0 * {} - {}", window.stride.1, window.pad_columns.0)];
    let index = index_type(conv.extent());
    let store = epilogue.map(|site| {
        // Input 0 is in a register; input 1 of the expression is input 2 of the node.
        parameters.extend(site.parameters(1));
        let mut text = format!("const {index} element = at + u;\nconst float value = sums[u];\n");
        site.write(&mut text, index, "element");
        let _ = writeln!(text, "store(result + element, {});", site.root(0));
        text
    });
    parameters.push(parameter(types[2], "result", Argument::Output(0)));
    let what = conv.text("depthwise convolution");
    tiles(("depthwise_conv2d", what), conv, TILE, (conv.image, conv.result), &reads, origin, parameters, store.as_deref())
}

/// The image gradient. `types` are those of the filter, the gradient and the result.
pub(super) fn grad_input(conv: &ConvShape, types: [DType; 3]) -> Kernel {
    let window = conv.window;
    // Tiles begin at multiples of the stride, so that every tap reads whole pixels of the gradient or none.
    let tile = (TILE.0.next_multiple_of(window.stride.0), TILE.1.next_multiple_of(window.stride.1));
    let mut reads = Reads::new();
    over(tile, |pixel| {
        over(window.size, |tap| {
            let at = |pixel: usize, pad: usize, tap: usize, dilation: usize, stride: usize| {
                let distance = (pixel + pad) as isize - (tap * dilation) as isize;
                (distance.rem_euclid(stride as isize) == 0).then(|| distance.div_euclid(stride as isize))
            };
            let row = at(pixel.0, window.pad_rows.0, tap.0, window.dilation.0, window.stride.0);
            let column = at(pixel.1, window.pad_columns.0, tap.1, window.dilation.1, window.stride.1);
            if let (Some(row), Some(column)) = (row, column) {
                reads.entry((row, column)).or_default().push((pixel, tap.0 * window.size.1 + tap.1));
            }
        });
    });
    let origin = [format!("y0 / {}", window.stride.0), format!("x0 / {}", window.stride.1)];
    let parameters = vec![
        parameter(types[0], "filter", Argument::Input(0)),
        parameter(types[1], "source", Argument::Input(1)),
        parameter(types[2], "result", Argument::Output(0)),
    ];
    let what = conv.text("gradient by the image of depthwise");
    tiles(("depthwise_conv2d_grad_input", what), conv, tile, (conv.result, conv.image), &reads, origin, parameters, None)
}

/// One thread per tile of `result` and `width` channels; sums over the elements of `source` that it reads.
#[allow(clippy::too_many_arguments, reason = "two callers, which name each")]
fn tiles(
    (name, what): (&'static str, String),
    conv: &ConvShape,
    (down, across): (usize, usize),
    (source, result): ([usize; 4], [usize; 4]),
    reads: &Reads,
    [row, column]: [String; 2],
    parameters: Vec<(String, Argument)>,
    store: Option<&str>,
) -> Kernel {
    let ([_, sh, sw, c], [n, h, w, _], width) = (source, result, width(conv));
    let (rows, columns, channels) = (h.div_ceil(down), w.div_ceil(across), c / width);
    let threads = n * rows * columns * channels;
    let index = index_type(conv.extent().max(threads));
    let mut body = String::new();
    let _ = writeln!(body, "const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (thread >= {threads}) return;");
    let _ = writeln!(body, "const int c = thread % {channels} * {width}, x0 = thread / {channels} % {columns} * {across};");
    let _ = writeln!(body, "const int y0 = thread / {} % {rows} * {down};", channels * columns);
    let _ = writeln!(body, "const {index} n = thread / {};", channels * columns * rows);
    let _ = writeln!(body, "const int row0 = {row}, column0 = {column};");
    let _ = writeln!(body, "float weights[{}][{width}], acc[{}][{width}] = {{}};", conv.taps(), down * across);
    let _ = writeln!(body, "#pragma unroll\nfor (int t = 0; t < {}; t++) load_vector(weights[t], filter + t * {c} + c);", conv.taps());
    let _ = writeln!(body, "source += n * {} + c;", sh * sw * c);
    let source_at = |down: isize, right: isize| format!("source + ({index})((row0 + {down}) * {sw} + column0 + {right}) * {c}");
    let uses = |((y, x), tap): &Use| format!("acc[{}][u] += {{x}}[u] * weights[{tap}][u];", y * across + x);
    rows_of_reads(&mut body, 0, reads, (sh, sw), width, &source_at, &uses);
    let _ = writeln!(body, "#pragma unroll\nfor (int p = 0; p < {}; p++) {{", down * across);
    let _ = writeln!(body, "    const int y = y0 + p / {across}, x = x0 + p % {across};\n    if (y >= {h} || x >= {w}) continue;");
    let _ = writeln!(body, "    const {index} at = ((n * {h} + y) * {w} + x) * {c} + c;\n    const float (&sums)[{width}] = acc[p];");
    match store {
        None => body += "    store_vector(result + at, sums);\n",
        Some(text) => {
            let _ = writeln!(body, "    #pragma unroll\n    for (int u = 0; u < {width}; u++) {{");
            super::indented(&mut body, 2, text);
            body += "    }\n";
        }
    }
    body += "}\n";
    Kernel { name, what, parameters, body, grid: [block_count(threads, THREADS), 1, 1], threads: THREADS as u32 }
}

/// Loads the elements that are read, row by row, and adds their products. All elements of a row are loaded before the
/// first is used; zeros outside of the image take part as all others, so that there are no branches between loads.
fn rows_of_reads(
    body: &mut String,
    steps: usize,
    reads: &Reads,
    (height, width): (usize, usize),
    channels: usize,
    at: &dyn Fn(isize, isize) -> String,
    product: &dyn Fn(&Use) -> String,
) {
    let mut text = String::new();
    let columns: BTreeSet<isize> = reads.keys().map(|(_, right)| *right).collect();
    let rows: BTreeSet<isize> = reads.keys().map(|(down, _)| *down).collect();
    let name = |right: isize| if right < 0 { format!("m{}", -right) } else { right.to_string() };
    for right in &columns {
        let _ = writeln!(text, "const bool in_{} = (unsigned)(column0 + {right}) < {width}u;", name(*right));
    }
    for down in rows {
        let _ = writeln!(text, "{{\n    const bool in_row = (unsigned)(row0 + {down}) < {height}u;");
        let own: Vec<(isize, &Vec<Use>)> =
            reads.iter().filter(|((row, _), _)| *row == down).map(|((_, right), uses)| (*right, uses)).collect();
        for (right, _) in &own {
            let x = format!("x_{}", name(*right));
            let _ = writeln!(
                text,
                "    float {x}[{channels}] = {{}};\n    if (in_row && in_{}) load_vector({x}, {});",
                name(*right),
                at(down, *right)
            );
        }
        let _ = writeln!(text, "    #pragma unroll\n    for (int u = 0; u < {channels}; u++) {{");
        for (right, uses) in &own {
            let products: Vec<String> = uses.iter().map(|pair| product(pair).replace("{x}", &format!("x_{}", name(*right)))).collect();
            let _ = writeln!(text, "        {}", products.join(" "));
        }
        text += "    }\n}\n";
    }
    super::indented(body, steps, &text);
}

/// How the filter gradient is split: threads over channels, lanes, and chunks of the sum.
struct Split {
    across: usize,
    lanes: usize,
    blocks: usize,
    /// Stretches of [`STRETCH`] pixels in a row.
    stretches: usize,
    chunks: usize,
}

fn split(conv: &ConvShape) -> Split {
    let channels = conv.image[3] / width(conv);
    let across = channels.next_power_of_two().min(32);
    let (lanes, blocks) = (THREADS / across, channels.div_ceil(across));
    let stretches = conv.result[0] * conv.result[1] * conv.result[2].div_ceil(STRETCH);
    let chunks = stretches.div_ceil(lanes * LANE).min(BLOCKS / blocks).max(1);
    Split { across, lanes, blocks, stretches, chunks }
}

/// Number of chunks of a filter gradient's sum; monotone in the rows.
pub(super) fn chunks(conv: &ConvShape) -> usize {
    split(conv).chunks
}

/// The filter gradient of each chunk, `[chunks, taps, channels]`. `types` are those of the image and the gradient.
pub(super) fn grad_filter(conv: &ConvShape, types: [DType; 2], target: Argument) -> Kernel {
    let ConvShape { window, image: [_, h, w, c], result: [_, oh, ow, _], .. } = *conv;
    let (width, Split { across, lanes, blocks, stretches, chunks }) = (width(conv), split(conv));
    let (taps, per_row) = (conv.taps(), ow.div_ceil(STRETCH));
    let index = index_type(conv.extent().max(stretches).max(chunks * taps * c));
    let mut reads = Reads::new();
    over((1, STRETCH), |pixel| {
        over(window.size, |tap| {
            let (row, column) = (tap.0 * window.dilation.0, pixel.1 * window.stride.1 + tap.1 * window.dilation.1);
            reads.entry((row as isize, column as isize)).or_default().push((pixel, tap.0 * window.size.1 + tap.1));
        });
    });
    let chunk = stretches.div_ceil(chunks);
    let mut body = String::new();
    let _ = writeln!(body, "const int c = (blockIdx.x * {across} + threadIdx.x % {across}) * {width}, lane = threadIdx.x / {across};");
    let _ = writeln!(body, "const {index} end = min(({index}){stretches}, ({index})(blockIdx.y + 1) * {chunk});");
    let _ = writeln!(body, "float acc[{taps}][{width}] = {{}};");
    let _ = writeln!(body, "if (c < {c}) for ({index} s = ({index})blockIdx.y * {chunk} + lane; s < end; s += {lanes}) {{");
    let _ = writeln!(
        body,
        "    const int x0 = s % {per_row} * {STRETCH}, y = s / {per_row} % {oh};\n    const {index} n = s / {};",
        per_row * oh
    );
    let _ = writeln!(body, "    float dy[{STRETCH}][{width}];\n    #pragma unroll\n    for (int p = 0; p < {STRETCH}; p++) {{");
    let _ = writeln!(body, "        if (x0 + p < {ow}) load_vector(dy[p], gradient + ((n * {oh} + y) * {ow} + x0 + p) * {c} + c);");
    let _ = writeln!(body, "        else for (int u = 0; u < {width}; u++) dy[p][u] = 0.0f;\n    }}");
    let _ = writeln!(
        body,
        "    const int row0 = y * {} - {}, column0 = x0 * {} - {};",
        window.stride.0, window.pad_rows.0, window.stride.1, window.pad_columns.0
    );
    let image_at = |down: isize, right: isize| format!("image + ((n * {h} + row0 + {down}) * {w} + column0 + {right}) * {c} + c");
    let uses = |((_, p), tap): &Use| format!("acc[{tap}][u] += {{x}}[u] * dy[{p}][u];");
    rows_of_reads(&mut body, 1, &reads, (h, w), width, &image_at, &uses);
    let _ = writeln!(body, "}}\n__shared__ float sums[{width}][{THREADS}];\n#pragma unroll\nfor (int t = 0; t < {taps}; t++) {{");
    let _ = writeln!(body, "    for (int u = 0; u < {width}; u++) sums[u][threadIdx.x] = acc[t][u];\n    __syncthreads();");
    let _ = writeln!(body, "    for (int half = {}; half > 0; half /= 2) {{", lanes / 2);
    let _ = writeln!(
        body,
        "        if (lane < half) for (int u = 0; u < {width}; u++) sums[u][threadIdx.x] += sums[u][threadIdx.x + half * {across}];"
    );
    body += "        __syncthreads();\n    }\n";
    let _ = writeln!(
        body,
        "    if (lane == 0 && c < {c}) for (int u = 0; u < {width}; u++) result[(({index})blockIdx.y * {taps} + t) * {c} + c + u] = sums[u][threadIdx.x];"
    );
    body += "    __syncthreads();\n}\n";
    Kernel {
        name: "depthwise_conv2d_grad_filter",
        what: conv.text("gradient by the filter of depthwise"),
        parameters: vec![
            parameter(types[0], "image", Argument::Input(0)),
            parameter(types[1], "gradient", Argument::Input(1)),
            parameter(DType::F32, "result", target),
        ],
        body,
        grid: [blocks as u32, chunks as u32, 1],
        threads: THREADS as u32,
    }
}

/// Visits all pairs below the extents.
fn over((rows, columns): (usize, usize), mut visit: impl FnMut((usize, usize))) {
    for row in 0..rows {
        (0..columns).for_each(|column| visit((row, column)));
    }
}
