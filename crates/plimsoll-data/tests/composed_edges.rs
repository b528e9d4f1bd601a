//! Numbers that are none, one, or as large as numbers get, in any stage: refused with words or carried out, and never a
//! panic.

mod case_count;
use case_count::cases;
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::apply;
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, Mix, Options, PadTo, Parallelism, Prefetch, Row, Schema, Shuffle, Tensor};
use proptest::prelude::*;

/// Any of them, few and small ones more often.
fn number() -> impl Strategy<Value = u64> {
    let far = vec![1 << 31, 1 << 32, 1 << 48, 1 << 62, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
    prop_oneof![3 => 0u64..4, 1 => prop::sample::select(far)]
}

fn rows() -> Schema {
    Schema::new(vec![Column::new("x", DType::F32, [2]), Column::new("y", DType::I32, [])]).unwrap()
}

fn source(kind: u8, count: u64) -> Dataset {
    match kind % 3 {
        0 => Dataset::from_fn(rows(), count, |n, row| row.i32(1, &[n as i32])),
        1 => Dataset::from_fn(rows(), count, |n, row| row.i32(1, &[n as i32])).filter(|_| true),
        _ => Dataset::from_generator_holding(rows(), Bytes(count), |_| {
            (0..7).map(|n| Ok(vec![Tensor::f32([2], [0.5, 1.5])?, Tensor::i32([], [n])?]))
        }),
    }
}

/// The stage that a kind and two numbers stand for.
fn step(data: Dataset, kind: u8, by: u64, and: u64) -> Dataset {
    let (n, m) = (by as usize, and as usize);
    match kind % 20 {
        0 => data.take(by),
        // Rows that are passed over are read, and one after the other that takes its time.
        1 => data.skip(by.min(20)),
        2 => data.shard(by.min(20), and.min(20)),
        // Nothing, again and again, takes its time as well.
        3 => {
            if data.origin(0, 0).is_some() {
                data.repeat(by)
            } else {
                data.repeat(by.min(20))
            }
        }
        4 => data.shuffle(Shuffle::seed(by)),
        5 => data.shuffle_buffer(Shuffle::seed(and), Bytes(by)),
        6 => data.filter(|_| true),
        7 => data.ignore_errors(by),
        8 => data.version("1").cache(Cache::MemoryUpTo(Bytes(by))),
        9 => data.version("1").cache(Cache::Memory),
        10 => data.window(n, m.min(20), 1 + m % 3),
        11 => data.unbatch(),
        12 => data.bucket_by_length("y", [1, 3], n),
        13 => data.assert_cardinality(by),
        14 => Dataset::interleave([data.clone(), data.clone().take(and), data], n, m),
        15 => Dataset::concatenate([data.clone(), data]),
        16 => Dataset::sample_from([(data.clone(), by as f64), (data, and as f64)], by),
        // Code, on threads that take turns at what is a stream.
        17 | 18 if data.output_schema().is_ok_and(|schema| schema.columns()[0].shape == [2]) => {
            let code = apply("half", [2], |_, x, out| {
                out[0] = x[0] * 0.5;
                Ok(())
            });
            data.map("x", [code]).parallelism(Parallelism::Threads(n.min(5)))
        }
        _ => {
            let expand = |row: &Row<'_>| {
                let y = row.int("y") as i32;
                Ok(Dataset::from_fn(rows(), 2, move |_, row| row.i32(1, &[y])))
            };
            data.flat_map(rows(), Bytes(by), expand)
        }
    }
}

/// A few batches of what can be planned. A limit is a limit: only what is there is ever reserved.
fn read_some(data: &Dataset, limit: Bytes, options: Options) -> Result<(), DataError> {
    let plan = data.plan(Some(limit))?;
    assert!(plan.minimum() <= plan.total() && plan.total() <= limit, "{plan}");
    let ledger = Ledger::new("host", Some(limit));
    let mut feed = Feed::start(data, &plan, &ledger, options)?;
    for _ in 0..4 {
        let before = feed.state();
        feed.next()?;
        Options::resume(&before, data)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_number_makes_a_pipeline_panic(
        (kind, count) in (any::<u8>(), number()),
        steps in prop::collection::vec((any::<u8>(), number(), number()), 0..5),
        (batch, again, ahead) in (number(), prop::option::of(number()), prop::option::of(number())),
        (drops, ordered, mixed, threads) in (any::<bool>(), any::<bool>(), any::<bool>(), prop::option::of(0usize..4)),
        (first_epoch, first_batch, epochs) in (number(), number(), prop::option::of(number())),
    ) {
        let mut data = source(kind, count);
        for (kind, by, and) in steps {
            data = step(data, kind, by, and);
            data.size();
            data.len();
        }
        data = threads.into_iter().fold(data, |data, threads| data.parallelism(Parallelism::Threads(threads)));
        data = data.deterministic(ordered).padded_batch(batch as usize, PadTo::Longest, 0.0);
        if drops {
            data = data.drop_remainder();
        }
        if mixed {
            data = data.map("y", [plimsoll_data::ops::one_hot(1 << 20)]).mix(Mix::up(1.0));
        }
        data = again.into_iter().fold(data, |data, rows| data.rebatch(rows as usize));
        data = ahead.into_iter().fold(data, |data, ahead| data.prefetch(Prefetch::Batches(ahead as usize)));
        data.batches();
        let first_batch = first_batch.min(20);
        for options in [Options::default(), Options { first_epoch, first_batch, epochs, ..Options::default() }] {
            let came = read_some(&data, Bytes::mib(8), options);
            prop_assert!(!matches!(came, Err(DataError::Panic { .. })), "{came:?} of {}", data.describe());
        }
    }
}
