//! Reductions of one or several expressions along axes. Each lane reduces part of the elements in order, in vectors of
//! adjacent elements; shuffles and shared memory combine the lanes in a fixed order. Long reductions with few results
//! are first split into chunks, which a second kernel combines in the same way.

use super::expression::FusedExpr;
use super::index::strides;
use super::vector::{self, VectorCode, over_elements, vector_code};
use super::{Argument, Kernel, THREADS, block_count, indented, index_type};
use plimsoll_core::expr::{Binary, Term, Unary};
use plimsoll_core::ops::Reduction;
use std::fmt::Write;

/// Vectors per lane before a reduction is split into chunks.
const LANE: usize = 8;
/// Number of blocks that fill a large device: eight of 256 threads on each of 132 multiprocessors.
const BLOCKS: usize = 1056;
/// Maximum threads over adjacent results, if the innermost axis is not reduced.
const COLUMNS: usize = 32;
/// Lanes that combine the chunks of a result, and threads over adjacent results.
const COMBINE: (usize, usize) = (16, 32);
/// Maximum expressions that one reduction sums.
pub(crate) const MOST_SUMS: usize = 2;

/// How a reduction is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Number of results.
    kept: usize,
    /// Elements per result.
    reduced: usize,
    /// Adjacent elements per thread and step.
    width: usize,
    /// Lanes per result; a power of two.
    lanes: usize,
    /// Whether adjacent threads compute adjacent results; otherwise they read adjacent elements of one result.
    columns: bool,
    /// Whether rows are no whole vectors: lanes read whole vectors and skip elements of the rows beside.
    ragged: bool,
    chunks: usize,
}

impl Cut {
    fn new(site: &FusedExpr<'_>, axes: &[usize], kind: Reduction) -> Cut {
        let dims = site.dims;
        let reduced: usize = axes.iter().map(|axis| dims[*axis]).product();
        let kept: usize = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).product();
        let innermost = (0..dims.len()).rev().find(|axis| dims[*axis] > 1);
        let columns = innermost.is_some_and(|axis| !axes.contains(&axis)) && kept >= 8;
        // The elements of the innermost axes that are all reduced, or all kept.
        let run: usize =
            (0..dims.len()).rev().take_while(|axis| dims[*axis] == 1 || axes.contains(axis) != columns).map(|axis| dims[axis]).product();
        let widest = vector::width(site, &[]);
        let fits = |width: usize| [width, 4, 2].into_iter().find(|fit| *fit <= width && run.is_multiple_of(*fit)).unwrap_or(1);
        let simple = matches!(kind, Reduction::Sum | Reduction::Max);
        let (lanes, width, ragged) = match columns {
            true => {
                let width = if simple { fits(widest) } else { 1 };
                let across = kept.div_ceil(width).next_power_of_two().min(COLUMNS);
                (THREADS / across, width, false)
            }
            // One thread reduces a short row; the whole block reduces a long one.
            false if reduced <= 16 => (1, 1, false),
            false => {
                // Long rows of few results are better split into chunks.
                let ragged = run == reduced && reduced >= 4 * widest && fits(widest) < widest && (reduced < 1 << 16 || kept >= 256);
                let width = if ragged { widest } else { fits(widest) };
                let vectors = (reduced / (2 * width)).max(1);
                (1 << vectors.ilog2().clamp(3, THREADS.ilog2()), width, ragged)
            }
        };
        let cut = Cut { kept, reduced, width, lanes, columns, ragged, chunks: 1 };
        let blocks = kept.div_ceil(cut.per_block()).max(1);
        let span = if columns { lanes * LANE } else { lanes * width * LANE };
        let chunks = if ragged || lanes == 1 { 1 } else { reduced.div_ceil(span).min(BLOCKS / blocks).max(1) };
        Cut { chunks, ..cut }
    }

    /// Results per block.
    fn per_block(&self) -> usize {
        THREADS / self.lanes * if self.columns { self.width } else { 1 }
    }
}

