//! What a user relies on, one test per promise.

mod files;
mod holdout;
mod wrong_answers;
