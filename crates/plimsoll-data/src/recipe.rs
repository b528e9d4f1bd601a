//! A data set's stages checked and put in the order they are carried out: rows chosen, read, mapped, batched.

use crate::cache::{Cache, Fingerprint, Store};
use crate::dataset::{Dataset, Parallelism, Prefetch, Stage};
use crate::decode_room::DecodeRoom;
use crate::geometry::{self, Geometry};
use crate::item::ItemRecipe;
use crate::mix::Mix;
use crate::ops::{ItemStep, Op};
use crate::order::{self, Reorder};
use crate::schema::Extent;
use crate::source::Source;
use crate::stream::{Notes, Spec};
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// Everything a plan and a feed need to know.
pub(crate) struct Recipe {
    pub source: Arc<dyn Source>,
    /// Where rows come one after the other instead.
    pub stream: Option<Arc<Spec>>,
    /// The rows an epoch of it has to have.
    pub cardinality: Option<u64>,
    /// Every batch has this many rows.
    pub whole_batches: Option<usize>,
    /// Who is told of rows that cannot be made; they are marked in a last column.
    pub tolerate: Option<Arc<Notes>>,
    pub reorders: Vec<Reorder>,
    /// An epoch, and how many of its rows were consumed before the last shard.
    pub begun: Option<(u64, u64)>,
    /// Rows in one epoch.
    pub rows: u64,
    /// The rows of the source that an epoch can have.
    pub span: Range<u64>,
    /// For each column of the source, what is done to it.
    pub maps: Vec<ColumnRecipe>,
    /// The columns of a batch.
    pub schema: Schema,
    pub batch: Option<usize>,
    pub prefetch: Prefetch,
    pub parallelism: Parallelism,
    pub max_item: Option<Bytes>,
    pub cache: Option<Cache>,
    /// How rows of a batch are mixed.
    pub mix: Option<Mix>,
    /// What rows of differing length are padded with, batch by batch.
    pub pad: Option<f32>,
    /// Whether batches come in the order of their rows.
    pub ordered: bool,
    /// The operations whose results are cached, in words.
    cached: String,
}

/// The column that says which rows could not be made; no user's column is called so.
const MARK: &str = "\0could not be made";

/// The way of one column.
#[derive(Default)]
pub(crate) struct ColumnRecipe {
    /// From a file to a row of a block, where the source gives files.
    pub item: Option<ItemRecipe>,
    /// Then, on blocks.
    pub steps: Vec<MapStep>,
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
        !order::is_one_run(&self.reorders)
    }

    /// The reorderings before the last shard in words: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        match self.stream.as_deref() {
            Some(Spec::Shard { input, .. }) => return input.describe(),
            Some(_) => return self.source.describe(),
            None => {}
        }
        let (before, _) = self.split_shard();
        let steps: Vec<String> = before.iter().map(Reorder::to_string).collect();
        if steps.is_empty() { "file order".into() } else { steps.join(" → ") }
    }

    /// The last reordering, if it is a shard, apart from those before it: other shards of the same rows may go on where these stopped.
    fn split_shard(&self) -> (&[Reorder], (u64, u64)) {
        match self.reorders.split_last() {
            Some((&Reorder::Shard { count, index }, before)) => (before, (count, index)),
            _ => (&self.reorders, (1, 0)),
        }
    }

    /// How many shards there are, and which this is.
    pub fn shard(&self) -> (u64, u64) {
        match self.stream.as_deref() {
            Some(&Spec::Shard { count, index, .. }) => (count, index),
            _ => self.split_shard().1,
        }
    }

    /// Rows in an epoch of all shards together; of a stream that does not know, no number it could have.
    pub fn rows_of_all_shards(&self) -> u64 {
        match self.stream.as_deref() {
            Some(Spec::Shard { input, .. }) => input.size().unwrap_or(u64::MAX),
            Some(_) => self.rows,
            None => order::length(self.source.len(), self.split_shard().0.iter().copied()),
        }
    }

    /// An epoch was begun by another number of shards, which consumed so many of its rows.
    pub fn begin_after(&mut self, epoch: u64, rows: u64) {
        self.begun = Some((epoch, rows));
        if let Some(Spec::Shard { input, count, index, .. }) = self.stream.as_deref() {
            self.stream = Some(Arc::new(Spec::Shard { input: input.clone(), count: *count, index: *index, begun: self.begun }));
        }
    }

    pub fn batch(&self) -> Result<usize, DataError> {
        self.batch.ok_or_else(|| DataError::Stage("the data set has no batch size; add .batch(n)".into()))
    }

    /// The way from files, if the data set has one.
    pub fn item(&self) -> Option<&ItemRecipe> {
        self.maps.iter().find_map(|column| column.item.as_ref())
    }

    /// Where files are decoded and kept, if there are any.
    pub fn decode_room(&self, geometry: Geometry) -> Result<Option<Arc<DecodeRoom>>, DataError> {
        let Some(item) = self.item() else { return Ok(None) };
        let rows = geometry.cache_rows;
        let store = self.cache.as_ref().map(|cache| Store::open(cache, self, item.output.row_bytes().get(), rows)).transpose()?;
        let cache = geometry::kept_bytes(self, rows);
        Ok(Some(Arc::new(DecodeRoom::new(geometry.decode, cache, geometry.workers, store.map(Arc::new)))))
    }

    /// All that cached rows depend on.
    pub fn fingerprint(&self) -> Result<[u8; 16], DataError> {
        let mut hash = Fingerprint::new();
        // Another version may decode differently.
        hash.write(env!("CARGO_PKG_VERSION").as_bytes());
        hash.write(self.cached.as_bytes());
        hash.write(&self.span.start.to_le_bytes());
        self.source.fingerprint(self.span.clone(), &mut hash)?;
        Ok(hash.bytes())
    }
}

