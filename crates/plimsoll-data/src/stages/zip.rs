//! `zip`: joins the columns of several data sets.

use crate::dataset::{BlockIterator, Dataset, Input, Opening, Stage, first_schema};
use crate::fault::{Fault, Loss};
use crate::source::{RowIterator, Source, zipped};
use crate::{DataError, Extent, Schema};
use std::sync::Arc;

struct Zip;

impl Dataset {
    /// Joins the columns of several data sets, row by row; ends with the shortest. Column names must differ.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split, Tensor};
    /// let weights = Dataset::from_tensor_slices([("weight", Tensor::f32([3], [0.5, 1.0, 2.0])?)])?;
    /// let data = Dataset::zip([Dataset::digits(Split::Test), weights]);
    /// assert_eq!(data.output_schema()?.to_string(), "x: u8[8, 8, 1], y: i32[], weight: f32[]");
    /// assert_eq!(data.len(), 3);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn zip(inputs: impl IntoIterator<Item = Dataset>) -> Dataset {
        let inputs: Vec<Dataset> = inputs.into_iter().collect();
        match plain_sources(&inputs) {
            Some(sources) => zipped(sources).map_or_else(Dataset::invalid, Dataset::from_source),
            None => Dataset::from_stage(Zip, inputs),
        }
    }
}

/// The sources of data sets without stages, if there are several and rows can be joined by index.
pub(super) fn plain_sources(inputs: &[Dataset]) -> Option<Vec<Arc<dyn Source>>> {
    let is_plain = |input: &Dataset| {
        let joinable = input.source.schema().columns().iter().all(|column| matches!(column.extent, Extent::Fixed | Extent::Files));
        input.stages.is_empty() && input.node.is_none() && input.error.is_none() && joinable
    };
    let enough = inputs.len() > 1 && inputs.iter().all(is_plain);
    enough.then(|| inputs.iter().map(|input| Arc::clone(&input.source)).collect())
}

impl Stage for Zip {
    fn describe(&self) -> String {
        "zip".into()
    }

    fn rows(&self, inputs: &[Dataset], of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        inputs.iter().map(of).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        inputs.iter().map(Dataset::len).min().unwrap_or(0)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let mut columns = first_schema(inputs, "zip")?.columns().to_vec();
        for input in &inputs[1..] {
            columns.extend_from_slice(input.output_schema()?.columns());
        }
        Schema::new(columns)
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.rows(Zipping { inputs: inputs.inputs()?, ignores_errors: inputs.budget.ignores_errors })
    }
}

/// The running stage; ends with the shortest input.
struct Zipping {
    inputs: Vec<Input>,
    /// Whether a later stage ignores errors.
    ignores_errors: bool,
}

impl RowIterator for Zipping {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.inputs.iter_mut().try_for_each(|input| input.begin(epoch))
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let (mut rest, mut missing) = (out, None);
        for input in &mut self.inputs {
            let (part, after) = rest.split_at_mut(input.row_bytes());
            match input.copy(part) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // Skip this row in the other inputs too, so that later rows stay aligned.
                Err(fault) if fault.loss == Loss::Row => missing = missing.or(Some(fault)),
                Err(fault) if fault.loss == Loss::Part && self.ignores_errors => {
                    let lost = "nobody knows how many rows that takes, so zip cannot tell which stand beside each other after it";
                    return Err(DataError::Stage(format!("{fault}; {lost}")).into());
                }
                Err(fault) => return Err(fault),
            }
            rest = after;
        }
        missing.map_or(Ok(true), Err)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}
