//! Small files of several formats, as other programs write them.

/// CRC-32 as zip files have it.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 }))
}

/// How an `.npz` file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Zip {
    /// As `numpy.savez` writes it.
    Stored,
    /// As `numpy.savez_compressed` writes it, with blocks that are not compressed.
    Deflated,
    /// All sizes and offsets in the fields for large files.
    Zip64,
}

/// An `.npz` file of these arrays, and the offsets of their bytes.
pub fn npz(arrays: &[(&str, Vec<u8>)], how: Zip) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut directory, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (name, array) in arrays {
        let data = match how {
            Zip::Deflated => {
                let length = array.len() as u16;
                [&[1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), array].concat()
            }
            _ => array.clone(),
        };
        let (name, offset) = (format!("{name}.npy"), file.len() as u64);
        let method = u16::from(how == Zip::Deflated) * 8;
        let large = how == Zip::Zip64;
        let small = |number: u64| if large { u32::MAX } else { number as u32 }.to_le_bytes();
        let sizes = [array.len() as u64, data.len() as u64];
        let extra = |numbers: &[u64]| {
            let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            if large { [&[1, 0][..], &(numbers.len() as u16).to_le_bytes(), &numbers].concat() } else { Vec::new() }
        };
        let common =
            [&[0; 2][..], &method.to_le_bytes(), &[0; 4], &crc32(array).to_le_bytes(), &small(sizes[1]), &small(sizes[0])].concat();
        let lengths = |extra: &[u8]| [(name.len() as u16).to_le_bytes(), (extra.len() as u16).to_le_bytes()].concat();
        let local = extra(&sizes);
        file.extend([b"PK\x03\x04\x2d\x00", &common[..], &lengths(&local), name.as_bytes(), &local].concat());
        places.push(file.len());
        file.extend(data);
        let central = extra(&[sizes[0], sizes[1], offset]);
        directory.extend(
            [b"PK\x01\x02\x2d\x03\x2d\x00", &common[..], &lengths(&central), &[0; 10], &small(offset), name.as_bytes(), &central].concat(),
        );
    }
    let (start, count) = (file.len() as u64, arrays.len());
    file.extend(&directory);
    let bytes = directory.len() as u64;
    if how == Zip::Zip64 {
        let record = file.len() as u64;
        let numbers = [count as u64, count as u64, bytes, start].map(u64::to_le_bytes).concat();
        file.extend([b"PK\x06\x06", &44u64.to_le_bytes()[..], &[45, 3, 45, 0], &[0; 8], &numbers].concat());
        file.extend([b"PK\x06\x07", &[0; 4][..], &record.to_le_bytes(), &1u32.to_le_bytes()].concat());
        file.extend([b"PK\x05\x06", &[0xFF; 16][..], &[0; 2]].concat());
        return (file, places);
    }
    let counts = [(count as u16).to_le_bytes(); 2].concat();
    file.extend([b"PK\x05\x06", &[0; 4][..], &counts, &(bytes as u32).to_le_bytes(), &(start as u32).to_le_bytes(), &[0; 2]].concat());
    (file, places)
}

/// A column of a Parquet file.
pub struct ParquetColumn {
    pub name: &'static str,
    /// The format's number of the physical type.
    pub kind: u64,
    /// The older annotation of the logical type.
    pub converted: Option<u64>,
    /// The newer one: the number of the type, and the fields of its structure.
    pub logical: Option<(u8, Vec<u8>)>,
    /// The values, as the format's plain encoding has them.
    pub values: Vec<u8>,
}

impl ParquetColumn {
    pub fn new(name: &'static str, kind: u64, values: Vec<u8>) -> ParquetColumn {
        ParquetColumn { name, kind, converted: None, logical: None, values }
    }
}

/// A Parquet file of one group of rows and one page per column, with pandas' metadata if given.
pub fn parquet(rows: u64, columns: &[ParquetColumn], pandas: Option<&str>) -> Vec<u8> {
    let mut file = b"PAR1".to_vec();
    let mut chunks = Vec::new();
    for column in columns {
        let start = file.len() as u64;
        let inside = Thrift::default().int(1, rows).int(2, 0).int(3, 3).int(4, 3);
        let size = column.values.len() as u64;
        file.extend(Thrift::default().int(1, 0).int(2, size).int(3, size).structure(5, inside).end());
        file.extend(&column.values);
        let about = Thrift::default().int(1, column.kind).int(4, 0).int(5, rows).int(7, file.len() as u64 - start).int(9, start);
        chunks.push(Thrift::default().structure(3, about).end());
    }
    let mut schema = vec![Thrift::default().text(4, "schema").int(5, columns.len() as u64).end()];
    schema.extend(columns.iter().map(|column| {
        let leaf = Thrift::default().int(1, column.kind).int(3, 0).text(4, column.name);
        let leaf = column
            .converted
            .map_or(leaf, |converted| Thrift::default().int(1, column.kind).int(3, 0).text(4, column.name).int(6, converted));
        match &column.logical {
            Some((number, fields)) => {
                let inside = Thrift { bytes: fields.clone(), last: 0 };
                leaf.structure(10, Thrift::default().structure(*number, inside)).end()
            }
            None => leaf.end(),
        }
    }));
    let group = Thrift::default().list(1, chunks).int(3, rows).end();
    let footer = Thrift::default().int(1, 1).list(2, schema).int(3, rows).list(4, vec![group]);
    let footer = match pandas {
        Some(json) => footer.list(5, vec![Thrift::default().text(1, "pandas").text(2, json).end()]).end(),
        None => footer.end(),
    };
    let length = (footer.len() as u32).to_le_bytes();
    file.extend([&footer[..], &length, b"PAR1"].concat());
    file
}

/// A structure in Thrift's compact protocol.
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

    fn int(self, number: u8, value: u64) -> Thrift {
        self.field(number, 6, &varint(value * 2))
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

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
