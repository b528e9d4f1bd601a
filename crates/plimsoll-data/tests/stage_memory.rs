//! What a stream's stages take is what the plan counts for them: every kind of stage, in as much as there is and in the
//! minimum.

use heap::HEAP;
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Method, apply, cast_f32, decode, resize, scale};
use plimsoll_data::source::{ArrowSpec, Feature, ParquetSpec};
use plimsoll_data::{Column, DataError, Dataset, Feed, Options, Parallelism, Prefetch, Schema, Shuffle, Tensor};
use sample_files::{Value, example, gzip, npz, parquet, record};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

mod heap;
mod sample_files;

/// Books, threads, and names.
const BESIDE: Bytes = Bytes::kib(96);

/// Floats in a row: so many that a row that is not counted stands out.
const WIDE: usize = 65_536;

fn wide() -> Schema {
    Schema::new(vec![Column::new("x", DType::F32, [WIDE]), Column::new("y", DType::I32, [])]).unwrap()
}

fn rows(count: u64) -> Dataset {
    Dataset::from_fn(wide(), count, |n, row| {
        row.f32(0, &ROW)?;
        row.i32(1, &[n as i32])
    })
}

static ROW: [f32; WIDE] = [0.5; WIDE];

fn stream(count: u64) -> Dataset {
    rows(count).filter(|_| true)
}

fn generated(count: i32) -> Dataset {
    let row = |n| {
        let x: Arc<[f32]> = (0..WIDE).map(|at| at as f32).collect();
        Ok(vec![Tensor::f32([WIDE], x)?, Tensor::i32([], [n])?])
    };
    Dataset::from_generator(wide(), move |_| (0..count).map(row))
}

fn narrow() -> Schema {
    Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap()
}

fn is_good(n: u64) -> bool {
    n.is_multiple_of(1000)
}

/// So many small rows that most of them are bad and none of them is large.
fn bad() -> Dataset {
    Dataset::from_fn(narrow(), 60_000, |n, row| match is_good(n) {
        true => row.i32(0, &[n as i32]),
        false => Err(DataError::Stage(format!("row {n} is one of very many that are bad"))),
    })
}

fn bad_one_by_one() -> Dataset {
    Dataset::from_generator(narrow(), |_| (0..60_000).map(|n| Ok(vec![Tensor::i32([], [n])?])))
}

fn mapped_badly(data: Dataset) -> Dataset {
    let careful = |_: u64, x: &[f32], out: &mut [f32]| {
        out[0] = x[0];
        if is_good(x[0] as u64) { Ok(()) } else { Err(format!("{} is one of very many that are bad", x[0])) }
    };
    data.map("x", [apply("careful", [], careful)])
}

/// All rows of two epochs under a limit: what was planned for the heap, and what was taken there.
fn taken(data: &Dataset, limit: Option<Bytes>) -> Result<(Bytes, Bytes), DataError> {
    let plan = data.plan(limit)?;
    let stacks: Bytes = plan.stages().iter().filter(|(name, _)| name.contains("stack")).map(|(_, bytes)| *bytes).sum();
    let ledger = Ledger::new("host", limit);
    let before = HEAP.live.load(Relaxed);
    HEAP.peak.store(before, Relaxed);
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(2), ..Options::default() })?;
    for _ in 0..2 {
        let mut rows = 0;
        while let Some(batch) = feed.next()? {
            rows += batch.rows;
        }
        assert!(rows > 0, "{}", data.describe());
    }
    assert_eq!(ledger.peak(), plan.total());
    Ok((plan.total() - stacks, Bytes(HEAP.peak.load(Relaxed) - before)))
}

fn check(name: &str, data: Dataset) {
    let data = data.batch(2).prefetch(Prefetch::Batches(1));
    let free = data.plan(None).unwrap();
    for limit in [None, Some(Bytes((free.total().0 + free.minimum().0) / 2)), Some(free.minimum())] {
        let (planned, taken) = taken(&data, limit).unwrap();
        assert!(taken <= planned + BESIDE, "{name} takes {taken} where {planned} are planned, in {limit:?}");
    }
    let (planned, taken) = taken(&data, Some(free.minimum())).unwrap();
    // And no more is planned than there is a use for, where that does not depend on what is in a file.
    let by_need = ["flat_map", "parquet", "npz", "records", "pictures", "bad rows"].iter().any(|kind| name.contains(kind));
    assert!(by_need || planned <= taken + taken, "{name} takes {taken} where {planned} are planned");
}

