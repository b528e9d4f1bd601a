//! Maps behind a stage that takes rows one after the other: several threads do them side by side, and nobody can tell
//! from the rows.

mod collect;

use collect::{column, numbers};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Op, apply, random_brightness, scale};
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, Options, Parallelism, Schema, Shuffle, Tensor};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

const THREADS: [Parallelism; 4] = [Parallelism::Threads(1), Parallelism::Threads(2), Parallelism::Threads(5), Parallelism::Auto];

/// The numbers below `rows` that three does not divide, one after the other.
fn stream(rows: i32) -> Dataset {
    Dataset::range(0, rows, 1).unwrap().filter(|row| row.int("x") % 3 != 0)
}

/// The threads that have come.
#[derive(Default)]
struct Meeting {
    here: Mutex<HashSet<ThreadId>>,
    changed: Condvar,
}

impl Meeting {
    /// Waits until a second one is here as well; says whether one came.
    fn meet(&self) -> bool {
        let mut here = self.here.lock().unwrap();
        here.insert(thread::current().id());
        self.changed.notify_all();
        let (here, _) = self.changed.wait_timeout_while(here, Duration::from_secs(20), |here| here.len() < 2).unwrap();
        here.len() == 2
    }
}

/// One that two threads have to be doing at a time.
fn for_two() -> Dataset {
    let meeting = Arc::new(Meeting::default());
    let op = apply("meet", [], move |_, x, out| {
        out[0] = x[0];
        if meeting.meet() { Ok(()) } else { Err("no other thread came".into()) }
    });
    stream(300).map("x", [op]).parallelism(Parallelism::Threads(2))
}

#[test]
fn maps_behind_a_filter_are_done_side_by_side() {
    let rows = column(&for_two().batch(64), 0, 0, None).unwrap();
    assert_eq!(rows.len(), 200);
}

#[test]
fn maps_between_two_such_stages_are_done_side_by_side() {
    let rows = column(&for_two().filter(|_| true).batch(64), 0, 0, None).unwrap();
    assert_eq!(rows.len(), 200);
}

#[test]
fn rows_and_their_lots_are_the_same_on_any_number_of_threads_and_in_any_room() {
    let pictures = || {
        let schema = Schema::new(vec![Column::new("x", DType::F32, [5, 4, 3]), Column::new("y", DType::I32, [])]).unwrap();
        let rows = Dataset::from_generator(schema, |epoch| {
            (0..90).map(move |n| Ok(vec![Tensor::f32([5, 4, 3], vec![n as f32 + epoch as f32; 60])?, Tensor::i32([], [n])?]))
        });
        rows.map("x", [random_brightness(0.3, 4), apply("twice", [5, 4, 3], |_, x, out| twice(x, out))])
    };
    for data in [pictures().batch(8), pictures().shuffle_buffer(Shuffle::seed(3), Bytes::kib(8)).map("x", [scale(0.5)]).batch(8)] {
        for epoch in [0, 3] {
            let alone = data.clone().parallelism(Parallelism::Threads(1));
            let expected = column(&alone, 0, epoch, None).unwrap();
            assert_eq!(expected.len(), 90);
            for threads in THREADS {
                let data = data.clone().parallelism(threads);
                let least = data.plan(None).unwrap().minimum();
                for limit in [None, Some(least), Some(least + Bytes::kib(600)), Some(least + Bytes::mib(2))] {
                    assert!(column(&data, 0, epoch, limit).unwrap() == expected, "{threads:?} in {limit:?}");
                }
            }
        }
    }
}

fn twice(x: &[f32], out: &mut [f32]) -> Result<(), String> {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = 2.0 * x);
    Ok(())
}

#[test]
fn a_position_holds_for_any_number_of_threads() {
    let data = |threads| stream(500).map("x", [halved()]).parallelism(threads).batch(7);
    let expected = column(&data(Parallelism::Threads(1)), 0, 0, None).unwrap();
    for (threads, others) in THREADS.into_iter().zip(THREADS.into_iter().rev()) {
        let (before, after) = (data(threads), data(others));
        let ledger = Ledger::new("host", None);
        let mut feed = Feed::start(&before, &before.plan(None).unwrap(), &ledger, Options::default()).unwrap();
        (0..11).for_each(|_| assert!(feed.next().unwrap().is_some()));
        let options = Options { epochs: Some(1), ..Options::resume(&feed.state(), &after).unwrap() };
        let mut resumed = Feed::start(&after, &after.plan(None).unwrap(), &ledger, options).unwrap();
        let mut rest = Vec::new();
        while let Some(batch) = resumed.next().unwrap() {
            rest.extend(batch.column(0).chunks_exact(4).map(<[u8]>::to_vec));
        }
        assert!(rest == expected[77..], "{threads:?}, then {others:?}");
    }
}

