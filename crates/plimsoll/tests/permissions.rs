//! Mixed precision, 8-bit state and other permissions: what the planner chooses, and that a run does what its plan
//! states.

use plimsoll::config::Config;
use plimsoll::{Allow, Bytes, Error, Fit, Infeasible, Permission, RunPlan, Trainer};

/// A small network of the zoo with some keys set.
fn trainer(settings: &[&str]) -> Trainer {
    let mut config = Config::zoo("cifar-cnn").unwrap();
    for setting in
        ["data.rows=96", "train.batch=32", "train.threads=1", "train.optimizer={ type = \"adam\", lr = 1e-3 }"].iter().chain(settings)
    {
        config.set(setting).unwrap();
    }
    Trainer::from(config.build().unwrap())
}

fn plan(settings: &[&str]) -> RunPlan {
    trainer(settings).plan(&Fit::epochs(1)).unwrap()
}

fn refusal(settings: &[&str]) -> Infeasible {
    match trainer(settings).plan(&Fit::epochs(1)) {
        Err(Error::Infeasible(refusal)) => *refusal,
        Err(error) => panic!("{error}"),
        Ok(plan) => panic!("there is a plan:\n{plan}"),
    }
}

fn host(line: u64) -> String {
    format!("budget.host={line}")
}

/// The weights after an epoch.
fn trained_weights(settings: &[&str]) -> Vec<u8> {
    let mut trainer = trainer(settings);
    trainer.fit(Fit::epochs(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    std::fs::read(path).unwrap()
}

const NONE: &str = "budget.allow=none";
const MIXED: &str = "budget.allow=mixed_precision";
const SMALL_STATE: &str = "budget.allow=state_8bit";

#[test]
fn mixed_precision_is_chosen_only_where_allowed_and_needed() {
    let (wide, narrow) = (plan(&[NONE]).minimum, plan(&[NONE, "train.precision=mixed_bf16"]).minimum);
    assert!(narrow < wide);
    let between = host((narrow.0 + wide.0) / 2);
    let chosen = plan(&[MIXED, &between]);
    assert_eq!(chosen.used, [Permission::MixedPrecision]);
    assert!(!chosen.results_unchanged && chosen.precision.name() == "mixed_bf16" && chosen.total().0 <= (narrow.0 + wide.0) / 2);
    assert!(chosen.to_string().contains("results        changed: activations are rounded to 16 bits, as was allowed"), "{chosen}");
    assert_eq!(chosen.strategies.len(), 1);
    assert!(chosen.strategies[0].before.0 > chosen.strategies[0].after.0);
    let enough = plan(&[MIXED, "budget.host=1GiB"]);
    assert!(enough.used.is_empty() && enough.results_unchanged && enough.precision.name() == "f32" && enough.strategies.is_empty());
    assert!(refusal(&[NONE, &between]).minimum > chosen.host_budget);
}

#[test]
fn training_uses_the_planned_precision() {
    let (wide, narrow) = (plan(&[NONE]).minimum, plan(&[NONE, "train.precision=mixed_bf16"]).minimum);
    let chosen = trained_weights(&[MIXED, &host((narrow.0 + wide.0) / 2)]);
    assert!(chosen == trained_weights(&[NONE, "train.precision=mixed_bf16"]) && chosen != trained_weights(&[NONE]));
    let small = "train.optimizer={ type = \"adam\", lr = 1e-3, state_bits = 8 }";
    let line = host(plan(&[NONE, small]).minimum.0 + (1 << 20));
    let chosen = trained_weights(&[SMALL_STATE, &line]);
    assert!(chosen == trained_weights(&[NONE, small]) && chosen != trained_weights(&[NONE]));
}

#[test]
fn eight_bit_state_is_chosen_for_optimizers_that_support_it() {
    let small = "train.optimizer={ type = \"adam\", lr = 1e-3, state_bits = 8 }";
    let (wide, narrow) = (plan(&[NONE]).minimum, plan(&[NONE, small]).minimum);
    assert!(narrow + Bytes::mib(4) < wide, "{narrow} {wide}");
    let chosen = plan(&[SMALL_STATE, &host(narrow.0 + (1 << 20))]);
    assert_eq!((&chosen.used[..], chosen.eight_bit_state, chosen.results_unchanged), (&[Permission::State8bit][..], true, false));
    let momentum = "train.optimizer={ type = \"sgd\", lr = 0.1, momentum = 0.9 }";
    assert!(refusal(&[NONE, momentum, "budget.host=24MiB"]).minimum_with.iter().all(|(allow, _)| !allow.has(Permission::State8bit)));
}

#[test]
fn the_fastest_combination_of_permissions_is_chosen() {
    let all = "budget.allow=recompute,microbatch,mixed_precision,state_8bit";
    let line = host(plan(&[NONE]).minimum.0 * 8 / 10);
    let chosen = plan(&[all, &line]);
    assert!(!chosen.used.is_empty() && chosen.total() <= chosen.host_budget);
    for less in ["budget.allow=recompute,microbatch", MIXED, "budget.allow=recompute,microbatch,mixed_precision"] {
        if let Ok(other) = trainer(&[less, &line]).plan(&Fit::epochs(1)) {
            assert!(
                chosen.predicted_s <= other.predicted_s * 1.021,
                "{less}: {} s, but {} s with more allowed",
                other.predicted_s,
                chosen.predicted_s
            );
        }
    }
}

#[test]
fn an_infeasible_run_reports_minimums_with_more_permissions() {
    let refusal = refusal(&[NONE, "budget.host=16MiB"]);
    let with = |permission: Permission| refusal.minimum_with.iter().filter(move |(allow, _)| allow.has(permission)).count();
    assert!(with(Permission::MixedPrecision) > 0 && with(Permission::State8bit) > 0, "{:?}", refusal.minimum_with);
    for (allow, least) in &refusal.minimum_with {
        assert!(*least < refusal.minimum);
        let found = plan(&[&format!("budget.allow={allow}"), &host(least.0)]);
        assert!(found.total() <= *least, "{allow}: {} of {least}", found.total());
    }
    assert_eq!(plan(&[NONE, &host(refusal.minimum.0)]).allow, Allow::NOTHING);
}
