//! Lowers matrix products: casts and copies of operands, library calls block by block, and epilogues.

use super::lower::{LoweredOp, Lowering, MatmulStep};
use crate::algorithms::ComputeType;
use crate::algorithms::matmul::{self, Unaligned};
use crate::kernels::{self, Argument, Kernel, Part};
use crate::libraries::cublaslt::MatmulRequest;
use plimsoll_core::expr::{Binary, Term};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::MatMul;
use plimsoll_core::{DType, Op, ValueId};

/// Bytes of workspace of a product for at most `rows` rows.
pub(super) fn workspace(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> u64 {
    let extents = extents(op, graph, node, rows);
    let padded = unaligned(op, graph, node, rows).map_or(0, |matrix| matmul::padded_bytes(extents, matrix));
    let bias = bias(op, graph, node, rows).map_or(0, |(_, bytes)| bytes);
    matmul::workspace(extents.0, extents.1) + cast(graph, node, rows).map_or(0, |(_, bytes, _)| bytes) + bias + padded
}

impl Lowering<'_> {
    /// Lowers a product: by the library with the casts and copies that it needs, if it is available, or in a generated
    /// kernel.
    pub(super) fn matmul(&self, op: &MatMul, node: &Node, guarded: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, output) = (&node.inputs[..], node.outputs[0]);
        let types = self.float_dtypes([inputs[0], inputs[1], output])?;
        let extents = extents(op, &self.program.graph, node, self.rows);
        let fallback = kernels::matmul(extents, op.transpose_a, op.transpose_b, types, op.onto);
        let bias = bias(op, &self.program.graph, node, self.rows);
        let mut fused = false;
        let mut works = match matmul::common_type(types[0], types[1], types[2]).filter(|_| self.library && !guarded) {
            Some(common) => {
                let cast = cast(&self.program.graph, node, self.rows);
                let mut steps = Vec::new();
                if let Some((operand, _, dtype)) = cast {
                    let elements = self.dims(inputs[operand]).iter().product();
                    let padded = cast_elements(&self.program.graph, node, operand, self.rows);
                    steps.push(MatmulStep::Kernel(kernels::cast(operand, elements, padded, dtype)));
                }
                let operand = |i: usize| if cast.is_some_and(|(cast, ..)| cast == i) { Argument::Workspace } else { Argument::Input(i) };
                let mut taken = cast.map_or(0, |(_, bytes, _)| bytes);
                let request = MatmulRequest {
                    extents,
                    transpose: (op.transpose_a, op.transpose_b),
                    types: (ComputeType::new(common, self.program.graph.tf32()), types[2]),
                    pitches: [None; 2],
                    bias: bias.is_some(),
                };
                let onto = op.onto.then_some(Argument::Input(2));
                let bias_at = taken;
                if let Some((dtype, bytes)) = bias {
                    steps.push(MatmulStep::Kernel(kernels::cast_to(2, extents.1, dtype, Argument::WorkspaceAt(taken as usize))));
                    taken += bytes;
                }
                match unaligned(op, &self.program.graph, node, self.rows) {
                    Some(matrix) => {
                        steps.extend(padded_steps(request, matrix, operand(0), operand(1), taken));
                        taken += matmul::padded_bytes(extents, matrix);
                    }
                    None => steps.push(MatmulStep::Product(request, [operand(0), operand(1), Argument::Output(0)], onto)),
                }
                let mut fallback = vec![fallback];
                if bias.is_some() {
                    fallback.extend(self.matmul_epilogue(op, node).map(|(kernel, _)| in_place_of_library(kernel)));
                    fused = true;
                }
                vec![LoweredOp::Matmul { steps, bias_at, taken, fallback }]
            }
            // A library call cannot depend on the loss; a generated kernel can.
            None => vec![LoweredOp::Kernel(fallback, inputs.to_vec())],
        };
        if let Some((kernel, seen)) = self.matmul_epilogue(op, node).filter(|_| !fused) {
            works.push(LoweredOp::Kernel(kernel, seen));
        }
        Ok(works)
    }

    /// The epilogue of a product as a separate kernel over results in memory, with its inputs.
    fn matmul_epilogue(&self, op: &MatMul, node: &Node) -> Option<(Kernel, Vec<ValueId>)> {
        let (expr, output) = (op.epilogue.as_ref()?, node.outputs[0]);
        let seen: Vec<ValueId> = [&[output], &node.inputs[2..]].concat();
        let (shape, dtypes) = (self.program.graph.shape(output), [self.dtype(output)]);
        Some((self.with_expr(expr, shape, &seen, &[], |site| kernels::pointwise(site, &dtypes)), seen))
    }
}

fn extents(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> (usize, usize, usize) {
    let (m, n, k) = op.dims(graph.shape(node.inputs[0]), graph.shape(node.inputs[1])).expect("checked when the node was added");
    (m.bind(rows), n.bind(rows), k.bind(rows))
}

/// The matrix of a product that is copied into padded rows.
fn unaligned(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> Option<Unaligned> {
    let [a, b, result] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|value| graph.ty(value).dtype);
    let common = matmul::common_type(a, b, result)?;
    let found = matmul::unaligned(extents(op, graph, node, rows), (op.transpose_a, op.transpose_b), common, result)?;
    // The copies move 16-bit elements, and the rows of zeros that complete the other operand need a copy of it.
    let fits = !op.onto
        && match found {
            Unaligned::LeftTransposed => a == common,
            Unaligned::Left | Unaligned::Result => a == common && b == DType::F32,
        };
    fits.then_some(found)
}

/// Which operand of a product must be cast to the other's type, the bytes it takes, and that type.
fn cast(graph: &Graph, node: &Node, rows: usize) -> Option<(usize, u64, DType)> {
    let [a, b, result] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|value| graph.ty(value).dtype);
    let common = matmul::common_type(a, b, result)?;
    let operand = [a, b].iter().position(|dtype| *dtype != common)?;
    Some((operand, matmul::cast_bytes(DType::F32, common, cast_elements(graph, node, operand, rows)), common))
}

