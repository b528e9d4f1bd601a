//! Checks and compiles the stages that are fused with reading rows: selection, read, maps, batches.

use super::order::{self, Consumed, IndexStep};
use super::settings::{Settings, common_multiple};
use super::{Dataset, Node};
use crate::cache::{Cache, CacheBypass, Fingerprint, unversioned};
use crate::decode::{self, DecodeRecipe, ItemSizes, ScanOptions};
use crate::memory::ALIGNMENT;
use crate::ops::{ItemStep, Op};
use crate::schema::Extent;
use crate::source::Source;
use crate::span::Span;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
use std::sync::{Arc, OnceLock};

/// Everything that a plan and a feed need to know.
pub(crate) struct Recipe {
    pub source: Arc<dyn Source>,
    /// Set if rows come from a stream.
    pub node: Option<Arc<Node>>,
    pub settings: Settings,
    pub index_steps: Vec<IndexStep>,
    /// Descriptions of the stages of the index steps.
    index_stages: Vec<String>,
    pub consumed: Consumed,
    /// Rows in one epoch.
    pub rows: u64,
    /// The rows of the source that can occur in an epoch.
    pub span: Span,
    /// The maps before the cache, if whole rows are cached.
    pub cached_rows: Option<CachedRows>,
    /// For each column of the source, the maps that run in every epoch.
    pub maps: Vec<ColumnRecipe>,
    /// The columns of a batch.
    pub schema: Schema,
    pub cache: Option<Cache>,
    /// Why the cache was disabled, if it was.
    pub bypass: Option<Arc<CacheBypass>>,
    /// For each column, the operations so far on rows of variable size.
    items: Vec<Vec<ItemStep>>,
    /// The cached operations, and the versions of the stages before the cache.
    cached_ops: String,
    /// User code among the cached operations without a version.
    code: Option<String>,
    versioned: bool,
    /// The sizes of images, once they are asked for.
    sizes: OnceLock<ItemSizes>,
}

/// The maps before the cache, and the columns of cached rows.
pub(crate) struct CachedRows {
    pub maps: Vec<ColumnRecipe>,
    pub schema: Schema,
}

/// A number of threads that a system can be expected to start; failure to start one may abort the process.
pub(crate) const MAX_THREADS: usize = 1024;

/// The name of the column that marks rows with errors; no user column can have it.
const ERROR_MARK: &str = "\0error";

/// The operations on one column.
#[derive(Default)]
pub(crate) struct ColumnRecipe {
    /// How a file is decoded to a row, if the source provides files.
    pub item: Option<DecodeRecipe>,
    /// The operations on blocks, after that.
    pub steps: Vec<MapStep>,
}

impl ColumnRecipe {
    /// Bytes per thread for blocks of this many rows.
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

    /// The memory of the choice of rows that are held out.
    pub fn split_bytes(&self) -> Bytes {
        self.index_steps.iter().map(|step| if let IndexStep::Part(part) = step { part.bytes() } else { Bytes::ZERO }).sum()
    }

    /// Describes the reorderings before the last shard. A saved position is valid only for the same order.
    pub fn order(&self) -> String {
        match &self.node {
            Some(node) => node.shard().map_or_else(|| self.source.describe(), |(_, _, input)| input.describe()),
            None => {
                let before = self.split_shard().0.len();
                if before == 0 { "file order".into() } else { self.index_stages[..before].join(" → ") }
            }
        }
    }

    /// Splits off the last index step if it is a shard: other shards of the same rows may resume from the position of
    /// these.
    fn split_shard(&self) -> (&[IndexStep], (u64, u64)) {
        match self.index_steps.split_last() {
            Some((&IndexStep::Shard { count, index }, before)) => (before, (count, index)),
            _ => (&self.index_steps, (1, 0)),
        }
    }

    /// The number of shards, and the index of this one.
    pub fn shard(&self) -> (u64, u64) {
        let of_node = self.node.as_ref().and_then(|node| node.shard().map(|(count, index, _)| (count, index)));
        of_node.unwrap_or_else(|| self.split_shard().1)
    }

