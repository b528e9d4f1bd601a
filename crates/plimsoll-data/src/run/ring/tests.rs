use super::*;
use crate::{AlignedBuf, Column, Schema};
use plimsoll_core::DType;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// A ring of slots of `slot_rows` u8 rows for `epochs` epochs of `epoch_rows` rows.
fn ring(slots: usize, epochs: u64, epoch_rows: u64, slot_rows: usize, claim_rows: usize) -> Ring {
    ring_of(slots, epochs, Some(epoch_rows), slot_rows, claim_rows)
}

fn ring_of(slots: usize, epochs: u64, epoch_rows: Option<u64>, slot_rows: usize, claim_rows: usize) -> Ring {
    let schema = Schema::new(vec![Column::new("x", DType::U8, [])]).unwrap();
    let layout = Arc::new(BlockLayout::new(&schema, slot_rows));
    let nothing = SlotRows { epoch: 0, place: 0, rows: 0, ends_epoch: false };
    let slots = (0..slots).map(|_| Slot { memory: Box::new(AlignedBuf::new(layout.bytes().get())), fill: nothing }).collect();
    Ring::new(
        slots,
        layout,
        Schedule {
            epoch: 0,
            left: Some(epochs),
            place: 0,
            epoch_rows,
            later_rows: epoch_rows,
            whole_batches: epoch_rows.is_none().then_some(2),
            slot_rows,
            claim_rows,
        },
        Crew { workers: 4, adapts: Adapts { workers: true, slots: true }, ordered: true, seals: false, stays: epoch_rows.is_none() },
    )
}

/// Writes the position of each row; fails at the positions in `broken`.
fn work(ring: &Ring, broken: &[u64]) {
    while let Some(mut claim) = ring.claim(0) {
        let (place, rows) = (claim.place, claim.rows());
        for (index, byte) in claim.columns(0, rows).next().unwrap().iter_mut().enumerate() {
            *byte = (place + index as u64) as u8;
        }
        let bad = (place..place + rows as u64).find(|place| broken.contains(place));
        let _ = ring.finish(claim, bad.map_or(Ok(()), |place| Err(DataError::Stage(format!("row {place} is broken")))));
    }
}

#[test]
fn rows_arrive_in_order_whatever_the_number_of_workers() {
    for (slots, workers, claim_rows) in [(1, 1, 7), (1, 3, 1), (2, 2, 3), (3, 4, 2)] {
        let ring = ring(slots, 50, 23, 7, claim_rows);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| work(&ring, &[]));
            }
            for epoch in 0..50 {
                for place in [0, 7, 14, 21] {
                    let slot = ring.take_filled().unwrap().unwrap();
                    let rows = 7.min(23 - place) as usize;
                    assert_eq!((slot.fill.epoch, slot.fill.place, slot.fill.rows, slot.fill.ends_epoch), (epoch, place, rows, place == 21));
                    let expected: Vec<u8> = (place..).take(rows).map(|place| place as u8).collect();
                    assert_eq!(slot.memory.bytes()[..rows], expected);
                    ring.put_free(slot);
                }
            }
            assert!(ring.take_filled().unwrap().is_none());
        });
    }
}

/// What would let two workers reach the same rows, or rows outside of a slot.
#[test]
fn rows_of_others_are_out_of_reach() {
    let refused = |misuse: &dyn Fn()| catch_unwind(AssertUnwindSafe(misuse)).is_err();
    let counted = ring(1, 1, 23, 7, 3);
    let claim = RefCell::new(counted.claim(0).unwrap());
    for (from, rows) in [(0, 4), (3, 1), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(refused(&|| drop(claim.borrow_mut().columns(from, rows))), "{rows} rows from {from} on");
    }
    assert_eq!(claim.into_inner().columns(1, 2).map(|column| column.len()).collect::<Vec<_>>(), [2]);

    let uncounted = ring_of(2, 1, None, 7, 3);
    let mut first = uncounted.claim(0).unwrap();
    uncounted.settle(&mut first, 1, false);
    let first = RefCell::new(first);
    assert!(refused(&|| uncounted.settle(&mut first.borrow_mut(), 0, false)), "it had its turn");
    let _second = uncounted.claim(0).unwrap();
    assert!(refused(&|| uncounted.settle(&mut first.borrow_mut(), 0, false)), "another has the turn");

    let nothing = SlotRows { epoch: 0, place: 0, rows: 0, ends_epoch: false };
    assert!(refused(&|| counted.put_free(Slot { memory: Box::new(AlignedBuf::new(0)), fill: nothing })), "smaller than a slot");
}