/// The type and bytes of a bias that the library adds to a product, if that is all the epilogue does. It is read in the
/// type of the result, as other operands are.
fn bias(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> Option<(DType, u64)> {
    let (expr, (m, n, _)) = (op.epilogue.as_ref()?, extents(op, graph, node, rows));
    let (row, result) = (graph.ty(*node.inputs.get(2)?), graph.ty(node.outputs[0]).dtype);
    let adds = matches!(expr.terms(), [Term::Input(a), Term::Input(b), Term::Binary(Binary::Add, 0, 1)] if a + b == 1);
    let [a, b] = [node.inputs[0], node.inputs[1]].map(|value| graph.ty(value).dtype);
    let product = matmul::common_type(a, b, result).is_some_and(|common| common == result && common.is_half());
    let is_row =
        row.dtype == DType::F32 && row.shape.last().is_some_and(|last| last.bind(rows) == n) && row.shape.elements().bind(rows) == n;
    let large = m.saturating_mul(n) >= LARGE_RESULT && n.is_multiple_of(8);
    let fits = adds && product && is_row && large && node.inputs.len() == 3 && unaligned(op, graph, node, rows).is_none();
    fits.then(|| (result, matmul::cast_bytes(DType::F32, result, n)))
}

/// Minimum results for a bias in the library: a copy of the bias must cost less than a pass over the results.
const LARGE_RESULT: usize = 1 << 20;

/// Elements of a cast operand, with rows of zeros up to a multiple of eight if the other matrix is padded too.
fn cast_elements(graph: &Graph, node: &Node, operand: usize, rows: usize) -> usize {
    let elements = graph.shape(node.inputs[operand]).elements().bind(rows);
    match &node.op {
        Op::MatMul(op) if operand == 1 && matches!(unaligned(op, graph, node, rows), Some(Unaligned::Left | Unaligned::Result)) => {
            let height = graph.shape(node.inputs[1]).bind(rows)[0];
            elements / height.max(1) * height.next_multiple_of(8)
        }
        _ => elements,
    }
}

/// An epilogue kernel that is launched with the inputs of its node instead of its own.
fn in_place_of_library(mut kernel: Kernel) -> Kernel {
    for (_, argument) in &mut kernel.parameters {
        *argument = match *argument {
            Argument::Input(0) => Argument::Output(0),
            Argument::Input(i) => Argument::Input(i + 1),
            other => other,
        };
    }
    kernel
}

/// The steps of a product with an unaligned matrix, block by block; the block is at byte `block` of the workspace.
fn padded_steps(request: MatmulRequest, matrix: Unaligned, a: Argument, b: Argument, block: u64) -> Vec<MatmulStep> {
    let MatmulRequest { extents: (m, n, k), types: (common, result), .. } = request;
    let here = Argument::WorkspaceAt(block as usize);
    // Byte offset `bytes` in A or in the result.
    let behind = |argument: Argument, bytes: usize| match argument {
        Argument::Input(i) => Argument::InputAt(i, bytes),
        Argument::Workspace => Argument::WorkspaceAt(bytes),
        other => unreachable!("{other:?} is no operand"),
    };
    let (dims, along_rows) = match matrix {
        Unaligned::Left => ((m, k), true),
        Unaligned::LeftTransposed => ((k, m), false),
        Unaligned::Result => ((m, n), true),
    };
    let steps = matmul::padded_blocks(dims, along_rows).into_iter().flat_map(|(first, length)| {
        let part = match along_rows {
            true => Part { width: dims.1, rows: length, columns: dims.1 },
            false => Part { width: dims.1, rows: dims.0, columns: length },
        };
        let start = 2 * if along_rows { first * dims.1 } else { first };
        let pitch = Some(part.pitch());
        let out = |row: usize| Argument::OutputAt(0, row * n * result.size());
        match matrix {
            Unaligned::Left | Unaligned::LeftTransposed => {
                // Zeros behind the rows are multiplied with the zeros behind the other operand.
                let k = if matrix == Unaligned::Left { k.next_multiple_of(8) } else { k };
                let request = MatmulRequest { extents: (length, n, k), pitches: [pitch, None], ..request };
                let pad = kernels::pad_rows(&part, behind(a, start), here);
                vec![MatmulStep::Kernel(pad), MatmulStep::Product(request, [here, b, out(first)], None)]
            }
            Unaligned::Result => {
                let request = MatmulRequest { extents: (length, n.next_multiple_of(8), k), pitches: [None, pitch], ..request };
                let rows = behind(a, first * k * common.dtype.size());
                let unpad = kernels::unpad_rows(&part, here, Argument::OutputAt(0, start));
                vec![MatmulStep::Product(request, [rows, b, here], None), MatmulStep::Kernel(unpad)]
            }
        }
    });
    steps.collect()
}
