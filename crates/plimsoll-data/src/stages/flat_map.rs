//! `flat_map`: maps each row to a data set and concatenates the results.

use super::concatenate::alike;
use crate::dataset::{BlockIterator, Dataset, Holding, Input, OpenInput, Opening, Stage, StreamBudget};
use crate::fault::{Fault, guarded};
use crate::source::RowIterator;
use crate::{DataError, Row, Schema};
use plimsoll_core::{Bytes, Ledger};
use std::hash::Hasher;
use std::sync::Arc;

type Expand = Arc<dyn Fn(&Row<'_>) -> Result<Dataset, DataError> + Send + Sync>;

struct FlatMap {
    schema: Schema,
    limit: Bytes,
    expand: Expand,
}

impl Dataset {
    /// Maps each row to a data set with `expand` and concatenates the results. All of them must have `schema`, and
    /// each must fit in `limit` bytes.
    pub fn flat_map<F>(self, schema: Schema, limit: Bytes, expand: F) -> Dataset
    where
        F: Fn(&Row<'_>) -> Result<Dataset, DataError> + Send + Sync + 'static,
    {
        self.then(FlatMap { schema, limit, expand: Arc::new(expand) })
    }
}

impl Stage for FlatMap {
    fn describe(&self) -> String {
        "flat_map".into()
    }

    fn rows(&self, _inputs: &[Dataset], _of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        None
    }

    fn max_rows(&self, _inputs: &[Dataset]) -> u64 {
        u64::MAX
    }

    fn schema(&self, _inputs: &[Dataset]) -> Result<Schema, DataError> {
        Ok(self.schema.clone())
    }

    fn identify(&self, hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        hash.write(self.schema.to_string().as_bytes());
        Ok(Some(self.describe()))
    }

    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(vec![Holding::here(self.describe(), self.limit)])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let expansion = Expansion {
            from: inputs.node.inputs[0].output_schema()?,
            to: self.schema.clone(),
            limit: self.limit,
            expand: Arc::clone(&self.expand),
            ignores_errors: inputs.budget.ignores_errors,
            opener: inputs.opener,
        };
        inputs.rows(FlatMapping { input: inputs.input(0)?, expansion, inner: None, epoch: 0, seen: 0 })
    }
}

/// The running stage.
struct FlatMapping {
    input: Input,
    expansion: Expansion,
    inner: Option<Input>,
    epoch: u64,
    /// Rows passed to user code so far.
    seen: u64,
}

/// The user function and its memory limit.
struct Expansion {
    from: Schema,
    to: Schema,
    limit: Bytes,
    expand: Expand,
    /// Whether a later stage ignores errors.
    ignores_errors: bool,
    opener: &'static dyn OpenInput,
}

impl Expansion {
    fn open(&self, row: &[u8], epoch: u64) -> Result<Input, DataError> {
        let data = guarded(|| (self.expand)(&Row::new(&self.from, row))).flatten()?;
        let schema = data.output_schema()?;
        if !alike(&schema, &self.to) {
            return Err(DataError::Stage(format!("flat_map was to give {} and gave {schema}; declare what it gives", self.to)));
        }
        // The limit was reserved when the feed started; the inner data set is planned within it.
        let budget = StreamBudget { limit: Some(self.limit), ignores_errors: self.ignores_errors, ..StreamBudget::MINIMUM };
        let needed: Bytes = self.opener.holdings(&data, budget)?.iter().map(|holding| holding.bytes).sum();
        if needed > self.limit {
            let problem = format!("flat_map may hold {} and {} needs {needed}; allow it more", self.limit, data.describe());
            return Err(DataError::Stage(problem));
        }
        let mut inner = self.opener.open(&data, budget, &Ledger::new("flat_map", Some(self.limit)), Arc::default())?;
        inner.begin(epoch)?;
        Ok(inner)
    }
}

impl RowIterator for FlatMapping {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.inner, self.epoch, self.seen) = (None, epoch, 0);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            if let Some(inner) = &mut self.inner {
                if inner.copy(out)? {
                    return Ok(true);
                }
                self.inner = None;
            }
            let Some(row) = self.input.next()? else { return Ok(false) };
            self.seen += 1;
            let opened = self.expansion.open(row, self.epoch);
            self.inner = Some(opened.map_err(|error| Fault::row(error).numbered(self.seen - 1, "that flat_map was given"))?);
        }
    }

    fn close(&mut self) {
        self.inner = None;
        self.input.close();
    }
}
