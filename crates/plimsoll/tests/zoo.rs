//! The model zoo: published parameter counts, overrides, and that every network trains.

use plimsoll::optim::Adam;
use plimsoll::zoo::{self, Options};
use plimsoll::{Error, Fit, Precision, Trainer};

/// Trainable parameters as published, without moving statistics.
const PUBLISHED: &[(&str, u64)] = &[
    ("mlp", 118_282),
    ("lenet5", 61_706),
    ("cifar-cnn", 1_250_858),
    ("vgg16", 138_357_544),
    ("vgg19", 143_667_240),
    ("resnet18", 11_689_512),
    ("resnet34", 21_797_672),
    ("resnet50", 25_557_032),
    ("resnet101", 44_549_160),
    // Keras counts 4,253,864 with 21,888 moving statistics.
    ("mobilenet-v1", 4_231_976),
    ("mobilenet-v2", 3_504_872),
    ("densenet121", 7_978_856),
    ("googlenet", 6_624_904),
    // 27,161,264 with the auxiliary head, which has 3,326,696.
    ("inception-v3", 23_834_568),
    ("efficientnet-b0", 5_288_548),
    ("unet", 31_037_698),
    ("vit-tiny", 5_717_416),
    ("vit-small", 22_050_664),
    ("vit-base", 86_567_656),
    ("gpt2-124m", 124_439_808),
    ("gpt2-355m", 354_823_168),
    // The encoder with its pooler, 109,482,240, and a classifier of two classes.
    ("bert-base", 109_483_778),
];

#[test]
fn networks_have_the_published_parameter_counts() {
    for (name, published) in PUBLISHED {
        let network = zoo::find(name).unwrap().build(&Options::default()).unwrap();
        assert_eq!(network.parameters().unwrap(), *published, "{name}");
    }
}

#[test]
fn every_network_reports_its_costs() {
    for entry in zoo::ENTRIES {
        let network = entry.build(&Options::default()).unwrap();
        let costs = network.costs().unwrap();
        let summary = network.summary().unwrap();
        assert_eq!(summary.parameters(), costs.parameters, "{}", entry.name);
        assert!(costs.flops > 2 * costs.parameters / 100 && costs.activations.0 > 0, "{}: {costs:?}", entry.name);
        println!("{:<16} {:>12} {:>16} {:>12}", entry.name, costs.parameters, costs.flops, costs.activations.to_string());
    }
}

/// A network scaled down to train in a moment.
fn tiny(name: &str) -> zoo::Network {
    let entry = zoo::find(name).unwrap();
    let input = match entry.input {
        [8, 8, _] | [28, 28, _] => None,
        [299, 299, _] => Some(vec![75, 75, 3]),
        [_, _, _] => Some(vec![32, 32, 3]),
        [_, _] => Some(vec![5, 3]),
        _ => None,
    };
    let width = (entry.input.len() != 3 || entry.input[0] > 32).then_some(0.0625);
    let tokens = entry.input.len() == 1;
    let (context, vocabulary) = (tokens.then_some(8), tokens.then_some(11));
    entry.build(&Options { input, width, context, vocabulary, ..Options::default() }).unwrap()
}

fn learns(name: &str, precision: Precision) {
    let network = tiny(name);
    let data = network.synthetic(8).unwrap().batch(8);
    let mut trainer = Trainer::new(network.model.clone(), &data).loss(network.loss).precision(precision).optimizer(Adam::new(5e-4)).seed(3);
    let history = trainer.fit(Fit::epochs(16)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let losses: Vec<f64> = history.epochs.iter().map(|epoch| epoch.training.loss).collect();
    // Dropout and stochastic depth make single losses noisy.
    assert!(losses[12..].iter().sum::<f64>() < losses[..4].iter().sum::<f64>(), "{name}: {losses:?}");
}

#[test]
fn every_network_trains() {
    for entry in zoo::ENTRIES {
        learns(entry.name, Precision::F32);
    }
}

#[test]
fn networks_of_every_family_train_in_mixed_precision() {
    for name in ["resnet18", "mobilenet-v2", "unet", "segnet", "vit-tiny", "char-gpt", "bert-base", "lstm", "gru"] {
        learns(name, Precision::MixedBf16);
    }
}

#[test]
fn invalid_overrides_are_refused() {
    let refuse = |name: &str, options: Options| match zoo::find(name).unwrap().build(&options) {
        Err(Error::Config(what)) => what,
        other => panic!("{name}: {other:?}"),
    };
    let input = |input: &[usize]| Options { input: Some(input.to_vec()), ..Options::default() };
    assert_eq!(
        refuse("unet", input(&[100, 64])),
        "the network unet takes images whose height and width are multiples of 16, but got 100×64"
    );
    assert_eq!(refuse("vgg16", input(&[224])), "the network vgg16 takes inputs of 3 dimensions such as [224, 224, 3], but got [224]");
    assert_eq!(
        refuse("resnet18", Options { width: Some(f64::NAN), ..Options::default() }),
        "the network resnet18 cannot be scaled to a width of NaN; the width multiplier is between 0.001 and 1000"
    );
    assert_eq!(
        refuse("autoencoder", Options { classes: Some(3), ..Options::default() }),
        "the network autoencoder has no `classes`; it takes input, width"
    );
}
