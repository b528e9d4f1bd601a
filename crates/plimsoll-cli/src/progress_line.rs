//! The line of an epoch, as long as the terminal is wide: the longest form that fits.

use crate::text;
use plimsoll::{Bytes, Epoch, Scores};

/// What a line shows.
pub struct Line<'a> {
    /// The epoch, and all of them if that is known.
    pub epoch: u64,
    pub epochs: Option<u64>,
    /// Steps of the epoch that are done, and all of them if that is known.
    pub step: u64,
    pub steps: Option<u64>,
    pub scores: &'a Scores,
    pub learning_rate: f64,
    pub examples_per_s: f64,
    /// Seconds until the run ends, if that is known.
    pub left_s: Option<f64>,
    pub resident: Bytes,
    pub budget: Bytes,
}

impl Line<'_> {
    /// The longest form that fits into this many columns.
    pub fn fitting(&self, columns: usize) -> String {
        let forms = [
            self.long(20, true),
            self.long(10, true),
            self.long(10, false),
            self.short(10),
            self.short(0),
            self.narrow(true),
            self.narrow(false),
            self.tiny(),
        ];
        fitting(forms, columns)
    }

    fn bar(&self, cells: usize) -> String {
        match self.steps {
            Some(_) if cells == 0 => String::new(),
            Some(steps) => format!("{} ", text::bar(self.step as f64 / steps.max(1) as f64, cells)),
            None => String::new(),
        }
    }

    fn steps(&self) -> String {
        self.steps.map_or(format!("step {}", self.step), |steps| format!("{}/{steps}", self.step))
    }

    fn long(&self, cells: usize, rate: bool) -> String {
        let left = self.left_s.map_or(String::new(), |left| format!(" · {} left", duration(left)));
        let rate = if rate { format!(" · rate {}", text::rate(self.learning_rate)) } else { String::new() };
        let gauge = text::bar(share(self.resident, self.budget), 8);
        format!(
            "{} {}{} · {}{rate} · {} examples/s{left} · memory {gauge} {} of {}",
            epoch(self.epoch, self.epochs),
            self.bar(cells),
            self.steps(),
            text::scores(self.scores),
            text::thousands(self.examples_per_s),
            self.resident,
            self.budget
        )
    }

    /// For 80 columns.
    fn short(&self, cells: usize) -> String {
        let left = self.left_s.map_or(String::new(), |left| format!(" {}", duration(left)));
        let accuracy = self.scores.accuracy.map_or(String::new(), |accuracy| format!(" acc {:.1} %", 100.0 * accuracy));
        let gauge = text::bar(share(self.resident, self.budget), 4);
        format!(
            "{} {}{} loss {:.3}{accuracy} {}/s{left} {gauge} {}",
            epoch(self.epoch, self.epochs),
            self.bar(cells),
            self.steps(),
            self.scores.loss,
            thousands(self.examples_per_s),
            self.resident
        )
    }

    /// For 60 columns and, without words, for 40: memory as its share of the budget.
    fn narrow(&self, words: bool) -> String {
        let left = self.left_s.map_or(String::new(), |left| format!(" {}", duration(left)));
        let accuracy = self.scores.accuracy.map_or(String::new(), |accuracy| format!(" {:.1}%", 100.0 * accuracy));
        let memory = format!("{:.0}%", 100.0 * share(self.resident, self.budget));
        let (steps, loss, speed) = (self.steps(), self.scores.loss, thousands(self.examples_per_s));
        if words {
            return format!("{} {steps} loss {loss:.3}{accuracy} {speed}/s{left} mem {memory}", epoch(self.epoch, self.epochs));
        }
        format!("{}: {steps} {loss:.3}{accuracy} {speed}/s{left} {memory}", self.epoch)
    }

    fn tiny(&self) -> String {
        format!("{} {} {:.3}", self.epoch, self.steps(), self.scores.loss)
    }
}

