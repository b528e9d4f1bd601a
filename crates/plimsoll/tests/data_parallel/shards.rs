//! Optimizer states and gradients that are divided over ranks: the weights are those of one process, checkpoints
//! continue on any number of ranks, and what cannot be divided is refused.

use super::*;
use plimsoll::eager::{CustomOptimizer, UpdateCall};
use plimsoll::optim::Adam;
use plimsoll::{EarlyStopping, Precision, Prune, RunPlan, Shard, Sparsity, TrainingControl};
use plimsoll_core::budget::Owner;

fn sharded(trainer: Trainer, shard: Shard, ranks: Option<&Ranks>) -> Trainer {
    let trainer = trainer.parallel(Parallel { shard, ..Parallel::default() });
    match ranks {
        Some(ranks) => trainer.ranks(ranks),
        None => trainer,
    }
}

const STAGES: [Shard; 2] = [Shard::Optimizer, Shard::Gradients];

fn adam(trainer: Trainer) -> Trainer {
    // A small denominator would amplify rounding.
    trainer.optimizer(Adam::new(1e-3).epsilon(1e-3))
}

#[test]
fn ranks_with_parts_train_the_weights_of_one_process() {
    type Case = (&'static str, fn() -> Dataset, fn(Trainer) -> Trainer);
    let cases: [Case; 5] = [
        ("momentum", || rows(ROWS).batch(BATCH), |trainer| trainer),
        ("adam", || rows(ROWS).batch(BATCH), adam),
        // The last batch has fewer rows than ranks.
        ("micro-batches", || rows(92).batch(BATCH), |trainer| adam(trainer).micro_batch(3)),
        ("a norm per gradient", || streamed(ROWS).batch(BATCH), |trainer| trainer.clip(Clip::Norm(0.2))),
        ("a batch is an epoch", || rows(22).batch(64), |trainer| trainer.micro_batch(4)),
    ];
    for (name, data, with) in cases {
        let epochs = if name == "a batch is an epoch" { 10 } else { 3 };
        let fit = || Fit::epochs(epochs).validate(&held_out());
        let alone = trained(with(trainer(&data())), fit());
        assert!(alone.steps >= 10);
        for (ranks, shard) in [1, 2, 3, 4, 7].into_iter().flat_map(|ranks| STAGES.map(|shard| (ranks, shard))) {
            let of_ranks = on_ranks(ranks, |ranks| trained(sharded(with(trainer(&data())), shard, Some(&ranks)), fit()));
            check(&format!("{name}, {shard:?}"), &alone, &of_ranks);
        }
    }
}

/// Every optimizer whose updates are element-wise, in every precision: over threads, sums have one order.
#[test]
fn parts_have_the_bits_of_whole_states() {
    type Case = (&'static str, fn(Trainer) -> Trainer);
    let cases: [Case; 9] = [
        ("sgd", |trainer| trainer.optimizer(Sgd::new(0.05))),
        ("adam", |trainer| trainer.optimizer(Adam::default())),
        ("adamw", |trainer| trainer.optimizer(AdamW::default())),
        ("rmsprop", |trainer| trainer.optimizer(RmsProp::default())),
        ("adagrad", |trainer| trainer.optimizer(Adagrad::default())),
        ("nadam", |trainer| trainer.optimizer(Nadam::default())),
        ("lion", |trainer| trainer.optimizer(Lion::default())),
        ("bf16", |trainer| trainer.precision(Precision::MixedBf16)),
        ("f16", |trainer| trainer.precision(Precision::MixedF16)),
    ];
    for (name, with) in cases {
        let data = || rows(ROWS).batch(BATCH);
        let of_ranks = |shard| {
            on_ranks(3, |ranks| {
                let trainer = with(trainer(&data())).clip(Clip::Value(0.5));
                trained(sharded(trainer, shard, Some(&ranks)), Fit::epochs(3)).weights
            })
        };
        let whole = of_ranks(Shard::None);
        STAGES.iter().for_each(|shard| assert!(of_ranks(*shard) == whole, "{name}, {shard:?}"));
    }
}

/// A closure sees the shard of a parameter. One that needs all of it is refused.
#[test]
fn optimizers_from_closures() {
    let momentum = |call: &UpdateCall<'_>| {
        let velocity = call.slots[0].mul_scalar(0.9)?.sub(&call.gradient.mul(call.learning_rate)?)?;
        Ok(vec![call.parameter.add(&velocity)?, velocity])
    };
    let data = || rows(ROWS).batch(BATCH);
    let run = |ranks: Option<&Ranks>| {
        let optimizer = CustomOptimizer::new("momentum", 0.05, momentum).slot("velocity", 0.0);
        trained(sharded(trainer(&data()).optimizer(optimizer), Shard::Optimizer, ranks), Fit::epochs(3))
    };
    check("a closure", &run(None), &on_ranks(3, |ranks| run(Some(&ranks))));
    let normalized = |call: &UpdateCall<'_>| {
        let length = call.gradient.mul(call.gradient)?.sum()?;
        Ok(vec![call.parameter.sub(&call.gradient.div(&length)?)?])
    };
    let whole = |ranks: Ranks| {
        let trainer = trainer(&data()).optimizer(CustomOptimizer::new("normalized", 0.05, normalized));
        sharded(trainer, Shard::Optimizer, Some(&ranks)).fit(Fit::epochs(1))
    };
    insta::assert_snapshot!(refused(2, whole), @"layer `dense_1/bias`: its update has the op sum, which the shard of a rank does not give, so its optimizer state cannot be divided over ranks; choose another optimizer, or leave `parallel.shard` out");
}

