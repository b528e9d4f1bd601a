//! `plimsoll watch`: a run from another terminal, with its curves, memory and throughput.

use crate::output::{colours, printable, say_styled};
use crate::progress_line::duration;
use crate::{Command, runs, text};
use anyhow::Result;
use clap::Args;
use plimsoll::{Bytes, RunState, RunStatus};
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Follow a run from another terminal: curves, memory, throughput
#[derive(Args)]
pub struct Watch {
    /// Run folder
    run: PathBuf,

    /// Print the state once, and end
    #[arg(long)]
    once: bool,
}

/// How often the files of the run are read.
const EVERY: Duration = Duration::from_secs(1);

/// Lines of a curve, and the widest it gets.
const LINES: usize = 8;
const WIDEST: usize = 100;

impl Command for Watch {
    const NAME: &'static str = "watch";

    fn run(&self) -> Result<ExitCode> {
        let terminal = stdout().is_terminal();
        loop {
            let status = RunStatus::read(&self.run)?;
            let columns = if terminal { terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0)) } else { 80 };
            let screen = screen(&status, columns, colours(terminal));
            if self.once || !terminal {
                say_styled(&screen)?;
                return Ok(ExitCode::SUCCESS);
            }
            // Drawn over the screen before, line by line, so that it does not flicker.
            let lines: String = screen.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            let mut stream = stdout();
            stream.write_all(format!("\x1b[H{lines}\x1b[J").as_bytes()).and_then(|()| stream.flush())?;
            if status.state != RunState::Running {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(EVERY);
        }
    }
}

/// The state of a run on one screen.
fn screen(run: &RunStatus, columns: usize, colour: bool) -> String {
    let (bold, plain) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let width = columns.saturating_sub(12).clamp(10, WIDEST);
    let name = run.path.display().to_string();
    let model = run.plan["model"].as_str().unwrap_or("");
    // A line that wraps would push the screen down every second.
    let fit = |line: String| line.chars().take(columns.saturating_sub(1)).chain(['\n']).collect::<String>();
    let head = fit(format!("{} · {} · {}", printable(&name), printable(model), runs::state(run.state)));
    let mut text = format!("{bold}{}{plain}\n\n", head.trim_end());
    let progress = run.progress.as_ref().filter(|_| run.state == RunState::Running);
    if let Some(progress) = progress {
        let number = |key: &str| progress[key].as_f64().unwrap_or(0.0);
        let (epoch, epochs, step, steps) = (number("epoch"), number("epochs"), number("step"), number("steps"));
        let bar = if steps > 0.0 && columns >= 60 { format!("{} ", text::bar(step / steps, 10)) } else { String::new() };
        let speed = number("examples_per_s");
        let rows = ((epochs - epoch + 1.0) * steps - step).max(0.0) * number("batch");
        let left = if steps > 0.0 && speed > 0.0 { format!(" · {} left", duration(rows / speed)) } else { String::new() };
        let of = if steps > 0.0 { format!("/{steps}") } else { String::new() };
        text += &fit(format!("  epoch      {epoch}/{epochs} {bar}step {step}{of} · loss {:.4}{left}", number("loss")));
        text += &fit(format!("  speed      {} examples/s", text::thousands(speed)));
    } else if let Some(last) = run.epochs.last() {
        text += &fit(format!("  epochs     {}", run.epochs.len()));
        text += &fit(format!("  speed      {} examples/s", text::thousands(last["examples_per_s"].as_f64().unwrap_or(0.0))));
    }
    let newest = progress.or(run.epochs.last()).map_or(0, |newest| newest["resident_bytes"].as_u64().unwrap_or(0));
    let budget = run.plan["host_budget_bytes"].as_u64().unwrap_or(0);
    let gauge = if columns >= 80 { format!("{} ", text::bar(newest as f64 / budget.max(1) as f64, 10)) } else { String::new() };
    text += &fit(format!("  memory     {gauge}{} resident, {} planned, budget {}", Bytes(newest), run.planned(), Bytes(budget)));
    if let Some((name, value, epoch)) = run.best() {
        text += &fit(format!("  best       {name} {value:.4} in epoch {epoch}"));
    }
    for names in [["loss", "val_loss"], ["accuracy", "val_accuracy"]] {
        let series = names.map(|name| run.epochs.iter().filter_map(|epoch| epoch[name].as_f64()).collect::<Vec<f64>>());
        if series[0].len() > 1 {
            text += &format!("\n{}", curve(names, &series, width, colour));
        }
    }
    text
}

