//! A data set's stages checked and put in the order they are carried out: rows chosen, read, mapped, batched.

use crate::cache::{self, Cache, Fingerprint, KeptRows, Note, Store};
use crate::dataset::{Dataset, Parallelism, Prefetch, Stage, common};
use crate::decode_room::DecodeRoom;
use crate::fault::Notes;
use crate::geometry::{self, Geometry};
use crate::item::{ItemCap, ItemKernel, ItemRecipe};
use crate::meter::Meter;
use crate::mix::Mix;
use crate::ops::{ItemStep, Op};
use crate::order::{self, Reorder, Span};
use crate::plan;
use crate::schema::Extent;
use crate::source::Source;
use crate::stream::Spec;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
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
    pub span: Span,
    /// What is done to rows before they are kept, where whole rows are.
    pub kept: Option<KeptRows>,
    /// For each column of the source, what is done to it each time.
    pub maps: Vec<ColumnRecipe>,
    /// The columns of a batch.
    pub schema: Schema,
    pub batch: Option<usize>,
    pub prefetch: Prefetch,
    pub parallelism: Parallelism,
    pub max_item: Option<Bytes>,
    pub cache: Option<Cache>,
    /// How rows of a batch are mixed, and how many that are if not those of a batch that is handed out.
    pub mix: Option<(Mix, Option<usize>)>,
    /// What rows of differing length are padded with, batch by batch.
    pub pad: Option<f32>,
    /// Whether batches come in the order of their rows.
    pub ordered: bool,
    /// If not, rows of so many stay together.
    pub unbroken: Option<usize>,
    /// Why the cache is not used, if so.
    pub note: Option<Arc<Note>>,
    /// The operations whose results are cached, and the versions of what is before the cache, in words.
    cached: String,
    /// Whether user code is among it, and its version was not said.
    code: Option<String>,
    versioned: bool,
}

/// So many that a system can be expected to begin them; one that it cannot begin may end the process.
pub(crate) const MOST_THREADS: usize = 1024;

