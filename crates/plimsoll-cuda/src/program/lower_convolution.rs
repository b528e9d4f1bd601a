//! Lowers convolutions and their gradients: through cuDNN, as matrix products, or in generated kernels.

use super::lower::{CudnnConvOp, LoweredOp, Lowering, MatmulStep};
use crate::algorithms::ComputeType;
use crate::algorithms::convolution::{self, ConvAlgorithm, ConvPass, Convolutions};
use crate::kernels::{self, Argument, ConvShape, FusedExpr, Kernel};
use crate::libraries::cublaslt::MatmulRequest;
use crate::libraries::cudnn::ConvRequest;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::Conv2d;
use plimsoll_core::plan::{Place, Program};
use plimsoll_core::{DType, Op, ValueId};

/// Whether a program uses cuDNN for at most `rows` rows, if it is available.
pub(crate) fn wants_cudnn(program: &Program, rows: usize, convolutions: Convolutions) -> bool {
    program.order.iter().any(|id| cudnn_request(&program.graph, program.graph.node(*id), rows, convolutions).is_some())
}

/// The first convolution of a graph that uses cuDNN, if it is available.
pub(crate) fn first_cudnn_request(graph: &Graph, rows: usize, convolutions: Convolutions) -> Option<ConvRequest> {
    graph.nodes().find_map(|(_, node)| cudnn_request(graph, node, rows, convolutions))
}

fn cudnn_request(graph: &Graph, node: &Node, rows: usize, convolutions: Convolutions) -> Option<ConvRequest> {
    let is_convolution = matches!(node.op, Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_));
    if !is_convolution || convolutions == Convolutions::Generated {
        return None;
    }
    let (kind, conv, types) = convolution::of_node(graph, node, rows);
    match convolution::select(kind, &conv, types, graph.tf32(), convolutions) {
        ConvAlgorithm::Cudnn(ty) => Some(ConvRequest { kind, conv, ty }),
        ConvAlgorithm::Generated | ConvAlgorithm::Matmul(_) => None,
    }
}

/// A convolution, or a gradient of one, and the node that computes it.
struct ConvNode<'a> {
    kind: ConvPass,
    shape: ConvShape,
    /// Of image, filter and result.
    types: [DType; 3],
    node: &'a Node,
}

