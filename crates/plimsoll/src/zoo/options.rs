//! Overrides of a network's published hyperparameters.

use super::task::Task;
use crate::error::{Error, Result};

/// Overrides of a network's published hyperparameters. One that the network does not have is an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The number of classes, or of forecast values.
    pub classes: Option<usize>,
    /// The input shape without the batch: `[height, width]`, `[height, width, channels]`, or `[time, features]` for
    /// series.
    pub input: Option<Vec<usize>>,
    /// Width multiplier of every layer.
    pub width: Option<f64>,
    /// The maximum sequence length of a language model.
    pub context: Option<usize>,
    /// The vocabulary size of a language model.
    pub vocabulary: Option<usize>,
}

/// One of the overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Override {
    Classes,
    Input,
    Width,
    Context,
    Vocabulary,
}

impl Override {
    pub fn name(self) -> &'static str {
        match self {
            Override::Classes => "classes",
            Override::Input => "input",
            Override::Width => "width",
            Override::Context => "context",
            Override::Vocabulary => "vocabulary",
        }
    }
}

/// The hyperparameters a network is built with: the overrides, else the published ones.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub classes: usize,
    pub input: Vec<usize>,
    pub width: f64,
    /// Tokens of the input; those of the output are classes.
    pub vocabulary: usize,
}

impl Setup {
    pub fn published(task: Task, input: &[usize]) -> Setup {
        Setup { classes: task.outputs(), input: input.to_vec(), width: 1.0, vocabulary: task.vocabulary() }
    }

    /// A layer's width.
    pub fn wide(&self, channels: usize) -> usize {
        ((channels as f64 * self.width).round() as usize).max(1)
    }

    /// A layer's width rounded as in MobileNet: to a multiple of 8, and at most 10 % below.
    pub fn wide_by_eight(&self, channels: usize) -> usize {
        let exact = channels as f64 * self.width;
        let rounded = (((exact + 4.0) as usize / 8) * 8).max(8);
        if (rounded as f64) < 0.9 * exact { rounded + 8 } else { rounded }
    }
}

impl Options {
    /// Parses an input shape such as `416x608` or `96x7`.
    ///
    /// ```
    /// use plimsoll::zoo::Options;
    /// assert_eq!(Options::parse_input("416x608")?, [416, 608]);
    /// assert_eq!(
    ///     Options::parse_input("416 608").unwrap_err().to_string(),
    ///     "`416 608` is not an input size; write integers separated by x, such as 224x224"
    /// );
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn parse_input(text: &str) -> Result<Vec<usize>> {
        let numbers = text.split(['x', '×']).map(|part| part.trim().parse().ok().filter(|number| *number > 0)).collect();
        let wrong = "is not an input size; write integers separated by x, such as 224x224";
        Option::<Vec<usize>>::ok_or_else(numbers, || Error::Config(format!("`{text}` {wrong}")))
    }

    /// The overrides that are given.
    pub(super) fn given(&self) -> impl Iterator<Item = Override> {
        let given = [
            (self.classes.is_some(), Override::Classes),
            (self.input.is_some(), Override::Input),
            (self.width.is_some(), Override::Width),
            (self.context.is_some(), Override::Context),
            (self.vocabulary.is_some(), Override::Vocabulary),
        ];
        given.into_iter().filter(|(given, _)| *given).map(|(_, which)| which)
    }
}