/// Code, of which nobody knows how long it takes.
fn halved() -> Arc<dyn Op> {
    apply("half", [], |_, x, out| {
        out[0] = 0.5 * x[0];
        Ok(())
    })
}

/// Numbers, some of which the source has no row for, and some of which the map cannot take.
fn with_bad_rows() -> Dataset {
    with_bad_rows_of_a_generator().map(
        "x",
        [apply("careful", [], |_, x, out| {
            out[0] = x[0];
            match x[0] as i32 % 50 {
                29 => Err(format!("not {}", x[0])),
                33 => panic!("never {}", x[0]),
                _ => Ok(()),
            }
        })],
    )
}

#[test]
fn the_first_bad_row_is_told_whoever_meets_one_first() {
    for threads in THREADS {
        let data = with_bad_rows().parallelism(threads).batch(4);
        for _ in 0..10 {
            let problem = column(&data, 0, 0, None).unwrap_err().to_string();
            assert!(problem.contains("not 29"), "{threads:?}: {problem}");
        }
        let (ledger, plan) = (Ledger::new("host", None), data.plan(None).unwrap());
        let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
        let mut good = 0;
        while let Ok(Some(batch)) = feed.next() {
            good += batch.rows;
        }
        assert!(good <= 28 && feed.next().is_err(), "it stays so");
    }
}

#[test]
fn bad_rows_are_left_out_in_their_places() {
    let expected: Vec<f32> = (0..300).filter(|n| ![29, 31, 33].contains(&(n % 50))).map(|n| n as f32).collect();
    for threads in THREADS {
        let data = with_bad_rows().parallelism(threads).ignore_errors(100).batch(4);
        let least = data.plan(None).unwrap().minimum();
        for limit in [None, Some(least), Some(least + Bytes::mib(2))] {
            let rows = column(&data, 0, 0, limit).unwrap();
            assert_eq!(rows.iter().map(|row| f32::from_ne_bytes(row[..4].try_into().unwrap())).collect::<Vec<_>>(), expected);
        }
        let few = with_bad_rows().parallelism(threads).ignore_errors(17).batch(4);
        let problem = column(&few, 0, 0, None).unwrap_err().to_string();
        assert!(problem.contains("never 283"), "the eighteenth is one too many: {problem}");
    }
}

#[test]
fn rows_that_were_promised_are_counted_whoever_takes_them() {
    for threads in THREADS {
        let data = |rows| stream(300).assert_cardinality(rows).map("x", [halved()]).parallelism(threads);
        assert_eq!(column(&data(200).batch(9), 0, 0, None).unwrap().len(), 200);
        for (rows, words) in [(150, "more than 150 rows"), (250, "has 200 rows")] {
            let problem = column(&data(rows).batch(9), 0, 0, None).unwrap_err().to_string();
            assert!(problem.contains(words), "{problem}");
        }
    }
}

/// Threads make rows ahead of those that are wanted, and whatever is wrong with a later one is of no concern until its
/// turn comes.
#[test]
fn what_ends_a_stream_is_told_in_its_place() {
    let too_many = || with_bad_rows_of_a_generator().ignore_errors(2).map("x", [halved()]);
    let more_than_promised = || stream(300).assert_cardinality(150).map("x", [halved()]);
    // The third bad row is the 132nd of the generator.
    for (data, sound, words) in [(too_many(), 129, "more than 2 rows of epoch 0"), (more_than_promised(), 150, "more than 150 rows")] {
        for threads in THREADS {
            let data = data.clone().parallelism(threads);
            let enough = data.clone().take(sound).batch(4);
            let least = enough.plan(None).unwrap().minimum();
            for limit in [None, Some(least), Some(least + Bytes::mib(3))] {
                assert_eq!(column(&enough, 0, 0, limit).unwrap().len() as u64, sound, "{threads:?} in {limit:?}");
                let problem = column(&data.clone().take(sound + 1).batch(4), 0, 0, limit).unwrap_err().to_string();
                assert!(problem.contains(words), "{threads:?} in {limit:?}: {problem}");
            }
        }
    }
}

/// Numbers, some of which it has no row for.
fn with_bad_rows_of_a_generator() -> Dataset {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    Dataset::from_generator(schema, |_| {
        (0..300).map(|n| if n % 50 == 31 { Err(DataError::Stage(format!("no row {n}"))) } else { Ok(vec![Tensor::i32([], [n])?]) })
    })
}

