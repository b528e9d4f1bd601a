//! Windows bitmaps: 1 to 32 bits per pixel, uncompressed or run-length encoded.

use super::header_reader::HeaderReader;
use crate::DataError;

/// The header of a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bmp {
    pub width: usize,
    pub height: usize,
    /// Whether the first line is the top one.
    top_down: bool,
    bits: u16,
    compression: u32,
    /// Offset of the pixels.
    data: usize,
    /// Offset of the palette, its entries, and the bytes of each.
    palette: (usize, usize, usize),
    /// The bits of red, green and blue.
    masks: [u32; 3],
}

impl Bmp {
    /// Parses the header.
    pub fn read(reader: &mut HeaderReader<'_>) -> Result<Bmp, DataError> {
        let path = reader.path;
        let refuse = |problem: String| Err(DataError::image(path, problem));
        let head: [u8; 18] = reader.at(0, 18)?.try_into().expect("18 bytes");
        let (data, size) = (u32_at(&head, 10) as usize, u32_at(&head, 14) as usize);
        if !(size == 12 || (40..=124).contains(&size)) {
            return refuse(format!("its header claims {size} bytes, which no bitmap has"));
        }
        let info = reader.at(14, size)?;
        let core = size == 12;
        let (width, height, bits, compression, colours) = if core {
            (i32::from(u16_at(info, 4)), i32::from(u16_at(info, 6)), u16_at(info, 10), 0, 0)
        } else {
            (u32_at(info, 4) as i32, u32_at(info, 8) as i32, u16_at(info, 14), u32_at(info, 16), u32_at(info, 32))
        };
        // The masks follow a header of 40 bytes, and are a part of longer ones.
        let with_masks = matches!(compression, 3 | 6);
        let masks = match (with_masks, bits) {
            (true, _) => {
                let masks = reader.at(14 + 40, 12)?;
                [u32_at(masks, 0), u32_at(masks, 4), u32_at(masks, 8)]
            }
            (false, 16) => [0x7C00, 0x03E0, 0x001F],
            (false, _) => [0x00FF_0000, 0x0000_FF00, 0x0000_00FF],
        };
        let known = matches!((compression, bits), (0, 1 | 4 | 8 | 16 | 24 | 32) | (1, 8) | (2, 4) | (3 | 6, 16 | 32));
        if !known {
            return refuse(format!("its kind of bitmap ({bits} bits, compression {compression}) is not supported; save it as PNG"));
        }
        if width <= 0 || height == 0 || height == i32::MIN {
            return refuse(format!("its header says it is {width} × {height} pixels"));
        }
        let after = if with_masks && size == 40 { 12 } else { 0 };
        let most = 1 << bits.min(8);
        let entries = match (bits > 8, colours) {
            (true, _) => 0,
            (false, 0) => most,
            (false, colours) => (colours as usize).min(most),
        };
        Ok(Bmp {
            width: width as usize,
            height: height.unsigned_abs() as usize,
            top_down: height < 0,
            bits,
            compression,
            data,
            palette: (14 + size + after, entries, if core { 3 } else { 4 }),
            masks,
        })
    }

    /// Whether pixels are indices into a palette.
    fn is_indexed(&self) -> bool {
        self.bits <= 8
    }

