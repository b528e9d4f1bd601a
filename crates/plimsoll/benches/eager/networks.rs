//! The networks of the benchmark, written with eager tensors: parameters, a batch, and the loss.

use plimsoll::eager::{Padding, Result, Tensor};

/// A network: parameters, a batch of inputs and labels, and the loss.
pub struct Network {
    pub name: &'static str,
    pub parameters: Vec<Tensor>,
    pub batch: [Tensor; 2],
    pub loss: fn(&[Tensor], &[Tensor]) -> Result<Tensor>,
}

pub const NAMES: [&str; 4] = ["mlp", "cifar-cnn", "char-gpt", "resnet18"];

/// A network by name, with weights and data in the current context.
pub fn network(name: &str) -> Result<Network> {
    match name {
        "mlp" => mlp(),
        "cifar-cnn" => cifar_cnn(),
        "char-gpt" => char_gpt(),
        "resnet18" => resnet18(),
        other => panic!("there is no network `{other}`; there are {}", NAMES.join(", ")),
    }
}

fn weight(dims: &[usize]) -> Result<Tensor> {
    let fan_in: usize = dims[..dims.len() - 1].iter().product();
    Tensor::normal(dims.iter().copied())?.mul_scalar((2.0 / fan_in as f32).sqrt())
}

fn class_ids(count: usize, classes: usize) -> Result<Tensor> {
    Tensor::from_slice(&(0..count).map(|i| (i * 7 % classes) as i32).collect::<Vec<_>>(), [count])
}

/// Three layers on 64 rows of 784 numbers.
fn mlp() -> Result<Network> {
    let mut parameters = Vec::new();
    for pair in [784, 256, 128, 10].windows(2) {
        parameters.extend([weight(pair)?, Tensor::zeros([pair[1]])?]);
    }
    let loss = |p: &[Tensor], batch: &[Tensor]| {
        let mut hidden = batch[0].clone();
        for (i, layer) in p.chunks(2).enumerate() {
            hidden = hidden.matmul(&layer[0])?.add(&layer[1])?;
            if i < 2 {
                hidden = hidden.relu()?;
            }
        }
        hidden.cross_entropy(&batch[1])
    };
    Ok(Network { name: "mlp", parameters, batch: [Tensor::uniform([64, 784])?, class_ids(64, 10)?], loss })
}

/// Four convolutions and two layers on 32 images of 32×32.
fn cifar_cnn() -> Result<Network> {
    let mut parameters = Vec::new();
    for [channels, filters] in [[3, 32], [32, 32], [32, 64], [64, 64]] {
        parameters.extend([weight(&[3, 3, channels, filters])?, Tensor::zeros([filters])?]);
    }
    for pair in [[4096, 128], [128, 10]] {
        parameters.extend([weight(&pair)?, Tensor::zeros([pair[1]])?]);
    }
    let loss = |p: &[Tensor], batch: &[Tensor]| {
        let mut x = batch[0].clone();
        for (i, layer) in p[..8].chunks(2).enumerate() {
            x = x.conv2d(&layer[0], 1, Padding::Same)?.add(&layer[1])?.relu()?;
            if i % 2 == 1 {
                x = x.max_pool2d(2, 2, Padding::Valid)?;
            }
        }
        let hidden = x.flatten()?.matmul(&p[8])?.add(&p[9])?.relu()?;
        hidden.matmul(&p[10])?.add(&p[11])?.cross_entropy(&batch[1])
    };
    Ok(Network { name: "cifar-cnn", parameters, batch: [Tensor::uniform([32, 32, 32, 3])?, class_ids(32, 10)?], loss })
}

const TOKENS: usize = 65;
const CONTEXT: usize = 64;
const WIDTH: usize = 128;
const HEADS: usize = 4;
const BLOCKS: usize = 4;

