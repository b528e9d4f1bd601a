//! Loss and metrics as numbers with names.

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
    /// The share of right answers, if it is counted.
    pub accuracy: Option<f64>,
    /// The other metrics that were asked for, in their order; known at the end of an epoch.
    pub more: Vec<(String, f64)>,
    /// For metrics that are means over classes, the value of each class.
    pub per_class: Vec<(String, Vec<f64>)>,
}

impl Scores {
    /// All single numbers by name, the loss first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let first = [("loss", self.loss)].into_iter().chain(self.accuracy.map(|accuracy| ("accuracy", accuracy)));
        first.chain(self.more.iter().map(|(name, value)| (name.as_str(), *value)))
    }

    /// The number of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}
