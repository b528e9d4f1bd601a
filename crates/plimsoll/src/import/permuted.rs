//! Tensors of a file with permuted axes, read in blocks of a fixed size.

use super::weights::Problem;
use plimsoll_formats::tensor::Tensor;

/// Elements of a block: a megabyte.
const BLOCK: usize = 1 << 18;
/// Elements that are read at a time.
const PIECE: usize = 4 << 10;
/// Runs of fewer elements are read with what lies between them.
const SHORTEST_RUN: usize = 256;

/// A permutation of axes: axis `i` of the result is stored axis `order[i]`.
pub(super) struct Permuted {
    /// Extents as stored, without axes of extent 1 and with axes joined that stay together.
    stored: Vec<usize>,
    /// The stored axis of each axis of the result.
    order: Vec<usize>,
    /// For each stored axis: the distance of its elements in the result.
    strides: Vec<usize>,
}

impl Permuted {
    pub fn new(stored: &[usize], order: &[usize]) -> Permuted {
        // Axes of extent 1 do not matter.
        let kept: Vec<usize> = (0..stored.len()).filter(|axis| stored[*axis] != 1).collect();
        let order: Vec<usize> = order.iter().filter_map(|axis| kept.iter().position(|known| known == axis)).collect();
        let extents: Vec<usize> = kept.iter().map(|axis| stored[*axis]).collect();
        // Axes that follow each other in both are one.
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for axis in order {
            match groups.last_mut() {
                Some(group) if group.last().is_some_and(|last| last + 1 == axis) => group.push(axis),
                _ => groups.push(vec![axis]),
            }
        }
        let mut first: Vec<usize> = groups.iter().map(|group| group[0]).collect();
        first.sort_unstable();
        let order: Vec<usize> = groups.iter().map(|group| first.iter().position(|axis| *axis == group[0]).unwrap_or(0)).collect();
        let mut joined = vec![1; groups.len()];
        for (group, axis) in groups.iter().zip(&order) {
            joined[*axis] = group.iter().map(|axis| extents[*axis]).product();
        }
        let mut strides = vec![0; order.len()];
        let mut stride = 1;
        for axis in order.iter().rev() {
            strides[*axis] = stride;
            stride *= joined[*axis];
        }
        Permuted { stored: joined, order, strides }
    }

    /// Passes the elements of the result on in order, a block at a time.
    pub fn each_piece(&self, tensor: &Tensor, mut sink: impl FnMut(u64, &[f32]) -> Result<(), Problem>) -> Result<(), Problem> {
        let all: usize = self.stored.iter().product();
        let mut block = vec![0.0; BLOCK.min(all)];
        let mut start = 0;
        while start < all {
            let end = all.min(start + BLOCK);
            let block = &mut block[..end - start];
            self.fill(tensor, start, block)?;
            sink(start as u64, block)?;
            start = end;
        }
        Ok(())
    }

    /// Fills a block of the result: passes over the stored elements and picks those that belong there.
    fn fill(&self, tensor: &Tensor, start: usize, block: &mut [f32]) -> Result<(), Problem> {
        let mut reader = tensor.reader();
        let mut piece = [0.0; PIECE];
        // The block has a range of the result's first axis; elements of the stored tensor outside of it are skipped.
        let Some(&outer) = self.order.first() else {
            return reader.f32s(0, block).map_err(|error| Problem::File(error.to_string()));
        };
        let inner: usize = self.stored[outer + 1..].iter().product();
        let lead: usize = self.stored[..outer].iter().product();
        let (first, last) = (start / self.strides[outer], (start + block.len() - 1) / self.strides[outer]);
        let run = (last - first + 1) * inner;
        let whole = self.stored[outer] * inner;
        let (runs, length, skip) = if run >= SHORTEST_RUN { (lead, run, first * inner) } else { (1, lead * whole, 0) };
        for index in 0..runs {
            let from = index * whole + skip;
            let mut done = 0;
            while done < length {
                let count = PIECE.min(length - done);
                reader.f32s((from + done) as u64, &mut piece[..count]).map_err(|error| Problem::File(error.to_string()))?;
                self.scatter(from + done, &piece[..count], start, block);
                done += count;
            }
        }
        Ok(())
    }

    /// Writes consecutive stored elements to their places in a block.
    fn scatter(&self, from: usize, elements: &[f32], start: usize, block: &mut [f32]) {
        let rank = self.stored.len();
        let mut coordinates = vec![0; rank];
        let mut rest = from;
        for axis in (0..rank).rev() {
            coordinates[axis] = rest % self.stored[axis];
            rest /= self.stored[axis];
        }
        let mut place: usize = coordinates.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
        for element in elements {
            if let Some(slot) = place.checked_sub(start).and_then(|at| block.get_mut(at)) {
                *slot = *element;
            }
            for axis in (0..rank).rev() {
                coordinates[axis] += 1;
                place += self.strides[axis];
                if coordinates[axis] < self.stored[axis] {
                    break;
                }
                place -= self.strides[axis] * self.stored[axis];
                coordinates[axis] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_formats::tensor::DType;

    #[test]
    fn elements_are_permuted_whatever_the_block() {
        for (stored, order) in [
            (vec![3, 4, 5], vec![2, 0, 1]),
            (vec![7, 1, 3, 2], vec![2, 3, 1, 0]),
            (vec![2, 3], vec![1, 0]),
            (vec![4], vec![0]),
            (vec![600, 700], vec![1, 0]),
            (vec![300, 20, 3, 17], vec![2, 3, 1, 0]),
        ] {
            let all: usize = stored.iter().product();
            let bytes: Vec<u8> = (0..all).flat_map(|n| (n as f32).to_le_bytes()).collect();
            let tensor = Tensor::in_memory(DType::F32, stored.iter().map(|dim| *dim as u64).collect(), bytes).unwrap();
            let mut got = Vec::new();
            let permuted = Permuted::new(&stored, &order);
            let done = permuted.each_piece(&tensor, |at, piece| {
                assert_eq!(at as usize, got.len());
                got.extend_from_slice(piece);
                Ok(())
            });
            assert!(done.is_ok());
            let extents: Vec<usize> = order.iter().map(|axis| stored[*axis]).collect();
            for (index, got) in got.iter().enumerate() {
                let (mut rest, mut from) = (index, 0);
                for axis in (0..order.len()).rev() {
                    let stride: usize = stored[order[axis] + 1..].iter().product();
                    from += rest % extents[axis] * stride;
                    rest /= extents[axis];
                }
                assert_eq!(*got as usize, from, "{stored:?} {order:?} {index}");
            }
            assert_eq!(got.len(), all);
        }
    }
}