/// Two series in dots, eight to a character, with a scale at the left. The second is drawn where the first is not.
fn curve(names: [&str; 2], series: &[Vec<f64>; 2], width: usize, colour: bool) -> String {
    let all = || series.iter().flatten().copied().filter(|value| value.is_finite());
    let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    let span = if high > low { high - low } else { 1.0 };
    let (across, up) = (2 * width, 4 * LINES);
    let mut dots = vec![[[0u8; 2]; WIDEST]; LINES];
    for (which, values) in series.iter().enumerate().filter(|(_, values)| !values.is_empty()) {
        let mut before_y = None;
        for x in 0..across {
            // The value at this place, between its two neighbours.
            let at = x as f64 * (values.len() - 1) as f64 / (across - 1) as f64;
            let (before, share) = (at as usize, at.fract());
            let value = values[before] * (1.0 - share) + values[(before + 1).min(values.len() - 1)] * share;
            if !value.is_finite() {
                continue;
            }
            let y = ((((high - value) / span) * (up - 1) as f64).round() as usize).min(up - 1);
            // Steep parts are drawn without gaps.
            let from = before_y.replace(y).unwrap_or(y);
            for y in from.min(y)..=from.max(y) {
                dots[y / 4][x / 2][which] |= BRAILLE[y % 4][x % 2];
            }
        }
    }
    let colours = if colour { ["\x1b[34m", "\x1b[33m"] } else { ["", ""] };
    let plain = if colour { "\x1b[0m" } else { "" };
    let mut text = format!("  {}{}{plain}", colours[0], names[0]);
    if !series[1].is_empty() {
        text += &format!(" · {}{}{plain}", colours[1], names[1]);
    }
    text.push('\n');
    for (line, cells) in dots.iter().enumerate() {
        let label = match line {
            0 => format!("{high:>8.3}"),
            line if line == LINES - 1 => format!("{low:>8.3}"),
            _ => " ".repeat(8),
        };
        text += &format!("{label} ");
        for cell in &cells[..width] {
            let [first, second] = *cell;
            let letter = char::from_u32(0x2800 + u32::from(first | second)).unwrap_or(' ');
            let paint = if first > 0 { colours[0] } else { colours[1] };
            text += &if first | second == 0 { " ".to_string() } else { format!("{paint}{letter}{plain}") };
        }
        text = text.trim_end().to_string() + "\n";
    }
    text
}

/// The bits of the dots of a braille character, by row and column.
const BRAILLE: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_line_of_the_screen_wraps() {
        let epoch = |number: u64| json!({ "epoch": number, "loss": 1.0 / number as f64, "val_loss": 0.5, "accuracy": 0.9, "examples_per_s": 123_456.0 });
        let progress = json!({ "epoch": 4, "epochs": 100, "step": 12_345, "steps": 100_000, "loss": 0.25, "examples_per_s": 123_456.0,
                               "batch": 32, "resident_bytes": 123u64 << 20, "host_budget_bytes": 1u64 << 30 });
        let run = RunStatus {
            path: "runs/a-long-name-of-a-run-folder-1".into(),
            state: RunState::Running,
            plan: json!({ "model": "a-model-with-a-long-name", "host_budget_bytes": 1u64 << 30 }),
            epochs: (1..4).map(epoch).collect(),
            progress: Some(progress),
            report: None,
        };
        for columns in 24..160 {
            for line in screen(&run, columns, false).lines() {
                assert!(line.chars().count() < columns, "{columns}: {line}");
            }
        }
        let plain = screen(&run, 80, true).replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[34m", "").replace("\x1b[33m", "");
        assert_eq!(plain, screen(&run, 80, false), "colours change no letter");
    }

    #[test]
    fn a_curve_has_a_dot_in_every_column_and_falls_to_the_right() {
        let text = curve(["loss", "val_loss"], &[vec![2.0, 1.0, 0.5], vec![]], 12, false);
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        assert_eq!(lines[0].iter().collect::<String>(), "  loss");
        assert_eq!(
            (lines[1][..9].iter().collect::<String>(), lines[8][..9].iter().collect::<String>()),
            ("   2.000 ".into(), "   0.500 ".into())
        );
        let drawn =
            |column: usize| (1..=8).filter(|line| lines[*line].get(9 + column).is_some_and(|cell| *cell > '\u{2800}')).collect::<Vec<_>>();
        let mut lowest = 0;
        for column in 0..12 {
            let cells = drawn(column);
            assert!(!cells.is_empty() && cells[cells.len() - 1] >= lowest, "column {column} of\n{text}");
            lowest = cells[cells.len() - 1];
        }
        assert_eq!((drawn(0)[0], lowest), (1, 8), "from the top to the bottom");
        assert!(!curve(["a", "b"], &[vec![1.0; 3], vec![0.0; 2]], 20, false).contains('\x1b'), "no colours unless they are wanted");
    }
}
