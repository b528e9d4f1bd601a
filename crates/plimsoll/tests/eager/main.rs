//! Eager tensors, tapes and compiled functions.

mod accounting;
mod agreement;
mod budgets;
mod custom;
#[path = "../../examples/eager.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod example;
mod gradients;
mod guide;
mod leaks;
mod masks;
mod ops;
mod placement;

#[test]
fn the_example_trains_and_stays_within_its_limit() {
    let losses = example::run(30, plimsoll::Bytes::mib(4)).unwrap();
    assert!(losses[29] < losses[0], "{losses:?}");
}
