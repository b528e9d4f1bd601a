//! A backing store in a file: offloaded tensors, read and written at their offsets, never mapped.

use crate::page_cache;
use plimsoll_core::Bytes;
use plimsoll_core::device::{BackingStore, DeviceError};
use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes written at a time to allocate disk space.
const PIECE: usize = 64 << 10;

/// An unlinked file of a fixed size: it disappears with the process, however that ends.
pub(crate) struct OffloadFile {
    file: File,
    folder: PathBuf,
    size: Bytes,
}

impl OffloadFile {
    /// Allocates a file of zeros of this size in a folder.
    ///
    /// # Errors
    /// When the folder does not exist or cannot be written, or the disk is full.
    pub fn create(folder: &Path, size: Bytes) -> Result<OffloadFile, DeviceError> {
        /// Several runs of one process may use one folder.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(".plimsoll-offload-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        let failed = |error: io::Error| failure(folder, size, "begun", &error);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        let store = OffloadFile { file, folder: folder.to_path_buf(), size };
        // Written, not only declared: a full disk is an error now, and not in the middle of a step.
        let zeros = vec![0; PIECE.min(size.get())];
        for start in (0..size.0).step_by(PIECE) {
            store.write(Bytes(start), &zeros[..(size.0 - start).min(PIECE as u64) as usize])?;
        }
        Ok(store)
    }
}

fn failure(folder: &Path, size: Bytes, what: &str, error: &io::Error) -> DeviceError {
    let help = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge | io::ErrorKind::QuotaExceeded => {
            "; make space there, run in a folder on another disk, or leave `offload` out of what is allowed"
        }
        _ => "; run in another folder, or leave `offload` out of what is allowed",
    };
    let what =
        format!("the file of {size} for tensors that are kept out of memory, in {}, could not be {what}: {error}{help}", folder.display());
    DeviceError::Failed { device: "cpu".to_string(), what }
}

impl BackingStore for OffloadFile {
    fn size(&self) -> Bytes {
        self.size
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        page_cache::read(&self.file, bytes, offset.0).map_err(|error| failure(&self.folder, self.size, "read", &error))
    }

    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut start = offset.0;
        for piece in bytes.chunks(page_cache::PIECE) {
            self.file.write_all_at(piece, start).map_err(|error| failure(&self.folder, self.size, "written", &error))?;
            page_cache::written(&self.file, start, piece.len());
            start += piece.len() as u64;
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The default folder of such files: one for large temporary files on a disk, if there is one.
pub(crate) fn default_folder() -> PathBuf {
    let large = Path::new("/var/tmp");
    if std::env::var_os("TMPDIR").is_none() && large.is_dir() { large.to_path_buf() } else { std::env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let size = Bytes(3 * PIECE as u64 + 100);
        let store = OffloadFile::create(folder.path(), size).unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the file has no name");
        let mut bytes = [1; 4];
        store.read(size - Bytes(4), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
        store.write(Bytes(70_000), &[5, 6, 7, 8]).unwrap();
        store.read(Bytes(70_000), &mut bytes).unwrap();
        assert_eq!(bytes, [5, 6, 7, 8]);
        assert!(store.read(size, &mut bytes).is_err());
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = OffloadFile::create(Path::new("no/such/folder"), Bytes::mib(2)).err().expect("there is none").to_string();
        assert_eq!(
            error,
            "cpu: the file of 2.00 MiB for tensors that are kept out of memory, in no/such/folder, could not be begun: \
             No such file or directory (os error 2); run in another folder, or leave `offload` out of what is allowed"
        );
    }
}
