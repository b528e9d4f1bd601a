//! Every network of the zoo, in the order `plimsoll zoo` lists them.

use super::entry::Entry;
use super::{dense, efficient, inception, mobile, residual, segmentation, series, small, transformer, vgg};

/// Every network of the zoo.
pub const ENTRIES: &[Entry] = &[
    small::DIGITS_CNN,
    small::MLP,
    small::LENET5,
    small::CIFAR_CNN,
    vgg::VGG16,
    vgg::VGG19,
    residual::RESNET18,
    residual::RESNET34,
    residual::RESNET50,
    residual::RESNET101,
    mobile::MOBILENET_V1,
    mobile::MOBILENET_V2,
    dense::DENSENET121,
    inception::GOOGLENET,
    inception::INCEPTION_V3,
    efficient::EFFICIENTNET_B0,
    segmentation::UNET,
    segmentation::FCN8,
    segmentation::SEGNET,
    small::AUTOENCODER,
    transformer::VIT_TINY,
    transformer::VIT_SMALL,
    transformer::VIT_BASE,
    transformer::GPT2_124M,
    transformer::GPT2_355M,
    transformer::CHAR_GPT,
    transformer::BERT_BASE,
    series::LSTM,
    series::GRU,
];
