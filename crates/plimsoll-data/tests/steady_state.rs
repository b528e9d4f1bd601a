//! After a feed has started, nothing is allocated: neither by the threads that make batches nor by the consumer. The
//! count is of the whole process, so there is no test harness in it, whose threads take memory whenever they are let.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, decode, one_hot, resize, scale};
use plimsoll_data::{Cache, Dataset, Feed, Options, Parallelism, Shuffle, Split};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

mod npy_file;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches no
// memory that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let x = npy_file::write(directory.path(), "x.npy", "<f8", &[5000, 20], &bytes_of!((0..100_000).map(f64::from)));
    let npy = Dataset::npy(&[("x", x)]).unwrap();
    let digits = Dataset::digits(Split::Train)
        .shuffle(Shuffle::seed(1))
        .map("x", [resize(16, 16, Method::Bilinear), scale(1.0 / 16.0)])
        .map("y", [one_hot(10)]);
    let stream = digits.clone().enumerate("n").filter(|row| row.int("n") % 3 != 1);
    let stream = stream.shuffle_buffer(Shuffle::seed(2), Bytes::kib(64)).map("n", [scale(0.5)]);
    let kept = [
        npy.clone().cache(Cache::Memory).shuffle(Shuffle::seed(1)).batch(32),
        digits.clone().cache(Cache::File(directory.path().join("rows.plc"))).batch(32),
        stream.clone().cache(Cache::MemoryUpTo(Bytes::mib(2))).batch(32),
        stream.clone().version("1").cache(Cache::File(directory.path().join("epoch.plc"))).batch(32),
    ];
    let pictures = directory.path().join("pictures/one");
    std::fs::create_dir_all(&pictures).unwrap();
    for side in [24u16, 31, 40] {
        let encoder = jpeg_encoder::Encoder::new_file(pictures.join(format!("{side}.jpg")), 80).unwrap();
        encoder.encode(&vec![side as u8; usize::from(side) * 20 * 3], side, 20, jpeg_encoder::ColorType::Rgb).unwrap();
    }
    // One thread, which has seen the largest image in the first epochs; memory of another may be taken later.
    let pictures = Dataset::image_folder(pictures.parent().unwrap()).unwrap().parallelism(Parallelism::Threads(1));
    let pictures = pictures.shuffle(Shuffle::seed(3)).map("x", [decode(), resize(8, 8, Method::Bilinear)]).batch(2);
    let plain = [pictures, npy.clone().batch(32), npy.shuffle(Shuffle::seed(1)).batch(32), digits.batch(32), stream.batch(32)];
    for data in plain.into_iter().chain(kept) {
        let plan = data.plan(None).unwrap();
        let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options::default()).unwrap();
        let mut epochs = |count: u64| {
            for _ in 0..count {
                while feed.next().unwrap().is_some() {}
            }
        };
        // Every size of slot and image has been met after the first epochs.
        epochs(5);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        epochs(20);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{}", data.describe());
    }
}