/// What is said where a batch is to have no rows.
pub(crate) fn empty_batch() -> DataError {
    DataError::Stage("batch(0) holds nothing; ask for at least one row".into())
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

impl ColumnRecipe {
    /// What one thread holds for blocks of so many rows.
    pub fn bytes(&self, rows: usize) -> Bytes {
        let steps = self.steps.iter().map(|step| {
            let buffer = if step.in_place { Bytes::ZERO } else { plan::padded(step.input.row_bytes() * rows as u64) };
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
        !order::is_one_run(&self.reorders)
    }

    /// The reorderings before the last shard in words: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        match self.stream.as_deref().map(Spec::written) {
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
        match self.stream.as_deref().map(Spec::written) {
            Some(&Spec::Shard { count, index, .. }) => (count, index),
            _ => self.split_shard().1,
        }
    }

    /// Rows in an epoch of all shards together; of a stream that does not know, no number it could have.
    pub fn rows_of_all_shards(&self) -> u64 {
        match self.stream.as_deref().map(Spec::written) {
            Some(Spec::Shard { input, .. }) => input.size().unwrap_or(u64::MAX),
            Some(_) => self.rows,
            None => order::length(self.source.len(), self.split_shard().0.iter().copied()),
        }
    }

    /// An epoch was begun by another number of shards, which consumed so many of its rows.
    pub fn begin_after(&mut self, epoch: u64, rows: u64) {
        self.begun = Some((epoch, rows));
        self.stream = self.stream.take().map(|spec| Arc::new((*spec).clone().with_begun(self.begun)));
    }

    pub fn batch(&self) -> Result<usize, DataError> {
        self.batch.ok_or_else(|| DataError::Stage("the data set has no batch size; add .batch(n)".into()))
    }

    /// Whether rows that cannot be made are left out further on.
    pub fn is_tolerant(&self) -> bool {
        self.tolerate.as_ref().is_some_and(|notes| notes.left_out)
    }

    /// How many rows belong into one slot: whole batches as they are handed out, as they are mixed, and as they may overtake each other. What
    /// a stream drops at the end of an epoch must not have been handed on.
    pub fn together(&self) -> Result<usize, DataError> {
        let mixed = self.mix.as_ref().and_then(|(_, batch)| *batch);
        let unbroken = self.unbroken.filter(|_| !self.ordered);
        let dropped = self.whole_batches.filter(|_| self.stream.is_some());
        Ok([mixed, unbroken, dropped].into_iter().flatten().fold(self.batch()?, common))
    }

    /// Whether anything is done to rows, apart from what a stream does, that several threads can do side by side.
    pub fn is_mapped(&self) -> bool {
        self.decodes() || self.maps.iter().any(|map| !map.steps.is_empty())
    }

    /// Whether pictures are decoded here, out of files or of packed records.
    fn decodes(&self) -> bool {
        self.item().is_some() || matches!(self.stream.as_deref(), Some(Spec::Pictures(_)))
    }

    /// Whether some of that takes long.
    pub fn takes_long(&self) -> bool {
        let kept = self.kept.iter().flat_map(|kept| &kept.maps);
        let mut steps = self.maps.iter().chain(kept).flat_map(|map| &map.steps);
        self.decodes() || steps.any(|step| step.op.takes_long())
    }

    /// The way from files, if the data set has one.
    pub fn item(&self) -> Option<&ItemRecipe> {
        self.maps.iter().find_map(|column| column.item.as_ref())
    }

    /// Bytes of a row as it comes from a stream.
    pub fn stream_row_bytes(&self) -> Bytes {
        self.source.schema().row_bytes() + self.stream.as_ref().map_or(Bytes::ZERO, |spec| spec.reference_bytes())
    }

    /// What makes rows of files on one thread.
    pub fn item_kernel(&self, item: &ItemRecipe, geometry: Geometry, room: &Arc<DecodeRoom>, meter: &Arc<Meter>) -> ItemKernel {
        let cap = ItemCap { said: geometry::item_bound(self.max_item), here: geometry.max_item };
        ItemKernel::new(Arc::clone(&self.source), item.clone(), cap, Arc::clone(room), Arc::clone(meter))
    }

    /// Where files are decoded and kept, if there are any.
    pub fn decode_room(&self, geometry: Geometry) -> Result<Option<Arc<DecodeRoom>>, DataError> {
        if self.item().is_none() {
            return Ok(None);
        }
        let cache = geometry::kept_bytes(self, geometry.cache_rows);
        Ok(Some(Arc::new(DecodeRoom::new(geometry.decode, cache, geometry.workers, self.store(geometry)?))))
    }

    /// Where rows are kept, if they are.
    pub fn store(&self, geometry: Geometry) -> Result<Option<Arc<Store>>, DataError> {
        let Some((cache, row)) = self.kept_row() else { return Ok(None) };
        Ok(Some(Arc::new(Store::open(cache, self, row.get(), geometry.cache_rows)?)))
    }

    /// All that cached rows depend on.
    pub fn fingerprint(&self) -> Result<[u8; 16], DataError> {
        let mut hash = Fingerprint::new();
        hash.write(self.cached.as_bytes());
        if let Some(kept) = &self.kept {
            hash.write(format!("rows of {} as {}", self.source.schema(), kept.schema).as_bytes());
        }
        [self.span.first, self.span.step].iter().for_each(|number| hash.write(&number.to_le_bytes()));
        let known = self.source.fingerprint(self.span.range(), &mut hash)?;
        // Of pictures nothing is kept that user code has made.
        match self.code.as_ref().filter(|_| self.kept.is_some()) {
            None if known || self.versioned => Ok(hash.bytes()),
            code => Err(cache::unknown(&code.cloned().unwrap_or_else(|| self.source.describe()))),
        }
    }

    /// What is kept of each row and where, if it is.
    pub fn kept_row(&self) -> Option<(&Cache, Bytes)> {
        let row = self.kept.as_ref().map(|kept| kept.schema.row_bytes()).or_else(|| Some(self.item()?.output.row_bytes()))?;
        Some((self.cache.as_ref()?, row))
    }

    /// Why rows are not kept, here or before, if so.
    pub fn given_up(&self) -> Option<String> {
        let here = self.note.as_ref().and_then(|note| note.said());
        here.or_else(|| self.stream.as_ref()?.given_up())
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
            span: order::span(self.source.len(), &[]),
            kept: None,
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
            unbroken: None,
            note: None,
            cached: String::new(),
            code: None,
            versioned: false,
        };
        if source.is_empty() {
            return Err(DataError::Stage(format!("{} has no columns; give it at least one", self.source.describe())));
        }
        // Known first: it decides what type rows have when they are cached.
        let mut caches = self.stages.iter().filter_map(|stage| match stage {
            Stage::Cache(cache, note) => Some((cache.clone(), Arc::clone(note))),
            _ => None,
        });
        (recipe.cache, recipe.note) = caches.next().unzip();
        if caches.next().is_some() {
            return Err(DataError::Stage("rows are kept once; leave one cache out".into()));
        }
        if recipe.cache == Some(Cache::Auto) {
            recipe.cache = self.can_be_cached().then_some(Cache::Memory);
        }
        let files = source.iter().any(|column| column.extent == Extent::Files);
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
                        undecoded: false,
                    })?;
                    for op in ops {
                        recipe.map(index, op, &mut items[index])?;
                    }
                }
                Stage::Batch(0) => return Err(empty_batch()),
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
                Stage::Parallelism(Parallelism::Threads(threads)) if *threads > MOST_THREADS => {
                    let problem = format!("parallelism({threads}) is more threads than do any good; ask for at most {MOST_THREADS}");
                    return Err(DataError::Stage(problem));
                }
                Stage::Parallelism(parallelism) => recipe.parallelism = *parallelism,
                Stage::MaxItem(bytes) => recipe.max_item = Some(*bytes),
                Stage::Mix(..) if recipe.mix.is_some() => {
                    return Err(DataError::Stage("rows of a batch are mixed once; leave one of mixup and cutmix out".into()));
                }
                Stage::Mix(mix, batch) => recipe.mix = Some((mix.clone(), *batch)),
                Stage::Pad(value) => recipe.pad = Some(*value),
                Stage::Deterministic(ordered, unbroken) => (recipe.ordered, recipe.unbroken) = (*ordered, *unbroken),
                // Pictures are kept as soon as they are of one size, wherever it is said.
                Stage::Cache(..) if recipe.cache.is_some() && !files => recipe.keep_rows()?,
                Stage::Cache(..) | Stage::DropRemainder(_) => {}
                Stage::Version(_) if recipe.kept.is_some() => {}
                Stage::Version(version) => {
                    recipe.cached += &format!("version {version:?} → ");
                    (recipe.code, recipe.versioned) = (None, true);
                }
                Stage::Tolerate(notes) => recipe.tolerate = Some(Arc::clone(notes)),
                Stage::Cardinality(rows) => {
                    let there = order::length(self.source.len(), recipe.reorders.iter().copied());
                    if self.stream.is_none() && there != *rows {
                        let problem = format!("{there} rows come where assert_cardinality({rows}) was said in {}", self.describe());
                        return Err(DataError::Stage(problem));
                    }
                    recipe.cardinality = Some(*rows);
                }
            }
        }
        if recipe.tolerate.is_some() {
            let mut columns = recipe.schema.columns().to_vec();
            columns.push(Column::new(MARK, DType::U8, []));
            recipe.schema = Schema::new(columns)?;
        }
        if let Some((mix, batch)) = &recipe.mix {
            mix.mixer(&recipe.schema, batch.or(recipe.batch).unwrap_or(1))?;
        }
        recipe.span = order::span(self.source.len(), &recipe.reorders);
        Ok(recipe)
    }
}

impl Recipe {
    /// Whole rows are kept as they are now: what was done so far is done once, what follows each time.
    fn keep_rows(&mut self) -> Result<(), DataError> {
        self.check_fixed()?;
        let each_time = self.maps.iter().map(|_| ColumnRecipe::default()).collect();
        let maps = std::mem::replace(&mut self.maps, each_time);
        for (map, column) in maps.iter().zip(self.schema.columns()) {
            for step in &map.steps {
                if step.op.is_random() {
                    let problem = "it differs from epoch to epoch and stands before the cache; put it after".into();
                    return Err(DataError::Op { op: step.op.describe(), column: column.name.clone(), problem });
                }
                self.cached += &format!("{}: {} → ", column.name, step.op.describe());
            }
        }
        self.kept = Some(KeptRows { maps, schema: self.schema.clone() });
        Ok(())
    }

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
            if op.is_code() && self.kept.is_none() && column.item.is_none() {
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
