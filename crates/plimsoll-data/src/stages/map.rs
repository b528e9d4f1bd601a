//! `map`: operations on a column.

use super::kind::{Key, KeyKind, StageKind};
use crate::DataError;
use crate::dataset::{Dataset, Node, Recipe, Stage, is_image};
use crate::ops::Op;
use std::sync::Arc;

struct Map {
    column: String,
    ops: Vec<Arc<dyn Op>>,
}

pub(super) const KIND: StageKind = StageKind {
    name: "map",
    summary: "applies a list of operations to one column",
    keys: &[Key::optional("column", KeyKind::Text).or("\"x\""), Key::required("ops", KeyKind::Ops, "what is done to the column")],
    has_short_form: true,
    build: |data, args| Ok(data.map(&args.text("column").unwrap_or("x".into()), args.ops("ops").unwrap_or_default())),
    ..StageKind::DEFAULT
};

impl Stage for Map {
    fn describe(&self) -> String {
        let ops: Vec<String> = self.ops.iter().map(|op| op.describe()).collect();
        format!("map({}: {})", self.column, ops.join(", "))
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn compile(&self, recipe: &mut Recipe, _data: &Dataset) -> Result<(), DataError> {
        self.ops.iter().try_for_each(|op| recipe.map(&self.column, op))
    }

    fn mapped(&self) -> Option<(&str, &[Arc<dyn Op>])> {
        Some((&self.column, &self.ops))
    }
}

impl Dataset {
    /// Applies the [operations](crate::ops) to a column, in order.
    pub fn map(self, column: &str, ops: impl IntoIterator<Item = Arc<dyn Op>>) -> Dataset {
        let (mut data, mut ops) = (self, ops.into_iter().peekable());
        // Images in records are decoded when the records are read, with all operations up to the one that fixes their
        // size.
        while data.has_images_in(column)
            && let Some(op) = ops.peek()
            && let Some(mapped) = data.map_records(column, op)
        {
            data = mapped;
            ops.next();
            if ops.peek().is_none() {
                return data;
            }
        }
        data.then(Map { column: column.to_string(), ops: ops.collect() })
    }

    /// Applies operations to the images in `x`, and those that move pixels also to the segmentation masks in `y`, with
    /// the same random choices.
    ///
    /// ```no_run
    /// use plimsoll_data::{Dataset, ops::{Method, decode, flip_left_right, resize, scale}};
    /// let data = Dataset::image_masks("images", "masks", &[])?
    ///     .map_image_and_mask([decode(), flip_left_right(7), resize(64, 64, Method::Bilinear), scale(1.0 / 255.0)])
    ///     .batch(16);
    /// assert_eq!(data.output_schema()?.to_string(), "x: f32[64, 64, 3], y: u8[64, 64, 1]");
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn map_image_and_mask(self, ops: impl IntoIterator<Item = Arc<dyn Op>>) -> Dataset {
        ops.into_iter().fold(self, |data, op| {
            let mask = op.for_mask();
            let data = data.map("x", [op]);
            match mask {
                Some(mask) => data.map("y", [mask]),
                None => data,
            }
        })
    }

    /// Whether a column holds images without a fixed size.
    fn has_images_in(&self, column: &str) -> bool {
        let Ok(schema) = self.output_schema() else { return false };
        schema.columns().iter().any(|of| of.name == column && is_image(of))
    }

    /// Moves the operation to the stage that decodes images of records, if there is one.
    fn map_records(&self, column: &str, op: &Arc<dyn Op>) -> Option<Dataset> {
        let node = self.node.as_ref()?;
        let stage = match node.stage.with_op(column, op) {
            Some(stage) => Node { stage, inputs: Vec::new() },
            None if node.stage.ignores_values() => {
                let has = |input: &Dataset| input.output_schema().is_ok_and(|schema| schema.index_of(column).is_some());
                let map = |input: &Dataset| if has(input) { input.clone().map(column, [Arc::clone(op)]) } else { input.clone() };
                Node { stage: Arc::clone(&node.stage), inputs: node.inputs.iter().map(map).collect() }
            }
            None => return None,
        };
        Some(Dataset { stages: self.stages.clone(), ..Dataset::from_node(stage) })
    }
}
