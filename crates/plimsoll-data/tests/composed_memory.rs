//! Whatever stages stand behind each other, what they take on the heap is what the plan counts, in any limit down to
//! the minimum.

mod case_count;
mod heap;

use case_count::cases;
use heap::HEAP;
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{fill, one_hot, scale};
use plimsoll_data::{
    Cache, Column, DataError, Dataset, Extent, Feed, Mix, Options, PadTo, Parallelism, Prefetch, Row, Schema, Shuffle, Tensor,
};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;
use tempfile::TempDir;

/// Books, threads and names: less than a row.
const BESIDE: Bytes = Bytes::kib(96);

/// The same of each stage.
const OF_A_STAGE: Bytes = Bytes::kib(3);

/// Floats in a row: so many that a row that is not counted stands out.
const WIDE: usize = 65_536;

static ROW: LazyLock<Arc<[f32]>> = LazyLock::new(|| (0..WIDE).map(|at| at as f32).collect());

fn schema(ragged: bool) -> Schema {
    let x = if ragged { Column::up_to("x", DType::F32, [WIDE]) } else { Column::new("x", DType::F32, [WIDE]) };
    Schema::new(vec![x, Column::new("y", DType::I32, [])]).unwrap()
}

fn source(kind: u8, rows: u8) -> Dataset {
    let (ragged, bad) = (kind.is_multiple_of(3), |n: u64| n % 7 == 5);
    let fault = || DataError::Stage("bad".into());
    match kind % 2 {
        0 => Dataset::from_fn(schema(ragged), u64::from(rows), move |n, row| {
            row.f32(0, if ragged { &ROW[..n as usize * 100] } else { &ROW })?;
            row.i32(1, &[n as i32])?;
            if bad(n) { Err(fault()) } else { Ok(()) }
        }),
        _ => Dataset::from_generator(schema(ragged), move |_| {
            (0..u64::from(rows)).map(move |n| match bad(n) {
                true => Err(fault()),
                false => Ok(vec![Tensor::f32([WIDE], Arc::clone(&ROW))?, Tensor::i32([], [n as i32])?]),
            })
        }),
    }
}

fn is_ragged(data: &Dataset) -> bool {
    data.output_schema().unwrap().columns().iter().any(|column| column.extent == Extent::UpTo)
}

/// The stage that a kind and an argument stand for, if it can stand here.
fn step(data: Dataset, kind: u8, by: u8, folder: &Path, number: usize) -> Dataset {
    let (n, some) = (usize::from(by), u64::from(by));
    let threads = |data: &Dataset| data.clone().parallelism(Parallelism::Threads(1 + n % 3));
    let row = data.output_schema().unwrap().row_bytes();
    let filed = data.describe().contains(".plc");
    match kind % 16 {
        0 => data.filter(move |row| row.int("y") % 4 != i64::from(by % 4)),
        1 => threads(&data).filter(|_| true),
        2 => data.skip(some % 3).shard(1 + some % 2, 0),
        3 => data.filter(|_| true).shuffle_buffer(Shuffle::seed(some), row * (1 + some % 4)),
        4 => data.ignore_errors(1000),
        5 => data.filter(|_| true).version("1").cache(Cache::MemoryUpTo(row * (some % 12))),
        6 => data.filter(|_| true).version("1").cache(Cache::File(folder.join(format!("{number}.plc")))),
        7 => data.filter(|_| true).bucket_by_length("y", [3, 6], 1 + n % 3),
        8 if is_ragged(&data) => threads(&data.map("x", [fill(1.0)])).filter(|_| true),
        8 => threads(&data.map("x", [scale(0.5)])).filter(|_| true),
        9 if is_ragged(&data) => data,
        9 => data.window(1 + n % 2, 1, 1 + n % 3).unbatch(),
        10 => data.repeat(1 + some % 2).take(12),
        11 => {
            let of = data.output_schema().unwrap();
            let to = of.clone();
            let expand = move |row: &Row<'_>| {
                let y = row.int("y") as i32;
                Ok(Dataset::from_fn(to.clone(), 1, move |_, row| row.i32(1, &[y])))
            };
            data.flat_map(of, row * 8 + Bytes::kib(4), expand)
        }
        // What is kept in a file has one reader at a time.
        _ if filed => data,
        12 => Dataset::interleave_parallel([threads(&data), data.clone(), threads(&data).filter(|_| true), data.take(3)], 1 + n % 4, 1),
        13 => Dataset::interleave([data.clone(), data.clone().filter(|_| true), threads(&data).take(3).filter(|_| true)], 1 + n % 3, 1),
        14 => Dataset::sample_from([(data.clone(), 1.0), (threads(&data).filter(|_| true), 0.5)], some),
        _ => Dataset::concatenate([data.clone().take(2), threads(&data).filter(|_| true)]),
    }
}

/// All rows of two epochs under a limit: what was planned for the heap, and what was taken there. A row that fails ends
/// it early.
fn taken(data: &Dataset, limit: Option<Bytes>) -> (Bytes, Bytes) {
    let plan = data.plan(limit).unwrap();
    let ledger = Ledger::new("host", limit);
    // There before anything is counted.
    LazyLock::force(&ROW);
    let before = HEAP.live.load(Relaxed);
    HEAP.peak.store(before, Relaxed);
    {
        let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(2), ..Options::default() }).unwrap();
        for _ in 0..2 {
            while let Ok(Some(_)) = feed.next() {}
        }
    }
    assert!(ledger.peak() <= plan.total());
    // The stacks of threads are not on the heap.
    let stacks = plan.stages().iter().filter(|(name, _)| name.ends_with("stack") || name.ends_with("stacks")).map(|(_, bytes)| *bytes);
    (plan.total() - stacks.sum(), Bytes(HEAP.peak.load(Relaxed) - before))
}

proptest! {
    #![proptest_config(cases(48))]

    /// The only test here, because the heap is that of the whole process.
    #[test]
    fn no_pipeline_takes_more_than_is_planned_for_it(
        (kind, rows) in (any::<u8>(), 0u8..10),
        steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..5),
        (batch, ahead, mixed) in (1usize..4, prop::option::of(0usize..3), any::<bool>()),
        last in 1usize..4,
        room in 0u64..=100,
    ) {
        let folder = TempDir::new().unwrap();
        let mut data = source(kind, rows);
        for (at, (kind, by)) in steps.iter().enumerate() {
            data = step(data, *kind, *by, folder.path(), at);
        }
        let to = if mixed { PadTo::Declared } else { PadTo::Longest };
        let mut data = data.padded_batch(batch, to, 0.0);
        if mixed {
            data = data.map("y", [one_hot(20)]).mix(Mix::up(0.5));
        }
        data = data.parallelism(Parallelism::Threads(last));
        let data = ahead.into_iter().fold(data, |data, ahead| data.prefetch(Prefetch::Batches(ahead)));
        let plan = data.plan(None).unwrap();
        let some = plan.minimum() + Bytes((plan.total() - plan.minimum()).0 * room / 100);
        for limit in [Some(some), Some(plan.minimum()), None] {
            let (planned, taken) = taken(&data, limit);
            let beside = BESIDE + OF_A_STAGE * data.describe().matches(['→', '|']).count() as u64;
            prop_assert!(taken <= planned + beside, "{} takes {taken} where {planned} are planned, in {limit:?} beside {beside}", data.describe());
        }
    }
}
