//! How fast batches come out of a feed.
//!
//! ```text
//! cargo bench -p plimsoll-data --bench feed [-- DIRECTORY]
//! ```
//!
//! Writes 1,000,000 × 100 and 1,000,000 × 10 random float64 as `.npy` (840 MiB, into a temporary directory, or into
//! DIRECTORY where they are kept and found again) and reads them from the page cache with batches of 32, cast to f32.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, Op, resize, scale};
use plimsoll_data::{Dataset, Feed, Options, Parallelism, RandomSpec, Rows, Shuffle, Split};
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const ROWS: u64 = 1_000_000;
const LIMIT: Bytes = Bytes::mib(64);

fn main() {
    // Cargo passes `--bench`.
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.as_deref().unwrap_or(temporary.path());
    let (x, y) = (directory.join("x.npy"), directory.join("y.npy"));
    write_npy(&x, 100);
    write_npy(&y, 10);

    let npy = Dataset::npy(&[("x", &x)]).expect("the file just written");
    epochs("npy, in order", &npy.clone().batch(32));
    epochs("npy, shuffled", &npy.shuffle(Shuffle::seed(7)).batch(32));
    let both = Dataset::npy(&[("x", &x), ("y", &y)]).expect("the files just written");
    epochs("two npy, in order", &both.clone().batch(32));
    epochs("two npy, shuffled", &both.shuffle(Shuffle::seed(7)).batch(32));
    let spec = RandomSpec::new(ROWS).floats("x", [100]).labels("y", 10);
    epochs("random 100 f32", &Dataset::random(spec).expect("a sound specification").batch(32));
    let digits = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]);
    epochs("digits, shuffled", &digits.batch(32));
    let spec = RandomSpec::new(20_000).bytes("x", [28, 28, 1]).labels("y", 10);
    let images = Dataset::random(spec).expect("a sound specification");
    let larger = |data: Dataset| data.map("x", [resize(64, 64, Method::Bilinear), scale(1.0 / 255.0)]);
    let alone = |data: Dataset| data.parallelism(Parallelism::Threads(1)).batch(32);
    epochs("28×28 → 64×64, 1 thread", &alone(larger(images.clone())));
    epochs("28×28 → 64×64, all cores", &larger(images.clone()).batch(32));
    let stream = images.filter(|_| true);
    epochs("behind a filter, 1 thread", &alone(larger(stream.clone())));
    epochs("behind a filter, all cores", &larger(stream).batch(32));

    image("resize 28×28×1 → 64×64", resize(64, 64, Method::Bilinear), [28, 28, 1]);
    image("resize 320×240×3 → 224×224", resize(224, 224, Method::Bilinear), [240, 320, 3]);
}

fn epochs(name: &str, data: &Dataset) {
    let plan = data.plan(Some(LIMIT)).expect("a plan");
    let ledger = Ledger::new("host", Some(LIMIT));
    let mut feed = Feed::start(data, &plan, &ledger, Options::default()).expect("a feed");
    // One epoch to warm up; then enough of them that what was prefetched does not count.
    while feed.next().expect("a batch").is_some() {}
    let (start, spent, mut rows) = (Instant::now(), core_seconds(), 0);
    while rows < 3 * ROWS {
        while let Some(batch) = feed.next().expect("a batch") {
            rows += black_box(batch).rows as u64;
        }
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64() / 1e6;
    let core = (core_seconds() - spent) / rows as f64 * 1e6;
    println!("{name:28} {rate:7.2} million rows/s   {core:6.3} µs of a core a row   plan {}", plan.total());
}

/// Seconds of all cores that this process has used. Other programs on the machine change it less than they change the
/// clock.
fn core_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, in hundredths of a second on every Linux there is.
    (ticks(11) + ticks(12)) / 100.0
}

fn image(name: &str, op: Arc<dyn Op>, shape: [usize; 3]) {
    let column = plimsoll_data::Column::new("x", plimsoll_core::DType::U8, shape);
    let input = vec![77u8; column.row_bytes().get()];
    let mut output = vec![0u8; op.output(&column).expect("an image").row_bytes().get()];
    let mut kernel = op.kernel(&column);
    let start = Instant::now();
    let mut images = 0;
    while start.elapsed().as_secs_f64() < 0.5 {
        for _ in 0..100 {
            kernel.run(Rows::From(0), black_box(&input), &mut output).expect("an image");
        }
        images += 100;
    }
    println!("{name:28} {:7.2} µs an image", start.elapsed().as_secs_f64() / images as f64 * 1e6);
}

fn write_npy(path: &Path, columns: usize) {
    if path.exists() {
        return;
    }
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({ROWS}, {columns}), }}");
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).expect("a file in the directory"));
    let mut write = |bytes: &[u8]| out.write_all(bytes).expect("space for the file");
    write(b"\x93NUMPY\x01\x00");
    write(&118u16.to_le_bytes());
    write(format!("{header:117}\n").as_bytes());
    for index in 0..ROWS * columns as u64 {
        let bits = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 12 | 1f64.to_bits();
        write(&(f64::from_bits(bits) - 1.0).to_le_bytes());
    }
}