/// The second time, there is nothing.
#[test]
fn an_epoch_that_cannot_be_begun_is_told_after_the_one_before() {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let once = Dataset::from_generator(schema, |epoch| {
        assert!(epoch == 0, "only once");
        (0..200).map(|n| Ok(vec![Tensor::i32([], [n])?]))
    });
    for threads in THREADS {
        let data = once.clone().map("x", [halved()]).parallelism(threads).repeat(2);
        let enough = data.clone().take(200).batch(8);
        for limit in [None, Some(enough.plan(None).unwrap().minimum())] {
            assert_eq!(column(&enough, 0, 0, limit).unwrap().len(), 200, "{threads:?} in {limit:?}");
            let problem = column(&data.clone().take(201).batch(8), 0, 0, limit).unwrap_err().to_string();
            assert!(problem.contains("only once"), "{threads:?} in {limit:?}: {problem}");
        }
    }
}

#[test]
fn rows_that_were_promised_come_before_what_is_wrong_with_those_after_them() {
    for (bad, words) in [(149.0, "not 149"), (150.0, "more than 150 rows"), (155.0, "more than 150 rows")] {
        let careful = apply("careful", [], move |_, x, out| {
            out[0] = x[0];
            if x[0] == bad { Err(format!("not {bad}")) } else { Ok(()) }
        });
        let data = Dataset::range(0, 300, 1).unwrap().filter(|_| true).assert_cardinality(150).map("x", [careful]).batch(4);
        for threads in THREADS {
            let data = data.clone().parallelism(threads);
            for limit in [None, Some(data.plan(None).unwrap().minimum())] {
                let problem = column(&data, 0, 0, limit).unwrap_err().to_string();
                assert!(problem.contains(words), "{threads:?} in {limit:?}: {problem}");
            }
        }
    }
}

#[test]
fn what_a_stage_is_given_is_looked_at_when_it_is_planned() {
    let never = Dataset::sample_from([(stream(30), 1.0), (stream(30), -1.0)], 3).map("x", [halved()]);
    for threads in THREADS {
        let problem = never.clone().parallelism(threads).filter(|_| true).batch(4).plan(None).unwrap_err().to_string();
        assert_eq!(problem, "sample_from has 2 data sets and the weights [1.0, -1.0]; give each one above 0");
    }
}

#[test]
fn batches_may_overtake_each_other_where_that_is_said_and_epochs_may_not() {
    let slow = apply("slow now and then", [], |_, x, out| {
        if x[0] as i32 % 64 == 1 {
            thread::sleep(Duration::from_millis(2));
        }
        out[0] = x[0];
        Ok(())
    });
    let data = stream(600).map("x", [slow]).parallelism(Parallelism::Threads(4)).deterministic(false).batch(8);
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options { epochs: Some(5), ..Options::default() }).unwrap();
    for _ in 0..5 {
        let mut rows = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            let batch: Vec<f32> = batch.column(0).as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            assert!(batch.is_sorted(), "a batch is whole");
            rows.extend(batch.into_iter().map(|x| x as i32));
        }
        rows.sort();
        assert!(rows.into_iter().eq((0..600).filter(|n| n % 3 != 0)));
    }
}

#[test]
fn the_last_batch_is_dropped_whoever_makes_it() {
    for threads in THREADS {
        let data = stream(300).map("x", [halved()]).parallelism(threads).drop_remainder().batch(33);
        assert_eq!(column(&data, 0, 0, None).unwrap().len(), 198);
        let none = stream(30).map("x", [halved()]).parallelism(threads).drop_remainder().batch(33);
        assert_eq!(column(&none, 0, 0, None).unwrap().len(), 0);
    }
}

/// Beginning an epoch may mean something to user code, so nobody does before it is asked for.
#[test]
fn no_epoch_is_begun_ahead_by_the_threads_of_a_stage() {
    let begun = Arc::new(AtomicUsize::new(0));
    let data = counted(&begun).map("x", [halved()]).parallelism(Parallelism::Threads(3)).filter(|_| true).batch(8);
    assert_eq!(rows_of_epochs(&data), [40; 3]);
    assert_eq!(begun.load(Ordering::Relaxed), 3);
}

/// A cache that is not whole begins the first epoch of what it reads each time, which may be before anybody wanted a
/// row of it.
#[test]
fn an_epoch_that_is_asked_for_twice_is_one() {
    let begun = Arc::new(AtomicUsize::new(0));
    let kept = counted(&begun).map("x", [halved()]).parallelism(Parallelism::Threads(3)).cache(Cache::MemoryUpTo(Bytes::kib(4)));
    assert_eq!(rows_of_epochs(&kept.take(0).batch(8)), [0; 3]);
    assert!(begun.load(Ordering::Relaxed) <= 1, "those after it were begun ahead");
}

