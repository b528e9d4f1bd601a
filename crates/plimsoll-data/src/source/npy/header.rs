//! The header of a `.npy` file: a magic number, a version, and a Python dictionary with dtype, order and shape.

use crate::DataError;
use plimsoll_core::DType;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The parsed header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NpyHeader {
    /// Offset of the array data.
    pub data: u64,
    pub element: NpyType,
    /// Whether elements are big endian.
    pub swapped: bool,
    /// Whether the first dimension varies fastest.
    pub fortran: bool,
    pub shape: Vec<usize>,
}

/// The supported dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NpyType {
    F16,
    F32,
    F64,
    I8,
    U8,
    Bool,
    I16,
    U16,
    I32,
    U32,
    I64,
}

impl NpyType {
    pub fn size(self) -> usize {
        match self {
            NpyType::I8 | NpyType::U8 | NpyType::Bool => 1,
            NpyType::F16 | NpyType::I16 | NpyType::U16 => 2,
            NpyType::F32 | NpyType::I32 | NpyType::U32 => 4,
            NpyType::F64 | NpyType::I64 => 8,
        }
    }

    /// The dtype after conversion.
    pub fn delivered(self) -> DType {
        match self {
            NpyType::F16 | NpyType::F32 | NpyType::F64 => DType::F32,
            NpyType::U8 | NpyType::Bool => DType::U8,
            NpyType::I8 | NpyType::I16 | NpyType::U16 | NpyType::I32 | NpyType::U32 | NpyType::I64 => DType::I32,
        }
    }

    pub fn is_delivered_as_is(self) -> bool {
        matches!(self, NpyType::F32 | NpyType::U8 | NpyType::Bool | NpyType::I32)
    }
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's own limit is 10,000 unless the file is trusted; a longer header means a corrupt length.
const LONGEST: usize = 64 * 1024;

impl NpyHeader {
    /// Reads the header of the array that begins at byte `start_of_file`.
    pub fn read(file: &File, path: &Path, start_of_file: u64) -> Result<NpyHeader, DataError> {
        NpyHeader::read_with(path, start_of_file, &mut |buffer, offset| file.read_exact_at(buffer, start_of_file + offset))
    }

    /// Like `read`, through a function that fills a buffer with the bytes at an offset; offsets are ascending.
    pub fn read_with(
        path: &Path,
        start_of_file: u64,
        bytes: &mut dyn FnMut(&mut [u8], u64) -> std::io::Result<()>,
    ) -> Result<NpyHeader, DataError> {
        let refuse = |problem: String| DataError::Npy { path: path.to_path_buf(), problem };
        let cut = || refuse("it ends inside its header; copy or write it again".into());
        let mut read_at = |buffer: &mut [u8], offset| match bytes(buffer, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(cut()),
            Err(error) => Err(DataError::io("read", path, error)),
        };

        let mut start = [0; 8];
        read_at(&mut start, 0)?;
        if &start[..6] != MAGIC {
            return Err(refuse("it does not begin with the .npy magic number; save it with numpy.save".into()));
        }
        let (at, length) = match start[6] {
            1 => {
                let mut length = [0; 2];
                read_at(&mut length, 8)?;
                (10, usize::from(u16::from_le_bytes(length)))
            }
            2 | 3 => {
                let mut length = [0; 4];
                read_at(&mut length, 8)?;
                (12, u32::from_le_bytes(length) as usize)
            }
            version => return Err(refuse(format!("its format version {version} is unknown; save it as version 1, 2 or 3"))),
        };
        if length > LONGEST {
            return Err(refuse(format!("its header claims {length} bytes, more than the {LONGEST} one may have; the file is damaged")));
        }
        let mut text = vec![0; length];
        read_at(&mut text, at)?;
        let ArrayDescriptor { element, swapped, fortran, shape } = parse(&text).map_err(refuse)?;
        Ok(NpyHeader { data: start_of_file + at + length as u64, element, swapped, fortran, shape })
    }
}

/// The dictionary of a header.
#[derive(Debug, PartialEq, Eq)]
struct ArrayDescriptor {
    element: NpyType,
    swapped: bool,
    fortran: bool,
    shape: Vec<usize>,
}

/// Parses `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &[u8]) -> Result<ArrayDescriptor, String> {
    let damaged = || "its header is not the dictionary numpy.save writes; the file is damaged".to_string();
    let text = std::str::from_utf8(text).map_err(|_| damaged())?.trim();
    let mut rest = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(damaged)?.trim_start();
    let (mut element, mut fortran, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, value) = quoted(rest).ok_or_else(damaged)?;
        let value = value.trim_start().strip_prefix(':').ok_or_else(damaged)?.trim_start();
        let after = match key {
            "descr" if value.starts_with('[') => {
                return Err("its elements are records of several fields; save one plain array for each column".into());
            }
            "descr" => {
                let (descr, after) = quoted(value).ok_or_else(damaged)?;
                element = Some(element_of(descr)?);
                after
            }
            "fortran_order" => match (value.strip_prefix("False"), value.strip_prefix("True")) {
                (Some(after), _) => {
                    fortran = Some(false);
                    after
                }
                (_, Some(after)) => {
                    fortran = Some(true);
                    after
                }
                _ => return Err(damaged()),
            },
            "shape" => {
                let (dims, after) = value.strip_prefix('(').and_then(|value| value.split_once(')')).ok_or_else(damaged)?;
                let dims: Result<Vec<usize>, _> =
                    dims.split(',').map(str::trim).filter(|dim| !dim.is_empty()).map(|dim| dim.trim_end_matches('L').parse()).collect();
                shape = Some(dims.map_err(|_| damaged())?);
                after
            }
            _ => return Err(damaged()),
        };
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    match (element, fortran, shape) {
        (Some((element, swapped)), Some(fortran), Some(shape)) => {
            // With one dimension, or rows of one element, both orders are the same.
            let fortran = fortran && shape.iter().skip(1).any(|dim| *dim > 1);
            Ok(ArrayDescriptor { element, swapped, fortran, shape })
        }
        _ => Err(damaged()),
    }
}

