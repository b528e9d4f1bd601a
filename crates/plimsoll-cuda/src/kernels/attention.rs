//! Tiled attention and its gradient: the score matrix is never materialized.
//!
//! The query gradient is one kernel with a block per tile of queries; the key and value gradients are another with a
//! block per tile of keys. Every element is therefore accumulated by one thread in a fixed order.
//!
//! In 16 bits the products run on tensor cores; other types and head depths use plain kernels.

use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use plimsoll_core::ops::Attention;
use std::fmt::Write;

/// An attention with all parameters of its kernels.
#[derive(Clone, Debug)]
pub(crate) struct AttentionShape<'a> {
    pub op: &'a Attention,
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub depth: usize,
    /// Types of the packing's tensors.
    pub types: Vec<DType>,
    /// Type of the mask of the keys.
    pub mask: Option<DType>,
    /// Sequences per row of the batch.
    pub sequences: usize,
    /// Whether tensor cores may be used.
    pub tensor_cores: bool,
}

/// Maximum head depth in shared memory at a time.
const CHUNK: usize = 64;

/// Rows of a tile, in tile_sixteenths.
fn tile_sixteenths(length: usize, most: usize) -> usize {
    length.div_ceil(16).next_power_of_two().min(most)
}

/// Workspace bytes of the gradient: one float per query and head.
pub(crate) fn attention_grad_workspace(batch: usize, heads: usize, queries: usize) -> u64 {
    4 * (batch * heads * queries) as u64
}

/// Maximum head depth on tensor cores, forward and in the gradient: deeper ones exceed the registers.
const DEEPEST: (usize, usize) = (256, 128);

/// The result and the log-sum-exp.
pub(crate) fn attention(heads: &AttentionShape<'_>) -> Kernel {
    if heads.fits_tensor_cores(DEEPEST.0) {
        let warps = if heads.queries > 128 { 8 } else { 4 };
        let mut parameters = heads.operands();
        parameters.push(parameter(heads.types[0], "o", Argument::Output(0)));
        parameters.push(parameter(DType::F32, "lse", Argument::Output(1)));
        let grid = [(heads.batch * heads.op.heads) as u32, block_count(heads.queries, 16 * warps), 1];
        return heads.tensor_core_kernel(("attention", "attention"), parameters, ("BK", warps), include_str!("attention_mma.cu"), grid);
    }
    let (down, across) = (tile_sixteenths(heads.queries, 4), tile_sixteenths(heads.keys, 2));
    let mut parameters = heads.operands();
    parameters.push(parameter(heads.types[0], "o", Argument::Output(0)));
    parameters.push(parameter(DType::F32, "lse", Argument::Output(1)));
    let grid = [(heads.batch * heads.op.heads) as u32, block_count(heads.queries, 16 * down), 1];
    heads.kernel(("attention", "attention"), parameters, (down, across), include_str!("attention.cu"), grid)
}

