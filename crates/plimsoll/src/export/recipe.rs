//! How the elements of an initializer follow from the weights of the network. One weight is held at a time.

use crate::error::Result;
use crate::import::ImportedWeights;
use std::io::{self, Write};

/// The elements of an initializer.
#[derive(Clone, Debug)]
pub(super) enum Recipe {
    /// A weight of this shape, its axes permuted; output axis `i` is input axis `order[i]`. `scale` multiplies along
    /// the last axis of the weight: a folded batch normalization.
    Weight { name: String, shape: Vec<usize>, order: Vec<usize>, scale: Option<Vec<f32>> },
    /// Blocks of a recurrent kernel `[rows, of · units]`: transposed, these gates in this order.
    Gates { name: String, rows: usize, units: usize, of: usize, gates: Vec<usize> },
    /// Numbers in memory: folded biases and constants of expressions.
    Numbers(Vec<f32>),
}

impl Recipe {
    /// Writes the elements, little-endian.
    pub fn write(&self, weights: &ImportedWeights, out: &mut dyn Write) -> Result<io::Result<()>> {
        let numbers = match self {
            Recipe::Numbers(numbers) => return Ok(write_numbers(out, numbers)),
            Recipe::Weight { name, shape, order, scale } => {
                let mut numbers = weights.read(name)?;
                if let Some(scale) = scale {
                    numbers.chunks_exact_mut(scale.len()).for_each(|row| row.iter_mut().zip(scale).for_each(|(number, by)| *number *= by));
                }
                if order.is_sorted() { numbers } else { permuted(&numbers, shape, order) }
            }
            Recipe::Gates { name, rows, units, of, gates } => {
                let numbers = weights.read(name)?;
                let wide = of * units;
                let element = |gate: usize, unit: usize, row: usize| numbers[row * wide + gate * units + unit];
                let of_gate = |gate: &usize| {
                    let gate = *gate;
                    (0..*units).flat_map(move |unit| (0..*rows).map(move |row| element(gate, unit, row)))
                };
                gates.iter().flat_map(of_gate).collect()
            }
        };
        Ok(write_numbers(out, &numbers))
    }
}

/// Elements that are converted at a time.
const PIECE: usize = 4 << 10;

fn write_numbers(out: &mut dyn Write, numbers: &[f32]) -> io::Result<()> {
    let mut bytes = [0; PIECE * 4];
    for piece in numbers.chunks(PIECE) {
        piece.iter().zip(bytes.chunks_exact_mut(4)).for_each(|(number, bytes)| bytes.copy_from_slice(&number.to_le_bytes()));
        out.write_all(&bytes[..piece.len() * 4])?;
    }
    Ok(())
}

/// The elements with their axes permuted; output axis `i` is input axis `order[i]`.
fn permuted(numbers: &[f32], shape: &[usize], order: &[usize]) -> Vec<f32> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let (extents, steps): (Vec<usize>, Vec<usize>) = order.iter().map(|axis| (shape[*axis], strides[*axis])).unzip();
    let mut result = Vec::with_capacity(numbers.len());
    let mut position = vec![0; extents.len()];
    let mut at = 0;
    for _ in 0..numbers.len() {
        result.push(numbers[at]);
        for axis in (0..extents.len()).rev() {
            position[axis] += 1;
            at += steps[axis];
            if position[axis] < extents[axis] {
                break;
            }
            at -= steps[axis] * extents[axis];
            position[axis] = 0;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::permuted;

    #[test]
    fn axes_are_permuted() {
        let numbers: Vec<f32> = (0..6).map(|number| number as f32).collect();
        assert_eq!(permuted(&numbers, &[2, 3], &[1, 0]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(permuted(&numbers, &[1, 2, 3], &[2, 0, 1]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }
}
