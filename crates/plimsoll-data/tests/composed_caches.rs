//! Caches at places drawn at random: the same rows with and without, by number and one after the other, in any space,
//! and resumed anywhere.

mod cache_files;
mod case_count;

use cache_files::{counted, csv, epochs, folder, path, read};
use case_count::cases;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{apply, scale};
use plimsoll_data::{Cache, Dataset, Feed, Options, Parallelism, RandomSpec, Shuffle, Split};
use proptest::prelude::*;
use std::path::Path;
use tempfile::TempDir;

fn half(row: u64, y: &[f32], out: &mut [f32]) -> Result<(), String> {
    out[0] = y[0] * 0.5 + row as f32;
    Ok(())
}

/// A stage by a number, for indexed rows.
fn step(data: Dataset, which: u8) -> Dataset {
    match which % 8 {
        0 => data.skip(u64::from(which) / 8),
        1 => data.take(20 + u64::from(which)),
        2 => data.shuffle(Shuffle::seed(u64::from(which))),
        3 => data.repeat(1 + u64::from(which) % 2),
        4 => data.shard(1 + u64::from(which) % 3, 0),
        5 => data.map("x", [scale(0.25 + f32::from(which))]),
        6 => data.map("y", [apply("half", [], half)]),
        _ => data,
    }
}

/// The same for rows that come one after the other.
fn flow(data: Dataset, which: u8) -> Dataset {
    match which % 7 {
        0 => data.filter(|row| row.int("n") % 5 != 2),
        1 => data.skip(u64::from(which) / 7),
        2 => data.take(30),
        3 => data.map("x", [scale(f32::from(which))]),
        4 => data.repeat(2),
        5 => data.shard(2, 1),
        _ => data.take_while(|row| row.int("n") < 90),
    }
}

/// A source by a number; all have `x` and `y`.
fn source(folder: &Path, which: u8) -> Dataset {
    match which % 4 {
        0 => csv(folder, 60),
        1 => Dataset::random(RandomSpec::new(60).seed(5).floats("x", [3]).labels("y", 4)).unwrap(),
        2 => Dataset::digits(Split::Test).take(60),
        _ => counted(60).0,
    }
}

fn cache(folder: &TempDir, which: u8) -> Cache {
    match which % 4 {
        0 => Cache::Memory,
        1 => Cache::MemoryUpTo(Bytes(u64::from(which) * 16)),
        2 => Cache::File(path(folder)),
        _ => Cache::FileIfSpace(path(folder)),
    }
}

/// The whole run against the plain one, and the rest of it after resuming somewhere.
fn compare(plain: &Dataset, kept: &Dataset, room: Option<u64>, stop: usize) -> Result<(), TestCaseError> {
    let limit = room.map(|room| kept.plan(None).unwrap().minimum() + Bytes(room));
    let expected = epochs(plain, None, 3);
    prop_assert_eq!(&epochs(kept, limit, 3), &expected, "{}", kept.describe());
    // Another feed, which may find a file or not, stopped in the middle and gone on with.
    let plan = kept.plan(limit).unwrap();
    let mut feed = Feed::start(kept, &plan, &Ledger::new("host", None), Options { epochs: Some(3), ..Options::default() }).unwrap();
    let stop = stop % (expected.len() + 1);
    let mut seen = 0;
    while seen < stop {
        seen += usize::from(feed.next().unwrap().is_some());
    }
    let state = feed.state();
    drop(feed);
    let rest = Options::resume(&state, kept).unwrap();
    let after = read(kept, limit, rest, 3 - state.epoch.min(3)).unwrap().0;
    prop_assert_eq!(&after[..], &expected[stop..], "{} from batch {}", kept.describe(), stop);
    Ok(())
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn caches_at_random_places_against_none_give_the_same_rows_by_number(
        from in 0u8..4, steps in prop::collection::vec(0u8..40, 0..6), place in 0usize..7, kind in 0u8..40,
        room in prop::option::of(0u64..4000), threads in 1usize..4, batch in 1usize..9, stop in 0usize..200,
    ) {
        let folder = folder();
        // Mapped only once: what was scaled is no integer any more.
        let once = |which: u8, at: usize| !matches!(which % 8, 5 | 6) || !steps[..at].iter().any(|other| other % 8 == which % 8);
        let build = |keeps: bool| {
            let mut data = source(folder.path(), from);
            for (at, &which) in steps.iter().enumerate() {
                if keeps && at == place.min(steps.len() - 1) {
                    data = data.version("1").cache(cache(&folder, kind));
                }
                data = if once(which, at) { step(data, which) } else { data };
            }
            if keeps && steps.is_empty() {
                data = data.version("1").cache(cache(&folder, kind));
            }
            data.parallelism(Parallelism::Threads(threads)).batch(batch)
        };
        compare(&build(false), &build(true), room, stop)?;
    }

    #[test]
    fn caches_at_random_places_against_none_give_the_same_rows_one_after_the_other(
        from in 0u8..4, steps in prop::collection::vec(0u8..40, 1..6), places in prop::collection::vec(0usize..7, 1..3), kind in 0u8..40,
        room in prop::option::of(0u64..40_000), threads in 1usize..4, batch in 1usize..9, stop in 0usize..200,
    ) {
        let folder = folder();
        let build = |keeps: bool| {
            let source = source(folder.path(), from).parallelism(Parallelism::Threads(threads));
            let mut data = if keeps && places.contains(&6) { source.cache(Cache::Memory) } else { source }.enumerate("n");
            for (at, &which) in steps.iter().enumerate() {
                if keeps && places.contains(&at) {
                    // Only one of them can be in this file.
                    let here = if places.iter().min() == Some(&at) { cache(&folder, kind) } else { Cache::MemoryUpTo(Bytes::kib(64)) };
                    data = data.version("1").cache(here);
                }
                data = flow(data, which);
            }
            // What is kept has another order each time all the same.
            data.shuffle_buffer(Shuffle::seed(3), Bytes(200)).batch(batch)
        };
        compare(&build(false), &build(true), room, stop)?;
    }
}
