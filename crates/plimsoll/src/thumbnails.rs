//! Rows of a batch as thumbnails: reduced to a few pixels, from 0 to 255, in base64.

use plimsoll_core::DType;
use plimsoll_data::{Column, Extent, numbers};
use std::io::{self, Write};

/// The largest side of a thumbnail.
const SIDE: usize = 96;

/// The thumbnails of a column: height, width and channels of its rows, and of what is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thumbnails {
    height: usize,
    width: usize,
    channels: usize,
    dtype: DType,
    /// The values that are black and white.
    range: (f32, f32),
}

impl Thumbnails {
    /// Of a column of images, if it is one; black and white are the extremes of these rows.
    pub fn of(column: &Column, bytes: &[u8]) -> Option<Thumbnails> {
        let [height, width, channels @ (1 | 3)] = column.shape[..] else { return None };
        if column.extent != Extent::Fixed || height * width < 4 {
            return None;
        }
        let range = numbers(column.dtype, bytes).map(|value| value as f32).filter(|value| value.is_finite());
        let range = range.fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)));
        Some(Thumbnails { height, width, channels, dtype: column.dtype, range })
    }

    /// Height, width and channels of what is shown.
    pub fn shown(&self) -> (usize, usize, usize) {
        (self.height.min(SIDE), self.width.min(SIDE), self.channels)
    }

    /// Bytes of a row.
    fn row(&self) -> usize {
        self.height * self.width * self.channels * self.dtype.size()
    }

    /// The pixels of one of the rows in `bytes`, nearest neighbours where it is reduced.
    pub fn pixels<'a>(&'a self, bytes: &'a [u8], row: usize) -> impl Iterator<Item = u8> + 'a {
        let (height, width, channels) = self.shown();
        let bytes = &bytes[row * self.row()..][..self.row()];
        let span = (self.range.1 - self.range.0).max(f32::MIN_POSITIVE);
        (0..height * width * channels).map(move |i| {
            let (y, x, channel) = (i / (width * channels), i / channels % width, i % channels);
            let at = ((y * self.height / height) * self.width + x * self.width / width) * self.channels + channel;
            let value = numbers(self.dtype, &bytes[at * self.dtype.size()..][..self.dtype.size()]).next().unwrap_or(0.0) as f32;
            (255.0 * (value - self.range.0) / span).round().clamp(0.0, 255.0) as u8
        })
    }

    /// Writes the pixels of a row in base64.
    pub fn write(&self, writer: &mut impl Write, bytes: &[u8], row: usize) -> io::Result<()> {
        write_base64(writer, self.pixels(bytes, row))
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn write_base64(writer: &mut impl Write, mut bytes: impl Iterator<Item = u8>) -> io::Result<()> {
    while let Some(first) = bytes.next() {
        let (second, third) = (bytes.next(), bytes.next());
        let word = u32::from(first) << 16 | u32::from(second.unwrap_or(0)) << 8 | u32::from(third.unwrap_or(0));
        let letter = |shift: u32| ALPHABET[(word >> shift & 63) as usize];
        let letters =
            [letter(18), letter(12), if second.is_some() { letter(6) } else { b'=' }, if third.is_some() { letter(0) } else { b'=' }];
        writer.write_all(&letters)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            let mut written = Vec::new();
            write_base64(&mut written, bytes.bytes()).unwrap();
            assert_eq!(written, text.as_bytes());
        }
    }

    #[test]
    fn large_images_are_reduced_and_scaled_to_bytes() {
        let column = Column::new("x", DType::F32, [192, 192, 1]);
        let bytes: Vec<u8> = (0..192 * 192).flat_map(|i| (i as f32 / 10.0).to_ne_bytes()).collect();
        let thumbnails = Thumbnails::of(&column, &bytes).unwrap();
        assert_eq!(thumbnails.shown(), (96, 96, 1));
        let pixels: Vec<u8> = thumbnails.pixels(&bytes, 0).collect();
        assert_eq!((pixels.len(), pixels[0]), (96 * 96, 0));
        assert!(pixels[95 * 96 + 95] >= 252, "{}", pixels[95 * 96 + 95]);
        assert!(Thumbnails::of(&Column::new("x", DType::F32, [5]), &bytes).is_none());
    }
}
