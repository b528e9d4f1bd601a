use super::*;
use crate::{AlignedBuf, Column, Schema};
use plimsoll_core::DType;
use std::thread;

/// A ring of slots of `slot_rows` u8 rows for some epochs of `epoch_rows` rows.
fn ring(slots: usize, epochs: u64, epoch_rows: u64, slot_rows: usize, claim_rows: usize) -> Ring {
    let schema = Schema::new(vec![Column::new("x", DType::U8, [])]).unwrap();
    let layout = Arc::new(BlockLayout::new(&schema, slot_rows));
    let nothing = Fill { epoch: 0, place: 0, rows: 0, ends_epoch: false };
    let slots = (0..slots).map(|_| Slot { memory: Box::new(AlignedBuf::new(layout.bytes().get())), fill: nothing }).collect();
    Ring::new(
        slots,
        layout,
        Schedule {
            epoch: 0,
            left: Some(epochs),
            place: 0,
            epoch_rows: Some(epoch_rows),
            later_rows: Some(epoch_rows),
            slot_rows,
            claim_rows,
        },
        Crew { workers: 4, adapts: Adapts { workers: true, slots: true }, ordered: true, seals: false },
    )
}

/// Writes each row's place, and fails at the places told.
fn work(ring: &Ring, broken: &[u64]) {
    while let Some(mut claim) = ring.claim(0) {
        let (place, rows) = (claim.place, claim.rows);
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