/// A transformer of four blocks on 16 sequences of 64 characters.
fn char_gpt() -> Result<Network> {
    let mut parameters = vec![Tensor::normal([TOKENS, WIDTH])?.mul_scalar(0.02)?, Tensor::normal([CONTEXT, WIDTH])?.mul_scalar(0.02)?];
    for _ in 0..BLOCKS {
        parameters.extend([Tensor::ones([WIDTH])?, Tensor::zeros([WIDTH])?]);
        for _ in 0..4 {
            parameters.extend([weight(&[WIDTH, WIDTH])?, Tensor::zeros([WIDTH])?]);
        }
        parameters.extend([Tensor::ones([WIDTH])?, Tensor::zeros([WIDTH])?]);
        parameters.extend([weight(&[WIDTH, 4 * WIDTH])?, Tensor::zeros([4 * WIDTH])?]);
        parameters.extend([weight(&[4 * WIDTH, WIDTH])?, Tensor::zeros([WIDTH])?]);
    }
    parameters.extend([Tensor::ones([WIDTH])?, Tensor::zeros([WIDTH])?, weight(&[WIDTH, TOKENS])?]);
    let loss = |p: &[Tensor], batch: &[Tensor]| {
        let affine = |x: &Tensor, layer: &[Tensor]| x.matmul(&layer[0])?.add(&layer[1]);
        let mut x = p[0].gather(&batch[0])?.add(&p[1])?;
        for block in p[2..p.len() - 3].chunks(16) {
            let normal = x.layer_norm(&block[0], &block[1], 1e-5)?;
            let [q, k, v] = [2, 4, 6].map(|at| affine(&normal, &block[at..at + 2]));
            let mixed = q?.attention(&k?, &v?, HEADS, true)?;
            x = x.add(&affine(&mixed, &block[8..10])?)?;
            let normal = x.layer_norm(&block[10], &block[11], 1e-5)?;
            x = x.add(&affine(&affine(&normal, &block[12..14])?.gelu()?, &block[14..16])?)?;
        }
        let [gain, bias, head] = &p[p.len() - 3..] else { unreachable!("the last three are the head") };
        let rows = batch[1].len();
        x.layer_norm(gain, bias, 1e-5)?.reshape([rows, WIDTH])?.matmul(head)?.cross_entropy(&batch[1])
    };
    let tokens = class_ids(16 * CONTEXT, TOKENS)?.reshape([16, CONTEXT])?;
    Ok(Network { name: "char-gpt", parameters, batch: [tokens, class_ids(16 * CONTEXT, TOKENS)?], loss })
}

/// Filters and strides of the blocks of ResNet-18.
const RESNET: [(usize, usize); 8] = [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)];

/// ResNet-18 on 8 images of 64×64.
fn resnet18() -> Result<Network> {
    let mut parameters = Vec::new();
    let mut conv = |size: usize, channels: usize, filters: usize| -> Result<()> {
        parameters.extend([weight(&[size, size, channels, filters])?, Tensor::ones([filters])?, Tensor::zeros([filters])?]);
        Ok(())
    };
    conv(7, 3, 64)?;
    let mut channels = 64;
    for (filters, stride) in RESNET {
        conv(3, channels, filters)?;
        conv(3, filters, filters)?;
        if stride > 1 {
            conv(1, channels, filters)?;
        }
        channels = filters;
    }
    parameters.extend([weight(&[512, 10])?, Tensor::zeros([10])?]);
    let loss = |p: &[Tensor], batch: &[Tensor]| {
        let mut layers = p.chunks(3);
        let mut conv = |x: &Tensor, stride: usize| {
            let [kernel, gain, bias] = layers.next().expect("there is one for every convolution") else { unreachable!("of three") };
            x.conv2d(kernel, stride, Padding::Same)?.batch_norm(gain, bias, 1e-5)
        };
        let mut x = conv(&batch[0], 2)?.relu()?.max_pool2d(3, 2, Padding::Same)?;
        for (_, stride) in RESNET {
            let inner = conv(&x, stride)?.relu()?;
            let inner = conv(&inner, 1)?;
            let shortcut = if stride > 1 { conv(&x, stride)? } else { x };
            x = inner.add(&shortcut)?.relu()?;
        }
        let [kernel, bias] = &p[p.len() - 2..] else { unreachable!("the last two are the head") };
        x.mean_axes(&[1, 2])?.matmul(kernel)?.add(bias)?.cross_entropy(&batch[1])
    };
    Ok(Network { name: "resnet18", parameters, batch: [Tensor::uniform([8, 64, 64, 3])?, class_ids(8, 10)?], loss })
}
