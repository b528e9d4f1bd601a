//! Every loss, evaluated in double precision, compared with the value and gradient in Keras.

use super::{Loss, ModelOutput, Objective};
use crate::nn::Activation;
use plimsoll_core::autodiff::gradients;
use plimsoll_core::expr::Expr;
use plimsoll_core::ops::Reduction;
use plimsoll_core::random::StepRandom;
use plimsoll_core::{DType, Graph, GraphError, Shape, TensorType, ValueId, reference};
use serde_json::Value;

const ROWS: usize = 5;
const CLASSES: usize = 4;

/// The final activation of the model.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Scores,
    Softmax,
    Sigmoid,
}

fn prediction(g: &mut Graph, scores: ValueId, end: End) -> Result<ModelOutput, GraphError> {
    match end {
        End::Scores => Ok(ModelOutput { output: scores, before_activation: None }),
        End::Sigmoid => {
            let output = g.unary(plimsoll_core::expr::Unary::Sigmoid, scores)?;
            Ok(ModelOutput { output, before_activation: Some((Activation::Sigmoid, scores)) })
        }
        End::Softmax => {
            let sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
            let share = Expr::build(|e| e.unary(plimsoll_core::expr::Unary::Exp, e.sub(e.input(0), e.input(1))));
            let output = g.pointwise(share, &[scores, sum])?;
            Ok(ModelOutput { output, before_activation: Some((Activation::Softmax, scores)) })
        }
    }
}

/// The mean loss of the rows of a case, and its gradient.
fn evaluate(objective: &Objective, end: End, case: &Value, labels: DType, shape: &[usize]) -> Result<(f64, Vec<f64>), GraphError> {
    let mut g = Graph::new();
    let scores = g.input("scores", TensorType::f32(Shape::batch_of([CLASSES])));
    let target = g.input("labels", TensorType::new(labels, Shape::batch_of(shape.iter().copied())));
    let numbers = |name: &str| case[name].as_array().map(|list| list.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>());
    let mut columns = vec![numbers("prediction").unwrap(), numbers("labels").unwrap()];
    let weights = numbers("weights").map(|weights| {
        columns.push(weights);
        g.input("weight", TensorType::f32(Shape::batch_of([])))
    });
    let prediction = prediction(&mut g, scores, end)?;
    let sum = objective.batch_loss(&mut g, prediction, target, weights)?;
    let mut loss = g.map(sum.loss, |e, sum| e.mul(sum, e.constant(1.0 / ROWS as f32)))?;
    if let Some(counted) = sum.counted {
        let share = g.map(counted, |e, sum| e.mul(sum, e.constant(1.0 / ROWS as f32)))?;
        loss = g.binary(plimsoll_core::expr::Binary::Div, loss, share)?;
    }
    let gradient = gradients(&mut g, loss, &[scores])?[0];
    g.output("loss", loss);
    g.output("gradient", gradient);
    let outcome = reference::run(&g, ROWS, &columns, &[], &[], &StepRandom::default());
    Ok((outcome.output("loss").unwrap()[0], outcome.output("gradient").unwrap().to_vec()))
}

