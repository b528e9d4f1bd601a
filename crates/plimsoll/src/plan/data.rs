//! The data of a run, summarized once before planning.

use crate::error::{Error, Result};
use crate::image_scan::scan_images;
use crate::preprocessing::Preprocessing;
use crate::spec::RunSpec;
use plimsoll_core::Bytes;
use plimsoll_data::source::ImageScan;
use plimsoll_data::{Dataset, Extent, Schema};

/// A summary of the data of a run: rows, types and sizes. A value: planning opens and reads no file.
#[derive(Clone)]
pub struct DataSummary {
    /// The training data.
    pub training: DatasetSummary,
    /// The validation data, if the run validates.
    pub validation: Option<DatasetSummary>,
    /// Memory of the names of columns and classes while they are written with checkpoints and weights.
    pub names: Bytes,
    /// Memory that the datasets hold since they were opened.
    pub held: Bytes,
}

/// One dataset.
#[derive(Clone)]
pub struct DatasetSummary {
    /// The dataset, whose files are open. Of several ranks, the rows of rank 0.
    pub(crate) dataset: Dataset,
    /// Columns and their types.
    pub schema: Schema,
    /// Bytes of one row over all columns; of the largest row if rows differ.
    pub row_bytes: Bytes,
    /// Rows of an epoch at most.
    pub max_rows: u64,
    /// Rows of an epoch, if known; micro-batches depend on it.
    pub epoch_rows: Option<u64>,
    /// Rows of a batch, if the dataset has a batch size.
    pub batch: Option<usize>,
    /// What the headers of its images say, if it decodes any: memory is reserved for the largest.
    pub images: Option<ImageScan>,
}

impl DataSummary {
    /// Summarizes the datasets of a run.
    pub fn read(spec: &RunSpec) -> Result<DataSummary> {
        let mut training = DatasetSummary::read(&spec.data)?;
        let mut validation = spec.fit.validation.as_ref().map(DatasetSummary::read).transpose()?;
        if spec.ranks > 1 {
            // Rank 0 has the most rows. All ranks plan for them, so that their plans are equal.
            training.dataset = spec.rows_of_rank(&training.dataset, 0, true)?;
            if let Some(validation) = &mut validation {
                validation.dataset = spec.rows_of_rank(&validation.dataset, 0, false)?;
            }
        }
        let opened = [Some(&spec.data), spec.fit.validation.as_ref()];
        Ok(DataSummary {
            training,
            validation,
            names: Preprocessing::footprint(&spec.data, spec.fit.validation.is_some()),
            held: Dataset::held_bytes(opened.into_iter().flatten())?,
        })
    }
}

impl DatasetSummary {
    fn read(dataset: &Dataset) -> Result<DatasetSummary> {
        let schema = dataset.output_schema()?;
        Ok(DatasetSummary {
            row_bytes: schema.columns().iter().map(|column| column.row_bytes()).sum(),
            max_rows: dataset.len(),
            epoch_rows: epoch_rows(dataset),
            batch: dataset.batch_size(),
            images: scan_images(dataset)?,
            schema,
            dataset: dataset.clone(),
        })
    }

    /// Checks that all rows have fixed shapes, which a plan requires.
    pub(crate) fn check_fixed_shapes(&self) -> Result<()> {
        let Some(column) = self.schema.columns().iter().find(|column| column.extent != Extent::Fixed) else { return Ok(()) };
        Err(Error::Config(format!(
            "a step is planned for rows of one shape, and those of `{column}` differ; pad them to the longest that was declared (`padded_batch`)"
        )))
    }

    /// Rows of the batch the optimizer sees.
    pub(crate) fn batch_rows(&self) -> Result<usize> {
        let Some(rows) = self.batch else {
            return Err(Error::Config("the data has no batch size; add `.batch(32)` or set `train.batch`".to_string()));
        };
        if self.max_rows == 0 {
            return Err(Error::Config(format!("there is nothing to train on: {} has no rows", self.dataset.describe())));
        }
        Ok(rows.min(usize::try_from(self.max_rows).unwrap_or(usize::MAX)))
    }
}

/// Rows of an epoch, if known; micro-batches depend on it.
pub(crate) fn epoch_rows(data: &Dataset) -> Option<u64> {
    data.size().or_else(|| data.drops_remainder().then(|| data.len()))
}
