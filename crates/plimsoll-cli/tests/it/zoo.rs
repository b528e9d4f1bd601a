//! `plimsoll zoo`: its list and its errors.

use crate::Sandbox;

#[test]
fn zoo_lists_networks_with_parameter_counts() {
    let sandbox = Sandbox::new("zoo-list");
    let list: serde_json::Value = serde_json::from_str(&sandbox.succeed(&["zoo", "--json"])).unwrap();
    let network = |name: &str| list.as_array().unwrap().iter().find(|network| network["name"] == name).unwrap().clone();
    let resnet = network("resnet50");
    assert_eq!((resnet["parameters"].as_u64(), &resnet["input"]), (Some(25_557_032), &serde_json::json!([224, 224, 3])));
    // Twice the published four billion multiply-adds, plus the other layers.
    assert!((8.1e9..8.5e9).contains(&resnet["flops_per_example"].as_f64().unwrap()));
    assert_eq!(network("gpt2-124m")["parameters"], 124_439_808);
    assert!(sandbox.succeed(&["zoo"]).lines().any(|line| line.starts_with("resnet50") && line.contains("25,557,032")));
}

#[test]
fn zoo_shows_the_layers_of_a_network() {
    let sandbox = Sandbox::new("zoo-one");
    insta::assert_snapshot!(sandbox.succeed(&["zoo", "mlp", "--classes", "3", "--width", "0.25", "--input", "4x4"]), @"
    mlp
      layer    kind     output   parameters
      flatten  flatten  [B, 16]           0
      dense    dense    [B, 32]         544
      dense_1  dense    [B, 32]       1,056
      dense_2  dense    [B, 3]           99
      1,699 parameters
    ");
    insta::assert_snapshot!(sandbox.fail(&["zoo", "vgg61"]).1.rsplit(';').next().unwrap().trim(), @r#"did you mean "vgg16"?"#);
    insta::assert_snapshot!(sandbox.fail(&["zoo", "mlp", "--context", "3"]).1, @"error: the network mlp has no `context`; it takes classes, input, width");
}
