//! `filter` and `take_while`: select rows by their values.

use super::kind::{Key, KeyKind, StageArgs, StageKind, Validation};
use crate::dataset::{BlockIterator, Dataset, Input, Opening, RowStage, Stage, first_schema, is_image};
use crate::fault::{Fault, guarded};
use crate::source::without_reference;
use crate::{Condition, DataError, Relation, Row, Schema};
use std::hash::Hasher;
use std::sync::Arc;

/// Selects rows by a predicate: all that satisfy it, or those before the first that does not.
struct Filter {
    keep: Predicate,
    ends: bool,
}

/// A predicate: user code or a condition.
#[derive(Clone)]
struct Predicate {
    holds: Arc<dyn Fn(&Row<'_>) -> bool + Send + Sync>,
    /// Its description in parentheses; empty for user code.
    words: String,
}

const KEYS: &[Key] = &[
    Key::required("column", KeyKind::Text, "which column is inspected"),
    Key::optional("is", KeyKind::Numbers),
    Key::optional("not", KeyKind::Numbers),
    Key::optional("below", KeyKind::Number),
    Key::optional("above", KeyKind::Number),
    Key::optional("at_least", KeyKind::Number),
    Key::optional("at_most", KeyKind::Number),
    Key::optional("length_below", KeyKind::Count(0)),
    Key::optional("length_above", KeyKind::Count(0)),
    Key::optional("length_at_least", KeyKind::Count(0)),
    Key::optional("length_at_most", KeyKind::Count(0)),
];

const NEEDS_ONE_OF: Option<(&str, &str)> =
    Some(("is", "is, not, below, above, at_least, at_most, or the same of its length, such as length_below"));

pub(super) const FILTER: StageKind = StageKind {
    name: "filter",
    summary: "keeps the rows for which the condition holds; before `decode`, only their images are opened",
    keys: KEYS,
    counts_rows: true,
    needs_one_of: NEEDS_ONE_OF,
    build: |data, args| Ok(data.filter_where(condition(args))),
    ..StageKind::DEFAULT
};

pub(super) const TAKE_WHILE: StageKind = StageKind {
    name: "take_while",
    summary: "keeps the rows before the first for which it does not hold",
    keys: KEYS,
    counts_rows: true,
    validation: Validation::Omitted,
    needs_one_of: NEEDS_ONE_OF,
    build: |data, args| Ok(data.take_while_where(condition(args))),
    ..StageKind::DEFAULT
};

/// The condition on a column that the arguments describe; all parts must hold.
fn condition(args: &StageArgs) -> Condition {
    const RELATIONS: [(&str, &str, Relation); 4] = [
        ("below", "length_below", Relation::Below),
        ("above", "length_above", Relation::Above),
        ("at_least", "length_at_least", Relation::AtLeast),
        ("at_most", "length_at_most", Relation::AtMost),
    ];
    let mut condition = Condition::on(args.name("column"));
    if let Some(values) = args.numbers("is") {
        condition = condition.is(values);
    }
    if let Some(values) = args.numbers("not") {
        condition = condition.is_not(values);
    }
    for (number, length, relation) in RELATIONS {
        if let Some(than) = args.number(number) {
            condition = condition.number(relation, than);
        }
        if let Some(than) = args.count(length) {
            condition = condition.length(relation, than);
        }
    }
    condition
}

impl Dataset {
    /// Keeps the rows for which `keep` returns true. For images without a fixed size, `keep` sees the other columns,
    /// and only selected images are decoded.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// let sevens = Dataset::digits(Split::Train).filter(|row| row.int("y") == 7).batch(32);
    /// assert!((130..160).contains(&sevens.count_rows()?));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn filter(self, keep: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Dataset {
        self.then(Filter { keep: Predicate::code(keep), ends: false })
    }

    /// Keeps the rows before the first one for which `keep` returns false.
    pub fn take_while(self, keep: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Dataset {
        self.then(Filter { keep: Predicate::code(keep), ends: true })
    }

    /// Keeps the rows that satisfy a condition.
    pub fn filter_where(self, condition: Condition) -> Dataset {
        self.where_holds(condition, false)
    }

    /// Keeps the rows before the first one that does not satisfy a condition.
    pub fn take_while_where(self, condition: Condition) -> Dataset {
        self.where_holds(condition, true)
    }

    fn where_holds(self, condition: Condition, ends: bool) -> Dataset {
        // An earlier error takes precedence.
        match self.output_schema().map(|schema| condition.check(&schema)) {
            Ok(Err(error)) => self.with_error(error),
            _ => {
                let words = format!("({condition})");
                let holds = Arc::new(move |row: &Row<'_>| condition.holds(row));
                self.then(Filter { keep: Predicate { holds, words }, ends })
            }
        }
    }
}

impl Predicate {
    fn code(holds: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Predicate {
        Predicate { holds: Arc::new(holds), words: String::new() }
    }
}

impl Filter {
    fn name(&self) -> &'static str {
        if self.ends { "take_while" } else { "filter" }
    }
}

impl Stage for Filter {
    fn describe(&self) -> String {
        format!("{}{}", self.name(), self.keep.words)
    }

    fn rows(&self, _inputs: &[Dataset], _of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        None
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        of_one_size(inputs, &self.describe())
    }

    fn defers_decoding(&self) -> bool {
        true
    }

    fn identify(&self, _hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        Ok(self.keep.words.is_empty().then(|| self.describe()))
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let schema = without_reference(inputs.node.schema()?);
        let given = if self.ends { "that take_while was given" } else { "that filter was given" };
        inputs.map_rows(Filtering { schema, keep: self.keep.clone(), ends: self.ends, given, seen: 0 })
    }
}

/// The columns of the first input, if a stage can buffer its rows; images of variable size cannot be buffered.
pub(super) fn of_one_size(inputs: &[Dataset], stage: &str) -> Result<Schema, DataError> {
    let schema = first_schema(inputs, stage)?;
    match schema.columns().iter().find(|column| is_image(column)) {
        None => Ok(schema),
        Some(column) => {
            let problem = format!("has rows that differ in size, which {stage} cannot hold; put decode and resize before it");
            Err(DataError::Schema { column: column.name.clone(), problem })
        }
    }
}

struct Filtering {
    schema: Schema,
    keep: Predicate,
    ends: bool,
    /// How error messages refer to the rows.
    given: &'static str,
    /// Rows inspected so far.
    seen: u64,
}

impl RowStage for Filtering {
    fn begin(&mut self, _epoch: u64) {
        self.seen = 0;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        while let Some(row) = input.next()? {
            self.seen += 1;
            let holds = guarded(|| (self.keep.holds)(&Row::new(&self.schema, row)));
            if holds.map_err(|error| Fault::row(error).numbered(self.seen - 1, self.given))? {
                out.copy_from_slice(row);
                return Ok(true);
            }
            if self.ends {
                break;
            }
        }
        Ok(false)
    }
}
