//! HDF5 files as Keras writes them through h5py: superblock version 0, version 1 object headers, groups as B-trees with
//! symbol tables, datasets that are contiguous, compact or chunked (gzip and shuffle), attributes with strings of fixed
//! and variable length.
//!
//! A file is walked once, when it is opened: links, types, shapes and attributes are metadata; elements are read later,
//! piece by piece. Links to other files, soft links, virtual datasets and datasets in other files are refused by name.

mod attribute;
mod chunks;
mod group;
mod header;
mod types;
mod write;

use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata, Region};
use crate::tensor::{DType, Data, Tensor};
use chunks::ChunkedDataset;
use header::Header;
use std::collections::BTreeMap;
use std::sync::Arc;
pub use write::{Hdf5Node, Layout};

const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";
/// The address that stands for "none".
const UNDEFINED: u64 = u64::MAX;
/// Groups in groups; a deeper file refers to itself.
const MAX_DEPTH: usize = 64;

/// The objects of a file by their paths, such as `layers/dense/vars/0`; the root is the empty path.
#[derive(Debug)]
pub struct Hdf5 {
    /// Every group and dataset.
    pub objects: BTreeMap<String, Object>,
    /// Bytes of metadata that were read.
    pub metadata_bytes: u64,
}

/// A group or a dataset.
#[derive(Debug)]
pub struct Object {
    /// The dataset; none if it is a group.
    pub dataset: Option<Tensor>,
    /// Attributes of strings, by name. Others are not kept.
    pub attributes: BTreeMap<String, Vec<String>>,
}

impl Hdf5 {
    /// Whether bytes begin like an HDF5 file.
    pub fn is_hdf5(start: &[u8]) -> bool {
        start.starts_with(SIGNATURE)
    }

    /// Reads the structure of a file.
    pub fn open(region: Region) -> Result<Hdf5> {
        let metadata = Metadata::new(region);
        let start = metadata.read(0, 9, "the superblock")?;
        if !Hdf5::is_hdf5(&start) {
            return damaged("it is not an HDF5 file");
        }
        if start[8] != 0 {
            return unsupported(format!(
                "the HDF5 file has superblock version {}; Keras writes version 0 (rewrite it with `h5repack --high=v18 --low=v16`, \
                 or save it again without libver=\"latest\")",
                start[8]
            ));
        }
        let superblock = metadata.read(0, 96, "the superblock")?;
        let mut fields = FieldReader::new(&superblock[13..], "the superblock");
        let sizes = (fields.u8()?, fields.u8()?);
        if sizes != (8, 8) {
            return unsupported(format!("the HDF5 file has addresses of {} and lengths of {} bytes; 8 are expected", sizes.0, sizes.1));
        }
        fields.take(9)?;
        let base = fields.u64()?;
        if base != 0 {
            return unsupported("the HDF5 file does not begin at its first byte (it has a user block)");
        }
        fields.take(32)?;
        let root = fields.u64()?;
        let mut file = Hdf5 { objects: BTreeMap::new(), metadata_bytes: 0 };
        file.visit(&metadata, String::new(), root, 0)?;
        file.metadata_bytes = metadata.counted();
        Ok(file)
    }

    /// A dataset by its path.
    pub fn dataset(&self, path: &str) -> Option<&Tensor> {
        self.objects.get(path)?.dataset.as_ref()
    }

    /// A list of strings, or one, from an attribute of an object.
    pub fn attribute(&self, path: &str, name: &str) -> Option<&[String]> {
        self.objects.get(path)?.attributes.get(name).map(Vec::as_slice)
    }

