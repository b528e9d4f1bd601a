//! Data movement: transpose, slice, concat and padding, all as strided copies.

use crate::kernels::pointwise::broadcast::offset;
use crate::runtime::threads::ThreadPool;

/// A copy of a box of elements between two layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedCopy {
    /// Outer dimensions, and their byte strides in source and destination.
    extents: Vec<usize>,
    from: Vec<usize>,
    to: Vec<usize>,
    /// The copy at each of their positions.
    kernel: CopyKernel,
    /// Byte offsets of the first element on both sides.
    start: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    extent: usize,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKernel {
    /// Rows of contiguous bytes with a fixed stride.
    Runs { row: Dim, bytes: usize },
    /// A plane in which source and destination have different inner dimensions: `down` is the source's, `across` the
    /// destination's.
    Plane { down: Dim, across: Dim, element: usize },
}

/// Side of the blocks in which a plane is copied: both sides fit in L1.
const SIDE: usize = 32;
/// Approximate bytes per task.
const CHUNK: usize = 64 << 10;
/// Bytes below which waking other threads costs more than the work.
const SERIAL: usize = 256 << 10;

impl StridedCopy {
    /// A copy of `dims` elements of `element` bytes, with the strides of source and destination in elements.
    ///
    /// # Panics
    ///
    /// If the lists have different lengths.
    pub fn new(element: usize, dims: &[usize], from: &[usize], to: &[usize]) -> StridedCopy {
        assert!(dims.len() == from.len() && dims.len() == to.len());
        let mut outer: Vec<Dim> = Vec::new();
        for i in (0..dims.len()).filter(|i| dims[*i] != 1) {
            let dim = Dim { extent: dims[i], from: from[i] * element, to: to[i] * element };
            match outer.last_mut() {
                Some(last) if last.from == dim.from * dim.extent && last.to == dim.to * dim.extent => {
                    *last = Dim { extent: last.extent * dim.extent, ..dim };
                }
                _ => outer.push(dim),
            }
        }
        let single = Dim { extent: 1, from: 0, to: 0 };
        let kernel = if outer.last().is_none_or(|dim| dim.from == element && dim.to == element) {
            let bytes = outer.pop().map_or(element, |dim| dim.extent * element);
            CopyKernel::Runs { row: outer.pop().unwrap_or(single), bytes }
        } else {
            let across = outer.pop().unwrap_or(single);
            let down = outer.iter().position(|dim| dim.from == element).map_or(single, |inner| outer.remove(inner));
            CopyKernel::Plane { down, across, element }
        };
        StridedCopy {
            extents: outer.iter().map(|dim| dim.extent).collect(),
            from: outer.iter().map(|dim| dim.from).collect(),
            to: outer.iter().map(|dim| dim.to).collect(),
            kernel,
            start: (0, 0),
        }
    }

    /// The copy with these byte offsets in source and destination.
    pub fn starting(self, from: usize, to: usize) -> StridedCopy {
        StridedCopy { start: (from, to), ..self }
    }

    /// Output axis `i` is input axis `order[i]` of a tensor of shape `dims`.
    pub fn transpose(element: usize, dims: &[usize], order: &[usize]) -> StridedCopy {
        let strides = strides(dims);
        let turned: Vec<usize> = order.iter().map(|axis| dims[*axis]).collect();
        let from: Vec<usize> = order.iter().map(|axis| strides[*axis]).collect();
        StridedCopy::new(element, &turned, &from, &self::strides(&turned))
    }

    /// Copies `dims` elements from `from_start` along `axis` of a source to `to_start` of a destination, in which the
    /// axis has the given extents.
    pub fn along(element: usize, dims: &[usize], axis: usize, from: (usize, usize), to: (usize, usize)) -> StridedCopy {
        let within = |extent: usize| {
            let mut whole = dims.to_vec();
            whole[axis] = extent;
            strides(&whole)
        };
        let ((from_extent, from_start), (to_extent, to_start)) = (from, to);
        let inner: usize = dims[axis + 1..].iter().product();
        StridedCopy::new(element, dims, &within(from_extent), &within(to_extent))
            .starting(from_start * inner * element, to_start * inner * element)
    }

