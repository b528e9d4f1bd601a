//! Candle.

use crate::{BLOCKS, CONTEXT, HEADS, TOKENS, WIDTH, class_ids, measure, overhead, resident, uniform};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{Conv2dConfig, Embedding, LayerNorm, Linear, Module, Optimizer, SGD, VarBuilder, VarMap};

pub fn ops() {
    let (x, y) = (Tensor::arange(0f32, 8f32, &Device::Cpu).unwrap(), Tensor::ones(8, DType::F32, &Device::Cpu).unwrap());
    let tracked = Var::from_tensor(&x).unwrap();
    overhead("add of 8 numbers", || drop(x.add(&y).unwrap()));
    overhead("add of 8 numbers with gradients", || drop(tracked.add(&y).unwrap()));
}

pub fn step(name: &str) {
    let before = resident();
    let (vars, device) = (VarMap::new(), Device::Cpu);
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
    let (forward, x, y) = match name {
        "mlp" => mlp(vb, &device),
        "cifar-cnn" => cifar_cnn(vb, &device),
        "char-gpt" => char_gpt(vb, &device),
        other => panic!("there is no network `{other}`"),
    }
    .unwrap();
    let mut optimizer = SGD::new(vars.all_vars(), 0.01).unwrap();
    let mut step = || -> Result<f32> {
        let loss = candle_nn::loss::cross_entropy(&forward(&x)?, &y)?;
        optimizer.backward_step(&loss)?;
        loss.to_scalar()
    };
    measure(name, before, || step().unwrap());
}

type Network = (Box<dyn Fn(&Tensor) -> Result<Tensor>>, Tensor, Tensor);

fn labels(count: usize, classes: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_vec(class_ids(count, classes), count, device)
}

fn mlp(vb: VarBuilder<'_>, device: &Device) -> Result<Network> {
    let layers =
        [candle_nn::linear(784, 256, vb.pp("a"))?, candle_nn::linear(256, 128, vb.pp("b"))?, candle_nn::linear(128, 10, vb.pp("c"))?];
    let forward = move |x: &Tensor| {
        let [first, second, third] = &layers;
        third.forward(&second.forward(&first.forward(x)?.relu()?)?.relu()?)
    };
    Ok((Box::new(forward), Tensor::from_vec(uniform(64 * 784), (64, 784), device)?, labels(64, 10, device)?))
}

fn cifar_cnn(vb: VarBuilder<'_>, device: &Device) -> Result<Network> {
    let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
    let shapes = [(3, 32), (32, 32), (32, 64), (64, 64)];
    let convs = shapes.iter().enumerate().map(|(i, (a, b))| candle_nn::conv2d(*a, *b, 3, config, vb.pp(format!("conv{i}"))));
    let convs = convs.collect::<Result<Vec<_>>>()?;
    let (hidden, head) = (candle_nn::linear(4096, 128, vb.pp("hidden"))?, candle_nn::linear(128, 10, vb.pp("head"))?);
    let forward = move |x: &Tensor| {
        let mut x = x.clone();
        for (i, conv) in convs.iter().enumerate() {
            x = conv.forward(&x)?.relu()?;
            if i % 2 == 1 {
                x = x.max_pool2d(2)?;
            }
        }
        head.forward(&hidden.forward(&x.flatten_from(1)?)?.relu()?)
    };
    Ok((Box::new(forward), Tensor::from_vec(uniform(32 * 3 * 1024), (32, 3, 32, 32), device)?, labels(32, 10, device)?))
}

struct Block {
    norms: [LayerNorm; 2],
    projections: [Linear; 4],
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder<'_>) -> Result<Block> {
        let square = |name: &str| candle_nn::linear(WIDTH, WIDTH, vb.pp(name));
        Ok(Block {
            norms: [candle_nn::layer_norm(WIDTH, 1e-5, vb.pp("first"))?, candle_nn::layer_norm(WIDTH, 1e-5, vb.pp("second"))?],
            projections: [square("q")?, square("k")?, square("v")?, square("out")?],
            up: candle_nn::linear(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: candle_nn::linear(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (n, t, _) = x.dims3()?;
        let y = self.norms[0].forward(x)?;
        let heads = |linear: &Linear| linear.forward(&y)?.reshape((n, t, HEADS, WIDTH / HEADS))?.transpose(1, 2)?.contiguous();
        let [q, k, v, out] = &self.projections;
        let scores = (heads(q)?.matmul(&heads(k)?.t()?.contiguous()?)? / ((WIDTH / HEADS) as f64).sqrt())?.broadcast_add(mask)?;
        // `softmax_last_dim` has no gradient.
        let mixed = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&heads(v)?)?.transpose(1, 2)?.reshape((n, t, WIDTH))?;
        let x = (x + out.forward(&mixed)?)?;
        &x + self.down.forward(&self.up.forward(&self.norms[1].forward(&x)?)?.gelu_erf()?)?
    }
}

fn char_gpt(vb: VarBuilder<'_>, device: &Device) -> Result<Network> {
    let tokens: Embedding = candle_nn::embedding(TOKENS, WIDTH, vb.pp("tokens"))?;
    let positions = vb.get_with_hints((CONTEXT, WIDTH), "positions", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let blocks = (0..BLOCKS).map(|i| Block::new(vb.pp(format!("block{i}")))).collect::<Result<Vec<_>>>()?;
    let (last, head) = (candle_nn::layer_norm(WIDTH, 1e-5, vb.pp("last"))?, candle_nn::linear_no_bias(WIDTH, TOKENS, vb.pp("head"))?);
    let mask: Vec<f32> = (0..CONTEXT * CONTEXT).map(|i| if i % CONTEXT > i / CONTEXT { f32::NEG_INFINITY } else { 0.0 }).collect();
    let mask = Tensor::from_vec(mask, (CONTEXT, CONTEXT), device)?;
    let forward = move |x: &Tensor| {
        let mut x = tokens.forward(x)?.broadcast_add(&positions)?;
        for block in &blocks {
            x = block.forward(&x, &mask)?;
        }
        head.forward(&last.forward(&x)?)?.flatten_to(1)
    };
    let ids = labels(16 * CONTEXT, TOKENS, device)?;
    Ok((Box::new(forward), ids.reshape((16, CONTEXT))?, ids))
}
