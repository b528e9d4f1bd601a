//! A cache of one whole epoch of a stream, in memory or in a file.
//!
//! The file has one page for the header, then blocks of rows, each followed by its checksum. The number of rows is
//! known only at the end, so the header is written last, and then the file is renamed.

use super::file::{CHECK, DATA, OnFull, checksum, header_of};
use super::{Cache, CacheBypass, CacheFile, Unfinished, open_cache};
use crate::DataError;
use plimsoll_core::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) const MAGIC: &[u8; 16] = b"plimsoll-epoch1\n";

/// Magic, fingerprint, bytes per row, number of rows, checksum of these fields.
const HEADER: usize = 52;

/// Bytes of rows per checksum. Independent of the memory limit, because files outlive it.
const BLOCK: usize = 64 << 10;

/// Memory is allocated in chunks, so that it never has to be reallocated and copied.
const PIECE: usize = 1 << 20;

/// An epoch in memory.
pub(crate) struct EpochMemory {
    pieces: Vec<Vec<u8>>,
    /// Bytes of whole rows per chunk, and the maximum total bytes.
    piece: usize,
    most: u64,
    held: u64,
}

impl EpochMemory {
    pub fn new(most: Bytes, row: usize) -> EpochMemory {
        EpochMemory { pieces: Vec::new(), piece: (PIECE / row).max(1) * row, most: most.0, held: 0 }
    }

    pub fn clear(&mut self) {
        (self.pieces, self.held) = (Vec::new(), 0);
    }

    /// Appends whole rows; `false` if they do not fit.
    pub fn append(&mut self, mut rows: &[u8]) -> bool {
        if self.held + rows.len() as u64 > self.most {
            return false;
        }
        while !rows.is_empty() {
            let at = self.held % self.piece as u64;
            if at == 0 {
                let bytes = (self.piece as u64).min(self.most - self.held);
                self.pieces.push(Vec::with_capacity(bytes as usize));
            }
            let (now, after) = rows.split_at(rows.len().min(self.piece - at as usize));
            self.pieces.last_mut().expect("just made").extend_from_slice(now);
            self.held += now.len() as u64;
            rows = after;
        }
        true
    }

    /// Copies bytes starting at offset `from`; returns how many.
    pub fn read(&self, mut from: u64, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && from < self.held {
            let piece = &self.pieces[(from / self.piece as u64) as usize][(from % self.piece as u64) as usize..];
            let bytes = piece.len().min(out.len() - done);
            out[done..done + bytes].copy_from_slice(&piece[..bytes]);
            (done, from) = (done + bytes, from + bytes as u64);
        }
        done
    }
}

/// An epoch in a file that is complete or being written.
pub(crate) struct EpochFile {
    path: PathBuf,
    fingerprint: [u8; 16],
    row: usize,
    file: File,
    unfinished: Option<Unfinished>,
    /// Rows in the file, including those in the block while it is being written.
    rows: u64,
    on_full: OnFull,
    /// Buffer for one block with its checksum, and the number of bytes in it.
    block: Vec<u8>,
    held: usize,
    /// The index of the block in the buffer.
    holds: Option<u64>,
}

impl EpochFile {
    /// Bytes it allocates.
    pub fn bytes(row: Bytes) -> Bytes {
        Bytes((block_rows(row.get()) * row.get() + CHECK) as u64)
    }

    /// Describes a cache file without reading its rows; `rows` is the length of an epoch, if known.
    pub fn inspect(path: &Path, fingerprint: [u8; 16], row: usize, rows: Option<u64>) -> Result<CacheFile, DataError> {
        let found = find(path, fingerprint, row)?.map(|(_, rows)| rows);
        let rows = found.or(rows);
        let bytes = rows.and_then(|rows| length(rows, row)).map(Bytes);
        Ok(CacheFile { path: path.to_path_buf(), rows, bytes, whole: found.is_some() })
    }

    /// Opens the epoch with this fingerprint, or creates a new file in its place.
    pub fn open(path: &Path, fingerprint: [u8; 16], cache: &Cache, row: usize) -> Result<EpochFile, DataError> {
        let (file, unfinished, rows) = match find(path, fingerprint, row)? {
            Some((file, rows)) => (file, None, rows),
            None => {
                let (file, unfinished) = Unfinished::create(path)?;
                (file, unfinished, 0)
            }
        };
        Ok(EpochFile {
            path: path.to_path_buf(),
            fingerprint,
            row,
            file,
            unfinished,
            rows,
            on_full: cache.on_full(),
            block: vec![0; block_rows(row) * row + CHECK],
            held: 0,
            holds: None,
        })
    }

    pub fn is_whole(&self) -> bool {
        self.unfinished.is_none()
    }