#[test]
fn rows_kept_by_the_threads_of_a_stage_are_there_in_the_next_epoch() {
    for threads in THREADS {
        for cycle in [1, 2] {
            let begun = Arc::new(AtomicUsize::new(0));
            let part = || counted(&begun).cache(Cache::MemoryUpTo(Bytes::kib(4))).map("x", [halved()]).parallelism(threads);
            let several = (Dataset::interleave([part(), part()], cycle, 3), 2, 80);
            for (data, parts, rows) in [several, (part().repeat(2), 1, 80), (part().take(10), 1, 10)] {
                begun.store(0, Ordering::Relaxed);
                assert_eq!(rows_of_epochs(&data.clone().batch(8)), [rows; 3]);
                assert_eq!(begun.load(Ordering::Relaxed), parts, "{threads:?} in {}", data.describe());
            }
        }
    }
}

/// Forty numbers, and how often they were begun.
fn counted(begun: &Arc<AtomicUsize>) -> Dataset {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let begun = Arc::clone(begun);
    Dataset::from_generator(schema, move |_| {
        begun.fetch_add(1, Ordering::Relaxed);
        (0..40).map(|n| Ok(vec![Tensor::i32([], [n])?]))
    })
}

/// How many rows each of three epochs has; what is planned is what is taken.
fn rows_of_epochs(data: &Dataset) -> [usize; 3] {
    let (plan, ledger) = (data.plan(None).unwrap(), Ledger::new("host", None));
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(3), ..Options::default() }).unwrap();
    let rows = [(); 3].map(|()| {
        let mut rows = 0;
        while let Some(batch) = feed.next().unwrap() {
            rows += batch.rows;
        }
        rows
    });
    drop(feed);
    assert_eq!((ledger.peak(), ledger.used()), (plan.total(), Bytes::ZERO));
    rows
}

#[test]
fn threads_that_nobody_asked_for_go_where_the_line_is_tight() {
    let data = |threads| stream(3000).map("x", [halved()]).parallelism(threads).batch(16);
    let (auto, asked) = (data(Parallelism::Auto), data(Parallelism::Threads(4)));
    assert_eq!(asked.plan(None).unwrap().workers(), 4);
    let least = asked.plan(None).unwrap().minimum();
    assert_eq!(least, data(Parallelism::Threads(1)).plan(None).unwrap().minimum());
    for data in [&auto, &asked] {
        let plan = data.plan(Some(least)).unwrap();
        assert_eq!((plan.workers(), plan.total()), (1, least));
    }
    // Without maps there is nothing that another thread could do.
    assert_eq!(stream(300).parallelism(Parallelism::Threads(4)).batch(16).plan(None).unwrap().workers(), 1);
    // A factor is quicker than handing a row to somebody else.
    assert_eq!(stream(300).map("x", [scale(0.5)]).batch(16).plan(None).unwrap().workers(), 1);
}

#[test]
fn rows_of_a_stage_keep_their_order_behind_others() {
    let data = stream(900).map("x", [halved()]).parallelism(Parallelism::Threads(3));
    let data = data.enumerate("n").map("x", [scale(2.0)]).parallelism(Parallelism::Threads(2)).skip(5).batch(16);
    assert_eq!(numbers(&data, 0), (5..600).collect::<Vec<i32>>());
    let x = column(&data, 1, 0, None).unwrap();
    let x = x.iter().map(|row| f32::from_ne_bytes(row[..4].try_into().unwrap()) as i32);
    assert!(x.eq((0..900).filter(|n| n % 3 != 0).skip(5)));
}

/// Each stage is planned with all before it. If that were done from scratch whenever one of them gives way to the
/// limit, a dozen would take days.
#[test]
fn many_stages_with_threads_of_their_own_are_planned_in_any_limit() {
    let stage = |data: Dataset, _| data.filter(|_| true).map("x", [halved()]).parallelism(Parallelism::Threads(16));
    let data = (0..12).fold(Dataset::range(0, 40, 1).unwrap(), stage).batch(8);
    let plan = data.plan(None).unwrap();
    let (least, most) = (plan.minimum(), plan.total());
    for percent in 0..=100 {
        let limit = least + Bytes((most - least).0 * percent / 100);
        let plan = data.plan(Some(limit)).unwrap();
        assert!(plan.total() <= limit && plan.minimum() == least, "{percent} %: {plan}");
    }
    assert_eq!(column(&data, 0, 0, Some(Bytes((most.0 + least.0) / 2))).unwrap().len(), 40);
}
