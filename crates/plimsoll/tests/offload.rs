//! Offloading to a file on the CPU: runs that need it stay within their budget and are bit-identical.

use plimsoll::prelude::*;
use plimsoll::{Allow, Checkpoints, Error, Permission};
use plimsoll_core::budget::Owner;
use plimsoll_core::graph::StateKind;
use std::path::Path;

fn data() -> Dataset {
    Dataset::random(RandomSpec::new(24).floats("x", [64]).floats("y", [8])).unwrap().shuffle(Shuffle::seed(5)).batch(8)
}

/// Many small layers whose optimizer state is most of the memory of a run.
fn layers() -> Sequential {
    (0..8).fold(Sequential::new(), |model, _| model.add(Dense::new(192).activation(Activation::Relu))).add(Dense::new(8))
}

fn wide(allow: &str) -> Trainer {
    let trainer = Trainer::new(layers(), &data()).loss(Loss::MeanSquaredError).optimizer(Adam::default()).seed(3).threads(2);
    trainer.allow(allow.parse::<Allow>().unwrap()).budget(line(Bytes::gib(1)))
}

fn line(bytes: Bytes) -> Budget {
    Budget { host: Some(bytes), ..Budget::default() }
}

/// A budget so small that some of the optimizer state does not fit, whatever happens to the rest.
fn scarce(trainer: Trainer) -> Budget {
    let free = trainer.plan(&Fit::epochs(1)).unwrap();
    assert_eq!((free.offload_bytes(), free.used.contains(&Permission::Offload)), (Bytes::ZERO, false), "nothing leaves where all fits");
    let optimizer = free.owners.iter().find(|(name, _)| *name == Owner::Optimizer).unwrap().1;
    assert!(free.memory.arena < optimizer);
    line(free.total() - Bytes(optimizer.0 / 2))
}

/// Losses and predictions after some epochs, as bits.
fn train_run(mut trainer: Trainer, fit: Fit<'_>) -> (Vec<u64>, Vec<u32>) {
    let history = trainer.fit(fit).unwrap();
    let losses = history.epochs.iter().map(|epoch| epoch.training.loss.to_bits()).collect();
    (losses, trainer.predict(&data()).unwrap().iter().map(|x| x.to_bits()).collect())
}

#[test]
fn a_run_that_needs_offloading_is_bit_identical() {
    let budget = scarce(wide("offload"));
    let plan = wide("offload").budget(budget).plan(&Fit::epochs(1)).unwrap();
    assert!(plan.total() <= budget.host.unwrap() && plan.results_unchanged, "{plan}");
    assert_eq!(plan.used, [Permission::Offload]);
    assert_eq!(plan.to_json()["offload_bytes"], plan.offload_bytes().0);
    assert!(plan.to_string().contains("offloaded to a file: "), "{plan}");
    assert!(plan.placement().contains("offloaded to a file at "), "{}", plan.placement());
    assert!(plan.owners.iter().any(|(name, _)| *name == Owner::Offload), "the thread that copies is counted: {:?}", plan.owners);
    assert!(train_run(wide("offload"), Fit::epochs(3)) == train_run(wide("offload").budget(budget), Fit::epochs(3)), "{plan}");
}

#[test]
fn offloading_is_the_last_resort() {
    let cut = wide("microbatch,offload");
    let free = cut.plan(&Fit::epochs(1)).unwrap();
    let single = wide("microbatch,offload").micro_batch(1).plan(&Fit::epochs(1)).unwrap();
    assert!(single.memory.arena < free.memory.arena);
    // Enough for accumulated gradients but not for the full batch, or for neither.
    let enough = wide("microbatch,offload").budget(line(free.total().max(single.total()))).plan(&Fit::epochs(1)).unwrap();
    assert!(!enough.used.contains(&Permission::Offload), "{enough}");
    let without = wide("microbatch").plan(&Fit::epochs(1)).unwrap().minimum;
    let scarce = wide("microbatch,offload").budget(line(without - Bytes(4096))).plan(&Fit::epochs(1)).unwrap();
    assert!(scarce.used.contains(&Permission::Offload) && scarce.offload_bytes() > Bytes::ZERO, "{scarce}");
}

