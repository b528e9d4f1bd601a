//! Pooling over windows. The gradients gather: every pixel visits the windows that cover it, so no atomics are needed
//! and the order is fixed.

use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use plimsoll_core::ops::Window;
use std::fmt::Write;

/// One thread per element of `dims`, with its coordinates `n`, `y`, `x`, `c`.
fn per_element(
    name: &'static str,
    what: String,
    dims: [usize; 4],
    extent: usize,
    parameters: Vec<(String, Argument)>,
    body: &str,
) -> Kernel {
    let (n, index) = (dims.iter().product::<usize>(), index_type(extent));
    let [_, h, w, c] = dims;
    let mut text = String::new();
    let _ = writeln!(text, "const {index} e = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (e >= {n}) return;");
    let _ = writeln!(text, "const {index} c = e % {c}, n = e / {};", h * w * c);
    let _ = writeln!(text, "const int x = e / {c} % {w}, y = e / {} % {h};", w * c);
    Kernel { name, what, parameters, body: text + body, grid: [block_count(n, THREADS), 1, 1], threads: THREADS as u32 }
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

/// Iterates over the windows that cover a pixel, as `(v, u)`, with its offset (`i`, `j`) in each.
fn over_windows(window: &Window, result: [usize; 4], body: &str) -> String {
    let [_, oh, ow, _] = result;
    let ((kh, kw), (sh, sw)) = (window.size, window.stride);
    format!(
        "for (int i = 0; i < {kh}; i++) for (int j = 0; j < {kw}; j++) {{\n    \
             const int down = y + {} - i, right = x + {} - j, v = down / {sh}, u = right / {sw};\n    \
             if (down < 0 || right < 0 || v >= {oh} || u >= {ow} || down % {sh} != 0 || right % {sw} != 0) continue;\n    {body}\n}}\n",
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
    let take = format!(
        "const float value = load(image[{}]);\n    \
         if (place < 0 || (!is_nan(best) && (is_nan(value) || value > best))) {{ best = value; place = i * {} + j; }}",
        place(image, "row", "line"),
        window.size.1
    );
    let body =
        format!("float best = 0.0f;\nint place = -1;\n{}store(out + e, best);\nplaces[e] = place;\n", over_window(window, image, &take));
    let parameters = vec![
        parameter(dtype, "image", Argument::Input(0)),
        parameter(dtype, "out", Argument::Output(0)),
        ("unsigned char* places".to_string(), Argument::Output(1)),
    ];
    per_element("max_pool", format!("max pool {window} of {image:?}"), result, extent(image, result), parameters, &body)
}

/// Every pixel gathers the gradients of the windows of which it is the maximum.
pub(crate) fn max_pool_grad(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let index = index_type(extent(image, result));
    let take = format!(
        "const {index} at = {};\n    if (places[at] == i * {} + j) sum += load(gradient[at]);",
        place(result, "v", "u"),
        window.size.1
    );
    let body = format!("float sum = 0.0f;\n{}store(out + e, sum);\n", over_windows(window, result, &take));
    let parameters = vec![
        ("const unsigned char* places".to_string(), Argument::Input(0)),
        parameter(dtype, "gradient", Argument::Input(1)),
        parameter(dtype, "out", Argument::Output(0)),
    ];
    per_element("max_pool_grad", format!("gradient of max pool {window} of {image:?}"), image, extent(image, result), parameters, &body)
}

/// The mean of every window over the elements inside the image.
pub(crate) fn avg_pool(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let take = format!("sum += load(image[{}]);\n    count++;", place(image, "row", "line"));
    let body = format!("float sum = 0.0f;\nint count = 0;\n{}store(out + e, sum / count);\n", over_window(window, image, &take));
    let parameters = vec![parameter(dtype, "image", Argument::Input(0)), parameter(dtype, "out", Argument::Output(0))];
    per_element("avg_pool", format!("average pool {window} of {image:?}"), result, extent(image, result), parameters, &body)
}

/// Every pixel gathers its share of the gradients of the windows that cover it.
pub(crate) fn avg_pool_grad(window: &Window, image: [usize; 4], result: [usize; 4], dtype: DType) -> Kernel {
    let [_, h, w, _] = image;
    let ((kh, kw), (sh, sw)) = (window.size, window.stride);
    let take = format!(
        "const int top = v * {sh} - {}, left = u * {sw} - {};\n    \
         const int count = (min(top + {kh}, {h}) - max(top, 0)) * (min(left + {kw}, {w}) - max(left, 0));\n    \
         sum += load(gradient[{}]) / count;",
        window.pad_rows.0,
        window.pad_columns.0,
        place(result, "v", "u")
    );
    let body = format!("float sum = 0.0f;\n{}store(out + e, sum);\n", over_windows(window, result, &take));
    let parameters = vec![parameter(dtype, "gradient", Argument::Input(0)), parameter(dtype, "out", Argument::Output(0))];
    per_element("avg_pool_grad", format!("gradient of average pool {window} of {image:?}"), image, extent(image, result), parameters, &body)
}
