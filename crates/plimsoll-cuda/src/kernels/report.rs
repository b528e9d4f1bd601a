//! The results of a run that the host reads.

use super::{Argument, Kernel};
use std::fmt::Write;

/// Writes a run's scalar outputs to host memory, followed by a flag whether the loss was finite in this and all earlier
/// runs. Its inputs are the scalars; `guarded` means that the loss must be finite.
pub(crate) fn report(numbers: usize, guarded: bool) -> Kernel {
    let mut parameters: Vec<(String, Argument)> = (0..numbers).map(|i| (format!("const float* in{i}"), Argument::Input(i))).collect();
    parameters.push(("float* numbers".to_string(), Argument::Results));
    parameters.push(("int* alarm".to_string(), Argument::NonFiniteFlag));
    let mut body = String::new();
    for i in 0..numbers {
        let _ = writeln!(body, "numbers[{}] = *in{i};", i + 1);
    }
    if guarded {
        parameters.push(("const float* loss".to_string(), Argument::Loss));
        body += "if (!is_finite(*loss)) *alarm = 1;\n";
    }
    body += "numbers[0] = *alarm ? 1.0f : 0.0f;\n";
    Kernel { name: "report", what: "results for the host".to_string(), parameters, body, grid: [1, 1, 1], threads: 1 }
}
