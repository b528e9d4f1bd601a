//! Plans: what they count, how they shrink, and what they refuse. And stages that make no sense.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, normalize, one_hot, resize, scale};
use plimsoll_data::{Dataset, Feed, Mix, Options, Parallelism, PipelinePlan, Prefetch, RandomSpec, Shuffle, Split, Tensor};
use proptest::prelude::*;

fn images() -> Dataset {
    let spec = RandomSpec::new(20_000).bytes("x", [28, 28, 1]).labels("y", 10);
    Dataset::random(spec).unwrap().map("x", [resize(64, 64, Method::Bilinear), scale(1.0 / 255.0)])
}

fn geometry(plan: &PipelinePlan) -> (usize, usize) {
    (plan.slots(), plan.batches_per_slot())
}

#[test]
fn a_plan_reads_as_a_table() {
    let data = images().shuffle(Shuffle::seed(7)).map("y", [one_hot(10)]).parallelism(Parallelism::Threads(1)).batch(32);
    insta::assert_snapshot!(data.plan(None).unwrap(), @"
    producer stack    512 KiB
    shuffle              56 B
    map x            9.56 KiB
    map y                64 B
    staging ring     1.50 MiB
    total            2.01 MiB  (3 slots of 1 × 32 rows; minimum: 1.01 MiB)
    ");
}

#[test]
fn small_rows_share_a_slot_and_large_ones_do_not() {
    let floats = |shape: usize| Dataset::random(RandomSpec::new(1_000_000).floats("x", [shape])).unwrap();
    assert_eq!(geometry(&floats(10).batch(32).plan(None).unwrap()), (3, 409));
    assert_eq!(geometry(&floats(100_000).batch(32).plan(None).unwrap()), (3, 1));
    assert_eq!(geometry(&floats(10).batch(32).prefetch(Prefetch::Batches(1)).plan(None).unwrap()), (2, 1));
    assert_eq!(geometry(&floats(10).batch(32).prefetch(Prefetch::Batches(0)).plan(None).unwrap()), (1, 1));
    let deep = floats(10).batch(32).prefetch(Prefetch::Batches(1000)).plan(None).unwrap();
    assert!(deep.batches_ahead() >= 1000);
    // All of a small data set is one slot, however many rows are asked for at once.
    let few = Dataset::digits(Split::Train).batch(1_000_000).plan(None).unwrap();
    assert_eq!(few.stages().last().unwrap().1, Bytes(3 * (1438 * 64 + 1438 * 4 + 8)).align_up(64));
}

#[test]
fn opened_datasets_hold_what_they_share_once() {
    let tensors = || Dataset::from_tensor_slices([("x", Tensor::f32([1_000, 4], vec![0.0; 4_000]).unwrap())]).unwrap();
    let whole = Bytes(16_000);
    assert_eq!(Dataset::held_bytes([&tensors().batch(8)]).unwrap(), whole);
    assert_eq!(Dataset::held_bytes([&tensors().batch(8), &tensors().batch(8)]).unwrap(), whole + whole);
    let (train, held_out) = tensors().holdout(0.25, 1).unwrap();
    let (train, held_out) = (train.batch(8), held_out.batch(8));
    let each = [&train, &held_out].map(|part| Dataset::held_bytes([part]).unwrap() - whole);
    assert_eq!(Dataset::held_bytes([&train, &held_out]).unwrap(), whole + each[0] + each[1]);
}

proptest! {
    #[test]
    fn any_limit_at_or_above_the_minimum_is_met(batch in 1usize..500, limit in 0u64..3_000_000, shuffled: bool, prefetch in 0usize..50) {
        let mut data = images().batch(batch);
        if shuffled {
            data = images().shuffle(Shuffle::seed(1)).batch(batch).prefetch(Prefetch::Batches(prefetch));
        }
        let minimum = data.plan(None).unwrap().minimum();
        match data.plan(Some(Bytes(limit))) {
            Ok(plan) => {
                prop_assert!(plan.total() <= Bytes(limit) && minimum <= plan.total());
                prop_assert_eq!(&data.plan(Some(Bytes(limit))).unwrap(), &plan, "the same question has the same answer");
            }
            Err(error) => {
                prop_assert!(minimum > Bytes(limit));
                let least = format!("at least {minimum}");
                prop_assert!(error.to_string().contains(&least));
            }
        }
        prop_assert_eq!(data.plan(Some(minimum)).unwrap().total(), minimum);
    }
}

#[test]
fn the_books_hold_exactly_what_was_planned() {
    for data in [
        images().batch(32),
        images().shuffle(Shuffle::seed(1)).batch(7),
        Dataset::digits(Split::Test).map("x", [normalize([5.0], [6.0])]).map("y", [one_hot(10)]).batch(50),
    ] {
        let free = data.plan(None).unwrap();
        for limit in [None, Some(free.minimum()), Some(Bytes::kib(700).max(free.minimum()))] {
            let plan = data.plan(limit).unwrap();
            let ledger = Ledger::new("host", limit);
            let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() }).unwrap();
            while feed.next().unwrap().is_some() {}
            assert_eq!(ledger.peak(), plan.total());
            for ((name, bytes), owner) in plan.stages().iter().zip(ledger.owners()) {
                assert_eq!((format!("data: {name}"), *bytes), (owner.owner.to_string(), owner.peak));
            }
        }
    }
}

