//! The columns that the outputs of a model predict: their names, classes and units.

use crate::output_loss::OutputLosses;
use crate::preprocessing::Preprocessing;

/// What an output of a model predicts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputColumns {
    /// The names of its values, if they are columns of a table: those of a forecast end in the rows ahead.
    pub names: Vec<String>,
    /// The names of its classes, if the data has them.
    pub classes: Vec<String>,
    /// What maps predictions to the units of the data, for each column: offset and factor. Empty if they stay as they
    /// are.
    pub(crate) scales: Vec<(f64, f64)>,
}

impl OutputColumns {
    /// Maps predictions, row after row, to the units of the data.
    pub(crate) fn rescale(&self, values: &mut [f32]) {
        if self.scales.is_empty() {
            return;
        }
        // Labels of several time steps repeat the same columns.
        let scales = self.scales.iter().cycle();
        values.iter_mut().zip(scales).for_each(|(value, (offset, factor))| *value = (f64::from(*value) * factor + offset) as f32);
    }
}

/// The columns that each output of a model predicts.
#[derive(Clone, Debug, Default)]
pub struct ModelColumns {
    /// By label column.
    labels: Vec<(String, OutputColumns)>,
    /// The label columns of outputs, where a loss names them.
    named: Vec<(Option<String>, String)>,
}

impl ModelColumns {
    /// Those of a model with these losses that was trained on data with this preprocessing; `ahead` are the rows ahead
    /// of a forecast.
    pub(crate) fn new(fitted: &Preprocessing, ahead: &[usize], losses: &OutputLosses) -> ModelColumns {
        let of = |columns: &[String]| {
            let names = match ahead {
                [] | [1] => columns.to_vec(),
                _ => ahead.iter().flat_map(|ahead| columns.iter().map(move |column| format!("{column}+{ahead}"))).collect(),
            };
            OutputColumns { names, classes: fitted.classes_of(columns), scales: fitted.inverses_of(columns) }
        };
        let mut labels: Vec<(String, OutputColumns)> = fitted.outputs.iter().map(|(name, columns)| (name.clone(), of(columns))).collect();
        if fitted.columns.is_empty() && fitted.targets.len() > 1 {
            // Arrays, each a label of its own.
            labels.extend(fitted.targets.iter().map(|target| (target.clone(), of(std::slice::from_ref(target)))));
        } else if !fitted.targets.is_empty() || labels.is_empty() {
            let mut targets = of(&fitted.targets);
            if targets.classes.is_empty() {
                targets.classes = fitted.classes.clone();
            }
            labels.push(("y".to_string(), targets));
        }
        let named = match losses {
            OutputLosses::Only(loss) => loss.labels.iter().map(|labels| (None, labels.clone())).collect(),
            OutputLosses::Named(all) => all.iter().filter_map(|(name, loss)| Some((Some(name.clone()), loss.labels.clone()?))).collect(),
        };
        ModelColumns { labels, named }
    }

    /// Those of the output of this name.
    pub fn of(&self, output: &str) -> OutputColumns {
        let named = self.named.iter().find(|(name, _)| name.as_deref().is_none_or(|name| name == output));
        let wanted = named.map_or(output, |(_, labels)| labels);
        let found = self.labels.iter().find(|(name, _)| name == wanted);
        // The only labels are those of the only output, whatever its name.
        let only = || self.labels.first().filter(|_| self.labels.len() == 1);
        found.or_else(only).map(|(_, columns)| columns.clone()).unwrap_or_default()
    }

    /// Those of the first labels.
    pub(crate) fn first(&self) -> OutputColumns {
        self.labels.first().map(|(_, columns)| columns.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Loss;
    use crate::output_loss::OutputLoss;
    use plimsoll_data::source::{ColumnKind, Encoding, FittedColumn};

    fn table() -> Preprocessing {
        let normalized = FittedColumn { encoding: Encoding::Normalize { mean: 100.0, std: 20.0 }, ..FittedColumn::number("price") };
        let rescaled = FittedColumn { encoding: Encoding::Rescale { scale: 0.01, offset: 1.0 }, ..FittedColumn::number("area") };
        let (vocabulary, output) = (vec!["flat".to_string(), "house".to_string()], plimsoll_data::source::Output::Int);
        let lookup = Encoding::Lookup { vocabulary, integers: false, mask: None, oov: 1, output };
        let class = FittedColumn { kind: ColumnKind::Category, encoding: lookup, ..FittedColumn::number("kind") };
        Preprocessing { columns: vec![normalized, rescaled, class], ..Preprocessing::default() }
    }

    #[test]
    fn outputs_have_the_units_and_classes_of_their_labels() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let outputs = vec![("cost".to_string(), names(&["price", "area"])), ("what".to_string(), names(&["kind"]))];
        let fitted = Preprocessing { outputs, ..table() };
        let losses = OutputLosses::Named(vec![
            ("a".to_string(), OutputLoss::new(Loss::MeanSquaredError).labels("cost")),
            ("what".to_string(), OutputLoss::new(Loss::SoftmaxCrossEntropy)),
        ]);
        let columns = ModelColumns::new(&fitted, &[], &losses);
        let (cost, what) = (columns.of("a"), columns.of("what"));
        assert_eq!((&cost.names, &what.classes), (&names(&["price", "area"]), &names(&["[UNK]", "flat", "house"])));
        let mut values = [1.0, 2.0, -1.0, 1.5];
        cost.rescale(&mut values);
        assert_eq!(values, [120.0, 100.0, 80.0, 50.0]);
        what.rescale(&mut values);
        assert_eq!(values[0], 120.0, "classes have no units");
        assert_eq!(columns.of("other"), OutputColumns::default());
    }

    #[test]
    fn the_only_labels_are_those_of_the_only_output() {
        let fitted = Preprocessing { targets: vec!["price".to_string()], ..table() };
        let columns = ModelColumns::new(&fitted, &[1, 6], &OutputLosses::Only(Loss::MeanSquaredError.into()));
        assert_eq!(columns.of("dense").names, ["price+1", "price+6"]);
        assert_eq!(columns.first(), columns.of("dense"));
    }
}
