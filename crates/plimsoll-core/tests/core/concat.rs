//! Tensors that are joined: what may be put and read where, who is found out, and what it saves.

use crate::device::Slow;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{ConcatStrategy, ValueId};
use plimsoll_core::ops::{ChannelView, Concat, FusedSliceWrite, Pointwise, SliceWrite};
use plimsoll_core::plan::{Target, as_written, check_equivalence, fuse_slice_writes, layout, layout_sequenced, prove, rewrite_concats};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Graph, GraphError, Op, Shape, TensorType, verify};

const ROWS: usize = 3;

fn put(g: &mut Graph, part: ValueId, base: Option<ValueId>, start: usize, extent: usize) -> Result<ValueId, GraphError> {
    let inputs: Vec<ValueId> = [Some(part), base].into_iter().flatten().collect();
    g.add_one(Op::SliceWrite(SliceWrite { axis: 1, start, extent }), &inputs)
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
    insta::assert_snapshot!(refused(&of_two(|g, a, _| put(g, a, None, 0, 8))), @"pointwise (node 4): reads %3, which is not completely written");
    insta::assert_snapshot!(refused(&of_two(|g, a, b| put(g, a, None, 0, 8).and_then(|begun| put(g, b, Some(begun), 2, 8)))), @"slice_write (node 4): writes at 2, which is written already");
    let strip = |start: usize| {
        of_two(|g, a, b| {
            let begun = put(g, a, None, 4, 8)?;
            let strip = g.add_one(Op::ChannelView(ChannelView { start, length: 4 }), &[begun])?;
            let seen = g.unary(Unary::Neg, strip)?;
            g.output("seen", seen);
            put(g, b, Some(begun), 0, 8)
        })
    };
    verify(&strip(4)).unwrap();
    insta::assert_snapshot!(refused(&strip(3)), @"channel_view (node 4): reads %3, which is not completely written");
    let mut handed_over = of_two(|g, a, b| put(g, a, None, 0, 8).and_then(|begun| put(g, b, Some(begun), 4, 8)));
    let begun = handed_over.nodes().find(|(_, node)| matches!(node.op, Op::SliceWrite(_))).expect("there are two").1.outputs[0];
    handed_over.output("begun", begun);
    insta::assert_snapshot!(refused(&handed_over), @"%3 is handed over, but is a channel view or not completely written");
}

#[test]
fn strips_are_read_only_by_what_can() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([6])));
    let y = g.unary(Unary::Neg, x).unwrap();
    let strip = g.add_one(Op::ChannelView(ChannelView { start: 0, length: 3 }), &[y]).unwrap();
    let mut joined = g.clone();
    joined.add(Op::Concat(Concat { axis: 1 }), &[strip, strip]).unwrap();
    insta::assert_snapshot!(refused(&joined), @"concat (node 3): reads a channel view, which it cannot");
    let mut summed = g.clone();
    summed.reduce(plimsoll_core::ops::Reduction::Sum, strip, &[1]).unwrap();
    insta::assert_snapshot!(refused(&summed), @"sum (node 3): reads a channel view, which it cannot");
    g.unary(Unary::Neg, strip).unwrap();
    verify(&g).unwrap();
}

