//! The rows of an epoch, for looking at.
#![allow(dead_code)]

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{DataError, Dataset, Feed, Options};

/// One column of one epoch under a limit, row by row. What is planned is what is taken.
pub fn column(data: &Dataset, column: usize, epoch: u64, limit: Option<Bytes>) -> Result<Vec<Vec<u8>>, DataError> {
    let (rows, peak, planned) = column_and_peak(data, column, epoch, limit)?;
    assert_eq!(peak, planned, "what is planned is what is taken");
    Ok(rows)
}

/// The same with the most that was taken, and what was planned.
pub fn column_and_peak(data: &Dataset, column: usize, epoch: u64, limit: Option<Bytes>) -> Result<(Vec<Vec<u8>>, Bytes, Bytes), DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(data, &plan, &ledger, Options { first_epoch: epoch, epochs: Some(1), ..Options::default() })?;
    let mut rows = Vec::new();
    while let Some(batch) = feed.next()? {
        let bytes = batch.column(column);
        rows.extend(bytes.chunks_exact(bytes.len() / batch.rows).map(<[u8]>::to_vec));
    }
    Ok((rows, ledger.peak(), plan.total()))
}

pub fn ints(data: &Dataset, index: usize) -> Vec<Vec<i32>> {
    let rows = column(data, index, 0, None).unwrap();
    rows.iter().map(|row| row.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()).collect()
}

pub fn floats(data: &Dataset, index: usize) -> Vec<Vec<f32>> {
    let rows = column(data, index, 0, None).unwrap();
    rows.iter().map(|row| row.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()).collect()
}

/// A column of single numbers.
pub fn numbers(data: &Dataset, index: usize) -> Vec<i32> {
    ints(data, index).concat()
}

/// The text of an error, with the folder of the test left out.
pub fn complaint<T>(result: Result<T, DataError>, folder: &std::path::Path) -> String {
    let error = result.err().expect("this should be refused").to_string();
    error.replace(&format!("{}/", folder.display()), "")
}
