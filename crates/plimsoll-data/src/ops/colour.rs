//! Brightness, contrast, saturation, hue and greyscale, like `tf.image`.
//!
//! u8 pixels are scaled to 0 to 1 for the arithmetic and converted back like in TensorFlow; f32 pixels are used as
//! they are.

use super::kernel::{each_block, each_row_in_place};
use super::{Kernel, Op, pixel_shape, refuse};
use crate::rng::{Salt, uniform};
use crate::{Column, DataError};
use plimsoll_core::DType;
use std::sync::Arc;

/// Adds `by` to every element, like `tf.image.adjust_brightness`: a fraction of the value range for u8, the number
/// itself for f32.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, Rows, ops::brightness};
/// let image = Column::new("x", DType::U8, [1, 3, 1]);
/// let mut pixels = [0, 100, 250];
/// brightness(0.1).kernel(&image).run_in_place(Rows::From(0), &mut pixels)?;
/// assert_eq!(pixels, [25, 125, 255]);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn brightness(by: f32) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Brightness, range: (by, by), seed: None })
}

/// Adds a random number from −`most` to `most`, a function of `seed`, the epoch and the row; like
/// `tf.image.random_brightness`.
pub fn random_brightness(most: f32, seed: u64) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Brightness, range: (-most, most), seed: Some(seed) })
}

/// Multiplies each element's distance from the mean of its channel, like `tf.image.adjust_contrast`.
pub fn contrast(by: f32) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Contrast, range: (by, by), seed: None })
}

/// Adjusts the contrast by a random factor from `least` to `most`, a function of `seed`, the epoch and the row.
pub fn random_contrast(least: f32, most: f32, seed: u64) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Contrast, range: (least, most), seed: Some(seed) })
}

/// Multiplies the saturation of each pixel, like `tf.image.adjust_saturation`; 0 yields grey.
pub fn saturation(by: f32) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Saturation, range: (by, by), seed: None })
}

/// Adjusts the saturation by a random factor from `least` to `most`, a function of `seed`, the epoch and the row.
pub fn random_saturation(least: f32, most: f32, seed: u64) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Saturation, range: (least, most), seed: Some(seed) })
}

/// Rotates the hue of each pixel by a fraction of the full circle, like `tf.image.adjust_hue`.
pub fn hue(by: f32) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Hue, range: (by, by), seed: None })
}

/// Rotates the hue by a random fraction of the full circle from −`most` to `most`, a function of `seed`, the epoch
/// and the row.
pub fn random_hue(most: f32, seed: u64) -> Arc<dyn Op> {
    Arc::new(Colour { kind: ColourOp::Hue, range: (-most, most), seed: Some(seed) })
}

#[derive(Clone, Copy, PartialEq)]
enum ColourOp {
    Brightness,
    Contrast,
    Saturation,
    Hue,
}

impl ColourOp {
    fn name(self) -> &'static str {
        match self {
            ColourOp::Brightness => "brightness",
            ColourOp::Contrast => "contrast",
            ColourOp::Saturation => "saturation",
            ColourOp::Hue => "hue",
        }
    }

    fn salt(self) -> Salt {
        match self {
            ColourOp::Brightness => Salt::Brightness,
            ColourOp::Contrast => Salt::Contrast,
            ColourOp::Saturation => Salt::Saturation,
            ColourOp::Hue => Salt::Hue,
        }
    }
}

#[derive(Clone, Copy)]
struct Colour {
    kind: ColourOp,
    range: (f32, f32),
    seed: Option<u64>,
}

impl Op for Colour {
    fn describe(&self) -> String {
        let (name, (least, most)) = (self.kind.name(), self.range);
        match (self.seed, self.kind) {
            (None, _) => format!("{name}({most})"),
            (Some(seed), ColourOp::Brightness | ColourOp::Hue) => format!("random_{name}({most}, seed {seed})"),
            (Some(seed), _) => format!("random_{name}({least}, {most}, seed {seed})"),
        }
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let [_, _, channels] = pixel_shape(self, input)?;
        let (least, most) = self.range;
        if !least.is_finite() || !most.is_finite() || least > most {
            return Err(refuse(self, input, "it takes finite numbers, the smaller one first"));
        }
        match self.kind {
            ColourOp::Saturation | ColourOp::Hue if channels != 3 => {
                Err(refuse(self, input, format!("its images have {channels} channels, and colours take three: red, green, blue")))
            }
            ColourOp::Contrast | ColourOp::Saturation if least < 0.0 => {
                Err(refuse(self, input, "a factor below 0 would turn it round; use 0 or more"))
            }
            ColourOp::Hue if least < -1.0 || most > 1.0 => Err(refuse(self, input, "a hue is turned by at most one circle, from -1 to 1")),
            _ => Ok(input.clone()),
        }
    }