#[test]
fn refusals_say_what_to_do() {
    let plan = |data: Dataset| data.plan(None).unwrap_err().to_string();
    let digits = || Dataset::digits(Split::Train);
    insta::assert_snapshot!(images().batch(256).plan(Some(Bytes::mib(2))).unwrap_err(), @"the input pipeline cannot run in 2.00 MiB: it needs at least 4.51 MiB (producer stack 512 KiB, map x 5.00 KiB, staging ring 4.00 MiB); raise the limit or lower the batch size");
    insta::assert_snapshot!(plan(digits()), @"the data set has no batch size; add .batch(n)");
    insta::assert_snapshot!(plan(digits().batch(0)), @"batch(0) holds nothing; ask for at least one row");
    insta::assert_snapshot!(plan(digits().batch(8).take(10)), @"take(10) stands after batch(8) but counts rows; put it before the batch");
    insta::assert_snapshot!(plan(digits().batch(8).batch(2)), @"batch(2) stands after batch(8); a data set is batched once");
    insta::assert_snapshot!(plan(digits().map("z", [scale(1.0)]).batch(8)), @"there is no column `z`; the columns are x, y");
    insta::assert_snapshot!(plan(digits().map("x", [scale(f32::NAN)]).batch(8)), @"scale(NaN) cannot be applied to column `x`: the factor must be a finite number");
    insta::assert_snapshot!(plan(digits().map("x", [normalize([0.5, 0.5], [1.0, 1.0])]).batch(8)), @"normalize([0.5, 0.5], [1.0, 1.0]) cannot be applied to column `x`: give one mean and one deviation, or 1 of each for its last dimension");
    insta::assert_snapshot!(plan(digits().map("x", [normalize([0.5], [0.0])]).batch(8)), @"normalize([0.5], [0.0]) cannot be applied to column `x`: means must be finite and deviations finite and not zero");
    insta::assert_snapshot!(plan(digits().map("y", [resize(4, 4, Method::Nearest)]).batch(8)), @"resize(4, 4, nearest) cannot be applied to column `y`: its rows have shape [], and images are [height, width, channels]");
    insta::assert_snapshot!(plan(digits().map("x", [resize(0, 4, Method::Nearest)]).batch(8)), @"resize(0, 4, nearest) cannot be applied to column `x`: sides go from 1 to 16777216 pixels");
    insta::assert_snapshot!(plan(digits().map("x", [scale(1.0), one_hot(3)]).batch(8)), @"one_hot(3) cannot be applied to column `x`: its elements are f32, and labels are integers (u8 or i32)");
    insta::assert_snapshot!(plan(digits().map("y", [one_hot(0)]).batch(8)), @"one_hot(0) cannot be applied to column `y`: ask for at least one class");
    insta::assert_snapshot!(plan(digits().batch(8).prefetch(Prefetch::Batches(usize::MAX))), @"the ring for Batches(18446744073709551615) of batch(8) would take more than 1024 TiB; ask for less");
    let random = |spec| Dataset::random(spec).unwrap_err().to_string();
    insta::assert_snapshot!(random(RandomSpec::new(5).labels("y", 0)), @"column `y` has labels of 0 classes; ask for 1 to 2147483647");
    insta::assert_snapshot!(random(RandomSpec::new(5).floats("x", [usize::MAX, 2])), @"column `x` has rows of shape [18446744073709551615, 2], above the 256 GiB a row may take; split them");
    let endless = Dataset::random(RandomSpec::new(u64::MAX).floats("x", [1 << 20])).unwrap();
    insta::assert_snapshot!(plan(endless.batch(1 << 40)), @"batch(1099511627776) would take more than 1024 TiB; ask for less");
    insta::assert_snapshot!(plan(Dataset::random(RandomSpec::new(5)).unwrap().batch(1)), @"5 random rows (seed 0) has no columns; give it at least one");
}

