//! The stages of one pass over rows, checked and put together: rows chosen, read, mapped, batched.

use super::order::{self, Consumed, IndexStep};
use super::settings::{Settings, common_multiple};
use super::{Dataset, Node};
use crate::cache::{Cache, CacheBypass, Fingerprint, unversioned};
use crate::decode::DecodeRecipe;
use crate::memory::ALIGNMENT;
use crate::ops::{ItemStep, Op};
use crate::schema::Extent;
use crate::source::Source;
use crate::span::Span;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
use std::sync::Arc;

/// Everything a plan and a feed need to know.
pub(crate) struct Recipe {
    pub source: Arc<dyn Source>,
    /// Where rows come one after the other instead.
    pub node: Option<Arc<Node>>,
    pub settings: Settings,
    pub index_steps: Vec<IndexStep>,
    /// The stages these come from, in words.
    index_stages: Vec<String>,
    pub consumed: Consumed,
    /// Rows in one epoch.
    pub rows: u64,
    /// The rows of the source that an epoch can have.
    pub span: Span,
    /// What is done to rows before they are cached, where whole rows are.
    pub cached_rows: Option<CachedRows>,
    /// For each column of the source, what is done to it each time.
    pub maps: Vec<ColumnRecipe>,
    /// The columns of a batch.
    pub schema: Schema,
    pub cache: Option<Cache>,
    /// Why the cache is not used, if so.
    pub bypass: Option<Arc<CacheBypass>>,
    /// For each column, the operations so far on rows of variable size.
    items: Vec<Vec<ItemStep>>,
    /// The operations whose results are cached, and the versions of the stages before the cache.
    cached_ops: String,
    /// User code among it whose version was not said.
    code: Option<String>,
    versioned: bool,
}

/// What is done to rows before they are cached, and what they are then.
pub(crate) struct CachedRows {
    pub maps: Vec<ColumnRecipe>,
    pub schema: Schema,
}

/// So many that a system can be expected to start them; one that it cannot start may end the process.
pub(crate) const MAX_THREADS: usize = 1024;

/// The column that marks rows with errors; no user's column is called so.
const ERROR_MARK: &str = "\0error";

/// What is done to one column.
#[derive(Default)]
pub(crate) struct ColumnRecipe {
    /// How a file becomes a row of a block, where the source gives files.
    pub item: Option<DecodeRecipe>,
    /// Then, on blocks.
    pub steps: Vec<MapStep>,
}

impl ColumnRecipe {
    /// What one thread holds for blocks of this many rows.
    pub fn bytes(&self, rows: usize) -> Bytes {
        let steps = self.steps.iter().map(|step| {
            let buffer = if step.in_place { Bytes::ZERO } else { (step.input.row_bytes() * rows as u64).align_up(ALIGNMENT as u64) };
            buffer + step.op.kernel_bytes(&step.input)
        });
        steps.sum::<Bytes>() + self.item.as_ref().map_or(Bytes::ZERO, |item| item.kernel_bytes())
    }
}

/// One operation on one column.
pub(crate) struct MapStep {
    pub op: Arc<dyn Op>,
    pub input: Column,
    pub in_place: bool,
}

impl Recipe {
    /// Whether rows are gathered from all over the source.
    pub fn is_gathered(&self) -> bool {
        !order::is_contiguous(&self.index_steps)
    }

