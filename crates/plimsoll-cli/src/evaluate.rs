//! `evaluate`: the scores of a trained model, and how well it distinguishes classes.

use crate::output::{print, say};
use crate::trained::{TrainedArgs, name};
use crate::{Command, text};
use anyhow::Result;
use clap::Args;
use plimsoll::{ClassReport, ClassScores};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Evaluate the trained model of a run, with a report by class
#[derive(Args)]
pub struct Evaluate {
    #[command(flatten)]
    trained: TrainedArgs,
}

impl Command for Evaluate {
    const NAME: &'static str = "evaluate";

    fn run(&self) -> Result<ExitCode> {
        evaluate(&self.trained).map(|()| ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.trained.json
    }
}

/// Loss and metrics of the run's rows.
fn evaluate(args: &TrainedArgs) -> Result<()> {
    let mut trained = args.open()?;
    let scores = trained.evaluate()?;
    let classes = trained.class_report()?;
    if args.json {
        let mut document: Map<String, Value> = scores.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
        document.insert("rows".to_string(), json!(name(trained.rows())));
        document.insert("preprocessing".to_string(), json!(trained.preprocessing()));
        document.insert("report".to_string(), classes.as_ref().map_or(Value::Null, ClassReport::to_json));
        print(&Value::Object(document))?;
    } else {
        say(&format!("{} rows: {}\n", name(trained.rows()), text::scores(&scores)))?;
        trained.preprocessing().notes().iter().try_for_each(|note| say(&format!("  {note}\n")))?;
        classes.as_ref().map_or(Ok(()), |classes| say(&table(classes)))?;
    }
    Ok(())
}

/// More classes than these are in the JSON document only.
const MOST_ROWS: usize = 64;
const MOST_COLUMNS: usize = 16;

/// The report in columns.
fn table(report: &ClassReport) -> String {
    let classes = report.classes();
    let names: Vec<String> = (0..classes).map(|class| report.name(class)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(5, 32);
    let mut text = format!("\n{:width$}  precision  recall      F1     AUC  support\n", "class");
    let line = |text: &mut String, name: &str, scores: ClassScores| {
        let auc = scores.auc.map_or("-".to_string(), |auc| format!("{auc:.4}"));
        let ClassScores { precision, recall, f1, support, .. } = scores;
        _ = writeln!(text, "{name:width$}  {precision:>9.4}  {recall:.4}  {f1:.4}  {auc:>6}  {support:>7}");
    };
    for (class, name) in names.iter().enumerate().take(MOST_ROWS) {
        line(&mut text, name, report.scores(class));
    }
    if classes > MOST_ROWS {
        _ = writeln!(text, "… {} more classes (--json lists all)", classes - MOST_ROWS);
    }
    line(&mut text, "mean", report.mean());
    if classes <= MOST_COLUMNS {
        let cell = |count: u64| count.to_string();
        let most = (0..classes * classes).map(|at| cell(report.count_of(at / classes, at % classes)).len()).max().unwrap_or(1);
        let columns = most.max(names.iter().map(|name| name.chars().count()).max().unwrap_or(1).min(8)) + 2;
        let header: String = names.iter().map(|name| format!("{:>columns$}", name.chars().take(columns - 2).collect::<String>())).collect();
        _ = writeln!(text, "\n{:width$}{header}  ← predicted", "label");
        for (label, name) in names.iter().enumerate() {
            let counts: String = (0..classes).map(|predicted| format!("{:>columns$}", report.count_of(label, predicted))).collect();
            _ = writeln!(text, "{name:width$}{counts}");
        }
    }
    text
}
