//! The input pipeline: rows from a source, reordered, mapped and batched straight into the slots of a staging ring.
//!
//! Modules depend only on those above them:
//!
//! | layer | module | what |
//! |---|---|---|
//! | values | `error`, `fault`, `sync`, `memory`, `meter`, `rng`, `permutation`, `holdout`, `split`, `number`, `ragged`, `span`, `rank_rows`, `progress` | errors, buffers, times, random numbers |
//! | rows | `schema`, `block`, `row`, `condition` | columns, blocks of rows, single rows and conditions on them |
//! | tables | `table` | cells of any format to numbers: inferred, fitted, encoded |
//! | maps | `image`, [`ops`] | operations that change dtype or shape, written straight to the destination |
//! | sources | [`source`] | rows of files, by index or in sequence |
//! | storage | `cache`, `decode` | storage for cached rows; memory and kernels for decoding image files |
//! | pipeline | `dataset` | [`Dataset`]: a source and its stages, and what is known about its rows |
//! | stages | `stages` | one file per stage: [`STAGES`] |
//! | plan | `plan` | [`PipelinePlan`]: the bytes of each stage, before anything runs |
//! | run | `run` | [`Feed`]: batches, from a ring filled by one or more threads ahead of the consumer |
//!
//! The pipeline never loads whole files, needs no shuffle buffer for indexed sources, and makes no copy between the
//! last operation and the batch.
//!
//! ```
//! use plimsoll_core::{Bytes, Ledger};
//! use plimsoll_data::{Dataset, Feed, Options, Shuffle, Split, ops::scale};
//!
//! let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
//! let plan = data.plan(Some(Bytes::mib(2)))?;
//! let ledger = Ledger::new("host", Some(Bytes::mib(2)));
//! let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() })?;
//! let mut rows = 0;
//! while let Some(batch) = feed.next()? {
//!     assert_eq!(batch.column(0).len(), batch.rows * 8 * 8 * 4);
//!     rows += batch.rows;
//! }
//! assert_eq!(rows, 1438);
//! assert_eq!(ledger.peak(), plan.total());
//! # Ok::<(), plimsoll_data::DataError>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!("files are little endian and blocks are copied from them as they are");

mod block;
mod cache;
mod condition;
mod dataset;
mod decode;
mod error;
mod fault;
mod holdout;
mod image;
mod memory;
mod meter;
mod number;
pub mod ops;
mod permutation;
mod plan;
mod progress;
mod ragged;
mod rank_rows;
mod rng;
mod row;
mod run;
mod schema;
pub mod source;
mod span;
mod split;
mod stages;
mod sync;
mod table;

pub use block::{BlockLayout, BlockMut, ColumnMut, Rows};
pub use cache::{Cache, CacheFile};
pub use condition::{Condition, Relation};
pub use dataset::{Dataset, Parallelism, Prefetch};
pub use decode::ScanOptions;
pub use error::DataError;
pub use image::ImageReader;
pub use memory::{ALIGNMENT, AlignedBuf};
pub use meter::{Spent, WorkerSpan};
pub use number::numbers;
pub use ops::Mix;
pub use permutation::Permutation;
pub use plan::{PRODUCER_STACK, PipelinePlan};
pub use plimsoll_core::budget::SlotMemory;
pub use progress::{Progress, observe_progress};
pub use rank_rows::RankRows;
pub use row::Row;
pub use run::{Activity, Batch, Feed, FeedState, NextBatch, Options};
pub use schema::{Column, Extent, Schema};
pub use source::{Elements, RandomSpec, Source, Split, Tensor, Vocabulary};
pub use split::{SplitMethod, SplitSpec};
pub use stages::{Arg, Batches, Key, KeyKind, MAX_ROWS_AT_ONCE, Need, PadTo, STAGES, Shuffle, Splits, StageArgs, StageKind, Validation};
