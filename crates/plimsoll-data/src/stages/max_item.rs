//! `max_item`: limits the memory for one file.

use super::kind::{Key, KeyKind, StageKind};
use crate::dataset::{Concern, Dataset, Node};
use plimsoll_core::Bytes;
use std::sync::Arc;

pub(super) const KIND: StageKind = StageKind {
    name: "max_item",
    summary: "the most memory one file may take, for all stages before it",
    keys: &[Key::required("bytes", KeyKind::Size, "a size such as \"64MiB\"")],
    has_short_form: true,
    build: |data, args| Ok(data.max_item(args.size("bytes").unwrap_or_default())),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Limits the memory for reading and decoding a single file on each thread. The default is 128 MiB, or less under
    /// a memory limit. A file that needs more is an error that names it.
    pub fn max_item(self, bytes: Bytes) -> Dataset {
        match self.limit_records(bytes) {
            Some(limited) => limited,
            None => self.with_setting(Concern::ItemLimit, format!("max_item({bytes})"), move |settings| {
                settings.max_item = Some(bytes);
                Ok(())
            }),
        }
    }

    /// Passes the limit to the stages that decode images, if there are any.
    fn limit_records(&self, bytes: Bytes) -> Option<Dataset> {
        let node = self.node.as_ref()?;
        let stage = match node.stage.with_max_item(bytes) {
            Some(stage) => Node { stage, inputs: Vec::new() },
            // They are decoded after this stage.
            None if node.stage.reference_bytes() > 0 || !node.has_images() => return None,
            None => {
                let limit = |input: &Dataset| input.clone().max_item(bytes);
                Node { stage: Arc::clone(&node.stage), inputs: node.inputs.iter().map(limit).collect() }
            }
        };
        Some(Dataset { stages: self.stages.clone(), ..Dataset::from_node(stage) })
    }
}

impl Node {
    /// Whether images are decoded here or upstream, or are not decoded yet.
    fn has_images(&self) -> bool {
        let inside = |input: &Dataset| match &input.node {
            Some(node) => node.has_images(),
            None => input.recipe().is_ok_and(|recipe| recipe.item().is_some() || recipe.check_fixed().is_err()),
        };
        self.stage.decodes().is_some() || self.stage.reference_bytes() > 0 || self.inputs.iter().any(inside)
    }
}
