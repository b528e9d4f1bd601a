//! Pooling over windows. The gradients gather: every pixel visits the windows that cover it, so no atomics are needed
//! and the order is fixed. A thread has some adjacent channels of a pixel.

use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use plimsoll_core::ops::Window;
use std::fmt::Write;

/// Adjacent channels per thread.
fn width(channels: usize) -> usize {
    [8, 4, 2, 1].into_iter().find(|width| channels.is_multiple_of(*width)).expect("one divides everything")
}

/// One thread per pixel and `width` channels of `dims`, with the coordinates `n`, `y`, `x`, and the first channel `c`.
fn per_pixel(name: &'static str, what: String, dims: [usize; 4], extent: usize, parameters: Vec<(String, Argument)>, body: &str) -> Kernel {
    let [n, h, w, c] = dims;
    let (width, index) = (width(c), index_type(extent));
    let (vectors, threads) = (c / width, n * h * w * (c / width));
    let mut text = String::new();
    let _ = writeln!(text, "const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (thread >= {threads}) return;");
    let _ = writeln!(text, "const {index} c = thread % {vectors} * {width}, n = thread / {}, e = thread * {width};", h * w * vectors);
    let _ = writeln!(text, "const int x = thread / {vectors} % {w}, y = thread / {} % {h};", w * vectors);
    Kernel { name, what, parameters, body: text + body, grid: [block_count(threads, THREADS), 1, 1], threads: THREADS as u32 }
}

/// Iterates over the elements of a window inside the image, as `row` and `line` at offset (`i`, `j`).
fn over_window(window: &Window, image: [usize; 4], body: &str) -> String {
    let [_, h, w, _] = image;
    let ((kh, kw), (sh, sw)) = (window.size, window.stride);
    format!(
        "for (int i = 0; i < {kh}; i++) for (int j = 0; j < {kw}; j++) {{\n    \
             const int row = y * {sh} + i - {}, line = x * {sw} + j - {};\n    \
             if ((unsigned)row >= {h}u || (unsigned)line >= {w}u) continue;\n    {body}\n}}\n",
        window.pad_rows.0, window.pad_columns.0
    )
}

/// Iterates over the windows that cover a pixel, as `(v, h)`, with its offset (`i`, `j`) in each.
fn over_windows(window: &Window, result: [usize; 4], body: &str) -> String {
    let [_, oh, ow, _] = result;
    let ((kh, kw), (sh, sw)) = (window.size, window.stride);
    format!(
        "for (int i = 0; i < {kh}; i++) for (int j = 0; j < {kw}; j++) {{\n    \
             const int down = y + {} - i, right = x + {} - j, v = down / {sh}, h = right / {sw};\n    \
             if (down < 0 || right < 0 || v >= {oh} || h >= {ow} || down % {sh} != 0 || right % {sw} != 0) continue;\n    {body}\n}}\n",
        window.pad_rows.0, window.pad_columns.0
    )
}

fn place([_, h, w, c]: [usize; 4], row: &str, line: &str) -> String {
    format!("((n * {h} + {row}) * {w} + {line}) * {c} + c")
}

fn extent(image: [usize; 4], result: [usize; 4]) -> usize {
    image.iter().product::<usize>().max(result.iter().product())
}

/// The maximum of every window and its offset in it: the first of equal elements; NaN wins.
pub(crate) fn max_pool(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let width = width(image[3]);
    let take = format!(
        "float value[{width}];\n    load_vector(value, image + {});\n    \
         #pragma unroll\n    for (int u = 0; u < {width}; u++) {{\n        \
         if (place[u] < 0 || (!is_nan(best[u]) && (is_nan(value[u]) || value[u] > best[u]))) {{ best[u] = value[u]; place[u] = i * {} + j; }}\n    }}",
        place(image, "row", "line"),
        window.size.1
    );
    let body = format!(
        "float best[{width}] = {{}}, place[{width}];\nfor (int u = 0; u < {width}; u++) place[u] = -1.0f;\n{}\
         store_vector(out + e, best);\nstore_vector(places + e, place);\n",
        over_window(window, image, &take)
    );
    let parameters = vec![
        parameter(dtype, "image", Argument::Input(0)),
        parameter(dtype, "out", Argument::Output(0)),
        ("unsigned char* places".to_string(), Argument::Output(1)),
    ];
    per_pixel("max_pool", format!("max pool {window} of {image:?}"), result, extent(image, result), parameters, &body)
}

/// Every pixel gathers the gradients of the windows of which it is the maximum.
pub(crate) fn max_pool_grad(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let (index, width) = (index_type(extent(image, result)), width(image[3]));
    let take = format!(
        "const {index} at = {};\n    float place[{width}], value[{width}];\n    \
         load_vector(place, places + at);\n    load_vector(value, gradient + at);\n    \
         #pragma unroll\n    for (int u = 0; u < {width}; u++) if (place[u] == i * {} + j) sum[u] += value[u];",
        place(result, "v", "h"),
        window.size.1
    );
    let body = format!("float sum[{width}] = {{}};\n{}store_vector(out + e, sum);\n", over_windows(window, result, &take));
    let parameters = vec![
        ("const unsigned char* places".to_string(), Argument::Input(0)),
        parameter(dtype, "gradient", Argument::Input(1)),
        parameter(dtype, "out", Argument::Output(0)),
    ];
    per_pixel("max_pool_grad", format!("gradient of max pool {window} of {image:?}"), image, extent(image, result), parameters, &body)
}

/// The mean of every window over the elements inside the image.
pub(crate) fn avg_pool(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let width = width(image[3]);
    let take = format!(
        "float value[{width}];\n    load_vector(value, image + {});\n    for (int u = 0; u < {width}; u++) sum[u] += value[u];\n    count++;",
        place(image, "row", "line")
    );
    let body = format!(
        "float sum[{width}] = {{}};\nint count = 0;\n{}for (int u = 0; u < {width}; u++) sum[u] /= count;\nstore_vector(out + e, sum);\n",
        over_window(window, image, &take)
    );
    let parameters = vec![parameter(dtype, "image", Argument::Input(0)), parameter(dtype, "out", Argument::Output(0))];
    per_pixel("avg_pool", format!("average pool {window} of {image:?}"), result, extent(image, result), parameters, &body)
}

/// Every pixel gathers its share of the gradients of the windows that cover it.
pub(crate) fn avg_pool_grad(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let ([_, h, w, _], width) = (image, width(image[3]));
    let ((kh, kw), (sh, sw)) = (window.size, window.stride);
    let take = format!(
        "const int top = v * {sh} - {}, left = h * {sw} - {};\n    \
         const int count = (min(top + {kh}, {h}) - max(top, 0)) * (min(left + {kw}, {w}) - max(left, 0));\n    \
         float value[{width}];\n    load_vector(value, gradient + {});\n    for (int i = 0; i < {width}; i++) sum[i] += value[i] / count;",
        window.pad_rows.0,
        window.pad_columns.0,
        place(result, "v", "h")
    );
    let body = format!("float sum[{width}] = {{}};\n{}store_vector(out + e, sum);\n", over_windows(window, result, &take));
    let parameters = vec![parameter(dtype, "gradient", Argument::Input(0)), parameter(dtype, "out", Argument::Output(0))];
    per_pixel("avg_pool_grad", format!("gradient of average pool {window} of {image:?}"), image, extent(image, result), parameters, &body)
}
