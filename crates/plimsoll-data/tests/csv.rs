//! CSV files as rows and as windows over time.

use collect::{column, complaint, floats, ints};
use plimsoll_core::Bytes;
use plimsoll_data::source::{Csv, CsvSpec, CsvType, Standardize, Window};
use plimsoll_data::{Dataset, Parallelism, Shuffle};
use std::fs;
use std::path::{Path, PathBuf};

mod collect;

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

const FLOWERS: &str =
    "\u{feff}name,long,wide,\"of, class\"\r\n\"a \"\"rose\"\"\",1.5,2,0\r\n\r\nlily,-3,4e-1,2\r\n\"two\r\nlines\",0.25, 7 ,1";

#[test]
fn columns_are_chosen_and_typed() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "f.csv", FLOWERS);
    let data = Dataset::csv(&path, &CsvSpec::new().targets(["of, class"])).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[2], y: i32[]");
    assert_eq!(floats(&data.clone().batch(2), 0), [[1.5, 2.0], [-3.0, 0.4], [0.25, 7.0]]);
    assert_eq!(ints(&data.batch(2), 1), [[0], [2], [1]]);

    let spec = CsvSpec::new().features(["wide"]).targets(["of, class"]).column_type("of, class", CsvType::Float);
    let data = Dataset::csv(&path, &spec).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[1], y: f32[1]");
    assert_eq!(floats(&data.batch(3), 1), [[0.0], [2.0], [1.0]]);

    let data = Dataset::csv(&path, &CsvSpec::new()).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[3]");
}

#[test]
fn a_first_value_that_is_missing_or_infinite_loses_no_column() {
    let folder = tempfile::tempdir().unwrap();
    let chosen = |text: &str| {
        let path = file(folder.path(), "f.csv", text);
        let rows = Dataset::csv(&path, &CsvSpec::new().targets(["y"]).lenient());
        rows.map(|rows| {
            format!("{}: {}", rows.describe().split_once("rows ").unwrap().1, rows.ignore_errors(9).batch(2).count_rows().unwrap())
        })
    };
    assert_eq!(chosen("a,b,y\n1,2,0\n3,4,1\n").unwrap(), "0 to 2, a, b → y): 2");
    assert_eq!(chosen("a,b,y\n1,,0\n3,4,1\n").unwrap(), "0 to 2, a, b → y): 1");
    assert_eq!(chosen("a,b,y\n1,nan,0\n1,1e999,0\n3,4,1\n").unwrap(), "0 to 3, a, b → y): 1");
    assert_eq!(chosen("a,b,y\n1\n,word,0\n3,4,1\n").unwrap(), "0 to 3, a → y): 1", "a text is one, wherever it comes first");
    assert_eq!(chosen("a,b,y\n1,,0\n3, ,1\n").unwrap(), "0 to 2, a → y): 2", "a column without any value is none");
    let strict = |text: &str| Dataset::csv(file(folder.path(), "f.csv", text), &CsvSpec::new().targets(["y"])).err().unwrap();
    assert_eq!(
        strict("a,b,y\n1,,0\n3,4,1\n").to_string().rsplit_once('/').unwrap().1,
        "f.csv, line 2: column `b` is empty; fill missing values (`missing`), or leave the row or the column out"
    );
    assert_eq!(
        strict("a;b;z\n1;2;0\n").to_string().rsplit_once('/').unwrap().1,
        "f.csv, line 1: there is no column `y`; the columns are a, b, z",
        "the delimiter is detected"
    );
}

/// A table of `rows` rows: `t`, 10 t, and one that grows by thirds.
fn series(folder: &Path, rows: u32) -> PathBuf {
    let mut text = "date,t,tens,thirds\n".to_string();
    for row in 0..rows {
        text += &format!("day {row},{row},{},{}\n", row * 10, f64::from(row) / 3.0);
    }
    file(folder, "series.csv", &text)
}

#[test]
fn windows_have_what_is_known_and_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    let spec = CsvSpec::new().features(["t", "tens"]).targets(["tens"]).window(Window::new(2, 2).stride(3)).rows(1..9);
    let data = Dataset::csv(series(folder.path(), 20), &spec).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[2, 2], y: f32[2]");
    assert_eq!(floats(&data.clone().batch(4), 0), [[1.0, 10.0, 2.0, 20.0], [4.0, 40.0, 5.0, 50.0]]);
    assert_eq!(floats(&data.batch(4), 1), [[30.0, 40.0], [60.0, 70.0]]);
}

