//! Training steps of well-known networks, written in ops: what the figures of papers on recomputation are about.

use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::ops::{Concat, Conv2d, MaxPool, Reduction, Window};
use plimsoll_core::passes::optimize;
use plimsoll_core::shape::TensorType;
use plimsoll_core::step::training_programs;
use plimsoll_core::{DType, Op, Shape};

type Built = Result<ValueId, GraphError>;

/// A network under construction.
pub struct Net {
    g: Graph,
    x: ValueId,
    layers: usize,
}

impl Net {
    pub fn new(height: usize, width: usize) -> Net {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([height, width, 3])));
        Net { g, x, layers: 0 }
    }

    fn parameter(&mut self, name: &str, shape: Shape) -> Built {
        self.g.state(name, StateKind::Parameter, TensorType::f32(shape), Init::Uniform { limit: 0.1 })
    }

    fn scoped(&mut self, kind: &str, body: impl FnOnce(&mut Net) -> Built) -> Built {
        self.layers += 1;
        let mut inner = Net { g: std::mem::take(&mut self.g), x: self.x, layers: self.layers };
        let name = format!("{kind}{}", self.layers);
        let mut result = None;
        let mut graph = std::mem::take(&mut inner.g);
        graph.in_scope(&name, |g| {
            inner.g = std::mem::take(g);
            result = Some(body(&mut inner));
            *g = std::mem::take(&mut inner.g);
        });
        self.g = graph;
        result.expect("the body ran")
    }

    fn channels(&self, x: ValueId) -> usize {
        self.g.shape(x).last().and_then(|dim| dim.as_fixed()).expect("images have channels")
    }

    fn image(&self, x: ValueId) -> (usize, usize) {
        let dims = self.g.shape(x).dims();
        (dims[1].factor(), dims[2].factor())
    }

    fn conv(&mut self, x: ValueId, filters: usize, size: usize, stride: usize, bias: bool) -> Built {
        self.scoped("conv", |net| {
            let inner = net.channels(x);
            let filter = net.parameter("kernel", Shape::fixed([size, size, inner, filters]))?;
            let window = Window::same((size, size), (stride, stride), (1, 1), net.image(x));
            let y =
                net.g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: plimsoll_core::DType::F32 }), &[x, filter])?;
            if !bias {
                return Ok(y);
            }
            let bias = net.parameter("bias", Shape::fixed([filters]))?;
            net.g.plus(y, bias)
        })
    }

    fn depthwise(&mut self, x: ValueId, stride: usize) -> Built {
        self.scoped("depthwise", |net| {
            let channels = net.channels(x);
            let filter = net.parameter("kernel", Shape::fixed([3, 3, 1, channels]))?;
            let window = Window::same((3, 3), (stride, stride), (1, 1), net.image(x));
            net.g.add_one(Op::Conv2d(Conv2d { window, groups: channels, epilogue: None, dtype: plimsoll_core::DType::F32 }), &[x, filter])
        })
    }

    fn norm(&mut self, x: ValueId) -> Built {
        self.scoped("norm", |net| {
            let channels = net.channels(x);
            let (h, w) = net.image(x);
            let scale = net.parameter("scale", Shape::fixed([channels]))?;
            let shift = net.parameter("shift", Shape::fixed([channels]))?;
            let share = net.g.scalar("row_share");
            let part = 1.0 / (h * w) as f32;
            let averaged = |g: &mut Graph, sum: ValueId| {
                g.pointwise(Expr::build(|e| e.mul(e.mul(e.input(0), e.input(1)), e.constant(part))), &[sum, share])
            };
            let sum = net.g.reduce(Reduction::Sum, x, &[0, 1, 2])?;
            let mean = averaged(&mut net.g, sum)?;
            let off = net.g.binary(Binary::Sub, x, mean)?;
            let squared = net.g.times(off, off)?;
            let sum = net.g.reduce(Reduction::Sum, squared, &[0, 1, 2])?;
            let variance = averaged(&mut net.g, sum)?;
            let rsd = net.g.map(variance, |e, x| e.div(e.constant(1.0), e.unary(Unary::Sqrt, e.add(x, e.constant(1e-5)))))?;
            let unit = net.g.times(off, rsd)?;
            let scaled = net.g.times(unit, scale)?;
            net.g.plus(scaled, shift)
        })
    }

    fn relu(&mut self, x: ValueId) -> Built {
        self.g.map(x, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
    }

    fn pool(&mut self, x: ValueId, size: usize, stride: usize) -> Built {
        let window = Window::same((size, size), (stride, stride), (1, 1), self.image(x));
        self.scoped("pool", |net| Ok(net.g.add(Op::MaxPool(MaxPool { window }), &[x])?[0]))
    }

    fn dense(&mut self, x: ValueId, to: usize) -> Built {
        self.scoped("dense", |net| {
            let from = net.channels(x);
            let kernel = net.parameter("kernel", Shape::fixed([from, to]))?;
            let bias = net.parameter("bias", Shape::fixed([to]))?;
            let y = net.g.matmul(x, kernel)?;
            net.g.plus(y, bias)
        })
    }

    /// Twice as high and wide, every pixel four times.
    fn upsample(&mut self, x: ValueId) -> Built {
        let (shape, (h, w), c) = (self.g.shape(x).clone(), self.image(x), self.channels(x));
        let batch = shape.dims()[0];
        let thin = self.g.reshape(x, Shape::new([batch, h.into(), 1.into(), (w).into(), 1.into(), c.into()]))?;
        let wide = Shape::new([batch, h.into(), 2.into(), w.into(), 2.into(), c.into()]);
        let stretched = self.g.pointwise_over(Expr::identity(), &[thin], wide)?;
        self.g.reshape(stretched, Shape::new([batch, (2 * h).into(), (2 * w).into(), c.into()]))
    }

    fn global_pool(&mut self, x: ValueId) -> Built {
        let (batch, (h, w), c) = (self.g.shape(x).dims()[0], self.image(x), self.channels(x));
        let sum = self.g.reduce(Reduction::Sum, x, &[1, 2])?;
        let sum = self.g.reshape(sum, Shape::new([batch, c.into()]))?;
        self.g.map(sum, |e, x| e.mul(x, e.constant(1.0 / (h * w) as f32)))
    }

    /// The improved graph of a step with the softmax cross-entropy of `scores` (classes last) and plain descent.
    fn step(mut self, scores: ValueId) -> Result<Graph, GraphError> {
        let classes = self.channels(scores);
        let rows: usize = self.g.shape(scores).dims()[1..].iter().rev().skip(1).map(|dim| dim.factor()).product();
        let g = &mut self.g;
        let y = g.input("y", TensorType::new(DType::I32, Shape::batch_of([rows, 1])));
        let batch = g.shape(scores).dims()[0];
        let flat = g.reshape(scores, Shape::new([batch, rows.into(), classes.into()]))?;
        let log_sum = g.reduce(Reduction::LogSumExp, flat, &[2])?;
        let chosen = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(2), e.input(1));
            e.select(here, e.sub(e.input(2), e.input(0)), e.constant(0.0))
        });
        let entropy = g.pointwise(chosen, &[flat, y, log_sum])?;
        let sum = g.sum(entropy)?;
        let share = g.scalar("row_share");
        let loss = g.times(sum, share)?;
        g.output("loss", loss);
        let graph = training_programs(&self.g, loss, false, &descend)?.remove(0).1;
        optimize(&graph)
    }
}

