//! A whole network trained on the device.

use crate::model::{Model, ROWS, bytes};
use plimsoll_core::device::StepInputs;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;

#[test]
fn the_loss_falls() {
    let mut model = Model::new(2);
    let losses: Vec<f32> = (0..20).map(|step| model.step(step).unwrap()).collect();
    assert!(losses[19] < 0.6 * losses[0], "{losses:?}");
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let train = |threads: usize| {
        let mut model = Model::new(threads);
        (0..10).for_each(|step| {
            model.step(step).unwrap();
        });
        model.states()
    };
    let one = train(1);
    assert!(one == train(2) && one == train(3));
}

/// Batches with ever different numbers of rows, such as the last ones of epochs of unknown length, load ever different
/// programs.
#[test]
fn the_number_of_loaded_programs_is_limited() {
    let train = |limit: Option<usize>| {
        let mut model = Model::new(1);
        limit.into_iter().for_each(|limit| model.executor.limit_loaded(limit));
        let (x, y) = ([0.5f32; ROWS * 9], [0.25f32; ROWS * 3]);
        let mut most = 0;
        for step in 0..40u32 {
            // Every second batch is a whole one.
            let rows = if step % 2 == 0 { ROWS } else { ROWS - 1 - step as usize / 2 };
            let columns = [bytes(&x[..rows * 9]), bytes(&y[..rows * 3])];
            let inputs = StepInputs { columns: &columns, scalars: &[0.1], random: StepRandom { seed: 1, step, first_row: 0 } };
            let ticket = model.executor.run(Role::Step, rows, &inputs).unwrap();
            model.executor.outcome(ticket, &mut [0.0; 1]).unwrap();
            most = most.max(model.executor.loaded());
        }
        (most, model.states())
    };
    let (all, states) = train(None);
    assert_eq!(all, 21);
    for limit in [2, 3] {
        assert_eq!(train(Some(limit)), (limit, states.clone()), "unloading changes no result");
    }
    assert_eq!(train(Some(0)).0, 2, "the program that ran last and another one stay loaded");
}
