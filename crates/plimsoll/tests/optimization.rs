//! Optimizers, clipping, loss scaling, weight averages, schedules, sample weights and metrics, all independent of
//! micro-batches.

use plimsoll::config::Config;
use plimsoll::nn::{Flatten, Model};
use plimsoll::prelude::*;
use plimsoll::{LossScaling, ReduceOnPlateau, Scores};
use plimsoll_core::budget::Owner;

fn digits(split: Split, batch: usize) -> Dataset {
    let rows = match split {
        Split::Train => Dataset::digits(split).shuffle(Shuffle::seed(7)),
        Split::Test => Dataset::digits(split),
    };
    rows.map("x", [scale(1.0 / 16.0)]).batch(batch)
}

fn mlp() -> Model {
    Sequential::new().add(Flatten).add(Dense::new(96).relu()).add(Dense::new(10)).into()
}

/// The loss of the last of some epochs.
fn last_loss(mut trainer: Trainer, epochs: u64) -> f64 {
    trainer.fit(Fit::epochs(epochs)).unwrap().last().unwrap().training.loss
}

fn predictions(mut trainer: Trainer) -> Vec<f32> {
    trainer.fit(Fit::epochs(1)).unwrap();
    trainer.predict(&digits(Split::Test, 32)).unwrap()
}

#[test]
fn every_optimizer_trains() {
    let train = |trainer: Trainer| {
        let mut trainer = trainer;
        let history = trainer.fit(Fit::epochs(3)).unwrap();
        (history.epochs[0].training.loss, history.epochs[2].training.loss)
    };
    let with = || Trainer::new(mlp(), &digits(Split::Train, 32));
    let cases = [
        ("rmsprop", with().optimizer(RmsProp::default())),
        ("rmsprop, centred, momentum", with().optimizer(RmsProp::new(3e-4).centered(true).momentum(0.9))),
        ("adagrad", with().optimizer(Adagrad::new(0.02))),
        ("adafactor", with().optimizer(Adafactor::new(0.05))),
        ("lion", with().optimizer(Lion::new(1e-3))),
        ("nadam", with().optimizer(Nadam::default())),
        ("eight-bit adam", with().optimizer(Adam::default().eight_bit())),
        ("adam, one cycle", with().optimizer(Adam::new(3e-3)).schedule(Schedule::one_cycle(135))),
        ("adam, clipped", with().clip(Clip::GlobalNorm(0.5))),
    ];
    for (name, trainer) in cases {
        let (first, last) = train(trainer);
        assert!(last < 0.7 * first, "{name}: {first} → {last}");
    }
}

#[test]
fn eight_bit_adam_converges_like_adam() {
    let train = |seed: u64, eight_bit: bool| {
        let trainer = Trainer::new(mlp(), &digits(Split::Train, 32)).seed(seed);
        let trainer = if eight_bit { trainer.optimizer(Adam::default().eight_bit()) } else { trainer.optimizer(Adam::default()) };
        last_loss(trainer, 6)
    };
    let mean = |eight_bit: bool| (0..3).map(|seed| train(seed, eight_bit)).sum::<f64>() / 3.0;
    let (wide, narrow) = (mean(false), mean(true));
    assert!((narrow / wide - 1.0).abs() < 0.05, "a loss of {narrow} instead of {wide}");
}

#[test]
fn clipping_scaling_ema_and_weights_are_independent_of_micro_batches() {
    let labelled = || {
        let spec = RandomSpec::new(90).seed(5).floats("x", [6, 7]).bytes("y", [6]).floats("weight", []);
        Dataset::random(spec).unwrap().batch(20)
    };
    let train = |micro_batch: usize| {
        // Labels of 0 to 255 with class 7 ignored: micro-batches differ in how many predictions count.
        let loss = Loss::SoftmaxCrossEntropy.ignore_class(7).smoothing(0.1);
        let mut trainer = Trainer::new(Sequential::new().add(Dense::new(256)), &labelled())
            .loss(loss)
            .optimizer(Sgd::new(0.5).momentum(0.9))
            .clip(Clip::GlobalNorm(0.05))
            .average(Ema::new(0.5))
            .loss_scaling(LossScaling { start: 1024.0, growth_steps: 3 })
            .micro_batch(micro_batch);
        let history = trainer.fit(Fit::epochs(2)).unwrap();
        let plain = trainer.predict(&labelled()).unwrap();
        let averaged = trainer.averaged(|trainer| trainer.predict(&labelled())).unwrap();
        assert_eq!(trainer.predict(&labelled()).unwrap(), plain, "the weights are put back");
        assert_ne!(averaged, plain);
        let scores = history.last().unwrap().training.clone();
        ([plain, averaged], scores)
    };
    let (whole, scores) = train(20);
    for micro_batch in [1, 7, 10] {
        let (pieces, of_pieces) = train(micro_batch);
        let worst = whole.iter().flatten().zip(pieces.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "micro-batches of {micro_batch}: predictions differ by {worst}");
        assert!((scores.loss - of_pieces.loss).abs() < 1e-6 && scores.accuracy == of_pieces.accuracy, "{scores:?} and {of_pieces:?}");
    }
}

