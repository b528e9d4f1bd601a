//! Custom training loops take the steps of `fit`, and refuse batches that do not match the plan.

use plimsoll::nn::{BatchNorm, Dropout, Flatten, Model};
use plimsoll::prelude::*;
use plimsoll::{HostBatch, Tensor};

const ROWS: usize = 50;
const BATCH: usize = 20;

fn rows() -> (Vec<f32>, Vec<i32>) {
    let x = (0..ROWS * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    (x, (0..ROWS as i32).map(|i| i * 7 % 3).collect())
}

fn data() -> Dataset {
    let (x, y) = rows();
    let columns = [("x", Tensor::f32([ROWS, 6], x).unwrap()), ("y", Tensor::i32([ROWS], y).unwrap())];
    Dataset::from_tensor_slices(columns).unwrap().batch(BATCH)
}

fn model() -> Model {
    Sequential::new().add(Dense::new(16).relu()).add(Dropout::new(0.2)).add(Dense::new(3)).into()
}

fn trainer() -> Trainer {
    Trainer::new(model(), &data()).optimizer(Adam::new(0.01)).metrics([Metric::Accuracy, Metric::F1]).seed(3)
}

fn weights(save: impl FnOnce(&std::path::Path), name: &str) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("plimsoll-loop-{name}-{}", std::process::id()));
    save(&path);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

/// The full batch, micro-batches that divide it, and others.
#[test]
fn custom_loop_steps_match_fit() {
    for micro_batch in [BATCH, 5, 7] {
        let mut fitted = trainer().micro_batch(micro_batch);
        let history = fitted.fit(Fit::epochs(2)).unwrap();
        let expected = weights(|path| fitted.save_weights(path).unwrap(), "fit");

        let mut run = trainer().micro_batch(micro_batch).custom_loop().unwrap();
        let (x, y) = rows();
        let mut losses = [0.0; 2];
        for loss in &mut losses {
            for first in (0..ROWS).step_by(BATCH) {
                let rows = BATCH.min(ROWS - first);
                let batch = HostBatch::new(rows).column("y", &y[first..][..rows]).column("x", &x[6 * first..][..6 * rows]);
                *loss += run.step(&batch).unwrap().loss * rows as f64 / ROWS as f64;
            }
        }
        assert!(expected == weights(|path| run.save_weights(path).unwrap(), "slices"), "slices, pieces of {micro_batch}");
        for (loss, epoch) in losses.iter().zip(&history.epochs) {
            assert!((loss - epoch.training.loss).abs() < 1e-6, "{loss} and {}", epoch.training.loss);
        }

        let mut run = trainer().micro_batch(micro_batch).custom_loop().unwrap();
        let mut batches = run.batches(2).unwrap();
        let mut steps = [0; 2];
        for steps in &mut steps {
            while let Some(scores) = run.step_from(&mut batches).unwrap() {
                assert!(scores.accuracy.is_some() && scores.get("f1").is_some());
                *steps += 1;
            }
        }
        assert_eq!((steps, run.steps()), ([3, 3], 6));
        assert!(expected == weights(|path| run.save_weights(path).unwrap(), "batches"), "batches, pieces of {micro_batch}");
    }
}

#[test]
fn custom_loop_evaluate_and_predict_match_the_trainer() {
    let mut plain = trainer();
    let (scores, predictions) = (plain.evaluate(&data()).unwrap(), plain.predict(&data()).unwrap());
    let mut run = trainer().micro_batch(6).custom_loop().unwrap();
    let (x, y) = rows();
    let batch = HostBatch::new(BATCH).column("x", &x[..6 * BATCH]).column("y", &y[..BATCH]);
    let unlabelled = HostBatch::new(BATCH).column("x", &x[..6 * BATCH]);
    for _ in 0..2 {
        let outputs = run.forward(&unlabelled).unwrap();
        assert_eq!((outputs.len(), &outputs[0].name[..], &outputs[0].shape[..]), (1, "prediction", &[3][..]));
        assert_eq!(outputs[0].values, predictions[..3 * BATCH]);
    }
    let first = run.evaluate(&batch).unwrap();
    assert_eq!(run.evaluate(&batch).unwrap(), first, "nothing is trained");
    assert!((first.loss - scores.loss).abs() < 0.3 && first.per_class[0].1.len() == 3);
    assert_eq!(run.steps(), 0);
}