    /// Rows in an epoch, summed over all shards; an impossible number for a stream of unknown length.
    pub fn rows_of_all_shards(&self) -> u64 {
        match &self.node {
            Some(node) => node.shard().map_or(self.rows, |(_, _, input)| input.size().unwrap_or(u64::MAX)),
            None => order::rows_after(self.source.len(), self.split_shard().0),
        }
    }

    /// Starts `epoch` after `rows` rows that were consumed with another number of shards.
    pub fn begin_after(&mut self, epoch: u64, rows: u64) {
        self.consumed = Some((epoch, rows));
        self.node = self.node.take().map(|node| Arc::new(node.after(self.consumed)));
    }

    pub fn batch(&self) -> Result<usize, DataError> {
        self.settings.batch.ok_or_else(|| DataError::Stage("the data set has no batch size; add .batch(n)".into()))
    }

    /// Rows that must stay in one slot: a common multiple of the batch size, the batch size of `mix`, and the unit of
    /// unordered batches. For a stream, also of the batches whose remainder is dropped, because a row to drop must
    /// not have been passed on.
    pub fn group(&self) -> Result<usize, DataError> {
        let mixed = self.settings.mix.as_ref().and_then(|(_, batch)| *batch);
        let dropped = self.settings.whole_batches().filter(|_| self.node.is_some());
        Ok([mixed, self.settings.unordered_group(), dropped].into_iter().flatten().fold(self.batch()?, common_multiple))
    }

    /// Whether there is work on rows, other than that of the stream, that several threads can do in parallel.
    pub fn is_mapped(&self) -> bool {
        self.decodes() || self.maps.iter().any(|map| !map.steps.is_empty())
    }

    /// Whether images are decoded here, from files or from compressed records.
    fn decodes(&self) -> bool {
        self.item().is_some() || self.node.as_ref().is_some_and(|node| node.stage.decodes().is_some())
    }

    /// Whether some of that work is slow.
    pub fn takes_long(&self) -> bool {
        let cached = self.cached_rows.iter().flat_map(|cached| &cached.maps);
        let mut steps = self.maps.iter().chain(cached).flat_map(|map| &map.steps);
        self.decodes() || steps.any(|step| step.op.takes_long())
    }

    /// How files are decoded, if the data set has any; of several columns, the first.
    pub fn item(&self) -> Option<&DecodeRecipe> {
        self.items().next().map(|(_, item)| item)
    }

    /// The columns of files, and how they are decoded.
    fn items(&self) -> impl Iterator<Item = (usize, &DecodeRecipe)> {
        self.maps.iter().enumerate().filter_map(|(column, map)| Some((column, map.item.as_ref()?)))
    }

    /// The sizes of the images that are decoded. Reads their headers, unless that was done for the same source before.
    pub fn sizes(&self) -> &ItemSizes {
        self.sizes.get_or_init(|| self.scanned(&ScanOptions::default()))
    }

    /// Like [`sizes`](Self::sizes), with these limits on reading headers.
    pub fn scanned(&self, options: &ScanOptions) -> ItemSizes {
        let unknown = ItemSizes { stated: self.settings.max_item, scan: None };
        let Some((source, scans)) = self.source.image_scans() else { return unknown };
        // Rows of a stream may refer to any row of its source.
        let rows = if self.node.is_none() { self.span.range() } else { 0..source.len() };
        let mut of_columns = self.items().map(|(column, item)| {
            let mut name = decode::scan_name(item, unknown.cap(), &rows);
            if column > 0 {
                name += &format!(" of column {column}");
            }
            scans.get_or_scan(&name, || decode::scan(source, column, rows.clone(), item, unknown.cap(), options))
        });
        let Some(first) = of_columns.next() else { return unknown };
        // A thread decodes one image at a time, of whichever column.
        let scan = of_columns.fold(first, |mut all, scan| {
            Arc::make_mut(&mut all).merge(&scan);
            all
        });
        ItemSizes { scan: Some(scan), ..unknown }
    }

    /// Bytes of a row as it comes from a stream.
    pub fn stream_row_bytes(&self) -> Bytes {
        self.source.schema().row_bytes() + Bytes(self.node.as_ref().map_or(0, |node| node.stage.reference_bytes()) as u64)
    }

