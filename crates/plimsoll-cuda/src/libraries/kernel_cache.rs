//! Compiled kernels on disk, so that a program's second start does not compile. A cache that cannot be read or written only costs time.

use std::fs;
use std::path::PathBuf;

/// A folder of compiled kernels, named after what they were compiled from.
#[derive(Clone, Debug)]
pub struct KernelCache {
    folder: PathBuf,
}

impl KernelCache {
    /// In this folder, which is made when something is first kept.
    pub fn new(folder: impl Into<PathBuf>) -> KernelCache {
        KernelCache { folder: folder.into() }
    }

    /// A compiled module, if the file is as it was written: the driver reads machine code without being told its length, so that a damaged file must not
    /// reach it.
    pub(crate) fn get(&self, key: &str) -> Option<Compiled> {
        let mut code = fs::read(self.file(key)).ok()?;
        let checksum = code.split_off(code.len().checked_sub(CHECKSUM)?);
        if checksum != hash(&[&code]).to_le_bytes() {
            return None;
        }
        let length = code.split_off(code.len().checked_sub(LENGTH)?);
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let names = String::from_utf8(code.split_off(code.len().checked_sub(length)?)).ok()?;
        Some(Compiled { code, names: names.lines().map(str::to_string).collect() })
    }

    /// Written whole or not at all: other processes may read the folder. A file holds the code, the names, their length and a checksum.
    pub(crate) fn put(&self, key: &str, compiled: &Compiled) {
        let names = compiled.names.join("\n");
        let content = [&compiled.code[..], names.as_bytes(), &(names.len() as u64).to_le_bytes()].concat();
        let code = &[&content[..], &hash(&[&content]).to_le_bytes()].concat();
        let unfinished = self.folder.join(format!("{key}.{}", std::process::id()));
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&unfinished, code));
        if written.and_then(|()| fs::rename(&unfinished, self.file(key))).is_err() {
            let _ = fs::remove_file(&unfinished);
        }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }
}

/// A compiled module and the names of its kernels in it, in the order of the text. They are those of the program that compiled it: the key depends on what kernels
/// compute, not on what they are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub code: Vec<u8>,
    pub names: Vec<String>,
}

/// Bytes of the length of the names.
const LENGTH: usize = size_of::<u64>();
/// Bytes of the checksum at the end of a file.
const CHECKSUM: usize = size_of::<u128>();

/// The name of a file: a hash of everything the code depends on.
pub(crate) fn key(parts: &[&str]) -> String {
    format!("{:032x}", hash(&parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>()))
}

/// 128 bits of FNV-1a.
fn hash(parts: &[&[u8]]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in parts.iter().flat_map(|part| part.iter().copied().chain([0xff])) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_under_its_name_only() {
        let cache = KernelCache::new(std::env::temp_dir().join(format!("plimsoll-kernels-{}", std::process::id())));
        let (one, other) = (key(&["source", "sm_90"]), key(&["source", "sm_80"]));
        for names in [&[][..], &["matmul__dense"], &["matmul__dense", "pointwise"]] {
            let compiled = Compiled { code: b"code".to_vec(), names: names.iter().map(|name| name.to_string()).collect() };
            cache.put(&one, &compiled);
            assert_eq!((cache.get(&one), cache.get(&other)), (Some(compiled), None));
        }
        fs::remove_dir_all(cache.folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_not_used() {
        let cache = KernelCache::new(std::env::temp_dir().join(format!("plimsoll-damaged-kernels-{}", std::process::id())));
        let compiled = Compiled { code: b"machine code".to_vec(), names: vec!["matmul".to_string()] };
        cache.put("key", &compiled);
        assert_eq!(cache.get("key"), Some(compiled));
        let whole = fs::read(cache.file("key")).unwrap();
        for length in 0..whole.len() {
            fs::write(cache.file("key"), &whole[..length]).unwrap();
            assert_eq!(cache.get("key"), None, "{length} bytes of {}", whole.len());
        }
        for byte in 0..whole.len() {
            let mut changed = whole.clone();
            changed[byte] ^= 1;
            fs::write(cache.file("key"), &changed).unwrap();
            assert_eq!(cache.get("key"), None, "byte {byte} changed");
        }
        fs::remove_dir_all(cache.folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_created_costs_only_the_cache() {
        let cache = KernelCache::new("/dev/null/kernels");
        cache.put("key", &Compiled { code: b"code".to_vec(), names: vec![] });
        assert_eq!(cache.get("key"), None);
    }
}
