//! Several ranks train the weights of one process: any number of ranks, batches that cannot be divided equally, and
//! runs that are resumed by another number of ranks.

#[path = "data_parallel/batch_norm.rs"]
mod batch_norm;
#[path = "data_parallel/planned_ranks.rs"]
mod planned_ranks;
#[path = "data_parallel/reproducible.rs"]
mod reproducible;
#[path = "data_parallel/shards.rs"]
mod shards;

use plimsoll::comm::threads::ThreadGroup;
use plimsoll::data::Mix;
use plimsoll::data::ops::random_brightness;
use plimsoll::nn::{
    Add, BatchNorm, Conv2D, Dropout, Embedding, Flatten, Functional, GlobalAveragePool, Gru, LayerNorm, Lstm, MultiHeadAttention,
    PositionEmbedding, Quantize, Regularizer,
};
use plimsoll::prelude::*;
use plimsoll::{
    Allow, BatchNormStatistics, Checkpoints, DataParallelism, Epoch, Error, History, Parallel, Permission, Ranks, Result, StopHandle,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// 103 rows in batches of 30: the last batch has 13.
const ROWS: u64 = 103;
const BATCH: usize = 30;

/// Runs something on each of some ranks.
fn on_ranks<T: Send>(ranks: usize, run: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let groups = ThreadGroup::new(ranks, Duration::from_secs(120));
    std::thread::scope(|scope| {
        let start = |group| scope.spawn(|| run(Ranks::over(Arc::new(group)).unwrap()));
        let threads: Vec<_> = groups.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The errors of all ranks, which are the same.
fn refused(ranks: usize, run: impl Fn(Ranks) -> Result<History> + Sync) -> String {
    let errors = on_ranks(ranks, |ranks| run(ranks).unwrap_err().to_string());
    let without_rank = |error: &String| error.split_once(&format!(" of {ranks}: ")).map_or(error.clone(), |(_, error)| error.to_string());
    assert!(errors.iter().all(|error| without_rank(error) == without_rank(&errors[0])), "{errors:?}");
    errors[0].clone()
}

fn rows(rows: u64) -> Dataset {
    Dataset::digits(Split::Train).take(rows).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0), random_brightness(0.1, 3)])
}

fn streamed(rows: u64) -> Dataset {
    let stream = Dataset::digits(Split::Train).take(rows).filter(|_| true).assert_cardinality(rows);
    stream.shuffle_buffer(Shuffle::seed(7), Bytes::kib(8)).map("x", [scale(1.0 / 16.0), random_brightness(0.1, 3)])
}

fn held_out() -> Dataset {
    Dataset::digits(Split::Test).take(53).map("x", [scale(1.0 / 16.0)]).batch(16)
}

/// A network with random numbers and a weight penalty.
fn network() -> Model {
    let hidden = Dense::new(24).relu().regularizer(Regularizer { l1: 0.0, l2: 1e-2 });
    Sequential::new().add(Flatten).add(hidden).add(Dropout::new(0.3)).add(Dense::new(10)).into()
}

fn trainer(data: &Dataset) -> Trainer {
    let metrics = [Metric::Accuracy, Metric::F1, Metric::TopK(3)];
    let trainer = Trainer::new(network(), data).metrics(metrics).optimizer(Sgd::new(0.05).momentum(0.9));
    trainer.clip(Clip::GlobalNorm(1.0)).seed(3).threads(1)
}

/// What a run ends with: its weights, its epochs and its number of steps.
struct Trained {
    weights: Vec<u8>,
    epochs: Vec<Epoch>,
    steps: u64,
}

fn trained(mut trainer: Trainer, fit: Fit<'_>) -> Trained {
    let history = trainer.fit(fit).unwrap();
    let folder = tempfile::tempdir().unwrap();
    trainer.save_weights(&folder.path().join("weights")).unwrap();
    let file = std::fs::read(folder.path().join("weights")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    Trained { weights: file[8 + header..].to_vec(), epochs: history.epochs, steps: history.steps }
}

/// Checks that all ranks have the same bits, and those of one process up to rounding.
fn check(name: &str, alone: &Trained, ranks: &[Trained]) {
    let numbers = |weights: &[u8]| -> Vec<f32> { weights.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect() };
    let count = ranks.len();
    for (rank, other) in ranks.iter().enumerate() {
        assert!(other.weights == ranks[0].weights, "{name}: rank {rank} of {count} has other bits than rank 0");
        assert_eq!(other.steps, alone.steps, "{name}");
        for (before, now) in numbers(&alone.weights).into_iter().zip(numbers(&other.weights)) {
            assert!((before - now).abs() <= 1e-6, "{name}: a weight is {before} on one process and {now} on {count} ranks");
        }
        assert_eq!(other.epochs.len(), alone.epochs.len(), "{name}");
        for (alone, other) in alone.epochs.iter().zip(&other.epochs) {
            for score in alone.score_names() {
                let (before, now) = (alone.score(&score).unwrap(), other.score(&score).unwrap());
                assert!((before - now).abs() <= 2e-6, "{name}: {score} is {before} on one process and {now} on {count} ranks");
            }
            // Counts are exact.
            for score in ["accuracy", "val_accuracy", "top_3_accuracy"] {
                assert_eq!(alone.score(score), other.score(score), "{name}: {score} on {count} ranks");
            }
        }
    }
}

#[test]
fn ranks_train_the_weights_of_one_process() {
    type Case = (&'static str, fn() -> Dataset, fn(Trainer) -> Trainer);
    let cases: [Case; 4] = [
        ("rows by number", || rows(ROWS).batch(BATCH), |trainer| trainer),
        ("a stream", || streamed(ROWS).batch(BATCH), |trainer| trainer),
        // The last batch has fewer rows than ranks.
        ("micro-batches", || rows(92).batch(BATCH), |trainer| trainer.micro_batch(3)),
        ("a batch is an epoch", || rows(22).batch(64), |trainer| trainer.micro_batch(4)),
    ];
    for (name, data, with) in cases {
        let fit = || Fit::epochs(2).validate(&held_out());
        let alone = trained(with(trainer(&data())), fit());
        for ranks in [1, 2, 4, 7] {
            let of_ranks = on_ranks(ranks, |ranks| trained(with(trainer(&data())).ranks(&ranks), fit()));
            check(name, &alone, &of_ranks);
        }
    }
}

/// Tokens that are looked up and scored with the same weights.
fn transformer() -> Model {
    let mut net = Functional::new("transformer");
    let tokens = net.input();
    let vectors = net.named("tokens", Embedding::new(11, 16), [tokens]);
    let placed = net.add(PositionEmbedding::new(14), [vectors]);
    let normed = net.add(LayerNorm::new(), [placed]);
    let attended = net.add(MultiHeadAttention::new(2).causal().dropout(0.2), [normed]);
    let sum = net.add(Add, [placed, attended]);
    let scores = net.tied(vectors, Embedding::new(11, 16).scores(), [sum]);
    net.build(scores)
}

/// 41 rows in batches of 12: the last batch has 5, fewer than the most ranks.
#[test]
fn networks_of_every_kind() {
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
        // The number of labels that count is known only after all ranks have computed their loss.
        ("ignored labels", &|| sgd(Trainer::new(transformer(), &tokens()).loss(Loss::SoftmaxCrossEntropy.ignore_class(3)))),
        ("convolutions", &|| sgd(Trainer::new(convolutions(), &images()).clip(Clip::GlobalNorm(0.1)).average(Ema::new(0.9)))),
        ("convolutions in micro-batches", &|| sgd(Trainer::new(convolutions(), &images()).micro_batch(2))),
        ("class weights", &|| {
            let loss = Loss::SoftmaxCrossEntropy.class_weights([1.0, 3.0, 0.5, 1.0]).smoothing(0.1);
            sgd(Trainer::new(convolutions(), &images()).loss(loss))
        }),
    ];
    for (name, trainer) in cases {
        let alone = trained(trainer(), Fit::epochs(2));
        for ranks in [2, 7] {
            check(name, &alone, &on_ranks(ranks, |ranks| trained(trainer().ranks(&ranks), Fit::epochs(2))));
        }
    }
}

/// Removes the checkpoints after a step.
fn keep_until(folder: &Path, step: u64) {
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        let number = file.file_name().unwrap().to_string_lossy().chars().filter(char::is_ascii_digit).collect::<String>();
        if number.parse::<u64>().is_ok_and(|number| number > step) {
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn another_number_of_ranks_continues_the_epoch() {
    for data in [|| rows(ROWS).batch(BATCH), || streamed(ROWS).batch(BATCH)] {
        let alone = trained(trainer(&data()), Fit::epochs(3).validate(&held_out()));
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = || Checkpoints::new(folder.path()).every_steps(1).keep(100);
        let fit = || Fit::epochs(3).validate(&held_out()).checkpoints(checkpoints()).resume(true);
        let on = |ranks: usize| match ranks {
            1 => vec![trained(trainer(&data()), fit())],
            _ => on_ranks(ranks, |ranks| trained(trainer(&data()).ranks(&ranks), fit())),
        };
        // An epoch has four steps: in the middle of the first, the end of the second, and in the third.
        for (ranks, step) in [(4, 2), (2, 8), (3, 9), (1, 10), (5, 11)] {
            check("resumed", &alone, &on(ranks));
            keep_until(folder.path(), step);
        }
        check("resumed", &alone, &on(2));
    }
}

#[test]
fn a_stop_on_any_rank_ends_all_with_one_checkpoint() {
    let data = || rows(ROWS).batch(BATCH);
    let alone = trained(trainer(&data()), Fit::epochs(2));
    let folder = tempfile::tempdir().unwrap();
    let fit = || Fit::epochs(2).checkpoints(Checkpoints::new(folder.path())).resume(true);
    let stopped = on_ranks(3, |ranks| {
        let stop = StopHandle::new();
        if ranks.rank() == 2 {
            stop.stop();
        }
        let history = trainer(&data()).ranks(&ranks).fit(fit().stop_handle(&stop)).unwrap();
        (history.stopped, history.steps)
    });
    assert_eq!(stopped, [(true, 0); 3]);
    check("after a stop", &alone, &on_ranks(2, |ranks| trained(trainer(&data()).ranks(&ranks), fit())));
}

#[test]
fn local_batch_normalization_needs_a_permission_and_keeps_ranks_alike() {
    let model = || -> Model { Sequential::new().add(Flatten).add(Dense::new(16)).add(BatchNorm::new()).add(Dense::new(10)).into() };
    let local = Parallel { batch_norm: BatchNormStatistics::Local, ..Parallel::default() };
    let with = |ranks: &Ranks| Trainer::new(model(), &rows(ROWS).batch(BATCH)).threads(1).parallel(local).ranks(ranks);
    insta::assert_snapshot!(refused(2, |ranks| with(&ranks).fit(Fit::epochs(1))), @"batch normalization would have the statistics of each of 2 ranks' own rows, which changes results; allow that with --allow microbatch_batchnorm beside the permissions of the run (recompute,split,microbatch,offload), leave `parallel.batch_norm` out to synchronize them, use layer or group normalization, or train on one process");
    let allow = Allow::default().with(Permission::MicrobatchBatchnorm);
    let of_ranks = on_ranks(3, |ranks| trained(with(&ranks).allow(allow), Fit::epochs(2).validate(&held_out())));
    assert!(of_ranks.iter().all(|other| other.weights == of_ranks[0].weights), "moving statistics are those of rank 0");
    let scores = |trained: &Trained| trained.epochs.last().unwrap().score("val_loss");
    assert!(of_ranks.iter().all(|other| scores(other) == scores(&of_ranks[0])));
}

#[test]
fn what_ranks_cannot_train_is_refused_by_all_of_them() {
    let fit = || Fit::epochs(1);
    let none = |ranks: Ranks| {
        trainer(&rows(60).batch(8)).parallel(Parallel { data: DataParallelism::None, ..Parallel::default() }).ranks(&ranks).fit(fit())
    };
    insta::assert_snapshot!(refused(2, none), @r#"2 ranks were started, but `parallel.data` is "none": leave it out to divide every batch over them, or start one process"#);
    let unknown = |ranks: Ranks| trainer(&rows(60).filter(|_| true).batch(8)).ranks(&ranks).fit(fit());
    insta::assert_snapshot!(refused(2, unknown), @"digits (train) → take(60) → shuffle(seed 7) → map(x: scale(0.0625), random_brightness(0.1, seed 3)) → filter → batch(8) cannot be divided over 2 ranks: the number of rows of its epochs is not known; state it with assert_cardinality, or train on one process");
    let mixed = |ranks: Ranks| {
        let data = rows(60).map("y", [one_hot(10)]).batch(8).mix(Mix::up(0.2));
        Trainer::new(network(), &data).metrics([]).ranks(&ranks).fit(fit())
    };
    insta::assert_snapshot!(refused(2, mixed), @"digits (train) → take(60) → shuffle(seed 7) → map(x: scale(0.0625), random_brightness(0.1, seed 3)) → map(y: one_hot(10)) → batch(8) → mixup(0.2, seed 0) cannot be divided over 2 ranks: rows of a whole batch are mixed in pairs; leave mixup or cutmix out, or train on one process");
    let quantized = |ranks: Ranks| trainer(&rows(60).batch(8)).quantize(Quantize::new())?.ranks(&ranks).fit(fit());
    insta::assert_snapshot!(refused(2, quantized), @"`quantized_inputs/x/min` follows the rows of each batch, and 2 ranks have different rows; train on one process");
    let other_seed = |ranks: Ranks| trainer(&rows(60).batch(8)).seed(ranks.rank() as u64 / 2).ranks(&ranks).fit(fit());
    insta::assert_snapshot!(refused(3, other_seed), @"rank 2 of 3 has another seed than rank 0; start all ranks with the same program, configuration and files");
    let other_model = |ranks: Ranks| {
        let model = Sequential::new().add(Flatten).add(Dense::new(10 + ranks.rank()));
        Trainer::new(model, &rows(60).batch(8)).ranks(&ranks).threads(1).fit(fit())
    };
    insta::assert_snapshot!(refused(2, other_model), @"rank 1 of 2 has another plan than rank 0; start all ranks with the same program, configuration and files");
}

#[test]
fn a_budget_that_one_rank_cannot_meet_is_refused_by_all() {
    let errors = on_ranks(3, |ranks| {
        let budget = if ranks.rank() == 1 { Budget::host("2MiB").unwrap() } else { Budget::default() };
        trainer(&rows(ROWS).batch(BATCH)).budget(budget).ranks(&ranks).fit(Fit::epochs(1)).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::OfRank { rank: 1, size: 3, infeasible: true, .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("on rank 1 of 3: ") && text.contains("2.00 MiB"), "{text}");
    }
}
