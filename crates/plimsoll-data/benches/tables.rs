//! The rate of reading tables with one thread within 64 MiB, in seconds of CPU time: the pass that infers and fits
//! columns when a table is opened, and an epoch.
//!
//! `cargo bench -p plimsoll-data --bench tables -- numbers.csv table.parquet text.csv:line table.parquet:int=c0,c1`,
//! where `:line` names a column of text, and `:int=` names categories that become indices instead of vectors with a
//! one. `rivals/table_rates.py` writes such tables.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::source::{
    ArrowSpec, ColumnKind, ColumnOptions, Csv, CsvSpec, Encode, Output, ParquetSpec, TableSpec, VocabularyOptions,
};
use plimsoll_data::{DataError, Dataset, Feed, Options, Parallelism};
use std::fs;

/// CPU seconds of the process, in hundredths.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("there is /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn open(path: &str, text: Option<&str>) -> Result<Dataset, DataError> {
    let mut spec = TableSpec::new().targets(["y".to_string()]);
    if let Some(indices) = text.and_then(|text| text.strip_prefix("int=")) {
        for name in indices.split(',') {
            let encode = Encode::Lookup(VocabularyOptions { oov: 1, ..VocabularyOptions::default() }, Output::Int);
            spec = spec.column(name, ColumnOptions { encode: Some(encode), ..ColumnOptions::default() });
        }
    } else if let Some(text) = text {
        let vocabulary = VocabularyOptions { max_tokens: Some(4000), ..VocabularyOptions::default() };
        let encode = Encode::Vectorize { tokens: Default::default(), vocabulary, output: Default::default(), length: Some(32) };
        spec = spec.column(text, ColumnOptions { kind: Some(ColumnKind::Text), encode: Some(encode), ..ColumnOptions::default() });
    }
    match path.rsplit('.').next() {
        Some("parquet") => Dataset::parquet(path, &ParquetSpec::from(spec)),
        Some("arrow" | "feather") => Dataset::arrow(path, &ArrowSpec::from(spec)),
        // As bad rows may be dropped, the table is not loaded into memory.
        _ => Csv::open(path.as_ref(), &CsvSpec::from(spec).lenient())?.dataset(),
    }
}

fn main() -> Result<(), DataError> {
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let (path, text) = argument.split_once(':').map_or((&argument[..], None), |(path, text)| (path, Some(text)));
        let megabytes = fs::metadata(path).map_or(0.0, |data| data.len() as f64 / 1e6);
        let (mut opening, mut epoch) = (f64::MAX, f64::MAX);
        for _ in 0..3 {
            let begun = cpu_seconds();
            let data = open(path, text)?.batch(1024).parallelism(Parallelism::Threads(1));
            opening = opening.min(cpu_seconds() - begun);
            let plan = data.plan(Some(Bytes::mib(64)))?;
            let begun = cpu_seconds();
            // The clock has a hundred ticks per second.
            let epochs = (600.0 / megabytes).ceil().clamp(1.0, 60.0);
            let options = Options { epochs: Some(epochs as u64), ..Options::default() };
            let mut feed = Feed::start(&data, &plan, &Ledger::new("host", Some(Bytes::mib(64))), options)?;
            for _ in 0..epochs as u64 {
                while feed.next()?.is_some() {}
            }
            epoch = epoch.min((cpu_seconds() - begun) / epochs);
        }
        println!("{argument}: {megabytes:.0} MB, opened at {:.0} MB/s, read at {:.0} MB/s", megabytes / opening, megabytes / epoch);
    }
    Ok(())
}
