//! Filling the cache file before training.

use super::Pipeline;
use crate::error::{Error, Result};
use plimsoll_core::Bytes;
use std::path::PathBuf;

/// A complete cache file.
#[derive(Clone, Debug)]
pub struct FilledCache {
    /// The file.
    pub path: PathBuf,
    /// Rows in it.
    pub rows: u64,
    /// Its size.
    pub bytes: Bytes,
    /// Whether it was complete already.
    pub found: bool,
}

impl Pipeline {
    /// Reads the data once to fill its cache file; `progress` gets the rows done and the rows there are, `u64::MAX`
    /// where that is unknown. An interrupted run leaves no file, and the next starts from the beginning; a complete
    /// cache of this data is left as it is.
    pub fn fill_cache(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<FilledCache> {
        let state = || {
            let missing = "there is no cache file to fill; name one with `data.cache`, such as { file = \"cache.plc\" }";
            self.data.cache_file()?.ok_or_else(|| Error::Config(missing.to_string()))
        };
        let mut now = state()?;
        let found = now.whole;
        if !found {
            let planned = self.plan(&self.data)?;
            let mut feed = planned.start(&self.data, 1)?;
            let (mut done, total) = (0, self.data.len());
            while let Some(batch) = feed.next()? {
                done += batch.rows as u64;
                progress(done, total);
            }
            let given_up = feed.activity().cache_given_up;
            drop(feed);
            now = state()?;
            if !now.whole {
                let path = now.path.display();
                let all = now.rows.map_or(String::new(), |rows| format!(" {rows}"));
                let why = given_up.unwrap_or_else(|| {
                    format!("an epoch has {done} rows and the cache of all rows{all}; leave out take, drop_remainder and ignore_errors")
                });
                return Err(Error::Config(format!("{path} could not be filled: {why}")));
            }
        }
        Ok(FilledCache { path: now.path, rows: now.rows.unwrap_or_default(), bytes: now.bytes.unwrap_or_default(), found })
    }
}
