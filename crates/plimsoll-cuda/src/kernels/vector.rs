//! Vectors of adjacent elements: which operands of an expression are read with one wide access, and the code for it.
//!
//! A thread computes `width` adjacent elements, the first of which is at a multiple of `width`. Tensors of the
//! expression's shape are then read and written with accesses of up to 16 bytes.

use super::expression::FusedExpr;
use super::index::{broadcast_index, coordinates, needed_axes};
use super::{indented, type_name};
use plimsoll_core::DType;
use plimsoll_core::expr::Term;
use std::fmt::Write;

/// How the elements of a vector read an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// All elements read the only element.
    Scalar,
    /// Adjacent elements read adjacent elements.
    Vector,
    /// The vector starts at `index % period` of an operand that repeats along the outer axes.
    Periodic(usize),
    /// All elements of a vector read the same element, which depends on the vector.
    Uniform,
    /// Each element computes its own index.
    Element,
}

/// Widest vector: 16 bytes of 16-bit elements.
pub(super) const WIDEST: usize = 8;

/// More full-size tensors than this would exceed the registers with the widest vectors.
const MOST_WIDE: usize = 6;

/// How a vector of `width` elements reads operand `i`.
pub(super) fn access(site: &FusedExpr<'_>, i: usize, width: usize) -> Access {
    let operand = &site.operands[i];
    let last = site.dims.last().copied().unwrap_or(1);
    if let Some((start, pitch)) = operand.strip {
        let whole = [last, start, pitch].iter().all(|n| n.is_multiple_of(width));
        return if whole { Access::Vector } else { Access::Element };
    }
    let (elements, all): (usize, usize) = (operand.dims.iter().product(), site.dims.iter().product());
    if elements == 1 {
        return Access::Scalar;
    }
    if elements == all {
        return Access::Vector;
    }
    let missing = site.dims.len() - operand.dims.len();
    let extent = |axis: usize| if axis < missing { 1 } else { operand.dims[axis - missing] };
    // The elements of the longest run of inner axes along which the operand is whole, or constant.
    let run = |is: &dyn Fn(usize) -> bool| {
        let inner = (0..site.dims.len()).rev().take_while(|axis| is(*axis) || site.dims[*axis] == 1);
        inner.map(|axis| site.dims[axis]).product::<usize>()
    };
    let whole = run(&|axis| extent(axis) == site.dims[axis]);
    let constant = run(&|axis| extent(axis) == 1);
    match () {
        () if whole > 1 && whole.is_multiple_of(width) && whole == elements => Access::Periodic(whole),
        () if whole > 1 && whole.is_multiple_of(width) => Access::Vector,
        () if constant > 1 && constant.is_multiple_of(width) => Access::Uniform,
        () => Access::Element,
    }
}

/// The widest vectors for an expression with results of these types.
pub(super) fn width(site: &FusedExpr<'_>, outputs: &[DType]) -> usize {
    let all: usize = site.dims.iter().product();
    let full = |i: &usize| site.is_read(*i) && site.operands[*i].dims.iter().product::<usize>() == all;
    let types: Vec<DType> = (0..site.operands.len()).filter(full).map(|i| site.operands[i].dtype).chain(outputs.iter().copied()).collect();
    let narrow = types.iter().any(|dtype| dtype.size() <= 2);
    let widest = if narrow && types.len() <= MOST_WIDE { WIDEST } else { 4 };
    [widest, 4, 2].into_iter().find(|width| *width <= widest && all.is_multiple_of(*width)).unwrap_or(1)
}

/// The code of a vector in three parts.
pub(super) struct VectorCode {
    /// Loads that depend on `first` only up to a multiple of every period: scalars and periodic operands.
    pub hoisted: String,
    /// Loads for the vector at `i`.
    pub loads: String,
    /// The statements for element `u` of the vector; the results are `t…`.
    pub element: String,
    /// Lowest common multiple of the periods.
    pub period: usize,
}