impl Dataset {
    /// Whether something is decoded, and is the same in each epoch until it is of one size.
    fn can_be_cached(&self) -> bool {
        let is_file = |column: &Column| column.extent == Extent::Files;
        let Some(files) = self.source.schema().columns().iter().find(|column| is_file(column)) else { return false };
        let ops = self.stages.iter().filter_map(|stage| match stage {
            Stage::Map { column, ops } if *column == files.name => Some(ops),
            _ => None,
        });
        let mut column = files.clone();
        for op in ops.flatten() {
            match op.output(&column) {
                Ok(_) if column.extent != Extent::Fixed && op.is_random() => return false,
                Ok(output) => column = output,
                // Told when the stages are looked at.
                Err(_) => return false,
            }
        }
        column.extent == Extent::Fixed
    }

    pub(crate) fn recipe(&self) -> Result<Recipe, DataError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let source = self.source.schema().columns();
        let mut recipe = Recipe {
            source: Arc::clone(&self.source),
            stream: self.stream.clone(),
            cardinality: None,
            whole_batches: self.whole_batches(),
            tolerate: None,
            reorders: Vec::new(),
            begun: None,
            rows: if self.stream.is_some() { self.size().unwrap_or(u64::MAX) } else { self.len() },
            span: 0..self.source.len(),
            maps: source.iter().map(|_| ColumnRecipe::default()).collect(),
            schema: self.source.schema().clone(),
            batch: None,
            prefetch: Prefetch::Auto,
            parallelism: Parallelism::Auto,
            max_item: None,
            cache: None,
            mix: None,
            pad: None,
            ordered: true,
            cached: String::new(),
        };
        if source.is_empty() {
            return Err(DataError::Stage(format!("{} has no columns; give it at least one", self.source.describe())));
        }
        // Known first: it decides what type rows have when they are cached.
        recipe.cache = self.stages.iter().find_map(|stage| match stage {
            Stage::Cache(cache) => Some(cache.clone()),
            _ => None,
        });
        if recipe.cache == Some(Cache::Auto) {
            recipe.cache = self.can_be_cached().then_some(Cache::Memory);
        }
        let mut items: Vec<Vec<ItemStep>> = vec![Vec::new(); source.len()];
        for stage in &self.stages {
            match stage {
                Stage::Reorder(reorder) => {
                    if let Some(batch) = recipe.batch {
                        let problem = format!("{reorder} stands after batch({batch}) but counts rows; put it before the batch");
                        return Err(DataError::Stage(problem));
                    }
                    recipe.reorders.push(*reorder);
                }
                Stage::Map { column: name, ops } => {
                    let index = recipe.schema.index_of(name).ok_or_else(|| DataError::NoColumn {
                        name: name.clone(),
                        have: recipe.schema.columns().iter().map(|column| column.name.clone()).collect(),
                    })?;
                    for op in ops {
                        recipe.map(index, op, &mut items[index])?;
                    }
                }
                Stage::Batch(0) => return Err(DataError::Stage("batch(0) holds nothing; ask for at least one row".into())),
                Stage::Batch(rows) => {
                    if let Some(batch) = recipe.batch {
                        let problem = format!("batch({rows}) stands after batch({batch}); a data set is batched once");
                        return Err(DataError::Stage(problem));
                    }
                    recipe.batch = Some(*rows);
                }
                Stage::Prefetch(prefetch) => recipe.prefetch = *prefetch,
                Stage::Parallelism(Parallelism::Threads(0)) => {
                    return Err(DataError::Stage("parallelism(0) makes no rows; ask for at least one thread".into()));
                }
                Stage::Parallelism(parallelism) => recipe.parallelism = *parallelism,
                Stage::MaxItem(bytes) => recipe.max_item = Some(*bytes),
                Stage::Mix(_) if recipe.mix.is_some() => {
                    return Err(DataError::Stage("rows of a batch are mixed once; leave one of mixup and cutmix out".into()));
                }
                Stage::Mix(mix) => recipe.mix = Some(mix.clone()),
                Stage::Pad(value) => recipe.pad = Some(*value),
                Stage::Deterministic(ordered) => recipe.ordered = *ordered,
                Stage::Cache(_) | Stage::DropRemainder(_) => {}
                Stage::Tolerate(notes) => recipe.tolerate = Some(Arc::clone(notes)),
                Stage::Cardinality(rows) => recipe.cardinality = Some(*rows),
            }
        }
        if recipe.tolerate.is_some() {
            let mut columns = recipe.schema.columns().to_vec();
            columns.push(Column::new(MARK, DType::U8, []));
            recipe.schema = Schema::new(columns)?;
        }
        if let Some(mix) = &recipe.mix {
            mix.mixer(&recipe.schema, recipe.batch.unwrap_or(1))?;
        }
        recipe.span = order::span(self.source.len(), &recipe.reorders);
        if recipe.cache.is_some() && recipe.item().is_none() {
            let problem = "cache keeps images that were decoded, and nothing is decoded here; leave it out";
            return Err(DataError::Stage(problem.into()));
        }
        Ok(recipe)
    }
}

impl Recipe {
    /// Adds an operation to a column; `items` are those before it that work on rows of differing size.
    fn map(&mut self, index: usize, op: &Arc<dyn Op>, items: &mut Vec<ItemStep>) -> Result<(), DataError> {
        let input = self.schema.columns()[index].clone();
        let refuse = |problem: &str| Err(DataError::Op { op: op.describe(), column: input.name.clone(), problem: problem.into() });
        if input.extent == Extent::UpTo && !op.takes_lengths() {
            return refuse("its rows differ in length; put fill before it");
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
        items.push(step);
        self.cached += &format!("{} → ", op.describe());
        if output.extent == Extent::Fixed {
            if self.cache.is_some() {
                output.dtype = DType::U8;
            }
            self.maps[index].item = ItemRecipe::new(items, output.clone());
        }
        self.schema = self.schema.clone().with(index, output)?;
        Ok(())
    }

    /// The same, with those that differ in length padded.
    pub fn check_padded(&self) -> Result<(), DataError> {
        self.check_fixed()?;
        match self.schema.columns().iter().find(|column| column.extent == Extent::UpTo) {
            Some(column) if self.pad.is_none() => {
                let problem = "has rows that differ in length; batch it with padded_batch".into();
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
