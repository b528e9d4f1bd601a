//! After a program's first run, running it allocates nothing. One test, because the allocator counts for the whole process.

#[path = "device/model.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod model;

use plimsoll_core::budget::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

#[test]
fn steps_allocate_nothing_after_the_first() {
    let mut model = model::Model::new(2);
    model.step(0).unwrap();
    // A kernel thread that is still starting allocates for itself, once; a step that allocates would do so in every round.
    let quiet = (0..50u32).any(|_| {
        let before = HEAP.allocations();
        (0..1000).for_each(|step| {
            model.step(step).unwrap();
        });
        HEAP.allocations() == before
    });
    assert!(quiet, "every round of a thousand steps allocated something");
}
