//! Reading ONNX files.

use super::{Attribute, Dim, Graph, Node, OnnxModel, TYPES, ValueInfo, dtype_of};
use crate::error::{Result, damaged, unsupported};
use crate::protobuf_read::{Fields, Value};
use crate::source::{MAX_METADATA, Metadata, Region};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// Opens the file with a tensor's data, by its path relative to the model.
type OpenExternal<'a> = &'a mut dyn FnMut(&str) -> Result<Region>;

/// What reading needs everywhere: how much was held so far, and how other files are opened.
struct Reader<'a> {
    metadata: Metadata,
    external: OpenExternal<'a>,
}

impl OnnxModel {
    /// Reads a model. `external` opens files with tensors, by their path relative to the model; paths that leave its
    /// folder are refused before.
    pub fn open(region: Region, external: OpenExternal<'_>) -> Result<OnnxModel> {
        let mut reader = Reader { metadata: Metadata::new(region.clone()), external };
        let mut model = OnnxModel::default();
        let mut graph = None;
        let mut fields = Fields::new(region);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Varint(version)) => model.ir_version = version as i64,
                (2, Value::Bytes(text)) => model.producer = reader.text(&text)?,
                (7, Value::Bytes(message)) => graph = Some(message),
                (8, Value::Bytes(message)) => {
                    let (domain, version) = reader.opset(message)?;
                    model.opsets.insert(domain, version);
                }
                (14, Value::Bytes(message)) => {
                    let (key, value) = reader.entry(message)?;
                    model.metadata.insert(key, value);
                }
                (25, Value::Bytes(message)) => model.functions.push(reader.function(message)?),
                _ => {}
            }
        }
        let (Some(graph), true) = (graph, model.ir_version > 0) else {
            return damaged("it is not an ONNX model: it has no graph or no version");
        };
        model.graph = reader.graph(graph)?;
        model.metadata_bytes = reader.metadata.counted();
        Ok(model)
    }

    /// Reads a tensor by itself, as test data of ONNX is stored (`.pb`), with its name.
    pub fn open_tensor(region: Region) -> Result<(String, Tensor)> {
        let mut refuse = |_: &str| unsupported("a tensor by itself has no other files");
        let mut reader = Reader { metadata: Metadata::new(region.clone()), external: &mut refuse };
        reader.tensor(region)
    }
}