#[test]
fn the_learning_rate_follows_the_schedule_until_set() {
    let (x, y) = rows();
    let batch = HostBatch::new(BATCH).column("x", &x[..6 * BATCH]).column("y", &y[..BATCH]);
    let mut run = trainer().schedule(Schedule::step(1, 0.5)).custom_loop().unwrap();
    assert!((run.learning_rate().unwrap() - 0.01).abs() < 1e-9);
    run.step(&batch).unwrap();
    assert!((run.learning_rate().unwrap() - 0.005).abs() < 1e-9);
    run.set_learning_rate(0.0).unwrap();
    let before = weights(|path| run.save_weights(path).unwrap(), "before");
    run.step(&batch).unwrap();
    assert_eq!(run.learning_rate().unwrap(), 0.0);
    assert!(before == weights(|path| run.save_weights(path).unwrap(), "after"), "a rate of nothing changes nothing");
    let error = run.set_learning_rate(f64::NAN).unwrap_err().to_string();
    assert_eq!(error, "the learning rate is NaN, but should be a number of 0 or more");

    let mut short = trainer().schedule(Schedule::cosine(1)).custom_loop().unwrap();
    short.step(&batch).unwrap();
    let error = short.step(&batch).unwrap_err().to_string();
    assert!(error.starts_with("the cosine schedule ends after 1 steps, but training continues to step 2;"), "{error}");
}

#[test]
fn batches_that_do_not_match_the_plan_are_refused() {
    let mut run = trainer().custom_loop().unwrap();
    let (x, mut y) = rows();
    let narrow: Vec<u8> = vec![0; 6 * BATCH];
    let mut error = |batch: HostBatch<'_>| run.step(&batch).unwrap_err().to_string();
    let mut errors = vec![
        error(HostBatch::new(0)),
        error(HostBatch::new(21).column("x", &x[..126]).column("y", &y[..21])),
        error(HostBatch::new(BATCH).column("x", &x[..119]).column("y", &y[..BATCH])),
        error(HostBatch::new(BATCH).column("x", &narrow[..]).column("y", &y[..BATCH])),
        error(HostBatch::new(BATCH).column("x", &x[..120])),
        error(HostBatch::new(BATCH).column("x", &x[..120]).column("z", &y[..BATCH])),
        error(HostBatch::new(BATCH).column("x", &x[..120]).column("x", &x[..120])),
    ];
    y[4] = 3;
    errors.push(error(HostBatch::new(BATCH).column("x", &x[..120]).column("y", &y[..BATCH])));
    insta::assert_snapshot!(errors.join("\n"));
    y[4] = 0;
    run.step(&HostBatch::new(BATCH).column("x", &x[..120]).column("y", &y[..BATCH])).unwrap();
    assert_eq!(run.steps(), 1, "what was refused was no step");
}

#[test]
fn a_custom_loop_converts_back_into_a_trainer() {
    let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
    let model = Sequential::new().add(Flatten).add(BatchNorm::default()).add(Dense::new(10));
    let mut run = Trainer::new(model, &data).budget(Budget::host("96MiB").unwrap()).custom_loop().unwrap();
    assert!(run.plan().total() <= run.plan().host_budget);
    let mut batches = run.batches(1).unwrap();
    while run.step_from(&mut batches).unwrap().is_some() {}
    drop(batches);
    let mut trainer = run.into_trainer();
    let history = trainer.fit(Fit::epochs(1)).unwrap();
    assert_eq!((history.steps, history.epochs[0].epoch), (90, 2));
}
