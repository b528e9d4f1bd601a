//! Writes `.npy` files for tests.

use std::fs;
use std::path::{Path, PathBuf};

/// A version 1 file as `numpy.save` writes it.
pub fn write(directory: &Path, name: &str, descr: &str, shape: &[usize], data: &[u8]) -> PathBuf {
    let dims: String = shape.iter().map(|dim| format!("{dim}, ")).collect();
    write_raw(directory, name, 1, &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}"), data)
}

/// Any version and header.
pub fn write_raw(directory: &Path, name: &str, version: u8, header: &str, data: &[u8]) -> PathBuf {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16 + 1).to_le_bytes()),
        _ => bytes.extend((header.len() as u32 + 1).to_le_bytes()),
    }
    bytes.extend(header.as_bytes());
    bytes.push(b'\n');
    bytes.extend(data);
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// The bytes of numbers, for any number type.
#[macro_export]
macro_rules! bytes_of {
    ($numbers:expr) => {
        $numbers.into_iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()
    };
}
