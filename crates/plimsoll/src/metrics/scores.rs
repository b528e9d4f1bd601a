//! Values of loss and metrics by name.

use serde_json::Value;

/// Loss and metrics over some rows.
///
/// ```
/// use plimsoll::Scores;
/// let scores = Scores { loss: 0.5, accuracy: Some(0.75), more: vec![("f1".to_string(), 0.7)], per_class: vec![] };
/// assert_eq!(scores.get("f1"), Some(0.7));
/// assert_eq!(scores.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["loss", "accuracy", "f1"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The mean loss per row.
    pub loss: f64,
    /// The accuracy, if it is among the metrics.
    pub accuracy: Option<f64>,
    /// The other requested metrics, in order; known at the end of an epoch.
    pub more: Vec<(String, f64)>,
    /// Per-class values of macro-averaged metrics.
    pub per_class: Vec<(String, Vec<f64>)>,
}

impl Scores {
    /// All scalars by name, the loss first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let first = [("loss", self.loss)].into_iter().chain(self.accuracy.map(|accuracy| ("accuracy", accuracy)));
        first.chain(self.more.iter().map(|(name, value)| (name.as_str(), *value)))
    }

    /// Parses the object of [`Epoch::to_json`](crate::Epoch::to_json), where names have this prefix.
    pub(crate) fn from_json(object: &Value, prefix: &str) -> Option<Scores> {
        let number = |name: &str| object[format!("{prefix}{name}")].as_f64();
        let mut scores = Scores { loss: number("loss")?, accuracy: number("accuracy"), ..Scores::default() };
        for name in object["metrics"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            scores.more.extend(number(name).map(|value| (name.to_string(), value)));
            if let Some(values) = object[format!("{prefix}{name}_per_class")].as_array() {
                scores.per_class.push((name.to_string(), values.iter().filter_map(Value::as_f64).collect()));
            }
        }
        Some(scores)
    }

    /// The number of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}