#[test]
fn mixed_precision_plans_two_bytes_and_scales_the_loss_in_f16() {
    let plan = |precision: Precision| Trainer::new(mlp(), &digits(Split::Train, 512)).precision(precision).plan(&Fit::epochs(1)).unwrap();
    let activations = |precision: Precision| {
        let owners = plan(precision).memory.by_owner();
        owners.iter().find(|(owner, _)| *owner == Owner::Activations).map_or(0, |(_, size)| size.0)
    };
    let scaled = |precision: Precision| plan(precision).memory.states.iter().any(|state| state.name == "loss_scale/scale");
    let single = activations(Precision::F32);
    for (precision, has_scale) in [(Precision::MixedF16, true), (Precision::MixedBf16, false)] {
        let mixed = activations(precision);
        assert!(mixed < single, "{precision:?}: {mixed} bytes of activations instead of {single}");
        assert_eq!(scaled(precision), has_scale, "{precision:?}");
    }
    assert!(!scaled(Precision::F32));
}

#[test]
fn weight_ema_is_saved_when_enabled() {
    let data = digits(Split::Train, 32);
    let held_out = digits(Split::Test, 32);
    let evaluate = |momentum: f32| {
        let mut trainer = Trainer::new(mlp(), &data).average(Ema::new(momentum));
        trainer.fit(Fit::epochs(2)).unwrap();
        let plain = trainer.evaluate(&held_out).unwrap().loss;
        (plain, trainer.averaged(|trainer| trainer.evaluate(&held_out)).unwrap().loss)
    };
    let (plain, averaged) = evaluate(0.0);
    assert_eq!(plain, averaged, "an average that keeps nothing is the last step's weights");
    let (same, averaged) = evaluate(0.95);
    assert_eq!(plain, same, "an average changes nothing of the training");
    assert!(averaged > plain && averaged < plain + 0.5, "it is some steps behind: {averaged} and {plain}");
    let error = Trainer::new(mlp(), &data).averaged(|_| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "the run keeps no average of its weights; ask for one with `.average(…)` or `train.ema`");
}

#[test]
fn schedules_set_the_learning_rate() {
    let train =
        |schedule: Schedule| predictions(Trainer::new(mlp(), &digits(Split::Train, 32)).optimizer(Sgd::new(0.1)).schedule(schedule));
    let constant = train(Schedule::constant());
    assert_eq!(constant, train(Schedule::step(1000, 0.1)), "no step of it in one epoch");
    assert_ne!(constant, train(Schedule::cosine(45)));
    let mut trainer = Trainer::new(mlp(), &digits(Split::Train, 32)).schedule(Schedule::cosine(80));
    let epoch = trainer.fit(Fit::epochs(1)).unwrap().epochs[0].clone();
    // 45 steps; the last has index 44.
    let last = 1e-3 * 0.5 * (1.0 + (std::f64::consts::PI * 44.0 / 80.0).cos());
    assert!((epoch.learning_rate - last).abs() < 1e-9, "{} instead of {last}", epoch.learning_rate);
    assert_eq!(epoch.to_json()["learning_rate"], epoch.learning_rate);
    let error = trainer.fit(Fit::epochs(1)).unwrap_err().to_string();
    assert!(error.starts_with("the cosine schedule ends after 80 steps, but training continues to step 90;"), "{error}");

    let plateau = ReduceOnPlateau { patience: 1, factor: 0.5, monitor: "loss".to_string(), min_delta: 10.0, ..ReduceOnPlateau::default() };
    let mut trainer = Trainer::new(mlp(), &digits(Split::Train, 32)).schedule(Schedule::plateau(plateau.clone()));
    trainer.fit(Fit::epochs(4)).unwrap();
    assert_eq!(trainer.schedule_state().factor, 0.125, "three epochs without an improvement of ten");
    let blind = Schedule::plateau(ReduceOnPlateau { monitor: "val_f1".to_string(), ..plateau });
    let error = Trainer::new(mlp(), &digits(Split::Train, 32)).schedule(blind).fit(Fit::epochs(1)).unwrap_err().to_string();
    assert_eq!(error, "the schedule watches `val_f1`, which this run does not report; it has loss, accuracy");
}

