//! Columns from `.npy` files, read in blocks. Files are neither memory-mapped nor loaded, so resident memory is what
//! the plan counts.

mod compressed;
mod convert;
mod fortran;
mod header;

mod zip;

use super::{FileUse, Gather, Opened, Source, class_column, identify_open};
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use convert::DoesNotFit;
use flate2::Crc;
use header::{NpyHeader, NpyType};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// One or more `.npy` files whose first dimension is the row. Floats are converted to f32, integers to i32 (checked),
/// booleans to u8; u8 is unchanged. Elements of either byte order are read. Rows of an array in Fortran order are
/// spread over the file: they are loaded into memory if the plan has space for them, and collected from the file
/// otherwise.
pub struct Npy {
    schema: Schema,
    rows: u64,
    parts: Vec<NpyArray>,
    file_use: FileUse,
}

/// One file.
struct NpyArray {
    path: PathBuf,
    file: File,
    /// Offset of the first row.
    data: u64,
    rows: u64,
    element: NpyType,
    /// Whether elements are big endian.
    swapped: bool,
    /// Elements per row.
    elements: usize,
    /// The shape of a row, if the array is in Fortran order.
    fortran: Option<Vec<usize>>,
    /// All rows after conversion, if they are in memory.
    loaded: Option<Arc<[u8]>>,
    /// The checksum of a member of an `.npz` file.
    checked: Option<MemberCheck>,
}

/// The checksum of a stored member of an `.npz` file. Rows have none of their own, so the whole member is read once,
/// before its first row.
struct MemberCheck {
    name: String,
    start: u64,
    bytes: u64,
    crc: u32,
    /// Whether it matches, once it was computed.
    result: OnceLock<Result<(), DataError>>,
}

impl Clone for MemberCheck {
    fn clone(&self) -> MemberCheck {
        MemberCheck { name: self.name.clone(), result: self.result.clone(), ..*self }
    }
}

/// Bytes per read while a checksum is computed, on the stack.
const CHECK_PIECE: usize = 8 << 10;

impl MemberCheck {
    fn new(member: &zip::Member) -> MemberCheck {
        let zip::Member { name, start, bytes, crc, .. } = member.clone();
        MemberCheck { name, start, bytes, crc, result: OnceLock::new() }
    }

    fn verify(&self, file: &File, path: &Path) -> Result<(), DataError> {
        let compute = || {
            let (mut crc, mut piece, mut done) = (Crc::new(), [0; CHECK_PIECE], 0);
            while done < self.bytes {
                let piece = &mut piece[..(self.bytes - done).min(CHECK_PIECE as u64) as usize];
                file.read_exact_at(piece, self.start + done).map_err(|error| DataError::io("read", path, error))?;
                crc.update(piece);
                done += piece.len() as u64;
            }
            if crc.sum() == self.crc { Ok(()) } else { Err(zip::wrong_checksum(path, &self.name)) }
        };
        self.result.get_or_init(compute).clone()
    }
}

/// Which arrays of an `.npz` file are read.
fn npz_use(arrays: &[(&str, &str)], members: &[zip::Member]) -> FileUse {
    let (labels, inputs): (Vec<_>, Vec<_>) = arrays.iter().partition(|(column, _)| *column == "y");
    let names = |arrays: Vec<(&str, &str)>| arrays.into_iter().map(|(_, array)| array.to_string()).collect();
    let all = members.iter().map(|member| member.name.strip_suffix(".npy").unwrap_or(&member.name));
    let unused = all.filter(|name| arrays.iter().all(|(_, array)| array != name)).map(|name| (name.to_string(), "not named".to_string()));
    FileUse { used: names(inputs), targets: names(labels), unused: unused.collect(), ..FileUse::default() }
}

/// Gaps of up to this many bytes between gathered rows are read too: copying them costs about as much as another
/// system call.
const WORTH_READING_OVER: usize = 3 << 10;

/// Rows of at least this many bytes are read one by one, straight to their destination if they need no conversion.
const LARGE_ROW: usize = 4096;

/// Bytes per read, unless a row is larger.
const READ: usize = 256 << 10;

impl Npy {
    /// Opens the files and checks their sizes against their headers. Files are given as pairs of column name and
    /// path.
    pub fn open<P: AsRef<Path>>(files: &[(&str, P)]) -> Result<Npy, DataError> {
        let opened = files.iter().map(|(name, path)| Ok((*name, NpyArray::open(path.as_ref(), None)?)));
        Npy::new(opened.collect::<Result<Vec<_>, DataError>>()?)
    }