/// One test, because the heap is that of the whole process.
#[test]
fn no_stage_takes_more_than_is_planned_for_it() {
    let ten = Shuffle::seed(1);
    let two = || [stream(9), stream(7)];
    let narrow = || Schema::new(vec![Column::new("x", DType::F32, [WIDE])]).unwrap();
    let bytes =
        Dataset::from_fn(Schema::new(vec![Column::new("x", DType::U8, [4 * WIDE])]).unwrap(), 9, |_, row| row.u8(0, &[7; 4 * WIDE]));
    let other = || Dataset::from_fn(Schema::new(vec![Column::new("z", DType::F32, [WIDE])]).unwrap(), 9, |_, row| row.f32(0, &ROW));
    for (name, data) in [
        ("by number", rows(9).map("x", [scale(0.5)])),
        ("filter", stream(9)),
        ("generator", generated(9)),
        ("take_while", rows(9).take_while(|row| row.int("y") < 7)),
        ("take", stream(9).take(5)),
        ("skip", stream(9).skip(2)),
        ("shard", stream(9).shard(2, 1)),
        ("repeat", stream(4).repeat(2)),
        ("shuffle", stream(9).shuffle_buffer(ten, Bytes::mib(2))),
        ("ignore_errors", generated(9).filter(|row| row.int("y") % 4 < 9).ignore_errors(3)),
        ("ignore_errors by number", rows(9).ignore_errors(3)),
        ("ignore_errors by threads", rows(9).parallelism(Parallelism::Threads(2)).filter(|_| true).ignore_errors(3)),
        ("bad rows by number", bad().ignore_errors(u64::MAX)),
        ("bad rows by threads", bad().parallelism(Parallelism::Threads(3)).filter(|_| true).ignore_errors(u64::MAX)),
        ("bad rows of a stream", mapped_badly(bad_one_by_one()).ignore_errors(u64::MAX)),
        ("bad rows of a stream by threads", mapped_badly(bad_one_by_one()).parallelism(Parallelism::Threads(3)).ignore_errors(u64::MAX)),
        ("enumerate", rows(9).enumerate("n")),
        ("zip", Dataset::zip([stream(9), other()])),
        ("concatenate", Dataset::concatenate(two())),
        ("sample_from", Dataset::sample_from(two().map(|part| (part, 1.0)), 3)),
        ("interleave", Dataset::interleave(two(), 2, 1)),
        ("interleave_parallel", Dataset::interleave_parallel(two(), 2, 1)),
        ("interleave in turns", Dataset::interleave([2, 9, 7, 5].map(|rows| stream(rows).window(3, 1, 1)), 2, 1)),
        ("interleave_parallel in turns", Dataset::interleave_parallel([2, 9, 7, 5].map(|rows| stream(rows).window(3, 1, 1)), 2, 1)),
        ("interleave_parallel, ignore_errors", Dataset::interleave_parallel(two(), 2, 1).ignore_errors(1)),
        (
            "flat_map",
            rows(5).flat_map(narrow(), Bytes::mib(2), |_| {
                Ok(Dataset::from_fn(Schema::new(vec![Column::new("x", DType::F32, [WIDE])])?, 2, |_, row| row.f32(0, &ROW)))
            }),
        ),
        ("window(3, 1, 1)", stream(9).window(3, 1, 1)),
        ("window(2, 1, 5)", stream(9).window(2, 1, 5)),
        ("window(2, 7, 1)", stream(20).window(2, 7, 1)),
        ("unbatch", stream(9).window(6, 3, 1).map("y", []).unbatch()),
        ("bucket_by_length", stream(9).bucket_by_length("y", [2, 5], 3)),
        ("maps of a stream", bytes.filter(|_| true).map("x", [cast_f32(), scale(0.1)])),
        ("maps between streams", stream(9).map("x", [scale(0.5)]).map("y", [cast_f32()]).filter(|_| true)),
    ] {
        check(name, data);
    }
    files();
}

/// Sources that are streams themselves.
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let noise = |count: usize| (0..count).map(|at| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64).collect::<Vec<f64>>();
    // Pages of growing size: what is read into grows with them.
    let groups: Vec<Vec<_>> =
        [100, 3_000, 20_000].map(|count| noise(count).into_iter().map(|x| ((x as i64 % 3 != 0).then_some(x), 5)).collect()).into();
    let table = Dataset::parquet(write("t.parquet", &parquet(&groups, 1 << 20).0), &ParquetSpec::new().features(["x"]).targets(["y"]));
    check("parquet", table.unwrap().ignore_errors(u64::MAX));
    for name in ["batches.arrow", "batches.arrows", "polars_zstd.arrow", "categories.arrow", "delta.arrows", "large_string_zstd.arrow"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tables").join(name);
        check("arrow, like parquet", Dataset::arrow(path, &ArrowSpec::new()).unwrap());
    }
    let x: Vec<u8> = noise(WIDE * 9).iter().flat_map(|x| x.to_le_bytes()).collect();
    let arrays = write("a.npz", &npz(&[("x", "<f8", &[9, WIDE], x)], |_| {}));
    check("npz", Dataset::npz(arrays, &[("x", "x")]).unwrap());
    let growing = [10usize, 700_000, 900_000, 1_000_000, 1_040_000].map(|bytes| record(&example(&[("x", Value::Bytes(&vec![7; bytes]))])));
    let records = write("r.tfrecord.gz", &gzip(&growing.concat()));
    check("records", Dataset::tfrecord(records, &[("x", Feature::u8("x", [1_040_000]).padded())]).unwrap());
    let pictures = [20u32, 400, 700, 900].map(|side| {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side, side);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&vec![side as u8; (side * side * 3) as usize]).unwrap();
        record(&example(&[("x", Value::Bytes(&bytes))]))
    });
    let feature = [("x", Feature::image("x"))];
    let small = |data: Dataset| data.max_item(Bytes::mib(6)).map("x", [decode(), resize(200, 200, Method::Area)]);
    let packed = Dataset::tfrecord(write("p.tfrecord.gz", &gzip(&pictures.concat())), &feature).unwrap();
    check("pictures", small(packed.clone()).shuffle_buffer(Shuffle::seed(1), Bytes::mib(1)));
    check("images by threads", small(packed).parallelism(Parallelism::Threads(3)).map("x", [scale(0.5)]));
    let chosen = Dataset::tfrecord(write("p.tfrecord", &pictures.concat()), &feature).unwrap().filter(|_| true);
    check("images chosen first", small(chosen.clone()).parallelism(Parallelism::Threads(3)));
    check("images chosen first, in turns", small(chosen.clone().skip(1)).enumerate("n"));
    check("images chosen first, ahead", Dataset::interleave_parallel([small(chosen.clone()), small(chosen)], 2, 1));
}
