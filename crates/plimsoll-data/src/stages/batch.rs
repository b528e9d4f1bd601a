//! `batch`, `padded_batch`, `rebatch` and `drop_remainder`.

use super::kind::{Batches, Key, KeyKind, StageArgs, StageKind, Validation};
use crate::DataError;
use crate::dataset::{Concern, Dataset, empty_batch};
use crate::ops::{fill, is_ragged};

/// The length that rows are padded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadTo {
    /// The longest row of the batch; batches differ in shape, see [`Batch::shape`](crate::Batch::shape).
    Longest,
    /// The declared maximum; all batches have the same shape, which training requires.
    Declared,
}

const ROWS: Key = Key::optional("rows", KeyKind::BatchRows(u64::MAX));
const DROP: Key = Key::optional("drop_remainder", KeyKind::Flag);
/// Evaluation uses all rows.
const WHOLE: Validation = Validation::Changed("yes, with the remainder", |args| args.remove("drop_remainder"));

pub(super) const BATCH: StageKind = StageKind {
    name: "batch",
    summary: "batches",
    batches: Batches::Makes,
    keys: &[ROWS, DROP],
    validation: WHOLE,
    build: |data, args| Ok(drop_remainder(data.batch(args.rows_at_once("rows")), args)),
    ..StageKind::DEFAULT
};

pub(super) const PADDED_BATCH: StageKind = StageKind {
    name: "padded_batch",
    summary: "batches of variable-length rows, padded to the declared length, which is what a planned step takes, or `to = \"longest\"` of each batch",
    batches: Batches::Makes,
    keys: &[
        ROWS,
        DROP,
        Key::optional("to", KeyKind::Choice(&["declared", "longest"])).or("\"declared\""),
        Key::optional("value", KeyKind::Number).or("0"),
    ],
    validation: WHOLE,
    build: |data, args| {
        let to = if args.text("to").as_deref() == Some("longest") { PadTo::Longest } else { PadTo::Declared };
        let value = args.number("value").unwrap_or(0.0) as f32;
        Ok(drop_remainder(data.padded_batch(args.rows_at_once("rows"), to, value), args))
    },
    ..StageKind::DEFAULT
};

pub(super) const REBATCH: StageKind = StageKind {
    name: "rebatch",
    summary: "another batch size, whatever was set before",
    batches: Batches::Makes,
    keys: &[ROWS],
    build: |data, args| Ok(data.rebatch(args.rows_at_once("rows"))),
    ..StageKind::DEFAULT
};

fn drop_remainder(data: Dataset, args: &StageArgs) -> Dataset {
    if args.flag("drop_remainder") == Some(true) { data.drop_remainder() } else { data }
}

impl Dataset {
    /// Combines `rows` consecutive rows into a batch; the last batch of an epoch may be smaller.
    pub fn batch(self, rows: usize) -> Dataset {
        self.with_setting(Concern::Batches, format!("batch({rows})"), move |settings| {
            if let Some(batch) = settings.batch {
                return Err(DataError::Stage(format!("batch({rows}) stands after batch({batch}); a data set is batched once")));
            }
            settings.batch = Some(rows);
            if rows == 0 { Err(empty_batch()) } else { Ok(()) }
        })
    }

    /// Combines `rows` consecutive rows into a batch, and pads columns whose rows
    /// [vary in length](crate::Column::up_to) with `value`.
    ///
    /// ```
    /// use plimsoll_core::{DType, Ledger};
    /// use plimsoll_data::{Column, Dataset, Feed, Options, PadTo, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::up_to("x", DType::I32, [100])])?;
    /// let words = Dataset::from_generator(schema, |_epoch| {
    ///     [vec![1, 2, 3], vec![4], vec![5, 6]].into_iter().map(|word| Ok(vec![Tensor::i32([word.len()], word)?]))
    /// });
    /// let data = words.padded_batch(2, PadTo::Longest, -1.0);
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    /// let batch = feed.next()?.unwrap();
    /// assert_eq!(batch.shape(0), [2, 3]);
    /// let numbers: Vec<i32> = batch.column(0).as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)).collect();
    /// assert_eq!(numbers, [1, 2, 3, 4, -1, -1]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn padded_batch(self, rows: usize, to: PadTo, value: f32) -> Dataset {
        let data = match to {
            PadTo::Longest => self.with_setting(Concern::Batches, format!("pad({value})"), move |settings| {
                settings.pad = Some(value);
                Ok(())
            }),
            PadTo::Declared => {
                let ragged: Vec<String> = match self.output_schema() {
                    Ok(schema) => schema.columns().iter().filter(|column| is_ragged(column)).map(|column| column.name.clone()).collect(),
                    // Reported when the stages are checked.
                    Err(_) => Vec::new(),
                };
                ragged.iter().fold(self, |data, name| data.map(name, [fill(value)]))
            }
        };
        data.batch(rows)
    }

    /// Drops the last batch of an epoch if it is smaller than the batch size.
    pub fn drop_remainder(self) -> Dataset {
        self.with_setting(Concern::Batches, "drop_remainder", |settings| {
            settings.drop_remainder.get_or_insert(None);
            Ok(())
        })
    }

    /// Changes the batch size but not the rows or their order. Earlier stages still apply to the original batches:
    /// `drop_remainder` drops partial ones, `mix` mixes within them, and `deterministic` reorders them as a whole.
    ///
    /// ```
    /// use plimsoll_core::Ledger;
    /// use plimsoll_data::{Dataset, DataError, Feed, Mix, Options, Split, ops::{one_hot, scale}};
    /// let digits = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32).mix(Mix::up(0.2));
    /// let first = |data: &Dataset, bytes: usize| {
    ///     let mut feed = Feed::start(data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    ///     Ok::<_, DataError>(feed.next()?.unwrap().column(0)[..bytes].to_vec())
    /// };
    /// let eight_rows = 8 * 64 * 4;
    /// assert_eq!(first(&digits, eight_rows)?, first(&digits.clone().rebatch(8), eight_rows)?);
    /// # Ok::<(), DataError>(())
    /// ```
    pub fn rebatch(self, rows: usize) -> Dataset {
        self.with_setting(Concern::Batches, format!("rebatch({rows})"), move |settings| settings.rebatch(rows))
    }
}