    /// Opens arrays of an `.npz` file, given as pairs of column name and array name: with random access, or as a
    /// stream if they are compressed.
    pub(crate) fn open_npz(path: &Path, arrays: &[(&str, &str)]) -> Result<Opened, DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let members = zip::members(&file, path)?;
        let found = arrays.iter().map(|(name, array)| {
            let member = members.iter().find(|member| member.name.strip_suffix(".npy").unwrap_or(&member.name) == *array);
            let Some(member) = member else {
                let names: Vec<&str> = members.iter().map(|member| member.name.strip_suffix(".npy").unwrap_or(&member.name)).collect();
                let problem = format!("it has no array `{array}`; its arrays are {}", names.join(", "));
                return Err(DataError::Npy { path: path.to_path_buf(), problem });
            };
            Ok((*name, member.clone()))
        });
        let found = found.collect::<Result<Vec<(&str, zip::Member)>, DataError>>()?;
        if found.iter().any(|(_, member)| member.packed) {
            let stream = compressed::stream(path, found)?;
            return Ok(Opened::Sequential(Box::new(stream.with_file_use(npz_use(arrays, &members)))));
        }
        let opened = found.iter().map(|(name, member)| {
            let (part, shape) = NpyArray::open(path, Some(member.start..member.start + member.bytes))?;
            Ok((*name, (NpyArray { checked: Some(MemberCheck::new(member)), ..part }, shape)))
        });
        let npy = Npy::new(opened.collect::<Result<Vec<_>, DataError>>()?)?;
        Ok(Opened::Indexed(Arc::new(Npy { file_use: npz_use(arrays, &members), ..npy })))
    }

    fn new(opened: Vec<(&str, (NpyArray, Vec<usize>))>) -> Result<Npy, DataError> {
        let mut columns = Vec::new();
        let mut parts: Vec<NpyArray> = Vec::new();
        for (name, (part, shape)) in opened {
            if let Some(first) = parts.first()
                && first.rows != part.rows
            {
                return Err(DataError::RowsDisagree {
                    path: first.path.clone(),
                    rows: first.rows,
                    other: part.path.clone(),
                    other_rows: part.rows,
                });
            }
            columns.push(Column::new(name, part.element.delivered(), shape));
            parts.push(part);
        }
        let rows = match parts.first() {
            Some(part) => part.rows,
            None => return Err(DataError::Stage("a data set of .npy files needs at least one file; name one for each column".into())),
        };
        Ok(Npy { schema: Schema::new(columns)?, rows, parts, file_use: FileUse::default() })
    }
}

impl Source for Npy {
    fn takes_little_stack(&self) -> bool {
        true
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn scratch_bytes(&self, rows: usize) -> Bytes {
        self.parts.iter().map(|part| part.scratch_bytes(rows)).max().unwrap_or_default()
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, part) in self.parts.iter().enumerate() {
            part.read(first_row, out.rows(), scratch, out.column(index))?;
        }
        Ok(())
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, part) in self.parts.iter().enumerate() {
            part.gather(rows, scratch, out.column(index))?;
        }
        Ok(())
    }

    fn wants_ascending(&self) -> bool {
        true
    }

    fn resident_bytes(&self) -> Bytes {
        match self.parts.iter().any(|part| part.fortran.is_some() && part.loaded.is_none()) {
            true => self.parts.iter().map(NpyArray::loaded_bytes).sum(),
            false => Bytes::ZERO,
        }
    }

    /// Loads the arrays in Fortran order; rows of the others are in one piece in their files.
    fn resident(&self) -> Result<Arc<dyn Source>, DataError> {
        let parts = self.parts.iter().map(NpyArray::load).collect::<Result<_, _>>()?;
        Ok(Arc::new(Npy { schema: self.schema.clone(), rows: self.rows, parts, file_use: self.file_use.clone() }))
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        let Some(part) = class_column(&self.schema).map(|index| &self.parts[index]) else { return Ok(false) };
        part.classes(visit)
    }

    fn file_use(&self) -> FileUse {
        self.file_use.clone()
    }

    fn locate(&self, row: u64, column: usize) -> Option<(PathBuf, u64)> {
        let part = self.parts.get(column)?;
        Some((part.path.clone(), part.data + row * part.row_bytes() as u64))
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        for part in &self.parts {
            identify_open(&part.path, &part.file, hash)?;
            hash.write(&part.data.to_le_bytes());
        }
        Ok(true)
    }

    fn describe(&self) -> String {
        let files: Vec<String> = self.parts.iter().map(|part| part.path.display().to_string()).collect();
        format!("npy {}", files.join(", "))
    }
}

