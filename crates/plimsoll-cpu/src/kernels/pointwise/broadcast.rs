//! Broadcast tensors as strides over as few dimensions as possible.

/// A shape with merged adjacent dimensions, and the strides of every tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretched {
    /// The merged dimensions, outermost first; none is 1.
    pub dims: Vec<usize>,
    /// The mark of each merged dimension.
    pub marks: Vec<bool>,
    /// For every tensor, the stride of each dimension; 0 where it is broadcast.
    pub strides: Vec<Vec<usize>>,
}

/// Merges the dimensions of `dims` that are contiguous in all tensors. Dimensions with different marks are not merged.
///
/// A tensor is given by its own dimensions and, if it is a channel view, by the stride of its innermost rows.
pub(crate) fn collapse(dims: &[usize], marks: &[bool], tensors: &[(&[usize], Option<usize>)]) -> Stretched {
    let strides: Vec<Vec<usize>> = tensors.iter().map(|(own, pitch)| strides_over(dims, own, *pitch)).collect();
    let mut merged = Stretched { dims: vec![], marks: vec![], strides: vec![vec![]; tensors.len()] };
    for axis in (0..dims.len()).filter(|axis| dims[*axis] != 1) {
        let joins = merged.marks.last() == Some(&marks[axis])
            && strides.iter().zip(&merged.strides).all(|(all, kept)| kept.last() == Some(&(all[axis] * dims[axis])));
        if joins {
            *merged.dims.last_mut().expect("joins something") *= dims[axis];
        } else {
            merged.dims.push(dims[axis]);
            merged.marks.push(marks[axis]);
            merged.strides.iter_mut().for_each(|kept| kept.push(0));
        }
        for (all, kept) in strides.iter().zip(&mut merged.strides) {
            *kept.last_mut().expect("just made sure of") = all[axis];
        }
    }
    merged
}

/// The strides of a tensor of shape `own` that is broadcast to `dims`.
fn strides_over(dims: &[usize], own: &[usize], pitch: Option<usize>) -> Vec<usize> {
    let missing = dims.len() - own.len();
    let mut strides = vec![0; dims.len()];
    let mut step = 1;
    for axis in (missing..dims.len()).rev() {
        let extent = own[axis - missing];
        if extent != 1 {
            strides[axis] = step;
        }
        step *= if axis + 1 == dims.len() { pitch.unwrap_or(extent) } else { extent };
    }
    strides
}

/// The offset of position `index` of a row-major iteration over `dims`, in a tensor with these strides.
#[inline(always)]
pub(crate) fn offset(dims: &[usize], strides: &[usize], mut index: usize) -> usize {
    // The outermost coordinate is the remainder: most iterations have one dimension and need no division.
    let Some(outermost) = strides.first() else { return 0 };
    let mut sum = 0;
    for (dim, stride) in dims.iter().zip(strides).skip(1).rev() {
        sum += index % dim * stride;
        index /= dim;
    }
    sum + index * outermost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_where_every_tensor_allows_it() {
        let shape = [8, 5, 5, 16];
        let same = |tensors: &[&[usize]]| collapse(&shape, &[false; 4], &tensors.iter().map(|own| (*own, None)).collect::<Vec<_>>());
        assert_eq!(same(&[&shape, &[]]).dims, [3200]);
        let bias = same(&[&shape, &[16]]);
        assert_eq!((bias.dims, bias.strides), (vec![200, 16], vec![vec![16, 1], vec![0, 1]]));
        let column = same(&[&[8, 1, 1, 1]]);
        assert_eq!((column.dims, column.strides), (vec![8, 400], vec![vec![1, 0]]));
        let marked = collapse(&shape, &[true, true, true, false], &[(&shape, None)]);
        assert_eq!((marked.dims, marked.marks), (vec![200, 16], vec![true, false]));
        let strip = collapse(&shape, &[false; 4], &[(&shape, Some(40)), (&shape, None)]);
        assert_eq!((strip.dims, strip.strides), (vec![200, 16], vec![vec![40, 1], vec![16, 1]]));
        let narrow = collapse(&[8, 5, 5, 1], &[false; 4], &[(&[8, 5, 5, 1], Some(40))]);
        assert_eq!((narrow.dims, narrow.strides), (vec![200], vec![vec![40]]));
    }

    #[test]
    fn offsets_walk_like_an_odometer() {
        let (dims, strides) = ([2, 3, 4], [0, 4, 1]);
        let walked: Vec<usize> = (0..24).map(|i| offset(&dims, &strides, i)).collect();
        assert_eq!(walked, (0..24).map(|i| i % 12).collect::<Vec<_>>());
    }
}
