//! A whole network trained on the device.

use crate::model::Model;

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