impl Reader<'_> {
    fn text(&self, region: &Region) -> Result<String> {
        self.metadata.count(region.length() + 24)?;
        match String::from_utf8(region.read_all(MAX_METADATA, "a text of the model")?) {
            Ok(text) => Ok(text),
            Err(_) => damaged("a text of the model is not UTF-8"),
        }
    }

    fn opset(&self, message: Region) -> Result<(String, i64)> {
        let (mut domain, mut version) = (String::new(), 0);
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Bytes(text)) => domain = self.text(&text)?,
                (2, Value::Varint(number)) => version = number as i64,
                _ => {}
            }
        }
        // Its own domain has two names.
        Ok((if domain == "ai.onnx" { String::new() } else { domain }, version))
    }

    fn entry(&self, message: Region) -> Result<(String, String)> {
        let (mut key, mut value) = (String::new(), String::new());
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Bytes(text)) => key = self.text(&text)?,
                (2, Value::Bytes(text)) => value = self.text(&text)?,
                _ => {}
            }
        }
        Ok((key, value))
    }

    fn function(&self, message: Region) -> Result<String> {
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            if let (1, Value::Bytes(text)) = field {
                return self.text(&text);
            }
        }
        Ok(String::new())
    }

    fn graph(&mut self, message: Region) -> Result<Graph> {
        let mut graph = Graph::default();
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            // A list grows with the bytes of the file, and a damaged file may have many empty messages.
            self.metadata.count(16)?;
            match field {
                (1, Value::Bytes(message)) => graph.nodes.push(self.node(message)?),
                (2, Value::Bytes(text)) => graph.name = self.text(&text)?,
                (5, Value::Bytes(message)) => {
                    let (name, tensor) = self.tensor(message)?;
                    if graph.initializers.insert(name.clone(), tensor).is_some() {
                        return damaged(format!("two initializers are called `{name}`"));
                    }
                }
                (11, Value::Bytes(message)) => graph.inputs.push(self.value(message)?),
                (12, Value::Bytes(message)) => graph.outputs.push(self.value(message)?),
                (15, Value::Bytes(_)) => return unsupported("the model has sparse initializers, which are not read"),
                _ => {}
            }
        }
        Ok(graph)
    }

    fn node(&mut self, message: Region) -> Result<Node> {
        self.metadata.count(128)?;
        let mut node = Node::default();
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Bytes(text)) => node.inputs.push(self.text(&text)?),
                (2, Value::Bytes(text)) => node.outputs.push(self.text(&text)?),
                (3, Value::Bytes(text)) => node.name = self.text(&text)?,
                (4, Value::Bytes(text)) => node.op = self.text(&text)?,
                (5, Value::Bytes(message)) => {
                    let (name, value) = self.attribute(message)?;
                    node.attributes.insert(name, value);
                }
                (7, Value::Bytes(text)) => {
                    node.domain = self.text(&text)?;
                    if node.domain == "ai.onnx" {
                        node.domain.clear();
                    }
                }
                _ => {}
            }
        }
        Ok(node)
    }

    fn attribute(&mut self, message: Region) -> Result<(String, Attribute)> {
        self.metadata.count(128)?;
        let (mut name, mut kind) = (String::new(), 0);
        let (mut float, mut int, mut text, mut tensor) = (0.0, 0, String::new(), None);
        let (mut floats, mut ints, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Bytes(value)) => name = self.text(&value)?,
                (2, Value::Fixed32(value)) => float = f32::from_le_bytes(value),
                (3, Value::Varint(value)) => int = value as i64,
                (4, Value::Bytes(value)) => text = self.lossy(&value)?,
                (5, Value::Bytes(value)) => tensor = Some(self.tensor(value)?.1),
                (7, Value::Fixed32(value)) => {
                    self.metadata.count(4)?;
                    floats.push(f32::from_le_bytes(value));
                }
                (7, Value::Bytes(value)) => {
                    self.metadata.count(value.length())?;
                    let bytes = value.read_all(MAX_METADATA, "an attribute")?;
                    floats.extend(bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))));
                }
                (8, Value::Varint(value)) => {
                    self.metadata.count(8)?;
                    ints.push(value as i64);
                }
                (8, Value::Bytes(value)) => ints.extend(self.varints(value)?.into_iter().map(|value| value as i64)),
                (9, Value::Bytes(value)) => texts.push(self.lossy(&value)?),
                (20, Value::Varint(value)) => kind = value,
                (21, Value::Bytes(_)) => return unsupported("a function of the model has attributes of its own"),
                _ => {}
            }
        }
        let value = match (kind, tensor) {
            (1, _) => Attribute::Float(float),
            (2, _) => Attribute::Int(int),
            (3, _) => Attribute::Text(text),
            (4, Some(tensor)) => Attribute::Tensor(tensor),
            (6, _) => Attribute::Floats(floats),
            (7, _) => Attribute::Ints(ints),
            (8, _) => Attribute::Strings(texts),
            _ => Attribute::Other,
        };
        Ok((name, value))
    }

    /// Attributes of text may be bytes.
    fn lossy(&self, region: &Region) -> Result<String> {
        self.metadata.count(region.length() + 24)?;
        Ok(String::from_utf8_lossy(&region.read_all(MAX_METADATA, "an attribute")?).into_owned())
    }

    fn varints(&self, region: Region) -> Result<Vec<u64>> {
        self.metadata.count(region.length().saturating_mul(8))?;
        let mut numbers = Vec::new();
        let mut fields = Fields::new(region);
        while let Some(number) = fields.packed()? {
            numbers.push(number);
        }
        Ok(numbers)
    }

    fn value(&self, message: Region) -> Result<ValueInfo> {
        let mut value = ValueInfo::default();
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Bytes(text)) => value.name = self.text(&text)?,
                (2, Value::Bytes(message)) => {
                    let mut fields = Fields::new(message);
                    while let Some(field) = fields.field()? {
                        if let (1, Value::Bytes(message)) = field {
                            self.tensor_type(message, &mut value)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(value)
    }

    fn tensor_type(&self, message: Region, value: &mut ValueInfo) -> Result<()> {
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Varint(code)) => value.dtype = dtype_of(code as i64),
                (2, Value::Bytes(message)) => {
                    let mut dims = Vec::new();
                    let mut fields = Fields::new(message);
                    while let Some(field) = fields.field()? {
                        if let (1, Value::Bytes(message)) = field {
                            self.metadata.count(32)?;
                            dims.push(self.dim(message)?);
                        }
                    }
                    value.shape = Some(dims);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn dim(&self, message: Region) -> Result<Dim> {
        let mut dim = Dim::Symbolic(String::new());
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Varint(size)) => dim = Dim::Fixed(size as i64),
                (2, Value::Bytes(text)) => dim = Dim::Symbolic(self.text(&text)?),
                _ => {}
            }
        }
        Ok(dim)
    }

    /// A tensor with its name.
    fn tensor(&mut self, message: Region) -> Result<(String, Tensor)> {
        self.metadata.count(128)?;
        let (mut name, mut code, mut shape) = (String::new(), 0, Vec::new());
        let (mut raw, mut external, mut elsewhere) = (None, BTreeMap::new(), false);
        // Elements outside `raw_data`: packed ones stay in the file, others are collected.
        let (mut packed, mut numbers): (Vec<Region>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut integers: Vec<u64> = Vec::new();
        let mut fields = Fields::new(message);
        while let Some(field) = fields.field()? {
            match field {
                (1, Value::Varint(dim)) => shape.push(dim),
                (1, Value::Bytes(dims)) => shape.extend(self.varints(dims)?),
                (2, Value::Varint(value)) => code = value,
                (3, Value::Bytes(_)) => return unsupported("a tensor is stored in segments, which is not read"),
                (4 | 10, Value::Bytes(values)) => packed.push(values),
                (4, Value::Fixed32(value)) => {
                    self.metadata.count(4)?;
                    numbers.extend(value);
                }
                (10, Value::Fixed64(value)) => {
                    self.metadata.count(8)?;
                    numbers.extend(value);
                }
                (5 | 7 | 11, Value::Bytes(values)) => integers.extend(self.varints(values)?),
                (5 | 7 | 11, Value::Varint(value)) => {
                    self.metadata.count(8)?;
                    integers.push(value);
                }
                (8, Value::Bytes(text)) => name = self.text(&text)?,
                (9, Value::Bytes(values)) => raw = Some(values),
                (13, Value::Bytes(message)) => {
                    let (key, value) = self.entry(message)?;
                    external.insert(key, value);
                }
                (14, Value::Varint(place)) => elsewhere = place == 1,
                _ => {}
            }
        }
        let what = format!("the tensor `{name}`");
        if code == 8 {
            return unsupported(format!("{what} has strings, which are not read"));
        }
        let Some((_, dtype)) = TYPES.iter().find(|(known, _)| *known == code) else {
            return unsupported(format!("{what} has the type {code} of ONNX, which is not read"));
        };
        let dtype = *dtype;
        let stored = if elsewhere {
            self.external_data(&external, &what)?
        } else if let Some(raw) = raw {
            raw
        } else if let ([one], true) = (&packed[..], numbers.is_empty()) {
            one.clone()
        } else {
            for part in packed {
                self.metadata.count(part.length())?;
                numbers.extend(part.read_all(MAX_METADATA, &what)?);
            }
            self.metadata.count(integers.len() as u64)?;
            // `int32_data` has the bits of types of one and two bytes too, 16-bit floats among them.
            integers.iter().for_each(|value| numbers.extend(&value.to_le_bytes()[..dtype.size() as usize]));
            Region::bytes(numbers)
        };
        Ok((name, Tensor::stored(dtype, shape, stored, &what)?))
    }

    /// The bytes of a tensor in another file, which must be in the model's folder.
    fn external_data(&mut self, entries: &BTreeMap<String, String>, what: &str) -> Result<Region> {
        let Some(location) = entries.get("location") else { return damaged(format!("{what} is in another file without a name")) };
        let inside = !location.is_empty()
            && !location.starts_with(['/', '\\'])
            && !location.contains([':', '\0'])
            && location.split(['/', '\\']).all(|part| part != "..");
        if !inside {
            return unsupported(format!("{what} is in `{location}`, outside the folder of the model, which is not opened"));
        }
        let number = |key: &str| match entries.get(key).map(|text| text.parse::<u64>()) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => damaged(format!("{what} has an {key} that is not a number")),
        };
        let file = (self.external)(location)?;
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?.unwrap_or(file.length().saturating_sub(offset));
        file.part(offset, length, what)
    }
}