#[test]
fn numbers_of_stages_that_are_a_mistake_are_refused_and_not_wrapped() {
    let rows = || Dataset::range(0, 9, 1).unwrap();
    for data in [
        rows().bucket_by_length("x", [3], usize::MAX),
        rows().bucket_by_length("x", [3], usize::MAX / 4),
        rows().repeat(u64::MAX).filter(|_| true).shuffle_buffer(Shuffle::seed(1), Bytes(u64::MAX)),
    ] {
        let said = data.clone().batch(2).plan(Some(Bytes::gib(1))).unwrap_err().to_string();
        assert!(said.contains("it needs at least") && said.contains(" TiB"), "{said}");
    }
    // A buffer for more rows than there are is one for all of them.
    let whole = |bytes| rows().filter(|_| true).shuffle_buffer(Shuffle::seed(1), Bytes(bytes)).batch(2);
    assert_eq!(whole(u64::MAX).plan(None).unwrap().total(), whole(9 * 4).plan(None).unwrap().total());
    assert_eq!(whole(u64::MAX).count_rows().unwrap(), 9);
    let endless = || rows().repeat(u64::MAX);
    let joins = [Dataset::concatenate([endless(), endless()]), Dataset::interleave([endless(), endless()], 2, 1)];
    for data in joins.into_iter().chain([Dataset::sample_from([(endless(), 1.0), (endless(), 1.0)], 1)]) {
        assert_eq!(data.size(), Some(u64::MAX), "{}", data.describe());
        assert_eq!(data.take(20).batch(20).count_rows().unwrap(), 20);
    }
    // Of nothing there is nothing to be ahead with.
    let none = rows().take(0).batch(4).prefetch(Prefetch::Batches(usize::MAX)).plan(None).unwrap();
    assert_eq!(geometry(&none), (1, 1));
    // A batch of more than there is, is what there is.
    let all = rows().map("x", [one_hot(9)]).enumerate("n").map("n", [one_hot(9)]).batch(usize::MAX).mix(Mix::up(1.0).columns("x", "n"));
    assert_eq!(all.count_rows().unwrap(), 9);
    // A batch of nothing stays one, however it is cut.
    for data in [rows().filter(|_| true).batch(0).drop_remainder(), rows().batch(0).deterministic(false)] {
        let said = data.rebatch(2).plan(None).unwrap_err().to_string();
        assert_eq!(said, "batch(0) holds nothing; ask for at least one row");
    }
}

#[test]
fn more_threads_than_a_system_begins_are_refused() {
    let told = |data: Dataset| data.batch(2).plan(None).unwrap_err().to_string();
    let rows = || Dataset::range(0, 9, 1).unwrap();
    let threads = rows().parallelism(Parallelism::Threads(100_000));
    assert_eq!(told(threads), "parallelism(100000) is more threads than do any good; ask for at most 1024");
    let parts = || (0..2000).map(|_| rows());
    assert_eq!(
        told(Dataset::interleave_parallel(parts(), 2000, 1)),
        "interleave_parallel(2000, 1) begins 2000 threads; ask for a cycle of at most 1024"
    );
    assert!(Dataset::interleave_parallel(parts(), 1024, 1).batch(2).plan(None).is_ok());
    assert!(Dataset::interleave_parallel(parts().take(2), 100_000, 1).batch(2).plan(None).is_ok(), "there are two parts");
}