    /// Runs the copy.
    ///
    /// # Safety
    ///
    /// `from` is readable and `to` is writable at all strided positions, and they do not overlap.
    pub unsafe fn run(&self, pool: &ThreadPool, from: *const u8, to: *mut u8) {
        let to = TaskAddress(to.wrapping_add(self.start.1));
        let from = TaskAddress(from.cast_mut().wrapping_add(self.start.0));
        let parts = self.kernel.parts();
        let count = self.extents.iter().product::<usize>() * parts;
        let bytes = self.kernel.bytes() / parts.max(1);
        let each = (CHUNK / bytes.max(1)).max(1);
        let copy = |task: usize, _: usize| {
            for index in task * each..count.min((task + 1) * each) {
                let (position, part) = (index / parts, index % parts);
                let from = from.at(offset(&self.extents, &self.from, position));
                let to = to.at(offset(&self.extents, &self.to, position));
                // SAFETY: guaranteed by the caller; tasks write disjoint elements.
                unsafe { self.kernel.copy(part, from, to) };
            }
        };
        let tasks = count.div_ceil(each);
        if count * bytes >= SERIAL { pool.run(tasks, &copy) } else { (0..tasks).for_each(|task| copy(task, 0)) }
    }
}

/// Writes zeros before and after a tensor of shape `dims` along `axis` of a destination; the tensor itself is copied
/// separately.
///
/// # Safety
/// `to` is writable over the whole destination.
pub unsafe fn pad_with_zeros(element: usize, dims: &[usize], axis: usize, before: usize, after: usize, to: *mut u8) {
    let inner = dims[axis + 1..].iter().product::<usize>() * element;
    let pitch = (before + dims[axis] + after) * inner;
    for row in 0..dims[..axis].iter().product() {
        // SAFETY: both gaps are inside of the row.
        unsafe {
            let start = to.add(row * pitch);
            start.write_bytes(0, before * inner);
            start.add((before + dims[axis]) * inner).write_bytes(0, after * inner);
        }
    }
}

/// The strides of a contiguous tensor.
fn strides(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect()
}

/// An address that may cross threads: tasks write disjoint elements through it.
#[derive(Clone, Copy)]
struct TaskAddress(*mut u8);

// SAFETY: `run` gives every task disjoint elements.
unsafe impl Send for TaskAddress {}
// SAFETY: as above.
unsafe impl Sync for TaskAddress {}

impl TaskAddress {
    fn at(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }
}

impl CopyKernel {
    /// Number of parts that can be copied independently.
    fn parts(&self) -> usize {
        match self {
            CopyKernel::Runs { row, bytes } => row.extent.div_ceil((CHUNK / (*bytes).max(1)).max(1)),
            CopyKernel::Plane { down, .. } => down.extent.div_ceil(SIDE),
        }
    }

    /// Bytes copied at one position of the outer dimensions.
    fn bytes(&self) -> usize {
        match self {
            CopyKernel::Runs { row, bytes } => row.extent * bytes,
            CopyKernel::Plane { down, across, element } => down.extent * across.extent * element,
        }
    }

