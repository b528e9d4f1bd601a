//! Files and the cache share what there is: an image larger than usual is decoded where the cache was, and never is
//! more taken than planned.

mod image_files;

use image_files::{Folder, picture, png};
use plimsoll_core::budget::CountingAllocator;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, decode, resize};
use plimsoll_data::{Cache, Dataset, Feed, Options, Parallelism, Prefetch, Shuffle};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Space in which all rows are kept, but not while the giant is decoded as well.
const LIMIT: Bytes = Bytes::mib(27);

/// So many small images, and two giants that take more than the plan keeps for decoding.
fn folder(small: usize) -> Folder {
    let folder = Folder::new();
    for number in 0..small {
        let file = png(&picture(20, 20, number as u8), 20, 20, png::ColorType::Rgb);
        folder.write(&format!("one/{number:03}.png"), &file);
    }
    let giant = png(&picture(1900, 1900, 7), 1900, 1900, png::ColorType::Rgb);
    for name in ["one/100-giant.png", "one/z-giant.png"] {
        folder.write(name, &giant);
    }
    folder
}

fn data(folder: &Folder, threads: usize) -> Dataset {
    let data = folder.data().map("x", [decode(), resize(128, 128, Method::Bilinear)]).cache(Cache::Memory);
    let data = data.shuffle(Shuffle::seed(5));
    data.parallelism(Parallelism::Threads(threads)).batch(8).prefetch(Prefetch::Batches(1))
}

/// One test, because the heap is that of the whole process.
#[test]
fn the_cache_gives_way_to_a_giant_and_nothing_is_above_the_plan() {
    let folder = folder(290);
    let rows = |feed: &mut Feed| {
        // Epochs have different orders.
        let mut sums = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            let rows = batch.column(0).chunks_exact(batch.column(0).len() / batch.rows);
            sums.extend(rows.map(|row| row.iter().zip(1u64..).map(|(byte, at)| u64::from(*byte) * at).sum::<u64>()));
        }
        sums.sort_unstable();
        sums
    };
    let start = |data: &Dataset, limit| {
        let plan = data.plan(limit).unwrap();
        (Feed::start(data, &plan, &Ledger::new("host", limit), Options::default()).unwrap(), plan)
    };
    // The limited ones first: the heap remembers its peak.
    let mut expected: Option<Vec<u64>> = None;
    for threads in [2, 1] {
        let data = data(&folder, threads);
        let before = HEAP.live();
        let (mut feed, plan) = start(&data, Some(LIMIT));
        assert_eq!(plan.cached_rows(), 292);
        let mut epoch = |feed: &mut Feed| {
            let rows = rows(feed);
            assert!(*expected.get_or_insert_with(|| rows.clone()) == rows);
        };
        (0..4).for_each(|_| epoch(&mut feed));
        // Names of files in work, the books, and this test.
        let taken = HEAP.peak() - before;
        assert!(taken <= plan.total() + Bytes::kib(256), "{threads} threads: {taken} of {plan}");
        assert!(taken >= Bytes::mib(18), "the giant and most of the cache were there together: {taken}");
        if threads == 1 {
            // What gave way has come back.
            std::fs::rename(folder.path().join("data"), folder.path().join("away")).unwrap();
            epoch(&mut feed);
            std::fs::rename(folder.path().join("away"), folder.path().join("data")).unwrap();
        }
    }
    assert!(Some(rows(&mut start(&data(&folder, 1), None).0)) == expected);
}
