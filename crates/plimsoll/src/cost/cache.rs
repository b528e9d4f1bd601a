//! Cost tables on disk: a file in the user's cache folder per device, number of threads and version.
//!
//! The first line of a file has its format and a checksum of the second, which is the table. A file that is damaged, or
//! of another format, counts as none. Files are replaced as a whole, and changes are made under a lock, so that
//! processes do not undo each other's.

use super::{CostTable, StepCosts};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Raised when older files must not be used any more. 2: nodes were timed on subnormal numbers before. 3: on a GPU,
/// nodes that run together were not distinguished, and times were relative to other rates. 4: on a GPU, narrow products
/// and the start of a step were not measured.
const FORMAT: u32 = 4;

#[derive(Serialize, Deserialize)]
struct CacheHeader {
    format: u32,
    crc32: u32,
}

/// The user's cache folder for cost tables; none if the environment names neither a cache nor a home folder.
pub fn cache_dir() -> Option<PathBuf> {
    crate::devices::cache_folder().map(|cache| cache.join("speeds"))
}

/// Loads the cost table of a [key](super::key), if there is an intact file.
pub fn load(folder: &Path, key: &str) -> Option<CostTable> {
    let text = fs::read_to_string(file(folder, key)).ok()?;
    let (header, table) = text.split_once('\n')?;
    let header: CacheHeader = serde_json::from_str(header).ok()?;
    if header.format != FORMAT || header.crc32 != crc32fast::hash(table.trim_end().as_bytes()) {
        return None;
    }
    let costs: CostTable = serde_json::from_str(table).ok()?;
    (costs.key == key && !costs.is_empty() && costs.correction.is_valid()).then_some(costs)
}

/// Saves a cost table atomically and returns the file.
///
/// # Errors
/// If the folder cannot be written.
pub fn save(folder: &Path, costs: &CostTable) -> Result<PathBuf> {
    let _lock = lock(folder, &costs.key);
    write(folder, costs)
}

/// Adds the measured step time of a run to the stored table that it was planned with: see [`CostTable::refine`].
/// Returns whether that changed the table; a table that was recalibrated in the meantime is left alone.
///
/// # Errors
/// If the folder cannot be written.
pub fn refine(folder: &Path, costs: &CostTable, step: &StepCosts, steps: u64, seconds: (f64, f64)) -> Result<bool> {
    let _lock = lock(folder, &costs.key);
    // As it is now: other runs may have ended since it was loaded.
    let Some(mut now) = load(folder, &costs.key).filter(|now| now.samples == costs.samples) else { return Ok(false) };
    let refined = now.refine(step, steps, seconds);
    if refined {
        write(folder, &now)?;
    }
    Ok(refined)
}

fn write(folder: &Path, costs: &CostTable) -> Result<PathBuf> {
    let path = file(folder, &costs.key);
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let table = serde_json::to_string(costs).expect("numbers and names");
    let header = CacheHeader { format: FORMAT, crc32: crc32fast::hash(table.as_bytes()) };
    let text = format!("{}\n{table}\n", serde_json::to_string(&header).expect("numbers"));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&temporary, text)).and_then(|()| fs::rename(&temporary, &path));
    match written {
        Ok(()) => Ok(path),
        Err(source) => {
            let _ = fs::remove_file(&temporary);
            Err(Error::Io { action: "keep measured costs in", path, source })
        }
    }
}

/// Waits for other processes that change the same table. Where the file system has no locks, files are still replaced
/// as a whole.
fn lock(folder: &Path, key: &str) -> Option<File> {
    fs::create_dir_all(folder).ok()?;
    let lock = File::create(file(folder, key).with_extension("lock")).ok()?;
    lock.lock().ok()?;
    Some(lock)
}

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{:08x}.json", crc32fast::hash(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "cpu · 2 threads";

    fn table() -> CostTable {
        let text = r#"{"key":"cpu · 2 threads","transfers":{},"samples":{"pad":[{"sizes":[1.0],"seconds":1.0,"work":0.0,"bytes":8.0}]}}"#;
        serde_json::from_str(text).unwrap()
    }

    fn step(name: &str, seconds: f32) -> StepCosts {
        StepCosts { name: name.to_string(), classes: [("pad".to_string(), seconds)].into(), predicted_s: 1.0 }
    }

    #[test]
    fn only_intact_cost_tables_of_the_same_device_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not/there/yet");
        assert_eq!(load(&folder, KEY), None);
        let costs = table();
        let path = save(&folder, &costs).unwrap();
        assert_eq!(load(&folder, KEY), Some(costs.clone()));
        assert_eq!(load(&folder, "cpu · 1 thread"), None);
        fs::rename(&path, file(&folder, "cpu · 1 thread")).unwrap();
        assert_eq!(load(&folder, "cpu · 1 thread"), None, "a file of another device");
        let text = fs::read_to_string(file(&folder, "cpu · 1 thread")).unwrap();
        let damaged = [text[..40].to_string(), text.replace("1.0", "1.5"), text.replace("\"format\":4", "\"format\":1"), String::new()];
        for (i, text) in damaged.iter().enumerate() {
            fs::write(&path, text).unwrap();
            assert_eq!(load(&folder, KEY), None, "damage {i}");
        }
        // The format before this one: the table alone.
        fs::write(&path, serde_json::to_string(&costs).unwrap()).unwrap();
        assert_eq!(load(&folder, KEY), None, "an older format");
    }

    #[test]
    fn refinements_of_several_processes_all_count() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, costs) = (folder.path(), table());
        save(folder, &costs).unwrap();
        std::thread::scope(|scope| {
            for run in 1..=8 {
                let costs = &costs;
                scope.spawn(move || {
                    assert!(refine(folder, costs, &step("run", run as f32), 10, (2.0 * run as f64, 2.0 * run as f64)).unwrap())
                });
            }
        });
        let refined = load(folder, KEY).unwrap();
        assert_eq!(refined.steps.len(), 8);
        assert!((1.9..2.1).contains(&refined.correction.factor("pad")), "{:?}", refined.correction);
        let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".tmp")), "{left:?}");
    }

    #[test]
    fn a_table_that_was_recalibrated_or_is_gone_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let costs = table();
        assert!(!refine(folder.path(), &costs, &step("run", 1.0), 10, (2.0, 2.0)).unwrap());
        let mut recalibrated = costs.clone();
        recalibrated.samples.get_mut("pad").unwrap()[0].seconds = 3.0;
        save(folder.path(), &recalibrated).unwrap();
        assert!(!refine(folder.path(), &costs, &step("run", 1.0), 10, (2.0, 2.0)).unwrap());
        assert_eq!(load(folder.path(), KEY), Some(recalibrated));
    }
}