/// Opens a file that is read in many small pieces. Updating the access time takes a tenth of a read; the owner of a
/// file may disable that.
fn open(path: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        const O_NOATIME: i32 = 0o1_000_000;
        if let Ok(file) = File::options().read(true).custom_flags(O_NOATIME).open(path) {
            return Ok(file);
        }
    }
    File::open(path)
}

impl NpyArray {
    /// Opens a file, or an array in a part of one; also returns the shape of a row.
    fn open(path: &Path, inside: Option<Range<u64>>) -> Result<(NpyArray, Vec<usize>), DataError> {
        let file = open(path).map_err(|error| DataError::io("open", path, error))?;
        let Range { start, end: actual } = match inside {
            Some(inside) => inside,
            None => 0..file.metadata().map_err(|error| DataError::io("examine", path, error))?.len(),
        };
        let refuse = |problem: String| DataError::Npy { path: path.to_path_buf(), problem };
        let NpyHeader { data, element, swapped, fortran, shape } = NpyHeader::read(&file, path, start)?;

        let Some((&rows, row_shape)) = shape.split_first() else {
            return Err(refuse("it holds a single number; save an array whose first dimension is the row".into()));
        };
        let too_large = || refuse(format!("its shape {shape:?} is larger than any file"));
        let elements = row_shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)?;
        let expected = elements
            .checked_mul(element.size())
            .and_then(|row| (row as u64).checked_mul(rows as u64))
            .and_then(|bytes| bytes.checked_add(data))
            .ok_or_else(too_large)?;
        // Bytes after the array are not an error: `numpy.load` ignores them too, and some writers put several arrays
        // in one file.
        if actual < expected {
            return Err(DataError::Truncated { path: path.to_path_buf(), expected, actual });
        }
        let (path, rows, fortran) = (path.to_path_buf(), rows as u64, fortran.then(|| row_shape.to_vec()));
        let part = NpyArray { path, file, data, rows, element, swapped, elements, fortran, loaded: None, checked: None };
        Ok((part, row_shape.to_vec()))
    }

    /// Bytes of one row in the file.
    fn row_bytes(&self) -> usize {
        self.elements * self.element.size()
    }

    /// Bytes of one row after conversion.
    fn out_row_bytes(&self) -> usize {
        self.elements * self.element.delivered().size()
    }

    fn scratch_bytes(&self, rows: usize) -> Bytes {
        if self.is_straight() || self.loaded.is_some() {
            return Bytes::ZERO;
        }
        if self.fortran.is_some() {
            return self.collect_scratch(rows);
        }
        Bytes((self.row_bytes() * rows.min((READ / self.row_bytes().max(1)).max(1))) as u64)
    }

    fn is_straight(&self) -> bool {
        self.is_as_delivered() && self.fortran.is_none() && self.row_bytes() >= LARGE_ROW
    }

    fn is_as_delivered(&self) -> bool {
        self.element.is_delivered_as_is() && !self.swapped
    }

    fn read(&self, first_row: u64, rows: usize, scratch: &mut [u8], out: &mut [u8]) -> Result<(), DataError> {
        if let Some(loaded) = &self.loaded {
            out.copy_from_slice(&loaded[first_row as usize * self.out_row_bytes()..][..out.len()]);
            return Ok(());
        }
        if self.fortran.is_some() {
            return self.collect(Rows::From(first_row), rows, scratch, out);
        }
        if self.is_as_delivered() {
            return self.read_at(first_row, out);
        }
        let at_once = (scratch.len() / self.row_bytes()).clamp(1, rows.max(1));
        for (index, out) in out.chunks_mut(at_once * self.out_row_bytes()).enumerate() {
            let first_row = first_row + (index * at_once) as u64;
            let raw = &mut scratch[..out.len() / self.out_row_bytes() * self.row_bytes()];
            self.read_at(first_row, raw)?;
            self.convert(raw, self.swapped, out, first_row)?;
        }
        Ok(())
    }

    /// Reads rows in file order, adjacent ones with one call.
    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut [u8]) -> Result<(), DataError> {
        let (row_bytes, out_row_bytes) = (self.row_bytes(), self.out_row_bytes());
        if let Some(loaded) = &self.loaded {
            for (row, out) in rows.rows.iter().zip(out.chunks_exact_mut(out_row_bytes)) {
                out.copy_from_slice(&loaded[*row as usize * out_row_bytes..][..out_row_bytes]);
            }
            return Ok(());
        }
        if self.fortran.is_some() {
            return self.collect(Rows::At(rows.rows), rows.rows.len(), scratch, out);
        }
        let straight = self.is_straight();
        let reach = (WORTH_READING_OVER / row_bytes) as u64 + 1;
        let mut rest = rows.ascending;
        while let Some(&place) = rest.first() {
            let first = rows.rows[place as usize];
            if straight {
                self.read_at(first, &mut out[place as usize * out_row_bytes..][..out_row_bytes])?;
                rest = &rest[1..];
                continue;
            }
            let most = first + (scratch.len().min(READ.max(row_bytes)) / row_bytes) as u64 - 1;
            let mut last = first;
            let mut run = 1;
            for &place in &rest[1..] {
                let row = rows.rows[place as usize];
                if row - last > reach || row > most {
                    break;
                }
                last = row;
                run += 1;
            }
            let raw = &mut scratch[..(last - first + 1) as usize * row_bytes];
            // The destination is rarely in the CPU cache; prefetch it while the system reads.
            for &place in &rest[..run] {
                convert::will_write(&out[place as usize * out_row_bytes..][..out_row_bytes]);
            }
            self.read_at(first, raw)?;
            let mut before = None;
            for &place in &rest[..run] {
                let row = rows.rows[place as usize];
                let raw = &mut raw[(row - first) as usize * row_bytes..][..row_bytes];
                // A row may be asked for twice, and is swapped once.
                let (raw, swapped) = (raw, self.swapped && before != Some(row));
                before = Some(row);
                self.convert(raw, swapped, &mut out[place as usize * out_row_bytes..][..out_row_bytes], row)?;
            }
            rest = &rest[run..];
        }
        Ok(())
    }

    /// Visits the rows of an array of integers, one each. Rows that do not fit are reported when they are read.
    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        let (size, mut raw, mut out) = (self.element.size(), [0; 4096], [0; 4096 * 4]);
        let (at_once, width) = (raw.len() / size, self.out_row_bytes());
        let mut row = 0;
        while row < self.rows {
            let count = at_once.min((self.rows - row) as usize);
            let (raw, out) = (&mut raw[..count * size], &mut out[..count * width]);
            self.read_at(row, raw)?;
            if convert::convert_from(self.element, self.swapped, raw, out).is_err() {
                return Ok(false);
            }
            match out.as_chunks::<4>() {
                _ if width == 1 => out.iter().for_each(|label| visit(i64::from(*label))),
                (labels, _) => labels.iter().for_each(|label| visit(i64::from(i32::from_ne_bytes(*label)))),
            }
            row += count as u64;
        }
        Ok(true)
    }

    fn read_at(&self, row: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.checked.as_ref().map_or(Ok(()), |check| check.verify(&self.file, &self.path))?;
        self.file
            .read_exact_at(out, self.data + row * self.row_bytes() as u64)
            .map_err(|error| DataError::io(format!("read row {row} of"), &self.path, error))
    }

    /// Reads elements, counted from the first of the array.
    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.checked.as_ref().map_or(Ok(()), |check| check.verify(&self.file, &self.path))?;
        let at = self.data + first * self.element.size() as u64;
        self.file.read_exact_at(out, at).map_err(|error| DataError::io(format!("read byte {at} of"), &self.path, error))
    }

    fn convert(&self, raw: &mut [u8], swapped: bool, out: &mut [u8], first_row: u64) -> Result<(), DataError> {
        convert::convert_from(self.element, swapped, raw, out).map_err(|DoesNotFit { index, value }| DataError::DoesNotFit {
            path: self.path.clone(),
            row: first_row + (index / self.elements) as u64,
            value,
            dtype: DType::I32,
        })
    }
}