    /// Writes RGB pixels.
    pub fn colours(&self, file: &[u8], pixels: &mut [u8]) -> Result<(), String> {
        if self.is_indexed() {
            let area = self.width * self.height;
            // Indices go behind the colours, which are written from the first to the last.
            let (colours, indices) = pixels.split_at_mut(3 * area);
            self.indices(file, &mut indices[..area])?;
            let (start, entries, bytes) = self.palette;
            for (&index, out) in indices.iter().zip(colours.as_chunks_mut::<3>().0) {
                let entry = file.get(start + usize::from(index) * bytes..).and_then(|rest| rest.first_chunk::<3>());
                let Some(&[blue, green, red]) = entry.filter(|_| usize::from(index) < entries) else {
                    return Err(format!("it has a pixel of colour {index}, which it does not list"));
                };
                *out = [red, green, blue];
            }
            return Ok(());
        }
        let bytes = usize::from(self.bits / 8);
        let line = (self.width * bytes).next_multiple_of(4);
        for y in 0..self.height {
            let from = file.get(self.data + y * line..).and_then(|rest| rest.get(..self.width * bytes)).ok_or_else(cut)?;
            let to = if self.top_down { y } else { self.height - 1 - y };
            let out = pixels[to * self.width * 3..][..self.width * 3].as_chunks_mut::<3>().0;
            for (pixel, out) in from.chunks_exact(bytes).zip(out) {
                *out = match *pixel {
                    [blue, green, red] => [red, green, blue],
                    [low, high] => self.masks.map(|mask| masked(u32::from(u16::from_le_bytes([low, high])), mask)),
                    _ => self.masks.map(|mask| masked(u32_at(pixel, 0), mask)),
                };
            }
        }
        Ok(())
    }

    /// Writes the palette indices of pixels.
    pub fn indices(&self, file: &[u8], out: &mut [u8]) -> Result<(), String> {
        if !self.is_indexed() {
            return Err("its pixels are colours, not indices".into());
        }
        if self.compression != 0 {
            return self.run_lengths(file, out);
        }
        let per_byte = usize::from(8 / self.bits);
        let line = self.width.div_ceil(per_byte).next_multiple_of(4);
        for y in 0..self.height {
            let from = file.get(self.data + y * line..).and_then(|rest| rest.get(..line)).ok_or_else(cut)?;
            let to = if self.top_down { y } else { self.height - 1 - y };
            for (x, out) in out[to * self.width..][..self.width].iter_mut().enumerate() {
                let shift = (per_byte - 1 - x % per_byte) * usize::from(self.bits);
                *out = from[x / per_byte] >> shift & ((1u16 << self.bits) - 1) as u8;
            }
        }
        Ok(())
    }

    /// Decodes run lengths; pixels that none covers have index 0.
    fn run_lengths(&self, file: &[u8], out: &mut [u8]) -> Result<(), String> {
        out.fill(0);
        let mut rest = file.get(self.data..).ok_or_else(cut)?;
        let (mut x, mut y) = (0, 0);
        let half = self.bits == 4;
        let mut put = |x: usize, y: usize, index: u8| {
            if x < self.width && y < self.height {
                out[(if self.top_down { y } else { self.height - 1 - y }) * self.width + x] = index;
            }
        };
        while let [count, value, after @ ..] = rest {
            rest = after;
            match (*count, *value) {
                (0, 0) => (x, y) = (0, y + 1),
                (0, 1) => return Ok(()),
                (0, 2) => {
                    let [right, down, after @ ..] = rest else { return Err(cut()) };
                    (x, y, rest) = (x + usize::from(*right), y + usize::from(*down), after);
                }
                (0, literal) => {
                    let literal = usize::from(literal);
                    let bytes = if half { literal.div_ceil(2) } else { literal };
                    let indices = rest.get(..bytes).ok_or_else(cut)?;
                    for i in 0..literal {
                        let index = if half { indices[i / 2] >> (4 * (1 - i % 2)) & 15 } else { indices[i] };
                        put(x + i, y, index);
                    }
                    x += literal;
                    rest = rest.get(bytes.next_multiple_of(2)..).unwrap_or_default();
                }
                (count, value) => {
                    for i in 0..usize::from(count) {
                        put(x + i, y, if half { value >> (4 * (1 - i % 2)) & 15 } else { value });
                    }
                    x += usize::from(count);
                }
            }
            if y >= self.height {
                return Ok(());
            }
        }
        Err(cut())
    }
}

/// The bits of a mask, scaled to 0 to 255.
fn masked(pixel: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let shift = mask.trailing_zeros();
    let most = u64::from(mask >> shift);
    (u64::from((pixel & mask) >> shift) * 255 / most) as u8
}

fn cut() -> String {
    "it is truncated: the end of its data is missing".into()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
