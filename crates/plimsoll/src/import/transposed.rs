//! Kernels of PyTorch: their outermost axis, the outputs, becomes the innermost one. Read in blocks of a fixed size.

use super::weights::Problem;
use plimsoll_formats::tensor::Tensor;

/// Elements of a block: four megabytes, or one row of the stored tensor.
const BLOCK: usize = 1 << 20;

/// Passes the elements of tensors `[outputs, inner…]`, side by side along their outputs, on as
/// `[inner permuted…, outputs]`. Pieces come in any order; each has its position.
pub(super) fn each_piece(
    parts: &[Tensor],
    inner: &[usize],
    order: &[usize],
    mut sink: impl FnMut(u64, &[f32]) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let depth: usize = inner.iter().product();
    let outputs = |part: &Tensor| part.elements() as usize / depth.max(1);
    let wide: usize = parts.iter().map(outputs).sum();
    let places = places(inner, order);
    let mut column = 0;
    for part in parts {
        let mut reader = part.reader();
        let rows = (BLOCK / depth.max(1)).clamp(1, outputs(part).max(1));
        let mut block = vec![0.0; rows * depth];
        let mut segment = vec![0.0; rows];
        let mut done = 0;
        while done < outputs(part) {
            let count = rows.min(outputs(part) - done);
            let block = &mut block[..count * depth];
            reader.f32s((done * depth) as u64, block).map_err(|error| Problem::File(error.to_string()))?;
            for (from, to) in places.iter().enumerate() {
                let segment = &mut segment[..count];
                segment.iter_mut().enumerate().for_each(|(row, number)| *number = block[row * depth + from]);
                sink((to * wide + column + done) as u64, segment)?;
            }
            done += count;
        }
        column += outputs(part);
    }
    Ok(())
}

/// Where each inner element goes; axis `i` of the result is axis `order[i]`.
fn places(inner: &[usize], order: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; inner.len()];
    let mut stride = 1;
    for axis in order.iter().rev() {
        strides[*axis] = stride;
        stride *= inner[*axis];
    }
    let place = |mut index: usize| {
        let mut at = 0;
        for axis in (0..inner.len()).rev() {
            at += index % inner[axis] * strides[axis];
            index /= inner[axis];
        }
        at
    };
    (0..inner.iter().product()).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_formats::tensor::DType;

    #[test]
    fn filters_of_pytorch_become_filters_of_images_with_channels_last() {
        // [out 2, channels 2, height 1, width 3], numbered in order.
        let bytes = (0..12).flat_map(|number| (number as f32).to_le_bytes()).collect();
        let tensor = Tensor::in_memory(DType::F32, vec![2, 2, 1, 3], bytes).unwrap();
        let mut result = vec![-1.0; 12];
        let done = each_piece(&[tensor], &[2, 1, 3], &[1, 2, 0], |at, piece| {
            result[at as usize..][..piece.len()].copy_from_slice(piece);
            Ok(())
        });
        assert!(done.is_ok());
        // [height, width, channels, out]
        assert_eq!(result, [0.0, 6.0, 3.0, 9.0, 1.0, 7.0, 4.0, 10.0, 2.0, 8.0, 5.0, 11.0]);
    }
}
