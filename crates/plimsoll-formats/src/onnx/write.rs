//! Writing ONNX files: nodes from memory, weights streamed through.

use super::{Attribute, Dim, Node, OnnxModel, ValueInfo, code_of};
use crate::protobuf::Message;
use crate::tensor::DType;
use std::io::{self, Write};

/// A weight that will be written.
#[derive(Clone, Debug)]
pub struct WrittenTensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Vec<u64>,
}

/// Where weights go.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// The name of the file beside the model with the weights; without it they are inside. Files above 2 GiB need one:
    /// Protocol Buffers have no longer messages.
    pub external: Option<String>,
}

impl WrittenTensor {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size()
    }
}

/// Weights in another file begin at multiples of this, as ONNX recommends for mapping them into memory.
const ALIGNMENT: u64 = 4096;

/// Writes a model with these weights. `data` writes the elements of a weight, little-endian; it is not called for
/// weights that are in another file. Initializers of `model.graph` are small constants and are written too.
pub fn write(
    model: &OnnxModel,
    weights: &[WrittenTensor],
    options: &WriteOptions,
    out: &mut dyn Write,
    mut data: impl FnMut(&WrittenTensor, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut head = Message::default();
    head.integer(1, model.ir_version);
    head.bytes(2, model.producer.as_bytes());
    for (domain, version) in &model.opsets {
        head.message(8, |opset| {
            opset.bytes(1, domain.as_bytes());
            opset.integer(2, *version);
        });
    }
    for (key, value) in &model.metadata {
        head.message(14, |entry| {
            entry.bytes(1, key.as_bytes());
            entry.bytes(2, value.as_bytes());
        });
    }
    let graph = &model.graph;
    let mut body = Message::default();
    graph.nodes.iter().try_for_each(|written| {
        let mut result = Ok(());
        body.message(1, |message| result = node(written, message));
        result
    })?;
    body.bytes(2, graph.name.as_bytes());
    for (name, tensor) in &graph.initializers {
        let bytes = all_bytes(tensor)?;
        let header = WrittenTensor { name: name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() };
        body.message(5, |message| {
            tensor_header(&header, message);
            message.bytes(9, &bytes);
        });
    }
    graph.inputs.iter().for_each(|value| body.message(11, |message| value_info(value, message)));
    graph.outputs.iter().for_each(|value| body.message(12, |message| value_info(value, message)));

    // The lengths come first, so all are known before the first weight is written.
    let mut offset = 0;
    let mut prefixes = Vec::with_capacity(weights.len());
    let mut length = body.as_bytes().len() as u64;
    for weight in weights {
        let mut inner = Message::default();
        tensor_header(weight, &mut inner);
        let bytes = weight.bytes();
        let inside = match &options.external {
            Some(file) => {
                for (key, value) in [("location", file.clone()), ("offset", offset.to_string()), ("length", bytes.to_string())] {
                    inner.message(13, |entry| {
                        entry.bytes(1, key.as_bytes());
                        entry.bytes(2, value.as_bytes());
                    });
                }
                inner.integer(14, 1);
                offset = (offset + bytes).next_multiple_of(ALIGNMENT);
                0
            }
            None => {
                inner.start_bytes(9, bytes);
                bytes
            }
        };
        let mut prefix = Message::default();
        prefix.start_bytes(5, inner.as_bytes().len() as u64 + inside);
        let prefix = [prefix.as_bytes(), inner.as_bytes()].concat();
        length += prefix.len() as u64 + inside;
        prefixes.push(prefix);
    }
    if length >= 1 << 31 {
        return Err(io::Error::other("the model takes more than 2 GiB, which one ONNX file cannot; write the weights to another file"));
    }
    head.start_bytes(7, length);
    out.write_all(head.as_bytes())?;
    out.write_all(body.as_bytes())?;
    for (weight, prefix) in weights.iter().zip(prefixes) {
        out.write_all(&prefix)?;
        if options.external.is_none() {
            data(weight, out)?;
        }
    }
    Ok(())
}

/// Writes the other file of a model whose weights are external, in the same order.
pub fn external_file(
    weights: &[WrittenTensor],
    out: &mut dyn Write,
    mut data: impl FnMut(&WrittenTensor, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut at: u64 = 0;
    for weight in weights {
        let start = at.next_multiple_of(ALIGNMENT);
        io::copy(&mut io::Read::take(io::repeat(0), start - at), out)?;
        data(weight, out)?;
        at = start + weight.bytes();
    }
    Ok(())
}

fn all_bytes(tensor: &crate::tensor::Tensor) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (tensor.elements() * tensor.dtype.size()) as usize];
    tensor.reader().bytes(0, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn tensor_header(tensor: &WrittenTensor, message: &mut Message) {
    tensor.shape.iter().for_each(|dim| message.integer(1, *dim as i64));
    message.integer(2, code_of(tensor.dtype));
    message.bytes(8, tensor.name.as_bytes());
}

fn node(node: &Node, message: &mut Message) -> io::Result<()> {
    node.inputs.iter().for_each(|name| message.bytes(1, name.as_bytes()));
    node.outputs.iter().for_each(|name| message.bytes(2, name.as_bytes()));
    message.bytes(3, node.name.as_bytes());
    message.bytes(4, node.op.as_bytes());
    for (name, value) in &node.attributes {
        let tensor = match value {
            Attribute::Tensor(tensor) => Some(all_bytes(tensor)?),
            _ => None,
        };
        message.message(5, |message| attribute(name, value, tensor.as_deref(), message));
    }
    if !node.domain.is_empty() {
        message.bytes(7, node.domain.as_bytes());
    }
    Ok(())
}

fn attribute(name: &str, value: &Attribute, tensor: Option<&[u8]>, message: &mut Message) {
    message.bytes(1, name.as_bytes());
    let kind = match value {
        Attribute::Float(value) => {
            message.float(2, *value);
            1
        }
        Attribute::Int(value) => {
            message.integer(3, *value);
            2
        }
        Attribute::Text(value) => {
            message.bytes(4, value.as_bytes());
            3
        }
        Attribute::Tensor(value) => {
            message.message(5, |message| {
                tensor_header(&WrittenTensor { name: String::new(), dtype: value.dtype, shape: value.shape.clone() }, message);
                message.bytes(9, tensor.unwrap_or_default());
            });
            4
        }
        Attribute::Floats(values) => {
            values.iter().for_each(|value| message.float(7, *value));
            6
        }
        Attribute::Ints(values) => {
            values.iter().for_each(|value| message.integer(8, *value));
            7
        }
        Attribute::Strings(values) => {
            values.iter().for_each(|value| message.bytes(9, value.as_bytes()));
            8
        }
        Attribute::Other => 0,
    };
    message.integer(20, kind);
}

fn value_info(value: &ValueInfo, message: &mut Message) {
    message.bytes(1, value.name.as_bytes());
    let Some(dtype) = value.dtype else { return };
    message.message(2, |ty| {
        ty.message(1, |tensor| {
            tensor.integer(1, code_of(dtype));
            let Some(shape) = &value.shape else { return };
            tensor.message(2, |message| {
                for dim in shape {
                    message.message(1, |message| match dim {
                        Dim::Fixed(size) => message.integer(1, *size),
                        Dim::Symbolic(name) => message.bytes(2, name.as_bytes()),
                    });
                }
            });
        });
    });
}
