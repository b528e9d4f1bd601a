//! Writing TFLite files: tables from memory, constants streamed through.

use super::{BuiltinOp, Contents, OptionValue, TfliteModel, TfliteTensor, type_code};
use crate::flatbuffer::{Field, FlatFile, Table};
use std::io::{self, Write};

/// The version of the schema.
const SCHEMA: i32 = 3;

/// Constants begin at multiples of this, as the schema asks.
const ALIGNMENT: u64 = 16;

/// Bytes that are copied at a time.
const PIECE: usize = 64 << 10;

/// Writes a model. `data` writes the elements of a streamed tensor, little-endian.
pub fn write(
    model: &TfliteModel,
    out: &mut dyn Write,
    mut data: impl FnMut(&TfliteTensor, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut codes: Vec<(BuiltinOp, i32)> = Vec::new();
    let operators = model.operators.iter().map(|operator| {
        let code = (operator.op, operator.version);
        let index = codes.iter().position(|known| *known == code).unwrap_or_else(|| {
            codes.push(code);
            codes.len() - 1
        });
        let mut table = Table::default();
        table.int(0, index as i32);
        table.ints(1, &operator.inputs);
        table.ints(2, &operator.outputs);
        if operator.op.options_type() != 0 {
            table.byte(3, operator.op.options_type());
            let mut options = Table::default();
            for (name, id, _) in operator.op.fields() {
                match operator.options.get(name) {
                    Some(OptionValue::Int(value)) => options.int(*id, *value),
                    Some(OptionValue::Byte(value)) => options.byte(*id, *value),
                    Some(OptionValue::Float(value)) => options.float(*id, *value),
                    Some(OptionValue::Ints(values)) => options.ints(*id, values),
                    None => {}
                }
            }
            table.shared(4, Field::Table(options));
        }
        if !operator.intermediates.is_empty() {
            table.ints(8, &operator.intermediates);
        }
        table
    });
    let operators: Vec<Table> = operators.collect();
    let mut buffers = Buffers::default();
    let mut tensors = Vec::with_capacity(model.tensors.len());
    for tensor in &model.tensors {
        let index = match tensor.contents {
            Contents::Computed => 0,
            _ if tensor.elements() == 0 => 0,
            _ => buffers.add(tensor.bytes(), Source::Tensor(tensor)),
        };
        tensors.push(tensor_table(tensor, index));
    }
    let mut metadata = Vec::with_capacity(model.metadata.len());
    for (name, bytes) in &model.metadata {
        let mut table = Table::default();
        table.text(0, name);
        table.int(1, buffers.add(bytes.len() as u64, Source::Bytes(bytes)));
        metadata.push(table);
    }
    let mut graph = Table::default();
    graph.tables(0, tensors);
    graph.ints(1, &model.inputs);
    graph.ints(2, &model.outputs);
    graph.tables(3, operators);
    graph.text(4, "main");
    let codes = codes.iter().map(|(op, version)| {
        let mut table = Table::default();
        // Readers from before code 127 look at the first field, which has one byte.
        table.byte(0, op.code().min(127) as u8);
        table.int(2, *version);
        table.int(3, op.code());
        table
    });
    let mut root = Table::default();
    root.int(0, SCHEMA);
    root.tables(1, codes.collect());
    root.tables(2, vec![graph]);
    root.text(3, &model.description);
    root.tables(4, buffers.tables());
    if !metadata.is_empty() {
        root.tables(6, metadata);
    }
    if let Some((inputs, outputs)) = &model.signature {
        let mut signature = Table::default();
        signature.tables(0, tensor_maps(inputs, &model.inputs));
        signature.tables(1, tensor_maps(outputs, &model.outputs));
        signature.text(2, "serving_default");
        signature.int(4, 0);
        root.tables(7, vec![signature]);
    }
    let file = FlatFile::new(*b"TFL3", &root, ALIGNMENT)?;
    file.write(out, ALIGNMENT, |i, out| match &buffers.0[i].1 {
        Source::Bytes(bytes) => out.write_all(bytes),
        Source::Tensor(tensor) => match &tensor.contents {
            Contents::Constant(constant) => copy(constant, out),
            _ => data(tensor, out),
        },
    })
}

/// The buffers of a model, in the order in which they are streamed: bytes and where they come from.
#[derive(Default)]
struct Buffers<'a>(Vec<(u64, Source<'a>)>);

impl<'a> Buffers<'a> {
    /// Adds a buffer and gives its index. Buffer 0 is the empty one of all tensors that are computed.
    fn add(&mut self, bytes: u64, source: Source<'a>) -> i32 {
        self.0.push((bytes, source));
        self.0.len() as i32
    }

    fn tables(&self) -> Vec<Table> {
        let streamed = self.0.iter().map(|(bytes, _)| {
            let mut table = Table::default();
            table.set(0, Field::Streamed(*bytes));
            table
        });
        std::iter::once(Table::default()).chain(streamed).collect()
    }
}

/// Where the bytes of a buffer come from.
enum Source<'a> {
    Tensor(&'a TfliteTensor),
    Bytes(&'a [u8]),
}

fn copy(tensor: &crate::tensor::Tensor, out: &mut dyn Write) -> io::Result<()> {
    let bytes = tensor.elements() * tensor.dtype.size();
    let (mut reader, mut piece) = (tensor.reader(), vec![0; PIECE.min(bytes as usize)]);
    let mut at = 0;
    while at < bytes {
        let count = (bytes - at).min(PIECE as u64) as usize;
        reader.bytes(at, &mut piece[..count]).map_err(io::Error::other)?;
        out.write_all(&piece[..count])?;
        at += count as u64;
    }
    Ok(())
}

fn tensor_table(tensor: &TfliteTensor, buffer: i32) -> Table {
    let mut table = Table::default();
    table.shared_ints(0, &tensor.shape);
    table.byte(1, type_code(tensor.dtype));
    table.int(2, buffer);
    table.text(3, &tensor.name);
    if let Some(quantization) = &tensor.quantization {
        let mut parameters = Table::default();
        parameters.floats(2, &quantization.scales);
        parameters.longs(3, &quantization.zero_points);
        if quantization.axis != 0 {
            parameters.int(6, quantization.axis);
        }
        table.shared(4, Field::Table(parameters));
    }
    if tensor.variable {
        table.byte(5, 1);
    }
    if !tensor.signature.is_empty() {
        table.shared_ints(7, &tensor.signature);
    }
    // A tensor without dimensions is a scalar, not one of unknown rank.
    table.byte(8, 1);
    table
}

fn tensor_maps(names: &[String], tensors: &[i32]) -> Vec<Table> {
    let map = |(name, tensor): (&String, &i32)| {
        let mut table = Table::default();
        table.text(0, name);
        table.int(1, *tensor);
        table
    };
    names.iter().zip(tensors).map(map).collect()
}
