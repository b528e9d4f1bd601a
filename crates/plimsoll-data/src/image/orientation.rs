//! The EXIF orientation of an image, and transposing images.

/// How to transform the stored image to display it upright: transpose, then mirror, then flip vertically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    pub transposed: bool,
    pub mirrored: bool,
    pub upside_down: bool,
}

impl Orientation {
    /// Parses an APP1 segment; upright if there is no valid orientation.
    pub fn from_exif(segment: &[u8]) -> Orientation {
        Orientation::of(number(segment).unwrap_or_default())
    }

    /// The orientation of a number of EXIF and TIFF.
    pub fn of(number: u16) -> Orientation {
        Orientation {
            transposed: matches!(number, 5..=8),
            mirrored: matches!(number, 2 | 3 | 6 | 7),
            upside_down: matches!(number, 3 | 4 | 7 | 8),
        }
    }
}

/// The orientation tag of the first IFD.
fn number(segment: &[u8]) -> Option<u16> {
    let tiff = segment.strip_prefix(b"Exif\0\0")?;
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at + 2)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    let entry = (0..entries).map(|index| directory + 2 + 12 * index).find(|&at| short(at) == Some(0x0112))?;
    short(entry + 8)
}

/// Writes the transposition of `image` (`height` × `width`).
pub(crate) fn transpose(image: &[u8], height: usize, width: usize, channels: usize, out: &mut [u8]) {
    for (x, line) in out.chunks_exact_mut(height * channels).enumerate() {
        for (y, pixel) in line.chunks_exact_mut(channels).enumerate() {
            pixel.copy_from_slice(&image[(y * width + x) * channels..][..channels]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An APP1 segment whose only entry is the orientation.
    fn exif(number: u16, little: bool) -> Vec<u8> {
        let short = |number: u16| if little { number.to_le_bytes() } else { number.to_be_bytes() };
        let long = |number: u32| if little { number.to_le_bytes() } else { number.to_be_bytes() };
        let mut bytes = b"Exif\0\0".to_vec();
        bytes.extend(if little { b"II*\0" } else { b"MM\0*" });
        bytes.extend(long(8));
        bytes.extend(short(1));
        bytes.extend([short(0x0112), short(3)].concat());
        bytes.extend(long(1));
        bytes.extend([short(number), short(0)].concat());
        bytes
    }

    #[test]
    fn the_tag_is_found_in_either_byte_order() {
        for little in [true, false] {
            let turned = Orientation { transposed: true, mirrored: true, upside_down: false };
            assert_eq!(Orientation::from_exif(&exif(6, little)), turned);
            assert_eq!(Orientation::from_exif(&exif(1, little)), Orientation::default());
        }
    }

    #[test]
    fn what_is_cut_short_is_upright() {
        let whole = exif(6, true);
        for length in 0..whole.len() - 4 {
            assert_eq!(Orientation::from_exif(&whole[..length]), Orientation::default());
        }
    }

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        let mut out = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], 2, 3, 1, &mut out);
        assert_eq!(out, [1, 4, 2, 5, 3, 6]);
    }
}