    /// Starts the epoch over and overwrites what was written of it.
    pub fn restart(&mut self) {
        (self.rows, self.held) = (0, 0);
    }

    /// Appends whole rows; `false` if the disk is full and the cache may be skipped.
    pub fn append(&mut self, rows: &[u8], bypass: &CacheBypass) -> Result<bool, DataError> {
        let written = self.try_append(rows);
        self.judge(written, bypass)
    }

    /// Completes the file after the last row; it can be read afterwards.
    pub fn finish(&mut self, bypass: &CacheBypass) -> Result<bool, DataError> {
        let finished = self.try_finish();
        self.judge(finished, bypass)
    }

    fn judge(&mut self, outcome: io::Result<()>, bypass: &CacheBypass) -> Result<bool, DataError> {
        let Err(error) = outcome else { return Ok(true) };
        bypass.set(self.on_full.unwritten(self.rows, &self.path, &error)?);
        // Free the disk space; a file of this name is never read.
        let _ = self.file.set_len(0);
        Ok(false)
    }

    fn try_append(&mut self, mut rows: &[u8]) -> io::Result<()> {
        let full = self.block.len() - CHECK;
        while !rows.is_empty() {
            let (now, after) = rows.split_at(rows.len().min(full - self.held));
            self.block[self.held..self.held + now.len()].copy_from_slice(now);
            self.held += now.len();
            if self.held == full {
                self.write_block()?;
            }
            self.rows += (now.len() / self.row) as u64;
            rows = after;
        }
        Ok(())
    }

    /// Writes the buffered block with its checksum after the blocks before it.
    fn write_block(&mut self) -> io::Result<()> {
        let check = checksum(&self.block[..self.held]);
        self.block[self.held..self.held + CHECK].copy_from_slice(&check);
        let number = self.rows / block_rows(self.row) as u64;
        self.file.write_all_at(&self.block[..self.held + CHECK], self.offset(number))?;
        self.held = 0;
        Ok(())
    }

    fn try_finish(&mut self) -> io::Result<()> {
        if self.held > 0 {
            self.write_block()?;
        }
        let length = length(self.rows, self.row).ok_or(io::ErrorKind::FileTooLarge)?;
        // An abandoned epoch may have been longer.
        self.file.set_len(length)?;
        self.file.write_all_at(&header(self.fingerprint, self.row, self.rows), 0)?;
        self.unfinished.as_ref().map_or(Ok(()), |unfinished| unfinished.finish(&self.file, &self.path))?;
        (self.unfinished, self.holds) = (None, None);
        Ok(())
    }

    /// Copies whole rows starting at row `from`; returns how many.
    pub fn read(&mut self, mut from: u64, out: &mut [u8]) -> Result<usize, DataError> {
        let (row, each) = (self.row, block_rows(self.row) as u64);
        let mut done = 0;
        while (done + 1) * row <= out.len() && from < self.rows {
            let number = from / each;
            if self.holds != Some(number) {
                self.load(number)?;
            }
            let at = (from % each) as usize * row;
            let rows = ((self.held - at) / row).min(out.len() / row - done);
            out[done * row..][..rows * row].copy_from_slice(&self.block[at..at + rows * row]);
            (done, from) = (done + rows, from + rows as u64);
        }
        Ok(done)
    }

    fn load(&mut self, number: u64) -> Result<(), DataError> {
        let each = block_rows(self.row) as u64;
        let bytes = (self.rows - number * each).min(each) as usize * self.row;
        (self.holds, self.held) = (None, bytes);
        let block = &mut self.block[..bytes + CHECK];
        let at = DATA + number * (each * self.row as u64 + CHECK as u64);
        self.file.read_exact_at(block, at).map_err(|error| DataError::io("read the cache", &self.path, error))?;
        let (rows, check) = block.split_at(bytes);
        if check != checksum(rows) {
            let problem =
                format!("the rows at byte {at} do not match their checksum; the file is damaged: remove it, and it is recomputed");
            return Err(DataError::Cache { path: self.path.clone(), problem });
        }
        self.holds = Some(number);
        Ok(())
    }

    fn offset(&self, block: u64) -> u64 {
        DATA + block * self.block.len() as u64
    }
}

impl Drop for EpochFile {
    fn drop(&mut self) {
        self.unfinished.iter().for_each(Unfinished::remove);
    }
}

fn block_rows(row: usize) -> usize {
    (BLOCK / row.max(1)).max(1)
}

/// Bytes of a file with this many rows.
fn length(rows: u64, row: usize) -> Option<u64> {
    let blocks = rows.div_ceil(block_rows(row) as u64);
    rows.checked_mul(row as u64)?.checked_add(blocks.checked_mul(CHECK as u64)?)?.checked_add(DATA)
}

