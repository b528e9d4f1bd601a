//! Arrays written by `numpy.savez_compressed`: a stream, because compressed data has no random access.

use super::convert::{self, DoesNotFit};
use super::header::{NpyHeader, NpyType};
use super::zip::{Member, wrong_checksum};
use crate::fault::Fault;
use crate::source::{RowIterator, SequentialSource, identify_named};
use crate::{Column, DataError, Schema};
use flate2::CrcReader;
use flate2::bufread::DeflateDecoder;
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for decompressing an array: the window, and the input and output buffers.
const DECOMPRESSION: Bytes = Bytes::kib(192);

/// Bytes decompressed at a time.
const AT_ONCE: usize = 32 << 10;

/// One array and its location.
struct Array {
    path: PathBuf,
    member: Member,
    column: Column,
    element: NpyType,
    swapped: bool,
    rows: u64,
}

/// The rows of compressed arrays, given with their column names.
pub(super) fn stream(path: &Path, members: Vec<(&str, Member)>) -> Result<SequentialSource, DataError> {
    let arrays: Vec<Array> = members.into_iter().map(|(name, member)| Array::open(path, name, member)).collect::<Result<_, _>>()?;
    let Some(first) = arrays.first() else {
        return Err(DataError::Stage("a data set of arrays needs at least one; name one for each column".into()));
    };
    let rows = first.rows;
    if let Some(other) = arrays.iter().find(|array| array.rows != rows) {
        let problem = format!(
            "its array `{}` has {rows} rows and `{}` has {}; columns of one data set need the same number of rows",
            first.member.name, other.member.name, other.rows
        );
        return Err(DataError::Npy { path: path.to_path_buf(), problem });
    }
    let schema = Schema::new(arrays.iter().map(|array| array.column.clone()).collect())?;
    // One row in the file's dtype.
    let held = arrays.iter().map(|array| DECOMPRESSION + Bytes(array.raw_row() as u64)).sum();
    let arrays: Arc<[Array]> = arrays.into();
    let known = Arc::clone(&arrays);
    let identity = move |hash: &mut dyn Hasher| {
        known.iter().for_each(|array| hash.write(array.member.name.as_bytes()));
        known.first().map_or(Ok(()), |array| identify_named(&array.path, hash))
    };
    let open = move || CompressedRows { arrays: Arc::clone(&arrays), readers: None, row: rows };
    Ok(SequentialSource::new(format!("npz {}", path.display()), schema, held, open).identified(identity).with_rows(rows))
}

impl Array {
    fn open(path: &Path, name: &str, member: Member) -> Result<Array, DataError> {
        let mut reader = MemberReader::open(path, &member)?;
        let NpyHeader { element, swapped, fortran, shape, .. } =
            NpyHeader::read_with(path, 0, &mut |buffer, _offset| reader.bytes.read_exact(buffer))?;
        let refuse = |problem: String| Err(DataError::Npy { path: path.to_path_buf(), problem });
        let Some((&rows, shape)) = shape.split_first() else {
            return refuse(format!("its array `{}` is a single number; save one whose first dimension is the row", member.name));
        };
        if fortran {
            return refuse(format!(
                "its array `{}` is compressed and in Fortran order, so a row is spread over all of it; save it with numpy.savez",
                member.name
            ));
        }
        let column = Column::new(name, element.delivered(), shape);
        if column.row_bytes() > Bytes::gib(1) {
            return refuse(format!(
                "its array `{}` has rows of {}, too large to unpack; save it with numpy.savez",
                member.name,
                column.row_bytes()
            ));
        }
        Ok(Array { path: path.to_path_buf(), member, column, element, swapped, rows: rows as u64 })
    }

    /// Bytes of one row in the file's dtype.
    fn raw_row(&self) -> usize {
        self.column.elements() * self.element.size()
    }