#[test]
fn every_loss_matches_keras() {
    let references: Value = serde_json::from_str(include_str!("../../tests/references/losses.json")).unwrap();
    let (real, class) = (DType::F32, DType::I32);
    let soft = |loss: Loss| loss.smoothing(0.2);
    let cases: Vec<(&str, Objective, End, DType)> = vec![
        ("mse", Loss::MeanSquaredError.into(), End::Scores, real),
        ("mae", Loss::MeanAbsoluteError.into(), End::Scores, real),
        ("huber", Loss::Huber { delta: 1.5 }.into(), End::Scores, real),
        ("log_cosh", Loss::LogCosh.into(), End::Scores, real),
        ("kl_divergence", Loss::KlDivergence.into(), End::Softmax, real),
        ("softmax_cross_entropy", Loss::SoftmaxCrossEntropy.into(), End::Scores, class),
        ("softmax_cross_entropy", Loss::SoftmaxCrossEntropy.into(), End::Softmax, class),
        ("softmax_cross_entropy_shares", Loss::SoftmaxCrossEntropy.into(), End::Scores, real),
        ("softmax_cross_entropy_smoothing", soft(Loss::SoftmaxCrossEntropy), End::Scores, real),
        ("binary_cross_entropy", Loss::BinaryCrossEntropy.into(), End::Scores, real),
        ("binary_cross_entropy", Loss::BinaryCrossEntropy.into(), End::Sigmoid, real),
        ("binary_cross_entropy_smoothing", soft(Loss::BinaryCrossEntropy), End::Scores, real),
        ("categorical_focal", Loss::CategoricalFocal { alpha: 0.3, gamma: 1.5 }.into(), End::Scores, real),
        ("binary_focal", Loss::BinaryFocal { alpha: None, gamma: 2.0 }.into(), End::Scores, real),
        ("binary_focal_alpha", Loss::BinaryFocal { alpha: Some(0.3), gamma: 2.0 }.into(), End::Sigmoid, real),
        ("dice", Loss::Dice.into(), End::Sigmoid, real),
        ("hinge", Loss::Hinge.into(), End::Scores, real),
        ("poisson", Loss::Poisson.into(), End::Scores, real),
        ("sample_weights", Loss::SoftmaxCrossEntropy.into(), End::Scores, class),
        ("class_weights", Loss::SoftmaxCrossEntropy.class_weights([0.5, 2.0, 1.0, 3.0]), End::Scores, class),
        ("ignored_class", Loss::SoftmaxCrossEntropy.ignore_class(255), End::Scores, class),
    ];
    for (name, objective, end, dtype) in cases {
        let shape: &[usize] = if dtype == DType::F32 { &[CLASSES] } else { &[] };
        let case = &references["cases"][name];
        let (loss, gradient) = evaluate(&objective, end, case, dtype, shape).unwrap();
        let expected = case["loss"].as_f64().unwrap();
        // Keras computes in single precision.
        assert!((loss - expected).abs() < 2e-6 * expected.abs().max(1.0), "{name}: {loss} instead of {expected}");
        for (i, (got, want)) in gradient.iter().zip(case["gradient"].as_array().unwrap()).enumerate() {
            let want = want.as_f64().unwrap();
            assert!((got - want).abs() < 2e-6, "{name}: gradient {i} is {got} instead of {want}");
        }
    }
}

#[test]
fn class_ids_and_one_hot_labels_give_equal_losses() {
    let references: Value = serde_json::from_str(include_str!("../../tests/references/losses.json")).unwrap();
    let mut case = references["cases"]["softmax_cross_entropy_smoothing"].clone();
    let hot: Vec<f64> = case["labels"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    for objective in [
        Loss::SoftmaxCrossEntropy.smoothing(0.2),
        Loss::SoftmaxCrossEntropy.smoothing(0.1).class_weights([1.0, 2.0, 3.0, 4.0]),
        Loss::CategoricalFocal { alpha: 0.25, gamma: 2.0 }.smoothing(0.2),
        Loss::Dice.into(),
    ] {
        case["labels"] = hot.clone().into();
        let from_shares = evaluate(&objective, End::Softmax, &case, DType::F32, &[CLASSES]).unwrap();
        let numbers: Vec<f64> = hot.chunks(CLASSES).map(|row| row.iter().position(|x| *x == 1.0).unwrap() as f64).collect();
        case["labels"] = numbers.into();
        let from_numbers = evaluate(&objective, End::Softmax, &case, DType::I32, &[]).unwrap();
        assert!((from_shares.0 - from_numbers.0).abs() < 1e-6, "{objective:?}: {} and {}", from_shares.0, from_numbers.0);
    }
}

#[test]
fn incompatible_loss_arguments_are_refused() {
    let references: Value = serde_json::from_str(include_str!("../../tests/references/losses.json")).unwrap();
    let case = &references["cases"]["mse"];
    let error = |objective: Objective| evaluate(&objective, End::Scores, case, DType::F32, &[CLASSES]).unwrap_err().to_string();
    assert_eq!(
        error(Loss::Huber { delta: 1.0 }.smoothing(0.1)),
        "label smoothing needs a categorical or binary loss, but the loss is huber"
    );
    assert_eq!(error(Loss::SoftmaxCrossEntropy.smoothing(1.0)), "label smoothing should be from 0 to below 1, but is 1");
    assert_eq!(error(Loss::MeanSquaredError.class_weights([1.0])), "class weights need a categorical or binary loss, but the loss is mse");
    assert_eq!(error(Loss::SoftmaxCrossEntropy.class_weights([1.0])), "there are 1 class weights, but the model has 4 classes");
    assert_eq!(error(Loss::Dice.ignore_class(3)), "ignore_class needs a categorical loss, but the loss is dice");
    assert_eq!(error(Loss::BinaryCrossEntropy.class_weights([1.0])), "a binary loss takes two class weights: negative, positive");
}
