//! Rows one after the other, where no arithmetic says which row stands where: what user code keeps, makes or puts together.
//!
//! A stream's rows are whole rows of bytes, each with its columns one after the other. Threads take turns to pull them in blocks, so their
//! order is always the same, and map them side by side into the slots of the ring; what is done to rows before a stage is done by the
//! threads of an inner feed, where it takes long. The position of a
//! stream is how many rows have come, and resuming passes over that many. A row that cannot be made is a [fault] in its place.

mod cache;
mod choose;
mod columns;
mod cost;
mod fed;
mod flow;
mod ignore;
mod input;
mod join;
mod promised;
mod reshape;
mod shared;
mod shuffle;
mod station;
mod work;

pub(crate) use flow::Flow;
pub(crate) use ignore::Ignored;
pub(crate) use input::Held;
pub(crate) use shared::SharedWork;
pub(crate) use shuffle::Buckets;
pub(crate) use station::Station;
pub(crate) use work::StreamWork;

use crate::cache::{Cache, Note};
use crate::dataset::{Dataset, Stage};
use crate::fault::Fault;
use crate::source::{Pictures, REFERENCE_BYTES, SequentialSource, without_reference};
use crate::{Column, Condition, DataError, Row, Schema};
use input::Input;
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;

/// Rows that come one after the other.
pub(crate) trait Stream: Send {
    /// The rows that follow are those of this epoch, from its first on.
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;

    /// Writes whole rows to `out` and says how many; none only if the epoch is over, and then each time it is asked. A fault comes alone: the
    /// rows before it have been written, and unless it is the end, those after it are when it is asked again.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault>;

    /// No more rows are wanted until the next epoch is begun: threads and what they hold are given back.
    fn close(&mut self) {}
}

/// How much may be taken for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// As little as works.
    pub lean: bool,
    /// The limit of the whole pipeline.
    pub limit: Option<Bytes>,
    /// Where rows are to be made ahead by a thread of their own: how many such threads share the limit.
    pub ahead: usize,
    /// Whether rows that cannot be made are left out further on, so that those after them are wanted.
    pub tolerant: bool,
    /// What each cache in memory may hold; anything where there is no limit.
    pub keep: Option<Bytes>,
    /// What decoding a picture may take, where the whole pipeline has decided that and not the part that this is the room of.
    pub item: Option<Bytes>,
}

impl Room {
    /// As little as works, and nothing kept.
    pub const LEAST: Room = Room { lean: true, limit: None, ahead: 0, tolerant: false, keep: Some(Bytes::ZERO), item: None };

    /// Whether a cache may hold so much.
    pub fn keeps(&self, bytes: Bytes) -> bool {
        self.keep.is_none_or(|keep| bytes <= keep)
    }
}

