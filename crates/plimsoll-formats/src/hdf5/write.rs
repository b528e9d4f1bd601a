//! Writing the subset that is read: groups as B-trees of symbol tables, contiguous datasets. All metadata comes first,
//! so that a file is one pass over the weights.

use super::{SIGNATURE, UNDEFINED};
use crate::tensor::DType;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Half the most entries of a symbol table node and of a B-tree node; HDF5's defaults.
const LEAF_K: usize = 4;
const INTERNAL_K: usize = 16;

/// What a file will have.
#[derive(Clone, Debug)]
pub enum Hdf5Node {
    /// A group, by the names of its members.
    Group(BTreeMap<String, Hdf5Node>),
    /// A dataset.
    Dataset {
        /// The type of its elements: `F32`, `F64`, `I32` or `I64`.
        dtype: DType,
        /// Its dimensions.
        shape: Vec<u64>,
    },
}

impl Hdf5Node {
    /// A group without members.
    pub fn group() -> Hdf5Node {
        Hdf5Node::Group(BTreeMap::new())
    }

    /// Adds a node at a path, with the groups on the way.
    ///
    /// # Panics
    /// If a dataset is on the way.
    pub fn insert(&mut self, path: &str, node: Hdf5Node) {
        let Hdf5Node::Group(members) = self else { panic!("`{path}` goes through a dataset") };
        match path.split_once('/') {
            None => drop(members.insert(path.to_string(), node)),
            Some((first, rest)) => members.entry(first.to_string()).or_insert_with(Hdf5Node::group).insert(rest, node),
        }
    }
}

/// Where everything in a file is.
///
/// ```
/// use plimsoll_formats::{hdf5::{Hdf5, Hdf5Node, Layout}, source::Region, tensor::DType};
/// use std::io::Write;
/// let mut root = Hdf5Node::group();
/// root.insert("layers/dense/vars/0", Hdf5Node::Dataset { dtype: DType::F32, shape: vec![2] });
/// let mut bytes = Vec::new();
/// let layout = Layout::new(&root);
/// layout.write(&mut bytes, |_, out| out.write_all(&[0, 0, 128, 63, 0, 0, 0, 64]))?;
/// assert_eq!(bytes.len() as u64, layout.length());
/// let file = Hdf5::open(Region::bytes(bytes)).unwrap();
/// assert_eq!(file.dataset("layers/dense/vars/0").unwrap().numbers(10).unwrap(), [1.0, 2.0]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Layout {
    metadata: Vec<u8>,
    /// Path, where the address of its data stands in the metadata, and bytes; in the order of the data.
    datasets: Vec<(String, usize, u64)>,
    length: u64,
}

impl Layout {
    /// Lays out a file whose root is this group.
    ///
    /// # Panics
    /// If it is a dataset, or a dataset has a type that is not written.
    pub fn new(root: &Hdf5Node) -> Layout {
        let Hdf5Node::Group(members) = root else { panic!("the root of a file is a group") };
        let mut layout = Layout { metadata: vec![0; 96], datasets: Vec::new(), length: 0 };
        let (header, tree, heap) = layout.group("", members);
        let mut superblock = SIGNATURE.to_vec();
        superblock.extend([0, 0, 0, 0, 0, 8, 8, 0]);
        superblock.extend([LEAF_K as u16, INTERNAL_K as u16, 0, 0].map(u16::to_le_bytes).concat());
        let mut end = layout.metadata.len() as u64;
        for (_, position, bytes) in &layout.datasets {
            if *bytes > 0 {
                layout.metadata[*position..position + 8].copy_from_slice(&end.to_le_bytes());
            }
            end += bytes;
        }
        layout.length = end;
        // Base address, free space, end of file, driver, then the entry of the root group with its B-tree and heap.
        superblock.extend([0, UNDEFINED, end, UNDEFINED, 0, header, 1, tree, heap].map(u64::to_le_bytes).concat());
        layout.metadata[..96].copy_from_slice(&superblock);
        layout
    }

