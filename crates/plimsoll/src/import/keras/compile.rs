//! The compile configuration: optimizer, losses and metrics. What has no counterpart is noted, not refused: it does not
//! change the model.

use crate::loss::{Loss, Objective};
use crate::metrics::Metric;
use crate::optim::{Adagrad, Adam, AdamW, Lion, Nadam, Optimizer, RmsProp, Sgd};
use crate::output_loss::{OutputLoss, OutputLosses};
use serde_json::Value;
use std::sync::Arc;

/// What a model was compiled with.
#[derive(Default)]
pub(super) struct CompileConfig {
    pub optimizer: Option<Arc<dyn Optimizer>>,
    pub losses: Option<OutputLosses>,
}

pub(super) fn read(config: Option<&Value>, outputs: &[String], notes: &mut Vec<String>) -> CompileConfig {
    let Some(config) = config else { return CompileConfig::default() };
    let optimizer = optimizer(config.get("optimizer").or_else(|| config.get("optimizer_config")).unwrap_or(&Value::Null), notes);
    CompileConfig { optimizer, losses: losses(config, outputs, notes) }
}

fn optimizer(value: &Value, notes: &mut Vec<String>) -> Option<Arc<dyn Optimizer>> {
    let config = &value["config"];
    let class = value["class_name"].as_str().or(value.as_str())?;
    let number = |key: &str, default: f64| config[key].as_f64().unwrap_or(default) as f32;
    let lr = match config.get("learning_rate") {
        Some(Value::Number(lr)) => lr.as_f64().unwrap_or(1e-3) as f32,
        Some(schedule) if schedule["config"]["initial_learning_rate"].is_number() => {
            let name = schedule["class_name"].as_str().unwrap_or("a schedule");
            notes.push(format!("the schedule {name} of the optimizer is not imported; `train.schedule` sets one"));
            schedule["config"]["initial_learning_rate"].as_f64().unwrap_or(1e-3) as f32
        }
        _ => 1e-3,
    };
    for key in ["clipnorm", "global_clipnorm", "clipvalue"] {
        if !matches!(config[key], Value::Null) {
            notes.push(format!("`{key}` of the optimizer is not imported; `train.clip` sets one"));
        }
    }
    if config["use_ema"] == Value::Bool(true) || config["amsgrad"] == Value::Bool(true) {
        notes.push("`use_ema` and `amsgrad` of the optimizer are not imported".to_string());
    }
    let betas = (number("beta_1", 0.9), number("beta_2", 0.999));
    let decay = config["weight_decay"].as_f64().filter(|decay| *decay > 0.0);
    Some(match class.to_ascii_lowercase().as_str() {
        "sgd" => Arc::new(Sgd::new(lr).momentum(number("momentum", 0.0)).nesterov(config["nesterov"] == Value::Bool(true))),
        "adam" if decay.is_none() => Arc::new(Adam::new(lr).betas(betas.0, betas.1).epsilon(number("epsilon", 1e-7))),
        "adam" | "adamw" => Arc::new(AdamW::new(lr, decay.unwrap_or(4e-3) as f32).betas(betas.0, betas.1).epsilon(number("epsilon", 1e-7))),
        "rmsprop" => {
            let optimizer = RmsProp::new(lr).rho(number("rho", 0.9)).momentum(number("momentum", 0.0));
            Arc::new(optimizer.epsilon(number("epsilon", 1e-7)).centered(config["centered"] == Value::Bool(true)))
        }
        "adagrad" => {
            Arc::new(Adagrad::new(lr).initial_accumulator(number("initial_accumulator_value", 0.1)).epsilon(number("epsilon", 1e-7)))
        }
        "nadam" => Arc::new(Nadam::new(lr).betas(betas.0, betas.1).epsilon(number("epsilon", 1e-7))),
        "lion" => Arc::new(Lion::new(lr).betas(betas.0, number("beta_2", 0.99))),
        _ => {
            notes.push(format!("the optimizer {class} is not imported; `train.optimizer` sets one"));
            return None;
        }
    })
}

