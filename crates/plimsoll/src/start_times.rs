//! Where the time until the first step goes.

use crate::system;
use plimsoll_core::Device;
use serde_json::{Value, json};
use std::time::Instant;

/// Seconds of the parts of a start. A run that continues in the memory of an earlier one has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartTimes {
    /// Opening the device, its libraries included.
    pub device_s: f64,
    /// Planning.
    pub plan_s: f64,
    /// Allocating memory and computing initial values.
    pub memory_s: f64,
    /// The first step, with loading its program.
    pub step_s: f64,
    /// From the start of the process to the end of the first step; none where the system does not tell.
    pub process_s: Option<f64>,
    /// What opening a GPU and loading programs took, by what it was spent on.
    pub details: Vec<(&'static str, f64)>,
}

impl StartTimes {
    /// The first step, which began at `began`, has ended on this device.
    pub(crate) fn end(&mut self, began: Instant, device: &dyn Device) {
        self.step_s = began.elapsed().as_secs_f64();
        self.process_s = system::process_age().map(|age| age.as_secs_f64());
        self.details = device.diagnostics().map(|device| device.start_seconds()).unwrap_or_default();
    }

    /// The times as one JSON object.
    pub fn to_json(&self) -> Value {
        let details: serde_json::Map<String, Value> =
            self.details.iter().map(|(name, seconds)| (name.to_string(), json!(seconds))).collect();
        json!({
            "device_s": self.device_s,
            "plan_s": self.plan_s,
            "memory_s": self.memory_s,
            "first_step_s": self.step_s,
            "process_s": self.process_s,
            "details_s": details,
        })
    }
}