    /// The bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes the file; `data` writes the elements of the dataset at a path, little-endian.
    pub fn write(&self, out: &mut dyn Write, mut data: impl FnMut(&str, &mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        out.write_all(&self.metadata)?;
        for (path, _, bytes) in &self.datasets {
            let mut limited = Limited { out, left: *bytes };
            data(path, &mut limited)?;
            if limited.left > 0 {
                return Err(io::Error::other(format!("`{path}` should have {bytes} bytes, but {} are missing", limited.left)));
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.metadata.len();
        self.metadata.extend_from_slice(bytes);
        self.metadata.resize(self.metadata.len().next_multiple_of(8), 0);
        at as u64
    }

    /// Writes a group; gives the addresses of its header, its B-tree and its heap.
    fn group(&mut self, path: &str, members: &BTreeMap<String, Hdf5Node>) -> (u64, u64, u64) {
        let mut names = vec![0; 8];
        let mut entries = Vec::with_capacity(members.len());
        for (name, node) in members {
            let inner = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let (address, cached, scratch) = match node {
                Hdf5Node::Group(members) => {
                    let (header, tree, heap) = self.group(&inner, members);
                    (header, 1, [tree, heap])
                }
                Hdf5Node::Dataset { dtype, shape } => (self.dataset(inner, *dtype, shape), 0, [0; 2]),
            };
            entries.push((names.len() as u64, [address, cached, scratch[0], scratch[1]]));
            names.extend(name.as_bytes());
            names.push(0);
            names.resize(names.len().next_multiple_of(8), 0);
        }
        let start = [b"HEAP\0\0\0\0", &(names.len() as u64).to_le_bytes()[..], &1u64.to_le_bytes()].concat();
        let data = self.metadata.len() as u64 + 32;
        let heap = self.put(&[&start[..], &data.to_le_bytes(), &names].concat());

        // A node and the greatest name below it.
        let mut nodes: Vec<(u64, u64)> = entries
            .chunks(2 * LEAF_K)
            .map(|entries| {
                let mut node = [b"SNOD\x01\0", &(entries.len() as u16).to_le_bytes()[..]].concat();
                for (name, fields) in entries {
                    node.extend(name.to_le_bytes());
                    node.extend(fields.map(u64::to_le_bytes).concat());
                }
                node.resize(8 + 2 * LEAF_K * 40, 0);
                (self.put(&node), entries.last().expect("chunks are not empty").0)
            })
            .collect();
        let mut level = 0;
        let tree = loop {
            let full = 2 * INTERNAL_K;
            let groups: Vec<&[(u64, u64)]> = if nodes.is_empty() { vec![&[]] } else { nodes.chunks(full).collect() };
            // The key before a node is the greatest name of the one before it.
            let mut before = 0;
            let size = 24 + (2 * full + 1) * 8;
            let first = self.metadata.len() as u64;
            let count = groups.len();
            let mut above = Vec::with_capacity(count);
            for (index, group) in groups.into_iter().enumerate() {
                let at = first + (index * size) as u64;
                let left = if index == 0 { UNDEFINED } else { at - size as u64 };
                let right = if index + 1 == count { UNDEFINED } else { at + size as u64 };
                let mut node = [b"TREE\0", &[level][..], &(group.len() as u16).to_le_bytes()].concat();
                node.extend([left, right, before].map(u64::to_le_bytes).concat());
                for (child, greatest) in group {
                    node.extend([*child, *greatest].map(u64::to_le_bytes).concat());
                    before = *greatest;
                }
                node.resize(size, 0);
                above.push((self.put(&node), before));
            }
            if count == 1 {
                break above[0].0;
            }
            (nodes, level) = (above, level + 1);
        };
        let table = [tree, heap].map(u64::to_le_bytes).concat();
        (self.header(&[(super::header::SYMBOL_TABLE, table)]), tree, heap)
    }

    fn dataset(&mut self, path: String, dtype: DType, shape: &[u64]) -> u64 {
        let bytes = shape.iter().product::<u64>() * dtype.size();
        let mut space = vec![1, shape.len() as u8, 0, 0, 0, 0, 0, 0];
        shape.iter().for_each(|dim| space.extend(dim.to_le_bytes()));
        let mut layout = vec![3, 1];
        layout.extend([UNDEFINED, bytes].map(u64::to_le_bytes).concat());
        // Version 2: allocated late, written if set, and not set.
        let fill = vec![2, 2, 2, 0];
        let messages = [
            (super::header::DATASPACE, space),
            (super::header::DATATYPE, datatype(dtype)),
            (FILL_VALUE, fill),
            (super::header::LAYOUT, layout),
        ];
        let address = self.header(&messages);
        // The layout is the last message, padded from 18 to 24 bytes; its address is behind two bytes.
        self.datasets.push((path, self.metadata.len() - 24 + 2, bytes));
        address
    }

    fn header(&mut self, messages: &[(u16, Vec<u8>)]) -> u64 {
        let mut body = Vec::new();
        for (kind, message) in messages {
            let size = message.len().next_multiple_of(8);
            body.extend([*kind, size as u16, 0, 0].map(u16::to_le_bytes).concat());
            body.extend(message);
            body.resize(body.len() + size - message.len(), 0);
        }
        let mut header = vec![1, 0];
        header.extend((messages.len() as u16).to_le_bytes());
        header.extend([1, body.len() as u32, 0].map(u32::to_le_bytes).concat());
        self.put(&[header, body].concat())
    }
}

const FILL_VALUE: u16 = 0x05;

/// The datatype message of a type that models have.
fn datatype(dtype: DType) -> Vec<u8> {
    let float = |size: u8, sign: u8, exponent: [u8; 2], mantissa: u8, bias: u32| {
        let mut message = vec![0x11, 0x20, sign, 0, size, 0, 0, 0, 0, 0, size * 8, 0, exponent[0], exponent[1], 0, mantissa];
        message.extend(bias.to_le_bytes());
        message
    };
    let integer = |size: u8| vec![0x10, 8, 0, 0, size, 0, 0, 0, 0, 0, size * 8, 0];
    match dtype {
        DType::F32 => float(4, 31, [23, 8], 23, 127),
        DType::F64 => float(8, 63, [52, 11], 52, 1023),
        DType::I32 => integer(4),
        DType::I64 => integer(8),
        other => panic!("datasets of {} are not written", other.name()),
    }
}

/// Passes on at most as many bytes as a dataset has.
struct Limited<'a> {
    out: &'a mut dyn Write,
    left: u64,
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => {
                self.out.write_all(bytes)?;
                self.left = left;
                Ok(bytes.len())
            }
            None => Err(io::Error::other("more bytes were written than the dataset has")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