fn header(fingerprint: [u8; 16], row: usize, rows: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (fields, check) = header.split_at_mut(HEADER - CHECK);
    fields.copy_from_slice(&header_of(MAGIC, fingerprint, [row as u64, rows]));
    check.copy_from_slice(&checksum(fields));
    header
}

/// The file and its number of rows if it is a complete cache with this fingerprint; `None` if it is missing or a
/// cache of other data.
fn find(path: &Path, fingerprint: [u8; 16], row: usize) -> Result<Option<(File, u64)>, DataError> {
    let Some((file, found, bytes)) = open_cache::<HEADER>(path)? else { return Ok(None) };
    let rows = u64::from_le_bytes(found[40..48].try_into().expect("eight bytes"));
    let whole = found == header(fingerprint, row, rows) && length(rows, row) == Some(bytes);
    Ok(whole.then_some((file, rows)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A stream of rows of four bytes, and its cache file.
    fn open(path: &Path, cache: &Cache) -> EpochFile {
        EpochFile::open(path, [7; 16], cache, 4).unwrap()
    }

    fn rows(range: std::ops::Range<u32>) -> Vec<u8> {
        range.flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn what_is_appended_in_any_pieces_is_read_in_any_pieces() {
        let folder = tempfile::tempdir().unwrap();
        // Several blocks and chunks, the last of them partly filled.
        let all = rows(0..700_001);
        for size in [4, 4 * 1000, 4 * 16_384, all.len()] {
            let path = folder.path().join(format!("{size}.plc"));
            let mut file = open(&path, &Cache::File(path.clone()));
            let mut memory = EpochMemory::new(Bytes(all.len() as u64), 4);
            // An epoch that is abandoned before its end.
            assert!(file.append(&all[..4 * 20_000], &CacheBypass::default()).unwrap() && memory.append(&all[..400]));
            file.restart();
            memory.clear();
            for piece in all.chunks(size) {
                assert!(memory.append(piece) && file.append(piece, &CacheBypass::default()).unwrap());
            }
            assert!(!memory.append(&[0; 4]), "there is no space for more");
            assert!(!file.is_whole() && !path.exists());
            assert!(file.finish(&CacheBypass::default()).unwrap() && file.is_whole());
            assert_eq!(fs::metadata(&path).unwrap().len(), length(700_001, 4).unwrap());
            let mut found = open(&path, &Cache::File(path.clone()));
            assert!(found.is_whole());
            let (mut at, mut out) = (0, vec![0; 4 * 30_011]);
            while at < 700_001 {
                let count = file.read(at, &mut out).unwrap();
                assert_eq!(out[..count * 4], all[at as usize * 4..][..count * 4]);
                assert_eq!(found.read(at, &mut out).unwrap(), count);
                assert_eq!(memory.read(at * 4, &mut out), count * 4);
                assert_eq!(out[..count * 4], all[at as usize * 4..][..count * 4]);
                at += count as u64;
            }
            assert_eq!((found.read(at, &mut out).unwrap(), memory.read(at * 4, &mut out)), (0, 0));
        }
    }

    #[test]
    fn a_full_disk_stops_or_continues_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        for (cache, goes_on) in [(Cache::File(path.clone()), false), (Cache::FileIfSpace(path.clone()), true)] {
            for finishes in [false, true] {
                let (mut file, bypass) = (open(&path, &cache), CacheBypass::default());
                assert!(file.append(&rows(0..20_000), &bypass).unwrap());
                // Simulates a full disk.
                file.file = File::open(file.unfinished.as_ref().unwrap().path()).unwrap();
                let full = if finishes { file.finish(&bypass) } else { file.append(&rows(0..20_000), &bypass) };
                match goes_on {
                    true => {
                        assert!(!full.unwrap());
                        assert!(bypass.reason().unwrap().ends_with("so rows are made each time"), "{:?}", bypass.reason());
                    }
                    false => {
                        let error = full.unwrap_err().to_string();
                        assert!(
                            error.contains("rows.plc cannot be used as a cache: row ") && error.contains("cannot be written ("),
                            "{error}"
                        );
                        assert_eq!(bypass.reason(), None);
                    }
                }
                drop(file);
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            }
        }
    }

    #[test]
    fn a_header_that_promises_anything_is_no_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        for rows in [1, u64::MAX, u64::MAX / 4, 1 << 62] {
            let mut bytes = header(open(&path, &Cache::File(path.clone())).fingerprint, 4, rows).to_vec();
            bytes.resize(5000, 0);
            fs::write(&path, bytes).unwrap();
            assert!(!open(&path, &Cache::File(path.clone())).is_whole(), "{rows} rows");
        }
    }
}
