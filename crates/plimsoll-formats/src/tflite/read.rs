//! Reading TFLite files: one graph of known operators. Constants stay in the file.

use super::schema::OptionKind;
use super::{BuiltinOp, Contents, Operator, OptionValue, Quantization, TfliteModel, TfliteTensor, type_of};
use crate::error::{Result, damaged, unsupported};
use crate::flatbuffer_read::TableReader;
use crate::source::{Metadata, Region};
use crate::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

impl TfliteModel {
    /// Reads a model. Constants are read later, from the file.
    ///
    /// # Errors
    /// If it is no TFLite file, is damaged, or has several graphs or operators that are not known, which are all
    /// listed.
    pub fn open(region: Region) -> Result<TfliteModel> {
        let file = Metadata::new(region);
        let mut identifier = [0; 8];
        let known = file.region.read(0, &mut identifier, "the head of the file").is_ok() && &identifier[4..] == b"TFL3";
        if !known {
            return damaged("it is no TFLite file: it does not have the identifier TFL3");
        }
        let root = TableReader::root(&file, "the model")?;
        let codes = codes(&root)?;
        let mut graphs = root.tables(2, "a graph")?;
        if graphs.len() != 1 {
            return unsupported(format!("the model has {} graphs; models with one graph are read", graphs.len()));
        }
        let graph = graphs.remove(0);
        let buffers: Vec<Option<Region>> = root.tables(4, "a buffer")?.iter().map(|buffer| buffer.region(0)).collect::<Result<_>>()?;
        let tensors: Vec<TfliteTensor> = graph.tables(0, "a tensor")?.iter().map(|table| tensor(table, &buffers)).collect::<Result<_>>()?;
        let indices = |indices: Vec<i32>, what: &str, optional: bool| {
            let fits = |index: &i32| usize::try_from(*index).is_ok_and(|index| index < tensors.len()) || (optional && *index == -1);
            match indices.iter().find(|index| !fits(index)) {
                Some(index) => damaged(format!("{what} names tensor {index}, but there are {}", tensors.len())),
                None => Ok(indices),
            }
        };
        let mut operators = Vec::new();
        for table in graph.tables(3, "an operator")? {
            let index = table.int(0)?.unwrap_or(0);
            let Some((op, version)) = usize::try_from(index).ok().and_then(|index| codes.get(index)).copied() else {
                return damaged(format!("an operator has the code {index}, but there are {}", codes.len()));
            };
            operators.push(Operator {
                op,
                version,
                inputs: indices(table.ints(1)?, op.name(), true)?,
                outputs: indices(table.ints(2)?, op.name(), false)?,
                intermediates: indices(table.ints(8)?, op.name(), false)?,
                options: options(&table, op)?,
            });
        }
        let mut metadata = BTreeMap::new();
        for entry in root.tables(6, "an entry of the metadata")? {
            let buffer = usize::try_from(entry.int(1)?.unwrap_or(0)).ok().and_then(|index| buffers.get(index)).cloned().flatten();
            let bytes = match buffer {
                Some(region) => {
                    file.count(region.length())?;
                    region.read_all(crate::source::MAX_METADATA, "an entry of the metadata")?
                }
                None => Vec::new(),
            };
            metadata.insert(entry.text(0)?, bytes);
        }
        let (inputs, outputs) =
            (indices(graph.ints(1)?, "the list of inputs", false)?, indices(graph.ints(2)?, "the list of outputs", false)?);
        let signature = match root.tables(7, "a signature")?.first() {
            Some(signature) => {
                let (given, computed) = (signature.tables(0, "an input of a signature")?, signature.tables(1, "an output of a signature")?);
                Some((names(&given, &inputs)?, names(&computed, &outputs)?))
            }
            None => None,
        };
        let description = root.text(3)?;
        let metadata_bytes = file.counted();
        Ok(TfliteModel { description, tensors, operators, inputs, outputs, signature, metadata, metadata_bytes })
    }
}

