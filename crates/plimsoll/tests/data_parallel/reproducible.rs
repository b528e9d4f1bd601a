//! Reproducible runs: any number of ranks has the bits of one process, weights and scores alike.

use super::*;
use plimsoll::RandomSpec;
use plimsoll::zoo;

/// Trains on one process and on ranks, and compares every bit.
fn check_bits(name: &str, ranks: &[usize], run: impl Fn(Option<&Ranks>) -> Trained + Sync) {
    let alone = run(None);
    for count in ranks {
        for (rank, other) in on_ranks(*count, |ranks| run(Some(&ranks))).iter().enumerate() {
            assert_same(&format!("{name}: rank {rank} of {count}"), &alone, other);
        }
    }
}

fn assert_same(name: &str, alone: &Trained, other: &Trained) {
    assert!(other.weights == alone.weights, "{name} has other weights than one process");
    assert_eq!((other.steps, other.epochs.len()), (alone.steps, alone.epochs.len()), "{name}");
    for (alone, other) in alone.epochs.iter().zip(&other.epochs) {
        for score in alone.score_names() {
            let bits = |epoch: &Epoch| epoch.score(&score).map(f64::to_bits);
            assert_eq!(
                bits(alone),
                bits(other),
                "{name}: {score} is {:?}, and {:?} on one process",
                other.score(&score),
                alone.score(&score)
            );
        }
    }
}

fn with_ranks(trainer: Trainer, ranks: Option<&Ranks>) -> Trainer {
    let trainer = trainer.parallel(Parallel { reproducible: true, ..Parallel::default() });
    match ranks {
        // Threads change no bit either.
        Some(ranks) => trainer.ranks(ranks).threads(1 + ranks.rank() % 2),
        None => trainer,
    }
}

#[test]
fn any_number_of_ranks_has_the_bits_of_one_process() {
    type Case = (&'static str, fn() -> Dataset, fn(Trainer) -> Trainer, &'static [usize]);
    let cases: [Case; 4] = [
        // 15 micro-batches of 2 rows; of the last batch, one row is left for the last of 7.
        ("rows by number", || rows(ROWS).batch(BATCH), |trainer| trainer, &[1, 2, 3, 4, 5, 7, 8, 16]),
        ("a stream", || streamed(ROWS).batch(BATCH), |trainer| trainer.micro_batch(4), &[2, 3, 7]),
        // The last batch has two rows, fewer than ranks.
        ("a short last batch", || rows(92).batch(BATCH), |trainer| trainer.micro_batch(3), &[2, 4, 5]),
        ("a batch is an epoch", || rows(22).batch(64), |trainer| trainer.micro_batch(22), &[2, 3]),
    ];
    for (name, data, with, ranks) in cases {
        check_bits(name, ranks, |ranks| trained(with_ranks(with(trainer(&data())), ranks), Fit::epochs(2).validate(&held_out())));
    }
}

#[test]
fn networks_of_every_kind_have_the_same_bits() {
    let random = |spec: RandomSpec| Dataset::random(spec).unwrap().batch(12);
    let spec = || RandomSpec::new(41).seed(4);
    let tokens = || random(spec().classes("x", vec![14], 11).classes("y", [14], 11));
    let series = || random(spec().floats("x", [9, 5]).floats("y", [2]));
    let images = || random(spec().floats("x", [8, 8, 3]).labels("y", 4));
    let recurrent = || -> Model { Sequential::new().add(Lstm::new(18).sequence()).add(Gru::new(7)).add(Dense::new(2)).into() };
    let convolutions = || -> Model {
        Sequential::new().add(Conv2D::new(6, 3).relu()).add(Conv2D::new(8, 3).relu()).add(GlobalAveragePool).add(Dense::new(4)).into()
    };
    let sgd = |trainer: Trainer| trainer.optimizer(Sgd::new(0.05).momentum(0.9)).seed(3).threads(1);
    type Case<'a> = (&'static str, &'a (dyn Fn() -> Trainer + Sync));
    let cases: [Case<'_>; 6] = [
        ("lstm and gru", &|| sgd(Trainer::new(recurrent(), &series()).loss(Loss::MeanSquaredError))),
        ("a transformer", &|| sgd(Trainer::new(transformer(), &tokens()))),
        ("ignored labels", &|| sgd(Trainer::new(transformer(), &tokens()).loss(Loss::SoftmaxCrossEntropy.ignore_class(3)))),
        ("convolutions", &|| sgd(Trainer::new(convolutions(), &images()).clip(Clip::GlobalNorm(0.1)).average(Ema::new(0.9)))),
        ("in 16 bits", &|| sgd(Trainer::new(convolutions(), &images()).precision(Precision::MixedBf16).micro_batch(2))),
        ("class weights", &|| {
            let loss = Loss::SoftmaxCrossEntropy.class_weights([1.0, 3.0, 0.5, 1.0]).smoothing(0.1);
            sgd(Trainer::new(convolutions(), &images()).loss(loss).micro_batch(5))
        }),
    ];
    for (name, trainer) in cases {
        check_bits(name, &[2, 3, 8], |ranks| trained(with_ranks(trainer(), ranks), Fit::epochs(2)));
    }
}

