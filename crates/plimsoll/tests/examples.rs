//! The programs of `examples/`, at a reduced size.

#[path = "../examples/conv_resized.rs"]
#[allow(dead_code, reason = "a test calls `run`, not `main`")]
mod conv_resized;

#[path = "../examples/custom_loop.rs"]
#[allow(dead_code, reason = "a test calls `run`, not `main`")]
mod custom_loop;

#[path = "../examples/dense_million.rs"]
#[allow(dead_code, reason = "a test calls `run`, not `main`")]
mod dense_million;

#[test]
fn the_dense_example_trains_within_its_budget() {
    let history = dense_million::run(20_000, None).unwrap();
    assert_eq!(history.steps, 2 * 625);
    assert!(history.epochs[1].training.loss < history.epochs[0].training.loss);
    assert!(history.planned <= history.host_budget);
}

#[test]
fn the_convolution_example_trains_within_its_budget() {
    let history = conv_resized::run(200).unwrap();
    assert_eq!(history.steps, 7, "the ragged last batch counts");
    assert!(history.epochs[0].training.loss.is_finite());
    assert!(history.planned <= history.host_budget);
}

#[test]
fn the_custom_loop_example_trains_and_saves_weights() {
    let path = std::env::temp_dir().join(format!("plimsoll-custom-loop-{}.safetensors", std::process::id()));
    let (first, last) = custom_loop::run(3, &path).unwrap();
    assert!(last < 0.2 * first, "{first} → {last}");
    std::fs::remove_file(&path).unwrap();
}
