//! All that a run counts: the sums and counts of each of a model's results, one behind the other.

use super::counters::{Counters, lower};
use super::{Metric, Scores};
use crate::loss::{Objective, Prediction};
use plimsoll_core::plan::NUMBERS;
use plimsoll_core::{Graph, GraphError, ValueId};

/// What a run counts. With several results, the sums of each begin with its own loss, and its scores carry its name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    heads: Vec<Head>,
}

#[derive(Clone, Debug)]
struct Head {
    /// Before the names of its sums and scores: empty, or the result's name and a `_`.
    prefix: String,
    counters: Counters,
}

/// One result of a model and what it is compared with, as values of a graph.
pub(crate) struct Compared<'a> {
    pub name: &'a str,
    pub objective: &'a Objective,
    pub metrics: &'a [Metric],
    pub prediction: Prediction,
    pub labels: ValueId,
    /// The sum over the rows of each row's loss.
    pub loss: ValueId,
}

impl Board {
    /// Adds to a graph what the metrics of all results need.
    pub fn lower(g: &mut Graph, results: &[Compared<'_>]) -> Result<Board, GraphError> {
        let mut board = Board::default();
        let single = results.len() == 1;
        for result in results {
            let Compared { name, objective, metrics, prediction, labels, loss } = *result;
            let prefix = if single { String::new() } else { format!("{name}_") };
            let counters = match single {
                true => lower(metrics, g, objective, prediction, labels, &prefix)?,
                false => g.in_scope(name, |g| {
                    let own = format!("{prefix}loss");
                    g.output(&own, loss);
                    let mut counters = lower(metrics, g, objective, prediction, labels, &prefix)?;
                    counters.sums.insert(0, own);
                    counters.scope = format!("{name}/");
                    Ok(counters)
                })?,
            };
            board.heads.push(Head { prefix, counters });
        }
        // The loss itself, and what it is divided by, are numbers too.
        let sums = board.sums().count();
        if sums + 2 > NUMBERS {
            return Err(
                g.error(format!("the metrics are made of {sums} sums, more than the {} a step can keep; ask for fewer", NUMBERS - 2))
            );
        }
        Ok(board)
    }

    /// The numbers a program hands to the host, by name.
    pub fn sums(&self) -> impl Iterator<Item = &str> {
        self.heads.iter().flat_map(|head| head.counters.sums.iter().map(String::as_str))
    }

    /// The states that count classes, by name, and how many classes each counts.
    pub fn states(&self) -> impl Iterator<Item = (String, usize)> {
        self.heads.iter().flat_map(|head| head.counters.states().map(|name| (name, head.counters.classes)))
    }

    /// Answers that a row adds to the counts of classes, at most.
    pub fn answers(&self) -> u64 {
        self.heads.iter().map(|head| head.counters.answers()).max().unwrap_or(0)
    }

    /// What is cheap to know at any time: losses and accuracies.
    pub fn scores_so_far(&self, loss: f64, sums: &[f64], rows: u64) -> Scores {
        let mut scores = Scores { loss, ..Scores::default() };
        if let [Head { counters, .. }] = &self.heads[..] {
            scores.accuracy = counters.accuracy(sums, rows);
            return scores;
        }
        self.put_losses(&mut scores, sums, rows);
        for (Head { prefix, counters }, sums, _) in self.parts(sums, &[]) {
            scores.more.extend(counters.accuracy(sums, rows).map(|accuracy| (format!("{prefix}accuracy"), accuracy)));
        }
        scores
    }

    /// All scores from the sums over some rows and the counts of classes.
    pub fn scores(&self, loss: f64, sums: &[f64], rows: u64, counts: &[f64]) -> Scores {
        if let [Head { counters, .. }] = &self.heads[..] {
            return counters.scores(loss, sums, rows, counts);
        }
        let mut scores = Scores { loss, ..Scores::default() };
        self.put_losses(&mut scores, sums, rows);
        for (Head { prefix, counters }, sums, counts) in self.parts(sums, counts) {
            let own = counters.scores(0.0, sums, rows, counts);
            let named = |name: &str| format!("{prefix}{name}");
            scores.more.extend(own.iter().skip(1).map(|(name, value)| (named(name), value)));
            scores.per_class.extend(own.per_class.iter().map(|(name, values)| (named(name), values.clone())));
        }
        scores
    }

    fn put_losses(&self, scores: &mut Scores, sums: &[f64], rows: u64) {
        for (head, sums, _) in self.parts(sums, &[]) {
            scores.more.push((format!("{}loss", head.prefix), sums[0] / rows.max(1) as f64));
        }
    }

    /// Each result with its sums and its counts.
    fn parts<'a>(&'a self, mut sums: &'a [f64], mut counts: &'a [f64]) -> impl Iterator<Item = (&'a Head, &'a [f64], &'a [f64])> {
        self.heads.iter().map(move |head| {
            let (own, rest) = sums.split_at(head.counters.sums.len());
            let (own_counts, other_counts) = counts.split_at((head.counters.states().count() * head.counters.classes).min(counts.len()));
            (sums, counts) = (rest, other_counts);
            (head, own, own_counts)
        })
    }
}