    /// # Safety
    /// Same as [`StridedCopy::run`].
    unsafe fn copy(&self, part: usize, from: *const u8, to: *mut u8) {
        match *self {
            CopyKernel::Runs { row, bytes } => {
                let each = (CHUNK / bytes.max(1)).max(1);
                for i in part * each..row.extent.min((part + 1) * each) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { std::ptr::copy_nonoverlapping(from.add(i * row.from), to.add(i * row.to), bytes) };
                }
            }
            CopyKernel::Plane { down, across, element } => {
                let top = part * SIDE;
                let bottom = down.extent.min(top + SIDE);
                for left in (0..across.extent).step_by(SIDE) {
                    let right = across.extent.min(left + SIDE);
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        match element {
                            1 => square::<u8>((top, bottom, down), (left, right, across), from, to),
                            2 => square::<u16>((top, bottom, down), (left, right, across), from, to),
                            4 => square::<u32>((top, bottom, down), (left, right, across), from, to),
                            _ => square::<u64>((top, bottom, down), (left, right, across), from, to),
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// Same as [`StridedCopy::run`]; `T` is as large as an element.
unsafe fn square<T: Copy>(down: (usize, usize, Dim), across: (usize, usize, Dim), from: *const u8, to: *mut u8) {
    for i in down.0..down.1 {
        for j in across.0..across.1 {
            // SAFETY: guaranteed by the caller; elements need not be aligned.
            unsafe {
                let element = from.add(i * down.2.from + j * across.2.from).cast::<T>().read_unaligned();
                to.add(i * down.2.to + j * across.2.to).cast::<T>().write_unaligned(element);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(dims: &[usize], at: &[usize]) -> usize {
        dims.iter().zip(at).fold(0, |index, (dim, i)| index * dim + i)
    }

    fn positions(dims: &[usize]) -> Vec<Vec<usize>> {
        let count = dims.iter().product();
        let at = |mut i: usize| {
            let mut at = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                at[axis] = i % dims[axis];
                i /= dims[axis];
            }
            at
        };
        (0..count).map(at).collect()
    }

    /// Element `i` of a source, as bytes of the given size.
    fn source(element: usize, count: usize) -> Vec<u8> {
        (0..count).flat_map(|i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[..element].to_vec()).collect()
    }

    fn run(copy: &StridedCopy, from: &[u8], to: &mut [u8]) {
        // SAFETY: the tests use in-bounds copies.
        unsafe { copy.run(&ThreadPool::new(2).unwrap(), from.as_ptr(), to.as_mut_ptr()) }
    }

    fn check_transpose(element: usize, dims: &[usize], order: &[usize]) {
        let from = source(element, dims.iter().product());
        let mut to = vec![0; from.len()];
        run(&StridedCopy::transpose(element, dims, order), &from, &mut to);
        let turned: Vec<usize> = order.iter().map(|axis| dims[*axis]).collect();
        for (i, at) in positions(&turned).iter().enumerate() {
            let mut origin = vec![0; dims.len()];
            order.iter().zip(at).for_each(|(axis, i)| origin[*axis] = *i);
            let j = index(dims, &origin);
            assert_eq!(to[i * element..(i + 1) * element], from[j * element..(j + 1) * element], "{dims:?} {order:?} at {at:?}");
        }
    }

    #[test]
    fn large_transpositions_use_all_paths() {
        check_transpose(4, &[300, 517], &[1, 0]);
        check_transpose(4, &[3, 65, 70, 5], &[0, 3, 1, 2]);
        check_transpose(2, &[40, 30, 64], &[1, 0, 2]);
        check_transpose(8, &[7, 1, 90], &[2, 1, 0]);
    }

    proptest! {
        #[test]
        fn transpositions_match_a_plain_walk(dims in prop::collection::vec(1usize..7, 0..5), seed in any::<[u8; 5]>(), size in 0u32..4) {
            let mut order: Vec<usize> = (0..dims.len()).collect();
            order.sort_by_key(|axis| seed[*axis]);
            check_transpose(1 << size, &dims, &order);
        }

        /// A slice is taken and padded back: the outside is zero, the inside is unchanged.
        #[test]
        fn a_slice_put_back_between_zeros_is_unchanged(
            dims in prop::collection::vec(1usize..7, 1..4), pick: u8, cut in any::<(u8, u8)>(), size in 0u32..4,
        ) {
            let (axis, element) = (pick as usize % dims.len(), 1 << size);
            let start = cut.0 as usize % dims[axis];
            let length = 1 + cut.1 as usize % (dims[axis] - start);
            let from = source(element, dims.iter().product());
            let mut part_dims = dims.clone();
            part_dims[axis] = length;
            let mut part = vec![0xAA; part_dims.iter().product::<usize>() * element];
            run(&StridedCopy::along(element, &part_dims, axis, (dims[axis], start), (length, 0)), &from, &mut part);
            let mut back = vec![0xAA; from.len()];
            // SAFETY: the destination has space for the padding on both sides.
            unsafe { pad_with_zeros(element, &part_dims, axis, start, dims[axis] - start - length, back.as_mut_ptr()) };
            run(&StridedCopy::along(element, &part_dims, axis, (length, 0), (dims[axis], start)), &part, &mut back);
            for (i, at) in positions(&dims).iter().enumerate() {
                let inside = (start..start + length).contains(&at[axis]);
                let expected = if inside { from[i * element..(i + 1) * element].to_vec() } else { vec![0; element] };
                prop_assert_eq!(&back[i * element..(i + 1) * element], &expected[..]);
            }
        }
    }
}