fn plan(shard: Shard, ranks: &Ranks) -> RunPlan {
    let model = Sequential::new().add(Flatten).add(Dense::new(4096).relu()).add(Dense::new(10));
    let trainer = Trainer::new(model, &rows(ROWS).batch(BATCH)).threads(1).optimizer(Adam::default());
    sharded(trainer, shard, Some(ranks)).plan(&Fit::epochs(1)).unwrap()
}

/// With an odd number of rows, ranks have different numbers of micro-batches of their own.
#[test]
fn micro_batches_of_one_row_and_networks_of_every_kind() {
    let random = |spec: RandomSpec| Dataset::random(spec).unwrap().batch(12);
    let spec = || RandomSpec::new(41).seed(4);
    let tokens = || random(spec().classes("x", vec![14], 11).classes("y", [14], 11));
    let images = || random(spec().floats("x", [8, 8, 3]).labels("y", 4));
    let convolutions = || -> Model {
        Sequential::new().add(Conv2D::new(6, 3).relu()).add(Conv2D::new(8, 3).relu()).add(GlobalAveragePool).add(Dense::new(4)).into()
    };
    let normalized =
        || -> Model { Sequential::new().add(Conv2D::new(6, 3)).add(BatchNorm::new()).add(GlobalAveragePool).add(Dense::new(4)).into() };
    let sgd = |trainer: Trainer| trainer.optimizer(Sgd::new(0.05).momentum(0.9)).seed(3).threads(1);
    type Case<'a> = (&'static str, &'a (dyn Fn() -> Trainer + Sync));
    let cases: [Case<'_>; 4] = [
        ("a transformer", &|| sgd(Trainer::new(transformer(), &tokens()).micro_batch(2))),
        ("ignored labels", &|| sgd(Trainer::new(transformer(), &tokens()).loss(Loss::SoftmaxCrossEntropy.ignore_class(3)).micro_batch(1))),
        ("convolutions", &|| sgd(Trainer::new(convolutions(), &images()).clip(Clip::GlobalNorm(0.1)).micro_batch(1))),
        ("synchronized batch normalization", &|| sgd(Trainer::new(normalized(), &images()))),
    ];
    for (name, trainer) in cases {
        let alone = trained(trainer(), Fit::epochs(2));
        for (ranks, shard) in [2, 5].into_iter().flat_map(|ranks| STAGES.map(|shard| (ranks, shard))) {
            let of_ranks = on_ranks(ranks, |ranks| trained(sharded(trainer(), shard, Some(&ranks)), Fit::epochs(2)));
            check(&format!("{name}, {shard:?}"), &alone, &of_ranks);
        }
    }
}

