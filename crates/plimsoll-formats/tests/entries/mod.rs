//! The readers of models from the bytes of a file, for the mutation test and for cargo-fuzz.

use plimsoll_formats::hdf5::Hdf5;
use plimsoll_formats::keras::{KerasModel, Weights};
use plimsoll_formats::onnx::{Attribute, OnnxModel};
use plimsoll_formats::safetensors::SafeTensors;
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::Tensor;
use plimsoll_formats::tflite::{Contents, TfliteModel, TfliteTensor};
use plimsoll_formats::{FormatError, Result};

type Entry = (&'static str, fn(Region) -> Result<()>);

/// Every reader, by the name of its fuzz target.
pub const ENTRIES: [Entry; 5] = [
    ("hdf5", |region| Hdf5::open(region)?.objects.values().filter_map(|object| object.dataset.as_ref()).try_for_each(sample)),
    ("keras", |region| match KerasModel::open(region)?.weights {
        Weights::None => Ok(()),
        Weights::Paths(file) => file.objects.values().filter_map(|object| object.dataset.as_ref()).try_for_each(sample),
        Weights::Legacy(weights) => {
            let of = |layer: &String| weights.of(layer).iter().try_for_each(|(_, tensor)| sample(tensor));
            weights.layers().iter().try_for_each(of)?;
            weights.optimizer().iter().try_for_each(|(_, tensor)| sample(tensor))
        }
    }),
    ("onnx", |region| {
        let mut none = |name: &str| Err(FormatError::Unsupported(format!("no `{name}` here")));
        let model = OnnxModel::open(region, &mut none)?;
        model.graph.initializers.values().try_for_each(sample)?;
        let attributes = model.graph.nodes.iter().flat_map(|node| node.attributes.values());
        attributes.filter_map(|value| if let Attribute::Tensor(tensor) = value { Some(tensor) } else { None }).try_for_each(sample)
    }),
    ("safetensors", |region| SafeTensors::open(region)?.tensors.values().try_for_each(sample)),
    ("tflite", |region| {
        let constant = |tensor: &TfliteTensor| if let Contents::Constant(tensor) = &tensor.contents { sample(tensor) } else { Ok(()) };
        TfliteModel::open(region)?.tensors.iter().try_for_each(constant)
    }),
];

/// Reads the first and the last elements.
fn sample(tensor: &Tensor) -> Result<()> {
    let mut some = [0.0; 1000];
    let count = tensor.elements().min(1000);
    let mut reader = tensor.reader();
    reader.f32s(0, &mut some[..count as usize])?;
    reader.f32s(tensor.elements() - count, &mut some[..count as usize])
}
