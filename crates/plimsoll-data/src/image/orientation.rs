//! The EXIF orientation of an image, and transposing images.

/// How to transform the stored image to display it upright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orientation {
    Upright,
    /// EXIF orientations 2 to 8 as three steps: transpose, then mirror, then flip vertically.
    Turned {
        transposed: bool,
        mirrored: bool,
        upside_down: bool,
    },
}

impl Orientation {
    /// Parses an APP1 segment; upright if there is no valid orientation.
    pub fn from_exif(segment: &[u8]) -> Orientation {
        number(segment).map_or(Orientation::Upright, Orientation::from_number)
    }

    fn from_number(number: u16) -> Orientation {
        let turned = |transposed, mirrored, upside_down| Orientation::Turned { transposed, mirrored, upside_down };
        match number {
            2 => turned(false, true, false),
            3 => turned(false, true, true),
            4 => turned(false, false, true),
            5 => turned(true, false, false),
            6 => turned(true, true, false),
            7 => turned(true, true, true),
            8 => turned(true, false, true),
            _ => Orientation::Upright,
        }
    }

    pub fn is_transposed(self) -> bool {
        matches!(self, Orientation::Turned { transposed: true, .. })
    }

    /// Whether to mirror and to flip vertically, after a transposition.
    pub fn flips(self) -> (bool, bool) {
        match self {
            Orientation::Upright => (false, false),
            Orientation::Turned { mirrored, upside_down, .. } => (mirrored, upside_down),
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
            let turned = Orientation::Turned { transposed: true, mirrored: true, upside_down: false };
            assert_eq!(Orientation::from_exif(&exif(6, little)), turned);
            assert_eq!(Orientation::from_exif(&exif(1, little)), Orientation::Upright);
        }
    }

    #[test]
    fn what_is_cut_short_is_upright() {
        let whole = exif(6, true);
        for length in 0..whole.len() - 4 {
            assert_eq!(Orientation::from_exif(&whole[..length]), Orientation::Upright);
        }
    }

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        let mut out = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], 2, 3, 1, &mut out);
        assert_eq!(out, [1, 4, 2, 5, 3, 6]);
    }
}
