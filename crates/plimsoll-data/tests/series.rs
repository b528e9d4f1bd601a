//! Windows of time series: files that are read in sequence have the windows of one with random access.

use collect::floats;
use plimsoll_data::Dataset;
use plimsoll_data::source::{ArrowSpec, Csv, CsvSpec, ParquetSpec, Standardize, TableSpec, Window};
use std::path::{Path, PathBuf};

mod collect;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tables/series").join(name)
}

/// Inputs and labels.
fn windows(data: Dataset) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let data = data.batch(4);
    (floats(&data, 0), floats(&data, 1))
}

fn spec() -> TableSpec {
    TableSpec::new().targets(["load"]).standardize(Standardize::All)
}

#[test]
fn windows_of_streams_are_those_of_files_with_random_access() {
    let cases = [
        Window::new(5, 2),
        Window::new(4, 1).stride(3),
        Window::new(3, 2).sampling_rate(4).offset(2),
        Window::new(6, 1).horizons([1, 7, 30]).stride(20),
        Window::new(1, 1).stride(50),
    ];
    for (at, window) in cases.into_iter().enumerate() {
        for rows in [0..60, 7..60, 16..55] {
            let of_csv = |name: &str| {
                let spec = CsvSpec::from(spec()).window(window.clone()).rows(rows.clone());
                windows(Csv::open(&file(name), &spec).unwrap().dataset().unwrap())
            };
            let expected = of_csv("series.csv");
            assert!(!expected.0.is_empty() && expected.0.len() == expected.1.len());
            assert_eq!(of_csv("series.csv.gz"), expected, "{at} {rows:?}");
            let of_parquet = ParquetSpec::from(spec()).window(window.clone()).rows(rows.clone());
            assert_eq!(windows(Dataset::parquet(file("series.parquet"), &of_parquet).unwrap()), expected, "{at} {rows:?}");
            let of_arrow = ArrowSpec::from(spec()).window(window.clone()).rows(rows.clone());
            assert_eq!(windows(Dataset::arrow(file("series.feather"), &of_arrow).unwrap()), expected, "{at} {rows:?}");
        }
    }
}

#[test]
fn a_window_with_a_bad_row_is_a_bad_window() {
    let window = Window::new(4, 2).stride(2);
    let spec = || TableSpec::new().targets(["load"]).features(["load", "temperature"]);
    let csv = CsvSpec::from(spec()).window(window.clone()).lenient();
    let expected = windows(Csv::open(&file("hole.csv"), &csv).unwrap().dataset().unwrap().ignore_errors(100));
    let dropped = (60 - window.rows() as u64) / 2 + 1 - expected.0.len() as u64;
    assert_eq!(dropped, 6);
    let parquet = Dataset::parquet(file("hole.parquet"), &ParquetSpec::from(spec()).window(window.clone())).unwrap();
    assert_eq!(windows(parquet.clone().ignore_errors(100)), expected);
    let refused = collect::column(&parquet.batch(4), 0, 0, None).unwrap_err().to_string();
    assert!(refused.contains("row 20 (the first is 0): column `temperature` is empty"), "{refused}");
}

#[test]
fn parts_of_a_stream_are_consecutive_and_fitted_as_told() {
    let whole = ParquetSpec::new().targets(["load"]);
    let rows = |spec: ParquetSpec| windows(Dataset::parquet(file("series.parquet"), &spec).unwrap());
    let (all, first, rest) = (rows(whole.clone()), rows(whole.clone().part(0.0, 0.7)), rows(whole.clone().part(0.7, 1.0)));
    assert_eq!((first.0.len(), rest.0.len()), (42, 18));
    assert_eq!([first.1, rest.1].concat(), all.1);
    // Means are those of the selected rows.
    let standardized = ParquetSpec::from(spec().features(["temperature"])).rows(10..30);
    let data = Dataset::parquet(file("series.parquet"), &standardized).unwrap();
    let scale = data.scales().into_iter().find(|scale| scale.name == "temperature").unwrap();
    assert!((scale.mean - (10..30).map(|row| f64::from(row) / 2.0 - 3.0).sum::<f64>() / 20.0).abs() < 1e-12);
}

#[test]
fn windows_that_hold_nothing_are_refused() {
    let open = |spec: ParquetSpec| {
        let refused = Dataset::parquet(file("series.parquet"), &spec).err().map(|error| error.to_string());
        refused.unwrap().split(" cannot be read as Parquet: ").nth(1).unwrap().to_string()
    };
    let spec = || ParquetSpec::from(spec());
    assert_eq!(open(spec().window(Window::new(50, 11))), "its 60 rows (0..60) have no window of 50 and 11 rows; use more rows");
    assert_eq!(open(spec().rows(50..61)), "it has no rows 50 to 61; it has 60");
    assert_eq!(
        open(ParquetSpec::new().window(Window::new(5, 2))),
        "a window of 5 rows and 2 to predict, every 1, with 0 targets, holds nothing"
    );
}
