//! The loss of distillation compared with Keras, and students of a small teacher.

use super::Distill;
use crate::config::Config;
use crate::nn::{Flatten, Model};
use crate::prelude::*;
use crate::{Checkpoints, Tensor};
use plimsoll_core::budget::Owner;
use plimsoll_core::graph::StateKind;
use serde_json::Value;
use std::path::Path;

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// A dense layer without activation whose kernel is the identity: its output is its input.
fn identity(classes: usize, folder: &Path, name: &str) -> (Model, std::path::PathBuf) {
    let model: Model = Sequential::new().named("scores", Dense::new(classes).bias(false)).into();
    let path = folder.join(name);
    let kernel: Vec<f32> = (0..classes * classes).map(|i| f32::from(i / classes == i % classes)).collect();
    let header =
        format!("{{\"scores/kernel\":{{\"dtype\":\"F32\",\"shape\":[{classes},{classes}],\"data_offsets\":[0,{}]}}}}", 4 * kernel.len());
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.extend(kernel.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    (model, path)
}

/// The teacher's input is its output; the student's kernel is trained for one step of gradient descent, from the
/// identity.
#[test]
fn the_loss_and_its_gradient_are_those_of_keras() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../tests/references/distillation.json")).unwrap();
    for case in &cases {
        let folder = tempfile::tempdir().unwrap();
        let classes = case["classes"].as_u64().unwrap() as usize;
        let (student, teacher) = (numbers(&case["student"]), numbers(&case["teacher"]));
        let labels: Vec<i32> = numbers(&case["labels"]).iter().map(|label| *label as i32).collect();
        let rows = labels.len();
        let columns = [
            ("own", Tensor::f32([rows, classes], student.clone()).unwrap()),
            ("other", Tensor::f32([rows, classes], teacher).unwrap()),
            ("y", Tensor::i32([rows], labels).unwrap()),
        ];
        let data = Dataset::from_tensor_slices(columns).unwrap().batch(rows);
        let model = |column: &str| {
            let mut net = nn::Functional::new("one");
            let (_, _) = (net.input_named("own"), net.input_named("other"));
            let x = net.input_named(column);
            let scores = net.named("scores", Dense::new(classes).bias(false), [x]);
            net.build(scores)
        };
        let (_, weights) = identity(classes, folder.path(), "identity.safetensors");
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        let distill = Distill::new(model("other"), &weights).unwrap().temperature(number("temperature")).alpha(number("alpha"));
        let mut trainer = Trainer::new(model("own"), &data).optimizer(Sgd::new(1.0)).distill(distill);
        trainer.load_weights(&weights).unwrap();
        let history = trainer.fit(Fit::epochs(1)).unwrap();
        let loss = history.last().unwrap().training.loss;
        assert!((loss - case["loss"].as_f64().unwrap()).abs() < 1e-5, "{loss} {}", case["loss"]);
        // The gradient of the kernel is the product of the inputs with the gradient of the scores.
        let gradient = numbers(&case["gradient"]);
        let path = folder.path().join("student.safetensors");
        trainer.save_weights(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let kernel: Vec<f32> =
            bytes[bytes.len() - 4 * classes * classes..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        for (i, updated) in kernel.iter().enumerate() {
            let (from, to) = (i / classes, i % classes);
            let slope: f32 = (0..rows).map(|row| student[row * classes + from] * gradient[row * classes + to]).sum();
            let expected = f32::from(from == to) - slope;
            assert!((updated - expected).abs() < 1e-5, "{updated} {expected}");
        }
    }
}

fn digits() -> Dataset {
    Dataset::digits(Split::Train).take(160).map("x", [scale(1.0 / 16.0)]).batch(20)
}

fn teacher(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("teacher.safetensors");
    let mut trainer = Trainer::new(large(), &digits()).threads(2);
    trainer.fit(Fit::epochs(3)).unwrap();
    trainer.save_weights(&path).unwrap();
    path
}

fn large() -> Model {
    let body = Sequential::new().add(nn::Conv2D::new(16, 3)).add(nn::BatchNorm::new()).add(Activation::Relu).add(nn::Dropout::new(0.5));
    body.add(Flatten).add(Dense::new(10).activation(Activation::Softmax)).into()
}

fn student(weights: &Path) -> Trainer {
    let model = Sequential::new().add(Flatten).add(Dense::new(12).relu()).add(Dense::new(10));
    let distill = Distill::new(large(), weights).unwrap().temperature(4.0).alpha(0.3);
    Trainer::new(model, &digits()).threads(2).optimizer(Adam::new(0.01)).distill(distill)
}

fn weights(trainer: &mut Trainer, folder: &Path) -> Vec<u8> {
    let path = folder.join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_student_is_the_same_in_any_micro_batch_and_after_resuming() {
    let folder = tempfile::tempdir().unwrap();
    let path = teacher(folder.path());
    let mut whole = student(&path);
    whole.fit(Fit::epochs(3)).unwrap();
    let expected = weights(&mut whole, folder.path());
    assert!(!String::from_utf8_lossy(&expected).contains("teacher"), "weights are those of the student");
    let mut pieces = student(&path).micro_batch(7);
    pieces.fit(Fit::epochs(3)).unwrap();
    assert!(weights(&mut pieces, folder.path()) == expected);
    let checkpoints = || Checkpoints::new(folder.path().join("checkpoints"));
    student(&path).fit(Fit::epochs(1).checkpoints(checkpoints())).unwrap();
    let mut resumed = student(&path);
    resumed.fit(Fit::epochs(3).checkpoints(checkpoints()).resume(true)).unwrap();
    assert!(weights(&mut resumed, folder.path()) == expected);
}

#[test]
fn the_teacher_is_planned_without_gradients() {
    let folder = tempfile::tempdir().unwrap();
    let path = teacher(folder.path());
    let trainer = student(&path);
    let plan = trainer.plan(&Fit::epochs(1)).unwrap();
    let of_teacher = |state: &&plimsoll_core::plan::Resident| state.kind == StateKind::Teacher;
    let size: u64 = plan.memory.states.iter().filter(of_teacher).map(|state| state.size.align_up(plan.memory.alignment.0).0).sum();
    let held = plan.owners.iter().find(|(owner, _)| *owner == Owner::Teacher).map(|(_, size)| size.0);
    assert!(held == Some(size) && size > 0, "{held:?} {size}");
    let moments = plan.memory.states.iter().filter(|state| state.kind == StateKind::Optimizer && state.name.starts_with("teacher"));
    assert_eq!(moments.count(), 0);
    assert!(plan.to_string().contains("teacher"));
}

#[test]
fn a_teacher_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = teacher(folder.path());
    let planned = |distill: Distill| {
        let model = Sequential::new().add(Flatten).add(Dense::new(10));
        let error = Trainer::new(model, &digits()).distill(distill).plan(&Fit::epochs(1)).unwrap_err();
        error.to_string()
    };
    let of = |model: Model| Distill::new(model, &path).unwrap();
    let run = |text: &str| {
        let config = Config::from_text(&format!("{}\n[distill]\n{text}", crate::config::DIGITS)).unwrap();
        config.build().unwrap_err().to_string()
    };
    // A teacher for one class, without weights that depend on the size of an image.
    let pooled: Model = Sequential::new().add(nn::GlobalAveragePool).named("scores", Dense::new(1).bias(false)).into();
    let (_, pooled_path) = identity(1, folder.path(), "pooled.safetensors");
    let errors = [
        planned(of(Sequential::new().add(Flatten).add(Dense::new(10)).into())),
        planned(of(Sequential::new().add(nn::Conv2D::new(16, 2)).into())),
        planned(Distill::new(pooled, &pooled_path).unwrap()),
        run("temperature = 2"),
        run("teacher = \"no/such/run\""),
    ];
    insta::assert_snapshot!(errors.join("\n").replace(&folder.path().display().to_string(), "FOLDER"), @r#"
    distillation: the teacher was trained on other inputs: its weight `dense/kernel` has the shape [576, 10], but needs [64, 10] for the inputs of this run
    distillation: the teacher was trained on other inputs: its weight `conv2d/kernel` has the shape [3, 3, 1, 16], but needs [2, 2, 1, 16] for the inputs of this run
    distillation: the student predicts [B, 10], and the teacher [B, 1]; train a teacher for the same classes
    `distill.teacher` is missing: the folder of a trained run, such as "runs/large-1"
    `distill.teacher`: no/such/run has no config.toml; name the folder of a trained run
    "#);
}
