//! The op that makes a part, writing between the results of others.

use super::Put;
use crate::autodiff::Adjoint;
use crate::graph::{Graph, GraphError, ValueId};
use crate::op::{Define, Op};
use crate::shape::TensorType;

/// What `maker` makes of its inputs, written where [`Put`] would put it, and never held by itself. Its first input is the whole so far, if one is `begun`; it is
/// written in place where nobody reads the whole so far again. Only the planner writes this, for a maker that the device can
/// ([`Device::makes_inlays`](crate::Device::makes_inlays)).
///
/// What it computes, apart from where that goes, is [`Graph::doing`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inlay {
    /// What makes the part: an expression with one result, a product, a convolution, or the gradient of one by its input.
    pub maker: Box<Op>,
    /// Where the part goes.
    pub place: Put,
    /// Whether the first input is the whole so far. If not, nothing of it is there yet.
    pub begun: bool,
}

impl Inlay {
    /// Whether an op makes parts that can be inlays at all.
    pub fn can_be_made_by(maker: &Op) -> bool {
        match maker {
            Op::Pointwise(op) => op.dtypes.len() == 1,
            Op::MatMul(op) => !op.onto,
            Op::Conv2d(_) | Op::Conv2dGradInput(_) => true,
            _ => false,
        }
    }

    /// How many inputs stand before those of the maker.
    pub(crate) fn before(&self) -> usize {
        usize::from(self.begun)
    }

    /// The type of the part.
    pub(crate) fn part(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<TensorType, String> {
        if !Inlay::can_be_made_by(&self.maker) {
            return Err(format!("what {} makes cannot be written between other results", self.maker.define().name()));
        }
        let own = inputs.get(self.before()..).ok_or("goes on from a whole that is not there")?;
        Ok(self.maker.define().infer(graph, own)?.remove(0))
    }
}

impl Define for Inlay {
    fn name(&self) -> &'static str {
        "inlay"
    }

    fn attributes(&self) -> String {
        let maker = self.maker.define();
        let what = [maker.name().to_string(), maker.attributes()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        format!("{what}, along {}", self.place.attributes())
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let part = self.part(graph, inputs)?;
        let put: Vec<&TensorType> = [&part].into_iter().chain(inputs[..self.before()].iter().copied()).collect();
        self.place.infer(graph, &put)
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before the planner makes parts in their places"))
    }

    /// What making the part takes.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        // None of the makers looks at the graph for its type.
        let part = self.part(&Graph::new(), inputs).expect("checked when the node was added");
        self.maker.define().flops(&inputs[self.before()..], &[&part], rows)
    }

    /// The whole may grow where it is.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.begun && input == 0
    }
}