    /// The reorderings before the last shard in words: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        match &self.node {
            Some(node) => node.shard().map_or_else(|| self.source.describe(), |(_, _, input)| input.describe()),
            None => {
                let before = self.split_shard().0.len();
                if before == 0 { "file order".into() } else { self.index_stages[..before].join(" → ") }
            }
        }
    }

    /// The last index step, if it is a shard, apart from those before it: other shards of the same rows may go on where these stopped.
    fn split_shard(&self) -> (&[IndexStep], (u64, u64)) {
        match self.index_steps.split_last() {
            Some((&IndexStep::Shard { count, index }, before)) => (before, (count, index)),
            _ => (&self.index_steps, (1, 0)),
        }
    }

    /// How many shards there are, and which this is.
    pub fn shard(&self) -> (u64, u64) {
        let of_node = self.node.as_ref().and_then(|node| node.shard().map(|(count, index, _)| (count, index)));
        of_node.unwrap_or_else(|| self.split_shard().1)
    }

    /// Rows in an epoch of all shards together; of a stream that does not know, no number it could have.
    pub fn rows_of_all_shards(&self) -> u64 {
        match &self.node {
            Some(node) => node.shard().map_or(self.rows, |(_, _, input)| input.size().unwrap_or(u64::MAX)),
            None => order::rows_after(self.source.len(), self.split_shard().0),
        }
    }

    /// Another number of shards has consumed this many rows of an epoch.
    pub fn begin_after(&mut self, epoch: u64, rows: u64) {
        self.consumed = Some((epoch, rows));
        self.node = self.node.take().map(|node| Arc::new(node.after(self.consumed)));
    }

    pub fn batch(&self) -> Result<usize, DataError> {
        self.settings.batch.ok_or_else(|| DataError::Stage("the data set has no batch size; add .batch(n)".into()))
    }

    /// How many rows belong into one slot: whole batches as they are handed out, as they are mixed, and as they may overtake each other. What
    /// a stream drops at the end of an epoch must not have been handed on.
    pub fn group(&self) -> Result<usize, DataError> {
        let mixed = self.settings.mix.as_ref().and_then(|(_, batch)| *batch);
        let dropped = self.settings.whole_batches().filter(|_| self.node.is_some());
        Ok([mixed, self.settings.unordered_group(), dropped].into_iter().flatten().fold(self.batch()?, common_multiple))
    }

    /// Whether anything is done to rows, apart from what a stream does, that several threads can do in parallel.
    pub fn is_mapped(&self) -> bool {
        self.decodes() || self.maps.iter().any(|map| !map.steps.is_empty())
    }

    /// Whether images are decoded here, out of files or of packed records.
    fn decodes(&self) -> bool {
        self.item().is_some() || self.node.as_ref().is_some_and(|node| node.stage.decodes().is_some())
    }

    /// Whether some of that is slow.
    pub fn takes_long(&self) -> bool {
        let cached = self.cached_rows.iter().flat_map(|cached| &cached.maps);
        let mut steps = self.maps.iter().chain(cached).flat_map(|map| &map.steps);
        self.decodes() || steps.any(|step| step.op.takes_long())
    }

    /// How files become rows, if the data set has any.
    pub fn item(&self) -> Option<&DecodeRecipe> {
        self.maps.iter().find_map(|column| column.item.as_ref())
    }

    /// Bytes of a row as it comes from a stream.
    pub fn stream_row_bytes(&self) -> Bytes {
        self.source.schema().row_bytes() + Bytes(self.node.as_ref().map_or(0, |node| node.stage.reference_bytes()) as u64)
    }

    /// All that cached rows depend on.
    pub fn fingerprint(&self) -> Result<[u8; 16], DataError> {
        let mut hash = Fingerprint::new();
        hash.write(self.cached_ops.as_bytes());
        if let Some(cached) = &self.cached_rows {
            hash.write(format!("rows of {} as {}", self.source.schema(), cached.schema).as_bytes());
        }
        [self.span.first, self.span.step].iter().for_each(|number| hash.write(&number.to_le_bytes()));
        let known = self.source.fingerprint(self.span.range(), &mut hash)?;
        // Of images nothing is cached that user code has made.
        match self.code.as_ref().filter(|_| self.cached_rows.is_some()) {
            None if known || self.versioned => Ok(hash.bytes()),
            code => Err(unversioned(&code.cloned().unwrap_or_else(|| self.source.describe()))),
        }
    }

    /// What is cached of each row and where, if it is.
    pub fn cached_row(&self) -> Option<(&Cache, Bytes)> {
        let whole = self.cached_rows.as_ref().map(|cached| cached.schema.row_bytes());
        let row = whole.or_else(|| Some(self.item()?.output.row_bytes()))?;
        Some((self.cache.as_ref()?, row))
    }

    /// Why rows are not cached, here or before, if so.
    pub fn cache_bypass(&self) -> Option<String> {
        let here = self.bypass.as_ref().and_then(|bypass| bypass.reason());
        here.or_else(|| self.node.as_ref()?.cache_bypass())
    }
}