/// A quoted string at the start of `text`, and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|&c| c == '\'' || c == '"')?;
    text[1..].split_once(quote)
}

/// The dtype of a description, and whether it is big endian.
fn element_of(descr: &str) -> Result<(NpyType, bool), String> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or((descr, ""));
    let element = match kind {
        "f2" => NpyType::F16,
        "f4" => NpyType::F32,
        "f8" => NpyType::F64,
        "i1" => NpyType::I8,
        "u1" => NpyType::U8,
        "i2" => NpyType::I16,
        "u2" => NpyType::U16,
        "i4" => NpyType::I32,
        "u4" => NpyType::U32,
        "i8" => NpyType::I64,
        "b1" => NpyType::Bool,
        _ => {
            return Err(format!(
                "its elements are `{descr}`, which is not supported; convert it with array.astype to one of f2, f4, f8, i1, u1, i2, u2, i4, u4, i8, bool"
            ));
        }
    };
    Ok((element, order == ">" && element.size() > 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_writers_write() {
        for (text, element, shape) in [
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }      \n", NpyType::F64, vec![3, 4]),
            ("{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", NpyType::U8, vec![7]),
            ("{\"shape\":(2,),\"descr\":\"<i8\",\"fortran_order\":False}", NpyType::I64, vec![2]),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (5,), }", NpyType::F32, vec![5]),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (5L, 2L), }", NpyType::F16, vec![5, 2]),
            ("{'descr': '<f2', 'fortran_order': False, 'shape': (), }", NpyType::F16, vec![]),
        ] {
            let expected = ArrayDescriptor { element, swapped: false, fortran: false, shape };
            assert_eq!(parse(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn order_and_byte_order_are_read_where_they_matter() {
        for (text, element, swapped, fortran) in [
            ("{'descr': '>f4', 'fortran_order': True, 'shape': (3, 4), }", NpyType::F32, true, true),
            ("{'descr': '|b1', 'fortran_order': True, 'shape': (3, 1), }", NpyType::Bool, false, false),
            ("{'descr': '>u1', 'fortran_order': False, 'shape': (3, 4), }", NpyType::U8, false, false),
        ] {
            let read = parse(text.as_bytes()).unwrap();
            assert_eq!((read.element, read.swapped, read.fortran), (element, swapped, fortran), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_not_panicked_on(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&text);
        }

        #[test]
        fn near_misses_are_refused_not_panicked_on(cut in 0usize..61, put in "[ -~é]{0,3}") {
            let whole = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }  ";
            let text = format!("{}{put}{}", &whole[..cut], &whole[cut..]);
            let _ = parse(text.as_bytes());
            let _ = parse(&whole.as_bytes()[..cut]);
        }
    }
}
