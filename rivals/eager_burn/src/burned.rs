//! Burn, with its CPU backend.

use crate::{BLOCKS, CONTEXT, HEADS, TOKENS, WIDTH, class_ids, measure, overhead, resident, uniform};
use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;
use burn::tensor::activation::{gelu, relu};
use burn::tensor::module::{attention, max_pool2d};
use burn::tensor::ops::{AttentionModuleOptions, MaxPoolOptions};

pub fn ops() {
    let device = Device::flex();
    let (x, y) =
        (Tensor::<1>::from_data(TensorData::from([0f32; 8]), &device), Tensor::<1>::from_data(TensorData::from([1f32; 8]), &device));
    overhead("add of 8 numbers", || drop(x.clone().add(y.clone())));
    let tracked = Tensor::<1>::from_data(TensorData::from([0f32; 8]), &device.autodiff()).require_grad();
    let other = Tensor::<1>::from_data(TensorData::from([1f32; 8]), &Device::flex().autodiff());
    overhead("add of 8 numbers with gradients", || drop(tracked.clone().add(other.clone())));
}

pub fn step(name: &str) {
    let before = resident();
    let device = Device::flex().autodiff();
    match name {
        "mlp" => {
            let x = Tensor::<2>::from_data(TensorData::new(uniform(64 * 784), [64, 784]), &device);
            train(name, before, Mlp::new(&device), &device, 64, 10, move |model: &Mlp| model.forward(x.clone()));
        }
        "cifar-cnn" => {
            let x = Tensor::<4>::from_data(TensorData::new(uniform(32 * 3 * 1024), [32, 3, 32, 32]), &device);
            train(name, before, CifarCnn::new(&device), &device, 32, 10, move |model: &CifarCnn| model.forward(x.clone()));
        }
        "char-gpt" => {
            let ids = class_ids(16 * CONTEXT, TOKENS);
            let x = Tensor::<2, Int>::from_data(TensorData::new(ids, [16, CONTEXT]), &device);
            train(name, before, CharGpt::new(&device), &device, 16 * CONTEXT, TOKENS, move |model: &CharGpt| model.forward(x.clone()));
        }
        other => panic!("there is no network `{other}`"),
    }
}

/// Steps of SGD on one batch.
fn train<M: Module>(name: &str, before: u64, model: M, device: &Device, rows: usize, classes: usize, forward: impl Fn(&M) -> Tensor<2>) {
    let targets = Tensor::<1, Int>::from_data(TensorData::new(class_ids(rows, classes), [rows]), device);
    let (loss, mut optimizer) = (CrossEntropyLossConfig::new().init(device), SgdConfig::new().init());
    let mut model = Some(model);
    measure(name, before, || {
        let current = model.take().expect("put back after every step");
        let found = loss.forward(forward(&current), targets.clone());
        let gradients = GradientsParams::from_grads(found.backward(), &current);
        model = Some(optimizer.step(0.01, current, gradients));
        found.into_scalar::<f32>()
    });
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        Mlp { layers: [(784, 256), (256, 128), (128, 10)].map(|(a, b)| LinearConfig::new(a, b).init(device)).into() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [first, second, third] = &self.layers[..] else { unreachable!("there are three") };
        third.forward(relu(second.forward(relu(first.forward(x)))))
    }
}

#[derive(Module, Debug)]
struct CifarCnn {
    convs: Vec<Conv2d>,
    hidden: Linear,
    head: Linear,
}

impl CifarCnn {
    fn new(device: &Device) -> CifarCnn {
        let conv = |(a, b)| Conv2dConfig::new([a, b], [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
        CifarCnn {
            convs: [(3, 32), (32, 32), (32, 64), (64, 64)].map(conv).into(),
            hidden: LinearConfig::new(4096, 128).init(device),
            head: LinearConfig::new(128, 10).init(device),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for (i, conv) in self.convs.iter().enumerate() {
            x = relu(conv.forward(x));
            if i % 2 == 1 {
                x = max_pool2d(x, MaxPoolOptions::new([2, 2]));
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

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [n, t, _] = x.dims();
        let y = self.norms[0].forward(x.clone());
        let heads = |linear: &Linear| linear.forward(y.clone()).reshape([n, t, HEADS, WIDTH / HEADS]).swap_dims(1, 2);
        let [q, k, v, out] = &self.projections[..] else { unreachable!("there are four") };
        let options = AttentionModuleOptions { is_causal: true, ..AttentionModuleOptions::default() };
        let mixed = attention(heads(q), heads(k), heads(v), None, None, options).swap_dims(1, 2).reshape([n, t, WIDTH]);
        let x = x + out.forward(mixed);
        let y = self.down.forward(gelu(self.up.forward(self.norms[1].forward(x.clone()))));
        x + y
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
        let positions = Tensor::<2>::from_data(TensorData::new(uniform(CONTEXT * WIDTH), [CONTEXT, WIDTH]), device) * 0.02;
        CharGpt {
            tokens: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
            positions: Param::from_tensor(positions),
            blocks: (0..BLOCKS).map(|_| Block::new(device)).collect(),
            last: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, TOKENS).with_bias(false).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let x = self.tokens.forward(ids) + self.positions.val().unsqueeze::<3>();
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.last.forward(x)).flatten::<2>(0, 1).reshape([16 * CONTEXT, TOKENS])
    }
}
