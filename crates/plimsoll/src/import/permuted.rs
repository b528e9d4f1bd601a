//! Tensors of a file with permuted axes, read in blocks of a fixed size.

use super::weights::Problem;
use plimsoll_formats::tensor::Tensor;

/// Elements of a block: a megabyte.
const BLOCK: usize = 1 << 18;

/// A permutation of axes: axis `i` of the result is stored axis `order[i]`.
pub(super) struct Permuted {
    /// Extents as stored, without axes of extent 1 and with axes joined that stay together.
    stored: Vec<usize>,
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
        Permuted { stored: joined, strides }
    }

    /// Passes all elements of the result on, each piece with its position. A block has some of one axis and all of the
    /// others, so that every element is read once; it is a megabyte, or one slice along the longest axis where that is
    /// more.
    pub fn each_piece(&self, tensor: &Tensor, mut sink: impl FnMut(u64, &[f32]) -> Result<(), Problem>) -> Result<(), Problem> {
        let all: usize = self.stored.iter().product();
        let Some(axis) = self.axis(all) else {
            return if all == 0 { Ok(()) } else { self.passed_on(tensor, 0, all, &mut vec![0.0; all.min(BLOCK)], &mut sink) };
        };
        let (extent, stride) = (self.stored[axis], self.strides[axis]);
        let slice = all / extent;
        let width = (BLOCK / slice).clamp(1, extent);
        let mut block = vec![0.0; slice * width];
        let mut run = vec![0.0; BLOCK.min(width * self.stored[axis + 1..].iter().product::<usize>())];
        let mut first = 0;
        while first < extent {
            let count = width.min(extent - first);
            let block = &mut block[..slice * count];
            self.fill(tensor, axis, first, count, block, &mut run)?;
            // In the result, the block is a piece of each group of axes before its own.
            let piece = count * stride;
            for (index, piece) in block.chunks(piece).enumerate() {
                sink((index * extent * stride + first * stride) as u64, piece)?;
            }
            first += count;
        }
        Ok(())
    }

    /// The axis along which blocks are cut: that with the longest runs, both stored and in the result.
    fn axis(&self, all: usize) -> Option<usize> {
        if all == 0 || self.stored.len() < 2 {
            return None;
        }
        let runs = |axis: &usize| {
            let slice = all / self.stored[*axis];
            let width = (BLOCK / slice).min(self.stored[*axis]);
            let inner: usize = self.stored[*axis + 1..].iter().product();
            // An axis whose slices exceed a block comes last, the longest of those first.
            (width.max(1) * inner.min(self.strides[*axis]), self.stored[*axis])
        };
        let fits = |axis: &usize| all / self.stored[*axis] <= BLOCK;
        (0..self.stored.len()).filter(fits).max_by_key(runs).or_else(|| (0..self.stored.len()).max_by_key(|axis| self.stored[*axis]))
    }

    /// Elements that are stored as they are in the result.
    fn passed_on(
        &self,
        tensor: &Tensor,
        mut at: usize,
        all: usize,
        piece: &mut [f32],
        sink: &mut impl FnMut(u64, &[f32]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut reader = tensor.reader();
        while at < all {
            let count = piece.len().min(all - at);
            reader.f32s(at as u64, &mut piece[..count]).map_err(|error| Problem::File(error.to_string()))?;
            sink(at as u64, &piece[..count])?;
            at += count;
        }
        Ok(())
    }

    /// Fills a block with the elements `first … first + count` of an axis, in the order of the result.
    fn fill(&self, tensor: &Tensor, axis: usize, first: usize, count: usize, block: &mut [f32], run: &mut [f32]) -> Result<(), Problem> {
        let mut reader = tensor.reader();
        let (extent, stride) = (self.stored[axis], self.strides[axis]);
        let inner: usize = self.stored[axis + 1..].iter().product();
        let lead: usize = self.stored[..axis].iter().product();
        // Distances in the block, in which this axis is shorter.
        let strides: Vec<usize> = self.strides.iter().map(|own| if *own > stride { own / extent * count } else { *own }).collect();
        let length = count * inner;
        let mut place = vec![0; self.stored.len()];
        for outer in 0..lead {
            let mut done = 0;
            while done < length {
                let part = run.len().min(length - done);
                let from = (outer * extent + first) * inner + done;
                reader.f32s(from as u64, &mut run[..part]).map_err(|error| Problem::File(error.to_string()))?;
                self.scatter(from, &run[..part], (axis, first), &strides, &mut place, block);
                done += part;
            }
        }
        Ok(())
    }

    /// Writes consecutive stored elements to their places in a block, rows of the last axis at a time.
    fn scatter(
        &self,
        from: usize,
        mut elements: &[f32],
        (axis, first): (usize, usize),
        strides: &[usize],
        place: &mut [usize],
        block: &mut [f32],
    ) {
        let last = self.stored.len() - 1;
        let mut rest = from;
        for at in (0..=last).rev() {
            place[at] = rest % self.stored[at];
            rest /= self.stored[at];
        }
        place[axis] -= first;
        let limit = |at: usize| if at == axis { self.stored[at] - first } else { self.stored[at] };
        while !elements.is_empty() {
            let start: usize = place.iter().zip(strides).map(|(at, stride)| at * stride).sum();
            let (row, others) = elements.split_at(elements.len().min(limit(last) - place[last]));
            row.iter().enumerate().for_each(|(index, element)| block[start + index * strides[last]] = *element);
            elements = others;
            place[last] = 0;
            for at in (0..last).rev() {
                place[at] += 1;
                if place[at] < limit(at) {
                    break;
                }
                place[at] = 0;
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
            (vec![5, 9, 2, 11], vec![3, 1, 0, 2]),
            (vec![3, 300, 400], vec![1, 2, 0]),
            (vec![90, 80, 70], vec![2, 1, 0]),
            (vec![300, 20, 3, 17], vec![2, 3, 1, 0]),
        ] {
            let all: usize = stored.iter().product();
            let bytes: Vec<u8> = (0..all).flat_map(|n| (n as f32).to_le_bytes()).collect();
            let tensor = Tensor::in_memory(DType::F32, stored.iter().map(|dim| *dim as u64).collect(), bytes).unwrap();
            let (mut got, mut passed) = (vec![-1.0; all], 0);
            let permuted = Permuted::new(&stored, &order);
            let done = permuted.each_piece(&tensor, |at, piece| {
                got[at as usize..][..piece.len()].copy_from_slice(piece);
                passed += piece.len();
                Ok(())
            });
            assert!(done.is_ok() && passed == all, "{passed} of {all}");
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
        }
    }
}
