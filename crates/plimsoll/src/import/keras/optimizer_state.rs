//! The state of a saved optimizer: the moments of every trained weight, and how many steps it has made.
//!
//! Keras keeps the variables of an optimizer in one list: iterations, learning rate, then the moments of all trained
//! weights, in the order of `model.trainable_variables`.

use super::Pending;
use super::json::Parsed;
use crate::import::{ImportedWeights, OptimizerState};
use plimsoll_formats::keras::{KerasModel, Weights};
use plimsoll_formats::tensor::Tensor;
use serde_json::Value;

/// Moments that Keras keeps one after the other: for each weight, one of each name. Names are those of the states of
/// our optimizers.
type Group = &'static [&'static str];

/// A layer with the tensors of its weights.
type LayerTensors<'a> = (&'a Pending, Vec<Tensor>);

/// The state that a file has for an optimizer of ours, or a note if it has one that cannot be mapped. Layers are in
/// order.
pub(super) fn read(saved: &KerasModel, layers: &[LayerTensors<'_>]) -> Parsed<Option<OptimizerState>> {
    let variables = variables(&saved.weights);
    let compiled = saved.compile_config.as_ref().unwrap_or(&Value::Null);
    let config = compiled.get("optimizer").or_else(|| compiled.get("optimizer_config")).unwrap_or(&Value::Null);
    let class = config["class_name"].as_str().unwrap_or("unknown");
    // An optimizer that has made no step has nothing to continue with.
    if steps(&variables).is_ok_and(|steps| steps == 0) || variables.is_empty() {
        return Ok(None);
    }
    let because = |what: String| format!("the state of the optimizer {class} ({} tensors) is not imported: {what}", variables.len());
    let keras_2 =
        matches!(saved.weights, Weights::Legacy(_)) && saved.keras_version.as_ref().is_none_or(|version| version.starts_with('2'));
    if keras_2 {
        return Err(because("a version before Keras 3 wrote it, in another order".to_string()));
    }
    map(&variables, class, &config["config"], layers).map(Some).map_err(because)
}

/// The variables of the optimizer in order.
fn variables(source: &Weights) -> Vec<Tensor> {
    match source {
        Weights::None => Vec::new(),
        Weights::Paths(file) => (0..).map_while(|index| file.dataset(&format!("optimizer/vars/{index}")).cloned()).collect(),
        Weights::Legacy(file) => file.optimizer().into_iter().map(|(_, tensor)| tensor).collect(),
    }
}

fn steps(variables: &[Tensor]) -> Parsed<u64> {
    let count = variables.first().ok_or("it is empty")?.integers(1).map_err(|error| error.to_string())?;
    count.first().and_then(|count| u64::try_from(*count).ok()).ok_or_else(|| "its first tensor is not a number of steps".to_string())
}

/// The moments of an optimizer, in the order in which Keras builds them.
fn groups(class: &str, config: &Value) -> Option<Vec<Group>> {
    let positive = |key: &str| config[key].as_f64().is_some_and(|number| number > 0.0);
    Some(match class.to_ascii_lowercase().as_str() {
        "sgd" if positive("momentum") => vec![&["velocity"]],
        "sgd" => Vec::new(),
        "adam" | "adamw" | "nadam" => vec![&["mean", "square"]],
        "rmsprop" => {
            let momentum: Option<Group> = positive("momentum").then_some(&["velocity"]);
            let centered: Option<Group> = (config["centered"] == Value::Bool(true)).then_some(&["mean"]);
            [Some(&["square"] as Group), momentum, centered].into_iter().flatten().collect()
        }
        "adagrad" => vec![&["sum"]],
        "lion" => vec![&["mean"]],
        _ => return None,
    })
}

fn map(variables: &[Tensor], class: &str, config: &Value, layers: &[LayerTensors<'_>]) -> Parsed<OptimizerState> {
    let groups = groups(class, config).ok_or("there is no such optimizer here")?;
    let count = layers.iter().flat_map(|(pending, _)| pending.trained()).filter(|trained| *trained).count();
    let flag = |key: &str| usize::from(config[key] == Value::Bool(true));
    // A learning rate that a schedule computes is no variable.
    let first = if config["learning_rate"].is_object() { 1 } else { 2 };
    // Averages of the weights and sums of gradients come first; maxima of Adam and the product of Nadam last.
    let before = count * (flag("use_ema") + usize::from(config["gradient_accumulation_steps"].is_number()));
    let after = count * flag("amsgrad");
    let own: usize = groups.iter().map(|group| group.len() * count).sum();
    let wanted = first + before + own + after;
    if variables.len() != wanted && variables.len() != wanted + usize::from(class == "Nadam") {
        return Err(format!("{wanted} are expected for {count} trained weights"));
    }
    let mut slots = ImportedWeights::default();
    let mut start = first + before;
    for group in groups {
        for (position, name) in group.iter().enumerate() {
            let mut moments = (0..count).map(|weight| &variables[start + weight * group.len() + position]);
            for (pending, tensors) in layers {
                // Statistics have no moments; they only fill their places.
                let of = |(trained, tensor): (bool, &Tensor)| {
                    let moment = if trained { moments.next().expect("counted above") } else { tensor };
                    match moment.shape == tensor.shape {
                        true => Ok(moment.clone()),
                        false => Err(format!("`{}` has a weight of {:?} with a moment of {:?}", pending.layer, tensor.shape, moment.shape)),
                    }
                };
                let own = pending.trained().zip(tensors).map(of).collect::<Parsed<Vec<Tensor>>>()?;
                for (weight, assembly) in (pending.built.assemble)(&own) {
                    slots.insert(format!("{}/{weight}/{name}", pending.layer), assembly);
                }
            }
        }
        start += group.len() * count;
    }
    Ok(OptimizerState { steps: steps(variables)?, slots })
}
