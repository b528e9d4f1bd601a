//! Files of other tools, small and made to measure: records, packed arrays and Parquet tables, so that any of their
//! rows can be a bad one.
#![allow(dead_code)]

use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};
use std::io::Write;

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// What a feature of an example holds.
pub enum Value<'b> {
    Bytes(&'b [u8]),
    Ints(&'b [i64]),
}

/// A `tf.train.Example`.
pub fn example(features: &[(&str, Value<'_>)]) -> Vec<u8> {
    let entries = features.iter().map(|(name, value)| {
        let list = match value {
            Value::Bytes(bytes) => field(1, &field(1, bytes)),
            Value::Ints(numbers) => field(3, &field(1, &numbers.iter().flat_map(|n| varint(*n as u64)).collect::<Vec<u8>>())),
        };
        field(1, &[field(1, name.as_bytes()), field(2, &list)].concat())
    });
    field(1, &entries.collect::<Vec<_>>().concat())
}

/// A record in its frame.
pub fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), bytes, &masked(bytes)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A `.npz` as `numpy.savez_compressed` writes it: names, element types, shapes and bytes. What is packed may be
/// changed on the way.
pub fn npz(arrays: &[(&str, &str, &[usize], Vec<u8>)], damage: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, descr, shape, data) in arrays {
        let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}\n");
        let npy = [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat();
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflate.write_all(&npy).unwrap();
        let mut packed = deflate.finish().unwrap();
        let mut checksum = Crc::new();
        checksum.update(&npy);
        damage(&mut packed);
        let name = format!("{name}.npy");
        // Version, flags, method, time, date, checksum, sizes, and the lengths of name and extras.
        let sizes = [&(packed.len() as u32).to_le_bytes()[..], &(npy.len() as u32).to_le_bytes()].concat();
        let about =
            [&[20, 0, 0, 0, 8, 0, 0, 0, 0, 0][..], &checksum.sum().to_le_bytes(), &sizes, &(name.len() as u16).to_le_bytes(), &[0, 0]]
                .concat();
        directory.extend([b"PK\x01\x02\x14\0", &about[..], &[0; 10], &(file.len() as u32).to_le_bytes(), name.as_bytes()].concat());
        file.extend([b"PK\x03\x04", &about[..], name.as_bytes(), &packed].concat());
    }
    let (start, bytes, count) = (file.len() as u32, directory.len() as u32, arrays.len() as u16);
    let counts = [[0; 4], [count as u8, 0, count as u8, 0]].concat();
    file.extend(directory);
    file.extend([b"PK\x05\x06", &counts[..], &bytes.to_le_bytes(), &start.to_le_bytes(), &[0, 0]].concat());
    file
}

/// A Parquet file with the columns `x` (f64, may be missing) and `y` (i64), in groups of rows and pages of `page` rows;
/// where what is packed begins comes with it, page by page for each group, those of `x` first.
pub fn parquet(groups: &[Vec<(Option<f64>, i64)>], page: usize) -> (Vec<u8>, Vec<Vec<usize>>) {
    let mut file = b"PAR1".to_vec();
    let (mut places, mut chunks) = (Vec::new(), Vec::new());
    for group in groups {
        let mut pages = Vec::new();
        let mut of_group = Vec::new();
        for column in 0..2 {
            let start = file.len();
            for rows in group.chunks(page) {
                let mut values = Vec::new();
                if column == 0 {
                    // One run for each: whether there is a value.
                    let levels: Vec<u8> = rows.iter().flat_map(|(x, _)| [2, u8::from(x.is_some())]).collect();
                    values.extend((levels.len() as u32).to_le_bytes());
                    values.extend(levels);
                    values.extend(rows.iter().flat_map(|(x, _)| *x).flat_map(f64::to_le_bytes));
                } else {
                    values.extend(rows.iter().flat_map(|(_, y)| y.to_le_bytes()));
                }
                let packed = gzip(&values);
                let inside = Thrift::default().int(1, rows.len()).int(2, 0).int(3, 3).int(4, 3);
                let sizes = Thrift::default().int(1, 0).int(2, values.len()).int(3, packed.len());
                file.extend(sizes.structure(5, inside).end());
                pages.push(file.len());
                file.extend(packed);
            }
            of_group.push((start, file.len() - start));
        }
        places.push(pages);
        chunks.push((group.len(), of_group));
    }
    let leaf = |name: &str, kind, repetition| Thrift::default().int(1, kind).int(3, repetition).text(4, name).end();
    let schema = vec![Thrift::default().text(4, "schema").int(5, 2).end(), leaf("x", 5, 1), leaf("y", 2, 0)];
    let group = |(rows, of_group): &(usize, Vec<(usize, usize)>)| {
        let chunk = |(kind, (start, bytes)): (usize, &(usize, usize))| {
            let about = Thrift::default().int(1, kind).int(4, 2).int(5, *rows).int(7, *bytes).int(9, *start);
            Thrift::default().structure(3, about).end()
        };
        let columns = [5, 2].into_iter().zip(of_group).map(chunk).collect();
        Thrift::default().list(1, columns).int(3, *rows).end()
    };
    let all: usize = groups.iter().map(Vec::len).sum();
    let footer = Thrift::default().int(1, 1).list(2, schema).int(3, all).list(4, chunks.iter().map(group).collect()).end();
    let length = (footer.len() as u32).to_le_bytes();
    file.extend([&footer[..], &length, b"PAR1"].concat());
    (file, places)
}

/// A structure as Thrift's compact way writes it.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
}

impl Thrift {
    fn field(mut self, number: u8, kind: u8, body: &[u8]) -> Thrift {
        self.bytes.push((number - self.last) << 4 | kind);
        self.bytes.extend(body);
        self.last = number;
        self
    }

    fn int(self, number: u8, value: usize) -> Thrift {
        self.field(number, 6, &varint(value as u64 * 2))
    }

    fn text(self, number: u8, text: &str) -> Thrift {
        self.field(number, 8, &[&varint(text.len() as u64), text.as_bytes()].concat())
    }

    fn structure(self, number: u8, inside: Thrift) -> Thrift {
        self.field(number, 12, &inside.end())
    }

    fn list(self, number: u8, items: Vec<Vec<u8>>) -> Thrift {
        self.field(number, 9, &[vec![0xF0 | 12], varint(items.len() as u64), items.concat()].concat())
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}
