//! Runs a plan: worker threads, the staging ring they write batches to, and the feed that returns the batches.
//!
//! | file | what |
//! |---|---|
//! | `tuner` | adapts the number of active threads and slots |
//! | `ring` | slots that workers fill and the consumer empties |
//! | `path` | the operations on one column |
//! | `row_cache` | whole rows, from a cache or computed and cached |
//! | `work` | rows of an indexed source, produced by one thread |
//! | `stream_work` | rows of a sequential stage, mapped by the calling thread |
//! | `shared` | a sequential stage that several threads take rows from |
//! | `input`, `read_ahead` | the inputs of sequential stages |
//! | `feed` | batches |

mod feed;
mod input;
mod path;
mod read_ahead;
mod ring;
mod row_cache;
mod shared;
mod stream_work;
mod tuner;
mod work;

pub use feed::{Activity, Batch, Feed, FeedState, NextBatch, Options};
