//! `concatenate`: the rows of one data set after those of another.

use super::zip::plain_sources;
use crate::dataset::{BlockIterator, Dataset, Input, Opening, Stage, first_schema};
use crate::fault::Fault;
use crate::source::{RowIterator, concatenated};
use crate::{Column, DataError, Schema};

struct Concatenate;

impl Dataset {
    /// The rows of one data set after those of another.
    pub fn concatenate(inputs: impl IntoIterator<Item = Dataset>) -> Dataset {
        let inputs: Vec<Dataset> = inputs.into_iter().collect();
        match plain_sources(&inputs).and_then(concatenated) {
            Some(source) => Dataset::from_source(source),
            None => Dataset::from_stage(Concatenate, inputs),
        }
    }
}

impl Stage for Concatenate {
    fn describe(&self) -> String {
        "concatenate".into()
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        common_schema(inputs, "concatenate")
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.rows(Concatenating { inputs: inputs.inputs()?, epoch: 0, at: 0 })
    }
}

/// The common schema of all inputs.
pub(super) fn common_schema(inputs: &[Dataset], stage: &str) -> Result<Schema, DataError> {
    let schema = first_schema(inputs, stage)?;
    for input in &inputs[1..] {
        let other = input.output_schema()?;
        if let Some(problem) = other_classes(&schema, &other) {
            return Err(DataError::Stage(format!("{stage} {problem}")));
        }
        if !alike(&schema, &other) {
            let problem = format!("{stage} puts rows of one kind together, not {schema} and {other}; map them to be alike");
            return Err(DataError::Stage(problem));
        }
    }
    Ok(schema)
}

/// Whether rows of the two schemas are interchangeable.
pub(super) fn alike(a: &Schema, b: &Schema) -> bool {
    let plain = |column: &Column| (column.name.clone(), column.dtype, column.shape.clone(), column.extent);
    a.columns().iter().map(plain).eq(b.columns().iter().map(plain))
}

/// The error message if the same label means different classes in the two schemas.
fn other_classes(a: &Schema, b: &Schema) -> Option<String> {
    let pairs = a.columns().iter().zip(b.columns()).filter(|(a, b)| a.name == b.name);
    let mut both = pairs.filter_map(|(a, b)| Some((&a.name, a.classes.as_ref()?, b.classes.as_ref()?)));
    let (column, a, b) = both.find(|(_, a, b)| a != b)?;
    let (a, b) = (a.join(", "), b.join(", "));
    Some(format!(
        "would mix up classes: column `{column}` numbers {a} in one part and {b} in another; name the folder to take them from (classes)"
    ))
}

/// The rows of all inputs, one input after the other.
struct Concatenating {
    inputs: Vec<Input>,
    epoch: u64,
    at: usize,
}

impl RowIterator for Concatenating {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.at) = (epoch, 0);
        self.inputs[0].begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.inputs[self.at].copy(out)? {
            if self.at + 1 == self.inputs.len() {
                return Ok(false);
            }
            self.at += 1;
            self.inputs[self.at].begin(self.epoch)?;
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}