/// All metrics computed directly from predictions and labels.
fn by_hand(scores: &[f32], labels: &[usize], classes: usize) -> Vec<(&'static str, f64)> {
    let (mut right, mut top, mut entropy) = (0.0, 0.0, 0.0);
    let mut confusion = vec![vec![0.0; classes]; classes];
    for (row, label) in scores.chunks_exact(classes).zip(labels) {
        let best = (0..classes).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        confusion[*label][best] += 1.0;
        right += f64::from(u8::from(best == *label));
        top += f64::from(u8::from(row.iter().filter(|score| **score > row[*label]).count() < 3));
        let sum: f64 = row.iter().map(|score| f64::from(*score).exp()).sum();
        entropy += sum.ln() - f64::from(row[*label]);
    }
    let n = labels.len() as f64;
    let of = |f: &dyn Fn(f64, f64, f64) -> f64| {
        let each: Vec<f64> =
            (0..classes).map(|c| f(confusion[c][c], (0..classes).map(|l| confusion[l][c]).sum(), confusion[c].iter().sum())).collect();
        each.iter().map(|x| if x.is_nan() { 0.0 } else { *x }).sum::<f64>() / classes as f64
    };
    vec![
        ("accuracy", right / n),
        ("top3", top / n),
        ("perplexity", (entropy / n).exp()),
        ("precision", of(&|right, answered, _| right / answered)),
        ("recall", of(&|right, _, labelled| right / labelled)),
        ("f1", of(&|right, answered, labelled| 2.0 * right / (answered + labelled))),
        ("iou", of(&|right, answered, labelled| right / (answered + labelled - right))),
    ]
}

#[test]
fn classification_metrics_match_a_direct_computation() {
    let metrics = ["accuracy", "top3", "perplexity", "precision", "recall", "f1", "iou"].map(|name| name.parse::<Metric>().unwrap());
    let measure = |micro_batch: usize| -> (Scores, Scores, Vec<f32>) {
        let mut trainer = Trainer::new(mlp(), &digits(Split::Train, 48)).metrics(metrics.clone()).micro_batch(micro_batch);
        let history = trainer.fit(Fit::epochs(1).validate(&digits(Split::Test, 50))).unwrap();
        let epoch = history.last().unwrap().clone();
        let again = trainer.evaluate(&digits(Split::Test, 50)).unwrap();
        assert_eq!(epoch.validation.as_ref(), Some(&again), "counts begin at zero every time");
        (again, epoch.training, trainer.predict(&digits(Split::Test, 50)).unwrap())
    };
    let (scores, training, predictions) = measure(48);
    let labels = held_out_labels();
    for (name, expected) in by_hand(&predictions, &labels, 10) {
        let got = scores.get(name).unwrap();
        assert!((got - expected).abs() < 1e-5 * expected.max(1.0), "{name} is {got} instead of {expected}");
    }
    let per_class: Vec<&str> = scores.per_class.iter().map(|(name, values)| (name.as_str(), values.len())).map(|(name, _)| name).collect();
    assert_eq!(per_class, ["precision", "recall", "f1", "iou"]);
    let (of_pieces, training_of_pieces, _) = measure(7);
    for (name, value) in scores.iter().chain(training.iter()) {
        let others = [of_pieces.get(name).unwrap(), training_of_pieces.get(name).unwrap()];
        assert!(others.iter().any(|other| (other - value).abs() < 5e-3 * value.abs().max(1.0)), "{name}: {value}, in pieces {others:?}");
    }
}

