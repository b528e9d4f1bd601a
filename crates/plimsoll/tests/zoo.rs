//! The zoo: published sizes, overrides, and that every network learns.

use plimsoll::zoo::{self, Options};
use plimsoll::{Error, Fit, Trainer};

/// Numbers that are learnt, as published; where the source counts moving statistics too, they are taken off.
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
];

#[test]
fn networks_have_the_published_number_of_parameters() {
    for (name, published) in PUBLISHED {
        let network = zoo::find(name).unwrap().build(&Options::default()).unwrap();
        assert_eq!(network.parameters().unwrap(), *published, "{name}");
    }
}

#[test]
fn every_network_says_what_it_costs() {
    for entry in zoo::ENTRIES {
        let network = entry.build(&Options::default()).unwrap();
        let costs = network.costs().unwrap();
        let summary = network.summary().unwrap();
        assert_eq!(summary.parameters(), costs.parameters, "{}", entry.name);
        assert!(costs.flops > 2 * costs.parameters / 100 && costs.kept.0 > 0, "{}: {costs:?}", entry.name);
        println!("{:<16} {:>12} {:>16} {:>12}", entry.name, costs.parameters, costs.flops, costs.kept.to_string());
    }
}