/// What is asked about a row, by user code or by a condition.
#[derive(Clone)]
pub(crate) struct Predicate {
    keeps: Arc<dyn Fn(&Row<'_>) -> bool + Send + Sync>,
    /// What it is, in brackets; user code cannot be told.
    words: String,
}

impl Predicate {
    pub fn new(keeps: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Predicate {
        Predicate { keeps: Arc::new(keeps), words: String::new() }
    }

    /// Whether nobody can tell what it is.
    pub fn is_code(&self) -> bool {
        self.words.is_empty()
    }

    fn keeps(&self, row: &Row<'_>) -> bool {
        (self.keeps)(row)
    }
}

impl From<Condition> for Predicate {
    fn from(condition: Condition) -> Predicate {
        let words = format!("({condition})");
        Predicate { keeps: Arc::new(move |row: &Row<'_>| condition.holds(row)), words }
    }
}

/// What user code makes of a row.
pub(crate) type Expand = Arc<dyn Fn(&Row<'_>) -> Result<Dataset, DataError> + Send + Sync>;

/// An epoch, and how many of its rows another number of shards has consumed.
type Begun = Option<(u64, u64)>;

/// How a stream is made.
#[derive(Clone)]
pub(crate) enum Spec {
    Source(SequentialSource),
    Pictures(Pictures),
    /// Rows that end with the number of one with files, to be opened behind it: columns of theirs, each with its place.
    Files {
        input: Dataset,
        files: Vec<(usize, Column)>,
    },
    Filter {
        input: Dataset,
        keep: Predicate,
    },
    TakeWhile {
        input: Dataset,
        keep: Predicate,
    },
    Take {
        input: Dataset,
        rows: u64,
    },
    Skip {
        input: Dataset,
        rows: u64,
    },
    Shard {
        input: Dataset,
        count: u64,
        index: u64,
        begun: Begun,
    },
    Repeat {
        input: Dataset,
        times: u64,
    },
    Shuffle {
        input: Dataset,
        seed: u64,
        bytes: Bytes,
    },
    IgnoreErrors {
        input: Dataset,
        ignored: Arc<Ignored>,
    },
    Enumerate {
        input: Dataset,
        column: String,
    },
    Zip {
        inputs: Vec<Dataset>,
    },
    Concatenate {
        inputs: Vec<Dataset>,
    },
    Sample {
        inputs: Vec<Dataset>,
        weights: Vec<f64>,
        seed: u64,
    },
    Interleave {
        inputs: Vec<Dataset>,
        cycle: usize,
        block: usize,
        parallel: bool,
    },
    FlatMap {
        input: Dataset,
        schema: Schema,
        limit: Bytes,
        expand: Expand,
    },
    Window {
        input: Dataset,
        size: usize,
        shift: usize,
        stride: usize,
    },
    Unbatch {
        input: Dataset,
    },
    Buckets {
        input: Dataset,
        buckets: shuffle::Buckets,
    },
    Cache {
        input: Dataset,
        cache: Cache,
        note: Arc<Note>,
    },
}

impl Spec {
    /// The data sets it reads.
    pub fn inputs(&self) -> &[Dataset] {
        match self {
            Spec::Source(_) | Spec::Pictures(_) => &[],
            Spec::Files { input, .. }
            | Spec::Filter { input, .. }
            | Spec::TakeWhile { input, .. }
            | Spec::Take { input, .. }
            | Spec::Skip { input, .. }
            | Spec::Shard { input, .. }
            | Spec::Repeat { input, .. }
            | Spec::Shuffle { input, .. }
            | Spec::IgnoreErrors { input, .. }
            | Spec::Enumerate { input, .. }
            | Spec::FlatMap { input, .. }
            | Spec::Window { input, .. }
            | Spec::Buckets { input, .. }
            | Spec::Cache { input, .. }
            | Spec::Unbatch { input } => std::slice::from_ref(input),
            Spec::Zip { inputs } | Spec::Concatenate { inputs } | Spec::Sample { inputs, .. } | Spec::Interleave { inputs, .. } => inputs,
        }
    }

    /// The same, to be changed.
    pub fn inputs_mut(&mut self) -> &mut [Dataset] {
        match self {
            Spec::Source(_) | Spec::Pictures(_) => &mut [],
            Spec::Files { input, .. }
            | Spec::Filter { input, .. }
            | Spec::TakeWhile { input, .. }
            | Spec::Take { input, .. }
            | Spec::Skip { input, .. }
            | Spec::Shard { input, .. }
            | Spec::Repeat { input, .. }
            | Spec::Shuffle { input, .. }
            | Spec::IgnoreErrors { input, .. }
            | Spec::Enumerate { input, .. }
            | Spec::FlatMap { input, .. }
            | Spec::Window { input, .. }
            | Spec::Buckets { input, .. }
            | Spec::Cache { input, .. }
            | Spec::Unbatch { input } => std::slice::from_mut(input),
            Spec::Zip { inputs } | Spec::Concatenate { inputs } | Spec::Sample { inputs, .. } | Spec::Interleave { inputs, .. } => inputs,
        }
    }

    /// What stands behind the columns of each of its rows: the number of a row with files, or nothing.
    pub fn reference_bytes(&self) -> Bytes {
        if let Spec::Files { .. } = self { Bytes(REFERENCE_BYTES as u64) } else { Bytes::ZERO }
    }

    /// The last stage that somebody wrote.
    pub fn written(&self) -> &Spec {
        match self {
            Spec::Files { input, .. } if input.stages.is_empty() => input.stream.as_deref().map_or(self, Spec::written),
            _ => self,
        }
    }

    /// The same, if it is a shard, where others have consumed some of an epoch.
    pub fn with_begun(mut self, others: Begun) -> Spec {
        match &mut self {
            Spec::Shard { begun, .. } => *begun = others,
            Spec::Files { input, .. } if input.stages.is_empty() => {
                input.stream = input.stream.take().map(|spec| Arc::new((*spec).clone().with_begun(others)));
            }
            _ => {}
        }
        self
    }

    /// The most rows an epoch can have.
    pub fn at_most(&self) -> u64 {
        let of = |at: usize| self.inputs()[at].len();
        let known = self.size(false);
        known.unwrap_or_else(|| match self {
            Spec::Source(_) | Spec::Pictures(_) | Spec::FlatMap { .. } => u64::MAX,
            Spec::Take { rows, .. } => of(0).min(*rows),
            Spec::Repeat { times, .. } => of(0).saturating_mul(*times),
            Spec::Zip { inputs } => inputs.iter().map(Dataset::len).min().unwrap_or(0),
            Spec::Concatenate { inputs } | Spec::Sample { inputs, .. } | Spec::Interleave { inputs, .. } => {
                inputs.iter().map(Dataset::len).fold(0, u64::saturating_add)
            }
            Spec::Unbatch { input } => {
                let each = input.output_schema().ok().and_then(|schema| schema.columns().first()?.shape.first().copied());
                of(0).saturating_mul(each.unwrap_or(1) as u64)
            }
            _ => of(0),
        })
    }

    /// Rows in one epoch, where that is known beforehand; with what cannot be read counted, or not known because of it.
    pub fn size(&self, readable: bool) -> Option<u64> {
        let size = |input: &Dataset| if readable { input.size_if_readable() } else { input.size() };
        let of = |at: usize| size(&self.inputs()[at]);
        match self {
            Spec::IgnoreErrors { .. } if readable => of(0),
            Spec::Files { .. } => of(0),
            Spec::Source(_)
            | Spec::Pictures(_)
            | Spec::Filter { .. }
            | Spec::TakeWhile { .. }
            | Spec::IgnoreErrors { .. }
            | Spec::FlatMap { .. } => None,
            Spec::Take { rows, .. } => of(0).map(|all| all.min(*rows)),
            Spec::Skip { rows, .. } => of(0).map(|all| all.saturating_sub(*rows)),
            Spec::Shard { count, index, .. } => of(0).map(|all| all.saturating_sub(*index).div_ceil((*count).max(1))),
            Spec::Repeat { times, .. } => of(0).map(|all| all.saturating_mul(*times)),
            Spec::Shuffle { .. } | Spec::Enumerate { .. } | Spec::Buckets { .. } | Spec::Cache { .. } => of(0),
            Spec::Zip { inputs } => inputs.iter().map(size).collect::<Option<Vec<_>>>()?.into_iter().min(),
            Spec::Concatenate { inputs } | Spec::Sample { inputs, .. } | Spec::Interleave { inputs, .. } => {
                inputs.iter().map(size).try_fold(0, |all: u64, rows| Some(all.saturating_add(rows?)))
            }
            Spec::Window { size, shift, stride, .. } => {
                let span = reshape::span(*size, *stride) as u64;
                of(0).map(|all| if all < span { 0 } else { (all - span) / *shift as u64 + 1 })
            }
            Spec::Unbatch { input } => {
                let each = input.output_schema().ok()?.columns().first()?.shape.first().copied()?;
                of(0).map(|all| all.saturating_mul(each as u64))
            }
        }
    }

    pub fn name(&self) -> String {
        match self {
            Spec::Source(source) => source.name.clone(),
            Spec::Pictures(pictures) => pictures.name(),
            Spec::Files { .. } => "files".into(),
            Spec::Filter { keep, .. } => format!("filter{}", keep.words),
            Spec::TakeWhile { keep, .. } => format!("take_while{}", keep.words),
            Spec::Take { rows, .. } => format!("take({rows})"),
            Spec::Skip { rows, .. } => format!("skip({rows})"),
            Spec::Shard { count, index, .. } => format!("shard({count}, {index})"),
            Spec::Repeat { times, .. } => format!("repeat({times})"),
            Spec::Shuffle { seed, bytes, .. } => format!("shuffle(seed {seed}, {bytes})"),
            Spec::IgnoreErrors { ignored, .. } => format!("ignore_errors({})", ignored.cap()),
            Spec::Enumerate { column, .. } => format!("enumerate({column})"),
            Spec::Zip { .. } => "zip".into(),
            Spec::Concatenate { .. } => "concatenate".into(),
            Spec::Sample { weights, seed, .. } => {
                format!("sample_from({}, seed {seed})", weights.iter().map(f64::to_string).collect::<Vec<_>>().join(" : "))
            }
            Spec::Interleave { cycle, block, parallel: true, .. } => format!("interleave_parallel({cycle}, {block})"),
            Spec::Interleave { cycle, block, .. } => format!("interleave({cycle}, {block})"),
            Spec::FlatMap { .. } => "flat_map".into(),
            Spec::Window { size, shift, stride, .. } => format!("window({size}, {shift}, {stride})"),
            Spec::Unbatch { .. } => "unbatch".into(),
            Spec::Buckets { buckets, .. } => buckets.to_string(),
            // Where it is kept makes no difference to rows, nor to a position among them.
            Spec::Cache { .. } => "cache".into(),
        }
    }

    fn describe(&self) -> String {
        match self.inputs() {
            // Nobody wrote it.
            [input] if matches!(self, Spec::Files { .. }) => input.describe(),
            [] => self.name(),
            [input] => format!("{} → {}", input.describe(), self.name()),
            inputs => format!("{}({})", self.name(), inputs.iter().map(Dataset::describe).collect::<Vec<_>>().join(" | ")),
        }
    }

    /// Which rows come in which order, wherever they lie: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        let of = |input: &Dataset| {
            let first = input.stream.as_ref().map_or("file order".to_string(), |spec| spec.order());
            let changes = |stage: &&Stage| matches!(stage, Stage::Reorder(_) | Stage::Map { .. });
            input.stages.iter().filter(changes).fold(first, |order, stage| format!("{order} → {stage}"))
        };
        match self.inputs() {
            [] => "file order".into(),
            [input] if matches!(self, Spec::Files { .. }) => of(input),
            [input] => format!("{} → {}", of(input), self.name()),
            inputs => format!("{}({})", self.name(), inputs.iter().map(of).collect::<Vec<_>>().join(" | ")),
        }
    }

    /// The room its inputs have.
    fn room(&self, room: Room) -> Room {
        let tolerant = room.tolerant || matches!(self, Spec::IgnoreErrors { .. });
        Room { ahead: self.in_turns().unwrap_or(0), tolerant, ..room }
    }

    /// The stream itself; what it holds has been reserved, but for what inner feeds reserve themselves.
    pub fn open(&self, room: Room, ledger: &Ledger, station: &Station) -> Result<Box<dyn Stream>, DataError> {
        let room = self.room(room);
        let input = |index: usize| Input::open(&self.inputs()[index], room, ledger, station.inlet(index));
        let one = || input(0);
        let all = || (0..self.inputs().len()).map(input).collect::<Result<Vec<_>, _>>();
        let schema = self.schema()?;
        let row = (schema.row_bytes() + self.reference_bytes()).get();
        Ok(match self {
            Spec::Source(source) => input::row_by_row(row, (source.open)()),
            Spec::Pictures(pictures) => input::row_by_row(row, pictures.open(room)?),
            Spec::Files { .. } => input::row_by_row(row, choose::Take::new(one()?, u64::MAX)),
            Spec::Filter { keep, .. } => input::row_by_row(row, choose::Filter::new(one()?, without_reference(schema), keep)),
            Spec::TakeWhile { keep, .. } => input::row_by_row(row, choose::TakeWhile::new(one()?, without_reference(schema), keep)),
            Spec::Take { rows, .. } => input::row_by_row(row, choose::Take::new(one()?, *rows)),
            Spec::Skip { rows, .. } => input::row_by_row(row, choose::Every::new(one()?, *rows, 1, None)),
            Spec::Shard { count, index, begun, .. } => input::row_by_row(row, choose::Every::new(one()?, *index, *count, *begun)),
            Spec::Repeat { times, .. } => input::row_by_row(row, choose::Repeat::new(one()?, *times)),
            Spec::Shuffle { seed, bytes, .. } => {
                let rows = shuffle::rows(*bytes, Bytes(row as u64), &self.inputs()[0]);
                input::row_by_row(row, shuffle::Shuffled::new(one()?, *seed, rows as usize, row))
            }
            Spec::IgnoreErrors { ignored, .. } => input::row_by_row(row, ignore::Ignore::new(one()?, ignored)),
            Spec::Enumerate { .. } => input::row_by_row(row, choose::Enumerate::new(one()?)),
            Spec::Zip { .. } => input::row_by_row(row, join::Zip::new(all()?, room.tolerant)),
            Spec::Concatenate { .. } => input::row_by_row(row, join::Concatenate::new(all()?)),
            Spec::Sample { weights, seed, .. } => input::row_by_row(row, join::Sample::new(all()?, weights, *seed)),
            Spec::Interleave { inputs, cycle, block, .. } => {
                let turn = |(index, input)| join::Turn::new(input, self.opens_in_turn(input), room, ledger, station.inlet(index));
                let turns = inputs.iter().enumerate().map(turn).collect::<Result<Vec<_>, _>>()?;
                input::row_by_row(row, join::Interleave::new(turns, *cycle, *block))
            }
            Spec::FlatMap { input, limit, expand, .. } => {
                let (from, expand) = (input.output_schema()?, Arc::clone(expand));
                let expansion = join::Expansion { from, to: schema, limit: *limit, expand, tolerant: room.tolerant };
                input::row_by_row(row, join::FlatMap::new(one()?, expansion))
            }
            Spec::Window { input, size, shift, stride } => {
                let from = input.output_schema()?;
                input::row_by_row(row, reshape::Windows::new(one()?, &from, *size, *shift, *stride))
            }
            Spec::Unbatch { input } => input::row_by_row(row, reshape::Unbatch::new(one()?, &input.output_schema()?)),
            Spec::Buckets { buckets, .. } => input::row_by_row(row, shuffle::Bucketed::new(one()?, &schema, buckets)?),
            Spec::Cache { input, cache, note } => Box::new(cache::Kept::open(input, cache, note, room, ledger, station.inlet(0))?),
        })
    }

    /// Whether pictures are decoded here or before, in as much as the limit leaves for one.
    pub fn decodes(&self) -> bool {
        let before = |input: &Dataset| input.stream.as_ref().is_some_and(|spec| spec.decodes());
        matches!(self, Spec::Pictures(pictures) if pictures.max_item().is_none()) || self.inputs().iter().any(before)
    }

    /// How many caches in memory it and all before it have.
    pub fn memory_caches(&self) -> usize {
        let here = matches!(self, Spec::Cache { cache, .. } if cache.path().is_none());
        let before = self.inputs().iter().map(|input| match &input.stream {
            Some(spec) => spec.memory_caches(),
            None => input.stages.iter().filter(|stage| matches!(stage, Stage::Cache(cache, _) if cache.path().is_none())).count(),
        });
        usize::from(here) + before.sum::<usize>()
    }

    /// Why one of those caches, or one in a file, is not used, if so.
    pub fn given_up(&self) -> Option<String> {
        let here = match self {
            Spec::Cache { note, .. } => note.said(),
            _ => None,
        };
        let before = |input: &Dataset| match &input.stream {
            Some(spec) => spec.given_up(),
            None => input.stages.iter().find_map(|stage| if let Stage::Cache(_, note) = stage { note.said() } else { None }),
        };
        here.or_else(|| self.inputs().iter().find_map(before))
    }
}
