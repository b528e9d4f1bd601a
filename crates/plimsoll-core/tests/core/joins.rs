//! Tensors that are joined: what may be put and read where, who is found out, and what it saves.

use crate::device::Slow;
use plimsoll_core::expr::{Binary, Unary};
use plimsoll_core::graph::ValueId;
use plimsoll_core::ops::{Concat, Put, Strip};
use plimsoll_core::plan::{Joining, as_written, check_same, join, layout, layout_sequenced, prove};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Device, Graph, GraphError, Op, Shape, TensorType, verify};

const ROWS: usize = 3;

fn put(g: &mut Graph, part: ValueId, base: Option<ValueId>, start: usize, extent: usize) -> Result<ValueId, GraphError> {
    let inputs: Vec<ValueId> = [Some(part), base].into_iter().flatten().collect();
    g.add_one(Op::Put(Put { axis: 1, start, extent }), &inputs)
}

/// Two parts of equal length, brought together by `bring` and read.
fn of_two(bring: impl FnOnce(&mut Graph, ValueId, ValueId) -> Result<ValueId, GraphError>) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
        let (a, b) = (g.unary(Unary::Tanh, x)?, g.unary(Unary::Neg, x)?);
        let whole = bring(&mut g, a, b)?;
        let y = g.unary(Unary::Exp, whole)?;
        g.output("y", y);
        Ok(g)
    };
    build().expect("legal shapes")
}

fn refused(graph: &Graph) -> String {
    verify(graph).unwrap_err().to_string()
}

#[test]
fn nothing_is_read_before_it_was_put_nor_put_twice() {
    verify(&of_two(|g, a, b| put(g, a, None, 4, 8).and_then(|begun| put(g, b, Some(begun), 0, 8)))).unwrap();
    insta::assert_snapshot!(refused(&of_two(|g, a, _| put(g, a, None, 0, 8))), @"pointwise (node 4): reads %3, which is not all there");
    insta::assert_snapshot!(refused(&of_two(|g, a, b| put(g, a, None, 0, 8).and_then(|begun| put(g, b, Some(begun), 2, 8)))), @"put (node 4): puts something at 2 where something is");
    let strip = |start: usize| {
        of_two(|g, a, b| {
            let begun = put(g, a, None, 4, 8)?;
            let strip = g.add_one(Op::Strip(Strip { start, length: 4 }), &[begun])?;
            let seen = g.unary(Unary::Neg, strip)?;
            g.output("seen", seen);
            put(g, b, Some(begun), 0, 8)
        })
    };
    verify(&strip(4)).unwrap();
    insta::assert_snapshot!(refused(&strip(3)), @"strip (node 4): reads %3, which is not all there");
    let mut handed_over = of_two(|g, a, b| put(g, a, None, 0, 8).and_then(|begun| put(g, b, Some(begun), 4, 8)));
    let begun = handed_over.nodes().find(|(_, node)| matches!(node.op, Op::Put(_))).expect("there are two").1.outputs[0];
    handed_over.output("begun", begun);
    insta::assert_snapshot!(refused(&handed_over), @"%3 is handed over, but is a part of something or not all there");
}

#[test]
fn strips_are_read_only_by_what_can() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([6])));
    let y = g.unary(Unary::Neg, x).unwrap();
    let strip = g.add_one(Op::Strip(Strip { start: 0, length: 3 }), &[y]).unwrap();
    let mut joined = g.clone();
    joined.add(Op::Concat(Concat { axis: 1 }), &[strip, strip]).unwrap();
    insta::assert_snapshot!(refused(&joined), @"concat (node 3): reads a strip, which it cannot");
    let mut summed = g.clone();
    summed.reduce(plimsoll_core::ops::Reduction::Sum, strip, &[1]).unwrap();
    insta::assert_snapshot!(refused(&summed), @"sum (node 3): reads a strip, which it cannot");
    g.unary(Unary::Neg, strip).unwrap();
    verify(&g).unwrap();
}

