//! Random crops of random size and aspect ratio, resized to one size.

use super::resize::resampled;
use super::{ItemStep, Kernel, Method, Op, refuse, resize, resize_mask, shape_of};
use crate::rng::{Salt, uniform};
use crate::{Column, DataError};
use plimsoll_core::Bytes;
use std::sync::Arc;

/// How [`random_resized_crop`] chooses a crop.
///
/// ```
/// use plimsoll_data::ops::{CropArea, random_resized_crop};
/// let op = random_resized_crop(224, 224, CropArea { share: (0.35, 1.0), ..CropArea::default() });
/// assert_eq!(op.describe(), "random_resized_crop(224, 224, bilinear, share 0.35 to 1, ratio 0.75 to 1.3333334, seed 0)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CropArea {
    /// Minimum and maximum fraction of the image's area.
    pub share: (f32, f32),
    /// Minimum and maximum aspect ratio (width by height).
    pub ratio: (f32, f32),
    /// The interpolation method.
    pub method: Method,
    /// The random seed, combined with epoch and row.
    pub seed: u64,
}

impl Default for CropArea {
    /// The usual values for ImageNet: 8 % to 100 % of the area, aspect ratio from 3:4 to 4:3.
    fn default() -> CropArea {
        CropArea { share: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), method: Method::Bilinear, seed: 0 }
    }
}

/// Crops a random part of each image and resizes it to `height` × `width` f32. If no part with an allowed aspect
/// ratio fits, it takes the largest one in the center.
pub fn random_resized_crop(height: usize, width: usize, part: CropArea) -> Arc<dyn Op> {
    Arc::new(ResizedCrop { height, width, part, mask: false })
}

#[derive(Clone, Copy)]
struct ResizedCrop {
    height: usize,
    width: usize,
    part: CropArea,
    /// Whether pixels are class indices.
    mask: bool,
}

/// A rectangle of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CropRect {
    pub top: usize,
    pub left: usize,
    pub height: usize,
    pub width: usize,
}

impl CropArea {
    /// The crop of an image of `height` × `width` for this epoch and row.
    pub(crate) fn window(&self, height: usize, width: usize, epoch: u64, row: u64) -> CropRect {
        const TRIES: u64 = 10;
        let area = height as f64 * width as f64;
        let (narrow, broad) = (f64::from(self.ratio.0), f64::from(self.ratio.1));
        for lot in 0..TRIES {
            let lots = |which: u64| uniform(self.seed, Salt::Crop, epoch, row.wrapping_mul(TRIES * 4).wrapping_add(lot * 4 + which));
            let share = f64::from(self.share.0) + lots(0) * f64::from(self.share.1 - self.share.0);
            let ratio = (narrow.ln() + lots(1) * (broad.ln() - narrow.ln())).exp();
            let w = (area * share * ratio).sqrt().round() as usize;
            let h = (area * share / ratio).sqrt().round() as usize;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let place = |lot: f64, room: usize| ((lot * (room + 1) as f64) as usize).min(room);
                return CropRect { top: place(lots(2), height - h), left: place(lots(3), width - w), height: h, width: w };
            }
        }
        let ratio = (width as f64 / height as f64).clamp(narrow, broad);
        let w = ((height as f64 * ratio).round() as usize).clamp(1, width);
        let h = ((width as f64 / ratio).round() as usize).clamp(1, height);
        CropRect { top: (height - h) / 2, left: (width - w) / 2, height: h, width: w }
    }
}

impl Op for ResizedCrop {
    fn describe(&self) -> String {
        let CropArea { share, ratio, method, seed } = self.part;
        let (height, width) = (self.height, self.width);
        format!(
            "random_resized_crop({height}, {width}, {method}, share {} to {}, ratio {} to {}, seed {seed})",
            share.0, share.1, ratio.0, ratio.1
        )
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let CropArea { share, ratio, method, .. } = self.part;
        if !(0.0 < share.0 && share.0 <= share.1 && share.1 <= 1.0) {
            return Err(refuse(self, input, "the share of the area goes from above 0 to 1, the smaller number first"));
        }
        if !(0.0 < ratio.0 && ratio.0 <= ratio.1 && ratio.1.is_finite()) {
            return Err(refuse(self, input, "proportions are above 0, the smaller number first"));
        }
        match self.mask {
            true => resize_mask(self.height, self.width).output(input),
            false => resize(self.height, self.width, method).output(input),
        }
    }

    fn kernel_bytes(&self, input: &Column) -> Bytes {
        resize(self.height, self.width, self.part.method).kernel_bytes(input)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let ([height, width, _], part) = (shape_of(input), self.part);
        resampled(self, input, part.method, move |epoch, row| part.window(height, width, epoch, row))
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::ResizedCrop { height: self.height, width: self.width, part: self.part })
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(ResizedCrop { part: CropArea { method: Method::Nearest, ..self.part }, mask: true, ..*self }))
    }

    fn without_randomness(&self) -> Option<Arc<dyn Op>> {
        Some(resize(self.height, self.width, self.part.method))
    }

    fn is_random(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside_and_are_as_large_as_was_asked_for() {
        let part = CropArea { share: (0.2, 0.6), seed: 5, ..CropArea::default() };
        let mut sizes = std::collections::BTreeSet::new();
        for row in 0..2000 {
            let window = part.window(90, 120, 1, row);
            assert!(window.top + window.height <= 90 && window.left + window.width <= 120, "{window:?}");
            let share = (window.height * window.width) as f32 / (90.0 * 120.0);
            assert!((0.19..0.61).contains(&share), "{window:?}");
            let ratio = window.width as f32 / window.height as f32;
            assert!((0.72..1.38).contains(&ratio), "{window:?}");
            sizes.insert((window.height, window.width, window.top, window.left));
        }
        assert!(sizes.len() > 1500, "they differ");
    }

    #[test]
    fn where_no_part_fits_the_middle_is_taken() {
        let part = CropArea { share: (1.0, 1.0), ..CropArea::default() };
        assert_eq!(part.window(10, 100, 0, 0), CropRect { top: 0, left: 43, height: 10, width: 13 });
        assert_eq!(part.window(1, 1, 0, 0), CropRect { top: 0, left: 0, height: 1, width: 1 });
    }
}
