//! Cases for attention and its gradient: lengths that are no multiple of a tile, odd depths, grouped heads, masks that
//! hide some, all or no keys.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Attention, AttentionGrad, Packing, WeightDropout};

/// Which keys are masked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MaskCase {
    None,
    Some,
    All,
}

/// One attention configuration.
#[derive(Clone, Copy, Debug)]
struct AttentionCase {
    packing: Packing,
    /// Query heads and key/value heads.
    heads: (usize, usize),
    lengths: (usize, usize),
    depth: usize,
    causal: bool,
    mask: MaskCase,
    /// Dropout rate in percent.
    dropout: u32,
}

impl AttentionCase {
    fn name(&self) -> String {
        let AttentionCase { packing, heads, lengths, depth, causal, mask, dropout } = self;
        let causal = if *causal { ", causal" } else { "" };
        let dropout = if *dropout > 0 { format!(", {dropout} % dropped") } else { String::new() };
        format!(
            "{packing:?}, {} heads on {} of {depth}, {} queries, {} keys{causal}, mask {mask:?}{dropout}",
            heads.0, heads.1, lengths.0, lengths.1
        )
    }

    fn op(&self) -> Attention {
        // A non-default scale, so that a kernel that ignores it fails.
        let scale = (0.7 / (self.depth as f32).sqrt()).to_bits();
        let (heads, kv_heads) = self.heads;
        let dropout = (self.dropout > 0).then(|| WeightDropout::new(self.dropout as f32 / 100.0, 5));
        Attention { packing: self.packing, heads, kv_heads, causal: self.causal, scale, dropout }
    }

    fn shapes(&self, batch: Dim) -> Vec<Shape> {
        let sequence = |length: usize, heads: usize| Shape::new([batch, length.into(), (heads * self.depth).into()]);
        let ((heads, kv_heads), (queries, keys)) = (self.heads, self.lengths);
        match self.packing {
            Packing::Separate => vec![sequence(queries, heads), sequence(keys, kv_heads), sequence(keys, kv_heads)],
            Packing::KeysValues => vec![sequence(queries, heads), sequence(keys, 2 * kv_heads)],
            Packing::All => vec![sequence(queries, heads + 2 * kv_heads)],
        }
    }

    /// The operands and the mask.
    fn operands(&self, s: &mut Stage<'_>) -> Result<Vec<ValueId>, GraphError> {
        s.rows = s.rows.min(if self.lengths.0 > 32 { 1 } else { 3 });
        let batch = s.draw.pick(&[1, 1, 2]);
        let batch = Dim::times_batch(batch);
        let mut operands = self.shapes(batch).into_iter().map(|shape| s.operand(shape, Domain::Any)).collect::<Result<Vec<_>, _>>()?;
        if self.mask != MaskCase::None {
            let keys = Shape::new([batch, self.lengths.1.into()]);
            let dtype = s.draw.pick(&[DType::U8, DType::I32]);
            operands.push(s.integers(dtype, keys, if self.mask == MaskCase::All { 1 } else { 2 }));
        }
        Ok(operands)
    }
}

fn settings() -> Vec<AttentionCase> {
    let plain = AttentionCase {
        packing: Packing::Separate,
        heads: (2, 2),
        lengths: (7, 7),
        depth: 5,
        causal: false,
        mask: MaskCase::None,
        dropout: 0,
    };
    let mut settings = vec![
        plain,
        AttentionCase { lengths: (1, 1), heads: (1, 1), depth: 1, ..plain },
        AttentionCase { lengths: (1, 1), causal: true, ..plain },
        AttentionCase { lengths: (1, 9), ..plain },
        AttentionCase { lengths: (3, 11), causal: true, ..plain },
        AttentionCase { lengths: (11, 3), causal: true, ..plain },
        AttentionCase { heads: (1, 1), lengths: (130, 130), causal: true, ..plain },
        AttentionCase { heads: (1, 1), lengths: (130, 130), ..plain },
        AttentionCase { heads: (2, 1), lengths: (71, 130), mask: MaskCase::Some, ..plain },
        AttentionCase { heads: (1, 1), lengths: (130, 71), causal: true, mask: MaskCase::Some, ..plain },
        AttentionCase { heads: (1, 1), lengths: (9, 9), depth: 67, ..plain },
        AttentionCase { heads: (4, 2), ..plain },
        AttentionCase { heads: (3, 1), causal: true, packing: Packing::All, ..plain },
        AttentionCase { mask: MaskCase::All, ..plain },
        AttentionCase { mask: MaskCase::All, causal: true, packing: Packing::All, ..plain },
        AttentionCase { mask: MaskCase::Some, lengths: (4, 1), ..plain },
        AttentionCase { packing: Packing::KeysValues, lengths: (5, 12), heads: (4, 2), mask: MaskCase::Some, ..plain },
    ];
    settings.extend([
        AttentionCase { dropout: 20, ..plain },
        AttentionCase { dropout: 50, packing: Packing::All, heads: (4, 2), lengths: (9, 9), causal: true, ..plain },
        AttentionCase { dropout: 90, packing: Packing::KeysValues, lengths: (5, 13), mask: MaskCase::Some, ..plain },
        AttentionCase { dropout: 10, heads: (2, 1), lengths: (71, 130), ..plain },
        AttentionCase { dropout: 30, heads: (1, 1), lengths: (130, 130), causal: true, ..plain },
    ]);
    for packing in [Packing::Separate, Packing::KeysValues, Packing::All] {
        for causal in [false, true] {
            for mask in [MaskCase::None, MaskCase::Some] {
                settings.push(AttentionCase { packing, causal, mask, depth: 8, heads: (3, 3), ..plain });
            }
        }
    }
    settings
}

