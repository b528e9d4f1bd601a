//! Training on streams of unknown length: the same steps as with a known length, and clear errors.

use plimsoll::nn::{Dropout, Flatten, Model};
use plimsoll::prelude::*;
use plimsoll::{Checkpoints, Condition, Relation, Tensor, TrainingControl};
use plimsoll_core::DType;
use plimsoll_data::ops::{Op, apply};
use plimsoll_data::{Column, PadTo, Schema};
use std::path::PathBuf;
use std::sync::Arc;

/// The digits without sevens: 1,302 rows; the last batch has 22.
fn digits() -> Dataset {
    rows(Split::Train)
}

fn rows(split: Split) -> Dataset {
    Dataset::digits(split).filter_where(Condition::on("y").is_not([7.0])).map("x", [scale(1.0 / 16.0)])
}

fn model() -> Model {
    Sequential::new().add(Flatten).add(Dense::new(24).relu()).add(Dropout::new(0.2)).add(Dense::new(10)).into()
}

fn trainer(data: &Dataset, micro_batch: usize) -> Trainer {
    Trainer::new(model(), data).optimizer(Adam::new(5e-3)).seed(3).micro_batch(micro_batch)
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-streams-{}-{name}", std::process::id()))
}

fn weights(trainer: &mut Trainer, name: &str) -> Vec<u8> {
    let path = temporary(name);
    trainer.save_weights(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

fn refused(result: Result<plimsoll::History, plimsoll::Error>) -> String {
    result.expect_err("this should be refused").to_string()
}

/// The full batch, micro-batches that divide it, and others.
#[test]
fn unknown_length_trains_bit_identically() {
    let (unknown, known) = (digits().batch(32), digits().assert_cardinality(1302).batch(32));
    assert_eq!((unknown.size(), known.size()), (None, Some(1302)));
    for micro_batch in [32, 8, 7] {
        let mut runs = [&unknown, &known].map(|data| {
            let mut trainer = trainer(data, micro_batch);
            let history = trainer.fit(Fit::epochs(2).validate(&rows(Split::Test).batch(32))).unwrap();
            let scores: Vec<_> = history.epochs.iter().map(|epoch| (epoch.training.clone(), epoch.validation.clone())).collect();
            (weights(&mut trainer, "known"), scores, history.steps, trainer)
        });
        assert!(runs[0].0 == runs[1].0, "other weights in micro-batches of {micro_batch}");
        assert_eq!((&runs[0].1, runs[0].2), (&runs[1].1, 2 * 41), "the last batch of an epoch is trained on too");
        assert_eq!(runs[0].1[1].0.accuracy.map(|accuracy| accuracy > 0.3), Some(true));

        // Evaluation and prediction do not differ either.
        let [(.., a), (.., b)] = &mut runs;
        let (held_out, counted) = (rows(Split::Test).batch(32), rows(Split::Test).assert_cardinality(316).batch(32));
        let (x, y) = (a.evaluate(&held_out).unwrap(), b.evaluate(&counted).unwrap());
        assert!(x.accuracy == y.accuracy && (x.loss - y.loss).abs() < 1e-6, "{x:?} and {y:?}");
        let predicted = a.predict(&held_out).unwrap();
        assert!(predicted.len() == 3160 && predicted == b.predict(&counted).unwrap());
    }
}

#[test]
fn a_custom_loop_over_a_stream_takes_the_same_steps() {
    let data = digits().batch(32);
    let mut fitted = trainer(&data, 8);
    fitted.fit(Fit::epochs(2)).unwrap();
    let mut by_hand = trainer(&data, 8).custom_loop().unwrap();
    let mut batches = by_hand.batches(2).unwrap();
    for _ in 0..2 {
        while by_hand.step_from(&mut batches).unwrap().is_some() {}
    }
    drop(batches);
    assert_eq!(by_hand.steps(), 82);
    let path = temporary("by-hand");
    by_hand.save_weights(&path).unwrap();
    let steps = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(steps == weights(&mut fitted, "fitted"));
}

/// Stopped after any step, also the last of an epoch, a run resumes to the same weights.
#[test]
fn a_stream_run_resumes_after_any_step() {
    let data = digits().take(100).shuffle_buffer(Shuffle::seed(2), Bytes::kib(4)).batch(32);
    let folder = temporary("resumed");
    let mut whole = trainer(&data, 16);
    whole.fit(Fit::epochs(3)).unwrap();
    let expected = weights(&mut whole, "whole");
    for stop in 1..12 {
        let _ = std::fs::remove_dir_all(&folder);
        let checkpoints = || Checkpoints::new(&folder).keep(20).every_steps(1);
        trainer(&data, 16).fit(Fit::epochs(3).checkpoints(checkpoints())).unwrap();
        // As if killed before anything later was written.
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let step: u64 = path.file_name().unwrap().to_str().unwrap()[5..17].parse().unwrap();
            if step > stop {
                std::fs::remove_file(path).unwrap();
            }
        }
        let mut resumed = trainer(&data, 16);
        let mut from = None;
        let observed = Fit::epochs(3).checkpoints(checkpoints()).resume(true).on_event(|event| {
            if let Event::Resumed { step, .. } = event {
                from = Some(*step);
            }
        });
        let history = resumed.fit(observed).unwrap();
        assert!(from.is_some_and(|from| from <= stop && from + 1 >= stop), "after step {from:?} instead of {stop}");
        assert_eq!((history.epochs.len(), history.steps), (3, 12));
        assert!(weights(&mut resumed, "gone-on") == expected, "other weights after stopping at step {stop}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn progress_has_no_total_for_unknown_length() {
    let slow = digits().map("x", [apply_slowly()]).take(64).batch(32);
    for (data, total) in [(slow.clone(), None), (slow.rebatch(32).assert_cardinality(64), Some(2))] {
        let mut totals = Vec::new();
        let fit = Fit::epochs(1).on_event(|event| {
            if let Event::Progress { steps, .. } = event {
                totals.push(*steps);
            }
        });
        trainer(&data, 32).fit(fit).unwrap();
        assert!(!totals.is_empty() && totals.iter().all(|steps| *steps == total), "{totals:?}");
    }
}

/// Takes long enough for progress events.
fn apply_slowly() -> Arc<dyn Op> {
    apply("slowly", [8, 8, 1], |_row, x, out| {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 5 {}
        out.copy_from_slice(x);
        Ok(())
    })
}

#[test]
fn an_epoch_with_a_wrong_number_of_rows_is_an_error() {
    let none = digits().filter_where(Condition::on("y").number(Relation::Above, 20.0)).batch(32);
    let words = "digits (train) → filter(y is not 7) → map(x: scale(0.0625)) → filter(y above 20) → batch(32)";
    assert_eq!(refused(trainer(&none, 32).fit(Fit::epochs(1))), format!("there is nothing to train on: {words} has no rows in epoch 1"));
    let error = refused(trainer(&digits().batch(32), 32).fit(Fit::epochs(1).validate(&none)));
    assert_eq!(error, format!("there is nothing to evaluate: {words} has no rows"));
    assert!(trainer(&none, 32).predict(&none).unwrap_err().to_string().starts_with("there is nothing to evaluate: "));

    // A cardinality before another stage is checked when the rows have been read.
    let said =
        |rows: u64| Dataset::digits(Split::Train).take(100).filter(|_| true).assert_cardinality(rows).shuffle(Shuffle::seed(1)).batch(32);
    let error = refused(trainer(&said(90), 32).fit(Fit::epochs(1)));
    assert_eq!(error, "epoch 0 has more than 90 rows where assert_cardinality(90) was said");
    let error = refused(trainer(&said(110), 8).fit(Fit::epochs(1)));
    assert_eq!(error, "epoch 0 has 100 rows where assert_cardinality(110) was said");
    trainer(&said(100), 8).fit(Fit::epochs(1)).unwrap();
}

#[test]
fn a_schedule_beyond_its_end_stays_constant_with_a_warning() {
    let data = digits().take(100).batch(32);
    for (schedule, end) in [(Schedule::cosine(6).floor(0.25), 0.25), (Schedule::one_cycle(6), 1e-4 / 25.0)] {
        let mut warnings = Vec::new();
        let mut trainer = trainer(&data, 32).schedule(schedule);
        let fit = Fit::epochs(3).on_epoch(|_| TrainingControl::Continue).on_event(|event| {
            if let Event::Warning(what) = event {
                warnings.push(what.to_string());
            }
        });
        let history = trainer.fit(fit).unwrap();
        assert_eq!(history.steps, 12);
        let rate = history.last().unwrap().learning_rate;
        assert!((rate - 5e-3 * end).abs() < 1e-8, "{rate}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("schedule ended after 6 steps, in epoch 2; the learning rate stays where it ended"), "{warnings:?}");
    }
}

/// Variable-length rows train as if padded by hand; padded per batch, they are refused.
#[test]
fn variable_length_rows_are_padded_to_the_declared_shape() {
    let schema = Schema::new(vec![Column::up_to("x", DType::F32, [6]), Column::new("y", DType::I32, [])]).unwrap();
    let length = |n: usize| 1 + n * 5 % 6;
    let ragged = Dataset::from_generator(schema, move |_| {
        (0..70).map(move |n| Ok(vec![Tensor::f32([length(n)], vec![n as f32 / 70.0; length(n)])?, Tensor::i32([], [n as i32 % 3])?]))
    });
    let padded: Vec<f32> = (0..70).flat_map(|n| (0..6).map(move |i| if i < length(n) { n as f32 / 70.0 } else { -1.0 })).collect();
    let by_hand =
        [("x", Tensor::f32([70, 6], padded).unwrap()), ("y", Tensor::i32([70], (0..70).map(|n| n % 3).collect::<Vec<_>>()).unwrap())];
    let by_hand = Dataset::from_tensor_slices(by_hand).unwrap().batch(32);
    let model = || -> Model { Sequential::new().add(Dense::new(8).relu()).add(Dense::new(3)).into() };
    let mut runs = [ragged.clone().padded_batch(32, PadTo::Declared, -1.0), by_hand].map(|data| Trainer::new(model(), &data).seed(1));
    let [a, b] = runs.each_mut().map(|trainer| {
        trainer.fit(Fit::epochs(3)).unwrap();
        weights(trainer, "padded")
    });
    assert!(a == b);
    let error = refused(Trainer::new(model(), &ragged.padded_batch(32, PadTo::Longest, -1.0)).fit(Fit::epochs(1)));
    let wanted = "a step is planned for rows of one shape, and those of `x: f32[≤ 6]` differ; pad them to the longest that was declared (`padded_batch`)";
    assert_eq!(error, wanted);
}
