//! What fits under a limit by recomputation alone, and what it costs: `cargo bench -p plimsoll-core --bench recompute`.

mod networks;
mod paper;

use plimsoll_core::graph::{Graph, StateKind};
use plimsoll_core::plan::recompute::{Effort, FitError, Rates, fit};
use plimsoll_core::plan::{layout, layout_sequenced};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, GraphError};
use std::time::Instant;

fn main() -> Result<(), GraphError> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()));
    let device = paper::Paper;
    type Case = (&'static str, fn() -> Result<Graph, GraphError>, usize, &'static [f64]);
    let cases: [Case; 3] = [
        ("resnet50", networks::resnet50, 184, &[20.0, 12.0, 8.01, 6.00, 4.99, 4.0, 3.5]),
        ("unet", || networks::unet(416, 608), 11, &[12.0, 9.0, 7.00, 5.01, 4.5]),
        ("vgg16", || networks::vgg([2, 2, 3, 3, 3]), 176, &[12.0, 8.0, 5.51]),
    ];
    for (name, build, rows, limits) in cases.into_iter().filter(|(name, ..)| is_wanted(name)) {
        let graph = build()?;
        let kept = |kind: StateKind| graph.states().iter().filter(|state| state.kind == kind).map(|state| state.ty.bytes(1)).sum::<Bytes>();
        let weights = kept(StateKind::Parameter) + kept(StateKind::Statistic);
        let start = Instant::now();
        let plan = layout(&[(Role::Step, graph.clone())], rows, &device)?;
        println!(
            "{name} b{rows}: {} nodes, {:.2} GFLOP, weights {:.3} GB, free {:.3} GB, planned in {:.2} s",
            graph.nodes().len(),
            graph.flops(rows) as f64 / 1e9,
            weights.0 as f64 / 1e9,
            (plan.arena + weights).0 as f64 / 1e9,
            start.elapsed().as_secs_f64()
        );
        if std::env::var("PRINT").is_ok() {
            println!("{}", plan.programs[0].graph);
        }
        if std::env::var("PEAK").is_ok() {
            show_peak(&plan.programs[0]);
        }
        for limit in limits {
            let arena = Bytes((limit * 1e9) as u64 - weights.0);
            let start = Instant::now();
            let effort = std::env::var("EFFORT").ok().and_then(|e| e.parse().ok()).map_or(Effort::default(), Effort);
            let rates = if std::env::var("FLOPS").is_ok() {
                Rates { flops_per_s: 1e11, bytes_per_s: 1e15, step_s: 1e-6 }
            } else {
                Rates::default()
            };
            match fit(&graph, rows, &device, arena, &rates, effort) {
                Ok(found) => {
                    if std::env::var("STEPS").is_ok() {
                        let plan = layout_sequenced(vec![(Role::Step, found.clone())], rows, &device)?;
                        show_steps(&plan.programs[0], rows);
                    }
                    let again = &found.again;
                    println!(
                        "  {limit:>6.2} GB: {:>3} again, +{:.2} % FLOPs, +{:.2} % predicted time ({:.1} s), found in {:.2} s",
                        again.nodes.len(),
                        100.0 * again.flops_ratio(),
                        100.0 * again.extra_seconds / again.seconds,
                        again.seconds + again.extra_seconds,
                        start.elapsed().as_secs_f64()
                    );
                }
                Err(FitError::TooSmall { least, .. }) => {
                    println!("  {limit:>6.2} GB: needs {:.3} GB, {:.2} s", (least + weights).0 as f64 / 1e9, start.elapsed().as_secs_f64());
                }
                Err(FitError::Graph(error)) => return Err(error),
            }
        }
    }
    Ok(())
}

fn show_peak(program: &plimsoll_core::plan::Program) {
    let mut at: Vec<_> = program.at_peak().collect();
    at.sort_by_key(|b| std::cmp::Reverse(b.size));
    for b in at.iter().take(25) {
        println!("    {:>9.3} MB {:?} {} [{}..{}] {:?}", b.size.0 as f64 / 1e6, b.kind, b.owner, b.first, b.last, b.values);
    }
}

fn show_steps(program: &plimsoll_core::plan::Program, rows: usize) {
    for (t, id) in program.order.iter().enumerate() {
        let node = program.graph.node(*id);
        let held: u64 = program.buffers.iter().filter(|b| b.first as usize <= t && t <= b.last as usize).map(|b| b.size.0).sum();
        let again = if program.again.nodes.contains(id) { "AGAIN" } else { "" };
        println!(
            "    {t:>4} {:>9.1} MB {:>8.1} MB {:>8.2} GF {:?} {} {} {:?} <- {:?} {again}",
            held as f64 / 1e6,
            node.outputs.iter().map(|v| program.graph.ty(*v).bytes(rows).0).sum::<u64>() as f64 / 1e6,
            program.graph.node_flops(node, rows) as f64 / 1e9,
            node.phase,
            node.op.define().name(),
            node.scope,
            node.outputs.iter().map(|v| v.0).collect::<Vec<_>>(),
            node.inputs.iter().map(|v| v.0).collect::<Vec<_>>(),
        );
    }
}
