//! What a refused budget would need: the cheapest changes with their exact peaks, on the screen and as a report.

use crate::calibrate::Rates;
use crate::output::complain;
use crate::run_args::RunArgs;
use anyhow::Result;
use plimsoll::{Count, Error, Infeasible, Report, cheapest_changes};
use std::path::Path;

/// The result of a command; if its budget was refused and a report is wanted, that is written first. `count` is what
/// the budget was for.
pub fn explained<T>(args: &RunArgs, count: Count, result: Result<T>) -> Result<T> {
    let Some(path) = &args.report else { return result };
    result.inspect_err(|error| {
        if let Some(Error::Infeasible(infeasible)) = error.downcast_ref()
            && let Err(error) = write(args, count, infeasible, path)
        {
            complain(&format!("warning: the report of the refused budget could not be written: {error}\n"));
        }
    })
}

fn write(args: &RunArgs, count: Count, infeasible: &Infeasible, path: &Path) -> Result<()> {
    let (trainer, _) = Rates::stored(args.config()?.build()?.into(), args, None)?;
    let trainer = trainer.count(count);
    let spec = trainer.spec().clone();
    let (plan, refusal) = cheapest_changes(trainer, infeasible)?;
    Report::of_plan(plan, &spec).refusal(&refusal).write(path)?;
    if !args.quiet {
        let changes = refusal.changes.iter().map(|change| {
            let fits = if change.fits { ", which fits" } else { "" };
            let results = if change.same_results { "" } else { "; changes results" };
            format!("  {}: peak {} ({} bytes){fits}{results}; {}\n", change.what, change.peak, change.peak.0, change.flag)
        });
        complain(&format!("{}  report written to {}\n", changes.collect::<String>(), path.display()));
    }
    Ok(())
}
