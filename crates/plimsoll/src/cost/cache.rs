//! Cost tables on disk: a file in the user's cache folder per device, number of threads and version.

use super::CostTable;
use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The user's cache folder for cost tables; none if the environment names neither a cache nor a home folder.
pub fn cache_dir() -> Option<PathBuf> {
    crate::devices::cache_folder().map(|cache| cache.join("speeds"))
}

/// Loads the cost table of a [key](super::key), if there is an intact file.
pub fn load(folder: &Path, key: &str) -> Option<CostTable> {
    let costs: CostTable = serde_json::from_str(&fs::read_to_string(file(folder, key)).ok()?).ok()?;
    (costs.key == key && !costs.is_empty()).then_some(costs)
}

/// Saves a cost table atomically and returns the file.
pub fn save(folder: &Path, costs: &CostTable) -> Result<PathBuf> {
    let path = file(folder, &costs.key);
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let text = serde_json::to_string(costs).expect("numbers and names");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&temporary, text)).and_then(|()| fs::rename(&temporary, &path));
    match written {
        Ok(()) => Ok(path),
        Err(source) => {
            let _ = fs::remove_file(&temporary);
            Err(Error::Io { action: "keep measured costs in", path, source })
        }
    }
}

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{:08x}.json", crc32fast::hash(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intact_cost_tables_of_the_same_device_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not/there/yet");
        assert_eq!(load(&folder, "cpu · 2 threads"), None);
        let text = r#"{"key":"cpu · 2 threads","transfers":{},"samples":{"pad":[{"sizes":[1.0],"seconds":1.0,"work":0.0,"bytes":8.0}]}}"#;
        let costs: CostTable = serde_json::from_str(text).unwrap();
        let path = save(&folder, &costs).unwrap();
        assert_eq!(load(&folder, "cpu · 2 threads"), Some(costs));
        assert_eq!(load(&folder, "cpu · 1 thread"), None);
        fs::rename(&path, file(&folder, "cpu · 1 thread")).unwrap();
        assert_eq!(load(&folder, "cpu · 1 thread"), None, "a file of another device");
        fs::write(&path, &text[..40]).unwrap();
        assert_eq!(load(&folder, "cpu · 2 threads"), None, "half a file");
    }
}
