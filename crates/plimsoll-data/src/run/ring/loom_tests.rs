//! Model-checks the ring with loom, under a bound on preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p plimsoll-data --lib ring::loom
//! ```

use super::*;
use crate::{AlignedBuf, Column, Schema};
use loom::thread;
use plimsoll_core::DType;

fn ring(slots: usize, workers: usize, epoch_rows: u64, slot_rows: usize, seals: bool) -> loom::sync::Arc<Ring> {
    ring_of(slots, workers, Some(epoch_rows), slot_rows, seals)
}

fn ring_of(slots: usize, workers: usize, rows: Option<u64>, slot_rows: usize, seals: bool) -> loom::sync::Arc<Ring> {
    ring_that(slots, workers, rows, slot_rows, seals, false)
}

fn ring_that(slots: usize, workers: usize, rows: Option<u64>, slot_rows: usize, seals: bool, stays: bool) -> loom::sync::Arc<Ring> {
    let schema = Schema::new(vec![Column::new("x", DType::U8, [])]).unwrap();
    let layout = Arc::new(BlockLayout::new(&schema, slot_rows));
    let nothing = SlotRows { epoch: 0, place: 0, rows: 0, ends_epoch: false };
    let slots = (0..slots).map(|_| Slot { memory: Box::new(AlignedBuf::new(layout.bytes().get())), fill: nothing }).collect();
    let (epoch_rows, later_rows) = (rows, rows);
    let schedule = Schedule { epoch: 0, left: Some(1), place: 0, epoch_rows, later_rows, whole_batches: None, slot_rows, claim_rows: 1 };
    let crew = Crew { workers, adapts: Adapts { workers: true, slots: true }, ordered: true, seals, stays };
    loom::sync::Arc::new(Ring::new(slots, layout, schedule, crew))
}

