//! What several modules need: a device without kernels, and random graphs.

use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, Node, StateId, StateKind};
use plimsoll_core::ops::{MatMul, Reduction, Transpose};
use plimsoll_core::plan::{Capabilities, Target, check};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{Bytes, Graph, GraphError, Op, Plan, Shape, TensorType, ValueId};

/// A device that can be planned for and nothing else.
pub struct Paper {
    pub alignment: u64,
    /// Whether products ask for scratch.
    pub scratch: bool,
}

pub const PAPER: Paper = Paper { alignment: 64, scratch: true };

impl Target for Paper {
    fn name(&self) -> String {
        "paper".to_string()
    }

    fn description(&self) -> String {
        "a device without kernels".to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::host(Bytes(self.alignment))
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        match node.op {
            Op::MatMul(_) if self.scratch => node.inputs.iter().map(|input| graph.ty(*input).bytes(rows)).sum(),
            _ => Bytes::ZERO,
        }
    }
}

/// A plan's certificate passes the independent checker.
pub fn assert_sound(plan: &Plan) {
    let graphs: Vec<&Graph> = plan.programs.iter().map(|program| &program.graph).collect();
    if let Err(error) = check(&plan.certificate(), &graphs) {
        let texts: Vec<String> = graphs.iter().map(|graph| graph.to_string()).collect();
        panic!("{error}\n{}", texts.join("\n"));
    }
}

pub fn parameter(graph: &mut Graph, name: &str, shape: Shape) -> Result<ValueId, GraphError> {
    graph.state(name, StateKind::Parameter, TensorType::f32(shape), Init::Constant(0.0))
}

/// A graph written down by a list of numbers: chains, branches, products, views and state changes over a few values of
/// two shapes. Every list gives a legal graph, so that a property test can shrink it.
pub fn graph_from(recipe: &[u8]) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let wide = graph.input("wide", TensorType::f32(Shape::batch_of([6])));
        let narrow = graph.input("narrow", TensorType::f32(Shape::batch_of([3])));
        let states = [parameter(&mut graph, "a", Shape::fixed([6, 3]))?, parameter(&mut graph, "b", Shape::fixed([6, 3]))?];
        let (mut wides, mut narrows, mut weights) = (vec![wide], vec![narrow], states.to_vec());
        let mut updated = [false; 2];
        for step in recipe.chunks_exact(3) {
            let (kind, i, j) = (step[0] % 15, step[1] as usize, step[2] as usize);
            let from = |values: &[ValueId], k: usize| values[values.len() - 1 - k % values.len()];
            let (w, w2, n, n2) = (from(&wides, i), from(&wides, j), from(&narrows, i), from(&narrows, j));
            let (p, p2) = (from(&weights, i), from(&weights, j));
            let product = |g: &mut Graph, transpose_a, transpose_b, x, y| {
                g.add_one(Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: None, ..MatMul::default() }), &[x, y])
            };
            match kind {
                0 => wides.push(graph.unary(Unary::Tanh, w)?),
                1 => wides.push(graph.plus(w, w2)?),
                2 => narrows.push(graph.binary(Binary::Max, n, n2)?),
                3 => narrows.push(product(&mut graph, false, false, w, p)?),
                4 => wides.push(product(&mut graph, false, true, n, p)?),
                5 => weights.push(product(&mut graph, true, false, w, n)?),
                6 => weights.push(graph.binary(Binary::Sub, p, p2)?),
                7 => {
                    let pairs = graph.reshape(w, Shape::batch_of([2, 3]))?;
                    let scaled = graph.map(pairs, |e, x| e.mul(x, e.constant(0.5)))?;
                    wides.push(graph.reshape(scaled, Shape::batch_of([6]))?);
                }
                8 => graph.output(&format!("wide{}", graph.outputs().len()), w),
                9 => graph.output(&format!("weight{}", graph.outputs().len()), p),
                10 => narrows.push(graph.map(n, |e, x| e.mul(x, e.constant(0.25)))?),
                11 => {
                    let total = graph.reduce(Reduction::Sum, n, &[0, 1])?;
                    narrows.push(graph.times(n2, total)?);
                }
                12 => {
                    let bias = graph.full(0.5, Shape::fixed([3]))?;
                    let stretched = graph.pointwise_over(Expr::identity(), &[bias], Shape::batch_of([3]))?;
                    narrows.push(graph.plus(n, stretched)?);
                }
                13 => {
                    let turned = graph.add_one(Op::Transpose(Transpose { order: vec![1, 0] }), &[p])?;
                    let scaled = graph.times(turned, turned)?;
                    weights.push(graph.add_one(Op::Transpose(Transpose { order: vec![1, 0] }), &[scaled])?);
                }
                _ => {
                    let state = i % 2;
                    if !std::mem::replace(&mut updated[state], true) {
                        graph.update(StateId(state as u32), from(&weights, j));
                    }
                }
            }
        }
        graph.output("last", *narrows.last().expect("never empty"));
        Ok(graph)
    };
    build().expect("every recipe gives a legal graph")
}

/// Recipes for [`graph_from`], each of at most `steps` steps; the same every time.
pub fn recipes(count: u32, steps: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |i| {
        let random = StepRandom { seed: 11, step: i, first_row: 0 };
        let bytes = (0..steps as u64).flat_map(|block| random.words(0, block)).flat_map(u32::to_le_bytes);
        bytes.take(3 * (1 + i as usize % steps)).collect()
    })
}

/// Numbers between -1 and 1 without a pattern.
pub fn numbers(count: usize, stream: u32) -> Vec<f64> {
    (0..count as u64).map(|i| 2.0 * f64::from(StepRandom::default().uniform(stream, i)) - 1.0).collect()
}
