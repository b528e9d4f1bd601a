//! Files that are renamed when they are complete, so that an incomplete cache is never read.

use super::MAGICS;
use crate::DataError;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file with a temporary name that no reader opens.
pub(super) struct Unfinished {
    path: PathBuf,
}

/// Distinguishes the temporary files of one process.
static PARTS: AtomicU64 = AtomicU64::new(0);

impl Unfinished {
    /// Creates a temporary file for `path` and removes stale ones.
    pub fn create(path: &Path) -> Result<(File, Option<Unfinished>), DataError> {
        if path.file_name().is_none() {
            let problem = "it has no name; say where the file is to be".to_string();
            return Err(DataError::Cache { path: path.to_path_buf(), problem });
        }
        sweep(path);
        let mut name = OsString::from(path.as_os_str());
        name.push(format!(".part-{}-{}", std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed)));
        let part = PathBuf::from(name);
        let file = File::options().read(true).write(true).create_new(true).open(&part);
        let file = file.map_err(|error| DataError::io("make the cache", &part, error))?;
        Ok((file, Some(Unfinished { path: part })))
    }

    #[cfg(test)]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file and renames it to `path`.
    pub fn finish(&self, file: &File, path: &Path) -> io::Result<()> {
        file.sync_data()?;
        fs::rename(&self.path, path)
    }

    /// Ignores errors: the file may be gone already, and no reader opens this name.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes temporary files of this cache that killed processes left behind.
fn sweep(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let process = other.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()).and_then(|rest| rest.strip_prefix(b".part-"));
        let process = process.and_then(|rest| str::from_utf8(rest).ok()?.split_once('-')?.0.parse::<u32>().ok());
        // Without /proc, no process is known to be dead.
        let alive = |process: u32| !Path::new("/proc/self").exists() || Path::new("/proc").join(process.to_string()).exists();
        if process.is_some_and(|process| !alive(process)) {
            // It may be gone already; no reader opens this name.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Opens a cache file and reads its header and length; `None` if it does not exist. Any other kind of file is an
/// error, so that only caches are ever replaced.
pub(super) fn open_cache<const HEAD: usize>(path: &Path) -> Result<Option<(File, [u8; HEAD], u64)>, DataError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io("open the cache", path, error)),
    };
    let metadata = file.metadata().map_err(|error| DataError::io("examine the cache", path, error))?;
    // An empty file may be replaced; a power failure can leave one.
    if metadata.is_file() && metadata.len() == 0 {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    if file.read_exact_at(&mut head, 0).is_ok() && MAGICS.iter().any(|magic| head.starts_with(*magic)) {
        return Ok(Some((file, head, metadata.len())));
    }
    let there = if metadata.is_dir() {
        "it is a folder; say which file in it"
    } else {
        "there is already a file of another kind; give the cache a name of its own"
    };
    Err(DataError::Cache { path: path.to_path_buf(), problem: there.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_needs_a_name_before_rows_are_made() {
        let told = Unfinished::create(Path::new("")).err().unwrap().to_string();
        assert_eq!(told, " cannot be used as a cache: it has no name; say where the file is to be");
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        // No process has this ID: the maximum is 2²².
        for name in ["rows.plc.part-4194399-0", "rows.plc.part-1-0", "rows.plc.part-x", "other.plc.part-4194399-0"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        Unfinished::create(&path).unwrap().1.unwrap().remove();
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other.plc.part-4194399-0", "rows.plc.part-1-0", "rows.plc.part-x"]);
    }
}
