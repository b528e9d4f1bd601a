//! Plans a sequential stage with its inputs: their memory, and which thread produces their rows.

use super::geometry::{self, Geometry};
use super::{Keep, PipelinePlan};
use crate::block::column_bytes;
use crate::dataset::{Concern, Dataset, Holding, Node, Parallelism, Recipe, StreamBudget};
use crate::decode::ItemSizes;
use crate::fault::RowErrors;
use crate::{Cache, DataError};
use plimsoll_core::Bytes;
use std::sync::Arc;
use std::thread;

/// Memory of a node and everything upstream.
pub(crate) fn node_holdings(node: &Node, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
    let mut holdings = Vec::new();
    let (mut here, mut ahead) = (Vec::new(), Vec::new());
    for input in &node.inputs {
        let closes = node.closes(input);
        let is_ahead = |holding: &Holding| holding.reserved_elsewhere && (closes || node.stage.reads_ahead());
        let (elsewhere, own): (Vec<Holding>, Vec<Holding>) =
            input_holdings(input, node.input_budget(budget))?.into_iter().partition(is_ahead);
        ahead.push(elsewhere.iter().map(|holding| holding.bytes).sum());
        match closes {
            true => here.push(own.iter().map(|holding| holding.bytes).sum()),
            false => holdings.extend(own),
        }
    }
    // Only so many inputs are open at a time, but not known which, so count the largest.
    let largest = |mut each: Vec<Bytes>| {
        each.sort_unstable_by(|a, b| b.cmp(a));
        each.into_iter().take(node.open_inputs()).sum::<Bytes>()
    };
    let name = node.stage.describe();
    for (name, bytes, reserved_elsewhere) in [(name.clone(), largest(here), false), (format!("{name} ahead"), largest(ahead), true)] {
        if bytes > Bytes::ZERO {
            holdings.push(Holding { name, bytes, reserved_elsewhere });
        }
    }
    holdings.extend(node.stage.holdings(&node.inputs, node.schema()?.row_bytes(), budget)?);
    Ok(holdings)
}

/// Bytes per block passed between stages.
const BLOCK: Bytes = Bytes::kib(64);

/// Rows per block passed between stages.
pub(crate) fn block_rows(row: Bytes, budget: StreamBudget) -> usize {
    if budget.minimal { 1 } else { (BLOCK.0 / row.0.max(1)).clamp(1, 1024) as usize }
}

/// How a sequential stage reads an input.
pub(crate) struct InputPlan {
    pub recipe: Recipe,
    pub route: Route,
    /// Errors of rows, which are marked in their last byte. Set if rows are produced in blocks or by another thread.
    pub errors: Option<Arc<RowErrors>>,
}

/// What produces the rows of an input.
pub(crate) enum Route {
    /// Another stage and the maps after it, on the calling thread.
    Stage,
    /// An indexed source, on the calling thread.
    Indexed(Geometry),
    /// An inner feed, which reads ahead on its own threads.
    ReadAhead(Box<Dataset>, PipelinePlan),
}

impl InputPlan {
    pub fn new(data: &Dataset, budget: StreamBudget) -> Result<InputPlan, DataError> {
        let recipe = data.recipe()?;
        // Prefetching may read rows that are never requested, so an error is reported at its own position.
        let errors = Arc::new(RowErrors::new(budget.ignores_errors));
        let marks = Arc::clone(&errors);
        let marked = data.clone().with_setting(Concern::Hidden, "mark_errors", move |settings| {
            settings.row_errors = Some(Arc::clone(&marks));
            Ok(())
        });
        let with_marks = marked.recipe()?;
        match route(&marked, &with_marks, budget)? {
            // A stage reports errors immediately.
            Route::Stage => Ok(InputPlan { recipe, route: Route::Stage, errors: None }),
            route => Ok(InputPlan { recipe: with_marks, route, errors: Some(errors) }),
        }
    }
}

