//! The rows of a pipeline, one by one.

use super::Pipeline;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_data::{Schema, numbers};

impl Pipeline {
    /// The memory of reading rows one by one, with the process and what reads them.
    pub(crate) fn row_memory(&self) -> Result<Bytes> {
        Ok(self.plan(&self.data.clone().rebatch(1))?.total())
    }

    /// Hands over the first `count` rows, column by column.
    pub(crate) fn for_each_row(&self, count: usize, mut visit: impl FnMut(&Schema, &[Vec<f32>]) -> Result<()>) -> Result<usize> {
        let data = self.data.clone().rebatch(1);
        let schema = data.output_schema()?;
        let mut feed = self.plan(&data)?.start(&data, 1)?;
        let mut done = 0;
        while done < count {
            let Some(batch) = feed.next()? else { break };
            let columns = schema.columns().iter().enumerate();
            let row: Vec<Vec<f32>> =
                columns.map(|(i, column)| numbers(column.dtype, batch.column(i)).map(|number| number as f32).collect()).collect();
            visit(&schema, &row)?;
            done += 1;
        }
        Ok(done)
    }
}
