//! Stages, one file each: arguments, name and keys in a configuration, the method of [`Dataset`](crate::Dataset), its
//! effect on the number and the columns of rows, its memory, and how it runs, by row index or in sequence.
//!
//! To add a stage, write its file with an `impl Stage` and the method of `Dataset`; if a configuration can name it, add
//! its [`StageKind`] to [`STAGES`].

mod assert_cardinality;
mod batch;
mod bucket_by_length;
mod cache;
mod concatenate;
mod enumerate;
mod filter;
mod flat_map;
mod holdout;
mod ignore_errors;
mod interleave;
mod kind;
mod map;
mod max_item;
mod mix;
mod packed_images;
mod prefetch;
mod rank;
mod repeat;
mod sample_from;
mod sequential;
mod shard;
mod shuffle;
mod skip;
mod sources;
mod take;
mod unbatch;
mod version;
mod window;
mod zip;

pub use batch::PadTo;
pub use holdout::Splits;
pub use kind::{Arg, Batches, Key, KeyKind, MAX_ROWS_AT_ONCE, Need, StageArgs, StageKind, Validation};
pub(crate) use packed_images::{PackedImages, RecordDecoder, StartedRecord};
pub use shuffle::Shuffle;

/// The stages that a configuration can name.
pub const STAGES: &[StageKind] = &[
    map::KIND,
    filter::FILTER,
    filter::TAKE_WHILE,
    shuffle::KIND,
    skip::KIND,
    take::KIND,
    shard::KIND,
    repeat::KIND,
    enumerate::KIND,
    window::KIND,
    unbatch::KIND,
    bucket_by_length::KIND,
    ignore_errors::KIND,
    cache::KIND,
    assert_cardinality::KIND,
    batch::BATCH,
    batch::PADDED_BATCH,
    batch::REBATCH,
    mix::MIXUP,
    mix::CUTMIX,
    prefetch::PREFETCH,
    prefetch::PARALLELISM,
    max_item::KIND,
    prefetch::DETERMINISTIC,
];
