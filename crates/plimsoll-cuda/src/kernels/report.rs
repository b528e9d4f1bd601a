//! The results of a run that the host reads.

use super::{Argument, Kernel};
use std::fmt::Write;
use std::ops::Range;

/// Kernels around a sum over ranks of one number: it tells how many of them had a loss that is not finite, in this or
/// an earlier run, and all of them remember that.
pub(crate) fn alarm_of_ranks(cell: Argument) -> [Kernel; 2] {
    let kernel = |what: &str, parameters: Vec<(&str, Argument)>, body: &str| Kernel {
        name: "alarm",
        what: what.to_string(),
        parameters: parameters.into_iter().map(|(text, argument)| (text.to_string(), argument)).collect(),
        body: body.to_string(),
        grid: [1, 1, 1],
        threads: 1,
    };
    let own = [("float* cell", cell), ("const int* alarm", Argument::NonFiniteFlag), ("const float* loss", Argument::Loss)];
    let all = [("const float* cell", cell), ("int* alarm", Argument::NonFiniteFlag)];
    [
        kernel("whether the loss of this rank is not finite", own.to_vec(), "*cell = *alarm || !is_finite(*loss) ? 1.0f : 0.0f;\n"),
        kernel("whether the loss of any rank is not finite", all.to_vec(), "if (*cell != 0.0f) *alarm = 1;\n"),
    ]
}

/// Before a rank's new shard of a state is gathered: after a loss that is not finite it is the old one, so that the
/// state stays as it is. Its input and output of this number are the shard and the state, of which it has these
/// elements.
pub(crate) fn keep_shard(number: usize, own: Range<usize>) -> Kernel {
    let (count, start) = (own.len(), 4 * own.start);
    Kernel {
        name: "keep_shard",
        what: format!("{count} elements that stay as they are after a loss that is not finite"),
        parameters: vec![
            ("float* shard".to_string(), Argument::Input(number)),
            ("const float* state".to_string(), Argument::OutputAt(number, start)),
            ("const int* alarm".to_string(), Argument::NonFiniteFlag),
        ],
        body: format!(
            "if (*alarm == 0) return;\n\
             for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < {count}ll; i += gridDim.x * (long long)blockDim.x)\n    \
             shard[i] = state[i];\n"
        ),
        grid: [count.div_ceil(256).min(1024) as u32, 1, 1],
        threads: 256,
    }
}

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