/// The networks of the zoo, in small.
#[test]
fn networks_of_the_zoo_have_the_same_bits_on_up_to_16_ranks() {
    let data = |name: &str| -> Dataset {
        let spec = RandomSpec::new(36).seed(4);
        match name {
            "digits" => Dataset::digits(Split::Train).take(36).map("x", [scale(1.0 / 16.0)]).batch(16),
            "cifar-cnn" => Dataset::random(spec.floats("x", [32, 32, 3]).labels("y", 10)).unwrap().batch(16),
            _ => unreachable!("named below"),
        }
    };
    for name in ["digits", "cifar-cnn"] {
        let trainer = || match name {
            "digits" => Trainer::new(zoo::mlp(10), &data(name)),
            _ => Trainer::new(zoo::cifar_cnn(10), &data(name)),
        };
        check_bits(name, &[1, 2, 4, 8, 16], |ranks| trained(with_ranks(trainer().seed(3).threads(1), ranks), Fit::epochs(1)));
    }
}

#[test]
fn any_other_number_of_ranks_resumes_with_the_same_bits() {
    for data in [|| rows(ROWS).batch(BATCH), || streamed(ROWS).batch(BATCH)] {
        let fit = || Fit::epochs(3).validate(&held_out());
        let alone = trained(with_ranks(trainer(&data()), None), fit());
        let folder = tempfile::tempdir().unwrap();
        let resumed = || fit().checkpoints(Checkpoints::new(folder.path()).every_steps(1).keep(100)).resume(true);
        let on = |ranks: usize| match ranks {
            1 => vec![trained(with_ranks(trainer(&data()), None), resumed())],
            _ => on_ranks(ranks, |ranks| trained(with_ranks(trainer(&data()), Some(&ranks)), resumed())),
        };
        for (ranks, step) in [(4, 2), (2, 8), (3, 9), (1, 10), (16, 11)] {
            on(ranks).iter().for_each(|other| assert_same("resumed", &alone, other));
            keep_until(folder.path(), step);
        }
        on(2).iter().for_each(|other| assert_same("resumed", &alone, other));
    }
}

/// The micro-batch is that of the checkpoint, also where another would be the default or the memory allows a larger
/// one.
#[test]
fn a_resumed_run_keeps_its_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let data = || rows(60).batch(BATCH);
    let fit = |epochs| Fit::epochs(epochs).checkpoints(Checkpoints::new(folder.path())).resume(true);
    let begun = with_ranks(trainer(&data()).micro_batch(7), None);
    assert_eq!(begun.plan(&fit(1)).unwrap().micro_batch, 7);
    trained(begun, fit(1));
    let alone = trained(with_ranks(trainer(&data()).micro_batch(7), None), Fit::epochs(2));
    let continued = on_ranks(2, |ranks| {
        let trainer = with_ranks(trainer(&data()), Some(&ranks));
        let plan = trainer.plan(&fit(2)).unwrap();
        // Five micro-batches: rank 0 has three.
        assert_eq!((plan.micro_batch, plan.rank_batch, plan.batch), (7, 21, BATCH));
        trained(trainer, fit(2))
    });
    assert!(continued.iter().all(|other| other.weights == alone.weights));
}

#[test]
fn what_cannot_be_reproduced_is_refused() {
    let fit = || Fit::epochs(1);
    let error = |trainer: Trainer| with_ranks(trainer, None).fit(fit()).unwrap_err().to_string();
    let model = || -> Model { Sequential::new().add(Flatten).add(Dense::new(16)).add(BatchNorm::new()).add(Dense::new(10)).into() };
    let allow = Allow::default().with(Permission::MicrobatchBatchnorm);
    insta::assert_snapshot!(error(Trainer::new(model(), &rows(60).batch(8)).threads(1).allow(allow)), @"`parallel.reproducible` cannot be met with batch normalization, whose statistics are those of each micro-batch; use layer or group normalization, or leave it out");
    insta::assert_snapshot!(error(trainer(&rows(60).batch(8)).quantize(Quantize::new()).unwrap()), @"`parallel.reproducible` cannot be met, because `quantized_inputs/x/min` follows the rows of each micro-batch; leave it out");
    let largest = with_ranks(trainer(&rows(60).batch(8)), None).largest_batch().map(|_| ()).unwrap_err().to_string();
    insta::assert_snapshot!(largest, @"the results of a reproducible run follow from its batch; state the batch, or leave `parallel.reproducible` out");
    let custom = with_ranks(trainer(&rows(60).batch(8)), None).custom_loop().map(|_| ()).unwrap_err().to_string();
    insta::assert_snapshot!(custom, @"loops of your own have batches of any size, which `parallel.reproducible` cannot divide; leave it out");
}

/// After training, a rank evaluates without the others, as rank 0 does for the report.
#[test]
fn a_rank_evaluates_by_itself() {
    let evaluated = |ranks: Option<&Ranks>| {
        let mut trainer = with_ranks(trainer(&rows(60).batch(BATCH)), ranks);
        trainer.fit(Fit::epochs(1)).unwrap();
        let first = ranks.is_none_or(|ranks| ranks.rank() == 0);
        first.then(|| trainer.evaluate(&held_out()).unwrap().loss.to_bits())
    };
    let alone = evaluated(None);
    assert_eq!(on_ranks(3, |ranks| evaluated(Some(&ranks))), [alone, None, None]);
}