/// The losses with their metrics; none if one of them has no counterpart.
fn losses(config: &Value, outputs: &[String], notes: &mut Vec<String>) -> Option<OutputLosses> {
    let given = &config["loss"];
    let per_output = |value: &Value, index: usize, name: &str| -> Value {
        match value {
            Value::Array(list) => list.get(index).cloned().unwrap_or(Value::Null),
            Value::Object(table) if table.contains_key(name) => table[name].clone(),
            Value::Object(table) if table.contains_key("class_name") || outputs.len() == 1 => value.clone(),
            Value::Object(_) => Value::Null,
            single => single.clone(),
        }
    };
    let mut named = Vec::new();
    for (index, name) in outputs.iter().enumerate() {
        let value = per_output(given, index, name);
        if value.is_null() {
            return None;
        }
        let Some(objective) = objective(&value) else {
            notes.push(format!("the loss {value} is not imported; `train.loss` sets one"));
            return None;
        };
        let mut loss = OutputLoss::new(objective);
        if let Some(weight) = per_output(&config["loss_weights"], index, name).as_f64() {
            loss = loss.weight(weight as f32);
        }
        let metrics = match (&config["metrics"], outputs.len()) {
            (Value::Null, _) => Value::Null,
            (list @ Value::Array(items), 1) if !items.iter().any(Value::is_array) => list.clone(),
            (other, _) => per_output(other, index, name),
        };
        let list = match &metrics {
            Value::Array(list) => list.clone(),
            Value::Null => Vec::new(),
            single => vec![single.clone()],
        };
        let known: Vec<Metric> = list.iter().filter_map(metric).collect();
        if known.len() < list.len() {
            notes.push(format!("some of the metrics {metrics} are not imported; `train.metrics` sets them"));
        }
        if !known.is_empty() {
            loss = loss.metrics(known);
        }
        named.push((name.clone(), loss));
    }
    match named.len() {
        1 => Some(OutputLosses::Only(named.remove(0).1)),
        _ => Some(OutputLosses::Named(named)),
    }
}

/// The name of a function or class, in snake case.
fn name_of(value: &Value) -> Option<String> {
    let name = match value["class_name"].as_str() {
        Some("function") => value["config"].as_str()?,
        Some(class) => class,
        None => value.as_str()?,
    };
    Some(super::naming::snake_case(name))
}

fn objective(value: &Value) -> Option<Objective> {
    let config = &value["config"];
    let loss = match name_of(value)?.as_str() {
        "mse" | "mean_squared_error" => Loss::MeanSquaredError,
        "mae" | "mean_absolute_error" => Loss::MeanAbsoluteError,
        "huber" | "huber_loss" => Loss::Huber { delta: config["delta"].as_f64().unwrap_or(1.0) as f32 },
        "log_cosh" | "logcosh" => Loss::LogCosh,
        "kl_divergence" | "kld" | "kullback_leibler_divergence" => Loss::KlDivergence,
        "categorical_crossentropy" | "sparse_categorical_crossentropy" => Loss::SoftmaxCrossEntropy,
        "binary_crossentropy" | "bce" => Loss::BinaryCrossEntropy,
        "dice" => Loss::Dice,
        "hinge" => Loss::Hinge,
        "poisson" => Loss::Poisson,
        _ => return None,
    };
    let smoothing = config["label_smoothing"].as_f64().unwrap_or(0.0) as f32;
    Some(if smoothing > 0.0 { loss.smoothing(smoothing) } else { loss.into() })
}

fn metric(value: &Value) -> Option<Metric> {
    Some(match name_of(value)?.as_str() {
        "accuracy" | "acc" | "categorical_accuracy" | "sparse_categorical_accuracy" | "binary_accuracy" => Metric::Accuracy,
        "mae" | "mean_absolute_error" => Metric::MeanAbsoluteError,
        "mse" | "mean_squared_error" => Metric::MeanSquaredError,
        "precision" => Metric::Precision,
        "recall" => Metric::Recall,
        "r2_score" => Metric::R2,
        "top_k_categorical_accuracy" | "sparse_top_k_categorical_accuracy" => {
            Metric::TopK(value["config"]["k"].as_u64().unwrap_or(5) as usize)
        }
        _ => return None,
    })
}
