//! Mixed precision over whole networks: planned memory, convergence, and loss scaling.

use plimsoll::Checkpoints;
use plimsoll::config::Config;
use plimsoll::nn::{Conv2D, Dropout, Embedding, Flatten, GlobalAveragePool, LayerNorm, Lstm, MaxPool2D, MultiHeadAttention};
use plimsoll::prelude::*;
use plimsoll_core::plan::Buffer;
use plimsoll_core::step::Role;
use std::collections::BTreeMap;
use std::path::Path;

/// Networks at the sizes of the examples, or at sizes that plan quickly.
const NETWORKS: [(&str, usize, &[&str]); 14] = [
    ("cifar-cnn", 32, &["model.input=[64, 64, 3]"]),
    ("char-gpt", 32, &["model.context=64", "model.vocabulary=65", "model.width=0.25"]),
    ("lstm", 32, &[]),
    ("gru", 32, &[]),
    ("mlp", 512, &[]),
    ("lenet5", 64, &[]),
    ("autoencoder", 32, &[]),
    ("resnet18", 16, &["model.input=[64, 64, 3]"]),
    ("mobilenet-v1", 8, &["model.input=[64, 64, 3]"]),
    ("efficientnet-b0", 4, &["model.input=[64, 64, 3]"]),
    ("googlenet", 4, &["model.input=[64, 64, 3]"]),
    ("unet", 4, &["model.input=[64, 64, 3]", "model.width=0.25"]),
    ("vit-tiny", 2, &["model.input=[64, 64, 3]"]),
    ("bert-base", 2, &["model.context=32", "model.vocabulary=100", "model.width=0.25"]),
];

/// The peak of activations and their gradients in a step.
fn activations(name: &str, batch: usize, settings: &[&str], precision: &str) -> u64 {
    let mut config = Config::zoo(name).unwrap();
    settings.iter().for_each(|setting| config.set(setting).unwrap());
    config.set(&format!("train.batch={batch}")).unwrap();
    config.set(&format!("train.precision={precision}")).unwrap();
    let plan = Trainer::from(config.build().unwrap()).plan(&Fit::epochs(1)).unwrap();
    let program = plan.memory.program(Role::Step).expect("it learns");
    let grows = |buffer: &&Buffer| buffer.values.iter().any(|value| program.graph.shape(*value).has_batch());
    let grown: Vec<&Buffer> = program.buffers.iter().filter(grows).collect();
    let held = |step: u32| grown.iter().filter(|buffer| buffer.first <= step && step <= buffer.last).map(|buffer| buffer.size.0).sum();
    (0..program.order.len() as u32).map(held).max().expect("a step does something")
}

#[test]
fn activations_take_half_the_memory() {
    for (name, batch, settings) in NETWORKS {
        let wide = activations(name, batch, settings, "f32");
        let narrow = activations(name, batch, settings, "mixed_bf16");
        let share = narrow as f64 / wide as f64;
        println!("{name:16} {share:.3} of {wide} bytes");
        assert!(share <= 0.55, "{name}: {narrow} bytes are {share:.3} of {wide}");
    }
    let (bf16, f16) = (activations("lstm", 32, &[], "mixed_bf16"), activations("lstm", 32, &[], "mixed_f16"));
    // Scaling the loss adds a few numbers for each row.
    assert!(bf16.abs_diff(f16) <= bf16 / 100, "both types have two bytes: {bf16} and {f16}");
}

/// All tensors of the newest checkpoint.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<f32>> {
    let newest = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.extension().is_some_and(|suffix| suffix == "safetensors")).max().unwrap();
    let file = std::fs::read(newest).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__").map(|(name, entry)| {
        let at = |i: usize| 8 + length + entry["data_offsets"][i].as_u64().unwrap() as usize;
        (name, file[at(0)..at(1)].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    });
    tensors.collect()
}

