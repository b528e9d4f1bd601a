//! A stage and its inputs, where rows come one after the other.

use super::Dataset;
use super::budget::StreamBudget;
use super::input::BlockIterator;
use super::order::Consumed;
use super::stage::{OpenInput, Opening, Stage};
use crate::meter::StageTimer;
use crate::source::{Gather, Source};
use crate::{BlockMut, DataError, Schema};
use plimsoll_core::{Bytes, Ledger};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A stage that pulls rows, and its inputs.
#[derive(Clone)]
pub(crate) struct Node {
    pub stage: Arc<dyn Stage>,
    pub inputs: Vec<Dataset>,
}

impl Node {
    pub fn schema(&self) -> Result<Schema, DataError> {
        self.stage.schema(&self.inputs)
    }

    /// Rows in one epoch, where that is known beforehand: with rows that cannot be read counted, or not known because of them.
    pub fn rows(&self, readable: bool) -> Option<u64> {
        if self.stage.ignores_errors() && !readable {
            return None;
        }
        self.stage.rows(&self.inputs, &|input| if readable { input.size_if_readable() } else { input.size() })
    }

    /// The most rows an epoch can have.
    pub fn max_rows(&self) -> u64 {
        self.rows(false).unwrap_or_else(|| self.stage.max_rows(&self.inputs))
    }

    /// The last stage that a user wrote.
    fn written(&self) -> &Node {
        match &self.inputs[..] {
            [input] if self.stage.is_implicit() && input.stages.is_empty() => input.node.as_deref().map_or(self, Node::written),
            _ => self,
        }
    }

    /// How many shards there are, which this is, and what it is a shard of, if it is one.
    pub fn shard(&self) -> Option<(u64, u64, &Dataset)> {
        let node = self.written();
        node.stage.shard().map(|(count, index)| (count, index, &node.inputs[0]))
    }

    /// The same, if it is a shard, where others have consumed some of an epoch.
    pub fn after(&self, consumed: Consumed) -> Node {
        let mut node = self.clone();
        if let Some(stage) = self.stage.after(consumed) {
            node.stage = stage;
        } else if let [input] = &mut node.inputs[..]
            && self.stage.is_implicit()
            && input.stages.is_empty()
        {
            input.node = input.node.take().map(|before| Arc::new(before.after(consumed)));
        }
        node
    }

    pub fn describe(&self) -> String {
        match &self.inputs[..] {
            [input] if self.stage.is_implicit() => input.describe(),
            [] => self.stage.describe(),
            [input] => format!("{} → {}", input.describe(), self.stage.describe()),
            inputs => format!("{}({})", self.stage.describe(), inputs.iter().map(Dataset::describe).collect::<Vec<_>>().join(" | ")),
        }
    }