fn route(data: &Dataset, recipe: &Recipe, budget: StreamBudget) -> Result<Route, DataError> {
    recipe.check_fixed()?;
    if let Some(batch) = recipe.settings.batch {
        return Err(DataError::Stage(format!("rows are counted after batch({batch}) in {}; put the batch last", data.describe())));
    }
    if let Some((mix, _)) = &recipe.settings.mix {
        return Err(DataError::Stage(format!("{mix} works on batches, and a stage that takes single rows stands after it; put it last")));
    }
    let in_memory = |cache: &Cache| cache.path().is_none();
    if recipe.item().is_some() && recipe.cache.as_ref().is_some_and(in_memory) {
        let what = "its images are cached in memory by their number, and the stage that follows takes them one after the other";
        let problem = format!("{}: {what}; put the cache behind that stage, or keep them in a file", data.describe());
        return Err(DataError::Stage(problem));
    }
    let (rows, parallelism) = (block_rows(recipe.schema.row_bytes(), budget), recipe.settings.parallelism);
    let threads = match parallelism {
        Parallelism::Threads(threads) => threads > 1 && (recipe.node.is_none() || recipe.is_mapped()),
        Parallelism::Auto => recipe.takes_long() && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
    };
    let ahead = budget.parallel_inputs > 0 || threads || recipe.item().is_some();
    if ahead && !budget.minimal {
        let rows = rows.min(16);
        // All rows, in order.
        let batched = data.clone().with_setting(Concern::Batches, format!("batch({rows})"), move |settings| {
            (settings.batch, settings.drop_remainder, settings.deterministic) = (Some(rows), None, None);
            Ok(())
        });
        let one_each = budget.parallel_inputs > 0 && parallelism == Parallelism::Auto;
        let batched = if one_each { batched.parallelism(Parallelism::Threads(1)) } else { batched };
        // Half of the limit; the rest is for later stages.
        let limit = budget.limit.map(|limit| Bytes(limit.0 / 2 / budget.parallel_inputs.max(1) as u64));
        // Another thread may decode images as large as the calling thread could, unless many inputs are read in
        // parallel.
        let decodes = budget.parallel_inputs == 0 && recipe.node.as_ref().is_some_and(|node| node.decodes_within_limit());
        let item = decodes.then(|| budget.item_bytes(&ItemSizes::default(), 1));
        if let Ok(plan) = batched.plan_keeping(limit, Keep::UpTo(budget.cache), item)
            && !(decodes && plan.geometry.budget.minimal)
        {
            return Ok(Route::ReadAhead(Box::new(batched), plan));
        }
    }
    if recipe.node.is_some() {
        return Ok(Route::Stage);
    }
    let geometry = if budget.minimal { geometry::smallest(recipe, 1) } else { geometry::for_speed(recipe, rows)?.alone(recipe) };
    let geometry = Geometry { slots: 0, chunk_rows: geometry.chunk_rows.min(rows), ..geometry };
    Ok(Route::Indexed(geometry::with_cache(recipe, geometry, |_| budget.cache)))
}

/// Memory of an input on its way to a stage.
pub(crate) fn input_holdings(data: &Dataset, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
    let InputPlan { recipe, route, .. } = InputPlan::new(data, budget)?;
    let row = recipe.schema.row_bytes();
    // On the calling thread; inner feeds further upstream have their own stacks.
    let here = |geometry: Geometry| {
        let mut holdings = super::holdings(&recipe, geometry)?;
        holdings.retain(|holding| holding.reserved_elsewhere || !holding.name.ends_with("stack"));
        holdings.push(Holding::here("columns", column_bytes(&recipe.schema, geometry.chunk_rows)));
        Ok::<_, DataError>(holdings)
    };
    let mut holdings = match route {
        Route::Stage => here(Geometry::of_block(&recipe, block_rows(row, budget), budget))?,
        Route::Indexed(geometry) => here(geometry)?,
        Route::ReadAhead(_, plan) => {
            let stages = plan.stages().iter();
            stages.map(|(name, bytes)| Holding { name: name.clone(), bytes: *bytes, reserved_elsewhere: true }).collect()
        }
    };
    holdings.push(Holding::here("block", row * block_rows(row, budget) as u64));
    Ok(holdings)
}
