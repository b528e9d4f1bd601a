//! Every op: gradients against finite differences, passes against the graph as written, plans against the checker.

use crate::support::{PAPER, assert_sound};
use plimsoll_core::Op;
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::layout;
use plimsoll_core::selftest::{Case, Failure, cases, check_gradient, check_passes, name_in_table};
use plimsoll_core::step::Role;

const SEEDS: std::ops::Range<u64> = 0..2;

fn every_case_holds(check: fn(&Case) -> Result<f64, Failure>) {
    let failures: Vec<String> = SEEDS.flat_map(cases).filter_map(|case| check(&case).err()).map(|failure| failure.to_string()).collect();
    assert!(failures.is_empty(), "{} cases do not hold:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn gradients_match_finite_differences() {
    every_case_holds(check_gradient);
}

#[test]
fn passes_change_no_result() {
    every_case_holds(check_passes);
}

#[test]
fn every_case_of_an_op_contains_it() {
    for case in cases(0) {
        let contains = |op: &Op| name_in_table(op) == case.op;
        assert!(case.graph.nodes().any(|(_, node)| contains(&node.op)), "{}: {}", case.op, case.name);
    }
}

#[test]
fn every_plan_passes_the_checker() {
    for case in SEEDS.flat_map(cases) {
        let graph = case.with_gradients().unwrap().unwrap_or_else(|| case.graph.clone());
        let improved = optimize(&graph).unwrap();
        for graph in [graph, improved] {
            assert_sound(&layout(&[(Role::Step, graph)], case.rows, &PAPER).unwrap());
        }
    }
}