    /// The fingerprint of cached rows.
    pub fn fingerprint(&self) -> Result<[u8; 16], DataError> {
        let mut hash = Fingerprint::new();
        hash.write(self.cached_ops.as_bytes());
        if let Some(cached) = &self.cached_rows {
            hash.write(format!("rows of {} as {}", self.source.schema(), cached.schema).as_bytes());
        }
        if self.span.part.is_some() {
            hash.write(self.index_stages[0].as_bytes());
        }
        [self.span.first, self.span.step].iter().for_each(|number| hash.write(&number.to_le_bytes()));
        let known = self.source.fingerprint(self.span.range(), &mut hash)?;
        // For images, only built-in operations are cached.
        match self.code.as_ref().filter(|_| self.cached_rows.is_some()) {
            None if known || self.versioned => Ok(hash.bytes()),
            code => Err(unversioned(&code.cloned().unwrap_or_else(|| self.source.describe()))),
        }
    }

    /// The cache and the bytes of a cached row, if rows are cached.
    pub fn cached_row(&self) -> Option<(&Cache, Bytes)> {
        let whole = self.cached_rows.as_ref().map(|cached| cached.schema.row_bytes());
        let row = whole.or_else(|| Some(self.item()?.output.row_bytes()))?;
        Some((self.cache.as_ref()?, row))
    }

    /// Why rows are not cached, here or upstream, if a cache was disabled.
    pub fn cache_bypass(&self) -> Option<String> {
        let here = self.bypass.as_ref().and_then(|bypass| bypass.reason());
        here.or_else(|| self.node.as_ref()?.cache_bypass())
    }
}

impl Dataset {
    /// Whether images are decoded and have a fixed size before the first random operation.
    fn can_be_cached(&self) -> bool {
        let is_file = |column: &Column| column.extent == Extent::Files;
        let mut all_files = self.source.schema().columns().iter().filter(|column| is_file(column));
        let Some(files) = all_files.next().filter(|_| all_files.next().is_none()) else { return false };
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

    /// Checks and compiles the stages.
    pub(crate) fn recipe(&self) -> Result<Recipe, DataError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let source = self.source.schema().columns();
        if source.is_empty() {
            return Err(DataError::Stage(format!("{} has no columns; give it at least one", self.source.describe())));
        }
        // Looked up first: it determines the dtype of cached rows.
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
            sizes: OnceLock::new(),
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
        if recipe.cache.is_some() && recipe.cached_rows.is_none() && recipe.items().count() > 1 {
            let problem = "rows with several images, such as an image and its mask, are not cached; leave the cache out";
            return Err(DataError::Stage(problem.into()));
        }
        Ok(recipe)
    }
}

impl Recipe {
    /// Adds a stage that selects or reorders rows by index.
    pub fn add_index_step(&mut self, step: IndexStep, stage: String) -> Result<(), DataError> {
        if let Some(batch) = self.settings.batch {
            let problem = format!("{stage} stands after batch({batch}) but counts rows; put it before the batch");
            return Err(DataError::Stage(problem));
        }
        self.index_steps.push(step);
        self.index_stages.push(stage);
        Ok(())
    }

    /// Checks the number of indexed rows at this stage.
    pub fn check_rows(&self, rows: u64, data: &Dataset) -> Result<(), DataError> {
        let there = order::rows_after(self.source.len(), &self.index_steps);
        if self.node.is_none() && there != rows {
            let problem = format!("{there} rows come where assert_cardinality({rows}) was said in {}", data.describe());
            return Err(DataError::Stage(problem));
        }
        Ok(())
    }

    /// Sets the version of user code before this stage.
    pub fn set_version(&mut self, version: &str) {
        if self.cached_rows.is_none() {
            self.cached_ops += &format!("version {version:?} → ");
            (self.code, self.versioned) = (None, true);
        }
    }

    /// Places the cache here: maps before it run once, those after it in every epoch. Images are cached as soon as
    /// they have a fixed size, wherever the stage is.
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
            // Scaling in the resize saves a pass over the row; the arithmetic is the same.
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

    /// Checks that all rows have the same size after padding.
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

    /// Checks that all rows have the same size.
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
