//! From a model's forward graph to the graphs of a training step: gradients, optimizer updates, loss scaling,
//! optimization passes.

pub mod autodiff;
pub mod data_parallel;
pub mod fixed_order;
pub mod function;
pub mod loss_scale;
pub mod passes;
pub mod pruning;
mod row_sums;
pub mod sharding;
pub mod step;