impl Dataset {
    /// Whether something is decoded, and is the same in each epoch until it is of one size.
    fn can_be_cached(&self) -> bool {
        let is_file = |column: &Column| column.extent == Extent::Files;
        let Some(files) = self.source.schema().columns().iter().find(|column| is_file(column)) else { return false };
        let ops = self.stages.iter().filter_map(|stage| stage.mapped()).filter(|(column, _)| *column == files.name);
        let mut column = files.clone();
        for op in ops.flat_map(|(_, ops)| ops) {
            match op.output(&column) {
                Ok(_) if column.extent != Extent::Fixed && op.is_random() => return false,
                Ok(output) => column = output,
                // Reported when the stages are checked.
                Err(_) => return false,
            }
        }
        column.extent == Extent::Fixed
    }

    /// Checks the stages and puts them together.
    pub(crate) fn recipe(&self) -> Result<Recipe, DataError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let source = self.source.schema().columns();
        if source.is_empty() {
            return Err(DataError::Stage(format!("{} has no columns; give it at least one", self.source.describe())));
        }
        // Known first: it decides what type rows have when they are cached.
        let mut caches = self.stages.iter().filter_map(|stage| stage.cache());
        let (cache, bypass) = caches.next().map(|(cache, bypass)| (cache.clone(), Arc::clone(bypass))).unzip();
        if caches.next().is_some() {
            return Err(DataError::Stage("rows are cached once; leave one cache out".into()));
        }
        let cache = if cache == Some(Cache::Auto) { self.can_be_cached().then_some(Cache::Memory) } else { cache };
        let mut recipe = Recipe {
            source: Arc::clone(&self.source),
            node: self.node.clone(),
            settings: Settings::default(),
            index_steps: Vec::new(),
            index_stages: Vec::new(),
            consumed: None,
            rows: if self.node.is_some() { self.size().unwrap_or(u64::MAX) } else { self.len() },
            span: order::span(self.source.len(), &[]),
            cached_rows: None,
            maps: source.iter().map(|_| ColumnRecipe::default()).collect(),
            schema: self.source.schema().clone(),
            cache,
            bypass,
            items: vec![Vec::new(); source.len()],
            cached_ops: String::new(),
            code: None,
            versioned: false,
        };
        self.stages.iter().try_for_each(|stage| stage.compile(&mut recipe, self))?;
        if recipe.settings.row_errors.is_some() {
            let mut columns = recipe.schema.columns().to_vec();
            columns.push(Column::new(ERROR_MARK, DType::U8, []));
            recipe.schema = Schema::new(columns)?;
        }
        if let Some((mix, batch)) = &recipe.settings.mix {
            mix.mixer(&recipe.schema, batch.or(recipe.settings.batch).unwrap_or(1))?;
        }
        recipe.span = order::span(self.source.len(), &recipe.index_steps);
        Ok(recipe)
    }
}

impl Recipe {
    /// Rows are chosen or reordered by number.
    pub fn add_index_step(&mut self, step: IndexStep, stage: String) -> Result<(), DataError> {
        if let Some(batch) = self.settings.batch {
            let problem = format!("{stage} stands after batch({batch}) but counts rows; put it before the batch");
            return Err(DataError::Stage(problem));
        }
        self.index_steps.push(step);
        self.index_stages.push(stage);
        Ok(())
    }

    /// Indexed rows must be so many where this stands.
    pub fn check_rows(&self, rows: u64, data: &Dataset) -> Result<(), DataError> {
        let there = order::rows_after(self.source.len(), &self.index_steps);
        if self.node.is_none() && there != rows {
            let problem = format!("{there} rows come where assert_cardinality({rows}) was said in {}", data.describe());
            return Err(DataError::Stage(problem));
        }
        Ok(())
    }

    /// User code up to here is of this version.
    pub fn set_version(&mut self, version: &str) {
        if self.cached_rows.is_none() {
            self.cached_ops += &format!("version {version:?} → ");
            (self.code, self.versioned) = (None, true);
        }
    }

