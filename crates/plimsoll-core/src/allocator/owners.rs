//! Owners of blocks, by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{OnceLock, PoisonError, RwLock};

/// An owner of blocks: an op, a layer, a tape. Names are kept for the life of the process, so they should be few.
///
/// ```
/// use plimsoll_core::allocator::OwnerId;
/// assert_eq!(OwnerId::named("relu"), OwnerId::named("relu"));
/// assert_eq!(OwnerId::named("relu").to_string(), "relu");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub(super) u32);

#[derive(Default)]
struct Names {
    by_name: HashMap<String, u32>,
    names: Vec<String>,
}

fn names() -> &'static RwLock<Names> {
    static NAMES: OnceLock<RwLock<Names>> = OnceLock::new();
    NAMES.get_or_init(RwLock::default)
}

impl OwnerId {
    /// The owner of this name.
    pub fn named(name: &str) -> OwnerId {
        if let Some(id) = names().read().unwrap_or_else(PoisonError::into_inner).by_name.get(name) {
            return OwnerId(*id);
        }
        let mut names = names().write().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = names.by_name.get(name) {
            return OwnerId(*id);
        }
        let id = names.names.len() as u32;
        names.names.push(name.to_string());
        names.by_name.insert(name.to_string(), id);
        OwnerId(id)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&names().read().unwrap_or_else(PoisonError::into_inner).names[self.0 as usize])
    }
}
