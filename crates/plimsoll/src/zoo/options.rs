//! What may be changed about a network of the zoo.

use super::{Entry, Task};
use crate::error::{Error, Result};

/// Overrides of what a network was published with. Those that a network does not take are refused by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// How many classes are told apart, or numbers forecast.
    pub classes: Option<usize>,
    /// The shape of a row: `[height, width]`, `[height, width, channels]`, or `[time, features]` for series.
    pub input: Option<Vec<usize>>,
    /// Every layer's width is multiplied by this.
    pub width: Option<f64>,
    /// The longest sequence a language model sees.
    pub context: Option<usize>,
    /// How many tokens a language model knows.
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
    fn name(self) -> &'static str {
        match self {
            Override::Classes => "classes",
            Override::Input => "input",
            Override::Width => "width",
            Override::Context => "context",
            Override::Vocabulary => "vocabulary",
        }
    }
}

/// What a network is built with: the overrides, and what was published where there are none.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub classes: usize,
    pub input: Vec<usize>,
    pub width: f64,
    /// Tokens that are read; those that are told apart are classes.
    pub vocabulary: usize,
}

impl Setup {
    pub fn published(entry: &Entry) -> Setup {
        Setup { classes: entry.task.answers(), input: entry.input.to_vec(), width: 1.0, vocabulary: entry.task.vocabulary() }
    }

    /// A layer's width.
    pub fn wide(&self, channels: usize) -> usize {
        ((channels as f64 * self.width).round() as usize).max(1)
    }

    /// A layer's width as the mobile networks round it: to a multiple of eight, and never more than a tenth below.
    pub fn wide_by_eight(&self, channels: usize) -> usize {
        let exact = channels as f64 * self.width;
        let rounded = (((exact + 4.0) as usize / 8) * 8).max(8);
        if (rounded as f64) < 0.9 * exact { rounded + 8 } else { rounded }
    }
}

impl Options {
    /// The shape of a row as people write it, such as `416x608` or `96x7`.
    ///
    /// ```
    /// use plimsoll::zoo::Options;
    /// assert_eq!(Options::parse_input("416x608")?, [416, 608]);
    /// assert_eq!(
    ///     Options::parse_input("416 608").unwrap_err().to_string(),
    ///     "`416 608` is no size of an input; write whole numbers with an x between them, such as 224x224"
    /// );
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn parse_input(text: &str) -> Result<Vec<usize>> {
        let numbers = text.split(['x', '×']).map(|part| part.trim().parse().ok().filter(|number| *number > 0)).collect();
        let wrong = "is no size of an input; write whole numbers with an x between them, such as 224x224";
        Option::<Vec<usize>>::ok_or_else(numbers, || Error::Config(format!("`{text}` {wrong}")))
    }

    /// The overrides that are given.
    fn given(&self) -> impl Iterator<Item = Override> {
        let given = [
            (self.classes.is_some(), Override::Classes),
            (self.input.is_some(), Override::Input),
            (self.width.is_some(), Override::Width),
            (self.context.is_some(), Override::Context),
            (self.vocabulary.is_some(), Override::Vocabulary),
        ];
        given.into_iter().filter(|(given, _)| *given).map(|(_, which)| which)
    }

    pub(super) fn resolve(&self, entry: &Entry) -> Result<Setup> {
        let name = entry.name;
        let wrong = |what: String| Err(Error::Config(format!("the network {name} {what}")));
        if let Some(which) = self.given().find(|which| !entry.takes.contains(which)) {
            let takes: Vec<&str> = entry.takes.iter().map(|which| which.name()).collect();
            return wrong(format!("has no `{}`; it takes {}", which.name(), takes.join(", ")));
        }
        let mut setup = Setup::published(entry);
        if let Some(classes) = self.classes {
            if classes == 0 {
                return wrong("needs at least one class".to_string());
            }
            setup.classes = classes;
        }
        if let Some(vocabulary) = self.vocabulary {
            if vocabulary == 0 {
                return wrong("needs at least one token".to_string());
            }
            setup.vocabulary = vocabulary;
            if let Task::NextToken(_) = entry.task {
                setup.classes = vocabulary;
            }
        }
        if let Some(width) = self.width {
            if !(width.is_finite() && (1e-3..=1e3).contains(&width)) {
                return wrong(format!("cannot be made {width} times as wide; a width is between 0.001 and 1000"));
            }
            setup.width = width;
        }
        if let Some(context) = self.context {
            if context == 0 {
                return wrong("needs a context of at least one token".to_string());
            }
            setup.input = vec![context];
        }
        if let Some(input) = &self.input {
            setup.input = match (&input[..], entry.input) {
                // Channels may be left out.
                (&[height, width], &[_, _, channels]) => vec![height, width, channels],
                (given, published) if given.len() == published.len() => given.to_vec(),
                (given, published) => {
                    return wrong(format!("reads rows of {} numbers such as {published:?}, not {given:?}", published.len()));
                }
            };
            if setup.input.contains(&0) {
                return wrong(format!("cannot read rows of {:?}, which hold nothing", setup.input));
            }
        }
        let multiple = entry.multiple;
        if let (&[height, width, _], true) = (&setup.input[..], multiple > 1)
            && !(height.is_multiple_of(multiple) && width.is_multiple_of(multiple))
        {
            return wrong(format!("reads images whose height and width are multiples of {multiple}, not {height}×{width}"));
        }
        Ok(setup)
    }
}
