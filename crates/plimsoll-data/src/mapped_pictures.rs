//! Where the pictures of a stream are decoded: in packed records where they come from, since only there are they held; in files of their own
//! behind the stages that hand on rows as they are, so that only those of rows that are left are opened.

use crate::Column;
use crate::cache::Cache;
use crate::dataset::{Dataset, Stage};
use crate::ops::Op;
use crate::schema::Extent;
use crate::source::Referring;
use crate::stream::Spec;
use plimsoll_core::Bytes;
use std::sync::Arc;

impl Dataset {
    /// [`map`](Dataset::map) of a stream.
    pub(crate) fn map_stream(self, column: &str, ops: Vec<Arc<dyn Op>>) -> Dataset {
        let (mut data, mut ops) = (self, ops.into_iter().peekable());
        // Up to the one that makes them alike in size, and no further: what follows runs on rows like any others.
        while data.is_of_pictures(column)
            && let Some(op) = ops.peek()
            && let Some(spec) = data.stream.as_ref().and_then(|spec| spec.with_picture_op(column, op))
        {
            data = Dataset { stages: data.stages, ..Dataset::flow(spec) };
            ops.next();
            if ops.peek().is_none() {
                return data;
            }
        }
        data.stage(Stage::Map { column: column.to_string(), ops: ops.collect() })
    }

    /// The same stream with the most that a picture may take said to where it is decoded, if there are any.
    pub(crate) fn max_item_of_stream(self, bytes: Bytes) -> Dataset {
        match self.stream.as_ref().and_then(|spec| spec.with_max_item(bytes)) {
            Some(spec) => Dataset { stages: self.stages, ..Dataset::flow(spec) },
            None => self.stage(Stage::MaxItem(bytes)),
        }
    }

    /// A stage that hands on rows as they are, which it is given with numbers in the place of files: only those of rows that it hands on are
    /// opened, by what was said of them before it and what is said after it.
    pub(crate) fn before_files(self, spec: impl FnOnce(Dataset) -> Spec) -> Dataset {
        let (rows, files, later) = self.by_reference();
        let stage = Dataset::flow(spec(rows));
        if files.is_empty() || stage.broken.is_some() {
            return stage;
        }
        later.into_iter().fold(Dataset::flow(Spec::Files { input: stage, files }), Dataset::stage)
    }

    /// Rows with numbers in the place of files, those columns with their places, and what is to be done to files; or the same data set, if
    /// that has none or they are decoded.
    fn by_reference(self) -> (Dataset, Vec<(usize, Column)>, Vec<Stage>) {
        let keeps = |stage: &Stage| matches!(stage, Stage::Cache(cache, _) if *cache != Cache::Auto);
        let differs = |column: &Column| matches!(column.extent, Extent::Files | Extent::Images);
        let is_open = self.output_schema().is_ok_and(|schema| schema.columns().iter().any(differs));
        let referring = match &self.stream {
            _ if !is_open || self.stages.iter().any(keeps) => None,
            Some(spec) => match &**spec {
                Spec::Files { input, files } => Some((input.clone(), files.clone())),
                _ => None,
            },
            None => Referring::to(&self.source).map(|(source, files)| (Dataset::from_source(Arc::new(source)), files)),
        };
        let Some((rows, files)) = referring else { return (self, Vec::new(), Vec::new()) };
        // What is done to files, and how, is done behind the stage.
        let is_later = |stage: &Stage| match stage {
            Stage::Map { column: name, .. } => files.iter().any(|(_, column)| column.name == *name),
            Stage::MaxItem(_) | Stage::Parallelism(_) => true,
            _ => false,
        };
        let (later, now): (Vec<Stage>, Vec<Stage>) = self.stages.into_iter().partition(is_later);
        (now.into_iter().fold(rows, Dataset::stage), files, later)
    }

    fn is_of_pictures(&self, column: &str) -> bool {
        let Ok(schema) = self.output_schema() else { return false };
        let found = schema.columns().iter().find(|of| of.name == column);
        found.is_some_and(|of| matches!(of.extent, Extent::Files | Extent::Images))
    }
}

impl Spec {
    fn with_picture_op(&self, column: &str, op: &Arc<dyn Op>) -> Option<Spec> {
        if let Spec::Pictures(pictures) = self {
            return Some(Spec::Pictures(pictures.map(column, op)));
        }
        let has = |input: &Dataset| input.output_schema().is_ok_and(|schema| schema.index_of(column).is_some());
        self.of_inputs(|input| if has(input) { input.clone().map(column, [Arc::clone(op)]) } else { input.clone() })
    }

    fn with_max_item(&self, bytes: Bytes) -> Option<Spec> {
        match self {
            Spec::Pictures(pictures) => Some(Spec::Pictures(pictures.with_max_item(bytes))),
            // They are decoded behind it.
            _ if self.reference_bytes() > Bytes::ZERO => None,
            _ if self.has_pictures() => {
                let mut spec = self.clone();
                spec.inputs_mut().iter_mut().for_each(|input| *input = input.clone().max_item(bytes));
                Some(spec)
            }
            _ => None,
        }
    }

    fn has_pictures(&self) -> bool {
        let inside = |input: &Dataset| match &input.stream {
            Some(spec) => spec.has_pictures(),
            None => input.recipe().is_ok_and(|recipe| recipe.item().is_some() || recipe.check_fixed().is_err()),
        };
        matches!(self, Spec::Pictures(_)) || self.reference_bytes() > Bytes::ZERO || self.inputs().iter().any(inside)
    }

    /// The same stage on other data sets, where it hands on rows without looking at them.
    fn of_inputs(&self, change: impl Fn(&Dataset) -> Dataset) -> Option<Spec> {
        let all = |inputs: &[Dataset]| inputs.iter().map(&change).collect();
        Some(match self {
            Spec::Take { input, rows } => Spec::Take { input: change(input), rows: *rows },
            Spec::Skip { input, rows } => Spec::Skip { input: change(input), rows: *rows },
            Spec::Shard { input, count, index, begun } => Spec::Shard { input: change(input), count: *count, index: *index, begun: *begun },
            Spec::Repeat { input, times } => Spec::Repeat { input: change(input), times: *times },
            Spec::Shuffle { input, seed, bytes } => Spec::Shuffle { input: change(input), seed: *seed, bytes: *bytes },
            Spec::Enumerate { input, column } => Spec::Enumerate { input: change(input), column: column.clone() },
            Spec::Zip { inputs } => Spec::Zip { inputs: all(inputs) },
            Spec::Concatenate { inputs } => Spec::Concatenate { inputs: all(inputs) },
            Spec::Sample { inputs, weights, seed } => Spec::Sample { inputs: all(inputs), weights: weights.clone(), seed: *seed },
            Spec::Interleave { inputs, cycle, block, parallel } => {
                Spec::Interleave { inputs: all(inputs), cycle: *cycle, block: *block, parallel: *parallel }
            }
            _ => return None,
        })
    }
}