impl Lowering<'_> {
    /// Lowers a convolution or a gradient of one with the selected implementation, if it is available.
    pub(super) fn convolution(&self, node: &Node, guarded: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, output) = (&node.inputs[..], node.outputs[0]);
        let (kind, shape, types) = convolution::of_node(&self.program.graph, node, self.rows);
        self.float_dtypes([inputs[0], inputs[1], output])?;
        let algorithm = convolution::select(kind, &shape, types, self.program.graph.tf32(), self.convolutions);
        let conv = ConvNode { kind, shape, types, node };
        let fallback = self.generated(&conv);
        let in_arena = matches!(self.program.places.get(output.0 as usize).copied().flatten(), Some(Place::Arena(_)));
        match algorithm {
            _ if self.convolutions == Convolutions::Generated => {}
            ConvAlgorithm::Generated => {}
            // A library call cannot depend on the loss; a generated kernel can.
            ConvAlgorithm::Matmul(ty) if self.library && !guarded => {
                return Ok(self.conv_as_matmul(&conv, ty, fallback));
            }
            // A generated kernel writes the filter gradient to its destination. Otherwise the result must be
            // overwritable while the library is tried.
            ConvAlgorithm::Cudnn(ty) if self.cudnn && (kind == ConvPass::GradFilter || in_arena && !guarded) => {
                return Ok(vec![self.conv_with_cudnn(&conv, ty, fallback)]);
            }
            ConvAlgorithm::Matmul(_) | ConvAlgorithm::Cudnn(_) => {}
        }
        Ok(fallback.into_iter().map(|kernel| LoweredOp::Kernel(kernel, inputs.to_vec())).collect())
    }

    /// A convolution in generated kernels.
    fn generated(&self, &ConvNode { kind, shape: ref conv, types, node }: &ConvNode<'_>) -> Vec<Kernel> {
        let [image, filter, result] = types;
        match (kind, &node.op) {
            (ConvPass::GradInput, _) => vec![kernels::grad_input(conv, [filter, result, image])],
            (ConvPass::GradFilter, _) => kernels::grad_filter(conv, [image, result]),
            (ConvPass::Forward, Op::Conv2d(Conv2d { epilogue: Some(expr), .. })) => {
                let seen: Vec<ValueId> = [&node.outputs[..1], &node.inputs[2..]].concat();
                let shape = self.program.graph.shape(node.outputs[0]);
                let write = |site: &FusedExpr<'_>| kernels::forward(conv, [image, filter, result], Some(site));
                vec![self.with_expr(expr, shape, &seen, &[(0, "value")], write)]
            }
            (ConvPass::Forward, _) => vec![kernels::forward(conv, [image, filter, result], None)],
        }
    }

    /// A 1×1 convolution as a matrix product.
    fn conv_as_matmul(
        &self,
        &ConvNode { kind, shape: ref conv, types, node }: &ConvNode<'_>,
        ty: ComputeType,
        fallback: Vec<Kernel>,
    ) -> Vec<LoweredOp> {
        let dtype = ty.dtype;
        // Filters are matrices of input channels × output channels.
        let (operands, transpose, filter, result) = match kind {
            ConvPass::Forward => ([0, 1], (false, false), Some(1), types[2]),
            ConvPass::GradInput => ([1, 0], (false, true), Some(0), types[0]),
            ConvPass::GradFilter => ([0, 1], (true, false), None, types[1]),
        };
        let cast = filter.filter(|_| types[1] != dtype);
        let mut steps = Vec::new();
        if let Some(filter) = cast {
            let elements = self.dims(node.inputs[filter]).iter().product();
            steps.push(MatmulStep::Kernel(kernels::cast(filter, elements, elements, dtype)));
        }
        let taken = if cast.is_some() { convolution::cast_bytes(kind, conv, types[1], dtype) } else { 0 };
        let operand = |i: usize| if cast == Some(operands[i]) { Argument::Workspace } else { Argument::Input(operands[i]) };
        let extents = convolution::matmul_extents(kind, conv);
        // The epilogue is a separate kernel, so the fallback of the product must not include it.
        let plain = match &node.op {
            Op::Conv2d(op) if op.epilogue.is_some() => vec![kernels::forward(conv, types, None)],
            _ => fallback,
        };
        let request = MatmulRequest { extents, transpose, types: (ty, result), pitches: [None; 2], bias: false };
        steps.push(MatmulStep::Product(request, [operand(0), operand(1), Argument::Output(0)], None));
        let product = LoweredOp::Matmul { steps, bias_at: 0, taken, fallback: plain };
        let after = self.epilogue(node).into_iter().map(|(kernel, seen)| LoweredOp::Kernel(kernel, seen));
        [product].into_iter().chain(after).collect()
    }

    /// A cuDNN convolution, which needs filters in its own layout and one type for all tensors.
    fn conv_with_cudnn(
        &self,
        &ConvNode { kind, shape: ref conv, types, node }: &ConvNode<'_>,
        ty: ComputeType,
        fallback: Vec<Kernel>,
    ) -> LoweredOp {
        let (dtype, taps, out) = (ty.dtype, conv.taps(), conv.result[3]);
        let (filter, inputs) = (Argument::Workspace, node.inputs.clone());
        let padded = convolution::padded(kind, conv, ty);
        let brought = |operand: usize| match &padded {
            None => kernels::transpose_matrix((taps, out), (types[1], Argument::Input(operand)), (dtype, filter)),
            Some(padded) => kernels::pad_filter(conv, padded.image[3], (types[1], Argument::Input(operand)), (dtype, filter), false),
        };
        let (used, taken) = convolution::copies(kind, conv, ty);
        let image = match padded {
            None => Argument::Input(0),
            Some(padded) => Argument::WorkspaceAt(convolution::filter_bytes(&padded, dtype) as usize),
        };
        let mut before: Vec<Kernel> =
            padded.iter().map(|padded| kernels::pad_image(conv, padded, dtype, Argument::Input(0), image)).collect();
        let (tensors, after) = match kind {
            ConvPass::Forward => {
                before.push(brought(1));
                ([image, filter, Argument::Output(0)], self.epilogue(node))
            }
            ConvPass::GradInput => {
                before.push(brought(0));
                ([Argument::Output(0), filter, Argument::Input(1)], vec![])
            }
            ConvPass::GradFilter => {
                let (from, to) = ((dtype, filter), (types[1], Argument::Output(0)));
                let back = match &padded {
                    None => kernels::transpose_matrix((out, taps), from, to),
                    Some(padded) => kernels::pad_filter(conv, padded.image[3], from, to, true),
                };
                ([image, filter, Argument::Input(1)], vec![(back, inputs)])
            }
        };
        let request = ConvRequest { kind, conv: used, ty };
        LoweredOp::Convolution(Box::new(CudnnConvOp { request, tensors, taken, before, after, fallback }))
    }

    /// The epilogue of a convolution as a separate kernel over results in memory.
    fn epilogue(&self, node: &Node) -> Vec<(Kernel, Vec<ValueId>)> {
        let (Op::Conv2d(Conv2d { epilogue: Some(expr), .. }), output) = (&node.op, node.outputs[0]) else { return vec![] };
        let seen: Vec<ValueId> = [&[output], &node.inputs[2..]].concat();
        let dtypes = [self.dtype(output)];
        let kernel = self.with_expr(expr, self.program.graph.shape(output), &seen, &[], |site| kernels::pointwise(site, &dtypes));
        vec![(kernel, seen)]
    }
}
