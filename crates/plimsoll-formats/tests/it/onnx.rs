//! ONNX and safetensors files of their own libraries, read back; and written ones.

use super::models::reference;
use plimsoll_formats::onnx::{Attribute, Dim, OnnxModel, WriteOptions, WrittenTensor, external_file, write};
use plimsoll_formats::safetensors::SafeTensors;
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::{FormatError, Result};

fn open(region: Region) -> Result<OnnxModel> {
    OnnxModel::open(region, &mut |name| Ok(reference(name)))
}

fn check_small(model: &OnnxModel) {
    assert_eq!((model.ir_version, model.opsets[""]), (8, 18));
    let graph = &model.graph;
    assert_eq!(graph.inputs[0].shape.as_ref().unwrap()[..], [Dim::Symbolic("batch".to_string()), Dim::Fixed(4)]);
    assert_eq!((graph.inputs[0].name.as_str(), graph.inputs[0].dtype), ("x", Some(DType::F32)));
    let numbers = |name: &str| graph.initializers[name].numbers(100).unwrap();
    assert_eq!(numbers("raw"), (0..12).map(|index| f64::from(index) / 8.0).collect::<Vec<_>>());
    assert_eq!(numbers("listed"), [0.0, 0.125, 0.25]);
    assert_eq!(numbers("half"), [0.0, 0.125]);
    assert_eq!(graph.initializers["shape"].integers(9).unwrap(), [-1, 3]);
    let dense = &graph.nodes[0];
    assert_eq!(
        (dense.op.as_str(), dense.name.as_str(), &dense.inputs[..]),
        ("Gemm", "dense", &["x", "raw", "listed"].map(String::from)[..])
    );
    assert!(matches!(dense.attributes["alpha"], Attribute::Float(1.0)));
    assert!(matches!(dense.attributes["transB"], Attribute::Int(0)));
}

#[test]
fn weights_inside_and_beside_a_model_are_the_same() {
    check_small(&open(reference("small.onnx")).unwrap());
    check_small(&open(reference("external.onnx")).unwrap());
    let error = open(reference("refused_location.onnx")).unwrap_err();
    assert_eq!(error.to_string(), "the tensor `raw` is in `../external.data`, outside the folder of the model, which is not opened");
}

#[test]
fn a_model_is_read_back_as_written_with_weights_inside_or_beside_it() {
    let mut model = open(reference("small.onnx")).unwrap();
    let tensor = model.graph.initializers.remove("raw").unwrap();
    let weights = [WrittenTensor { name: "raw".to_string(), dtype: DType::F32, shape: vec![4, 3] }];
    let data = |_: &WrittenTensor, out: &mut dyn std::io::Write| {
        let mut bytes = vec![0; 48];
        tensor.reader().bytes(0, &mut bytes).unwrap();
        out.write_all(&bytes)
    };
    let mut inside = Vec::new();
    write(&model, &weights, &WriteOptions::default(), &mut inside, data).unwrap();
    check_small(&open(Region::bytes(inside)).unwrap());

    let (mut beside, mut file) = (Vec::new(), Vec::new());
    write(&model, &weights, &WriteOptions { external: Some("w.data".to_string()) }, &mut beside, data).unwrap();
    external_file(&weights, &mut file, data).unwrap();
    let read = OnnxModel::open(Region::bytes(beside), &mut |name| match name {
        "w.data" => Ok(Region::bytes(file.clone())),
        other => Err(FormatError::Unsupported(other.to_string())),
    });
    check_small(&read.unwrap());
}

#[test]
fn safetensors_have_tensors_by_name() {
    let file = SafeTensors::open(reference("small.safetensors")).unwrap();
    assert_eq!(file.metadata["format"], "pt");
    assert_eq!(file.tensors["a.weight"].shape, [2, 3]);
    assert_eq!(file.tensors["b"].integers(10).unwrap(), [0, 1, 2]);
}
