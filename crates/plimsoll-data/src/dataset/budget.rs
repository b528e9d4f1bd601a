//! Memory budgets and holdings of the stages of a sequential pipeline.

use crate::decode::{AUTO_ITEM, ItemSizes, MIN_ITEM};
use plimsoll_core::Bytes;

/// How much memory the stages of a sequential pipeline may use for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamBudget {
    /// Use the minimum.
    pub minimal: bool,
    /// The limit of the whole pipeline.
    pub limit: Option<Bytes>,
    /// Number of inputs that are read ahead on their own threads and share the limit; 0 if rows are produced on
    /// demand.
    pub parallel_inputs: usize,
    /// Whether a later stage ignores errors, so that rows after a failed one are still read.
    pub ignores_errors: bool,
    /// Maximum bytes of each cache in memory; unlimited if `None`.
    pub cache: Option<Bytes>,
    /// Maximum bytes for decoding an image, if the whole pipeline has decided it.
    pub item: Option<Bytes>,
}

impl StreamBudget {
    /// The minimum, without caches.
    pub const MINIMUM: StreamBudget =
        StreamBudget { minimal: true, limit: None, parallel_inputs: 0, ignores_errors: false, cache: Some(Bytes::ZERO), item: None };

    /// Bytes for decoding images of these sizes on this many threads, or one at a time if there is no memory for more.
    pub fn item_bytes(&self, sizes: &ItemSizes, threads: usize) -> Bytes {
        if sizes.complete().is_some() {
            let pool = sizes.pool(if self.minimal { 1 } else { threads }, AUTO_ITEM);
            return self.limit.map_or(pool, |limit| pool.min(Bytes(limit.0 / 4).max(sizes.required())));
        }
        let assumed = match (self.item, self.limit) {
            _ if self.minimal => MIN_ITEM,
            (Some(item), _) => item,
            (None, Some(limit)) => Bytes(limit.0 / 4).clamp(MIN_ITEM, AUTO_ITEM),
            (None, None) => AUTO_ITEM,
        };
        sizes.stated.unwrap_or(assumed.max(sizes.required()))
    }

    /// Whether a cache may use this many bytes.
    pub fn can_cache(&self, bytes: Bytes) -> bool {
        self.cache.is_none_or(|cache| bytes <= cache)
    }
}

/// Bytes that a stage holds, and whether an inner feed makes the reservation.
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
