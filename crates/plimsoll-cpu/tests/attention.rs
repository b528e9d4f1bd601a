//! Attention and its gradient against plain loops in double precision: every instruction set, every type, any number of
//! threads, lengths past every tile and chunk.

use plimsoll_core::DType;
use plimsoll_cpu::kernels::attention::{
    AttentionShape, Backward, Forward, HeadsPtr, KeyMask, backward_with, backward_workspace, forward_with, forward_workspace,
};
use plimsoll_cpu::runtime::threads::ThreadPool;
use plimsoll_cpu::simd::Isa;

/// Multiples of 1/32 between -1 and 1 from a counter, which every real type holds exactly.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 58) as f32 / 32.0 - 1.0
        })
        .collect()
}

/// The bytes of numbers that the type holds exactly.
fn encode(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let bits = |x: &f32| x.to_bits();
    match dtype {
        DType::F32 => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        DType::BF16 => numbers.iter().flat_map(|x| ((bits(x) >> 16) as u16).to_ne_bytes()).collect(),
        DType::F16 => {
            let half = |x: &f32| match bits(x) & 0x7fff_ffff {
                0 => 0,
                body => (bits(x) >> 16 & 0x8000) as u16 | ((body - (112 << 23)) >> 13) as u16,
            };
            numbers.iter().flat_map(|x| half(x).to_ne_bytes()).collect()
        }
        other => unreachable!("not a type of this test: {other}"),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let pair = |bytes: &[u8]| u16::from_ne_bytes([bytes[0], bytes[1]]);
    let number = |bytes: &[u8]| match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        DType::BF16 => f64::from(f32::from_bits(u32::from(pair(bytes)) << 16)),
        _ => {
            let bits = pair(bytes);
            let (sign, exponent, rest) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, bits >> 10 & 31, f64::from(bits & 1023));
            assert!(exponent < 31, "not finite");
            sign * if exponent == 0 { rest * 2f64.powi(-24) } else { (1024.0 + rest) * 2f64.powi(i32::from(exponent) - 25) }
        }
    };
    bytes.chunks_exact(dtype.size()).map(number).collect()
}

struct Case {
    shape: AttentionShape,
    dtype: DType,
    /// `[batch, length, (heads + 2·kv_heads)·depth]`
    qkv: Vec<f32>,
    d_o: Vec<f32>,
    mask: Option<Vec<u8>>,
}

/// Result, logarithms, gradient of the packed operands.
type Results = [Vec<f64>; 3];

impl Case {
    fn new(shape: AttentionShape, dtype: DType, masked: bool) -> Case {
        let places = shape.batch * shape.queries;
        let qkv = noise(places * (shape.heads + 2 * shape.kv_heads) * shape.depth, 1);
        let mask = masked.then(|| (0..shape.batch * shape.keys).map(|i| u8::from(i % 3 != 1 && i >= shape.keys / 2)).collect());
        Case { shape, dtype, qkv, d_o: noise(places * shape.heads * shape.depth, 2), mask }
    }