#[test]
fn parts_in_other_places_are_found_out() {
    let device = Slow { broken: None };
    let same = |planned: &Graph| check_same(&of_two(|g, a, b| g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])), planned, &device, ROWS);
    same(&of_two(|g, a, b| put(g, b, None, 4, 8).and_then(|begun| put(g, a, Some(begun), 0, 8)))).unwrap();
    same(&of_two(|g, a, b| put(g, b, None, 0, 8).and_then(|begun| put(g, a, Some(begun), 4, 8)))).unwrap_err();
    same(&of_two(|g, a, _| put(g, a, None, 0, 8).and_then(|begun| put(g, a, Some(begun), 4, 8)))).unwrap_err();
    same(&of_two(|g, a, b| {
        let whole = g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])?;
        put(g, a, Some(whole), 4, 8)
    }))
    .unwrap_err();
    // Joining what was joined is joining all at once; a strip is what lies under it, and nothing that lies elsewhere.
    let nested = |start: Option<usize>| {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
        let (a, b, c) = (g.unary(Unary::Tanh, x).unwrap(), g.unary(Unary::Neg, x).unwrap(), g.unary(Unary::Exp, x).unwrap());
        let (first, all) = match start {
            None => {
                let first = g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b]).unwrap();
                (first, g.add_one(Op::Concat(Concat { axis: 1 }), &[first, c]).unwrap())
            }
            Some(start) => {
                let begun = put(&mut g, a, None, 0, 12).unwrap();
                let begun = put(&mut g, b, Some(begun), 4, 12).unwrap();
                let all = put(&mut g, c, Some(begun), 8, 12).unwrap();
                (g.add_one(Op::Strip(Strip { start, length: 8 }), &[all]).unwrap(), all)
            }
        };
        let (first, all) = (g.unary(Unary::Abs, first).unwrap(), g.unary(Unary::Abs, all).unwrap());
        g.output("first", first);
        g.output("all", all);
        g
    };
    check_same(&nested(None), &nested(Some(0)), &device, ROWS).unwrap();
    check_same(&nested(None), &nested(Some(4)), &device, ROWS).unwrap_err();
    check_same(&nested(None), &nested(Some(2)), &device, ROWS).unwrap_err();
}

/// Branches of one tensor that are joined, each by a product and ReLU, and several readers of what is joined.
fn branches() -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([16])));
        let mut parts = Vec::new();
        for i in 0..4 {
            let scaled = g.map(x, |e, x| e.mul(x, e.constant(i as f32)))?;
            parts.push(g.map(scaled, |e, x| e.unary(Unary::Exp, e.binary(Binary::Max, x, e.constant(0.0))))?);
        }
        let whole = g.add_one(Op::Concat(Concat { axis: 1 }), &parts)?;
        for name in ["sum", "other"] {
            let result = g.reduce(plimsoll_core::ops::Reduction::LogSumExp, whole, &[0])?;
            let result = g.map(result, |e, x| e.mul(x, e.constant(name.len() as f32)))?;
            g.output(name, result);
        }
        Ok(g)
    };
    build().expect("legal shapes")
}

/// No scratch, so that the bytes are those of tensors.
#[test]
fn a_part_is_gone_when_it_was_put() {
    const ROWS: usize = 16;
    let device = crate::support::PAPER;
    let graph = plimsoll_core::passes::optimize(&branches()).unwrap();
    let copied = layout_sequenced(vec![(Role::Step, as_written(&graph, ROWS, &device).unwrap())], ROWS, &device).unwrap();
    let plan = layout(&[(Role::Step, graph.clone())], ROWS, &device).unwrap();
    assert_eq!(plan.programs[0].graph.joining(), Joining::Putting);
    let size = |width: usize| Bytes((4 * ROWS * width) as u64).align_up(device.alignment().0);
    assert_eq!((copied.lower_bound, plan.lower_bound), (size(64) + size(64), size(64) + size(16)));
    prove(&plan.certificate(), &[(Role::Step, graph.clone())], &device).unwrap();
    // What the certificate says of its joins is part of the proof.
    let mut edited = plan.certificate();
    edited.programs[0].joining = Joining::Copying;
    prove(&edited, &[(Role::Step, graph.clone())], &device).unwrap_err();
    let mut edited = copied.certificate();
    edited.programs[0].joining = Joining::Putting;
    prove(&edited, &[(Role::Step, graph.clone())], &device).unwrap_err();
    assert!(join(&graph, Joining::Copying, &[], &device).is_none());
    assert!(join(&graph, Joining::Sharing, &[], &device).is_none(), "this device reads no strips");
}
