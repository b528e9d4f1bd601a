//! Images per second: decoder and resizer alone in a bare loop, and the pipeline around them.
//!
//! ```text
//! cargo bench -p plimsoll-data --bench images -- FOLDER [THREADS]
//! ```
//!
//! FOLDER has one folder of JPEGs per class. Both sides read, decode, resize to 224×224 and divide by 255; the bare
//! loop throws the result away, the pipeline shuffles and hands out batches of 64.

use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Method, decode, resize, scale};
use plimsoll_data::source::ImageFolder;
use plimsoll_data::{Column, Dataset, Feed, ImageReader, Options, Parallelism, Rows, Shuffle, Source};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const EPOCHS: u64 = 3;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        return println!("images: give a folder of JPEGs, one folder per class, after --");
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.next().map_or(cores, |threads| threads.parse().expect("a number of threads"));
    let source = ImageFolder::open(&folder).expect("a folder of images");
    let rows = source.len();
    // In turns, because a machine is rarely the same twice.
    let (mut bare, mut free, mut held) = (0f64, 0f64, 0f64);
    for _ in 0..EPOCHS {
        bare = bare.max(rows as f64 / loop_alone(&source, threads));
        free = free.max(rows as f64 / pipeline(&folder, threads, None));
        held = held.max(rows as f64 / pipeline(&folder, threads, Some(Bytes::mib(53))));
    }
    println!("decoder and resizer alone   {bare:8.0} images/s on {threads} threads");
    println!("pipeline                    {free:8.0} images/s, {:.0} % of that", 100.0 * free / bare);
    println!("pipeline inside 53 MiB      {held:8.0} images/s, {:.0} % of that", 100.0 * held / bare);
}

/// Seconds for all images, cut among threads, without any of the pipeline.
fn loop_alone(source: &ImageFolder, threads: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut reader = ImageReader::new();
                let (mut path, mut pixels, mut out) = (PathBuf::new(), Vec::new(), vec![0u8; 224 * 224 * 3 * 4]);
                let (resize, scale) = (resize(224, 224, Method::Bilinear), scale(1.0 / 255.0));
                for row in (thread as u64..source.len()).step_by(threads) {
                    source.file(row, 0, &mut path);
                    let (height, width) = reader.read(&path, &mut pixels).expect("an image");
                    let column = Column::new("x", DType::U8, [height, width, 3]);
                    resize.kernel(&column).run(Rows::From(row), &pixels, &mut out).expect("an image");
                    let column = Column::new("x", DType::F32, [224, 224, 3]);
                    scale.kernel(&column).run_in_place(Rows::From(row), black_box(&mut out)).expect("an image");
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

/// Seconds for one epoch.
fn pipeline(folder: &Path, threads: usize, limit: Option<Bytes>) -> f64 {
    let ops: [Arc<_>; 3] = [decode(), resize(224, 224, Method::Bilinear), scale(1.0 / 255.0)];
    let data = Dataset::image_folder(folder).expect("a folder of images").shuffle(Shuffle::seed(7)).map("x", ops);
    let data = data.parallelism(Parallelism::Threads(threads)).batch(64);
    let plan = data.plan(limit).expect("a plan");
    let options = Options { epochs: Some(1), ..Options::default() };
    let mut feed = Feed::start(&data, &plan, &Ledger::new("host", limit), options).expect("a feed");
    let start = Instant::now();
    while let Some(batch) = feed.next().expect("a batch") {
        black_box(batch.rows);
    }
    start.elapsed().as_secs_f64()
}
