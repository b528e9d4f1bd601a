//! A trainer warns of eager tensors that callbacks keep.

use plimsoll::eager::{Context, Tensor};
use plimsoll::prelude::*;
use plimsoll::{Bytes, Event, TrainingControl};
use std::cell::RefCell;

#[test]
fn tensors_that_a_callback_keeps_are_reported_once_with_their_line() {
    let context = Context::cpu(1, Bytes::mib(8)).unwrap();
    let (kept, warnings) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let data = Dataset::random(RandomSpec::new(8).floats("x", [4]).labels("y", 2)).unwrap().batch(4);
    let fit = Fit::epochs(4)
        .on_event(|event| {
            // Other tests of this process have tensors too.
            if let Event::Warning(what) = event
                && what.contains("leaks.rs")
            {
                warnings.borrow_mut().push(what.to_string());
            }
        })
        .on_epoch(|_| {
            context.scope(|| {
                kept.borrow_mut().push(Tensor::ones([256]).unwrap());
                drop(Tensor::zeros([512]).unwrap());
            });
            TrainingControl::Continue
        });
    Trainer::new(Sequential::new().add(Dense::new(2)), &data).threads(1).fit(fit).unwrap();
    let warnings = warnings.into_inner();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("eager tensors grew in epoch 2: +1.00 KiB in +1 blocks of full made at "), "{warnings:?}");
    assert!(warnings[0].ends_with("drop them, or keep their numbers (`to_vec`)"), "{warnings:?}");
    assert_eq!(kept.borrow().len(), 4);
}
