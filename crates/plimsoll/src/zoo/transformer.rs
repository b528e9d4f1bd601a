//! Transformers: language models (GPT-2, Radford and others, 2019), encoders (BERT, Devlin and others, 2018) and
//! image classifiers (ViT, Dosovitskiy and others, 2020, as in torchvision and timm).

use super::entry::Entry;
use super::options::{Override, Setup};
use super::task::Task;
use crate::nn::{Activation, Add, ClassToken, Conv2D, Dense, Dropout, Embedding, Functional, Initializer, Layer, LayerNorm, Lowering};
use crate::nn::{Model, MultiHeadAttention, PositionEmbedding, Reshape, SymbolicTensor, TakeStep};
use plimsoll_core::ops::Slice;
use plimsoll_core::{GraphError, Op, ValueId};

pub(super) const VIT_TINY: Entry =
    Entry::vision_transformer("vit-tiny", "transformer over patches of 16×16, 2020, width 192", make_vit_tiny);

/// ViT with patches of 16×16, 12 layers of width 192.
pub fn vit_tiny(classes: usize) -> Model {
    VIT_TINY.for_classes(classes)
}

pub(super) const VIT_SMALL: Entry =
    Entry::vision_transformer("vit-small", "transformer over patches of 16×16, 2020, width 384", make_vit_small);

/// ViT with patches of 16×16, 12 layers of width 384.
pub fn vit_small(classes: usize) -> Model {
    VIT_SMALL.for_classes(classes)
}

pub(super) const VIT_BASE: Entry =
    Entry::vision_transformer("vit-base", "transformer over patches of 16×16, 2020, width 768", make_vit_base);

/// ViT with patches of 16×16, 12 layers of width 768.
pub fn vit_base(classes: usize) -> Model {
    VIT_BASE.for_classes(classes)
}

pub(super) const GPT2_124M: Entry =
    Entry::language_model("gpt2-124m", "language model of 2019, 12 layers of width 768", &[1024], 50_257, make_gpt2_124m);

/// GPT-2 with 12 layers of width 768.
pub fn gpt2_124m() -> Model {
    GPT2_124M.for_classes(50_257)
}

pub(super) const GPT2_355M: Entry =
    Entry::language_model("gpt2-355m", "language model of 2019, 24 layers of width 1024", &[1024], 50_257, make_gpt2_355m);

/// GPT-2 with 24 layers of width 1024.
pub fn gpt2_355m() -> Model {
    GPT2_355M.for_classes(50_257)
}

pub(super) const CHAR_GPT: Entry =
    Entry::language_model("char-gpt", "character language model, 6 layers of width 384", &[256], 65, make_char_gpt);

/// A small GPT for characters: 6 layers of width 384, 256 characters at a time.
pub fn char_gpt(vocabulary: usize) -> Model {
    CHAR_GPT.for_classes(vocabulary)
}

pub(super) const BERT_BASE: Entry = Entry {
    name: "bert-base",
    about: "transformer encoder of 2018, 12 layers of width 768, with a classifier",
    input: &[512],
    task: Task::TextClassification(2, 30_522),
    takes: &[Override::Classes, Override::Context, Override::Vocabulary, Override::Width],
    multiple: 1,
    make: make_bert,
};

/// BERT's encoder of 12 layers of width 768, with a classifier on the pooled output.
pub fn bert_base(classes: usize) -> Model {
    BERT_BASE.for_classes(classes)
}

/// Hyperparameters of transformer blocks.
#[derive(Clone, Copy)]
struct Blocks {
    layers: usize,
    heads: usize,
    width: usize,
    causal: bool,
    /// Whether normalization comes before attention and MLP (pre-norm).
    norm_first: bool,
    epsilon: f32,
    activation: Activation,
    rate: f32,
    initializer: Initializer,
}

/// The size of a head.
const DEPTH: usize = 64;

/// Standard deviation of the initial weights, in all three papers.
const SPREAD: f32 = 0.02;

impl Blocks {
    /// The width multiplier scales the number of heads.
    fn new(setup: &Setup, layers: usize, heads: usize) -> Blocks {
        let heads = setup.wide(heads);
        Blocks {
            layers,
            heads,
            width: heads * DEPTH,
            causal: false,
            norm_first: true,
            epsilon: 1e-6,
            activation: Activation::Gelu,
            rate: 0.0,
            initializer: Initializer::GlorotUniform,
        }
    }

    fn norm(&self) -> LayerNorm {
        LayerNorm::new().epsilon(self.epsilon)
    }

    fn dropout(&self, net: &mut Functional, x: SymbolicTensor) -> SymbolicTensor {
        if self.rate > 0.0 { net.add(Dropout::new(self.rate), [x]) } else { x }
    }

    fn attend(&self, net: &mut Functional, x: SymbolicTensor) -> SymbolicTensor {
        let attention = MultiHeadAttention::new(self.heads).initializer(self.initializer).output_initializer(self.last());
        let y = net.named("attention", if self.causal { attention.causal() } else { attention }, [x]);
        self.dropout(net, y)
    }

    fn perceive(&self, net: &mut Functional, x: SymbolicTensor) -> SymbolicTensor {
        let y = net.named("mlp/expand", Dense::new(4 * self.width).activation(self.activation).initializer(self.initializer), [x]);
        let y = net.named("mlp/project", Dense::new(self.width).initializer(self.last()), [y]);
        self.dropout(net, y)
    }