#[test]
fn a_consumer_that_leaves_frees_waiting_workers() {
    let ring = ring(1, 9, 10, 5, 1);
    thread::scope(|scope| {
        let workers = [(); 3].map(|()| scope.spawn(|| work(&ring, &[])));
        let _held = ring.take_filled().unwrap();
        ring.stop();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn the_earliest_failure_comes_after_what_was_filled_and_stays() {
    for workers in [1, 4] {
        let ring = ring(3, 1, 100, 10, 1);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| work(&ring, &[23, 24, 25, 26]));
            }
            for _ in 0..2 {
                let slot = ring.take_filled().unwrap().unwrap();
                ring.put_free(slot);
            }
            for _ in 0..2 {
                assert_eq!(ring.take_filled().err().unwrap().to_string(), "row 23 is broken");
            }
        });
    }
}

/// Takes rows in turn until an epoch has 23 of them; the slowest rows come first in each slot.
fn work_in_turn(ring: &Ring, number: usize, came: &std::sync::Mutex<(u64, u64)>) {
    while let Some(mut claim) = ring.claim(number) {
        let rows = {
            let mut came = came.try_lock().expect("only one has its turn");
            if came.0 != claim.epoch {
                *came = (claim.epoch, 0);
            }
            assert_eq!(came.1, claim.place);
            // Sometimes fewer than claimed.
            let rows = (claim.rows() as u64).min(1 + came.1 % 3).min(23 - came.1);
            came.1 += rows;
            rows as usize
        };
        let place = claim.place;
        ring.settle(&mut claim, rows, rows == 0);
        assert_eq!(claim.rows(), rows);
        if place % 2 == 0 {
            thread::yield_now();
        }
        for (index, byte) in claim.columns(0, rows).next().unwrap().iter_mut().enumerate() {
            *byte = (place + index as u64) as u8;
        }
        let _ = ring.finish(claim, Ok(()));
    }
}

#[test]
fn rows_that_nobody_counted_arrive_in_order_whatever_the_number_of_workers() {
    for (slots, workers, claim_rows) in [(1, 1, 8), (1, 3, 1), (2, 2, 3), (3, 4, 2)] {
        let ring = ring_of(slots, 1, None, 8, claim_rows);
        let came = std::sync::Mutex::new((0, 0));
        thread::scope(|scope| {
            for number in 0..workers {
                let (ring, came) = (&ring, &came);
                scope.spawn(move || work_in_turn(ring, number, came));
            }
            for epoch in 0..50 {
                // Of the last seven rows, six are whole batches of two.
                for (place, rows) in [(0, 8), (8, 8), (16, 6)] {
                    let slot = ring.take_filled().unwrap().unwrap();
                    let SlotRows { ends_epoch, .. } = slot.fill;
                    assert_eq!((slot.fill.epoch, slot.fill.place, slot.fill.rows, ends_epoch), (epoch, place, rows, place == 16));
                    let expected: Vec<u8> = (place..).take(rows).map(|place| place as u8).collect();
                    assert_eq!(slot.memory.bytes()[..rows], expected);
                    ring.put_free(slot);
                }
                assert!(ring.take_filled().unwrap().is_none());
                assert!(came.lock().unwrap().0 == epoch, "nothing was taken ahead");
                ring.another_epoch();
            }
            ring.stop();
        });
    }
}

#[test]
fn what_fails_in_its_turn_frees_those_that_wait_for_theirs() {
    let ring = ring_of(3, 1, None, 8, 1);
    thread::scope(|scope| {
        let first = ring.claim(0).unwrap();
        let waiting = [(); 3].map(|()| scope.spawn(|| ring.claim(0).is_none()));
        thread::yield_now();
        let _ = ring.finish(first, Err(DataError::Stage("broken".into())));
        assert!(waiting.into_iter().all(|worker| worker.join().unwrap()));
        assert_eq!(ring.take_filled().err().unwrap().to_string(), "broken");
    });
}