/// Trains in half precision; returns the tensors and the losses of all epochs.
fn scaled(name: &str, data: &Dataset, epochs: u64, optimizer: Sgd) -> (BTreeMap<String, Vec<f32>>, Vec<f64>) {
    let folder = std::env::temp_dir().join(format!("plimsoll-precision-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let model = Sequential::new().add(Dense::new(4).activation(Activation::Tanh)).named("last", Dense::new(1));
    let mut trainer = Trainer::new(model, data).loss(Loss::MeanSquaredError).optimizer(optimizer).precision(Precision::MixedF16);
    let history = trainer.fit(Fit::epochs(epochs).checkpoints(Checkpoints::new(&folder).keep(1))).unwrap();
    let result = (tensors(&folder), history.epochs.iter().map(|epoch| epoch.training.loss).collect());
    std::fs::remove_dir_all(&folder).unwrap();
    result
}

/// One row per step, with labels around some number.
fn rows(rows: u64, around: f32) -> Dataset {
    let data = Dataset::random(RandomSpec::new(rows).seed(6).floats("x", [3]).floats("y", [1])).unwrap();
    data.map("y", [scale(0.1), normalize([-around], [1.0])]).batch(1)
}

#[test]
fn the_loss_scale_starts_at_32768_and_doubles_after_2000_clean_steps() {
    let before = scaled("before", &rows(1999, 0.0), 1, Sgd::new(0.01)).0;
    assert_eq!((before["loss_scale/scale"][0], before["loss_scale/skipped"][0]), (32_768.0, 0.0));
    let after = scaled("after", &rows(2000, 0.0), 1, Sgd::new(0.01)).0;
    assert_eq!((after["loss_scale/scale"][0], after["loss_scale/skipped"][0]), (65_536.0, 0.0));
}

/// Labels so large that the gradients of the first steps overflow half precision.
#[test]
fn overflowing_steps_halve_the_loss_scale_and_are_skipped() {
    let (one, _) = scaled("first", &rows(1, 3000.0), 1, Sgd::new(1e-4));
    assert_eq!((one["loss_scale/scale"][0], one["loss_scale/skipped"][0]), (16_384.0, 1.0));
    let (none, _) = scaled("nothing", &rows(1, 3000.0), 1, Sgd::new(0.0));
    assert_eq!(one["last/kernel"], none["last/kernel"], "a step that is left out leaves the weights alone");
    let (all, losses) = scaled("all", &rows(64, 3000.0), 4, Sgd::new(1e-4));
    let (scale, skipped) = (all["loss_scale/scale"][0], all["loss_scale/skipped"][0]);
    assert_eq!(scale, 32_768.0 / 2f32.powf(skipped), "every step that was left out halved it");
    assert!((8.0..15.0).contains(&skipped), "{skipped} steps were left out");
    assert!(losses[3] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn mixed_precision_converges_like_f32() {
    let digits = || Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
    let text = || Dataset::random(RandomSpec::new(320).seed(8).classes("x", vec![12], 9).labels("y", 3)).unwrap().batch(32);
    let series = || Dataset::random(RandomSpec::new(320).seed(9).floats("x", [12, 4]).floats("y", [2])).unwrap().batch(32);
    let pictures: Model = Sequential::new()
        .add(Conv2D::new(8, 3).relu())
        .add(MaxPool2D::new(2))
        .add(Flatten)
        .add(Dropout::new(0.1))
        .add(Dense::new(10))
        .into();
    let words: Model = Sequential::new()
        .add(Embedding::new(9, 16))
        .add(LayerNorm::new())
        .add(MultiHeadAttention::new(2).causal().dropout(0.1))
        .add(GlobalAveragePool)
        .add(Dense::new(3))
        .into();
    let forecast: Model = Sequential::new().add(Lstm::new(16)).add(Dense::new(2)).into();
    let cases = [
        ("pictures", pictures, digits(), Loss::SoftmaxCrossEntropy, 4, 0.5),
        ("words", words, text(), Loss::SoftmaxCrossEntropy, 12, 0.99),
        ("forecast", forecast, series(), Loss::MeanSquaredError, 8, 0.95),
    ];
    for (name, model, data, loss, epochs, falls) in cases {
        let train = |precision: Precision| {
            let mut trainer = Trainer::new(model.clone(), &data).loss(loss.clone()).optimizer(Adam::new(3e-3)).precision(precision).seed(2);
            let history = trainer.fit(Fit::epochs(epochs)).unwrap();
            history.epochs.iter().map(|epoch| epoch.training.loss).collect::<Vec<f64>>()
        };
        let wide = train(Precision::F32);
        for precision in [Precision::MixedF16, Precision::MixedBf16] {
            let narrow = train(precision);
            let (first, last) = (narrow[0], narrow[narrow.len() - 1]);
            assert!(last < falls * first, "{name}, {precision:?}: {narrow:?}");
            assert!((last - wide[wide.len() - 1]).abs() < 0.02 * wide[0], "{name}, {precision:?}: {narrow:?} for {wide:?}");
            assert_ne!(narrow, wide, "{name}, {precision:?} rounds something");
        }
    }
}

#[test]
fn on_the_cpu_tf32_has_the_bits_of_f32() {
    let step = |precision: &str| {
        let mut config = Config::zoo("digits-cnn").unwrap();
        for setting in ["train.batch=16", "data.rows=64", "train.epochs=1", &format!("train.precision={precision}")] {
            config.set(setting).unwrap();
        }
        let trainer = Trainer::from(config.build().unwrap());
        let plan = trainer.plan(&Fit::epochs(1)).unwrap();
        assert_eq!(plan.precision.name(), precision);
        assert!(plan.memory.programs.iter().all(|program| program.graph.tf32() == (precision == "tf32")), "{precision}");
        plan.memory.programs[0].graph.to_string()
    };
    // The same graph, which the CPU computes in single precision.
    assert_eq!(step("tf32"), step("f32"));
}
