//! Basic value types: element types, shapes, expressions, random numbers, bytes and budgets.

pub mod budget;
pub mod dtype;
pub mod expr;
pub mod normal;
pub mod pairwise;
pub mod random;
pub mod shape;
pub mod shard;