#[test]
fn a_rank_has_its_part_of_accumulated_gradients() {
    let of = |plan: &RunPlan, owner: Owner| plan.owners.iter().find(|(known, _)| *known == owner).map_or(0, |(_, bytes)| bytes.0);
    let plan = |shard, ranks: &Ranks| {
        let trainer = sharded(trainer(&rows(ROWS).batch(BATCH)).micro_batch(2), shard, Some(ranks));
        let plan = trainer.plan(&Fit::epochs(1)).unwrap();
        (of(&plan, Owner::GradientSums), of(&plan, Owner::Optimizer), plan.to_string())
    };
    for [whole, first, second] in on_ranks(3, |ranks| [Shard::None, Shard::Optimizer, Shard::Gradients].map(|shard| plan(shard, &ranks))) {
        assert_eq!((whole.0, first.1), (first.0, second.1));
        assert!(second.0 >= whole.0 / 3 && second.0 < whole.0 / 3 + 4 * 64, "{} of {}", second.0, whole.0);
        assert!(second.1 < whole.1 / 3 + 4 * 64);
        let line = "sharded        optimizer states and accumulated gradients: each of 3 ranks has its shard";
        assert!(second.2.contains(line) && second.2.contains("order of sums"), "{}", second.2);
    }
}

#[test]
fn a_rank_has_its_part_of_the_optimizer_states() {
    let of = |plan: &RunPlan, owner: Owner| plan.owners.iter().find(|(known, _)| *known == owner).map_or(0, |(_, bytes)| bytes.0);
    for count in [2, 4, 7] {
        let plans = on_ranks(count, |ranks| [plan(Shard::None, &ranks), plan(Shard::Optimizer, &ranks)]);
        for [whole, part] in &plans {
            let (before, after) = (of(whole, Owner::Optimizer), of(part, Owner::Optimizer));
            assert!(before >= 8 * (64 * 4096 + 4096 + 4096 * 10 + 10));
            // Buffers begin at multiples of 64 bytes.
            assert!(after >= before / count as u64 && after < before / count as u64 + 8 * 64, "{after} of {before} on {count} ranks");
            assert_eq!(of(whole, Owner::Weights), of(part, Owner::Weights));
            assert!(part.total() < whole.total(), "{whole} and {part}");
        }
        assert!(plans.iter().all(|[_, part]| part.to_json()["by_owner"] == plans[0][1].to_json()["by_owner"]));
    }
}

/// The number in the name of a checkpoint's file.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.get(..12)?.parse().ok()
}

