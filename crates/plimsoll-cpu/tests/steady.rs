//! After a program's first run, running it allocates nothing. The allocator counts for the whole process, so there is
//! no test harness in it, whose threads take memory whenever they are let.

#[path = "device/model.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod model;

use plimsoll_comm::Alone;
use plimsoll_core::Bytes;
use plimsoll_core::budget::CountingAllocator;
use std::sync::Arc;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() {
    steps_allocate_nothing(model::Model::new(2));
    // With collectives: tensor by tensor, and packed.
    steps_allocate_nothing(model::Model::on_rank(2, Arc::new(Alone), Bytes(1)));
    steps_allocate_nothing(model::Model::on_rank(2, Arc::new(Alone), Bytes::mib(1)));
    steps_allocate_nothing(model::Model::with_shards(2, Arc::new(Alone), Bytes::mib(1)));
}

fn steps_allocate_nothing(mut model: model::Model) {
    model.step(0).unwrap();
    let before = HEAP.allocations();
    (0..10_000).for_each(|step| {
        model.step(step).unwrap();
    });
    assert_eq!(HEAP.allocations() - before, 0, "steps allocated something");
}
