//! After a program's first run, running it allocates nothing. The allocator counts for the whole process, so there is no test harness in it,
//! whose threads take memory whenever they are let.

#[path = "device/model.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod model;

use plimsoll_core::budget::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() {
    let mut model = model::Model::new(2);
    model.step(0).unwrap();
    let before = HEAP.allocations();
    (0..10_000).for_each(|step| {
        model.step(step).unwrap();
    });
    assert_eq!(HEAP.allocations() - before, 0, "steps allocated something");
}
