//! What a cache is worth: rows of a table parsed each time, from memory and from a file.
//!
//! ```text
//! cargo bench -p plimsoll-data --bench kept
//! ```
//!
//! Writes 200,000 rows of ten numbers and a class as text (17 MiB, into a temporary directory) and reads them in
//! batches of 32.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::source::CsvSpec;
use plimsoll_data::{Cache, Dataset, Feed, Options, Shuffle};
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const ROWS: u64 = 200_000;

/// Too little for all rows in memory, and enough for them.
const LITTLE: Bytes = Bytes::mib(6);
const ENOUGH: Bytes = Bytes::mib(32);

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let table = folder.path().join("table.csv");
    write(&table);
    let rows = || Dataset::csv(&table, &CsvSpec::new().targets(["y"])).expect("the table just written");
    let file = |name: &str| Cache::File(folder.path().join(name));
    for shuffles in [false, true] {
        let order = if shuffles { "shuffled" } else { "in order" };
        let ordered = |rows: Dataset| if shuffles { rows.shuffle(Shuffle::seed(7)) } else { rows };
        epochs(&format!("csv {order}, parsed"), &ordered(rows()), LITTLE);
        epochs(&format!("csv {order}, half in memory"), &ordered(rows().cache(Cache::Memory)), LITTLE);
        epochs(&format!("csv {order}, from memory"), &ordered(rows().cache(Cache::Memory)), ENOUGH);
        epochs(&format!("csv {order}, from a file"), &ordered(rows().cache(file(order))), LITTLE);
    }
    let stream = || rows().enumerate("n");
    epochs("stream, made", &stream(), LITTLE);
    epochs("stream, from memory", &stream().cache(Cache::Memory), ENOUGH);
    epochs("stream, from a file", &stream().cache(file("stream")), LITTLE);
}

fn epochs(name: &str, data: &Dataset, limit: Bytes) {
    let data = data.clone().batch(32);
    let plan = data.plan(Some(limit)).expect("a plan");
    let mut feed = Feed::start(&data, &plan, &Ledger::new("host", Some(limit)), Options::default()).expect("a feed");
    let mut epoch = || {
        let start = Instant::now();
        while let Some(batch) = feed.next().expect("a batch") {
            black_box(batch);
        }
        start.elapsed().as_secs_f64()
    };
    // The first fills the cache.
    let first = epoch();
    let later = (0..5).map(|_| epoch()).fold(f64::INFINITY, f64::min);
    let rate = |seconds: f64| ROWS as f64 / seconds / 1e6;
    println!("{name:28} {:7.2} then {:7.2} million rows/s   plan {}", rate(first), rate(later), plan.total());
}

fn write(path: &Path) {
    let mut out = BufWriter::new(File::create(path).expect("a file in the directory"));
    writeln!(out, "a,b,c,d,e,f,g,h,i,j,y").expect("space for the file");
    for row in 0..ROWS {
        for column in 0..10 {
            let word = (row * 10 + column).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            write!(out, "{:.4},", word as f64 / 65536.0).expect("space for the file");
        }
        writeln!(out, "{}", row % 10).expect("space for the file");
    }
}