    /// Residual projections are initialized smaller with depth, as in GPT-2.
    fn last(&self) -> Initializer {
        match self.initializer {
            Initializer::Normal(std) if self.causal => Initializer::Normal(std / (2.0 * self.layers as f32).sqrt()),
            other => other,
        }
    }

    fn build(&self, net: &mut Functional, mut x: SymbolicTensor) -> SymbolicTensor {
        for i in 1..=self.layers {
            x = net.block(&format!("block{i}"), |net| {
                if self.norm_first {
                    let y = net.named("norm1", self.norm(), [x]);
                    let y = self.attend(net, y);
                    let x = net.add(Add, [x, y]);
                    let y = net.named("norm2", self.norm(), [x]);
                    let y = self.perceive(net, y);
                    net.add(Add, [x, y])
                } else {
                    let y = self.attend(net, x);
                    let x = net.add(Add, [x, y]);
                    let x = net.named("norm1", self.norm(), [x]);
                    let y = self.perceive(net, x);
                    let x = net.add(Add, [x, y]);
                    net.named("norm2", self.norm(), [x])
                }
            });
        }
        x
    }
}

fn make_vit_tiny(setup: &Setup) -> Model {
    vit(setup, 3)
}

fn make_vit_small(setup: &Setup) -> Model {
    vit(setup, 6)
}

fn make_vit_base(setup: &Setup) -> Model {
    vit(setup, 12)
}

/// The side of a patch.
const PATCH: usize = 16;

fn vit(setup: &Setup, heads: usize) -> Model {
    let blocks = Blocks::new(setup, 12, heads);
    let patches = (setup.input[0] / PATCH) * (setup.input[1] / PATCH);
    let mut net = Functional::new("vit");
    let x = net.input();
    let cut = Conv2D::new(blocks.width, PATCH).stride(PATCH, PATCH).initializer(Initializer::LecunNormal);
    let x = net.named("patches", cut, [x]);
    let x = net.add(Reshape::new([patches, blocks.width]), [x]);
    let x = net.add(ClassToken, [x]);
    let x = net.named("positions", PositionEmbedding::new(patches + 1), [x]);
    let x = blocks.build(&mut net, x);
    let x = net.named("norm", blocks.norm(), [x]);
    let x = net.add(TakeStep::first(), [x]);
    let scores = net.named("scores", Dense::new(setup.classes).initializer(Initializer::Zeros), [x]);
    net.build(scores)
}

fn make_gpt2_124m(setup: &Setup) -> Model {
    gpt(setup, 12, 12, 0.1)
}

fn make_gpt2_355m(setup: &Setup) -> Model {
    gpt(setup, 24, 16, 0.1)
}

fn make_char_gpt(setup: &Setup) -> Model {
    gpt(setup, 6, 6, 0.2)
}

fn gpt(setup: &Setup, layers: usize, heads: usize, rate: f32) -> Model {
    let initializer = Initializer::Normal(SPREAD);
    let blocks =
        Blocks { causal: true, epsilon: 1e-5, activation: Activation::GeluTanh, rate, initializer, ..Blocks::new(setup, layers, heads) };
    let mut net = Functional::new("gpt");
    let tokens = net.input();
    let embedding = Embedding::new(setup.classes, blocks.width).initializer(initializer);
    let scores = embedding.scores();
    let vectors = net.named("tokens", embedding, [tokens]);
    let x = net.named("positions", PositionEmbedding::new(setup.input[0]), [vectors]);
    let x = blocks.dropout(&mut net, x);
    let x = blocks.build(&mut net, x);
    let x = net.named("norm", blocks.norm(), [x]);
    let scores = net.tied(vectors, scores, [x]);
    net.build(scores)
}

/// Adds the segment embedding of the first segment.
#[derive(Clone, Debug)]
struct FirstSentence;

impl Layer for FirstSentence {
    fn kind(&self) -> &'static str {
        "sentence_embedding"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let &[x] = inputs else { return Err(lowering.graph.error("reads one tensor")) };
        let width = lowering.graph.shape(x).last().map_or(0, |dim| dim.factor());
        let both = lowering.parameter("sentences", [2, width], Initializer::Normal(SPREAD).init(2, width))?;
        let first = lowering.graph.add_one(Op::Slice(Slice { axis: 0, start: 0, length: 1 }), &[both])?;
        lowering.graph.plus(x, first)
    }
}

fn make_bert(setup: &Setup) -> Model {
    let initializer = Initializer::Normal(SPREAD);
    let blocks = Blocks { norm_first: false, epsilon: 1e-12, rate: 0.1, initializer, ..Blocks::new(setup, 12, 12) };
    let mut net = Functional::new("bert");
    let tokens = net.input();
    let vocabulary = setup.vocabulary;
    let x = net.named("tokens", Embedding::new(vocabulary, blocks.width).initializer(initializer), [tokens]);
    let x = net.named("positions", PositionEmbedding::new(setup.input[0]), [x]);
    let x = net.named("sentences", FirstSentence, [x]);
    let x = net.named("norm", blocks.norm(), [x]);
    let x = blocks.dropout(&mut net, x);
    let x = blocks.build(&mut net, x);
    let x = net.add(TakeStep::first(), [x]);
    let x = net.named("pooler", Dense::new(blocks.width).activation(Activation::Tanh).initializer(initializer), [x]);
    let x = blocks.dropout(&mut net, x);
    let scores = net.named("scores", Dense::new(setup.classes).initializer(initializer), [x]);
    net.build(scores)
}