#[test]
fn all_rows_are_put_to_the_scale_of_those_that_are_learnt_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = series(folder.path(), 20);
    let spec = CsvSpec::new().features(["t"]).targets(["thirds"]).standardize(Standardize::All).rows(0..5);
    let training = Csv::open(&path, &spec).unwrap();
    let held_out = training.rows(10..12).unwrap();
    // The mean of 0..5 is 2 and the mean of the squared distances from it is 2.
    let deviation = 2f64.sqrt();
    let scaled = |t: f64| ((t - 2.0) / deviation) as f32;
    let close = |a: Vec<Vec<f32>>, b: &[f32]| assert!(a.concat().iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
    close(floats(&Dataset::from(training.clone()).batch(5), 0), &[0.0, 1.0, 2.0, 3.0, 4.0].map(scaled));
    close(floats(&Dataset::from(held_out.clone()).batch(5), 0), &[10.0, 11.0].map(scaled));
    close(floats(&Dataset::from(held_out).batch(5), 1), &[10.0, 11.0].map(scaled));
    let other = file(folder.path(), "other.csv", "thirds,more,t\n0,x,2\n");
    close(floats(&Dataset::from(training.other_file(&other).unwrap()).batch(5), 0), &[0.0]);
    let (name, mean, spread) = training.scales()[1];
    assert_eq!((name, mean as f32, spread as f32), ("thirds", 2.0 / 3.0, (deviation / 3.0) as f32));

    let spec = CsvSpec::new().features(["t"]).targets(["thirds"]).standardize(Standardize::Features).part(0.0, 0.25);
    let training = Csv::open(&path, &spec).unwrap();
    close(floats(&Dataset::from(training.part(0.5, 0.55).unwrap()).batch(5), 0), &[scaled(10.0)]);
    close(floats(&Dataset::from(training).batch(5), 1), &[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0, 4.0 / 3.0]);
}

#[test]
fn rows_are_the_same_from_memory_and_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let window = Window::new(30, 10);
    let spec = CsvSpec::new().targets(["tens"]).window(window).standardize(Standardize::All);
    let data = Dataset::csv(series(folder.path(), 40_000), &spec).unwrap().shuffle(Shuffle::seed(5)).batch(32);
    let small = Some(Bytes::kib(640));
    let in_memory = |limit| data.plan(limit).unwrap().stages().iter().find(|(name, _)| name == "rows in memory").map(|(_, bytes)| *bytes);
    assert_eq!((in_memory(None), in_memory(small)), (Some(Bytes(40_000 * 3 * 4)), None));
    let take = data.clone().rebatch(64);
    let in_memory = column(&take, 0, 3, None).unwrap();
    assert_eq!(in_memory.len(), 40_000 - 39);
    assert_eq!(column(&take.parallelism(Parallelism::Threads(2)), 0, 3, Some(Bytes::kib(1300))).unwrap(), in_memory);
}

#[test]
fn rows_in_a_run_are_those_that_are_read_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let spec = CsvSpec::new().targets(["thirds"]).standardize(Standardize::All).rows(7..981);
    let open = |spec: &CsvSpec| Dataset::csv(series(folder.path(), 1000), spec).unwrap().skip(3);
    let in_memory = floats(&open(&spec).batch(64), 0);
    assert_eq!(in_memory.len(), 981 - 10);
    // Rows that may be left out are never kept in memory.
    let spec = spec.lenient();
    let least = Some(open(&spec).batch(64).plan(None).unwrap().minimum());
    let one_by_one = column(&open(&spec).batch(1), 0, 0, least).unwrap();
    for (batch, limit) in [(1, None), (64, None), (1000, None), (64, least)] {
        let rows = open(&spec).batch(batch);
        let stages = rows.plan(limit).unwrap();
        assert!(stages.stages().iter().all(|(name, _)| name != "rows in memory"), "{stages}");
        assert_eq!(column(&rows, 0, 0, limit).unwrap(), one_by_one);
        assert_eq!(floats(&rows, 0), in_memory);
    }
}

#[test]
fn files_of_other_formats_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = |text: &str, spec: CsvSpec| complaint(Csv::open(&file(folder.path(), "t", text), &spec), folder.path());
    let json = || CsvSpec::new().targets(["y"]).json_lines();
    let complaints = [
        open("ARROW1\0\0\0\0\0\0\0\0\0\0\0\0", CsvSpec::new()),
        open("SQLite format 3\0\0\0\0\0\0\0\0\0\0\0", CsvSpec::new()),
        open("a\0\0\0b\0\0\0,\0\0\0", CsvSpec::new()),
        open("a,b\0\n1,2\n", CsvSpec::new()),
        open("[{\"a\": 1, \"y\": 0}]", json()),
        open("a,y\n1,0\n", json()),
        // The line is that of the first row without the key.
        open("{\"a\": 1, \"y\": 0}\n{\"a\": 2}\n{\"a\": 3, \"y\": 1}\n", json()),
        open("{\"a\": 1, \"y\": 0}\n{\"a\": 2}\n{\"a\": 3}\n", json()),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @r#"
    t, line 1: it is an Arrow file; set source = "arrow"
    t, line 1: it is an SQLite database, which is not read; export a query, such as with sqlite3 -header -csv data.db "select …" > table.csv
    t, line 1: it looks like UTF-16; save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8
    t, line 1: it is no text; save it as CSV, or set `source` to its format
    t, line 1: it begins a JSON array; write an object per line, as to_json(orient="records", lines=True) of pandas
    t, line 1: its JSON is invalid at byte 1; each line has one object, such as {"a": 1}
    t, line 2: column `y` is empty; fill missing values (`missing`), or leave the row or the column out
    t, line 2: column `y` is empty; fill missing values (`missing`), or leave the row or the column out
    "#);
}

