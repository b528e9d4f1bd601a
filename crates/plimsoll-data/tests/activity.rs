//! Where the time of a pipeline goes is reported stage by stage.

use plimsoll_core::Ledger;
use plimsoll_data::ops::scale;
use plimsoll_data::{Dataset, Feed, Options, Parallelism, Spent};

/// What two epochs took.
fn spent(data: &Dataset) -> Vec<Spent> {
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(data, &plan, &Ledger::new("host", None), Options { epochs: Some(2), ..Options::default() }).unwrap();
    for _ in 0..2 {
        while feed.next().unwrap().is_some() {}
    }
    feed.activity().times
}

/// Name, rows and threads of each.
fn told(data: &Dataset) -> Vec<(String, u64, usize)> {
    spent(data).into_iter().map(|spent| (spent.name, spent.rows, spent.threads)).collect()
}

fn row(name: &str, rows: u64, threads: usize) -> (String, u64, usize) {
    (name.to_string(), rows, threads)
}

#[test]
fn rows_with_numbers_are_read_and_mapped_by_all_threads() {
    let data = Dataset::range(0, 1000, 1).unwrap().map("x", [scale(0.5)]).parallelism(Parallelism::Threads(2)).batch(10);
    let times = told(&data);
    assert_eq!(times[..2], [row("read", 2000, 2), row("map", 2000, 2)]);
}

#[test]
fn stages_of_a_stream_are_told_one_by_one() {
    let rows = Dataset::range(0, 1000, 1).unwrap().map("x", [scale(0.5)]).parallelism(Parallelism::Threads(2));
    let data = rows.filter(|row| row.numbers("x").all(|x| x < 250.0)).enumerate("number").take(400).map("x", [scale(2.0)]).batch(10);
    let times = told(&data);
    let names: Vec<&str> = times.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["read", "map", "filter", "enumerate(number)", "take(400)", "map"]);
    // Threads that make rows ahead may have made more than were taken.
    assert!(times[0].1 >= 2 * 400 && times[0].2 == 2, "{times:?}");
    assert_eq!(times[4..], [row("take(400)", 800, 1), row("map", 800, 1)]);
}

/// Many inputs are reported as one: they are alike.
#[test]
fn parts_of_a_join_are_told_apart_while_they_are_few() {
    let part = |first: i32| Dataset::range(first, first + 10, 1).unwrap().filter(|_| true);
    let of = |parts: i32| Dataset::interleave((0..parts).map(|index| part(100 * index)), 2, 1).batch(5);
    let filters = |parts: i32| told(&of(parts)).into_iter().filter(|(name, ..)| name == "filter").collect::<Vec<_>>();
    assert_eq!(filters(3), [row("filter", 20, 1), row("filter", 20, 1), row("filter", 20, 1)]);
    assert_eq!(filters(30), [row("filter", 600, 1)]);
}
