//! The generated source of a program's kernels, without compiling them.

use super::lower::{LoweredOp, Lowering, guarding_loss};
use super::{assembly, groups, pairs};
use crate::algorithms::convolution::Convolutions;
use crate::kernels::PRELUDE;
use plimsoll_core::plan::{Plan, Program};
use std::collections::HashSet;

/// The source of every kernel that a program can use for `rows` rows, with all libraries: each text is complete.
pub(crate) fn kernel_sources(plan: &Plan, program: &Program, rows: usize, convolutions: Convolutions) -> Result<Vec<String>, String> {
    let graph = &program.graph;
    let lowering =
        Lowering { plan, program, rows, loss: guarding_loss(graph), library: true, cudnn: true, convolutions, tensor_cores: true, rank: 0 };
    let (mut known, mut names, mut sources) = (HashSet::new(), HashSet::new(), Vec::new());
    let (pairs, groups) = (pairs::pairs(&lowering), groups::groups(&lowering));
    for (step, id) in program.order.iter().enumerate() {
        let node = graph.node(*id);
        let pair = pairs.iter().find(|pair| pair.first == step);
        let paired = pair.map(|pair| pairs::lower(&lowering, node, graph.node(program.order[pair.second])));
        let grouped = groups.get(&step).map(|steps| groups::lower(&lowering, steps, false));
        let kernels = lowering.lower(node, false, false)?.into_iter().chain(paired).chain(grouped).flat_map(LoweredOp::into_kernels);
        for kernel in kernels.filter(|kernel| known.insert(kernel.source(""))) {
            let name = assembly::unique(assembly::kernel_name(kernel.name, &node.scope), &mut names);
            sources.push(format!("{PRELUDE}\n{}", kernel.source(&name)));
        }
    }
    Ok(sources)
}
