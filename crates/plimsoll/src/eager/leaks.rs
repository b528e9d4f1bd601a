//! What eager tensors take more after an epoch of training than after the epoch before.

use super::context::Context;
use plimsoll_core::allocator::{Growth, Snapshot};
use std::collections::BTreeSet;

/// Compares the memory of all contexts between epochs. What grows is likely kept by a callback.
#[derive(Default)]
pub(crate) struct LeakWatch {
    /// The memory of every context at the end of the last epoch.
    before: Vec<(usize, Snapshot)>,
    /// The owners and lines that were reported.
    reported: BTreeSet<(String, String)>,
}

impl LeakWatch {
    /// What grew since the last call and was not reported before. The first call only takes a snapshot, so that what is
    /// set up once does not count.
    pub fn grown(&mut self) -> Vec<Growth> {
        let now: Vec<(usize, Snapshot)> = Context::all().iter().map(|context| (context.id(), context.snapshot())).collect();
        let mut grown = Vec::new();
        for (context, snapshot) in &now {
            let Some((_, earlier)) = self.before.iter().find(|(known, _)| known == context) else { continue };
            let more = snapshot.diff(earlier).into_iter().filter(|growth| growth.bytes > 0);
            grown.extend(more.filter(|growth| self.reported.insert((growth.owner.clone(), growth.location.clone()))));
        }
        self.before = now;
        grown
    }
}
