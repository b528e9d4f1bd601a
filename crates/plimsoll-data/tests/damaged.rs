//! Files that are read as a stream and are damaged in some places: what is left out of them, and where they are read
//! on.

use collect::{column, complaint, ints, numbers};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::finite;
use plimsoll_data::source::{Feature, ParquetSpec};
use plimsoll_data::{Dataset, Feed, FeedState, Options, Shuffle, Tensor};
use proptest::prelude::*;
use sample_files::{Value, example, gzip, npz, parquet, record};
use std::fs;
use std::path::{Path, PathBuf};

mod collect;
mod sample_files;

fn all(data: &Dataset) -> Vec<i32> {
    numbers(&data.clone().batch(4), 0)
}

/// Each limit that matters, and none.
fn limits(data: &Dataset) -> [Option<Bytes>; 3] {
    let plan = data.plan(None).unwrap();
    [Some(plan.minimum()), Some(Bytes((plan.minimum().0 + plan.total().0) / 2)), None]
}

/// A folder of files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn told(&self, names: &[String]) -> String {
        names.join("\n").replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn numbered(n: i64) -> Vec<u8> {
    record(&example(&[("n", Value::Ints(&[n]))]))
}

fn records(path: impl AsRef<Path>) -> Dataset {
    Dataset::tfrecord(path, &[("x", Feature::i32("n", []))]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A record with a wrong checksum or a wrong value is left out by itself, whatever the limit, also where files are
    /// read by threads.
    #[test]
    fn bad_records_of_packed_files_are_left_out_by_themselves(kinds in prop::collection::vec(prop::collection::vec(0u8..10, 0..30), 1..4)) {
        let files = Files::new();
        let (mut expected, mut paths, mut missing) = (Vec::new(), Vec::new(), 0);
        for (file, kinds) in kinds.iter().enumerate() {
            let mut bytes = Vec::new();
            for (at, kind) in kinds.iter().enumerate() {
                let n = (file * 100 + at) as i64;
                let mut framed = match kind {
                    1 => record(&example(&[("m", Value::Ints(&[n]))])),
                    2 => record(&example(&[("n", Value::Bytes(b"seven"))])),
                    3 => record(&example(&[("n", Value::Ints(&[1 << 40]))])),
                    // Longer than what is held.
                    4 if at == 3 => record(&vec![0; (4 << 20) + 1]),
                    _ => numbered(n),
                };
                if *kind == 0 {
                    let middle = framed.len() / 2 + 4;
                    framed[middle] ^= 1;
                }
                let is_good = *kind > 4 || (*kind == 4 && at != 3);
                missing += u64::from(!is_good);
                expected.extend(is_good.then_some(n as i32));
                bytes.extend(framed);
            }
            paths.push(files.write(&format!("{file}.tfrecord.gz"), &gzip(&bytes)));
        }
        let data = records(files.0.path().join("*.tfrecord.gz")).ignore_errors(1000);
        let batched = data.clone().batch(7);
        for limit in limits(&batched) {
            let came = column(&batched, 0, 2, limit).unwrap();
            prop_assert_eq!(came.concat(), expected.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>());
            prop_assert_eq!(data.ignored_in(2).0, missing);
        }
        // The same rows in the order of an interleave, with a thread for each file and without.
        let parts = || paths.iter().map(records);
        let threads = Dataset::interleave_parallel(parts(), 2, 2).ignore_errors(1000);
        let alone = Dataset::interleave(parts(), 2, 2).ignore_errors(1000);
        prop_assert_eq!(all(&threads), all(&alone));
        prop_assert_eq!((threads.ignored(), threads.ignored().0), (alone.ignored(), missing));
    }

    /// Values that are missing or do not fit are rows by themselves; a page that cannot be unpacked takes the rest of
    /// its group.
    #[test]
    fn bad_rows_and_broken_groups_of_parquet_are_left_out(
        kinds in prop::collection::vec(prop::collection::vec(0u8..8, 1..25), 1..5),
        broken in prop::option::of((0usize..5, 0usize..20)),
    ) {
        let files = Files::new();
        let row = |group: usize, at: usize, kind: u8| match kind {
            0 => (None, (group * 100 + at) as i64),
            1 => (Some(at as f64), 1 << 40),
            2 => (None, 1 << 40),
            _ => (Some(at as f64 + 0.5), (group * 100 + at) as i64),
        };
        let groups: Vec<Vec<_>> = kinds.iter().enumerate()
            .map(|(group, kinds)| kinds.iter().enumerate().map(|(at, kind)| row(group, at, *kind)).collect()).collect();
        let (mut bytes, places) = parquet(&groups, 4);
        // Past the head of the gzip.
        let damaged = broken.map(|(group, page)| (group % groups.len(), page % places[group % groups.len()].len()));
        if let Some((group, page)) = damaged {
            let at = places[group][page];
            bytes[at + 10..at + 18].fill(0xA5);
        }
        let (mut expected, mut missing) = (Vec::new(), 0);
        for (group, kinds) in kinds.iter().enumerate() {
            let pages = kinds.len().div_ceil(4);
            // Pages of either column are read when their first row is come to.
            let until = damaged.filter(|(of, _)| *of == group).map_or(kinds.len(), |(_, page)| page % pages * 4);
            missing += u64::from(until < kinds.len());
            for (at, kind) in kinds[..until].iter().enumerate() {
                missing += u64::from(*kind < 3);
                expected.extend((*kind >= 3).then_some((group * 100 + at) as i32));
            }
        }
        let path = files.write("t.parquet", &bytes);
        let spec = ParquetSpec::new().features(["x"]).targets(["y"]);
        let data = Dataset::parquet(&path, &spec).unwrap();
        let alone = data.clone().ignore_errors(1000);
        let batched = alone.clone().batch(5);
        for limit in limits(&batched) {
            prop_assert_eq!(column(&batched, 1, 0, limit).unwrap().concat(), expected.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>());
            prop_assert_eq!(alone.ignored_in(0).0, missing);
        }
        let threads = Dataset::interleave_parallel([data], 1, 1).ignore_errors(1000);
        prop_assert_eq!(numbers(&threads.clone().batch(5), 1), expected);
        prop_assert_eq!(threads.ignored(), alone.ignored());
    }

    /// A number that does not fit is a row of a packed array by itself; what is behind damage is lost at once.
    #[test]
    fn bad_rows_of_packed_arrays_are_left_out(kinds in prop::collection::vec(0u8..6, 1..40), cut in prop::option::of(0usize..1000)) {
        let files = Files::new();
        let x: Vec<u8> = (0..kinds.len() as i64).flat_map(i64::to_le_bytes).collect();
        let y: Vec<u8> = kinds.iter().zip(0i64..).flat_map(|(kind, n)| (if *kind == 0 { 1 << 40 } else { n * 2 }).to_le_bytes()).collect();
        let rows = [kinds.len()];
        let whole = npz(&[("x", "<i8", &rows, x.clone()), ("y", "<i8", &rows, y.clone())], |_| {});
        let good: Vec<i32> = kinds.iter().zip(0..).filter(|(kind, _)| **kind > 0).map(|(_, n)| n).collect();
        let open = |bytes: &[u8]| Dataset::npz(files.write("a.npz", bytes), &[("x", "x"), ("y", "y")]);
        let data = open(&whole).unwrap().ignore_errors(100);
        prop_assert_eq!(all(&data), good.clone());
        prop_assert_eq!(data.ignored().0, (kinds.len() - good.len()) as u64);
        // Cut off somewhere: a beginning of the same rows, and one more that is counted, or refused at once.
        if let Some(cut) = cut {
            let damaged = npz(&[("x", "<i8", &rows, x), ("y", "<i8", &rows, y)], |packed| packed.truncate(packed.len() - 1 - cut % (packed.len() / 2)));
            if let Ok(data) = open(&damaged) {
                let data = data.ignore_errors(100);
                let came = all(&data);
                prop_assert_eq!(&came[..], &good[..came.len()]);
                let (count, names) = data.ignored();
                let before = kinds[..].iter().zip(0..).filter(|(kind, n)| **kind == 0 && came.last().is_some_and(|last| n < last)).count() as u64;
                prop_assert!(count >= before && count as usize <= 1 + kinds.len() - good.len());
                prop_assert!(came.len() == good.len() || names.last().unwrap().contains("cannot be unpacked"), "{:?}", names);
            }
        }
    }
}

#[test]
fn damage_in_the_middle_of_files_counts_once_and_the_next_file_follows() {
    let files = Files::new();
    let rows = |range: std::ops::Range<i64>| range.flat_map(numbered).collect::<Vec<u8>>();
    let broken_length = {
        let mut bytes = rows(20..24);
        let second = numbered(20).len();
        bytes[second + 1] ^= 1;
        bytes
    };
    let mut torn = gzip(&rows(10..18));
    let middle = torn.len() / 2;
    torn[middle..middle + 8].fill(0xFF);
    let cut = gzip(&rows(30..38));
    let cut = &cut[..cut.len() - 12];
    for (name, bytes) in [
        ("0", &gzip(&rows(0..3))[..]),
        ("1", &torn),
        ("2", &gzip(&broken_length)),
        ("3", cut),
        ("4", b"text"),
        ("5", b""),
        ("6", &gzip(&rows(60..62))),
    ] {
        files.write(&format!("{name}.tfrecord.gz"), bytes);
    }
    let data = records(files.0.path().join("*.gz")).ignore_errors(6);
    let came = all(&data);
    assert_eq!((&came[..3], came[came.len() - 2..].to_vec()), (&[0, 1, 2][..], vec![60, 61]));
    assert!(came.contains(&20) && !came.contains(&21), "{came:?}");
    assert!(came.is_sorted() && came.iter().any(|n| (30..38).contains(n)), "{came:?}");
    let (count, names) = data.ignored();
    assert_eq!(count, 5, "{names:?}");
    assert!(files.told(&names[..1]).starts_with("1.tfrecord.gz, the record at byte "), "{names:?}");
    let at = numbered(20).len();
    assert!(names[1].contains(&format!("2.tfrecord.gz, the record at byte {at}: its length does not match its checksum")), "{names:?}");
    assert!(names[2].contains("3.tfrecord.gz") && names[2].contains("the file ends inside it"), "{names:?}");
    assert!(names[3].contains("4.tfrecord.gz, the record at byte 0: "), "{names:?}");
    // A file that went away counts once, too.
    fs::remove_file(files.0.path().join("0.tfrecord.gz")).unwrap();
    let again = data.clone().batch(4);
    assert_eq!(column(&again, 0, 1, None).unwrap().len(), came.len() - 3);
    assert_eq!(data.ignored_in(1).0, 6);
    assert!(data.ignored_in(1).1[0].starts_with("cannot open"));
    // Side by side, nobody could say which rows belong together.
    let beside = Dataset::from_tensor_slices([("y", Tensor::i32([100], vec![7; 100]).unwrap())]).unwrap();
    let zipped = Dataset::zip([records(files.0.path().join("[1-6].*.gz")), beside]);
    let told = complaint(column(&zipped.ignore_errors(9).batch(2), 0, 0, None), files.0.path());
    assert!(told.contains("so zip cannot tell which stand beside each other after it"), "{told}");
}

#[test]
fn a_bad_number_is_left_out_of_what_is_mapped_behind_a_stream() {
    let files = Files::new();
    let y = |n: i64| if n % 4 == 1 { f64::NAN } else { n as f64 };
    let rows: Vec<Vec<_>> = vec![(0..30).map(|n| (Some(y(n)), n)).collect()];
    let path = files.write("t.parquet", &parquet(&rows, 7).0);
    let data = Dataset::parquet(&path, &ParquetSpec::new().features(["y"]).targets(["x"])).unwrap();
    let data = data.map("y", [finite()]).ignore_errors(8);
    assert_eq!(ints(&data.clone().batch(4), 0).len(), 22);
    let nan = "t.parquet, row 5 (the first is 0): column `x` is NaN, which nothing can be trained on; fill missing values (`missing`), or leave the row out";
    assert_eq!(files.told(&data.ignored().1[1..2]), nan);
}

/// Shards of damaged files, of which another number goes on in the middle of an epoch.
#[test]
fn shards_of_damaged_files_have_every_row_that_is_left_once() {
    let files = Files::new();
    for file in 0..4i64 {
        let mut bytes: Vec<u8> = (file * 100..file * 100 + 60).flat_map(numbered).collect();
        let place = bytes.len() / 2;
        // A byte of a value, or of a length.
        bytes[if file % 2 == 0 { place } else { place / 30 * 30 + 1 }] ^= 1;
        files.write(&format!("{file}.tfrecord.gz"), &gzip(&bytes));
    }
    let parts = || (0..4).map(|file| records(files.0.path().join(format!("{file}.tfrecord.gz"))));
    let rows = || Dataset::interleave_parallel(parts(), 3, 2).ignore_errors(4).shuffle_buffer(Shuffle::seed(3), Bytes(80));
    let expected = {
        let mut all = all(&rows());
        all.sort_unstable();
        all
    };
    assert!(expected.len() > 120 && expected.len() < 236 && expected.windows(2).all(|two| two[0] < two[1]), "{expected:?}");
    let (mut seen, mut state) = (Vec::new(), None::<FeedState>);
    for (shards, batches) in [(3u64, 4), (2, 6), (4, usize::MAX)] {
        let mut next = None;
        for shard in 0..shards {
            let data = rows().shard(shards, shard).batch(5);
            let options = state.as_ref().map_or(Options::default(), |state| Options::resume(state, &data).unwrap());
            let mut feed = Feed::start(&data, &data.plan(None).unwrap(), &Ledger::new("host", None), options).unwrap();
            for _ in 0..batches {
                let Some(batch) = feed.next().unwrap() else { break };
                seen.extend(batch.column(0).as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)));
            }
            next = Some(feed.state());
        }
        state = next;
    }
    seen.sort_unstable();
    assert_eq!(seen, expected);
}