    /// Which rows come in which order, wherever they lie: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        let of = |input: &Dataset| {
            let first = input.node.as_ref().map_or("file order".to_string(), |node| node.order());
            let changes = |stage: &&Arc<dyn Stage>| stage.index_step().is_some() || stage.mapped().is_some();
            input.stages.iter().filter(changes).fold(first, |order, stage| format!("{order} → {}", stage.describe()))
        };
        match &self.inputs[..] {
            [] => "file order".into(),
            [input] if self.stage.is_implicit() => of(input),
            [input] => format!("{} → {}", of(input), self.stage.describe()),
            inputs => format!("{}({})", self.stage.describe(), inputs.iter().map(of).collect::<Vec<_>>().join(" | ")),
        }
    }

    /// What was left out of an epoch here and before.
    pub fn ignored(&self, epoch: Option<u64>) -> (u64, Vec<String>) {
        if self.stage.ignores_errors() {
            return self.stage.ignored(epoch);
        }
        let epochs = epoch.map_or(vec![None], |epoch| self.stage.input_epochs(epoch).into_iter().map(Some).collect());
        let before = self.inputs.iter().filter_map(|input| input.node.as_ref());
        let each = before.flat_map(|node| epochs.iter().map(|epoch| node.ignored(*epoch)));
        each.fold((0, Vec::new()), |(count, mut all), (more, names)| {
            all.extend(names);
            (count + more, all)
        })
    }

    /// Whether images of records are decoded here or before, in as much as the limit leaves for one.
    pub fn decodes_within_limit(&self) -> bool {
        self.stage.decodes() == Some(None)
            || self.inputs.iter().any(|input| input.node.as_ref().is_some_and(|node| node.decodes_within_limit()))
    }

    /// How many caches in memory there are here and before.
    pub fn memory_caches(&self) -> usize {
        let counts = |stage: &Arc<dyn Stage>| usize::from(stage.cache().is_some_and(|(cache, _)| cache.path().is_none()));
        let before = self.inputs.iter().map(|input| match &input.node {
            Some(node) => node.memory_caches(),
            None => input.stages.iter().map(counts).sum(),
        });
        counts(&self.stage) + before.sum::<usize>()
    }

    /// Why one of the caches here and before is not used, if so.
    pub fn cache_bypass(&self) -> Option<String> {
        let why = |stage: &Arc<dyn Stage>| stage.cache().and_then(|(_, bypass)| bypass.reason());
        let before = |input: &Dataset| match &input.node {
            Some(node) => node.cache_bypass(),
            None => input.stages.iter().find_map(why),
        };
        why(&self.stage).or_else(|| self.inputs.iter().find_map(before))
    }

    /// How many of its inputs are read at a time.
    pub fn open_inputs(&self) -> usize {
        self.stage.open_inputs(self.inputs.len())
    }

    /// Whether an input is open only while it is being read. One that caches rows stays open, so that it has them the next time; read ahead by a
    /// thread of its own it has not, as they go with the thread.
    pub fn closes(&self, input: &Dataset) -> bool {
        self.open_inputs() < self.inputs.len() && (self.stage.reads_ahead() || !input.caches_rows())
    }

    /// What its inputs may hold.
    pub fn input_budget(&self, budget: StreamBudget) -> StreamBudget {
        let parallel_inputs = if self.stage.reads_ahead() { self.open_inputs() } else { 0 };
        StreamBudget { parallel_inputs, ignores_errors: budget.ignores_errors || self.stage.ignores_errors(), ..budget }
    }

    /// Its rows; what it holds has been reserved, apart from what inner feeds reserve themselves.
    pub fn open(
        &self,
        budget: StreamBudget,
        ledger: &Ledger,
        timer: &StageTimer,
        opener: &'static dyn OpenInput,
    ) -> Result<Box<dyn BlockIterator>, DataError> {
        self.stage.open(&Opening { node: self, budget: self.input_budget(budget), ledger, timer, opener })
    }

    /// What counts the time of the stage and of its inputs.
    pub fn timer(&self, name: String) -> Arc<StageTimer> {
        let is_mapped = |input: &Dataset| input.stages.iter().any(|stage| stage.mapped().is_some());
        StageTimer::new(name, self.inputs.iter().map(is_mapped))
    }
}

impl Dataset {
    /// Whether rows are cached here or before.
    pub(crate) fn caches_rows(&self) -> bool {
        let before = |node: &Node| node.stage.cache().is_some() || node.inputs.iter().any(Dataset::caches_rows);
        self.stages.iter().any(|stage| stage.cache().is_some()) || self.node.as_deref().is_some_and(before)
    }
}

/// Stands for a node where a source is asked about its rows; it is never read by number.
pub(super) struct NodeSource {
    pub node: Arc<Node>,
    pub schema: Schema,
}

impl Source for NodeSource {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.node.max_rows()
    }

    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        Bytes::ZERO
    }

    fn read(&self, _first_row: u64, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        unreachable!("rows of a stream have no numbers")
    }

    fn gather(&self, _rows: Gather<'_>, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        unreachable!("rows of a stream have no numbers")
    }

    /// Of the row that one of the stream refers to.
    fn file(&self, row: u64, path: &mut PathBuf) {
        self.node.inputs[0].source.file(row, path);
    }

    fn file_part(&self, row: u64) -> Result<Option<Range<u64>>, DataError> {
        self.node.inputs[0].source.file_part(row)
    }

    fn class_names(&self) -> Vec<String> {
        self.node.inputs.first().map(Dataset::class_names).unwrap_or_default()
    }

    fn skipped_files(&self) -> Option<String> {
        self.node.inputs.iter().find_map(Dataset::skipped_files)
    }

    fn describe(&self) -> String {
        self.node.describe()
    }
}