    fn in_place(&self, _input: &Column) -> bool {
        true
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (Colour { kind, range: (least, most), seed }, channels, dtype) = (*self, input.shape[2], input.dtype);
        each_row_in_place(input, move |epoch, row, image| {
            let lot = seed.map_or(0.0, |seed| uniform(seed, kind.salt(), epoch, row) as f32);
            let by = least + lot * (most - least);
            match dtype {
                DType::U8 => change(kind, by, channels, image),
                _ => change(kind, by, channels, image.as_chunks_mut::<4>().0),
            }
        })
    }

    fn is_random(&self) -> bool {
        self.seed.is_some()
    }
}

/// An element of an image, with conversion to and from f32.
trait ColourElement: Copy {
    fn load(self) -> f32;
    fn store(value: f32) -> Self;
}

impl ColourElement for u8 {
    fn load(self) -> f32 {
        f32::from(self) * (1.0 / 255.0)
    }

    /// `tf.image.convert_image_dtype` with saturation; the cast truncates and saturates.
    fn store(value: f32) -> u8 {
        (value * 255.5) as u8
    }
}

impl ColourElement for [u8; 4] {
    fn load(self) -> f32 {
        f32::from_ne_bytes(self)
    }

    fn store(value: f32) -> [u8; 4] {
        value.to_ne_bytes()
    }
}

fn change<E: ColourElement>(kind: ColourOp, by: f32, channels: usize, image: &mut [E]) {
    match kind {
        ColourOp::Brightness => image.iter_mut().for_each(|element| *element = E::store(element.load() + by)),
        ColourOp::Contrast => {
            for channel in 0..channels {
                let elements = || image.iter().skip(channel).step_by(channels);
                let mean = (elements().map(|element| f64::from(element.load())).sum::<f64>() / elements().count() as f64) as f32;
                for element in image.iter_mut().skip(channel).step_by(channels) {
                    *element = E::store((element.load() - mean) * by + mean);
                }
            }
        }
        ColourOp::Saturation => each_pixel(image, |[hue, saturation, value]| [hue, (saturation * by).clamp(0.0, 1.0), value]),
        ColourOp::Hue => each_pixel(image, |[hue, saturation, value]| [(hue + by).rem_euclid(1.0), saturation, value]),
    }
}

fn each_pixel<E: ColourElement>(image: &mut [E], change: impl Fn([f32; 3]) -> [f32; 3]) {
    for pixel in image.as_chunks_mut::<3>().0 {
        *pixel = from_hsv(change(to_hsv(pixel.map(E::load)))).map(E::store);
    }
}

/// Hue, saturation and value; the hue as a fraction of the circle.
fn to_hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let most = red.max(green).max(blue);
    let range = most - red.min(green).min(blue);
    if range <= 0.0 {
        return [0.0, 0.0, most];
    }
    let norm = 1.0 / (6.0 * range);
    let hue = if red == most {
        norm * (green - blue)
    } else if green == most {
        norm * (blue - red) + 2.0 / 6.0
    } else {
        norm * (red - green) + 4.0 / 6.0
    };
    [if hue < 0.0 { hue + 1.0 } else { hue }, if most > 0.0 { range / most } else { 0.0 }, most]
}

fn from_hsv([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let range = saturation * value;
    let least = value - range;
    let sixth = hue * 6.0;
    let middle = range * (1.0 - (sixth.rem_euclid(2.0) - 1.0).abs());
    let [red, green, blue] = match sixth as u32 {
        0 => [range, middle, 0.0],
        1 => [middle, range, 0.0],
        2 => [0.0, range, middle],
        3 => [0.0, middle, range],
        4 => [middle, 0.0, range],
        5 => [range, 0.0, middle],
        _ => [range, 0.0, 0.0],
    };
    [red + least, green + least, blue + least]
}

/// Converts RGB to one channel, like `tf.image.rgb_to_grayscale`.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::grey};
/// assert_eq!(grey().output(&Column::new("x", DType::U8, [28, 28, 3]))?, Column::new("x", DType::U8, [28, 28, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn grey() -> Arc<dyn Op> {
    Arc::new(Grey)
}

#[derive(Clone, Copy)]
struct Grey;

impl Op for Grey {
    fn describe(&self) -> String {
        "grey()".into()
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let [height, width, channels] = pixel_shape(self, input)?;
        if channels != 3 {
            return Err(refuse(self, input, format!("its images have {channels} channels, and colours take three: red, green, blue")));
        }
        Ok(Column::new(&input.name, input.dtype, [height, width, 1]))
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let dtype = input.dtype;
        each_block(move |_, _, input, output| {
            match dtype {
                DType::U8 => lose_colour(input, output),
                _ => lose_colour(input.as_chunks::<4>().0, output.as_chunks_mut::<4>().0),
            }
            Ok(())
        })
    }
}

fn lose_colour<E: ColourElement>(input: &[E], output: &mut [E]) {
    for ([red, green, blue], out) in input.as_chunks::<3>().0.iter().zip(output) {
        *out = E::store(red.load() * 0.2989 + green.load() * 0.587 + blue.load() * 0.114);
    }
}