/// The gradients of the packing's tensors; `dy` is the type of the output gradient.
pub(crate) fn attention_grad(heads: &AttentionShape<'_>, dy: DType) -> Vec<Kernel> {
    let first = heads.types.len() + usize::from(heads.mask.is_some());
    let gradient = parameter(dy, "dy", Argument::Input(first + 2));
    let tile = (tile_sixteenths(heads.queries, 2), tile_sixteenths(heads.keys, 2));
    let rows = heads.batch * heads.op.heads * heads.queries;
    let parameters =
        vec![parameter(heads.types[0], "o", Argument::Input(first)), gradient.clone(), parameter(DType::F32, "delta", Argument::Workspace)];
    let (lanes, each) = if heads.depth.is_multiple_of(8) { (8, 8) } else { (32, 1) };
    let mut delta = heads.kernel(
        ("attention_grad_delta", "results by their gradients"),
        parameters,
        tile,
        include_str!("attention_delta.cu"),
        [block_count(rows, THREADS / lanes), 1, 1],
    );
    delta.body = format!("constexpr int LANES = {lanes}, EACH = {each};\n{}", delta.body);

    let mut shared = heads.operands();
    shared.push(parameter(DType::F32, "lse", Argument::Input(first + 1)));
    shared.push(gradient);
    shared.push(("const float* delta".to_string(), Argument::Workspace));
    let outputs = |wanted: &[(usize, &str)]| {
        let parts = heads.op.parts(heads.depth);
        let output = wanted.iter().map(|(part, name)| parameter(heads.types[parts[*part].0], name, Argument::Output(parts[*part].0)));
        shared.iter().cloned().chain(output).collect::<Vec<_>>()
    };
    if heads.fits_tensor_cores(DEEPEST.1) && dy == heads.types[0] {
        let (warps, (batch, op)) = (4, (heads.batch, heads.op));
        let queries = heads.tensor_core_kernel(
            ("attention_grad_query", "gradient of queries"),
            outputs(&[(0, "dq")]),
            ("BK", warps),
            include_str!("attention_grad_queries_mma.cu"),
            [(batch * op.heads) as u32, block_count(heads.queries, 16 * warps), 1],
        );
        let keys = heads.tensor_core_kernel(
            ("attention_grad_key_value", "gradient of keys and values"),
            outputs(&[(1, "dk"), (2, "dv")]),
            ("BQ", warps),
            include_str!("attention_grad_keys_mma.cu"),
            [(batch * op.kv_heads) as u32, block_count(heads.keys, 16 * warps), 1],
        );
        return vec![delta, queries, keys];
    }
    let grid = [(heads.batch * heads.op.heads) as u32, block_count(heads.queries, 16 * tile.0), 1];
    let queries = heads.kernel(
        ("attention_grad_query", "gradient of queries"),
        outputs(&[(0, "dq")]),
        tile,
        include_str!("attention_grad_queries.cu"),
        grid,
    );
    let grid = [(heads.batch * heads.op.kv_heads) as u32, block_count(heads.keys, 16 * tile.1), 1];
    let wanted = outputs(&[(1, "dk"), (2, "dv")]);
    let keys = heads.kernel(
        ("attention_grad_key_value", "gradient of keys and values"),
        wanted,
        tile,
        include_str!("attention_grad_keys.cu"),
        grid,
    );
    vec![delta, queries, keys]
}

