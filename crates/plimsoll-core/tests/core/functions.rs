//! The gradients of functions against those of graphs, for every op of the table.

use plimsoll_core::autodiff::gradients;
use plimsoll_core::function::Function;
use plimsoll_core::graph::Node;
use plimsoll_core::op::Op;
use plimsoll_core::{Graph, TensorType, ValueId, reference, selftest};
use std::collections::BTreeSet;

/// Ops that passes and the planner make after gradients were taken.
fn is_planned(op: &Op) -> bool {
    matches!(op, Op::Store(_) | Op::Load(_) | Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::ChannelView(_) | Op::BatchSlice(_))
        || op.is_onto()
        || matches!(op, Op::Reduce(op) if !op.expr.is_identity())
        || matches!(op, Op::MatMul(op) if op.epilogue.is_some())
        || matches!(op, Op::Conv2d(op) if op.epilogue.is_some())
}

/// Numbers without a pattern; integers are small.
fn numbers(ty: &TensorType, rows: usize, seed: usize) -> Vec<f64> {
    let count = ty.shape.elements().bind(rows);
    let number = |i: usize| if ty.dtype.is_float() { ((i * 37 + seed * 11 + 5) % 29) as f64 / 16.0 + 0.1 } else { (i % 3) as f64 };
    (0..count).map(number).collect()
}

#[test]
fn vector_jacobian_products_are_the_gradients_of_the_graph() {
    let (mut compared, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for case in selftest::cases(3) {
        // The other ops of a case have their own rows of the table.
        let own = |node: &Node| selftest::name_in_table(&node.op) == case.op && !node.op.is_leaf() && !is_planned(&node.op);
        for (_, node) in case.graph.nodes().filter(|(_, node)| own(node)) {
            match compare(&case.graph, node, case.rows) {
                Some(()) => compared.insert(node.op.rules().name()),
                None => refused.insert(node.op.rules().name()),
            };
        }
    }
    let known = ["pointwise", "matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_filter", "attention", "gather", "concat", "logsumexp"];
    assert!(known.iter().all(|op| compared.contains(op)), "{compared:?}");
    assert_eq!(
        refused.into_iter().collect::<Vec<_>>(),
        ["all_gather", "all_reduce", "attention_grad", "max_pool_grad", "pairwise_sum", "recurrent_grad", "reduce_scatter", "shard"]
    );
}

/// Compares the gradients of one node. None if it has none, which both ways must say in the same words.
fn compare(from: &Graph, node: &Node, rows: usize) -> Option<()> {
    let types: Vec<TensorType> = node.inputs.iter().map(|value| from.ty(*value).clone()).collect();
    let results: Vec<TensorType> = node.outputs.iter().map(|value| from.ty(*value).clone()).collect();
    let constant: &[usize] = if matches!(node.op, Op::Attention(_) | Op::Recurrent(_)) { &[1] } else { &[] };
    let seeds: Vec<usize> = (0..results.len()).filter(|i| results[*i].dtype.is_float() && !constant.contains(i)).collect();
    let wants: Vec<bool> = types.iter().map(|ty| ty.dtype.is_float()).collect();
    if seeds.is_empty() || !wants.contains(&true) {
        return Some(());
    }
    let declare = |g: &mut Graph| -> (Vec<ValueId>, Vec<ValueId>) {
        let inputs = types.iter().enumerate().map(|(i, ty)| g.input(&format!("x{i}"), ty.clone())).collect();
        (inputs, seeds.iter().map(|i| g.input(&format!("weight of {i}"), results[*i].clone())).collect())
    };
    let wrt: Vec<usize> = (0..types.len()).filter(|i| wants[*i]).collect();

    let mut whole = Graph::new();
    let (inputs, weights) = declare(&mut whole);
    let outputs = whole.add(node.op.clone(), &inputs).unwrap();
    let mut loss = None;
    for (i, weight) in seeds.iter().zip(&weights) {
        let weighted = whole.times(outputs[*i], *weight).unwrap();
        let sum = whole.sum(weighted).unwrap();
        loss = Some(loss.map_or(sum, |loss| whole.plus(loss, sum).unwrap()));
    }
    let expected = gradients(&mut whole, loss.expect("there is a seed"), &wrt.iter().map(|i| inputs[*i]).collect::<Vec<_>>());

    let function = Function::new(&types, 0, |g, inputs, _| g.add(node.op.clone(), inputs)).unwrap();
    let vjp = match (function.vjp(&wants, constant), expected) {
        (Err(ours), Err(graphs)) => {
            assert_eq!(ours.what, graphs.what);
            return None;
        }
        (ours, graphs) => {
            graphs.unwrap().iter().enumerate().for_each(|(i, value)| whole.output(&format!("gradient {}", wrt[i]), *value));
            ours.unwrap()
        }
    };
    let mut called = Graph::new();
    let (inputs, weights) = declare(&mut called);
    let outputs = function.call(&mut called, &inputs, &[]).unwrap();
    let arguments = vjp.arguments.iter().map(|i| inputs[*i]).chain(vjp.results.iter().map(|i| outputs[*i])).chain(weights);
    let found = vjp.function.call(&mut called, &arguments.collect::<Vec<_>>(), &[]).unwrap();
    found.iter().zip(&vjp.wrt).for_each(|(value, i)| called.output(&format!("gradient {i}"), *value));

    let columns: Vec<Vec<f64>> =
        types.iter().chain(seeds.iter().map(|i| &results[*i])).enumerate().map(|(seed, ty)| numbers(ty, rows, seed)).collect();
    let (want, got) = (
        reference::run(&whole, rows, &columns, &[], &[], &Default::default()),
        reference::run(&called, rows, &columns, &[], &[], &Default::default()),
    );
    for (name, want) in want.outputs() {
        // Without a path to an argument, its gradient is zero.
        let zeros = vec![0.0; want.len()];
        let got = got.output(name).unwrap_or(&zeros);
        let largest = want.iter().fold(1.0f64, |largest, number| largest.max(number.abs()));
        for (want, got) in want.iter().zip(got) {
            let close = (want - got).abs() <= 1e-9 * largest || want.is_nan() && got.is_nan() || want == got;
            assert!(close, "{}: {name} is {got} instead of {want}", node.op.rules().name());
        }
    }
    Some(())
}
