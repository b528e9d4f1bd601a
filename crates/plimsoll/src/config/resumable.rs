//! Which keys of a configuration may differ when a run is resumed.

use super::{Config, parse};
use crate::error::{Error, Result};
use crate::numerics::Numerics;
use toml::{Table, Value};

/// Keys that may differ, with all keys below them: how long, how fast, within which budgets, and what is written.
const MAY_DIFFER: [&str; 11] = [
    "train.epochs",
    "train.threads",
    "train.csv_log",
    // Read only when a run starts.
    "train.weights",
    "data.prefetch",
    "data.parallelism",
    "data.validation.parallelism",
    "budget",
    "parallel",
    "checkpoint",
    "log",
];

/// Checks that a checkpoint of one configuration can be resumed with another: data, model and training are the same.
/// Runs that were built in code have no configuration.
pub(crate) fn check_resumable(saved: &str, now: &str, numerics: &Numerics) -> Result<()> {
    if saved.is_empty() || now.is_empty() {
        return Ok(());
    }
    let read = |text: &str| parse(text).map_err(|error| Error::Config(format!("a configuration cannot be read: {}", error.message())));
    let (saved, now) = (read(saved)?, read(now)?);
    let mut different = Vec::new();
    compare("", &saved, &now, &mut different);
    let may_differ =
        |key: &str| MAY_DIFFER.iter().any(|known| key.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')));
    for (key, before, after) in different {
        if may_differ(&key) || is_chosen(&key, after, numerics) || means_the_same(&saved, &key, before, after) {
            continue;
        }
        let text = |value: Option<&Value>| value.map_or("not set".to_string(), |value| format!("{value}"));
        return Err(Error::Config(format!(
            "`{key}` is {} in the run that was saved, but {} now; a resumed run keeps its data, model and training: leave it as it was, \
             or start a new run",
            text(before),
            text(after)
        )));
    }
    Ok(())
}

/// Lists the keys whose values differ.
fn compare<'a>(prefix: &str, saved: &'a Table, now: &'a Table, different: &mut Vec<(String, Option<&'a Value>, Option<&'a Value>)>) {
    static EMPTY: std::sync::LazyLock<Table> = std::sync::LazyLock::new(Table::new);
    let mut keys: Vec<&String> = saved.keys().chain(now.keys().filter(|key| !saved.contains_key(*key))).collect();
    keys.sort_unstable();
    for key in keys {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (saved.get(key), now.get(key)) {
            (Some(Value::Table(saved)), Some(Value::Table(now))) => compare(&name, saved, now, different),
            // A section that one of them leaves out.
            (Some(Value::Table(saved)), None) if prefix.is_empty() => compare(&name, saved, &EMPTY, different),
            (None, Some(Value::Table(now))) if prefix.is_empty() => compare(&name, &EMPTY, now, different),
            (before, after) if before != after => different.push((name, before, after)),
            _ => {}
        }
    }
}

/// Whether a key states what the planner chose for the run anyway.
fn is_chosen(key: &str, now: Option<&Value>, numerics: &Numerics) -> bool {
    match (key, now) {
        ("train.micro_batch", None) => true,
        ("train.micro_batch", Some(Value::String(word))) => word == "auto",
        ("train.micro_batch", Some(Value::Integer(rows))) => usize::try_from(*rows) == Ok(numerics.micro_batch),
        _ => false,
    }
}

/// Whether a key of `[train]` that one of them leaves out has its default in the other; and whether two names are of
/// the same kind of device.
fn means_the_same(saved: &Table, key: &str, before: Option<&Value>, after: Option<&Value>) -> bool {
    if key == "train.device" {
        let kind =
            |device: Option<&Value>| device.and_then(Value::as_str).unwrap_or("cpu").split(':').next().unwrap_or_default().to_string();
        return kind(before) == kind(after);
    }
    if !key.starts_with("train.") || (before.is_some() && after.is_some()) {
        return false;
    }
    let described = |value: Option<&Value>| {
        let mut config = Config { table: saved.clone(), folder: Default::default(), title: String::new(), fitted: None };
        match value {
            Some(value) => config.set_value(key, value.clone()).ok()?,
            None => drop(
                config.table.get_mut("train").and_then(Value::as_table_mut).and_then(|train| train.remove(key.strip_prefix("train.")?)),
            ),
        }
        let mut spec = config.build().ok()?;
        spec.config.clear();
        Some(format!("{spec:?} {:?}", spec.data.batch_size()))
    };
    described(before).is_some_and(|before| Some(before) == described(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "[data]\nsource = \"digits\"\n[model]\nzoo = \"mlp\"\n[train]\nbatch = 32\nepochs = 2\n";

    /// What is refused when these keys are set in the run that continues.
    fn refused(keys: &[&str]) -> String {
        let mut config = Config::from_text(RUN).unwrap();
        keys.iter().for_each(|key| config.set(key).unwrap());
        let numerics = Numerics { micro_batch: 16, ..Numerics::default() };
        check_resumable(RUN, &config.to_toml(), &numerics).map_or_else(|error| error.to_string(), |()| "resumes".to_string())
    }

    #[test]
    fn length_threads_budgets_logging_and_checkpoints_may_differ() {
        let free = [
            "train.epochs=9",
            "train.threads=1",
            "train.csv_log=true",
            "budget.host=\"64MiB\"",
            "checkpoint.keep=5",
            "checkpoint.every_steps=3",
            "data.parallelism=2",
            "train.micro_batch=16",
            "train.seed=0",
            "train.device=cpu",
        ];
        for key in free {
            assert_eq!(refused(&[key]), "resumes", "{key}");
        }
    }

    #[test]
    fn any_other_difference_is_refused_with_its_key_and_both_values() {
        let rest = "; a resumed run keeps its data, model and training: leave it as it was, or start a new run";
        let cases = [
            ("train.batch=16", "`train.batch` is 32 in the run that was saved, but 16 now"),
            ("train.seed=4", "`train.seed` is not set in the run that was saved, but 4 now"),
            ("train.micro_batch=8", "`train.micro_batch` is not set in the run that was saved, but 8 now"),
            ("train.optimizer=\"sgd\"", "`train.optimizer` is not set in the run that was saved, but \"sgd\" now"),
            ("train.precision=\"mixed_bf16\"", "`train.precision` is not set in the run that was saved, but \"mixed_bf16\" now"),
            ("train.device=\"cuda:0\"", "`train.device` is not set in the run that was saved, but \"cuda:0\" now"),
            ("model.zoo=\"lenet5\"", "`model.zoo` is \"mlp\" in the run that was saved, but \"lenet5\" now"),
            ("data.shuffle=true", "`data.shuffle` is not set in the run that was saved, but true now"),
        ];
        for (key, what) in cases {
            assert_eq!(refused(&[key]), format!("{what}{rest}"));
        }
    }
}