/// Writes the position of each row, and adds one when sealing; fails at position `broken`.
fn work(ring: &Ring, number: usize, broken: Option<u64>) {
    while let Some(mut claim) = ring.claim(number) {
        let (place, rows) = (claim.place, claim.rows());
        for (index, byte) in claim.columns(0, rows).next().unwrap().iter_mut().enumerate() {
            *byte = (place + index as u64) as u8;
        }
        let result = if broken == Some(place) { Err(DataError::Stage("broken".into())) } else { Ok(()) };
        if let Some(mut whole) = ring.finish(claim, result) {
            let rows = whole.rows();
            whole.columns(0, rows).next().unwrap().iter_mut().for_each(|byte| *byte += 100);
            ring.seal(whole, Ok(()));
        }
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    model_within(2, check);
}

/// Explores with at most this many preemptions. Blocking switches are free, so a small bound suffices even with many
/// threads.
fn model_within(interruptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(check);
}

#[test]
fn loom_rows_come_whole_and_in_order() {
    for seals in [false, true] {
        model(move || {
            let ring = ring(2, 2, 3, 2, seals);
            let workers = [0, 1].map(|number| {
                let ring = ring.clone();
                thread::spawn(move || work(&ring, number, None))
            });
            let more = if seals { 100 } else { 0 };
            for (place, rows) in [(0u64, 2), (2, 1)] {
                let slot = ring.take_filled().unwrap().unwrap();
                assert_eq!((slot.fill.place, slot.fill.rows), (place, rows));
                for row in 0..rows {
                    assert_eq!(slot.memory.bytes()[row], place as u8 + row as u8 + more);
                }
                ring.put_free(slot);
            }
            assert!(ring.take_filled().unwrap().is_none());
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

/// Takes rows in turn until there were `rows`; fails at a position, during its turn or after it, if `broken` is set.
fn work_in_turn(ring: &Ring, number: usize, rows: u64, broken: Option<(u64, bool)>) {
    while let Some(mut claim) = ring.claim(number) {
        let place = claim.place;
        if broken == Some((place, true)) {
            ring.finish(claim, Err(DataError::Stage("broken".into())));
            continue;
        }
        let there = usize::from(place < rows);
        ring.settle(&mut claim, there, there == 0);
        claim.columns(0, there).next().unwrap().fill(place as u8);
        let result = if broken == Some((place, false)) { Err(DataError::Stage("broken".into())) } else { Ok(()) };
        if let Some(mut whole) = ring.finish(claim, result) {
            let rows = whole.rows();
            whole.columns(0, rows).next().unwrap().iter_mut().for_each(|byte| *byte += 100);
            ring.seal(whole, Ok(()));
        }
    }
}

#[test]
fn loom_rows_that_nobody_counted_come_whole_and_in_order() {
    for (seals, slots) in [(false, 1), (false, 2), (true, 2)] {
        model(move || {
            let ring = ring_of(slots, 2, None, 2, seals);
            let workers = [0, 1].map(|number| {
                let ring = ring.clone();
                thread::spawn(move || work_in_turn(&ring, number, 3, None))
            });
            let more = if seals { 100 } else { 0 };
            for (place, rows) in [(0u64, 2), (2, 1)] {
                let slot = ring.take_filled().unwrap().unwrap();
                assert_eq!((slot.fill.place, slot.fill.rows, slot.fill.ends_epoch), (place, rows, place == 2));
                for row in 0..rows {
                    assert_eq!(slot.memory.bytes()[row], place as u8 + row as u8 + more);
                }
                ring.put_free(slot);
            }
            assert!(ring.take_filled().unwrap().is_none());
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

#[test]
fn loom_what_fails_in_a_turn_or_after_it_frees_all() {
    for in_its_turn in [false, true] {
        model(move || {
            let ring = ring_of(2, 2, None, 1, false);
            let workers = [0, 1].map(|number| {
                let ring = ring.clone();
                thread::spawn(move || work_in_turn(&ring, number, 3, Some((1, in_its_turn))))
            });
            let slot = ring.take_filled().unwrap().unwrap();
            ring.put_free(slot);
            assert!(ring.take_filled().is_err());
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

/// Takes the slots of an epoch, of one row each, up to the empty one that ends it.
fn take_epoch(ring: &Ring, epoch: u64, rows: u64) {
    for place in 0..=rows {
        let slot = ring.take_filled().unwrap().unwrap();
        let there = usize::from(place < rows);
        assert_eq!((slot.fill.epoch, slot.fill.place, slot.fill.rows, slot.fill.ends_epoch), (epoch, place, there, there == 0));
        assert!(slot.memory.bytes()[..there].iter().all(|byte| *byte == place as u8));
        ring.put_free(slot);
    }
}

#[test]
fn loom_three_take_turns() {
    model_within(1, || {
        let ring = ring_of(2, 3, None, 1, false);
        let workers = [0, 1, 2].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || work_in_turn(&ring, number, 2, None))
        });
        take_epoch(&ring, 0, 2);
        assert!(ring.take_filled().unwrap().is_none());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// At the end of an epoch, workers waiting for their turn and workers waiting for work all wait for the next epoch;
/// then the consumer stops the ring.
#[test]
fn loom_those_that_stay_make_another_epoch() {
    for (slots, rows, interruptions) in [(1, 0, 2), (2, 0, 2), (1, 1, 1), (2, 1, 1)] {
        model_within(interruptions, move || {
            let ring = ring_that(slots, 2, None, 1, false, true);
            let workers = [0, 1].map(|number| {
                let ring = ring.clone();
                thread::spawn(move || work_in_turn(&ring, number, rows, None))
            });
            take_epoch(&ring, 0, rows);
            ring.another_epoch();
            take_epoch(&ring, 1, rows);
            ring.stop();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

/// Two workers wait for their turn and one of them is paused: when woken, it wakes the other and does not wait
/// for another turn.
#[test]
fn loom_one_that_rests_lets_the_next_have_its_turn() {
    model_within(3, || {
        let ring = ring_of(2, 3, None, 2, false);
        let mut first = ring.claim(0).unwrap();
        let workers = [2, 1].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || {
                while let Some(mut claim) = ring.claim(number) {
                    ring.settle(&mut claim, 0, true);
                    let _ = ring.finish(claim, Ok(()));
                }
            })
        });
        ring.lock().tuner.set_active(2);
        ring.settle(&mut first, 1, false);
        // It is slow, and all the others finish first.
        let [resting, working] = workers;
        working.join().unwrap();
        let _ = ring.finish(first, Ok(()));
        assert_eq!(ring.take_filled().unwrap().unwrap().fill.rows, 1);
        ring.stop();
        resting.join().unwrap();
    });
}

#[test]
fn loom_a_consumer_that_leaves_frees_those_in_line() {
    model(|| {
        let ring = ring_of(2, 2, None, 1, false);
        let workers = [0, 1].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || {
                while let Some(mut claim) = ring.claim(number) {
                    // During its turn.
                    if ring.stopping() {
                        return;
                    }
                    ring.settle(&mut claim, 1, false);
                    let _ = ring.finish(claim, Ok(()));
                }
            })
        });
        let _held = ring.take_filled().unwrap();
        ring.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn loom_a_failure_is_reported_and_wakes_all() {
    model(|| {
        let ring = ring(1, 2, 4, 1, false);
        let workers = [0, 1].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || work(&ring, number, Some(1)))
        });
        let slot = ring.take_filled().unwrap().unwrap();
        ring.put_free(slot);
        assert!(ring.take_filled().is_err());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn loom_a_consumer_that_leaves_frees_the_workers() {
    model(|| {
        let ring = ring(1, 2, 6, 2, false);
        let workers = [0, 1].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || work(&ring, number, None))
        });
        let _held = ring.take_filled().unwrap();
        ring.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}