#[test]
fn bad_tables_are_refused_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let open = |text: &str, spec: CsvSpec| complaint(Csv::open(&file(folder.path(), "t.csv", text), &spec), folder.path());
    let window = |length, horizon| CsvSpec::new().targets(["b"]).window(Window::new(length, horizon));
    let complaints = [
        complaint(Csv::open(&folder.path().join("none.csv"), &CsvSpec::new()), folder.path()),
        open("", CsvSpec::new()),
        open("a,b\n", CsvSpec::new()),
        open("a,b\n1,2\n\n3,\n", CsvSpec::new()),
        open("a,b\r\n1,2\r\n3,nan\r\n", CsvSpec::new()),
        open("a,b\n1,2\n3,four\n", CsvSpec::new()),
        open("a,b\n1,2\n3\n", CsvSpec::new()),
        open("a,b\n1,2\n3,4,5\n", CsvSpec::new()),
        open("a,b\n\"x\ny\",2\n3,\n", CsvSpec::new().features(["b"])),
        open("a,b\n1,2\n3,\"4\n5,6\n7,8\n", CsvSpec::new()),
        open("a,b\nx,y\n", CsvSpec::new()),
        open("a,b\n1,2\n", CsvSpec::new().targets(["c"])),
        open("a,a\n1,2\n", CsvSpec::new().features(["a"])),
        open("a,b\n1,2\n1,2.5\n", CsvSpec::new().targets(["b"]).column_type("b", CsvType::Int)),
        open("a,b,c\n1,2,2.5\n", CsvSpec::new().targets(["b", "c"]).column_type("b", CsvType::Int)),
        open("a,b\n1,2\n", CsvSpec::new().rows(0..2)),
        open("a,b\n1,2\n", CsvSpec::new().part(0.0, 0.1)),
        open("a,b\n1,2\n1,2\n", window(2, 1)),
        open("a,b\n1,2\n1,2\n", window(1, 0)),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @r#"
    cannot open none.csv: No such file or directory (os error 2)
    t.csv, line 1: there is nothing here; the first line names the columns
    t.csv, line 1: there are no rows after the names of the columns
    t.csv, line 4: column `b` is empty; fill missing values (`missing`), or leave the row or the column out
    t.csv, line 3: column `b` is nan, which nothing can be trained on; fill missing values (`missing`), or leave the row out
    t.csv, line 3: column `b` is "four", which is no number; choose another column or correct the row
    t.csv, line 3: it has 1 fields where the first line names 2 columns; correct it
    t.csv, line 3: it has 3 fields where the first line names 2 columns; correct it
    t.csv, line 4: column `b` is empty; fill missing values (`missing`), or leave the row or the column out
    t.csv, line 3: column `b` is "4\n5,6\n7,8\n", which is no number; choose another column or correct the row
    t.csv, line 1: no column is left to train on, without `a` (text) and 1 more; name columns in `columns` or as features
    t.csv, line 1: there is no column `c`; the columns are a, b
    t.csv, line 1: there is more than one column `a`; give each its own name
    t.csv, line 3: column `b` is 2.5, which is no integer of 32 bits; read it as float
    t.csv, line 1: its targets are partly integers and partly not; give them one type, such as float
    t.csv, line 1: it has no rows 0 to 2; it has 1
    t.csv, line 1: it has no rows 0 to 0; it has 1
    t.csv, line 1: its 2 rows (0..2) have no window of 2 and 1 rows; use more rows
    t.csv, line 1: a window of 1 rows and 0 to predict, every 1, with 1 targets, holds nothing
    "#);
}

#[test]
fn a_table_that_changes_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "t.csv", "a,b\n1,2\n3,4\n");
    let data = Dataset::csv(&path, &CsvSpec::new()).unwrap().batch(2);
    fs::write(&path, "a,b\n1,2\n").unwrap();
    let shorter = complaint(column(&data, 0, 0, None), folder.path());
    fs::write(&path, "a,b\n1,2\n3,x\n").unwrap();
    let other = complaint(column(&data, 0, 0, Some(data.plan(None).unwrap().minimum())), folder.path());
    insta::assert_snapshot!(format!("{shorter}\n{other}"), @r#"
    t.csv, line 2: row 1 was there when the file was opened and is not now; start again
    t.csv, line 3: column `b` is "x", which is no number; choose another column or correct the row
    "#);
}