    fn width(&self) -> usize {
        (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.depth
    }

    /// Forward and backward in memory that held something else before.
    fn run(&self, isa: Isa, threads: usize) -> [Vec<u8>; 3] {
        let AttentionShape { batch, queries, heads, kv_heads, depth, .. } = self.shape;
        let (pool, size) = (ThreadPool::new(threads).unwrap(), self.dtype.size());
        let (mut qkv, mut d_o) = (encode(self.dtype, &self.qkv), encode(self.dtype, &self.d_o));
        let (mut d_qkv, mut o, mut lse) = (vec![0xff; qkv.len()], vec![0xff; d_o.len()], vec![f32::NAN; batch * heads * queries]);
        let parts = [0, heads * depth, (heads + kv_heads) * depth];
        let part = |tensor: &mut Vec<u8>, start: usize, row: usize| HeadsPtr {
            start: tensor[start * size..].as_mut_ptr(),
            dtype: self.dtype,
            row,
        };
        let [q, k, v] = parts.map(|start| part(&mut qkv, start, self.width()));
        let [d_q, d_k, d_v] = parts.map(|start| part(&mut d_qkv, start, self.width()));
        let (to, d_o) = (part(&mut o, 0, heads * depth), part(&mut d_o, 0, heads * depth));
        let mask = self.mask.as_ref().map(|mask| KeyMask { start: mask.as_ptr(), dtype: DType::U8 });
        let mut workspace = vec![f32::NAN; forward_workspace(&self.shape, threads)];
        let tensors = Forward { q, k, v, mask, dropout_mask: None, o: to, lse: lse.as_mut_ptr() };
        // SAFETY: the heads describe the vectors above, which live to the end.
        unsafe { forward_with(isa, &pool, &self.shape, &tensors, &mut workspace) };
        let mut workspace = vec![f32::NAN; backward_workspace(&self.shape, self.dtype, threads)];
        let tensors = Backward { q, k, v, mask, dropout_mask: None, o: to, lse: lse.as_ptr(), d_o, d_q, d_k, d_v };
        // SAFETY: as above.
        unsafe { backward_with(isa, &pool, &self.shape, &tensors, &mut workspace) };
        [o, encode(DType::F32, &lse), d_qkv]
    }

    fn reference(&self) -> Results {
        let AttentionShape { batch, queries, keys, heads, kv_heads, depth, causal, scale, .. } = self.shape;
        let (width, out) = (self.width(), heads * depth);
        let mut results = [vec![0.0; batch * queries * out], vec![0.0; batch * heads * queries], vec![0.0; self.qkv.len()]];
        let [o, lse, d_qkv] = &mut results;
        for (b, h, i) in (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i)))) {
            let group = h / (heads / kv_heads);
            let place = |t: usize, start: usize, head: usize| (b * keys + t) * width + start * depth + head * depth;
            let (q, k, v) = (place(i, 0, h), |j| place(j, heads, group), |j| place(j, heads + kv_heads, group));
            let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
            let at = |start: usize| &self.qkv[start..start + depth];
            let visible = |j: &usize| (!causal || *j <= i) && self.mask.as_ref().is_none_or(|mask| mask[b * keys + j] != 0);
            let scores: Vec<(usize, f64)> = (0..keys).filter(visible).map(|j| (j, dot(at(q), at(k(j))) * f64::from(scale))).collect();
            if scores.is_empty() {
                continue;
            }
            let sum = scores.iter().map(|(_, score)| score.exp()).sum::<f64>();
            lse[(b * heads + h) * queries + i] = sum.ln();
            let row = (b * queries + i) * out + h * depth;
            let d_o = &self.d_o[row..row + depth];
            for (j, score) in &scores {
                (0..depth).for_each(|c| o[row + c] += score.exp() / sum * f64::from(self.qkv[v(*j) + c]));
            }
            let delta: f64 = (0..depth).map(|c| f64::from(d_o[c]) * o[row + c]).sum();
            for (j, score) in scores {
                let weight = score.exp() / sum;
                let slope = weight * (dot(d_o, at(v(j))) - delta) * f64::from(scale);
                for c in 0..depth {
                    d_qkv[q + c] += slope * f64::from(self.qkv[k(j) + c]);
                    d_qkv[k(j) + c] += slope * f64::from(self.qkv[q + c]);
                    d_qkv[v(j) + c] += weight * f64::from(d_o[c]);
                }
            }
        }
        results
    }
}

fn cases() -> Vec<Case> {
    let shape = |batch, length, (heads, kv_heads), depth, causal| AttentionShape {
        batch,
        queries: length,
        keys: length,
        heads,
        kv_heads,
        depth,
        causal,
        scale: 0.6,
        drops: false,
    };
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        cases.push(Case::new(shape(1, 300, (1, 1), 16, true), dtype, false));
        cases.push(Case::new(shape(1, 300, (2, 1), 20, false), dtype, true));
        cases.push(Case::new(shape(2, 97, (2, 2), 50, true), dtype, true));
        cases.push(Case::new(shape(3, 1, (3, 3), 5, true), dtype, false));
    }
    cases
}

#[test]
fn results_and_gradients_match_plain_loops() {
    for case in cases() {
        let want = case.reference();
        // A result in 16 bits is rounded, and its gradient starts from the rounded one.
        let allowed = match case.dtype {
            DType::F32 => 2e-5,
            DType::F16 => 2e-3,
            _ => 1.5e-2,
        };
        for isa in Isa::available() {
            for ((got, want), (name, dtype)) in
                case.run(isa, 2).iter().zip(&want).zip([("result", case.dtype), ("logarithms", DType::F32), ("gradient", case.dtype)])
            {
                let largest = want.iter().fold(1.0, |largest: f64, x| largest.max(x.abs()));
                let allowed = if dtype == DType::F32 { 2e-5 } else { allowed };
                for (i, (got, want)) in decode(dtype, got).iter().zip(want).enumerate() {
                    assert!(
                        (got - want).abs() <= allowed * largest,
                        "{name} {i} of {:?} in {dtype} on {isa:?}: {got}, not {want}",
                        case.shape
                    );
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for case in cases() {
        let alone = case.run(Isa::best(), 1);
        for threads in [2, 3, 5] {
            assert!(case.run(Isa::best(), threads) == alone, "{:?} in {} on {threads} threads", case.shape, case.dtype);
        }
    }
}

/// What is not a number must be seen, not averaged away.
#[test]
fn a_nan_among_the_operands_comes_out() {
    for place in [0, 16, 32] {
        let shape =
            AttentionShape { batch: 1, queries: 5, keys: 5, heads: 1, kv_heads: 1, depth: 16, causal: false, scale: 0.25, drops: false };
        let mut case = Case::new(shape, DType::F32, false);
        case.qkv[place] = f32::NAN;
        let [o, _, d_qkv] = case.run(Isa::best(), 1);
        assert!(decode(DType::F32, &o).iter().any(|x| x.is_nan()), "the result, from {place}");
        assert!(decode(DType::F32, &d_qkv).iter().any(|x| x.is_nan()), "the gradient, from {place}");
    }
}