fn descend(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = g.state_value(parameter).expect("parameters are read");
    let rate = g.scalar("rate");
    let new = g.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(2), e.input(1)))), &[value, gradient, rate])?;
    g.update(parameter, new);
    Ok(())
}

pub fn vgg(convs: [usize; 5]) -> Result<Graph, GraphError> {
    let mut net = Net::new(224, 224);
    let mut x = net.x;
    for (count, filters) in convs.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..count {
            x = net.conv(x, filters, 3, 1, true)?;
            x = net.relu(x)?;
        }
        x = net.pool(x, 2, 2)?;
    }
    x = net.g.flatten(x)?;
    for width in [4096, 4096] {
        x = net.dense(x, width)?;
        x = net.relu(x)?;
    }
    x = net.dense(x, 1000)?;
    net.step(x)
}

pub fn resnet50() -> Result<Graph, GraphError> {
    let mut net = Net::new(224, 224);
    let mut x = net.conv(net.x, 64, 7, 2, false)?;
    x = net.norm(x)?;
    x = net.relu(x)?;
    x = net.pool(x, 3, 2)?;
    for (stage, (blocks, filters)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let mut y = x;
            for (width, size, stride) in [(filters, 1, 1), (filters, 3, stride)] {
                y = net.conv(y, width, size, stride, false)?;
                y = net.norm(y)?;
                y = net.relu(y)?;
            }
            y = net.conv(y, 4 * filters, 1, 1, false)?;
            y = net.norm(y)?;
            if block == 0 {
                x = net.conv(x, 4 * filters, 1, stride, false)?;
                x = net.norm(x)?;
            }
            let sum = net.g.plus(y, x)?;
            x = net.relu(sum)?;
        }
    }
    x = net.global_pool(x)?;
    x = net.dense(x, 1000)?;
    net.step(x)
}

pub fn mobilenet() -> Result<Graph, GraphError> {
    let mut net = Net::new(224, 224);
    let mut x = net.conv(net.x, 32, 3, 2, false)?;
    x = net.norm(x)?;
    x = net.relu(x)?;
    let mut plan = vec![(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)];
    plan.extend([(512, 1); 5]);
    plan.extend([(1024, 2), (1024, 1)]);
    for (filters, stride) in plan {
        x = net.depthwise(x, stride)?;
        x = net.norm(x)?;
        x = net.relu(x)?;
        x = net.conv(x, filters, 1, 1, false)?;
        x = net.norm(x)?;
        x = net.relu(x)?;
    }
    x = net.global_pool(x)?;
    x = net.dense(x, 1000)?;
    net.step(x)
}

pub fn unet(height: usize, width: usize) -> Result<Graph, GraphError> {
    let mut net = Net::new(height, width);
    let mut x = net.x;
    let mut skips = Vec::new();
    let double = |net: &mut Net, mut x: ValueId, filters: usize| -> Built {
        for _ in 0..2 {
            x = net.conv(x, filters, 3, 1, true)?;
            x = net.relu(x)?;
        }
        Ok(x)
    };
    for filters in [64, 128, 256, 512] {
        x = double(&mut net, x, filters)?;
        skips.push(x);
        x = net.pool(x, 2, 2)?;
    }
    x = double(&mut net, x, 1024)?;
    for filters in [512, 256, 128, 64] {
        x = net.upsample(x)?;
        x = net.conv(x, filters, 2, 1, true)?;
        x = net.relu(x)?;
        let skip = skips.pop().expect("as many as there are levels");
        x = net.g.add_one(Op::Concat(Concat { axis: 3 }), &[skip, x])?;
        x = double(&mut net, x, filters)?;
    }
    x = net.conv(x, 12, 1, 1, true)?;
    net.step(x)
}
