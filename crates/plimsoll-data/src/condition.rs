//! Declarative conditions on rows, which can be parsed, printed and compared.

use crate::number::{all_numbers, round_to};
use crate::ragged::length_of;
use crate::schema::Extent;
use crate::{DataError, Row, Schema};
use std::fmt;

/// A condition on the values of a column, or on the length of its rows. If a row has several values, it must hold for
/// each of them. Comparisons with NaN are false.
///
/// ```
/// use plimsoll_data::{Condition, Dataset, Relation, Split};
/// let few = Condition::on("y").is([0.0, 3.0]);
/// assert_eq!(few.to_string(), "y is 0 or 3");
/// let data = Dataset::digits(Split::Train).filter_where(few).take_while_where(Condition::on("x").number(Relation::AtMost, 16.0)).batch(32);
/// assert_eq!(data.describe(), "digits (train) → filter(y is 0 or 3) → take_while(x at most 16) → batch(32)");
/// assert!((280..310).contains(&data.count_rows()?));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    column: String,
    /// All of them must hold.
    tests: Vec<Test>,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Less than.
    Below,
    /// Greater than.
    Above,
    /// Greater than or equal.
    AtLeast,
    /// Less than or equal.
    AtMost,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Is(Vec<f64>),
    IsNot(Vec<f64>),
    Number(Relation, f64),
    Length(Relation, u64),
}

impl Relation {
    /// All relations.
    pub const ALL: [Relation; 4] = [Relation::Below, Relation::Above, Relation::AtLeast, Relation::AtMost];

    fn holds(self, number: u64, than: u64) -> bool {
        match self {
            Relation::Below => number < than,
            Relation::Above => number > than,
            Relation::AtLeast => number >= than,
            Relation::AtMost => number <= than,
        }
    }
}

impl Condition {
    /// A condition on this column; the tests added to it must all hold.
    pub fn on(column: impl Into<String>) -> Condition {
        Condition { column: column.into(), tests: Vec::new() }
    }

    /// The value is one of these.
    pub fn is(self, values: impl Into<Vec<f64>>) -> Condition {
        self.and(Test::Is(values.into()))
    }

    /// The value is none of these.
    pub fn is_not(self, values: impl Into<Vec<f64>>) -> Condition {
        self.and(Test::IsNot(values.into()))
    }

    /// The value compares like this to `than`.
    pub fn number(self, relation: Relation, than: f64) -> Condition {
        self.and(Test::Number(relation, than))
    }

    /// The length of a row compares like this to `than`, for a column whose rows [vary in
    /// length](crate::Column::up_to).
    pub fn length(self, relation: Relation, than: u64) -> Condition {
        self.and(Test::Length(relation, than))
    }

    fn and(mut self, test: Test) -> Condition {
        self.tests.push(test);
        self
    }

    /// Whether it holds for a row.
    ///
    /// # Panics
    /// If the row has no such column.
    pub fn holds(&self, row: &Row<'_>) -> bool {
        let bytes = row.bytes(&self.column);
        let column = row.schema().index_of(&self.column).map(|index| &row.schema().columns()[index]).expect("its bytes were just found");
        let dtype = column.dtype;
        // Constants are rounded to the dtype of the column: 0.1 is the nearest f32 in a column of f32.
        let rounded = |value: &f64| round_to(dtype, *value);
        let elements = column.elements_of(bytes);
        self.tests.iter().all(|test| match test {
            Test::Length(relation, than) => relation.holds(u64::from(length_of(bytes)), *than),
            Test::Is(values) => all_numbers(dtype, elements, |number| values.iter().any(|value| rounded(value) == number)),
            Test::IsNot(values) => all_numbers(dtype, elements, |number| values.iter().all(|value| rounded(value) != number)),
            Test::Number(relation, than) => {
                let than = rounded(than);
                match relation {
                    Relation::Below => all_numbers(dtype, elements, |number| number < than),
                    Relation::Above => all_numbers(dtype, elements, |number| number > than),
                    Relation::AtLeast => all_numbers(dtype, elements, |number| number >= than),
                    Relation::AtMost => all_numbers(dtype, elements, |number| number <= than),
                }
            }
        })
    }

    /// Checks that it can be applied to rows of this schema.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), DataError> {
        let column = schema.look_up(&self.column)?;
        let refuse = |problem: &str| Err(DataError::Schema { column: column.name.clone(), problem: problem.into() });
        let asks_length = self.tests.iter().any(|test| matches!(test, Test::Length(..)));
        match column.extent {
            Extent::Files | Extent::Images => refuse("is to be asked for its numbers, and its rows are not of one size yet; map it first"),
            Extent::Fixed if asks_length => refuse("is to be asked for its length, and its rows are all of one; leave that out"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Below => "below",
            Relation::Above => "above",
            Relation::AtLeast => "at least",
            Relation::AtMost => "at most",
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = &self.column;
        let listed = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(" or ");
        for (index, test) in self.tests.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " and " })?;
            match test {
                Test::Is(values) => write!(f, "{column} is {}", listed(values))?,
                Test::IsNot(values) => write!(f, "{column} is not {}", listed(values))?,
                Test::Number(relation, than) => write!(f, "{column} {relation} {than}")?,
                Test::Length(relation, than) => write!(f, "length of {column} {relation} {than}")?,
            }
        }
        Ok(())
    }
}
