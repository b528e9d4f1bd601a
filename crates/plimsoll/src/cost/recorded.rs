//! The rates a run was planned with, as its `plan.json` records them: a run that is resumed is planned with the same
//! ones, whatever other runs have refined since. Another choice of micro-batches would change the order of sums.

use super::{Correction, CostTable};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The key of the correction in the document of a plan.
const CORRECTION: &str = "rate_correction";

/// The rates of an earlier plan.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedRates {
    /// Built-in ones.
    BuiltIn,
    /// Measured ones with this correction.
    Measured(Correction),
}

/// The rates that a plan in a file was made with; none if there is no such file or it does not say.
pub fn recorded_rates(plan: &Path) -> Option<RecordedRates> {
    let document: Value = serde_json::from_str(&fs::read_to_string(plan).ok()?).ok()?;
    match document["predicted_by"].as_str()? {
        "built-in rates" => Some(RecordedRates::BuiltIn),
        _ => {
            let recorded =
                document.get(CORRECTION).map_or(Some(Correction::default()), |recorded| serde_json::from_value(recorded.clone()).ok());
            recorded.filter(Correction::is_valid).map(RecordedRates::Measured)
        }
    }
}

/// Adds the correction of the rates to the document of a plan.
pub(crate) fn record_rates(mut document: Value, costs: Option<&CostTable>) -> Value {
    if let Some(correction) = costs.map(CostTable::correction).filter(|correction| !correction.is_none()) {
        document[CORRECTION] = json!(correction);
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_which_rates_it_was_made_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        assert_eq!(recorded_rates(&path), None);
        let correction = Correction { overall: 0.8, classes: [("matmul aᵀ".to_string(), 1.3)].into() };
        let measured = || json!({ "predicted_by": "measured speeds" });
        let corrected = CostTable::default().with_correction(correction.clone());
        let cases = [
            (json!({ "predicted_by": "built-in rates" }), Some(RecordedRates::BuiltIn)),
            (record_rates(measured(), None), Some(RecordedRates::Measured(Correction::default()))),
            (record_rates(measured(), Some(&CostTable::default())), Some(RecordedRates::Measured(Correction::default()))),
            (record_rates(measured(), Some(&corrected)), Some(RecordedRates::Measured(correction))),
            (json!({ "predicted_by": "measured speeds", "rate_correction": { "overall": 0.0, "classes": {} } }), None),
            (json!({}), None),
        ];
        for (document, rates) in cases {
            fs::write(&path, document.to_string()).unwrap();
            assert_eq!(recorded_rates(&path), rates, "{document}");
        }
    }
}