/// Workspace bytes of a reduction of at most these extents; monotone in the rows. It suffices for [`MOST_SUMS`] sums at
/// once.
pub(crate) fn reduce_workspace(dims: &[usize], axes: &[usize]) -> u64 {
    let reduced: usize = axes.iter().map(|axis| dims[*axis]).product();
    let kept: usize = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).product();
    // More results may need fewer chunks, so the bound uses monotone quantities: elements, and the maximum number of
    // blocks with at most 256 results.
    let least = 8 * LANE;
    if reduced <= least {
        return 0;
    }
    8 * (kept * reduced.div_ceil(least)).min(BLOCKS * THREADS) as u64
}

/// Whether sums over the same axes are split alike, so that computing them together changes no bit.
pub(crate) fn are_split_alike(sites: &[&FusedExpr<'_>], axes: &[usize]) -> bool {
    if sites.iter().any(|site| picks(site, axes, Reduction::Sum).is_some()) {
        return false;
    }
    let cuts: Vec<Cut> = sites.iter().map(|site| Cut::new(site, axes, Reduction::Sum)).collect();
    cuts.windows(2).all(|pair| pair[0] == pair[1])
}

/// The kernels of a reduction: one, or two if it is split into chunks. Several results of the expression are summed at
/// once, into as many outputs.
pub(crate) fn reduce(site: &FusedExpr<'_>, axes: &[usize], kind: Reduction) -> Vec<Kernel> {
    if let Some(label) = picks(site, axes, kind) {
        return vec![pick(site, axes, label)];
    }
    let cut = Cut::new(site, axes, kind);
    let sums = site.expr.roots().len();
    assert!(sums == 1 || kind == Reduction::Sum && sums <= MOST_SUMS, "only sums are computed together");
    let what = format!("reduce {:?} of {:?} along {axes:?}: {}", kind, site.dims, site.expr);
    let outputs: Vec<(String, Argument)> =
        (0..sums).map(|i| (format!("{}* out{i}", if kind == Reduction::ArgMax { "int" } else { "float" }), Argument::Output(i))).collect();
    let mut parameters = site.parameters(0);
    let text = kind_text(kind);
    let grid = [block_count(cut.kept, cut.per_block()), cut.chunks as u32, 1];
    if cut.chunks == 1 {
        parameters.extend(outputs);
        let store = |i: usize| Store { to: format!("out{i} + o"), value: text.finish };
        let body = body(&cut, site, axes, kind, &store);
        return vec![Kernel { name: "reduce", what, parameters, body, grid, threads: THREADS as u32 }];
    }
    let partials = (format!("{}* partial", text.part), Argument::Workspace);
    parameters.push(partials.clone());
    let index = index_type(cut.kept * cut.chunks * sums);
    let store = |i: usize| Store { to: format!("partial + ({index})({i} * {} + chunk) * {} + o", cut.chunks, cut.kept), value: text.keep };
    let first = Kernel {
        name: "reduce_partial",
        what: format!("{what}, in {} chunks", cut.chunks),
        parameters,
        body: body(&cut, site, axes, kind, &store),
        grid,
        threads: THREADS as u32,
    };
    let second = Kernel {
        name: "reduce_combine",
        what: format!("{what}, joining the chunks"),
        parameters: [vec![partials], outputs].concat(),
        body: combine(&cut, kind, sums),
        grid: [block_count(cut.kept, COMBINE.1), sums as u32, 1],
        threads: (COMBINE.0 * COMBINE.1) as u32,
    };
    vec![first, second]
}

/// The input with the only position along the reduced axis at which the expression is not zero: a sum of
/// `select(equal(position, label), value, 0)`, as in a cross-entropy over class numbers.
fn picks(site: &FusedExpr<'_>, axes: &[usize], kind: Reduction) -> Option<usize> {
    let (&[axis], &[root], Reduction::Sum) = (axes, site.expr.roots(), kind) else { return None };
    let terms = site.expr.terms();
    let constant = |id: u16| matches!(terms[id as usize], Term::Const(bits) if f32::from_bits(bits).is_finite());
    let mut at = root;
    loop {
        at = match terms[at as usize] {
            Term::Binary(Binary::Mul, a, b) if constant(b) => a,
            Term::Binary(Binary::Mul, a, b) if constant(a) => b,
            Term::Unary(Unary::Neg, a) => a,
            _ => break,
        };
    }
    let Term::Select(condition, _, zero) = terms[at as usize] else { return None };
    let Term::Binary(Binary::Equal, a, b) = terms[condition as usize] else { return None };
    let label = match (terms[a as usize], terms[b as usize]) {
        (Term::Coordinate(along), Term::Input(label)) | (Term::Input(label), Term::Coordinate(along)) if usize::from(along) == axis => {
            label
        }
        _ => return None,
    };
    let label = usize::from(label);
    let operand = &site.operands[label];
    let own = axis.checked_sub(site.dims.len() - operand.dims.len());
    let steady = operand.strip.is_none() && own.is_none_or(|own| operand.dims[own] == 1);
    let is_zero = matches!(terms[zero as usize], Term::Const(bits) if f32::from_bits(bits) == 0.0);
    (steady && is_zero && site.is_read(label)).then_some(label)
}

/// One thread per result evaluates the expression at the label.
fn pick(site: &FusedExpr<'_>, axes: &[usize], label: usize) -> Kernel {
    let kept_axes: Vec<usize> = (0..site.dims.len()).filter(|axis| !axes.contains(axis)).collect();
    let kept: usize = kept_axes.iter().map(|axis| site.dims[*axis]).product();
    let (index, extent) = (index_type(site.dims.iter().product()), site.dims[axes[0]]);
    let mut body = format!("const {index} o = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (o >= {kept}) return;\n");
    let _ = writeln!(body, "const {index} base = {};\nfloat label;\n{{", place(site.dims, &kept_axes, "o"));
    let axes_of_label = super::index::needed_axes(site.operands[label].dims, site.dims);
    let mut at = String::new();
    super::index::coordinates(&mut at, index, "c", "base", site.dims, |axis| axes_of_label.contains(&axis));
    indented(&mut body, 1, &at);
    let _ = writeln!(
        body,
        "    label = load(in{label}[{}]);\n}}",
        super::index::broadcast_index(site.operands[label].dims, site.dims, "base", "c")
    );
    let _ = writeln!(body, "if (!(label >= 0.0f && label < {extent}.0f) || label != floorf(label)) {{ out0[o] = 0.0f; return; }}");
    let _ = writeln!(body, "const {index} r = ({index})label, i = base + {};", place(site.dims, axes, "r"));
    site.write(&mut body, index, "i");
    let _ = writeln!(body, "out0[o] = {};", site.root(0));
    let mut parameters = site.parameters(0);
    parameters.push(("float* out0".to_string(), Argument::Output(0)));
    let what = format!("the element of {:?} at the label along {axes:?}: {}", site.dims, site.expr);
    Kernel { name: "pick", what, parameters, body, grid: [block_count(kept, THREADS), 1, 1], threads: THREADS as u32 }
}

/// The terms of an element's index that depend on the result `o`, or on the element `r` of a result.
fn place(dims: &[usize], chosen: &[usize], index: &str) -> String {
    let strides = strides(dims);
    let extents: Vec<usize> = chosen.iter().map(|axis| dims[*axis]).collect();
    let own = super::index::strides(&extents);
    let outermost = extents.iter().position(|dim| *dim > 1).unwrap_or(0);
    let terms: Vec<String> = (0..chosen.len())
        .filter(|i| extents[*i] > 1)
        .map(|i| {
            let divided = if own[i] == 1 { index.to_string() } else { format!("{index} / {}", own[i]) };
            let coordinate = if i == outermost { divided } else { format!("{divided} % {}", extents[i]) };
            format!("({coordinate}) * {}", strides[chosen[i]])
        })
        .collect();
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}

/// The code of a reduction operator: the initial value of a lane, how an element `x` with index `r` is accumulated, how
/// two lanes are combined (the other lane's values are `value2`, `sum2`, `position2`), the type and value of a chunk's
/// partial result and how it is accumulated as `part`, and the final result.
struct KindText {
    start: &'static str,
    take: &'static str,
    part: &'static str,
    keep: &'static str,
    join_part: &'static str,
    join: &'static str,
    finish: &'static str,
    /// The type and name of the second variable of a lane.
    second: Option<(&'static str, &'static str)>,
}

fn kind_text(kind: Reduction) -> KindText {
    match kind {
        Reduction::Sum => KindText {
            start: "0.0f",
            take: "value += x;\n",
            part: "float",
            keep: "value",
            join_part: "value += part;\n",
            join: "value += value2;\n",
            finish: "value",
            second: None,
        },
        Reduction::Max => KindText {
            start: "number(0xff800000)",
            take: "value = larger(value, x);\n",
            part: "float",
            keep: "value",
            join_part: "value = larger(value, part);\n",
            join: "value = larger(value, value2);\n",
            finish: "value",
            second: None,
        },
        // `value` is the maximum so far and `sum` the sum of exponentials relative to it.
        Reduction::LogSumExp => KindText {
            start: "number(0xff800000), sum = 0.0f",
            take: "log_sum(value, sum, x, 1.0f);\n",
            part: "float2",
            keep: "make_float2(value, sum)",
            join_part: "log_sum(value, sum, part.x, part.y);\n",
            join: "log_sum(value, sum, value2, sum2);\n",
            finish: "(value - value == 0.0f ? value + logf(sum) : value)",
            second: Some(("float", "sum")),
        },
        // The first of equal elements wins; NaN wins over all.
        Reduction::ArgMax => KindText {
            start: "number(0xff800000); int position = 2147483647",
            take: "first_largest(value, position, x, (int)r);\n",
            part: "float2",
            keep: "make_float2(value, __int_as_float(position))",
            join_part: "first_largest(value, position, part.x, __float_as_int(part.y));\n",
            join: "first_largest(value, position, value2, position2);\n",
            finish: "position",
            second: Some(("int", "position")),
        },
    }
}

/// Where a result is stored, and its value.
struct Store {
    to: String,
    value: &'static str,
}

/// The first kernel: lanes, then their combination, then the results.
fn body(cut: &Cut, site: &FusedExpr<'_>, axes: &[usize], kind: Reduction, store: &dyn Fn(usize) -> Store) -> String {
    let Cut { kept, reduced, width, lanes, columns, ragged, chunks } = *cut;
    let index = index_type(site.dims.iter().product::<usize>().max(kept + THREADS * width));
    let mut body = String::new();
    if columns {
        let across = THREADS / lanes;
        let _ = writeln!(body, "const {index} o = (({index})blockIdx.x * {across} + threadIdx.x % {across}) * {width};");
        let _ = writeln!(body, "const {index} lane = threadIdx.x / {across};");
    } else {
        let _ = writeln!(body, "const {index} o = ({index})blockIdx.x * {} + threadIdx.x / {lanes};", THREADS / lanes);
        let _ = writeln!(body, "const {index} lane = threadIdx.x % {lanes};");
    }
    let step = if columns { lanes } else { lanes * width };
    let lane = if columns || width == 1 { "lane".to_string() } else { format!("lane * {width}") };
    let kept_axes: Vec<usize> = (0..site.dims.len()).filter(|axis| !axes.contains(axis)).collect();
    let _ = writeln!(body, "const {index} base = {};", place(site.dims, &kept_axes, "o"));
    let (from, to) = if chunks == 1 {
        (lane, reduced.to_string())
    } else {
        let chunk = reduced.div_ceil(chunks).next_multiple_of(if columns { 1 } else { width });
        let _ = writeln!(body, "const {index} chunk = blockIdx.y, end = min(({index}){reduced}, (chunk + 1) * {chunk});");
        (format!("chunk * {chunk} + {lane}"), "end".to_string())
    };
    let arrays = width > 1 && matches!(kind, Reduction::Sum | Reduction::Max);
    let text = kind_text(kind);
    let sums = site.expr.roots().len();
    for s in 0..sums {
        if arrays {
            let _ = writeln!(body, "float values{s}[{width}];\nfor (int u = 0; u < {width}; u++) values{s}[u] = {};", text.start);
        } else {
            let _ = writeln!(body, "float value{s} = {};", text.start);
        }
    }
    let taken = |element: &str| {
        let mut code = element.to_string();
        for s in 0..sums {
            let _ = writeln!(code, "{{ const float x = {}; {} }}", site.root(s), named(text.take.trim_end(), s, arrays));
        }
        code
    };
    if width == 1 {
        let mut element = format!("const {index} i = base + {};\n", place(site.dims, axes, "r"));
        site.write(&mut element, index, "i");
        let _ = writeln!(body, "if (o < {kept}) {{\n    #pragma unroll 4\n    for ({index} r = {from}; r < {to}; r += {step}) {{");
        indented(&mut body, 2, &taken(&element));
        body += "    }\n}\n";
    } else {
        let VectorCode { hoisted, loads, element, .. } = vector_code(site, index, width, "base", &|period| {
            let all = strides(site.dims);
            columns && axes.iter().all(|axis| site.dims[*axis] == 1 || all[*axis].is_multiple_of(period))
        });
        let _ = writeln!(body, "if (o < {kept}) {{");
        indented(&mut body, 1, &hoisted);
        if ragged {
            let _ = writeln!(body, "    const {index} head = base % {width}, stop = head + {reduced};");
            let _ = writeln!(body, "    #pragma unroll 2\n    for ({index} q = {from}; q < stop; q += {step}) {{");
            let _ = writeln!(body, "        const {index} i = base - head + q;");
        } else {
            let _ = writeln!(body, "    #pragma unroll 4\n    for ({index} r0 = {from}; r0 < {to}; r0 += {step}) {{");
            let _ = writeln!(body, "        const {index} i = base + {};", place(site.dims, axes, "r0"));
        }
        indented(&mut body, 2, &loads);
        if kind == Reduction::LogSumExp {
            // One maximum for the vector, so that every element takes one exponential.
            let _ = writeln!(body, "        float xs[{width}];");
            let mut element = format!("{element}xs[u] = {};\n", site.root(0));
            if ragged {
                element += "if (q + u < head || q + u >= stop) xs[u] = number(0xff800000);\n";
            }
            over_elements(&mut body, 2, width, &element);
            body += "        log_sum_vector(value0, sum, xs);\n";
        } else {
            let mut code = element;
            if kind == Reduction::ArgMax {
                let r = if ragged {
                    "q + u - head"
                } else if columns {
                    "r0"
                } else {
                    "r0 + u"
                };
                let _ = writeln!(code, "const {index} r = {r};");
            }
            let mut code = taken(&code);
            if ragged {
                code = format!("if (q + u >= head && q + u < stop) {{\n{code}}}\n");
            }
            over_elements(&mut body, 2, width, &code);
        }
        body += "    }\n}\n";
    }
    for s in 0..sums {
        let store = store(s);
        if columns {
            join_columns(&mut body, cut, &text, s, arrays, &store);
        } else {
            if arrays {
                fold(&mut body, width, &text, s);
            }
            join_rows(&mut body, cut, &text, s, &store);
        }
    }
    body
}

/// The code with the variables of sum `s`.
fn named(code: &str, s: usize, arrays: bool) -> String {
    let own = if arrays { format!("values{s}[u]") } else { format!("value{s}") };
    // `value2` is another variable.
    code.replace("value2", "\u{1}").replace("value", &own).replace('\u{1}', "value2")
}

/// Combines the elements of a lane's vector in a tree, into `value`.
fn fold(body: &mut String, width: usize, text: &KindText, s: usize) {
    let mut half = width / 2;
    while half > 0 {
        let join = named(text.join.trim_end(), s, true);
        let _ = writeln!(body, "for (int u = 0; u < {half}; u++) {{ const float value2 = values{s}[u + {half}]; {join} }}");
        half /= 2;
    }
    let _ = writeln!(body, "float value{s} = values{s}[0];");
}

/// Combines the lanes of a row: by shuffles in a warp, then in shared memory.
fn join_rows(body: &mut String, cut: &Cut, text: &KindText, s: usize, store: &Store) {
    let lanes = cut.lanes;
    let join = named(text.join.trim_end(), s, false);
    if lanes > 1 {
        let second =
            text.second.map_or(String::new(), |(ty, name)| format!("const {ty} {name}2 = __shfl_xor_sync(0xffffffffu, {name}, offset); "));
        let _ = writeln!(
            body,
            "for (int offset = {}; offset > 0; offset /= 2) {{ const float value2 = __shfl_xor_sync(0xffffffffu, value{s}, offset); {second}{join} }}",
            lanes.min(32) / 2
        );
    }
    if lanes > 32 {
        let warps = THREADS / 32;
        let _ = writeln!(body, "__shared__ float rows{s}[{warps}];");
        if let Some((ty, name)) = text.second {
            let _ = writeln!(body, "__shared__ {ty} {name}s[{warps}];");
        }
        let keep = text.second.map_or(String::new(), |(_, name)| format!(" {name}s[threadIdx.x / 32] = {name};"));
        let _ = writeln!(body, "if (threadIdx.x % 32 == 0) {{ rows{s}[threadIdx.x / 32] = value{s};{keep} }}\n__syncthreads();");
        let second = text.second.map_or(String::new(), |(ty, name)| format!("const {ty} {name}2 = {name}s[threadIdx.x / 32 + w]; "));
        let _ = writeln!(
            body,
            "if (lane == 0) for (int w = 1; w < {}; w++) {{ const float value2 = rows{s}[threadIdx.x / 32 + w]; {second}{join} }}",
            lanes / 32
        );
    }
    let _ = writeln!(body, "if (o < {} && lane == 0) *({}) = {};", cut.kept, store.to, named(store.value, s, false));
}

/// Combines the lanes of each column in a tree in shared memory.
fn join_columns(body: &mut String, cut: &Cut, text: &KindText, s: usize, arrays: bool, store: &Store) {
    let (lanes, width) = (cut.lanes, if arrays { cut.width } else { 1 });
    let across = THREADS / lanes;
    let half = THREADS / 2;
    let _ = writeln!(body, "__shared__ float columns{s}[{width}][{half}];");
    if let Some((ty, name)) = text.second {
        let _ = writeln!(body, "__shared__ {ty} {name}s[{half}];");
    }
    let own = |u: &str| if arrays { format!("values{s}[{u}]") } else { format!("value{s}") };
    let each = format!("for (int u = 0; u < {width}; u++)");
    let _ = writeln!(body, "#pragma unroll\nfor (int half = {}; half > 0; half /= 2) {{", lanes / 2);
    let keep = text.second.map_or(String::new(), |(_, name)| format!(" {name}s[threadIdx.x - half * {across}] = {name};"));
    let _ = writeln!(
        body,
        "    if (lane >= half && lane < 2 * half) {{ {each} columns{s}[u][threadIdx.x - half * {across}] = {};{keep} }}\n    __syncthreads();",
        own("u")
    );
    let second = text.second.map_or(String::new(), |(ty, name)| format!("const {ty} {name}2 = {name}s[threadIdx.x]; "));
    let _ = writeln!(
        body,
        "    if (lane < half) {{ {each} {{ const float value2 = columns{s}[u][threadIdx.x]; {second}{} }} }}\n    __syncthreads();\n}}",
        named(text.join.trim_end(), s, arrays)
    );
    if arrays {
        let _ = writeln!(body, "if (o < {} && lane == 0) store_vector({}, values{s});", cut.kept, store.to);
    } else {
        let _ = writeln!(body, "if (o < {} && lane == 0) *({}) = {};", cut.kept, store.to, named(store.value, s, false));
    }
}

/// The second kernel: each result is combined from its chunks by some lanes, then over the lanes.
fn combine(cut: &Cut, kind: Reduction, sums: usize) -> String {
    let (lanes, across) = COMBINE;
    let Cut { kept, chunks, .. } = *cut;
    let text = kind_text(kind);
    let index = index_type(kept * chunks * sums);
    let mut body = format!("const {index} o = ({index})blockIdx.x * {across} + threadIdx.x % {across}, lane = threadIdx.x / {across};\n");
    let _ = writeln!(body, "float value0 = {};", text.start);
    let _ = writeln!(body, "if (o < {kept}) {{\n    #pragma unroll 4\n    for ({index} r = lane; r < {chunks}; r += {lanes}) {{");
    let from = if sums > 1 { format!("((blockIdx.y * {chunks} + r) * {kept} + o)") } else { format!("(r * {kept} + o)") };
    let _ = writeln!(body, "        const {} part = partial[{from}];", text.part);
    indented(&mut body, 2, &named(text.join_part, 0, false));
    body += "    }\n}\n";
    let _ = writeln!(body, "__shared__ float values[{lanes}][{across}];");
    if let Some((ty, name)) = text.second {
        let _ = writeln!(body, "__shared__ {ty} {name}s[{lanes}][{across}];");
    }
    let keep = text.second.map_or(String::new(), |(_, name)| format!(" {name}s[lane][threadIdx.x % {across}] = {name};"));
    let _ = writeln!(body, "values[lane][threadIdx.x % {across}] = value0;{keep}\n__syncthreads();");
    let _ = writeln!(body, "if (lane > 0 || o >= {kept}) return;");
    let second = text.second.map_or(String::new(), |(ty, name)| format!("const {ty} {name}2 = {name}s[l][threadIdx.x]; "));
    let join = named(text.join.trim_end(), 0, false);
    let _ = writeln!(body, "for (int l = 1; l < {lanes}; l++) {{ const float value2 = values[l][threadIdx.x]; {second}{join} }}");
    let to = if sums > 1 { "(blockIdx.y == 0 ? out0 : out1)" } else { "out0" };
    let _ = writeln!(body, "{to}[o] = {};", named(text.finish, 0, false));
    body
}

#[cfg(test)]
mod tests {
    use super::super::Operand;
    use super::*;
    use plimsoll_core::DType;
    use plimsoll_core::expr::Expr;

    /// The workspace of a plan for more rows is enough for fewer.
    #[test]
    fn the_workspace_covers_every_number_of_rows() {
        let expr = Expr::identity();
        let shapes: [(&[usize], &[usize]); 6] = [
            (&[112, 112, 32], &[0, 1, 2]),
            (&[7, 7, 1280], &[0, 1, 2]),
            (&[1024, 768], &[2]),
            (&[50_257], &[1]),
            (&[3, 5], &[0, 1, 2]),
            (&[1], &[0, 1]),
        ];
        for (row, axes) in shapes {
            for dtype in [DType::F32, DType::BF16] {
                let at = |rows: usize| {
                    let dims: Vec<usize> = [&[rows], row].concat();
                    let operands = [Operand { dtype, dims: &dims, strip: None }];
                    let site = FusedExpr { expr: &expr, dims: &dims, operands: &operands, row: 0, in_registers: &[] };
                    let cut = Cut::new(&site, axes, Reduction::Sum);
                    let used = if cut.chunks == 1 { 0 } else { 8 * (cut.kept * cut.chunks) as u64 };
                    (used, reduce_workspace(&dims, axes))
                };
                let sizes = [1, 2, 3, 5, 8, 17, 64, 100, 256, 1000].map(at);
                assert!(sizes.iter().all(|(used, planned)| used <= planned), "{row:?} {axes:?}: {sizes:?}");
                assert!(sizes.is_sorted_by_key(|(_, planned)| *planned), "{row:?} {axes:?}: {sizes:?}");
            }
        }
    }
}