/// Depths of whole vectors, which tensor cores require, with several tiles of queries and keys. Too large for finite
/// differences.
fn deep_settings() -> Vec<AttentionCase> {
    let packed = AttentionCase {
        packing: Packing::All,
        heads: (2, 1),
        lengths: (70, 70),
        depth: 64,
        causal: false,
        mask: MaskCase::None,
        dropout: 0,
    };
    let mut settings = Vec::new();
    for (depth, length) in [(16, 33), (64, 70), (72, 20), (128, 40), (136, 20)] {
        for causal in [false, true] {
            settings.push(AttentionCase { depth, lengths: (length, length), causal, ..packed });
        }
    }
    settings.extend([
        AttentionCase { mask: MaskCase::Some, ..packed },
        AttentionCase { depth: 32, dropout: 30, causal: true, ..packed },
        AttentionCase {
            depth: 24,
            lengths: (19, 70),
            packing: Packing::KeysValues,
            heads: (2, 2),
            mask: MaskCase::Some,
            dropout: 20,
            ..packed
        },
    ]);
    settings
}

pub(super) fn attention(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for setting in settings() {
        let mut s = Stage::new(draw);
        let operands = setting.operands(&mut s)?;
        let results = s.graph.add(Op::Attention(setting.op()), &operands)?;
        cases.push(s.finish(setting.name(), &results[..1])?);

        let mut s = Stage::new(draw);
        let operands = setting.operands(&mut s)?;
        let results = s.graph.add(Op::Attention(setting.op()), &operands)?;
        cases.push(s.finish_forward(format!("{}, and logarithms", setting.name()), &results)?);
    }
    for setting in deep_settings() {
        let mut s = Stage::new(draw);
        let operands = setting.operands(&mut s)?;
        let results = s.graph.add(Op::Attention(setting.op()), &operands)?;
        cases.push(s.finish_forward(setting.name(), &results)?);
    }
    for (keys, values) in [(DType::BF16, DType::BF16), (DType::F16, DType::BF16), (DType::F32, DType::F16)] {
        let mut s = Stage::new(draw);
        let q = s.operand(Shape::batch_of([6, 10]), Domain::Any)?;
        let (k, v) = (exact(&mut s, Shape::batch_of([9, 10]), keys)?, exact(&mut s, Shape::batch_of([9, 10]), values)?);
        let results = s.graph.add(Op::Attention(Attention::new(Packing::Separate, 2, 5)), &[q, k, v])?;
        cases.push(s.finish_forward(format!("keys in {keys}, values in {values}"), &results)?);
    }
    Ok(cases)
}

pub(super) fn attention_grad(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for setting in settings().into_iter().chain(deep_settings()) {
        let mut s = Stage::new(draw);
        let mut operands = setting.operands(&mut s)?;
        let results = s.graph.add(Op::Attention(setting.op()), &operands)?;
        let shape = s.graph.shape(results[0]).clone();
        let dy = s.operand(shape, Domain::Any)?;
        operands.extend(results.into_iter().chain([dy]));
        let gradients = s.graph.add(Op::AttentionGrad(AttentionGrad { attention: setting.op() }), &operands)?;
        cases.push(s.finish_forward(setting.name(), &gradients)?);
    }
    Ok(cases)
}

/// Numbers between -1 and 1 that every real type represents exactly.
fn exact(s: &mut Stage<'_>, shape: Shape, dtype: DType) -> Result<ValueId, GraphError> {
    let bytes = s.integers(DType::U8, shape.clone(), 64);
    let centred = Expr::build(|e| e.mul(e.sub(e.input(0), e.constant(32.0)), e.constant(1.0 / 32.0)));
    Ok(s.graph.pointwise_many(centred, &[bytes], shape, vec![dtype])?[0])
}