/// The labels of the held-out digits, in their order.
fn held_out_labels() -> Vec<usize> {
    let data = digits(Split::Test, 50);
    let ledger = plimsoll_core::Ledger::new("host", None);
    let options = plimsoll_data::Options { epochs: Some(1), ..Default::default() };
    let mut feed = plimsoll_data::Feed::start(&data, &data.plan(None).unwrap(), &ledger, options).unwrap();
    let mut labels = Vec::new();
    while let Some(batch) = feed.next().unwrap() {
        labels.extend(batch.column(1)[..batch.rows * 4].chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap()) as usize));
    }
    labels
}

#[test]
fn regression_metrics_match_a_direct_computation() {
    let data = Dataset::random(RandomSpec::new(64).floats("x", [3]).floats("y", [2])).unwrap().batch(16);
    let metrics = [Metric::MeanAbsoluteError, Metric::MeanSquaredError, Metric::R2];
    let mut trainer = Trainer::new(Sequential::new().add(Dense::new(2)), &data).loss(Loss::MeanSquaredError).metrics(metrics);
    trainer.fit(Fit::epochs(40)).unwrap();
    let scores = trainer.evaluate(&data).unwrap();
    assert!((scores.get("mse").unwrap() - scores.loss).abs() < 1e-6, "{scores:?}");
    assert!(scores.get("mae").unwrap() <= scores.loss.sqrt() && scores.get("r2").unwrap() <= 1.0, "{scores:?}");
    assert_eq!(scores.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["loss", "mae", "mse", "r2"]);
}

#[test]
fn binary_precision_and_recall() {
    let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32);
    let mut trainer =
        Trainer::new(mlp(), &data).loss(Loss::BinaryCrossEntropy).metrics([Metric::Accuracy, Metric::Precision, Metric::Recall]);
    trainer.fit(Fit::epochs(12)).unwrap();
    let scores = trainer.evaluate(&data).unwrap();
    assert!(scores.accuracy.unwrap() > 0.96 && scores.get("precision").unwrap() > 0.9 && scores.get("recall").unwrap() > 0.7, "{scores:?}");
}

