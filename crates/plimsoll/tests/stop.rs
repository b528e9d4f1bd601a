//! Fits that are stopped from outside, and resumed.

use plimsoll::prelude::*;
use plimsoll::{Checkpoints, Event, StopHandle, Tensor};
use plimsoll_core::DType;
use plimsoll_data::{Column, DataError, Schema};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows that a generator makes; it blocks for ever instead of making row `blocks_at` of any epoch. `made` counts them.
fn generated(blocks_at: Option<i32>, made: &Arc<AtomicU64>) -> Dataset {
    let columns = vec![Column::new("x", DType::F32, [4]), Column::new("y", DType::F32, [1])];
    let made = Arc::clone(made);
    let rows = Dataset::from_generator(Schema::new(columns).unwrap(), move |_epoch| {
        let made = Arc::clone(&made);
        (0..64).map(move |row| {
            while Some(row) == blocks_at {
                std::thread::park();
            }
            made.fetch_add(1, Ordering::SeqCst);
            let x = [row, row % 3, row % 5, row % 7].map(|value| value as f32 * 0.01);
            Ok::<_, DataError>(vec![Tensor::f32([4], x)?, Tensor::f32([1], [x[1] - x[2]])?])
        })
    });
    rows.batch(16)
}

fn trainer(data: &Dataset, micro_batch: usize) -> Trainer {
    let model = Sequential::new().add(Dense::new(8).relu()).add(Dense::new(1));
    Trainer::new(model, data).loss(Loss::MeanSquaredError).seed(3).micro_batch(micro_batch)
}

fn fit<'a>(checkpoints: &Checkpoints) -> Fit<'a> {
    Fit::epochs(2).checkpoints(checkpoints.clone())
}

fn weights(trainer: &mut Trainer, folder: &Path) -> Vec<u8> {
    let path = folder.join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    std::fs::read(&path).unwrap()
}

/// Forty rows come, in batches of sixteen: the run waits for input between two steps, or within one.
#[test]
fn a_fit_stops_while_it_waits_for_input_and_resumes_bit_identically() {
    for micro_batch in [16, 4] {
        let folder = tempfile::tempdir().unwrap();
        let made = Arc::new(AtomicU64::new(0));
        let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
        let mut whole = trainer(&generated(None, &made), micro_batch);
        whole.fit(Fit::epochs(2)).unwrap();

        let (stop, made) = (StopHandle::new(), Arc::new(AtomicU64::new(0)));
        let (handle, rows) = (stop.clone(), Arc::clone(&made));
        let stopper = std::thread::spawn(move || {
            while rows.load(Ordering::SeqCst) < 40 {
                std::thread::yield_now();
            }
            handle.stop();
        });
        let mut said = None;
        let fit_until = fit(&checkpoints).stop_handle(&stop).on_event(|event| {
            if let Event::Stopped { step, checkpoint, complete, .. } = event {
                said = Some((*step, checkpoint.map(Path::to_path_buf), *complete));
            }
        });
        let history = trainer(&generated(Some(40), &made), micro_batch).fit(fit_until).unwrap();
        stopper.join().unwrap();
        assert!(history.stopped && history.epochs.is_empty() && history.steps <= 2, "{history:?}");
        let (step, checkpoint, complete) = said.expect("it says so");
        assert_eq!((step, complete), (history.steps, true));
        assert!(checkpoint.expect("it was written").exists());

        let mut resumed = trainer(&generated(None, &made), micro_batch);
        let history = resumed.fit(fit(&checkpoints).resume(true)).unwrap();
        assert_eq!((history.steps, history.epochs.len(), history.stopped), (8, 2, false));
        assert!(weights(&mut whole, folder.path()) == weights(&mut resumed, folder.path()), "stopped after step {step}");
    }
}

/// Validation is repeated, the steps before it are not.
#[test]
fn a_fit_stops_during_validation_and_resumes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let made = Arc::new(AtomicU64::new(0));
    let (data, held_out) = (generated(None, &made), generated(None, &made));
    let checkpoints = Checkpoints::new(folder.path());
    let expected = trainer(&data, 16).fit(Fit::epochs(1).validate(&held_out)).unwrap();
    let (stop, counted) = (StopHandle::new(), Arc::new(AtomicU64::new(0)));
    let (handle, rows) = (stop.clone(), Arc::clone(&counted));
    let blocked = generated(Some(40), &counted);
    let seen = folder.path().join("step-000000000004.json");
    let stopper = std::thread::spawn(move || {
        // The checkpoint of all steps comes before validation.
        while rows.load(Ordering::SeqCst) < 40 || !seen.exists() {
            std::thread::yield_now();
        }
        handle.stop();
    });
    let fit = Fit::epochs(1).checkpoints(checkpoints.clone());
    let history = trainer(&data, 16).fit(fit.validate(&blocked).stop_handle(&stop)).unwrap();
    stopper.join().unwrap();
    assert!(history.stopped && history.steps == 4);
    let resumed = trainer(&data, 16).fit(Fit::epochs(1).checkpoints(checkpoints).resume(true).validate(&held_out)).unwrap();
    assert_eq!((resumed.steps, resumed.epochs.len()), (4, 1));
    let scores = |history: &plimsoll::History| {
        let epoch = history.last().unwrap();
        (epoch.training.clone(), epoch.validation.clone(), epoch.learning_rate)
    };
    assert_eq!(scores(&resumed), scores(&expected));
}