#[test]
fn parts_in_other_places_are_found_out() {
    let device = Slow { broken: None };
    let same =
        |planned: &Graph| check_equivalence(&of_two(|g, a, b| g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])), planned, &device, ROWS);
    same(&of_two(|g, a, b| put(g, b, None, 4, 8).and_then(|begun| put(g, a, Some(begun), 0, 8)))).unwrap();
    same(&of_two(|g, a, b| put(g, b, None, 0, 8).and_then(|begun| put(g, a, Some(begun), 4, 8)))).unwrap_err();
    same(&of_two(|g, a, _| put(g, a, None, 0, 8).and_then(|begun| put(g, a, Some(begun), 4, 8)))).unwrap_err();
    same(&of_two(|g, a, b| {
        let whole = g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])?;
        put(g, a, Some(whole), 4, 8)
    }))
    .unwrap_err();
    // A concat of concats is one concat; a channel view is what it covers and nothing else.
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
                (g.add_one(Op::ChannelView(ChannelView { start, length: 8 }), &[all]).unwrap(), all)
            }
        };
        let (first, all) = (g.unary(Unary::Abs, first).unwrap(), g.unary(Unary::Abs, all).unwrap());
        g.output("first", first);
        g.output("all", all);
        g
    };
    check_equivalence(&nested(None), &nested(Some(0)), &device, ROWS).unwrap();
    check_equivalence(&nested(None), &nested(Some(4)), &device, ROWS).unwrap_err();
    check_equivalence(&nested(None), &nested(Some(2)), &device, ROWS).unwrap_err();
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
    assert_eq!(plan.programs[0].graph.joining(), ConcatStrategy::SliceWrite);
    let size = |width: usize| Bytes((4 * ROWS * width) as u64).align_up(device.capabilities().alignment.0);
    assert_eq!((copied.lower_bound, plan.lower_bound), (size(64) + size(64), size(64) + size(16)));
    prove(&plan.certificate(), &[(Role::Step, graph.clone())], &device).unwrap();
    // What the certificate says of its joins is part of the proof.
    let mut edited = plan.certificate();
    edited.programs[0].joining = ConcatStrategy::Copy;
    prove(&edited, &[(Role::Step, graph.clone())], &device).unwrap_err();
    let mut edited = copied.certificate();
    edited.programs[0].joining = ConcatStrategy::SliceWrite;
    prove(&edited, &[(Role::Step, graph.clone())], &device).unwrap_err();
    assert!(rewrite_concats(&graph, ConcatStrategy::Copy, &[], &device).is_none());
    assert!(rewrite_concats(&graph, ConcatStrategy::SharedBuffer, &[], &device).is_none(), "this device reads no channel views");
}

fn fused_write(g: &mut Graph, op: Unary, x: ValueId, base: Option<ValueId>, start: usize) -> Result<ValueId, GraphError> {
    let maker = Pointwise { expr: Expr::build(|e| e.unary(op, e.input(0))), shape: g.shape(x).clone(), dtypes: vec![DType::F32] };
    let inlay = FusedSliceWrite {
        producer: Box::new(Op::Pointwise(maker)),
        slice: SliceWrite { axis: 1, start, extent: 8 },
        has_base: base.is_some(),
    };
    g.add_one(Op::FusedSliceWrite(inlay), &base.into_iter().chain([x]).collect::<Vec<_>>())
}

/// As [`of_two`], with parts made of the column.
fn made_of_two(bring: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, GraphError>) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
        let whole = bring(&mut g, x)?;
        let y = g.unary(Unary::Exp, whole)?;
        g.output("y", y);
        Ok(g)
    };
    build().expect("legal shapes")
}