#[test]
fn an_infeasible_run_reports_the_minimum_with_offloading() {
    let minimum = wide("none").plan(&Fit::epochs(1)).unwrap().minimum;
    let refused = match wide("none").budget(line(minimum - Bytes(1))).plan(&Fit::epochs(1)) {
        Err(Error::Infeasible(refused)) => refused,
        other => panic!("{other:?}"),
    };
    let (allow, least) = refused.minimum_with.iter().find(|(allow, _)| *allow == "offload".parse().unwrap()).expect("that would help");
    assert!(*least < refused.minimum);
    let plan = wide(&allow.to_string()).budget(line(*least)).plan(&Fit::epochs(1)).unwrap();
    assert!(plan.total() <= *least, "what is said to be enough is");
    assert!(plan.memory.programs.iter().any(|program| !program.offloaded.is_empty()) || plan.offload_bytes() > Bytes::ZERO);
    // A little more, for the batches of predict.
    let budget = line(*least + Bytes::kib(64));
    assert!(train_run(wide("none"), Fit::epochs(2)) == train_run(wide("offload").budget(budget), Fit::epochs(2)));
}

#[test]
fn accumulated_gradients_are_offloaded_with_micro_batches() {
    let cut = || wide("offload").micro_batch(2);
    let free = cut().plan(&Fit::epochs(1)).unwrap();
    let size = |wanted: Owner| free.owners.iter().find(|(owner, _)| *owner == wanted).unwrap().1;
    let budget = line(free.total() - size(Owner::Optimizer) - Bytes(size(Owner::GradientSums).0 / 4));
    let plan = cut().budget(budget).plan(&Fit::epochs(1)).unwrap();
    assert_eq!(plan.accumulation_steps(), 4);
    let gone = plan.memory.states.iter().filter(|state| state.stored && state.kind == StateKind::Accumulator).count();
    assert!(gone > 0, "{plan}");
    assert!(train_run(cut(), Fit::epochs(2)) == train_run(cut().budget(budget), Fit::epochs(2)));
}

#[test]
fn a_checkpoint_restores_offloaded_state() {
    let whole = train_run(wide("offload"), Fit::epochs(4));
    // Checkpoints take some memory too.
    let budget = line(scarce(wide("offload")).host.unwrap() + Bytes::kib(400));
    let folder = |name: &str| std::env::temp_dir().join(format!("plimsoll-offload-{}-{name}", std::process::id()));
    let go_on = |folder: &Path, first: Trainer, second: Trainer| {
        let _ = std::fs::remove_dir_all(folder);
        let fit = |epochs| Fit::epochs(epochs).checkpoints(Checkpoints::new(folder)).resume(true);
        train_run(first, fit(2));
        let end = train_run(second, fit(4));
        std::fs::remove_dir_all(folder).unwrap();
        end
    };
    let tight = || wide("offload").budget(budget);
    for (name, first, second) in [("both", tight(), tight()), ("first", tight(), wide("offload")), ("second", wide("offload"), tight())] {
        let (losses, predictions) = go_on(&folder(name), first, second);
        assert!(predictions == whole.1 && whole.0.ends_with(&losses[losses.len() - 2..]), "{name}: {losses:?}");
    }
}

#[test]
fn an_unwritable_offload_folder_is_reported() {
    let budget = scarce(wide("offload"));
    let error = wide("offload").budget(budget).offload_folder("/no/such/folder").fit(Fit::epochs(1)).unwrap_err().to_string();
    assert!(error.starts_with("cpu: the file of ") && error.contains(" in /no/such/folder, could not be begun: "), "{error}");
    assert!(error.ends_with("run in another folder, or leave `offload` out of what is allowed"), "{error}");
}

#[test]
fn a_non_finite_loss_leaves_offloaded_state_unchanged() {
    let budget = scarce(wide("offload"));
    let run = |budget: Budget| {
        let trainer = Trainer::new(layers(), &data()).loss(Loss::MeanSquaredError).optimizer(Adam::new(1e18)).seed(3).threads(2);
        let mut trainer = trainer.allow("offload".parse().unwrap()).budget(budget);
        let error = trainer.fit(Fit::epochs(3)).unwrap_err().to_string();
        (error, trainer.predict(&data()).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    let (error, weights) = run(budget);
    assert!(error.starts_with("the loss became "), "{error}");
    assert_eq!((error, weights), run(line(Bytes::gib(1))));
}
