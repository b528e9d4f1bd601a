//! The rows of a pipeline, one by one.

use super::Pipeline;
use crate::error::{Error, Result};
use plimsoll_core::Bytes;
use plimsoll_data::{Schema, numbers};

impl Pipeline {
    /// Hands over the first `count` rows, column by column. `beside` bytes of the budget belong to the caller: `what` names them.
    pub(crate) fn for_each_row(
        &self,
        count: usize,
        beside: Bytes,
        what: &str,
        mut visit: impl FnMut(&Schema, &[Vec<f32>]) -> Result<()>,
    ) -> Result<usize> {
        let budget = self.budget.unwrap_or_else(crate::system::available_memory);
        let process = crate::system::process_footprint();
        if beside + process > budget {
            let needs = beside + process;
            return Err(Error::Config(format!("{what} needs {needs} beside the data, but the budget is {budget}; raise budget.host")));
        }
        let data = self.data.clone().rebatch(1);
        let schema = data.output_schema()?;
        let beside_it = Pipeline::new(data.clone(), Some(budget.saturating_sub(beside)));
        let mut feed = beside_it.plan(&data)?.start(&data, 1)?;
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
