//! A sequential stage and its inputs.

use super::Dataset;
use super::budget::StreamBudget;
use super::input::BlockIterator;
use super::order::Consumed;
use super::stage::{OpenInput, Opening, Stage};
use crate::meter::StageTimer;
use crate::source::{ColumnScale, FileUse, FittedColumn, ImageScans, Source};
use crate::{DataError, Schema};
use plimsoll_core::Ledger;
use std::iter;
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

    /// Rows in one epoch, if known in advance. If `readable`, assumes that no row fails; otherwise `None` if rows may
    /// be dropped because of errors.
    pub fn rows(&self, readable: bool) -> Option<u64> {
        if self.stage.ignores_errors() && !readable {
            return None;
        }
        self.stage.rows(&self.inputs, &|input| if readable { input.size_if_readable() } else { input.size() })
    }

    /// Upper bound of the rows in an epoch.
    pub fn max_rows(&self) -> u64 {
        self.rows(false).unwrap_or_else(|| self.stage.max_rows(&self.inputs))
    }

    /// The last stage that the user wrote.
    fn written(&self) -> &Node {
        match &self.inputs[..] {
            [input] if self.stage.is_implicit() && input.stages.is_empty() => input.node.as_deref().map_or(self, Node::written),
            _ => self,
        }
    }

    /// The number of shards, the index of this one, and the sharded data set, if this is a shard.
    pub fn shard(&self) -> Option<(u64, u64, &Dataset)> {
        let node = self.written();
        node.stage.shard().map(|(count, index)| (count, index, &node.inputs[0]))
    }

    /// This shard after `consumed` rows of an epoch; other nodes are unchanged.
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

    /// The order of rows, regardless of their location. A saved position is valid only for the same order.
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

    /// Rows dropped from an epoch, here and upstream.
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

    /// Its stage, and those upstream.
    pub fn stages(&self) -> Vec<&dyn Stage> {
        let upstream = self.inputs.iter().flat_map(Dataset::all_stages);
        iter::once(&*self.stage).chain(upstream).collect()
    }

    /// Whether images of records are decoded here or upstream, in memory that depends on the limit.
    pub fn decodes_within_limit(&self) -> bool {
        self.stages().iter().any(|stage| stage.decodes() == Some(None))
    }

    /// Number of caches in memory, here and upstream.
    pub fn memory_caches(&self) -> usize {
        self.stages().iter().filter(|stage| stage.cache().is_some_and(|(cache, _)| cache.path().is_none())).count()
    }

    /// Why a cache here or upstream was disabled, if one was.
    pub fn cache_bypass(&self) -> Option<String> {
        self.stages().iter().find_map(|stage| stage.cache()?.1.reason())
    }

    /// Number of inputs that are read at a time.
    pub fn open_inputs(&self) -> usize {
        self.stage.open_inputs(self.inputs.len())
    }

    /// Whether an input is open only while it is being read. An input that caches rows stays open, so that the next
    /// epoch finds them, unless it is read ahead by a thread that owns the cache.
    pub fn closes(&self, input: &Dataset) -> bool {
        self.open_inputs() < self.inputs.len() && (self.stage.reads_ahead() || !input.caches_rows())
    }

    /// The budget of its inputs.
    pub fn input_budget(&self, budget: StreamBudget) -> StreamBudget {
        let parallel_inputs = if self.stage.reads_ahead() { self.open_inputs() } else { 0 };
        StreamBudget { parallel_inputs, ignores_errors: budget.ignores_errors || self.stage.ignores_errors(), ..budget }
    }

    /// Opens it. The memory must be reserved, except what inner feeds reserve themselves.
    pub fn open(
        &self,
        budget: StreamBudget,
        ledger: &Ledger,
        timer: &StageTimer,
        opener: &'static dyn OpenInput,
    ) -> Result<Box<dyn BlockIterator>, DataError> {
        self.stage.open(&Opening { node: self, budget: self.input_budget(budget), ledger, timer, opener })
    }

    /// The timer of the stage and its inputs.
    pub fn timer(&self, name: String) -> Arc<StageTimer> {
        let is_mapped = |input: &Dataset| input.stages.iter().any(|stage| stage.mapped().is_some());
        StageTimer::new(name, self.inputs.iter().map(is_mapped))
    }
}

impl Dataset {
    /// Its stages, and those upstream.
    pub(crate) fn all_stages(&self) -> Vec<&dyn Stage> {
        let upstream = self.node.iter().flat_map(|node| node.stages());
        self.stages.iter().map(|stage| &**stage).chain(upstream).collect()
    }

    /// Whether rows are cached here or upstream.
    pub(crate) fn caches_rows(&self) -> bool {
        self.all_stages().iter().any(|stage| stage.cache().is_some())
    }
}

/// Represents a node where a `Source` is expected; it cannot be read by index.
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

    /// The file of the row that a row of the stream refers to.
    fn file(&self, row: u64, column: usize, path: &mut PathBuf) {
        self.node.inputs[0].source.file(row, column, path);
    }

    fn file_part(&self, row: u64, column: usize) -> Result<Option<Range<u64>>, DataError> {
        self.node.inputs[0].source.file_part(row, column)
    }

    fn masked_column(&self, column: usize) -> Option<usize> {
        self.node.inputs.first()?.source.masked_column(column)
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        self.node.inputs.first()?.source.image_scans()
    }

    fn class_names(&self) -> Vec<String> {
        match self.node.stage.facts() {
            Some(facts) => facts.classes.clone(),
            None => self.node.inputs.first().map(Dataset::class_names).unwrap_or_default(),
        }
    }

    fn fitted_columns(&self) -> Vec<FittedColumn> {
        match self.node.stage.facts() {
            Some(facts) => facts.fitted.clone(),
            None => self.node.inputs.first().map(Dataset::fitted_columns).unwrap_or_default(),
        }
    }

    fn file_use(&self) -> FileUse {
        self.node.stage.file_use(&self.node.inputs)
    }

    fn scales(&self) -> Vec<ColumnScale> {
        if let Some(facts) = self.node.stage.facts() {
            return facts.scales.clone();
        }
        self.node.inputs.iter().map(|input| input.source.scales()).find(|scales| !scales.is_empty()).unwrap_or_default()
    }

    fn skipped_files(&self) -> Option<String> {
        self.node.inputs.iter().find_map(Dataset::skipped_files)
    }

    fn describe(&self) -> String {
        self.node.describe()
    }
}
