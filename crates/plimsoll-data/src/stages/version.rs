//! `version`: the version of user code.

use crate::DataError;
use crate::dataset::{Dataset, Recipe, Stage};

struct Version {
    version: String,
}

impl Dataset {
    /// Sets the version of the user code (closures, generators, custom sources) before this stage. A cache file
    /// cannot detect changes of code: change the version whenever the code changes, and the cache is rebuilt.
    ///
    /// ```
    /// use plimsoll_data::{Cache, Dataset, ops::apply};
    /// let folder = std::env::temp_dir().join(format!("plimsoll-doc-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder).unwrap();
    /// let square = || apply("square", [], |_, x, out| Ok(out[0] = x[0] * x[0]));
    /// let squares = || Dataset::range(0, 8, 1).unwrap().map("x", [square()]);
    /// let file = Cache::File(folder.join("squares.plc"));
    /// assert!(squares().cache(file.clone()).cache_file().unwrap_err().to_string().contains("say which version"));
    /// assert!(squares().version("2").cache(file).cache_file()?.is_some());
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn version(self, version: impl Into<String>) -> Dataset {
        self.then(Version { version: version.into() })
    }
}

impl Stage for Version {
    fn describe(&self) -> String {
        format!("version({})", self.version)
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn compile(&self, recipe: &mut Recipe, _data: &Dataset) -> Result<(), DataError> {
        recipe.set_version(&self.version);
        Ok(())
    }

    fn changes_rows(&self, _ignores_errors: bool) -> bool {
        true
    }

    fn sets_version(&self) -> bool {
        true
    }
}
