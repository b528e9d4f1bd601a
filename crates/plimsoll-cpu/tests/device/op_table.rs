//! Every op of the table, forward and backward, against the reference.

use plimsoll_core::Device;
use plimsoll_core::plan::Target;
use plimsoll_core::selftest::{Case, Failure, cases, check_device_gradient, check_forward};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

fn every_case_holds(check: fn(&Case, &Arc<dyn Device>) -> Result<f64, Failure>) {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2).unwrap());
    let failures: Vec<String> = (0..3).flat_map(cases).filter_map(|case| check(&case, &device).err()).map(|f| f.to_string()).collect();
    assert!(failures.is_empty(), "{} cases do not hold:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn results_match_the_reference() {
    every_case_holds(check_forward);
}

#[test]
fn gradients_match_the_reference() {
    every_case_holds(check_device_gradient);
}

/// A plan for more rows holds for fewer only if no kernel wants more scratch for fewer.
#[test]
fn workspaces_never_shrink_with_the_rows() {
    let device = CpuDevice::new(3).unwrap();
    for case in cases(0) {
        let graph = case.with_gradients().unwrap().unwrap_or_else(|| case.graph.clone());
        for (_, node) in graph.nodes() {
            let sizes: Vec<u64> = [0, 1, 2, 3, 7, 32, 33, 500, 4096, 100_000].map(|rows| device.workspace(&graph, node, rows).0).to_vec();
            assert!(sizes.is_sorted(), "{} of {}: {sizes:?}", node.op.rules().name(), case.name);
        }
    }
}