/// A checkpoint in the middle of an epoch restores the whole state of a run.
#[test]
fn a_resumed_run_is_bit_identical() {
    let folder = std::env::temp_dir().join(format!("plimsoll-learning-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let trainer = || {
        let plateau =
            ReduceOnPlateau { patience: 1, factor: 0.7, monitor: "loss".to_string(), min_delta: 0.9, ..ReduceOnPlateau::default() };
        Trainer::new(mlp(), &digits(Split::Train, 32))
            .optimizer(Adam::new(2e-3).eight_bit())
            .clip(Clip::GlobalNorm(1.0))
            .average(Ema::new(0.9))
            .schedule(Schedule::plateau(plateau).warm_up(20))
            // So large that the first steps overflow and are skipped.
            .loss_scaling(LossScaling { start: 1e38, growth_steps: 10 })
            .metrics([Metric::Accuracy, Metric::F1, Metric::TopK(2)])
    };
    let checkpoints = || plimsoll::Checkpoints::new(&folder).keep(100).every_steps(10);
    let finish = |mut trainer: Trainer, resume: bool| {
        let history = trainer.fit(Fit::epochs(3).checkpoints(checkpoints()).resume(resume)).unwrap();
        let averaged = trainer.averaged(|trainer| trainer.predict(&digits(Split::Test, 32))).unwrap();
        let scores: Vec<Scores> = history.epochs.iter().map(|epoch| epoch.training.clone()).collect();
        (trainer.predict(&digits(Split::Test, 32)).unwrap(), averaged, trainer.schedule_state(), scores)
    };
    let whole = finish(trainer(), false);
    assert!(whole.2.factor < 1.0, "the plateau has been reached");
    for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        // 45 steps an epoch: the checkpoint at step 110 is in the middle of the third.
        if entry.file_name().to_string_lossy().as_ref() > "step-000000000110.safetensors" {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let resumed = finish(trainer(), true);
    assert_eq!(resumed, whole);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn configurations_cover_losses_metrics_and_schedules() {
    let build = |settings: &[&str]| {
        let mut config = Config::digits();
        settings.iter().try_for_each(|setting| config.set(setting))?;
        config.build().and_then(|spec| Trainer::from(spec).plan(&Fit::epochs(1))).map(drop)
    };
    for settings in [
        &["train.optimizer={ type = \"rmsprop\", lr = 1e-3, rho = 0.95, momentum = 0.9, centered = true }"][..],
        &["train.optimizer={ type = \"adagrad\", first = 0.0 }", "train.clip={ norm = 1.0 }"],
        &["train.optimizer={ type = \"adafactor\", lr = 0.01 }", "train.clip={ value = 0.5 }"],
        &["train.optimizer={ type = \"lion\", weight_decay = 0.1 }", "train.clip={ global_norm = 1.0 }"],
        &["train.optimizer=nadam", "train.ema=0.999"],
        &["train.optimizer={ type = \"adamw\", state_bits = 8 }", "train.precision=mixed_f16"],
        &["train.schedule=cosine", "train.label_smoothing=0.1"],
        &["train.schedule={ type = \"one_cycle\", warm_up = 3 }"],
        &["train.schedule={ type = \"step\", every = 100, factor = 0.5 }"],
        &["train.schedule={ type = \"polynomial\", power = 2.0 }"],
        &["train.schedule={ type = \"exponential\", steps = 100, rate = 0.9, staircase = true }"],
        &["train.schedule={ type = \"plateau\", patience = 3, monitor = \"val_accuracy\" }", "train.precision=mixed_bf16"],
        &["train.loss={ type = \"categorical_focal\", gamma = 1.5 }", "train.metrics=[\"accuracy\", \"top3\", \"f1\", \"iou\"]"],
        &["train.class_weights=[1, 1, 1, 1, 1, 2, 1, 1, 1, 1]", "train.ignore_class=9"],
    ] {
        build(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    }
    let error = |settings: &[&str]| build(settings).unwrap_err().to_string();
    let errors = [
        error(&["train.optimizer=rmsprob"]),
        error(&["train.optimizer={ type = \"lion\", beta3 = 0.5 }"]),
        error(&["train.optimizer={ type = \"adam\", state_bits = 16 }"]),
        error(&["train.optimizer={ type = \"adafactor\", beta2_decay = 0.8 }"]),
        error(&["train.clip={ value = 1.0, norm = 1.0 }"]),
        error(&["train.clip={ norm = 0.0 }"]),
        error(&["train.clip={ global_nrom = 1.0, norm = 2.0 }"]),
        error(&["train.schedule=cosin"]),
        error(&["train.schedule={ type = \"step\" }"]),
        error(&["train.schedule={ type = \"cosine\", stepz = 5 }"]),
        error(&["train.ema=1.0"]),
        error(&["train.precision=mixed_f61"]),
        error(&["train.loss=hubert"]),
        error(&["train.loss={ type = \"huber\", gamma = 1.0 }"]),
        error(&["train.metrics=[\"acuracy\"]"]),
        error(&["train.label_smoothing=1.5"]),
        error(&["train.class_weights=[1.0, -1.0]"]),
        error(&["train.ignore_class=none"]),
        error(&["train.class_weights=[1.0, 2.0]"]),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

/// Plans and trains the run of a configuration, and writes its folder.
fn train_in(folder: &std::path::Path, config: &Config) -> plimsoll::Result<plimsoll::History> {
    let trainer = Trainer::from(config.build()?);
    let plan = trainer.plan(&trainer.described_fit())?;
    plimsoll::RunFolder::open(folder, plimsoll::Existing::Refuse)?.train(trainer, plan, &plimsoll::StopHandle::new(), |_| ())
}

#[test]
fn a_schedule_takes_the_length_of_the_run_or_is_refused() {
    let train = |schedule: &str| {
        let mut config = Config::digits();
        config.set("train.epochs=1").unwrap();
        config.set(&format!("train.schedule={schedule}")).unwrap();
        let folder = std::env::temp_dir().join(format!("plimsoll-schedule-{}", std::process::id()));
        let result = train_in(&folder, &config);
        let _ = std::fs::remove_dir_all(&folder);
        result.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(train("cosine"), Ok(()));
    let error = train("{ type = \"cosine\", steps = 10 }").unwrap_err();
    assert!(error.starts_with("the cosine schedule ends after 10 steps, but training continues to step "), "{error}");
}