#[test]
fn parts_are_made_where_nothing_is_and_read_when_all_are_there() {
    let (tanh, neg) = (Unary::Tanh, Unary::Neg);
    let good = made_of_two(|g, x| fused_write(g, tanh, x, None, 4).and_then(|begun| fused_write(g, neg, x, Some(begun), 0)));
    verify(&good).unwrap();
    insta::assert_snapshot!(good.to_string(), @r#"
    %0 = input "x" : f32[B, 4]
    %1 = fused_slice_write {pointwise tanh(a), along axis 1, from 4 of 8} %0 : f32[B, 8]
    %2 = fused_slice_write {pointwise neg(a), along axis 1, from 0 of 8} %1, %0 : f32[B, 8]
    %3 = pointwise {exp(a)} %2 : f32[B, 8]
    output y = %3
    "#);
    insta::assert_snapshot!(refused(&made_of_two(|g, x| fused_write(g, tanh, x, None, 0))), @"pointwise (node 2): reads %1, which is not completely written");
    let over = made_of_two(|g, x| fused_write(g, tanh, x, None, 4).and_then(|begun| fused_write(g, neg, x, Some(begun), 2)));
    insta::assert_snapshot!(refused(&over), @"fused_slice_write (node 2): writes at 2, which is written already");
    // What is written into is not read by what writes there, not even where nothing is written.
    let strip = made_of_two(|g, x| {
        let begun = fused_write(g, tanh, x, None, 4)?;
        let strip = g.add_one(Op::ChannelView(ChannelView { start: 4, length: 4 }), &[begun])?;
        fused_write(g, neg, strip, Some(begun), 0)
    });
    insta::assert_snapshot!(refused(&strip), @"fused_slice_write (node 3): reads %2, which it writes into");
    let mut handed_over = good.clone();
    handed_over.output("begun", ValueId(1));
    insta::assert_snapshot!(refused(&handed_over), @"%1 is handed over, but is a channel view or not completely written");
}

#[test]
fn what_cannot_be_an_inlay_is_refused() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
    let mut refusal = |maker: Op, start: usize, has_base: bool, inputs: &[ValueId]| {
        let inlay = FusedSliceWrite { producer: Box::new(maker), slice: SliceWrite { axis: 1, start, extent: 8 }, has_base };
        g.add_one(Op::FusedSliceWrite(inlay), inputs).unwrap_err().to_string()
    };
    let expr = || Expr::build(|e| e.unary(Unary::Neg, e.input(0)));
    let neg = || Op::Pointwise(Pointwise { expr: expr(), shape: Shape::batch_of([4]), dtypes: vec![DType::F32] });
    insta::assert_snapshot!(refusal(Op::Concat(Concat { axis: 1 }), 0, false, &[x, x]), @"concat cannot be fused with a slice write");
    insta::assert_snapshot!(refusal(neg(), 5, false, &[x]), @"cannot write f32[B, 4] at 5 of 8 along axis 1");
    insta::assert_snapshot!(refusal(neg(), 0, true, &[x, x]), @"writes f32[B, 4] into f32[B, 8] and nothing else");
    insta::assert_snapshot!(refusal(neg(), 0, true, &[]), @"is missing the tensor it writes into");
    let two =
        Pointwise { expr: Expr::build_many(|e| vec![e.input(0), e.input(0)]), shape: Shape::batch_of([4]), dtypes: vec![DType::F32; 2] };
    insta::assert_snapshot!(refusal(Op::Pointwise(two), 0, false, &[x]), @"pointwise cannot be fused with a slice write");
}

#[test]
fn parts_made_in_other_places_are_found_out() {
    let device = Slow { broken: None };
    let original = made_of_two(|g, x| {
        let (a, b) = (g.unary(Unary::Tanh, x)?, g.unary(Unary::Neg, x)?);
        g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])
    });
    let same = |first: (Unary, usize), second: (Unary, usize)| {
        let planned = made_of_two(|g, x| {
            fused_write(g, first.0, x, None, first.1).and_then(|begun| fused_write(g, second.0, x, Some(begun), second.1))
        });
        check_equivalence(&original, &planned, &device, ROWS)
    };
    let (tanh, neg) = (Unary::Tanh, Unary::Neg);
    same((tanh, 0), (neg, 4)).unwrap();
    same((neg, 4), (tanh, 0)).unwrap();
    same((neg, 0), (tanh, 4)).unwrap_err();
    same((tanh, 0), (tanh, 4)).unwrap_err();
    same((tanh, 0), (Unary::Abs, 4)).unwrap_err();
    // A fused slice write beside a plain one.
    let mixed = |start: usize| {
        let planned = made_of_two(|g, x| {
            let b = g.unary(Unary::Neg, x)?;
            let begun = put(g, b, None, start, 8)?;
            fused_write(g, Unary::Tanh, x, Some(begun), 4 - start)
        });
        check_equivalence(&original, &planned, &device, ROWS)
    };
    mixed(4).unwrap();
    mixed(0).unwrap_err();
    // Of something that is complete, the part that is written over would be another one.
    let complete = made_of_two(|g, x| {
        let (a, b) = (g.unary(Unary::Tanh, x)?, g.unary(Unary::Neg, x)?);
        let whole = g.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])?;
        fused_write(g, Unary::Neg, x, Some(whole), 4)
    });
    check_equivalence(&original, &complete, &device, ROWS).unwrap_err();
}