    /// Rows are cached as they are here: what was done so far is done once, what follows each time. Images are cached as soon as they are of one
    /// size, wherever the cache stands.
    pub fn cache_here(&mut self) -> Result<(), DataError> {
        let has_files = self.source.schema().columns().iter().any(|column| column.extent == Extent::Files);
        if self.cache.is_none() || has_files {
            return Ok(());
        }
        self.check_fixed()?;
        let each_time = self.maps.iter().map(|_| ColumnRecipe::default()).collect();
        let maps = std::mem::replace(&mut self.maps, each_time);
        for (map, column) in maps.iter().zip(self.schema.columns()) {
            for step in &map.steps {
                if step.op.is_random() {
                    let problem = "it differs from epoch to epoch and stands before the cache; put it after".into();
                    return Err(DataError::Op { op: step.op.describe(), column: column.name.clone(), problem });
                }
                self.cached_ops += &format!("{}: {} → ", column.name, step.op.describe());
            }
        }
        self.cached_rows = Some(CachedRows { maps, schema: self.schema.clone() });
        Ok(())
    }

    /// Applies an operation to a column.
    pub fn map(&mut self, column: &str, op: &Arc<dyn Op>) -> Result<(), DataError> {
        let index = self.schema.index_of(column).ok_or_else(|| DataError::NoColumn {
            name: column.to_string(),
            have: self.schema.columns().iter().map(|column| column.name.clone()).collect(),
            undecoded: false,
        })?;
        let input = self.schema.columns()[index].clone();
        let refuse = |problem: &str| Err(DataError::Op { op: op.describe(), column: input.name.clone(), problem: problem.into() });
        if input.extent == Extent::UpTo && !op.takes_lengths() {
            return refuse("its rows vary in length; put fill before it");
        }
        if matches!(input.extent, Extent::Fixed | Extent::UpTo) {
            let output = op.output(&input)?;
            let in_place = op.in_place(&input);
            self.schema = self.schema.clone().with(index, output)?;
            let column = &mut self.maps[index];
            // Multiplying on the way out of the resize saves a pass over the row; the arithmetic is the same.
            if let (Some(item), Some(factor)) = (&mut column.item, op.factor())
                && column.steps.is_empty()
                && item.factor.is_none()
                && item.output.dtype == DType::F32
            {
                item.factor = Some(factor);
                return Ok(());
            }
            column.steps.push(MapStep { op: Arc::clone(op), input, in_place });
            if op.is_code() && self.cached_rows.is_none() && column.item.is_none() {
                self.code = Some(op.describe());
            }
            return Ok(());
        }
        let Some(step) = op.item() else {
            return match input.extent {
                Extent::Files => refuse("its rows are files; put decode before it"),
                _ => refuse("its images differ in size; put resize or a crop before it"),
            };
        };
        if input.extent == Extent::Files && !matches!(step, ItemStep::Decode(_)) {
            return refuse("its rows are files; put decode before it");
        }
        if self.cache.is_some() && op.is_random() {
            return refuse("it differs from epoch to epoch and stands before what is cached; put it after the resize");
        }
        let mut output = op.output(&input)?;
        self.items[index].push(step);
        self.cached_ops += &format!("{} → ", op.describe());
        if output.extent == Extent::Fixed {
            if self.cache.is_some() {
                output.dtype = DType::U8;
            }
            self.maps[index].item = DecodeRecipe::new(&self.items[index], output.clone());
        }
        self.schema = self.schema.clone().with(index, output)?;
        Ok(())
    }

    /// The same, with those that vary in length padded.
    pub fn check_padded(&self) -> Result<(), DataError> {
        self.check_fixed()?;
        match self.schema.columns().iter().find(|column| column.extent == Extent::UpTo) {
            Some(column) if self.settings.pad.is_none() => {
                let problem = "has rows that vary in length; batch it with padded_batch".into();
                Err(DataError::Schema { column: column.name.clone(), problem })
            }
            _ => Ok(()),
        }
    }

    /// The columns of a batch, all of whose rows are alike in size.
    pub fn check_fixed(&self) -> Result<(), DataError> {
        for column in self.schema.columns() {
            let missing = match column.extent {
                Extent::Fixed | Extent::UpTo => continue,
                Extent::Files => "decode and resize",
                Extent::Images => "resize or a crop",
            };
            let problem = format!("has rows that differ in size and cannot be batched; map it with {missing}");
            return Err(DataError::Schema { column: column.name.clone(), problem });
        }
        Ok(())
    }
}
