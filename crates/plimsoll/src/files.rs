//! Files that are complete or not there: written under another name, synced, then renamed. And the space that is left
//! for them.

use crate::error::{Error, Result};
use plimsoll_core::Bytes;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The suffix of a file that is not complete yet.
pub(crate) const INCOMPLETE: &str = ".tmp";

/// The name of a file until it is complete.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(std::ffi::OsStr::to_os_string).unwrap_or_default();
    name.push(INCOMPLETE);
    path.with_file_name(name)
}

/// Writes a file whole or not at all, and so that it survives a power cut. If that fails, nothing is left of it.
pub(crate) fn replace<T>(path: &Path, write: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    let temporary = beside(path);
    let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let whole = || {
        let file = File::create(&temporary).map_err(error)?;
        let written = write(&file)?;
        file.sync_all().and_then(|()| fs::rename(&temporary, path)).and_then(|()| sync_folder_of(path)).map_err(error)?;
        Ok(written)
    };
    whole().inspect_err(|_| remove(&temporary))
}

/// Moves a complete file of the same disk to its place.
pub(crate) fn put(from: &Path, to: &Path) -> Result<()> {
    let error = |source| Error::Io { action: "write", path: to.to_path_buf(), source };
    fs::rename(from, to).and_then(|()| sync_folder_of(to)).map_err(error)
}

/// [`replace`] with these bytes.
pub(crate) fn replace_with(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |mut file| file.write_all(bytes).map_err(|source| Error::Io { action: "write", path: path.to_path_buf(), source }))
}

/// Makes renamed and removed files of a folder survive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Removes a file, if it is there and can be removed.
pub(crate) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Whether a file could not be written because the disk, or the user's share of it, is full.
pub(crate) fn is_disk_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// How large a new file in a folder can become: what is free on its disk, or the largest file that the process may
/// write. None where the system does not tell.
pub(crate) fn free_space(folder: &Path) -> Option<Bytes> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.map(Bytes);
    let free = rustix::fs::statvfs(folder).ok().map(|disk| Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)));
    match (free, limit) {
        (Some(free), Some(limit)) => Some(free.min(limit)),
        (free, limit) => free.or(limit),
    }
}

/// Whether the files of a folder are kept in memory instead of on a disk: `tmpfs` or `ramfs`.
pub(crate) fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|system| matches!(system.f_type, TMPFS | RAMFS))
}

/// Bytes of the files in a folder and in the folders directly inside it.
pub(crate) fn size_of_folder(folder: &Path) -> Bytes {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().collect::<Vec<_>>();
    let size = |entry: &fs::DirEntry| entry.metadata().map_or(0, |file| if file.is_file() { file.len() } else { 0 });
    let inner = entries(folder).into_iter().flat_map(|entry| entries(&entry.path()));
    Bytes(entries(folder).iter().map(size).sum::<u64>() + inner.map(|entry| size(&entry)).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace_with(&path, b"old").unwrap();
        let failed = replace(&path, |mut file| -> Result<()> {
            file.write_all(b"half").unwrap();
            Err(Error::Config("the disk is full".to_string()))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_files_of_a_folder_are_counted_with_those_inside() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("checkpoints")).unwrap();
        fs::write(folder.path().join("log"), [0; 10]).unwrap();
        fs::write(folder.path().join("checkpoints/step"), [0; 300]).unwrap();
        assert_eq!(size_of_folder(folder.path()), Bytes(310));
        assert_eq!(size_of_folder(&folder.path().join("missing")), Bytes::ZERO);
    }

    #[test]
    fn a_disk_has_space() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_space(folder.path()).is_some_and(|free| free > Bytes::ZERO));
    }
}