impl AttentionShape<'_> {
    /// Queries, keys, values and the mask.
    fn operands(&self) -> Vec<(String, Argument)> {
        let parts = self.op.parts(self.depth);
        let mut parameters: Vec<(String, Argument)> = ["q", "k", "v"]
            .iter()
            .zip(parts)
            .map(|(name, (tensor, _))| parameter(self.types[tensor], name, Argument::Input(tensor)))
            .collect();
        if let Some(dtype) = self.mask {
            parameters.push(parameter(dtype, "mask", Argument::Input(self.types.len())));
        }
        if self.op.dropout.is_some() {
            parameters.push(("const Header* header".to_string(), Argument::Header));
        }
        parameters
    }

    /// Whether all tensors have one 16-bit type and rows of whole 16-byte vectors, with a depth of at most `deepest`.
    fn fits_tensor_cores(&self, deepest: usize) -> bool {
        let dtype = self.types[0];
        let same = dtype.is_half() && self.types.iter().all(|other| *other == dtype);
        self.tensor_cores && same && self.depth.is_multiple_of(8) && self.depth <= deepest && self.op.scale() > 0.0
    }

    /// A kernel on tensor cores with 16 rows per warp; `tile` names the extent of the other tile.
    fn tensor_core_kernel(
        &self,
        name: (&'static str, &str),
        parameters: Vec<(String, Argument)>,
        (tile, warps): (&str, usize),
        text: &str,
        grid: [u32; 3],
    ) -> Kernel {
        let width = self.depth.next_multiple_of(16);
        // Two tiles of two tensors fit in static shared memory.
        let rows = match width {
            0..=64 => 64,
            65..=128 => 32,
            _ => 16,
        };
        let mut body = self.constants(&parameters);
        let _ = writeln!(body, "constexpr int WIDTH = {width}, {tile} = {rows}, WARPS = {warps}, THREADS = {};", 32 * warps);
        let _ = writeln!(body, "using Half = {};", super::type_name(self.types[0]));
        let scale2 = self.op.scale() * std::f32::consts::LOG2_E;
        let _ = writeln!(
            body,
            "const float LOG2E = number({:#x}), SCALE2 = number({:#x});",
            std::f32::consts::LOG2_E.to_bits(),
            scale2.to_bits()
        );
        Kernel { body: body + text, threads: 32 * warps as u32, ..self.described(name, parameters, grid) }
    }

    fn kernel(
        &self,
        name: (&'static str, &str),
        parameters: Vec<(String, Argument)>,
        tile: (usize, usize),
        text: &str,
        grid: [u32; 3],
    ) -> Kernel {
        let chunk = self.depth.next_multiple_of(4).min(CHUNK);
        let mut body = self.constants(&parameters);
        let _ = writeln!(body, "constexpr int CHUNK = {chunk}, CHUNKS = {}, RQ = {}, RK = {};", self.depth.div_ceil(chunk), tile.0, tile.1);
        Kernel { body: body + text, ..self.described(name, parameters, grid) }
    }

    /// A kernel without a body.
    fn described(&self, (name, what): (&'static str, &str), parameters: Vec<(String, Argument)>, grid: [u32; 3]) -> Kernel {
        let AttentionShape { op, batch, queries, keys, depth, .. } = *self;
        let causal = if op.causal { ", causal" } else { "" };
        let dropout = op.dropout.map_or(String::new(), |dropout| format!(", dropout {}", dropout.rate()));
        Kernel {
            name,
            what: format!("{what}: {batch} × {} heads on {}, {queries} × {keys} × {depth}{causal}{dropout}", op.heads, op.kv_heads),
            parameters,
            body: String::new(),
            grid,
            threads: THREADS as u32,
        }
    }

    /// The extents, the scale and the dropout of a kernel with these parameters.
    fn constants(&self, parameters: &[(String, Argument)]) -> String {
        let AttentionShape { op, batch, queries, keys, depth, .. } = *self;
        let [q, k, v] = op.parts(depth);
        let widths = self.widths();
        let mut body = String::new();
        let _ = writeln!(body, "constexpr int BATCH = {batch}, HEADS = {}, KV_HEADS = {};", op.heads, op.kv_heads);
        let _ = writeln!(body, "constexpr int QUERIES = {queries}, KEYS = {keys}, DEPTH = {depth};");
        let _ = writeln!(body, "constexpr int Q_WIDTH = {}, K_WIDTH = {}, V_WIDTH = {};", widths[q.0], widths[k.0], widths[v.0]);
        let _ = writeln!(body, "constexpr int Q_START = {}, K_START = {}, V_START = {};", q.1, k.1, v.1);
        let _ = writeln!(body, "constexpr bool CAUSAL = {}, MASKED = {};", op.causal, self.mask.is_some());
        if self.mask.is_none() {
            body += "const unsigned char* mask = nullptr;\n";
        }
        // The kernel that multiplies outputs by their gradients does not use the weights.
        if self.op.dropout.is_none() || parameters.iter().any(|(_, argument)| *argument == Argument::Header) {
            body += &self.dropout_factor();
        }
        let extent = batch * (queries.max(keys)) * widths.iter().max().expect("there is a tensor");
        let _ = writeln!(body, "const float SCALE = number({:#x});\nusing Index = {};", op.scale, index_type(extent));
        body
    }

    /// The dropout factor of key `j` in a row, which is a query of a head of a sequence, counted over all of them.
    fn dropout_factor(&self) -> String {
        let Some(dropout) = self.op.dropout else {
            return "const auto kept = [](unsigned long long, int) { return 1.0f; };\n\
                    const auto drop = [](float&, float&, unsigned long long, int) {};\n"
                .to_string();
        };
        let before = self.sequences * self.op.heads * self.queries;
        let drawn = format!("uniform(header, {}, (header->first_row * {before} + row) * KEYS + j)", dropout.stream);
        format!(
            "const float RATE = number({:#x}), KEPT = number({:#x});\n\
             const auto kept = [&](unsigned long long row, int j) {{ return {drawn} < RATE ? 0.0f : KEPT; }};\n\
             // Of two adjacent keys.\n\
             const auto drop = [&](float& x, float& y, unsigned long long row, int j) {{\n\
             {i}float drawn[2];\n\
             {i}uniform_pair(drawn, header, {stream}, (header->first_row * {before} + row) * KEYS + j);\n\
             {i}x *= drawn[0] < RATE ? 0.0f : KEPT;\n\
             {i}y *= drawn[1] < RATE ? 0.0f : KEPT;\n\
             }};\n",
            dropout.rate,
            dropout.kept().to_bits(),
            i = "    ",
            stream = dropout.stream,
        )
    }

    /// Elements per position of each tensor.
    fn widths(&self) -> Vec<usize> {
        use plimsoll_core::ops::Packing;
        let (q, kv) = (self.op.heads * self.depth, self.op.kv_heads * self.depth);
        match self.op.packing {
            Packing::Separate => vec![q, kv, kv],
            Packing::KeysValues => vec![q, 2 * kv],
            Packing::All => vec![q + 2 * kv],
        }
    }
}