#[test]
fn rows_that_cannot_be_used_are_named_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let text = "a,b\n0,1\n1,nan\n2,3\n3,oops\n4,5,6\n5,7\n";
    let path = file(folder.path(), "bad.csv", text);
    let spec = CsvSpec::new().targets(["b"]).column_type("b", CsvType::Float);
    let told = Dataset::csv(&path, &spec).unwrap_err().to_string();
    assert!(
        told.ends_with(
            "bad.csv, line 3: column `b` is nan, which nothing can be trained on; fill missing values (`missing`), or leave the row out"
        ),
        "{told}"
    );
    let lenient = Dataset::csv(&path, &spec.clone().lenient()).unwrap();
    assert_eq!(column(&lenient.clone().batch(2), 0, 0, None).unwrap_err().to_string(), told, "it is an error where it is read");
    for threads in [1, 3] {
        let data = lenient.clone().parallelism(Parallelism::Threads(threads)).ignore_errors(3);
        assert_eq!(floats(&data.clone().batch(2), 0).concat(), [0.0, 2.0, 5.0]);
        let (count, named) = data.ignored();
        assert_eq!(count, 3);
        let lines: Vec<bool> = named.iter().zip([3, 5, 6]).map(|(name, line)| name.contains(&format!("line {line}: "))).collect();
        assert_eq!(lines, [true; 3], "{named:?}");
    }
    // The scale is that of the rows that are used.
    let csv = Csv::open(&path, &spec.standardize(Standardize::All).lenient()).unwrap();
    let (_, mean, deviation) = csv.scales()[0];
    assert!((mean - 7.0 / 3.0).abs() < 1e-12 && (deviation - (38.0f64 / 9.0).sqrt()).abs() < 1e-12, "{mean} {deviation}");
}

#[test]
fn windows_have_sampling_rates_offsets_and_several_horizons() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let rows: String = (0..40).map(|t| format!("{t},{}\n", t * 10)).collect();
    std::fs::write(&path, format!("t,v\n{rows}")).unwrap();
    let windows = |window: Window| {
        let spec = CsvSpec::new().features(["t"]).targets(["v"]).window(window);
        let data = Dataset::csv(&path, &spec).unwrap();
        let (name, data) = (data.describe(), data.batch(4));
        let [x, y] = [0, 1].map(|column| floats(&data, column));
        (name.split(", ").skip(2).collect::<Vec<_>>().join(", "), x, y)
    };
    let (name, x, y) = windows(Window::new(3, 2).sampling_rate(6).offset(2).stride(5));
    assert_eq!(name, "3 rows of every 6th → [2, 3] ahead, every 5)");
    assert_eq!((x[1].clone(), y[1].clone(), x.len()), (vec![5.0, 11.0, 17.0], vec![290.0, 350.0], 2));
    let (name, x, y) = windows(Window::new(2, 0).horizons([1, 6, 24]));
    assert_eq!(name, "2 rows → [1, 6, 24] ahead, every 1)");
    assert_eq!((x[0].clone(), y[0].clone(), x.len()), (vec![0.0, 1.0], vec![20.0, 70.0, 250.0], 15));
    let refused = |window: Window| {
        let spec = CsvSpec::new().features(["t"]).targets(["v"]).window(window);
        Dataset::csv(&path, &spec).unwrap_err().to_string().replace(&format!("{}", folder.path().display()), "")
    };
    assert!(refused(Window::new(2, 2).offset(0)).contains("a target 0 rows after the last input is the input itself"));
    assert!(refused(Window::new(30, 2).sampling_rate(2)).contains("no window of 30 and 2 rows over 63 rows"));
}

#[test]
fn two_readers_of_a_compressed_table_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..20_000).map(|row| format!("{row},{}\n", row % 3)).collect();
    let path = folder.path().join("t.csv.gz");
    let mut gzip = flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, format!("a,y\n{rows}").as_bytes()).unwrap();
    gzip.finish().unwrap();
    let (training, held_out) = Dataset::csv(&path, &CsvSpec::new().targets(["y"])).unwrap().holdout(0.5, 1).unwrap();
    let parts = Dataset::interleave_parallel([training, held_out], 2, 1);
    let mut found: Vec<f32> = floats(&parts.batch(64), 0).concat();
    found.sort_by(f32::total_cmp);
    assert_eq!(found, (0..20_000).map(|row| row as f32).collect::<Vec<_>>());
}
