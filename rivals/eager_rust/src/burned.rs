//! Burn, with its CPU backend Flex.

use crate::{BLOCKS, CONTEXT, HEADS, TOKENS, WIDTH, class_ids, measure, overhead, resident, uniform};
use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};

pub fn ops() {
    let device = Device::flex();
    let (x, y) = (Tensor::<1>::from_floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &device), Tensor::<1>::ones([8], &device));
    overhead("burn", "add of 8 numbers", || drop(x.clone() + y.clone()));
    let device = device.autodiff();
    let x = Tensor::<1>::from_floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &device).require_grad();
    let y = Tensor::<1>::ones([8], &device);
    overhead("burn", "add of 8 numbers with gradients", || drop(x.clone() + y.clone()));
}

fn ids(count: usize, classes: usize, device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = class_ids(count, classes).into_iter().map(|id| id as i32).collect();
    Tensor::from_ints(TensorData::new(ids, [count]), device)
}

fn numbers<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_floats(TensorData::new(uniform(dims.iter().product()), dims), device)
}

pub fn step(name: &str) {
    let before = resident();
    let device = Device::flex().autodiff();
    match name {
        "mlp" => {
            let x = numbers([64, 784], &device);
            train(name, before, Mlp::new(&device), move |model| model.forward(x.clone()), ids(64, 10, &device));
        }
        "cifar-cnn" => {
            let x = numbers([32, 3, 32, 32], &device);
            train(name, before, CifarCnn::new(&device), move |model| model.forward(x.clone()), ids(32, 10, &device));
        }
        "char-gpt" => {
            let labels = ids(16 * CONTEXT, TOKENS, &device);
            let x = labels.clone().reshape([16, CONTEXT]);
            train(name, before, CharGpt::new(&device), move |model| model.forward(x.clone()), labels);
        }
        other => panic!("there is no network `{other}`"),
    }
}

fn train<M: Module>(name: &str, before: u64, model: M, forward: impl Fn(&M) -> Tensor<2>, labels: Tensor<1, Int>) {
    let device = labels.device();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut optimizer = SgdConfig::new().init();
    let mut model = Some(model);
    measure("burn", name, before, || {
        let own = model.take().expect("it is put back");
        let value = loss.forward(forward(&own), labels.clone());
        let gradients = GradientsParams::from_grads(value.backward(), &own);
        model = Some(optimizer.step(0.01, own, gradients));
        value.into_scalar::<f32>()
    });
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        Mlp { layers: [[784, 256], [256, 128], [128, 10]].map(|[a, b]| LinearConfig::new(a, b).init(device)).into() }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x);
            if i < 2 {
                x = relu(x);
            }
        }
        x
    }
}

#[derive(Module, Debug)]
struct CifarCnn {
    convs: Vec<Conv2d>,
    pool: MaxPool2d,
    hidden: Linear,
    head: Linear,
}

impl CifarCnn {
    fn new(device: &Device) -> CifarCnn {
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
        CifarCnn {
            convs: [[3, 32], [32, 32], [32, 64], [64, 64]].map(conv).into(),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            hidden: LinearConfig::new(4096, 128).init(device),
            head: LinearConfig::new(128, 10).init(device),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for (i, conv) in self.convs.iter().enumerate() {
            x = relu(conv.forward(x));
            if i % 2 == 1 {
                x = self.pool.forward(x);
            }
        }
        self.head.forward(relu(self.hidden.forward(x.flatten::<2>(1, 3))))
    }
}

#[derive(Module, Debug)]
struct Block {
    norms: Vec<LayerNorm>,
    projections: Vec<Linear>,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Block {
        Block {
            norms: (0..2).map(|_| LayerNormConfig::new(WIDTH).init(device)).collect(),
            projections: (0..4).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect(),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>, mask: Tensor<4, Bool>) -> Tensor<3> {
        let [n, t, _] = x.dims();
        let y = self.norms[0].forward(x.clone());
        let heads = |i: usize| self.projections[i].forward(y.clone()).reshape([n, t, HEADS, WIDTH / HEADS]).swap_dims(1, 2);
        let scores = heads(0).matmul(heads(1).swap_dims(2, 3)).div_scalar(((WIDTH / HEADS) as f32).sqrt());
        let shares = softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 3);
        let mixed = shares.matmul(heads(2)).swap_dims(1, 2).reshape([n, t, WIDTH]);
        let x = x + self.projections[3].forward(mixed);
        x.clone() + self.down.forward(gelu(self.up.forward(self.norms[1].forward(x))))
    }
}

#[derive(Module, Debug)]
struct CharGpt {
    tokens: Embedding,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    last: LayerNorm,
    head: Linear,
}

impl CharGpt {
    fn new(device: &Device) -> CharGpt {
        let positions = Tensor::random([CONTEXT, WIDTH], Distribution::Normal(0.0, 0.02), device);
        CharGpt {
            tokens: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
            positions: Param::from_tensor(positions),
            blocks: (0..BLOCKS).map(|_| Block::new(device)).collect(),
            last: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, TOKENS).with_bias(false).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let [n, t] = ids.dims();
        // True where a position is later than the one that looks.
        let mask: Tensor<2, Bool> = Tensor::<2>::ones([t, t], &ids.device()).triu(1).greater_elem(0.5);
        let mask = mask.reshape([1, 1, t, t]).expand([n, HEADS, t, t]);
        let mut x = self.tokens.forward(ids) + self.positions.val().unsqueeze::<3>();
        for block in &self.blocks {
            x = block.forward(x, mask.clone());
        }
        self.head.forward(self.last.forward(x)).reshape([n * t, TOKENS])
    }
}