/// The operators with their versions, or all that are not known.
fn codes(root: &TableReader<'_>) -> Result<Vec<(BuiltinOp, i32)>> {
    let (mut known, mut unknown) = (Vec::new(), BTreeSet::new());
    for table in root.tables(1, "an operator code")? {
        let code = table.int(3)?.unwrap_or(0).max(i32::from(table.byte(0)?.unwrap_or(0)));
        let custom = table.text(1)?;
        match BuiltinOp::of(code) {
            Some(op) => known.push((op, table.int(2)?.unwrap_or(1))),
            None if custom.is_empty() => drop(unknown.insert(format!("the operator of code {code}"))),
            None => drop(unknown.insert(format!("the custom operator {custom}"))),
        }
    }
    if unknown.is_empty() {
        return Ok(known);
    }
    unsupported(format!("these operators are not known:\n  {}", unknown.into_iter().collect::<Vec<_>>().join("\n  ")))
}

/// The names of tensors in a signature, in the order of the graph.
fn names(maps: &[TableReader<'_>], tensors: &[i32]) -> Result<Vec<String>> {
    let mut named = BTreeMap::new();
    for map in maps {
        named.insert(map.int(1)?.unwrap_or(0), map.text(0)?);
    }
    Ok(tensors.iter().map(|tensor| named.get(tensor).cloned().unwrap_or_default()).collect())
}

fn options(table: &TableReader<'_>, op: BuiltinOp) -> Result<BTreeMap<&'static str, OptionValue>> {
    let mut found = BTreeMap::new();
    if op.fields().is_empty() || table.byte(3)?.unwrap_or(0) != op.options_type() {
        return Ok(found);
    }
    let Some(options) = table.table(4, "the options of an operator")? else { return Ok(found) };
    for (name, id, kind) in op.fields() {
        let value = match kind {
            OptionKind::Int(_) => options.int(*id)?.map(OptionValue::Int),
            OptionKind::Byte(_) => options.byte(*id)?.map(OptionValue::Byte),
            OptionKind::Float => options.float(*id)?.map(OptionValue::Float),
            OptionKind::Ints => Some(options.ints(*id)?).filter(|ints| !ints.is_empty()).map(OptionValue::Ints),
        };
        value.map(|value| found.insert(*name, value));
    }
    Ok(found)
}

fn tensor(table: &TableReader<'_>, buffers: &[Option<Region>]) -> Result<TfliteTensor> {
    let name = table.text(3)?;
    let code = table.byte(1)?.unwrap_or(0);
    let Some(dtype) = type_of(code) else { return unsupported(format!("`{name}` has elements of type {code}, which is not read")) };
    let shape = table.ints(0)?;
    if let Some(dim) = shape.iter().find(|dim| **dim < 0) {
        return damaged(format!("`{name}` has a dimension of {dim}"));
    }
    let buffer = table.int(2)?.unwrap_or(0);
    let Some(buffer) = usize::try_from(buffer).ok().and_then(|index| buffers.get(index)) else {
        return damaged(format!("`{name}` is in buffer {buffer}, but there are {}", buffers.len()));
    };
    let contents = match buffer {
        Some(region) if region.length() > 0 => {
            let dims = shape.iter().map(|dim| *dim as u64).collect();
            Contents::Constant(Tensor::stored(dtype, dims, region.clone(), &format!("`{name}`"))?)
        }
        _ => Contents::Computed,
    };
    if table.table(6, "sparsity parameters")?.is_some() {
        return unsupported(format!("`{name}` is sparse, which is not read"));
    }
    let quantization = match table.table(4, "quantization parameters")? {
        Some(parameters) => quantization(&parameters, &name)?,
        None => None,
    };
    let variable = table.byte(5)?.unwrap_or(0) != 0;
    Ok(TfliteTensor { name, dtype, shape, signature: table.ints(7)?, quantization, variable, contents })
}

fn quantization(table: &TableReader<'_>, name: &str) -> Result<Option<Quantization>> {
    let (scales, mut zero_points) = (table.floats(2)?, table.longs(3)?);
    if scales.is_empty() {
        return Ok(None);
    }
    if zero_points.is_empty() {
        zero_points = vec![0; scales.len()];
    }
    if zero_points.len() != scales.len() {
        return damaged(format!("`{name}` has {} scales and {} zero points", scales.len(), zero_points.len()));
    }
    Ok(Some(Quantization { scales, zero_points, axis: table.int(6)?.unwrap_or(0) }))
}
