//! Cases for recurrent layers: every cell, one step and several, reversed, masked, with initial states, and beyond one
//! tile.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::ops::{Activation, Cell, Recurrent, RecurrentGrad};

const CELLS: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::Simple(Activation::Tanh), Cell::Simple(Activation::Relu)];

/// A layer and its sequence length.
struct RecurrentLayer {
    cell: Cell,
    batch: Dim,
    steps: usize,
    units: usize,
    reverse: bool,
    masked: bool,
    initial: bool,
}

impl RecurrentLayer {
    fn states(&self) -> Shape {
        Shape::new([self.batch, self.steps.into(), self.units.into()])
    }

    fn walked(&self) -> Shape {
        Shape::new([self.batch, self.steps.into(), (self.cell.gates() * self.units).into()])
    }

    fn state(&self) -> Shape {
        Shape::new([self.batch, self.units.into()])
    }

    /// A kernel small enough that gates do not saturate.
    fn kernel(&self, s: &mut Stage<'_>) -> Result<ValueId, GraphError> {
        let kernel = s.operand(Shape::fixed([self.units, self.cell.gates() * self.units]), Domain::Any)?;
        s.graph.map(kernel, |e, x| e.mul(e.constant(0.4), x))
    }

    fn bias(&self, s: &mut Stage<'_>) -> Result<Option<ValueId>, GraphError> {
        let shape = Shape::fixed([self.cell.gates() * self.units]);
        (self.cell == Cell::Gru).then(|| s.operand(shape, Domain::Any)).transpose()
    }

    /// A byte or real mask; both are equivalent.
    fn mask(&self, s: &mut Stage<'_>) -> Result<Option<ValueId>, GraphError> {
        if !self.masked {
            return Ok(None);
        }
        let bytes = s.integers(DType::U8, Shape::new([self.batch, self.steps.into()]), 2);
        Ok(Some(if s.draw.flip() { s.graph.cast(bytes, DType::F32)? } else { bytes }))
    }

    fn add(&self, s: &mut Stage<'_>) -> Result<Vec<ValueId>, GraphError> {
        let (x, kernel, bias, mask) = (s.operand(self.walked(), Domain::Any)?, self.kernel(s)?, self.bias(s)?, self.mask(s)?);
        let mut inputs: Vec<ValueId> = [Some(x), Some(kernel), bias, mask].into_iter().flatten().collect();
        let states = if self.initial { 1 + usize::from(self.cell == Cell::Lstm) } else { 0 };
        for _ in 0..states {
            inputs.push(s.operand(self.state(), Domain::Any)?);
        }
        let &RecurrentLayer { cell, units, reverse, masked, initial, .. } = self;
        s.graph.add(Op::Recurrent(Recurrent { cell, units, reverse, masked, initial }), &inputs)
    }

    fn name(&self) -> String {
        let &RecurrentLayer { cell, units, reverse, masked, initial, .. } = self;
        format!("{} steps, {}", self.steps, Recurrent { cell, units, reverse, masked, initial }.attributes())
    }
}

/// One case per cell and direction, with random sizes.
fn over_layers(draw: &mut Draw, build: impl Fn(Stage<'_>, RecurrentLayer) -> Result<Case, GraphError>) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for cell in CELLS {
        let walks = [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)];
        for (i, (reverse, masked, initial)) in walks.into_iter().enumerate() {
            let mut s = Stage::new(draw);
            let batch = s.batch();
            let (steps, units) = if i == 0 { (1, 3) } else { (s.draw.pick(&[1, 2, 3, 5]), s.draw.pick(&[1, 3, 4])) };
            cases.push(build(s, RecurrentLayer { cell, batch, steps, units, reverse, masked, initial })?);
        }
    }
    Ok(cases)
}

/// The differentiable outputs.
fn smooth(cell: Cell, outputs: &[ValueId]) -> Vec<ValueId> {
    if cell == Cell::Lstm { vec![outputs[0], outputs[2]] } else { vec![outputs[0]] }
}

pub(super) fn recurrent(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = over_layers(draw, |mut s, layer| {
        let results = layer.add(&mut s)?;
        s.finish(layer.name(), &smooth(layer.cell, &results))
    })?;
    for cell in CELLS {
        let mut s = Stage::new(draw);
        s.rows = 11;
        let layer = RecurrentLayer { cell, batch: Dim::BATCH, steps: 3, units: 19, reverse: false, masked: true, initial: true };
        let results = layer.add(&mut s)?;
        cases.push(s.finish_forward(format!("past one tile, {}", cell.name()), &results)?);

        let mut s = Stage::new(draw);
        let layer = RecurrentLayer { cell, batch: Dim::fixed(2), steps: 3, units: 2, reverse: true, masked: false, initial: false };
        let results = layer.add(&mut s)?;
        let last = smooth(cell, &results);
        cases.push(s.finish(format!("no batch, only the last result, {}", cell.name()), &last[last.len() - 1..])?);
    }
    Ok(cases)
}

pub(super) fn recurrent_grad(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_layers(draw, |mut s, layer| {
        let (kernel, bias) = (layer.kernel(&mut s)?, layer.bias(&mut s)?);
        let simple = matches!(layer.cell, Cell::Simple(_));
        let mut operand_if = |there: bool, shape: Shape| there.then(|| s.operand(shape, Domain::Any)).transpose();
        let gates = operand_if(!simple, layer.walked())?;
        let hidden = operand_if(layer.cell != Cell::Lstm, layer.states())?;
        let before = operand_if(layer.initial && !simple, layer.state())?;
        let d_hidden = operand_if(true, layer.states())?;
        let last_state = layer.cell == Cell::Lstm && layer.reverse;
        let d_state = operand_if(last_state, layer.state())?;
        let mask = layer.mask(&mut s)?;
        let inputs: Vec<ValueId> = [Some(kernel), bias, gates, hidden, mask, before, d_hidden, d_state].into_iter().flatten().collect();
        let RecurrentLayer { cell, units, reverse, masked, initial, .. } = layer;
        let op = RecurrentGrad { cell, units, reverse, masked, initial, last_state };
        let results = s.graph.add(Op::RecurrentGrad(op), &inputs)?;
        s.finish_forward(layer.name(), &results)
    })
}