    fn damaged(&self, row: u64, what: impl std::fmt::Display) -> DataError {
        let problem = format!("its array `{}` cannot be unpacked at row {row} ({what}); copy or write it again", self.member.name);
        DataError::Npy { path: self.path.clone(), problem }
    }
}

/// The decompressed bytes of a member.
struct MemberReader {
    bytes: CrcReader<BufReader<Box<dyn Read + Send>>>,
    raw: Vec<u8>,
}

impl MemberReader {
    fn open(path: &Path, member: &Member) -> Result<MemberReader, DataError> {
        let mut file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        file.seek(SeekFrom::Start(member.start)).map_err(|error| DataError::io("read", path, error))?;
        let stored = BufReader::with_capacity(AT_ONCE, file.take(member.bytes));
        let bytes: Box<dyn Read + Send> = if member.packed { Box::new(DeflateDecoder::new(stored)) } else { Box::new(stored) };
        Ok(MemberReader { bytes: CrcReader::new(BufReader::with_capacity(AT_ONCE, bytes)), raw: Vec::new() })
    }

    /// Reads what follows the rows, and compares the checksum.
    fn finish(&mut self, array: &Array) -> Result<(), DataError> {
        let mut rest = [0; 512];
        while self.bytes.read(&mut rest).map_err(|error| array.damaged(array.rows, error))? > 0 {}
        match self.bytes.crc().sum() == array.member.crc {
            true => Ok(()),
            false => Err(wrong_checksum(&array.path, &array.member.name)),
        }
    }
}

/// The rows of one epoch.
struct CompressedRows {
    arrays: Arc<[Array]>,
    readers: Option<Vec<MemberReader>>,
    row: u64,
}

impl CompressedRows {
    fn open(&self) -> Result<Vec<MemberReader>, DataError> {
        let open = |array: &Array| {
            let mut reader = MemberReader::open(&array.path, &array.member)?;
            // The header was checked on opening, but the file may have changed since.
            let header = NpyHeader::read_with(&array.path, 0, &mut |buffer, _offset| reader.bytes.read_exact(buffer))?;
            if (header.element, header.swapped, header.fortran) != (array.element, array.swapped, false)
                || header.shape[1..] != array.column.shape
            {
                return Err(array.damaged(0, "it changed while it was read"));
            }
            reader.raw = vec![0; array.raw_row()];
            Ok(reader)
        };
        self.arrays.iter().map(open).collect()
    }

    /// Reads the next row of all arrays, in the file's dtype.
    fn read(&mut self) -> Result<(), DataError> {
        if self.readers.is_none() {
            self.readers = Some(self.open()?);
        }
        for (array, reader) in self.arrays.iter().zip(self.readers.iter_mut().flatten()) {
            reader.bytes.read_exact(&mut reader.raw).map_err(|error| array.damaged(self.row, error))?;
            if array.swapped {
                convert::swap(array.element.size(), &mut reader.raw);
            }
            if self.row + 1 == array.rows {
                reader.finish(array)?;
            }
        }
        Ok(())
    }

    fn write(&self, out: &mut [u8]) -> Result<(), DataError> {
        let mut rest = out;
        for (array, reader) in self.arrays.iter().zip(self.readers.iter().flatten()) {
            let (part, after) = rest.split_at_mut(array.column.row_bytes().get());
            convert::convert(array.element, &reader.raw, part).map_err(|DoesNotFit { value, .. }| {
                let (path, row) = (array.path.clone(), self.row);
                DataError::DoesNotFit { path, row, value, dtype: DType::I32 }
            })?;
            rest = after;
        }
        Ok(())
    }
}

impl RowIterator for CompressedRows {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        (self.readers, self.row) = (None, 0);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if self.row == self.arrays[0].rows {
            return Ok(false);
        }
        if let Err(error) = self.read() {
            // Nothing after corrupt data can be decompressed.
            self.row = self.arrays[0].rows;
            return Err(Fault::part(error));
        }
        let written = self.write(out);
        self.row += 1;
        written.map(|()| true).map_err(Fault::row)
    }
}
