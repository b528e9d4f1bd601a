//! Files that are written are read back; damaged ones are refused.

use super::*;
use crate::error::Result;
use crate::source::Region;

/// A convolution with a quantized kernel, a constant in memory, and metadata.
fn model() -> TfliteModel {
    let mut kernel = TfliteTensor::computed("kernel", DType::I8, vec![4, 1, 1, 3]);
    kernel.quantization = Some(Quantization { scales: vec![0.5, 0.25, 1.0, 2.0], zero_points: vec![0; 4], axis: 0 });
    kernel.contents = Contents::Streamed;
    let mut bias = TfliteTensor::computed("bias", DType::I32, vec![4]);
    bias.contents = Contents::Constant(Tensor::in_memory(DType::I32, vec![4], (0..16).collect()).unwrap());
    let mut input = TfliteTensor::computed("x", DType::F32, vec![1, 8, 8, 3]);
    input.signature = vec![-1, 8, 8, 3];
    let mut state = TfliteTensor::computed("state", DType::F32, vec![1, 8]);
    state.variable = true;
    let scalar = TfliteTensor::computed("scalar", DType::F32, vec![]);
    let options =
        [("padding", OptionValue::Byte(WindowPadding::Valid as u8)), ("stride_w", OptionValue::Int(2)), ("stride_h", OptionValue::Int(3))];
    let convolution =
        Operator { inputs: vec![0, 1, 2], outputs: vec![3], options: BTreeMap::from(options), ..Operator::new(BuiltinOp::Conv2d, 3) };
    let gelu = Operator {
        inputs: vec![3, -1],
        outputs: vec![3],
        intermediates: vec![5],
        options: BTreeMap::from([("approximate", OptionValue::Byte(1))]),
        ..Operator::new(BuiltinOp::Gelu, 1)
    };
    let softmax = Operator {
        inputs: vec![3],
        outputs: vec![3],
        options: BTreeMap::from([("beta", OptionValue::Float(1.0))]),
        ..Operator::new(BuiltinOp::Softmax, 1)
    };
    TfliteModel {
        description: "plimsoll".to_string(),
        tensors: vec![input, kernel, bias, TfliteTensor::computed("y", DType::F32, vec![1, 3, 4, 4]), state, scalar],
        operators: vec![convolution, gelu, softmax],
        inputs: vec![0],
        outputs: vec![3],
        signature: Some((vec!["image".to_string()], vec!["prediction".to_string()])),
        metadata: BTreeMap::from([("classes".to_string(), b"[\"cat\"]".to_vec())]),
        metadata_bytes: 0,
    }
}

fn written(model: &TfliteModel) -> Vec<u8> {
    let mut file = Vec::new();
    write(model, &mut file, |tensor, out| out.write_all(&vec![7; tensor.bytes() as usize])).unwrap();
    file
}

fn read(bytes: Vec<u8>) -> Result<TfliteModel> {
    TfliteModel::open(Region::bytes(bytes))
}

#[test]
fn a_model_is_read_as_it_was_written() {
    let (model, file) = (model(), written(&model()));
    let found = read(file).unwrap();
    assert_eq!(found.operators, model.operators);
    assert_eq!((&found.inputs, &found.outputs, &found.signature), (&model.inputs, &model.outputs, &model.signature));
    assert_eq!((&found.metadata, found.description.as_str()), (&model.metadata, "plimsoll"));
    for (found, wanted) in found.tensors.iter().zip(&model.tensors) {
        assert_eq!((&found.name, found.dtype, &found.shape), (&wanted.name, wanted.dtype, &wanted.shape));
        assert_eq!((&found.signature, &found.quantization, found.variable), (&wanted.signature, &wanted.quantization, wanted.variable));
    }
    let numbers = |i: usize| match &found.tensors[i].contents {
        Contents::Constant(tensor) => tensor.integers(100).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(numbers(1), [7; 12]);
    assert_eq!(numbers(2), [0x0302_0100, 0x0706_0504, 0x0B0A_0908, 0x0F0E_0D0C]);
    assert!(matches!(found.tensors[0].contents, Contents::Computed));
}

#[test]
fn constants_are_aligned_and_options_have_the_defaults_of_the_schema() {
    let file = written(&model());
    let at = file.windows(12).position(|bytes| bytes == [7; 12]).unwrap();
    assert_eq!((at % 16, file.len() % 16), (0, 0));
    let convolution = &read(file).unwrap().operators[0];
    assert_eq!((convolution.integer("stride_w"), convolution.integer("dilation_h_factor"), convolution.integer("padding")), (2, 1, 1));
}

#[test]
fn a_tensor_of_the_wrong_size_is_not_written() {
    let error = write(&model(), &mut Vec::new(), |_, out| out.write_all(&[1, 2])).unwrap_err();
    assert_eq!(error.to_string(), "a tensor of 12 bytes was written with 2");
}

#[test]
fn damaged_files_are_refused_without_a_panic() {
    let file = written(&model());
    assert!(read(Vec::new()).unwrap_err().to_string().contains("it is no TFLite file"));
    for length in 0..file.len() {
        let _ = read(file[..length].to_vec());
    }
    for at in 0..file.len() {
        for byte in [0, 1, 0x7F, 0xFF] {
            let mut changed = file.clone();
            changed[at] = byte;
            let _ = read(changed);
        }
    }
}

#[test]
fn unknown_operators_are_all_listed() {
    let mut model = model();
    model.operators.truncate(1);
    let mut file = written(&model);
    // The version 3 and the code 3 of CONV_2D stand beside each other.
    let code = file.windows(8).position(|bytes| bytes == [3, 0, 0, 0, 3, 0, 0, 0]).unwrap() + 4;
    file[code] = 200;
    let error = read(file).map(|model| model.operators).unwrap_err();
    assert_eq!(error.to_string(), "these operators are not known:\n  the operator of code 200");
}