/// What is read by others, or is a column, a view, or handed over, stays a tensor of its own.
#[test]
fn only_parts_that_nobody_else_reads_are_made_in_their_places() {
    let device = Slow { broken: None };
    type Bring<'a> = &'a dyn Fn(&mut Graph, ValueId) -> Result<[ValueId; 2], GraphError>;
    let made = |bring: Bring<'_>| {
        let graph = made_of_two(|g, x| {
            let parts = bring(g, x)?;
            g.add_one(Op::Concat(Concat { axis: 1 }), &parts)
        });
        let joined = rewrite_concats(&graph, ConcatStrategy::SliceWrite, &[], &device).expect("there is a join");
        let concats_fused = fuse_slice_writes(&joined, &device);
        if let Some(concats_fused) = &concats_fused {
            assert!(concats_fused.concats_fused() && !joined.concats_fused());
            verify(concats_fused).unwrap();
            check_equivalence(&graph, concats_fused, &device, ROWS).unwrap();
        }
        concats_fused.map_or(0, |graph| graph.nodes().filter(|(_, node)| matches!(node.op, Op::FusedSliceWrite(_))).count())
    };
    assert_eq!(made(&|g, x| Ok([g.unary(Unary::Tanh, x)?, g.unary(Unary::Neg, x)?])), 2);
    assert_eq!(made(&|g, x| Ok([g.unary(Unary::Tanh, x)?, x])), 1);
    assert_eq!(made(&|g, x| g.unary(Unary::Tanh, x).map(|y| [y, y])), 0);
    assert_eq!(made(&|g, x| g.unary(Unary::Tanh, x).and_then(|y| Ok([y, g.unary(Unary::Neg, y)?]))), 1);
    let handed_over = |g: &mut Graph, x: ValueId| {
        let y = g.unary(Unary::Tanh, x)?;
        g.output("part", y);
        Ok([y, g.unary(Unary::Neg, x)?])
    };
    assert_eq!(made(&handed_over), 1);
    let view = |g: &mut Graph, x: ValueId| {
        let y = g.unary(Unary::Tanh, x)?;
        let turned = g.reshape(y, Shape::batch_of([2, 2]))?;
        Ok([g.reshape(turned, Shape::batch_of([4]))?, g.unary(Unary::Neg, x)?])
    };
    assert_eq!(made(&view), 1);
}

/// A device that makes parts in their places holds the whole and nothing beside it, and the certificate says so.
#[test]
fn a_part_that_is_made_in_its_place_is_never_there_by_itself() {
    const ROWS: usize = 16;
    let device = Slow { broken: None };
    let graph = plimsoll_core::passes::optimize(&branches()).unwrap();
    let plan = layout(&[(Role::Step, graph.clone())], ROWS, &device).unwrap();
    let program = &plan.programs[0];
    assert!(program.graph.concats_fused());
    let whole = Bytes((4 * ROWS * 64) as u64);
    let held = |buffer: &&plimsoll_core::plan::Buffer| buffer.kind != plimsoll_core::plan::BufferKind::Workspace;
    assert!(program.buffers.iter().filter(held).all(|buffer| buffer.size == whole || buffer.size < Bytes((4 * ROWS * 16) as u64)));
    prove(&plan.certificate(), &[(Role::Step, graph.clone())], &device).unwrap();
    let mut edited = plan.certificate();
    edited.programs[0].concats_fused = false;
    prove(&edited, &[(Role::Step, graph.clone())], &device).unwrap_err();
    // Nobody may claim it for a device that does not.
    let error =
        prove(&plan.certificate(), &[(Role::Step, graph.clone())], &crate::support::Paper { alignment: 16, scratch: false }).unwrap_err();
    insta::assert_snapshot!(error, @"the plan does not hold at step: it states that slice writes are fused, but this device fuses none");
    // The bytes that a part is written to are not read by its maker, in any layout.
    let mut edited = plan.certificate();
    let (at, inlay) =
        edited.programs[0].steps.iter().enumerate().rfind(|(_, step)| step.op == "fused_slice_write").expect("there are four");
    assert_eq!((inlay.reads[0].offset, inlay.reads[0].size), (inlay.writes[0].offset, inlay.writes[0].size), "it grows where it is");
    let elsewhere = inlay.writes[0].offset + plan.alignment;
    edited.programs[0].steps[at].writes[0].offset = elsewhere;
    assert!(prove(&edited, &[(Role::Step, graph)], &device).unwrap_err().to_string().contains("the plan does not hold at step step"));
}
