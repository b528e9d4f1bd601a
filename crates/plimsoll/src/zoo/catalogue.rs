//! The list of networks.

use super::network::IMAGES;
use super::options::{Override, Setup};
use super::{Entry, Task, dense, efficient, inception, mobile, residual, segmentation, series, small, transformer, vgg};
use crate::nn::Model;

/// Overrides of a network that gives images back.
const IMAGES_OUT: &[Override] = &[Override::Input, Override::Width];

/// An entry for a network that tells classes of images apart.
const fn images(name: &'static str, about: &'static str, input: &'static [usize], classes: usize, make: fn(&Setup) -> Model) -> Entry {
    Entry { name, about, input, task: Task::Classes(classes), takes: IMAGES, multiple: 1, make }
}

/// An entry for a network that tells classes of pixels apart.
const fn pixels(name: &'static str, about: &'static str, multiple: usize, classes: usize, make: fn(&Setup) -> Model) -> Entry {
    Entry { name, about, input: &[256, 256, 3], task: Task::Pixels(classes), takes: IMAGES, multiple, make }
}

/// An entry for a network that says the next token.
const fn tokens(name: &'static str, about: &'static str, context: &'static [usize], vocabulary: usize, make: fn(&Setup) -> Model) -> Entry {
    let takes = &[Override::Context, Override::Vocabulary, Override::Width];
    Entry { name, about, input: context, task: Task::NextToken(vocabulary), takes, multiple: 1, make }
}

/// An entry for a network that forecasts a day of hourly numbers from four days of seven of them.
const fn forecast(name: &'static str, about: &'static str, make: fn(&Setup) -> Model) -> Entry {
    Entry { name, about, input: &[96, 7], task: Task::Numbers(24), takes: IMAGES, multiple: 1, make }
}

/// An entry for a network that looks at patches of images.
const fn patches(name: &'static str, about: &'static str, make: fn(&Setup) -> Model) -> Entry {
    Entry { name, about, input: IMAGENET, task: Task::Classes(1000), takes: IMAGES, multiple: 16, make }
}

/// The size of images of the ImageNet competition.
const IMAGENET: &[usize] = &[224, 224, 3];

/// All networks.
pub const ENTRIES: &[Entry] = &[
    images("digits-cnn", "two small convolutions for 8×8 digits", &[8, 8, 1], 10, small::make_digits),
    images("mlp", "two dense layers of 128", &[28, 28, 1], 10, small::make_mlp),
    images("lenet5", "LeCun's network of 1998 for 28×28 or 32×32 images", &[28, 28, 1], 10, small::make_lenet),
    images("cifar-cnn", "four convolutions for 32×32 images, as in Keras' example", &[32, 32, 3], 10, small::make_cifar),
    images("vgg16", "3×3 convolutions of 2014, 16 layers", IMAGENET, 1000, vgg::make16),
    images("vgg19", "3×3 convolutions of 2014, 19 layers", IMAGENET, 1000, vgg::make19),
    images("resnet18", "residual network of 2015, 18 layers", IMAGENET, 1000, residual::make18),
    images("resnet34", "residual network of 2015, 34 layers", IMAGENET, 1000, residual::make34),
    images("resnet50", "residual network of 2015, 50 layers with bottlenecks", IMAGENET, 1000, residual::make50),
    images("resnet101", "residual network of 2015, 101 layers with bottlenecks", IMAGENET, 1000, residual::make101),
    images("mobilenet-v1", "depthwise convolutions of 2017, as in Keras", IMAGENET, 1000, mobile::make_v1),
    images("mobilenet-v2", "inverted residuals of 2018", IMAGENET, 1000, mobile::make_v2),
    images("densenet121", "every layer reads all before it, 2016", IMAGENET, 1000, dense::make121),
    images("googlenet", "branches of several filter sizes, 2014, without auxiliary heads", IMAGENET, 1000, inception::make_googlenet),
    images("inception-v3", "branches of factored filters, 2015, without auxiliary head", &[299, 299, 3], 1000, inception::make_v3),
    images("efficientnet-b0", "inverted residuals that weigh their channels, 2019", IMAGENET, 1000, efficient::make_b0),
    pixels("unet", "U-Net of 2015 with batch normalisation", 16, 2, segmentation::make_unet),
    pixels("fcn8", "FCN-8s of 2015 on VGG16", 32, 21, segmentation::make_fcn8),
    pixels("segnet", "SegNet of 2015: VGG16 and back", 32, 12, segmentation::make_segnet),
    Entry {
        name: "autoencoder",
        about: "three convolutions down, three up",
        input: &[32, 32, 3],
        task: Task::Itself,
        takes: IMAGES_OUT,
        multiple: 8,
        make: small::make_autoencoder,
    },
    patches("vit-tiny", "transformer over patches of 16×16, 2020, width 192", transformer::make_vit_tiny),
    patches("vit-small", "transformer over patches of 16×16, 2020, width 384", transformer::make_vit_small),
    patches("vit-base", "transformer over patches of 16×16, 2020, width 768", transformer::make_vit_base),
    tokens("gpt2-124m", "language model of 2019, 12 layers of width 768", &[1024], 50_257, transformer::make_gpt2_124m),
    tokens("gpt2-355m", "language model of 2019, 24 layers of width 1024", &[1024], 50_257, transformer::make_gpt2_355m),
    tokens("char-gpt", "language model of characters, 6 layers of width 384", &[256], 65, transformer::make_char_gpt),
    Entry {
        name: "bert-base",
        about: "transformer encoder of 2018, 12 layers of width 768, with a classifier",
        input: &[512],
        task: Task::Texts(2, 30_522),
        takes: &[Override::Classes, Override::Context, Override::Vocabulary, Override::Width],
        multiple: 1,
        make: transformer::make_bert,
    },
    forecast("lstm", "two LSTM layers of 64 that forecast a series", series::make_lstm),
    forecast("gru", "two GRU layers of 64 that forecast a series", series::make_gru),
];
