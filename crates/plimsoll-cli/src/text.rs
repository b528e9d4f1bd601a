//! Numbers and summaries as people read them.

use plimsoll::{History, RunSpec, Scores, WeightSparsity};
use std::path::Path;

/// A bar of `cells` cells, as full as `share`.
pub fn bar(share: f64, cells: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "·".repeat(cells - full))
}

/// Loss and metrics in one phrase.
pub fn scores(scores: &Scores) -> String {
    let accuracy = scores.accuracy.map_or(String::new(), |accuracy| format!(" · accuracy {:.2} %", 100.0 * accuracy));
    let more: String = scores.more.iter().map(|(name, value)| format!(" · {name} {value:.4}")).collect();
    format!("loss {:.4}{accuracy}{more}", scores.loss)
}

/// A learning rate, to three digits.
pub fn rate(rate: f64) -> String {
    let rounded: f64 = format!("{rate:.2e}").parse().unwrap_or(rate);
    if rounded == 0.0 || (1e-4..1e4).contains(&rounded) { rounded.to_string() } else { format!("{rounded:e}") }
}

/// An integer with its thousands apart.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things.
fn count(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", thousands(number as f64), if number == 1 { "" } else { "s" })
}

/// A time with as many digits as tell something.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", 1e6 * s),
        s if s < 0.1 => format!("{:.2} ms", 1e3 * s),
        s if s < 100.0 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}

/// What is said at the end of a run.
pub fn summary(history: &History, folder: &Path, random: bool) -> String {
    let (epochs, steps) = (count(history.epochs.len() as u64, "epoch"), count(history.steps, "step"));
    let mut lines = vec![format!("trained {epochs}, {steps}, in {:.1} s", history.seconds)];
    if let Some(epoch) = history.last() {
        let (what, last) = epoch.validation.as_ref().map_or(("training", &epoch.training), |scores| ("validation", scores));
        let random = if random { " (random data: this means nothing)" } else { "" };
        lines.push(format!("  {what:<11} {}{random}", scores(last)));
    }
    let time = (history.computing_s + history.waiting_s).max(1e-9);
    let (computing, waiting) = (100.0 * history.computing_s / time, 100.0 * history.waiting_s / time);
    let throughput = thousands(history.examples_per_s);
    lines.push(format!("  throughput  {throughput} examples/s; {computing:.0} % of the time computing, {waiting:.0} % waiting for input"));
    lines.push(format!("  memory      {} planned, {} measured peak, budget {}", history.planned, history.measured, history.host_budget));
    if let (Some(planned), Some(in_use)) = (history.planned_on_device, history.in_use_on_device) {
        lines.push(format!("  device      {planned} planned, {in_use} in use on it at the end"));
    }
    if let Some((median, _)) = history.measured_step_s {
        let (predicted, ratio) = (history.predicted_step_s, median / history.predicted_step_s);
        lines.push(format!("  step        {} predicted, {} measured (ratio {ratio:.2})", seconds(predicted), seconds(median)));
    }
    if let Some(share) = WeightSparsity::overall(&history.sparsity) {
        let weights = count(history.sparsity.len() as u64, "pruned weight");
        lines.push(format!("  sparsity    {:.1} % of {weights} (report.json lists each)", 100.0 * share));
    }
    if history.measured > history.host_budget {
        lines.push(
            "  OVER BUDGET: the process used more memory than its budget; this is a bug, please report it with plan.json".to_string(),
        );
    }
    lines.push(format!(
        "  folder      {} (report.html, weights.safetensors, report.json, log.jsonl, plan.json, config.toml)",
        folder.display()
    ));
    lines.join("\n") + "\n"
}

/// What a run reads of its data, line by line; empty if there is nothing to say.
pub fn data_notes(spec: &RunSpec) -> String {
    spec.data_notes().into_iter().map(|(label, text)| format!("  {label:<14} {text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn a_bar_is_as_full_as_its_share() {
        assert_eq!(bar(0.5, 4), "██··");
        assert_eq!(bar(7.0, 4), "████");
    }
}