/// The end of an epoch in the longest form that fits.
pub fn ended(done: &Epoch, epochs: Option<u64>, columns: usize) -> String {
    let name = epoch(done.epoch, epochs);
    let held_out = done.validation.as_ref().map_or(String::new(), |scores| format!(" · validation: {}", text::scores(scores)));
    let (training, speed) = (text::scores(&done.training), text::thousands(done.examples_per_s));
    let rate = text::rate(done.learning_rate);
    let last = done.validation.as_ref().unwrap_or(&done.training);
    let which = if done.validation.is_some() { "val " } else { "" };
    let accuracy = last.accuracy.map_or(String::new(), |accuracy| format!(" acc {:.2} %", 100.0 * accuracy));
    let forms = [
        format!("{name} {training}{held_out} · rate {rate} · {speed} examples/s · {:.1} s", done.seconds),
        format!("{name} {training}{held_out} · {speed} examples/s · {:.1} s", done.seconds),
        format!("{name} {training}{held_out} · {:.1} s", done.seconds),
        format!(
            "{name} loss {:.4} · {which}loss {:.4}{accuracy} · {}/s · {}",
            done.training.loss,
            last.loss,
            thousands(done.examples_per_s),
            duration(done.seconds)
        ),
        format!("{name} loss {:.4} {which}{:.4}{accuracy}", done.training.loss, last.loss),
        format!("{name} loss {:.4} {which}{:.4}", done.training.loss, last.loss),
        format!("{} {:.3}", done.epoch, last.loss),
    ];
    fitting(forms, columns)
}

/// The first form that leaves the last column free, so that no terminal wraps; the last form is cut if it must be.
fn fitting<const N: usize>(forms: [String; N], columns: usize) -> String {
    let room = columns.saturating_sub(1).max(1);
    let cut = || forms.iter().rev().take(1).flat_map(|last| last.chars()).take(room).collect();
    forms.iter().find(|form| form.chars().count() <= room).cloned().unwrap_or_else(cut)
}

fn epoch(epoch: u64, epochs: Option<u64>) -> String {
    match epochs {
        Some(epochs) => format!("epoch {epoch:>width$}/{epochs}", width = epochs.to_string().len()),
        None => format!("epoch {epoch}"),
    }
}

fn share(resident: Bytes, budget: Bytes) -> f64 {
    resident.0 as f64 / budget.0.max(1) as f64
}

/// A time in a few characters.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.95 => format!("{s:.1}s"),
        s if s < 99.5 => format!("{s:.0}s"),
        s if s < 5970.0 => format!("{:.0}min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1}h", s / 3600.0),
        s => format!("{:.1}d", s / 86_400.0),
    }
}

/// A number in a few characters.
fn thousands(number: f64) -> String {
    match number {
        n if n < 1e4 => format!("{n:.0}"),
        n if n < 1e6 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores() -> Scores {
        Scores { loss: 1.25, accuracy: Some(0.875), more: vec![("f1".to_string(), 0.5)], per_class: vec![] }
    }

    fn line(scores: &Scores) -> Line<'_> {
        let (resident, budget) = (Bytes::mib(14), Bytes::mib(64));
        let (learning_rate, examples_per_s) = (0.002, 12_345.0);
        Line {
            epoch: 3,
            epochs: Some(10),
            step: 120,
            steps: Some(450),
            scores,
            learning_rate,
            examples_per_s,
            left_s: Some(75.0),
            resident,
            budget,
        }
    }

    #[test]
    fn the_line_is_as_long_as_the_terminal_allows() {
        let scores = scores();
        let line = line(&scores);
        insta::assert_snapshot!(line.fitting(200), @"epoch  3/10 █████··············· 120/450 · loss 1.2500 · accuracy 87.50 % · f1 0.5000 · rate 0.002 · 12,345 examples/s · 75s left · memory ██······ 14.0 MiB of 64.0 MiB");
        insta::assert_snapshot!(line.fitting(80), @"epoch  3/10 ███······· 120/450 loss 1.250 acc 87.5 % 12.3k/s 75s █··· 14.0 MiB");
        insta::assert_snapshot!(line.fitting(60), @"epoch  3/10 120/450 loss 1.250 87.5% 12.3k/s 75s mem 22%");
        insta::assert_snapshot!(line.fitting(40), @"3: 120/450 1.250 87.5% 12.3k/s 75s 22%");
        insta::assert_snapshot!(line.fitting(24), @"3 120/450 1.250");
    }

    #[test]
    fn no_width_makes_a_line_wrap() {
        let scores = scores();
        let done = Epoch {
            epoch: 3,
            training: scores.clone(),
            validation: Some(scores.clone()),
            learning_rate: 0.002,
            seconds: 3.5,
            examples_per_s: 12_345.0,
            left_out: 0,
        };
        for columns in 2..260 {
            for text in [line(&scores).fitting(columns), ended(&done, Some(10), columns)] {
                assert!(text.chars().count() < columns, "{columns}: {text}");
            }
            let unknown = Line { steps: None, epochs: None, left_s: None, ..line(&scores) };
            assert!(unknown.fitting(columns).chars().count() < columns, "{columns}");
        }
    }
}
