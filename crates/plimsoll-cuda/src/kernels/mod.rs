//! Kernel generation: CUDA C++ source from the same ops, expressions and shapes that the CPU executes. It needs no GPU.
//!
//! All extents are literals, so that the compiler strength-reduces index arithmetic; only addresses are parameters.
//! Reductions are split by shape and combined in a fixed order, without atomics: equal inputs give equal bits.

mod attention;
mod channels;
mod convolution;
mod depthwise;
mod expression;
mod gather;
mod index;
mod matrix_transpose;
mod movement;
mod pitch;
mod pointwise;
mod pooling;
mod recurrent;
mod reduce;
mod report;
#[cfg(test)]
mod tests;
mod tiled_matmul;
mod vector;

pub(crate) use attention::{AttentionShape, attention, attention_grad, attention_grad_workspace};
pub(crate) use channels::{pad_filter, pad_image};
pub(crate) use convolution::{ConvShape, forward, grad_filter, grad_filter_workspace, grad_input};
pub(crate) use expression::{FusedExpr, Operand};
pub(crate) use gather::{gather, scatter_add, scatter_add_workspace};
pub(crate) use matrix_transpose::transpose_matrix;
pub(crate) use movement::{concat, pad, slice, slice_write, transpose};
pub(crate) use pitch::{Part, pad_rows, unpad_rows};
pub(crate) use pointwise::{PitchedRows, fused_slice_write, pointwise, pointwise_group};
pub(crate) use pooling::{avg_pool, avg_pool_grad, max_pool, max_pool_grad};
pub(crate) use recurrent::{recurrent, recurrent_grad, recurrent_grad_workspace, recurrent_workspace};
pub(crate) use reduce::{are_split_alike, reduce, reduce_workspace};
pub(crate) use report::{alarm_of_ranks, keep_shard, report};
pub(crate) use tiled_matmul::{cast, cast_to, matmul};

use plimsoll_core::DType;
use std::fmt::Write;

/// The argument of a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// An input of the node.
    Input(usize),
    /// An input of the node, from this byte offset on.
    InputAt(usize, usize),
    /// An output of the node.
    Output(usize),
    /// An output of the node, from this byte offset on.
    OutputAt(usize, usize),
    /// The node's workspace.
    Workspace,
    /// The node's workspace, from this byte offset on.
    WorkspaceAt(usize),
    /// The header of the batch's slot: seed, first row, step.
    Header,
    /// The flag that records a non-finite loss.
    NonFiniteFlag,
    /// The loss of this step.
    Loss,
    /// The location from which the host reads a run's scalar outputs.
    Results,
}

/// One kernel: its source without a name, its launch configuration, and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The first part of its name in the compiled module, before the node's scope: its op.
    pub name: &'static str,
    /// Its extents and expression, as a comment in the source.
    pub what: String,
    /// Parameters with their types; all are addresses.
    pub parameters: Vec<(String, Argument)>,
    pub body: String,
    pub grid: [u32; 3],
    pub threads: u32,
}

impl Kernel {
    /// The source with a name.
    pub fn source(&self, name: &str) -> String {
        // What few kernels use comes with them, because every program waits for the compiler.
        let functions = if self.body.contains("multiply_add<") { TENSOR_CORES } else { "" };
        let parameters: Vec<&str> = self.parameters.iter().map(|(text, _)| text.as_str()).collect();
        let mut text = format!("{functions}// {}\n", self.what.replace('\n', " "));
        let _ = writeln!(text, "extern \"C\" __global__ void __launch_bounds__({}) {name}({}) {{", self.threads, parameters.join(", "));
        indented(&mut text, 1, &self.body);
        text + "}\n"
    }

    /// Whether the grid is empty: it cannot be launched.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }

    /// Makes it a no-op after a non-finite loss, so that states stay valid. `loss` means that this step's loss is
    /// computed before it.
    pub fn guarded(mut self, loss: bool) -> Kernel {
        self.parameters.push(("const int* alarm".to_string(), Argument::NonFiniteFlag));
        let mut test = "*alarm".to_string();
        if loss {
            self.parameters.push(("const float* loss".to_string(), Argument::Loss));
            test += " || !is_finite(*loss)";
        }
        self.body = format!("if ({test}) return;\n{}", self.body);
        self
    }
}

/// Default block size.
const THREADS: usize = 256;

/// Types and functions at the start of every program.
pub(crate) const PRELUDE: &str = include_str!("prelude.cu");

/// Functions of kernels that use tensor cores; several kernels of a program may include them.
const TENSOR_CORES: &str = include_str!("tensor_cores.cu");

/// The CUDA name of a type.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "half",
        DType::BF16 => "brain",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::U8 => "unsigned char",
        DType::Bool => "bool",
    }
}

/// A parameter; `const` unless it is an output or workspace.
fn parameter(dtype: DType, name: &str, argument: Argument) -> (String, Argument) {
    let constant = if matches!(argument, Argument::Input(_) | Argument::InputAt(..)) { "const " } else { "" };
    (format!("{constant}{}* {name}", type_name(dtype)), argument)
}

/// Appends lines with this indentation.
fn indented(text: &mut String, steps: usize, lines: &str) {
    for line in lines.lines() {
        let _ = writeln!(text, "{}{line}", "    ".repeat(steps));
    }
}

/// An index type that can represent `n`.
fn index_type(n: usize) -> &'static str {
    if n < 1 << 31 { "unsigned" } else { "unsigned long long" }
}

/// Number of blocks of `size` that cover `n`.
fn block_count(n: usize, size: usize) -> u32 {
    u32::try_from(n.div_ceil(size)).expect("a tensor that a device can hold needs fewer blocks than there are")
}