fn keep_until_step(folder: &Path, step: u64) {
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if step_of(&file).is_some_and(|known| known > step) {
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn another_number_of_ranks_continues_with_its_own_parts() {
    for with in [adam as fn(Trainer) -> Trainer, |trainer| trainer.micro_batch(2)] {
        let data = || rows(ROWS).batch(BATCH);
        let alone = trained(with(trainer(&data())), Fit::epochs(4).validate(&held_out()));
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = || Checkpoints::new(folder.path()).every_steps(1).keep(100).best("val_loss");
        let fit = || Fit::epochs(4).validate(&held_out()).checkpoints(checkpoints()).resume(true);
        let on = |ranks: usize, shard: Shard| match ranks {
            1 => vec![trained(sharded(with(trainer(&data())), shard, None), fit())],
            _ => on_ranks(ranks, |ranks| trained(sharded(with(trainer(&data())), shard, Some(&ranks)), fit())),
        };
        let parts = |step: u64, ranks: usize| {
            let part = |rank| folder.path().join(format!("step-{step:012}.rank-{rank}-of-{ranks}.safetensors"));
            (0..ranks).filter(|rank| part(*rank).exists()).count()
        };
        // From whole states to parts and back, within epochs and at their ends.
        let runs = [
            (4, Shard::Optimizer, 2),
            (2, Shard::Optimizer, 4),
            (3, Shard::Gradients, 7),
            (1, Shard::Optimizer, 8),
            (5, Shard::Optimizer, 10),
            (2, Shard::None, 11),
            (7, Shard::Gradients, 13),
        ];
        for (ranks, shard, step) in runs {
            check("resumed", &alone, &on(ranks, shard));
            keep_until_step(folder.path(), step);
            let expected = if ranks > 1 && shard != Shard::None { ranks } else { 0 };
            assert_eq!(parts(step, ranks), expected, "{ranks} ranks after step {step}");
        }
        check("resumed", &alone, &on(2, Shard::Optimizer));
    }
}

#[test]
fn the_best_epoch_is_restored_and_old_parts_are_removed() {
    let data = || rows(ROWS).batch(BATCH);
    let run = |folder: &Path, ranks: Option<&Ranks>| {
        let checkpoints = Checkpoints::new(folder).keep(1).best("val_loss");
        let fit = Fit::epochs(8).validate(&held_out()).checkpoints(checkpoints).restore_best(true);
        let stopping = EarlyStopping::new("val_loss").patience(2).min_delta(0.05);
        trained(sharded(trainer(&data()), Shard::Optimizer, ranks), fit.callback(stopping))
    };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let alone = run(folders[0].path(), None);
    check("restored", &alone, &on_ranks(3, |ranks| run(folders[1].path(), Some(&ranks))));
    let mut names: Vec<String> =
        std::fs::read_dir(folders[1].path()).unwrap().map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    let last = format!("step-{:012}", alone.steps);
    let of = |name: &str| {
        let parts = (0..3).map(|rank| format!("{name}.rank-{rank}-of-3.safetensors"));
        [format!("{name}.json")].into_iter().chain(parts).chain([format!("{name}.safetensors")]).collect::<Vec<_>>()
    };
    assert_eq!(names, [of("best"), of(&last)].concat());
}

/// Slots of a rank can be in a file too, from which checkpoints read them.
#[test]
fn shards_are_offloaded_within_a_budget() {
    let model =
        || -> Model { Sequential::new().add(Flatten).add(Dense::new(1024).relu()).add(Dense::new(1024).relu()).add(Dense::new(10)).into() };
    let of = |folder: &Path, budget: Option<u64>, epochs: u64, ranks: Option<&Ranks>| {
        let trainer = adam(Trainer::new(model(), &rows(ROWS).batch(BATCH))).seed(3).threads(1);
        let trainer = budget.into_iter().fold(trainer, |trainer, bytes| trainer.budget(Budget::host(&bytes.to_string()).unwrap()));
        let fit = || Fit::epochs(epochs).checkpoints(Checkpoints::new(folder)).resume(true);
        let trainer = sharded(trainer, Shard::Optimizer, ranks);
        let plan = trainer.plan(&fit()).unwrap();
        (plan.minimum.0, plan.offload_bytes().0, trained(trainer, fit()))
    };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let alone = of(folders[0].path(), None, 3, None).2;
    let minimum = on_ranks(2, |ranks| of(folders[1].path(), None, 1, Some(&ranks)).0)[0];
    for epochs in [1, 3] {
        let ranks = on_ranks(2, |ranks| of(folders[2].path(), Some(minimum + (64 << 10)), epochs, Some(&ranks)));
        assert!(ranks.iter().all(|(_, offloaded, _)| *offloaded > 1 << 20), "{:?}", ranks.iter().map(|run| run.1).collect::<Vec<_>>());
        if epochs == 3 {
            check("offloaded", &alone, &ranks.into_iter().map(|(_, _, run)| run).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_damaged_part_makes_all_ranks_take_an_older_checkpoint() {
    let data = || rows(ROWS).batch(BATCH);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = || Checkpoints::new(folder.path()).every_steps(1).keep(100);
    let fit = |epochs| Fit::epochs(epochs).checkpoints(checkpoints()).resume(true);
    on_ranks(4, |ranks| trained(sharded(trainer(&data()), Shard::Optimizer, Some(&ranks)), fit(2)));
    let part = |rank, step| folder.path().join(format!("step-{step:012}.rank-{rank}-of-4.safetensors"));
    // A part that only some of two ranks read, and one that is missing.
    let mut bytes = std::fs::read(part(3, 8)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(part(3, 8), bytes).unwrap();
    std::fs::remove_file(part(0, 7)).unwrap();
    let alone = trained(trainer(&data()), Fit::epochs(3));
    let complaints = on_ranks(2, |ranks| {
        let mut found = Vec::new();
        let run = trained(
            sharded(trainer(&data()), Shard::Optimizer, Some(&ranks)),
            fit(3).on_event(|event| {
                if let plimsoll::Event::Resumed { step, complaints, .. } = event {
                    found.push((*step, complaints.len()));
                }
            }),
        );
        (run, found)
    });
    assert!(complaints.iter().all(|(_, found)| *found == [(6, 2)]), "{:?}", complaints.iter().map(|(_, found)| found).collect::<Vec<_>>());
    check("resumed", &alone, &complaints.into_iter().map(|(run, _)| run).collect::<Vec<_>>());
}

#[test]
fn a_callback_that_stops_one_rank_stops_all() {
    let data = || rows(ROWS).batch(BATCH);
    let folder = tempfile::tempdir().unwrap();
    let steps = on_ranks(3, |ranks| {
        let fit = Fit::epochs(5).checkpoints(Checkpoints::new(folder.path()));
        let last = 1 + ranks.rank() as u64;
        let fit = fit.on_epoch(move |epoch| if epoch.epoch >= last { TrainingControl::Stop } else { TrainingControl::Continue });
        trained(sharded(trainer(&data()), Shard::Optimizer, Some(&ranks)), fit).steps
    });
    assert_eq!(steps, [4; 3]);
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let data = || rows(60).batch(8);
    let refused_with = |with: &(dyn Fn(Trainer) -> Trainer + Sync)| {
        refused(2, |ranks| sharded(with(trainer(&data())), Shard::Optimizer, Some(&ranks)).fit(Fit::epochs(1)))
    };
    insta::assert_snapshot!(refused_with(&|trainer| trainer.optimizer(Adafactor::default())), @"`parallel.shard` cannot be met with the optimizer adafactor: its states are those of rows and columns, which do not end where the shards of ranks do; use Adam or SGD, or leave it out");
    insta::assert_snapshot!(refused_with(&|trainer| trainer.optimizer(Adam::default().eight_bit())), @"`parallel.shard` cannot be met with the optimizer adam8bit: its states of 8 bits have scales for blocks of elements, which do not end where the shards of ranks do; use Adam or SGD, or leave it out");
    insta::assert_snapshot!(refused_with(&|trainer| trainer.prune(Prune::new(Sparsity::constant(0.5)))), @"`parallel.shard` cannot be met with pruning, whose masks follow from whole weights; leave `[prune]` or it out");
    insta::assert_snapshot!(refused_with(&|trainer| trainer.average(Ema::new(0.9))), @"`parallel.shard` cannot be met with `train.ema`: no rank would have the whole average; leave one of them out");
    let both = |ranks: Ranks| {
        let parallel = Parallel { shard: Shard::Optimizer, reproducible: true, ..Parallel::default() };
        trainer(&data()).parallel(parallel).ranks(&ranks).fit(Fit::epochs(1))
    };
    insta::assert_snapshot!(refused(2, both), @"`parallel.shard` cannot be met with `parallel.reproducible`: shards are summed in the order of MPI; leave one of them out");
    // One process has all of it.
    let alone = sharded(trainer(&data()).average(Ema::new(0.9)), Shard::Optimizer, None).fit(Fit::epochs(1));
    alone.unwrap();
}
