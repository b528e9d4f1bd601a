//! The data that nodes are timed on. A processor may take a hundred times as long for subnormal numbers, and an index
//! that is always zero stays in the cache: floats are normal numbers of either sign around one, and indices are spread
//! over their range.

use crate::error::Result;
use plimsoll_core::device::Memory;
use plimsoll_core::graph::Graph;
use plimsoll_core::{Bytes, DType, Op};

/// Alignment of columns.
pub(super) const ALIGNMENT: usize = 64;

/// Bytes written at a time when memory is filled.
const CHUNK: usize = 4 << 20;

/// The bound of integers that are no indices: masks and labels.
const LABELS: u32 = 2;

/// Floats between ±0.5 and ±2 of mixed sign, read in 16 or in 32 bits.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    floats(bytes, 0x3f00)
}

/// Floats between ±0.007 and ±0.035 of mixed sign, in bf16 and f32: with such parameters the activations of deep
/// networks stay about as large as their inputs. A GPU computes faster on numbers that are not finite, as on zeros.
pub(super) fn parameters(bytes: usize) -> Vec<u8> {
    floats(bytes, 0x3c00)
}

/// Floats of this exponent and the next one.
fn floats(bytes: usize, exponent: u16) -> Vec<u8> {
    let half = |word: usize| -> u16 {
        let mixed = mixed(word);
        let (sign, mantissa) = ((mixed >> 31) as u16, (mixed >> 16) as u16 & 0xff);
        sign << 15 | exponent | mantissa
    };
    (0..bytes / 2).flat_map(|i| half(i / 2).to_ne_bytes()).collect()
}

/// Fills memory with the repeated pattern.
pub(super) fn fill(memory: &mut dyn Memory, numbers: &[u8]) -> Result<()> {
    let piece = &numbers[..numbers.len().min(CHUNK)];
    for at in (0..memory.size().0).step_by(piece.len().max(1)) {
        let length = piece.len().min((memory.size().0 - at) as usize);
        memory.write(Bytes(at), &piece[..length])?;
    }
    Ok(())
}

/// Integers below `bound` of a type; other types are filled with zeros.
pub(super) fn integers(dtype: DType, bytes: usize, bound: u32) -> Vec<u8> {
    let number = |i: usize| (mixed(i) >> 8) % bound.max(1);
    match dtype {
        DType::I32 => (0..bytes.div_ceil(4)).flat_map(|i| number(i).to_ne_bytes()).collect(),
        DType::U8 => (0..bytes).map(|i| (number(i) & 0xff) as u8).collect(),
        DType::Bool => (0..bytes).map(|i| (number(i) & 1) as u8).collect(),
        _ => vec![0; bytes],
    }
}

/// The bound of the integers that an op reads: every index has to be in range.
pub(super) fn index_bound(graph: &Graph) -> u32 {
    let bound = |(_, node): (_, &plimsoll_core::graph::Node)| match &node.op {
        Op::Gather(_) => Some(graph.ty(node.inputs[0]).shape.dims()[0].bind(1)),
        Op::ScatterAdd(op) => Some(op.table.dims()[0].bind(1)),
        Op::MaxPoolGrad(op) => Some(op.window.size.0 * op.window.size.1),
        _ => None,
    };
    graph.nodes().filter_map(bound).min().map_or(LABELS, |bound| u32::try_from(bound).unwrap_or(u32::MAX))
}

/// A number without a pattern that a cache or a predictor could use.
fn mixed(i: usize) -> u32 {
    let mixed = (i as u32).wrapping_add(1).wrapping_mul(0x9E37_79B1);
    (mixed ^ mixed >> 15).wrapping_mul(0x85EB_CA77)
}

/// The inputs of timed nodes.
pub(super) struct Columns<'a> {
    numbers: &'a [u8],
    /// Integer columns have contents of their own; the others, by their bytes, are slices of the pattern.
    columns: Vec<std::result::Result<Vec<u8>, usize>>,
}

impl<'a> Columns<'a> {
    /// For the inputs of a graph, slices of [`pattern`]. Integers are below `index_bound`.
    pub fn of(graph: &Graph, rows: usize, numbers: &'a [u8], index_bound: u32) -> Columns<'a> {
        let column = |ty: &plimsoll_core::TensorType| {
            let bytes = ty.bytes(rows).get();
            if is_float(ty.dtype) { Err(bytes) } else { Ok(integers(ty.dtype, bytes + ALIGNMENT, index_bound)) }
        };
        let columns = graph.inputs().iter().map(|input| column(&input.ty)).collect();
        Columns { numbers: aligned(numbers), columns }
    }

    /// The bytes of every column.
    pub fn slices(&self, graph: &Graph, rows: usize) -> Vec<&[u8]> {
        let mut at = 0;
        let mut slice = |size: usize| {
            let from = at;
            at += size.next_multiple_of(ALIGNMENT);
            if from + size <= self.numbers.len() { &self.numbers[from..from + size] } else { &self.numbers[..size] }
        };
        let columns = self.columns.iter().zip(graph.inputs());
        columns
            .map(|(column, input)| match column {
                Ok(integers) => &aligned(integers)[..input.ty.bytes(rows).get()],
                Err(size) => slice(*size),
            })
            .collect()
    }
}

pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

fn aligned(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.as_ptr().align_offset(ALIGNMENT)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_normal_and_of_both_signs_in_every_type() {
        let bytes = pattern(1 << 16);
        let floats: Vec<f32> = bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect();
        let brain: Vec<f32> =
            bytes.chunks_exact(2).map(|half| f32::from_bits(u32::from(u16::from_ne_bytes(half.try_into().unwrap())) << 16)).collect();
        for numbers in [floats, brain] {
            assert!(numbers.iter().all(|x| x.is_normal() && (0.5..2.0).contains(&x.abs())));
            let positive = numbers.iter().filter(|x| **x > 0.0).count();
            assert!((numbers.len() / 3..2 * numbers.len() / 3).contains(&positive), "{positive} of {}", numbers.len());
        }
        let parameters = parameters(1 << 16);
        let parameters = parameters.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap()));
        assert!({ parameters }.all(|x| x.is_normal() && (0.007..0.035).contains(&x.abs())));
        // Half precision: exponents are neither zero nor all ones.
        let exponents = bytes.chunks_exact(2).map(|half| u16::from_ne_bytes(half.try_into().unwrap()) >> 10 & 0x1f);
        assert!(exponents.into_iter().all(|exponent| exponent == 0x0f));
    }

    #[test]
    fn integers_are_in_range_and_spread() {
        let read = |bytes: &[u8]| -> Vec<i32> { bytes.chunks_exact(4).map(|word| i32::from_ne_bytes(word.try_into().unwrap())).collect() };
        let indices = read(&integers(DType::I32, 4000, 100));
        assert!(indices.iter().all(|index| (0..100).contains(index)));
        let distinct: std::collections::BTreeSet<i32> = indices.into_iter().collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
        assert!(integers(DType::U8, 1000, 4).iter().all(|place| *place < 4));
    }
}