/// Code for vectors of `width` elements at `i` (of index type `kind`); `first` is an index with the same position in
/// every period for which `repeats` holds.
pub(super) fn vector_code(site: &FusedExpr<'_>, kind: &str, width: usize, first: &str, repeats: &dyn Fn(usize) -> bool) -> VectorCode {
    let mut code = VectorCode { hoisted: String::new(), loads: String::new(), element: String::new(), period: 1 };
    let read: Vec<(usize, Access)> = (0..site.operands.len()).filter(|i| site.is_read(*i)).map(|i| (i, access(site, i, width))).collect();
    let axes = |wanted: &[Access]| -> Vec<usize> {
        let chosen = read.iter().filter(|(i, access)| wanted.contains(access) && site.operands[*i].strip.is_none());
        chosen.flat_map(|(i, _)| needed_axes(site.operands[*i].dims, site.dims)).collect()
    };
    let outer = axes(&[Access::Vector, Access::Uniform]);
    coordinates(&mut code.loads, kind, "c", "i", site.dims, |axis| outer.contains(&axis));
    let mut inner = axes(&[Access::Element]);
    let (mut draws_alone, mut indexed) = (false, read.iter().any(|(_, access)| *access == Access::Element));
    for term in site.expr.terms() {
        match *term {
            Term::Coordinate(axis) => inner.push(usize::from(axis)),
            Term::Random(_) if !draws_together(site, width) => draws_alone = true,
            _ => {}
        }
    }
    indexed |= draws_alone || !inner.is_empty();
    if indexed {
        let _ = writeln!(code.element, "const {kind} e = i + u;");
    }
    coordinates(&mut code.element, kind, "d", "e", site.dims, |axis| inner.contains(&axis));
    for (i, access) in &read {
        let operand = &site.operands[*i];
        match access {
            Access::Scalar => {
                let _ = writeln!(code.hoisted, "const float s{i} = load(in{i}[0]);");
            }
            Access::Periodic(period) if !repeats(*period) => {
                let _ = writeln!(code.loads, "float v{i}[{width}];\nload_vector(v{i}, in{i} + i % {period});");
            }
            Access::Periodic(period) => {
                code.period = lcm(code.period, *period);
                let _ = writeln!(code.hoisted, "float v{i}[{width}];\nload_vector(v{i}, in{i} + {first} % {period});");
            }
            Access::Vector => {
                let at = site.place(operand, "i");
                let _ = writeln!(code.loads, "float v{i}[{width}];\nload_vector(v{i}, in{i} + {at});");
            }
            Access::Uniform => {
                let _ = writeln!(code.loads, "const float s{i} = load(in{i}[{}]);", broadcast_index(operand.dims, site.dims, "i", "c"));
            }
            Access::Element => {}
        }
    }
    let mut drawn: Vec<u32> = Vec::new();
    for (id, term) in site.expr.terms().iter().enumerate() {
        let value = match *term {
            Term::Input(i) if site.is_read_from_memory(usize::from(i)) => {
                let (i, access) = read[read.iter().position(|(known, _)| *known == usize::from(i)).expect("it is read")];
                match access {
                    Access::Scalar | Access::Uniform => format!("s{i}"),
                    Access::Vector | Access::Periodic(_) => format!("v{i}[u]"),
                    Access::Element => {
                        let operand = &site.operands[i];
                        let at = if operand.strip.is_some() {
                            site.place(operand, "e")
                        } else {
                            broadcast_index(operand.dims, site.dims, "e", "d")
                        };
                        format!("load(in{i}[{at}])")
                    }
                }
            }
            Term::Random(stream) if draws_together(site, width) => {
                if !drawn.contains(&stream) {
                    let base = if site.row == 0 { String::new() } else { format!("header->first_row * {} + ", site.row) };
                    let _ =
                        writeln!(code.loads, "float random{stream}[{width}];\nuniform_vector(random{stream}, header, {stream}, {base}i);");
                    drawn.push(stream);
                }
                format!("random{stream}[u]")
            }
            Term::Coordinate(axis) => format!("(float)d{axis}"),
            _ => site.term(term, "e"),
        };
        let _ = writeln!(code.element, "const float t{id} = {value};");
    }
    code
}

/// Whether a vector's random numbers are whole blocks of the generator.
fn draws_together(site: &FusedExpr<'_>, width: usize) -> bool {
    width.is_multiple_of(4) && site.row.is_multiple_of(4)
}

/// A loop over the elements of a vector.
pub(super) fn over_elements(text: &mut String, steps: usize, width: usize, body: &str) {
    indented(text, steps, &format!("#pragma unroll\nfor (int u = 0; u < {width}; u++) {{"));
    indented(text, steps + 1, body);
    indented(text, steps, "}");
}

/// A parameter of an output.
pub(super) fn output_type(dtype: DType, i: usize) -> String {
    format!("{}* out{i}", type_name(dtype))
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::super::Operand;
    use super::*;
    use plimsoll_core::expr::Expr;

    #[test]
    fn operands_are_read_as_widely_as_their_shape_allows() {
        let strip = |start, pitch| Operand { dtype: DType::BF16, dims: &[4, 6, 6, 16], strip: Some((start, pitch)) };
        let whole = |dims| Operand { dtype: DType::BF16, dims, strip: None };
        let cases = [
            ("the same shape", whole(&[4, 6, 6, 16][..]), Access::Vector),
            ("a scalar", whole(&[]), Access::Scalar),
            ("channels", whole(&[16]), Access::Periodic(16)),
            ("channels with outer axes", whole(&[1, 1, 1, 16]), Access::Periodic(16)),
            ("an image", whole(&[1, 6, 6, 16]), Access::Periodic(576)),
            ("rows of the batch", whole(&[4, 1, 1, 1]), Access::Uniform),
            ("channels of every image", whole(&[4, 1, 1, 16]), Access::Vector),
            ("pixels", whole(&[4, 6, 6, 1]), Access::Uniform),
            ("a channel view", strip(8, 40), Access::Vector),
            ("a channel view that is not aligned", strip(8, 44), Access::Element),
        ];
        let expr = Expr::identity();
        for (name, operand, want) in cases {
            let operands = [operand];
            let site = FusedExpr { expr: &expr, dims: &[4, 6, 6, 16], operands: &operands, row: 576, in_registers: &[] };
            assert_eq!(access(&site, 0, 8), want, "{name}");
        }
        let operands = [whole(&[9]), whole(&[4, 1])];
        let site = FusedExpr { expr: &expr, dims: &[4, 9], operands: &operands, row: 9, in_registers: &[] };
        assert_eq!([access(&site, 0, 4), access(&site, 1, 4)], [Access::Element; 2], "rows that are no whole vectors");
    }

    #[test]
    fn vectors_cover_the_elements() {
        let expr = Expr::build(|e| e.add(e.input(0), e.input(1)));
        for (dims, dtype, want) in [([4, 8], DType::BF16, 8), ([4, 8], DType::F32, 4), ([4, 9], DType::BF16, 4), ([3, 3], DType::F32, 1)] {
            let operands = [Operand { dtype, dims: &dims, strip: None }; 2];
            let site = FusedExpr { expr: &expr, dims: &dims, operands: &operands, row: 8, in_registers: &[] };
            assert_eq!(width(&site, &[dtype]), want, "{dims:?} {dtype}");
        }
    }
}
