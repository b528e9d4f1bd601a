//! The input pipeline: rows from a source, reordered, mapped and batched straight into the slots of a staging ring.
//!
//! | station | where | what comes out |
//! |---|---|---|
//! | source | [`source`] | blocks of rows, any rows asked for |
//! | order | [`Shuffle`], [`Permutation`] | which row stands where in an epoch, computed on the fly |
//! | streams | [`Dataset`](Dataset#streams) | rows that user code keeps, makes or puts together, one after the other |
//! | map | [`ops`] | rows of another type or shape, written where they are needed |
//! | plan | [`PipelinePlan`] | the bytes of each stage, before anything runs |
//! | decode | [`ops::decode`] | files as rows of one size, straight where the row goes |
//! | cache | [`Cache`] | rows again, from memory or a file |
//! | feed | [`Feed`] | batches, from a ring filled by one or more threads ahead of the consumer |
//!
//! What is deliberately absent: whole files in memory, shuffle buffers where rows have numbers, copies between the last operation and the batch.
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
mod decode_room;
mod error;
mod fault;
mod feed;
mod flows;
mod geometry;
mod image;
mod item;
mod mapped_pictures;
mod memory;
mod meter;
mod mix;
mod number;
pub mod ops;
mod order;
mod padded;
mod permutation;
mod plan;
mod ragged;
mod recipe;
mod ring;
mod rng;
mod row;
mod schema;
pub mod source;
mod stream;
mod sync;
mod tuner;
mod work;

pub use block::{BlockLayout, BlockMut, ColumnMut, Rows};
pub use cache::{Cache, CacheFile};
pub use condition::{Condition, Relation};
pub use dataset::{Dataset, Parallelism, Prefetch};
pub use error::DataError;
pub use feed::{Activity, Batch, Feed, FeedState, Options};
pub use image::PictureReader;
pub use memory::{ALIGNMENT, AlignedBuf};
pub use meter::Spent;
pub use mix::Mix;
pub use order::Shuffle;
pub use padded::PadTo;
pub use permutation::Permutation;
pub use plan::{PRODUCER_STACK, PipelinePlan};
pub use plimsoll_core::budget::SlotMemory;
pub use row::Row;
pub use schema::{Column, Extent, Schema};
pub use source::{Elements, RandomSpec, Source, Split, Tensor, Vocabulary};