    fn visit(&mut self, metadata: &Metadata, path: String, address: u64, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return damaged(format!("groups lie more than {MAX_DEPTH} deep in each other at `{path}`"));
        }
        let header = Header::read(metadata, address, &path)?;
        let links = group::links(metadata, &header, &path)?;
        let mut attributes = BTreeMap::new();
        for message in header.of(header::ATTRIBUTE) {
            if let Some((name, strings)) = attribute::strings(metadata, message, &path)? {
                attributes.insert(name, strings);
            }
        }
        let dataset = match &links {
            Some(_) => None,
            None => dataset(metadata, &header, &path, &attributes)?,
        };
        metadata.count(path.len() as u64 + 64)?;
        self.objects.insert(path.clone(), Object { dataset, attributes });
        for (name, address) in links.into_iter().flatten() {
            let inner = if path.is_empty() { name } else { format!("{path}/{name}") };
            self.visit(metadata, inner, address, depth + 1)?;
        }
        Ok(())
    }
}

/// The dataset of an object header; none if its type is not one of numbers.
fn dataset(metadata: &Metadata, header: &Header, path: &str, attributes: &BTreeMap<String, Vec<String>>) -> Result<Option<Tensor>> {
    let missing = |what: &str| crate::FormatError::Damaged(format!("the dataset `{path}` has no {what}"));
    if header.of(header::EXTERNAL_FILES).next().is_some() {
        return unsupported(format!("the elements of the dataset `{path}` are in another file, which is not opened"));
    }
    let Some(space) = header.of(header::DATASPACE).next() else { return Err(missing("shape")) };
    let (shape, _) = types::dataspace(space)?;
    let Some(ty) = header.of(header::DATATYPE).next() else { return Err(missing("type")) };
    let bfloat = attributes.get("dtype").is_some_and(|values| values == &["bfloat16"]);
    let Some(dtype) = types::number(ty, bfloat, path)? else { return Ok(None) };
    let Some(layout) = header.of(header::LAYOUT).next() else { return Err(missing("layout")) };
    let what = format!("the dataset `{path}`");
    let Some(bytes) = shape.iter().try_fold(dtype.size(), |bytes, dim| bytes.checked_mul(*dim)) else {
        return damaged(format!("{what} has the impossible shape {shape:?}"));
    };
    let mut fields = FieldReader::new(layout, &what);
    let (version, class) = (fields.u8()?, fields.u8()?);
    match (version, class) {
        (3, 0) => {
            let length = fields.u16()?;
            let stored = fields.take(length.into())?.to_vec();
            Tensor::stored(dtype, shape, Region::bytes(stored), &what).map(Some)
        }
        (3, 1) => {
            let (address, length) = (fields.u64()?, fields.u64()?);
            if address == UNDEFINED {
                return zeros(metadata, dtype, shape, bytes, &what).map(Some);
            }
            if length != bytes {
                return damaged(format!("{what} takes {bytes} bytes by its shape, but {length} are stored"));
            }
            Tensor::stored(dtype, shape, metadata.region.part(address, length, &what)?, &what).map(Some)
        }
        (3, 2) => {
            let filters = header.of(header::FILTERS).next();
            match ChunkedDataset::read(metadata, &mut fields, filters, &shape, dtype, &what)? {
                Some(chunks) => Ok(Some(Tensor::new(dtype, shape, Data::Chunked(Arc::new(chunks))))),
                None => zeros(metadata, dtype, shape, bytes, &what).map(Some),
            }
        }
        (_, 3) => unsupported(format!("{what} is virtual: its elements are in other files, which are not opened")),
        _ => unsupported(format!("{what} has data layout version {version}; Keras writes version 3")),
    }
}

/// A dataset that was never written. It may not be larger than the file by much: nothing in the file stands behind its
/// size.
fn zeros(metadata: &Metadata, dtype: DType, shape: Vec<u64>, bytes: u64, what: &str) -> Result<Tensor> {
    if bytes > metadata.region.length().saturating_add(1 << 20) {
        return damaged(format!("{what} takes {bytes} bytes, but nothing of it is stored in the file"));
    }
    Ok(Tensor::new(dtype, shape, Data::Zeros))
}
