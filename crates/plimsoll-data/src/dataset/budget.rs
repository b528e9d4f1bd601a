//! What the stages of a sequential pipeline may hold, and what they do.

use crate::decode::{AUTO_ITEM, MIN_ITEM};
use plimsoll_core::Bytes;

/// How much memory the stages of a sequential pipeline may use for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamBudget {
    /// As little as works.
    pub minimal: bool,
    /// The limit of the whole pipeline.
    pub limit: Option<Bytes>,
    /// How many inputs are read ahead, each by threads of its own, and share the limit; 0 where rows are made when they are wanted.
    pub parallel_inputs: usize,
    /// Whether a later stage leaves out rows with errors, so that those after them are wanted.
    pub ignores_errors: bool,
    /// What each cache in memory may hold; anything where there is no limit.
    pub cache: Option<Bytes>,
    /// What decoding an image may take, where the whole pipeline has decided that.
    pub item: Option<Bytes>,
}

impl StreamBudget {
    /// As little as works, and nothing cached.
    pub const MINIMUM: StreamBudget =
        StreamBudget { minimal: true, limit: None, parallel_inputs: 0, ignores_errors: false, cache: Some(Bytes::ZERO), item: None };

    /// What images are decoded in, one at a time, unless it was stated.
    pub fn item_bytes(&self, stated: Option<Bytes>) -> Bytes {
        stated.unwrap_or(match (self.item, self.limit) {
            _ if self.minimal => MIN_ITEM,
            (Some(item), _) => item,
            (None, Some(limit)) => Bytes(limit.0 / 4).clamp(MIN_ITEM, AUTO_ITEM),
            (None, None) => AUTO_ITEM,
        })
    }

    /// Whether a cache may hold so much.
    pub fn can_cache(&self, bytes: Bytes) -> bool {
        self.cache.is_none_or(|cache| bytes <= cache)
    }
}

/// Bytes a stage holds, and whether an inner feed reserves them itself.
#[derive(Clone)]
pub(crate) struct Holding {
    pub name: String,
    pub bytes: Bytes,
    pub reserved_elsewhere: bool,
}

impl Holding {
    pub fn here(name: impl Into<String>, bytes: Bytes) -> Holding {
        Holding { name: name.into(), bytes, reserved_elsewhere: false }
    }
}
