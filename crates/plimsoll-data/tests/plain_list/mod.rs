//! What stages do, worked out on a list: each place has a row, or none where it failed.
#![allow(dead_code)]

use std::collections::VecDeque;

/// `block` places of each of `cycle` lists in turn; when one is used up, the next takes its place.
pub fn interleaved<T>(parts: Vec<Vec<T>>, cycle: usize, block: usize) -> Vec<T> {
    let mut waiting: VecDeque<_> = parts.into_iter().map(Vec::into_iter).collect();
    let mut open: Vec<_> = waiting.drain(..cycle.min(waiting.len())).collect();
    let (mut out, mut turn, mut given) = (Vec::new(), 0, 0);
    while !open.is_empty() {
        if given == block {
            (turn, given) = ((turn + 1) % open.len(), 0);
        }
        if let Some(row) = open[turn].next() {
            out.push(row);
            given += 1;
            continue;
        }
        given = 0;
        match waiting.pop_front() {
            Some(next) => open[turn] = next,
            None => {
                open.remove(turn);
                turn = if turn == open.len() { 0 } else { turn };
            }
        }
    }
    out
}

/// `size` rows that are `stride` apart, beginning every `shift` places. What failed keeps its place, and no window
/// reaches over it.
pub fn windows<T: Clone>(all: Vec<Option<T>>, size: usize, shift: usize, stride: usize) -> Vec<Option<Vec<T>>> {
    let span = (size - 1) * stride + 1;
    let (mut out, mut missing) = (Vec::new(), span);
    for (at, row) in all.iter().enumerate() {
        missing -= 1;
        if row.is_none() {
            out.push(None);
        }
        if missing == 0 {
            missing = shift;
            let reach: Option<Vec<T>> = all[at + 1 - span..=at].iter().cloned().collect();
            out.extend(reach.map(|rows| Some(rows.into_iter().step_by(stride).collect())));
        }
    }
    out
}

/// Rows in batches on the same side of every boundary, as they become full; what is left comes last, the shortest
/// first.
pub fn bucketed<T: Clone>(all: Vec<Option<T>>, boundaries: &[i64], batch: usize, length: impl Fn(&T) -> i64) -> Vec<Option<T>> {
    let (mut out, mut waiting) = (Vec::new(), vec![Vec::new(); boundaries.len() + 1]);
    for row in all {
        let Some(long) = row.as_ref().map(&length) else {
            out.push(None);
            continue;
        };
        let bucket = &mut waiting[boundaries.iter().filter(|boundary| **boundary <= long).count()];
        bucket.push(row);
        if bucket.len() == batch {
            out.append(bucket);
        }
    }
    out.extend(waiting.concat());
    out
}
