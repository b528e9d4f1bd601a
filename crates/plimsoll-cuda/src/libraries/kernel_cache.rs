//! On-disk cache of compiled kernels and measured algorithms, so that a second start neither compiles nor measures. A
//! cache that cannot be read or written only costs time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of compiled kernels, keyed by a hash of their source.
#[derive(Clone, Debug)]
pub struct KernelCache {
    folder: PathBuf,
}

impl KernelCache {
    /// A cache in this folder, which is created on the first write.
    pub fn new(folder: impl Into<PathBuf>) -> KernelCache {
        KernelCache { folder: folder.into() }
    }

    /// A compiled module, if the file passes its checksum: the driver loads machine code without a length, so a damaged
    /// file must not reach it.
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

    /// Stores a compiled module. A file has the code, the names, their length and a checksum.
    pub(crate) fn put(&self, key: &str, compiled: &Compiled) {
        let names = compiled.names.join("\n");
        let content = [&compiled.code[..], names.as_bytes(), &(names.len() as u64).to_le_bytes()].concat();
        let code = [&content[..], &hash(&[&content]).to_le_bytes()].concat();
        self.write(&self.file(key), &code);
    }

    /// Measured algorithms by request, of the GPU and library versions that `key` is made of. A damaged file counts as
    /// none.
    pub(crate) fn algorithms(&self, key: &str) -> BTreeMap<String, String> {
        let read = || {
            let text = fs::read_to_string(self.algorithms_file(key)).ok()?;
            let (checksum, lines) = text.split_once('\n')?;
            (checksum == format!("{:032x}", hash(&[lines.as_bytes()])))
                .then(|| lines.lines().filter_map(|line| line.split_once('\t')).map(|(a, b)| (a.to_string(), b.to_string())).collect())
        };
        read().unwrap_or_default()
    }

    /// Adds measured algorithms, which replace stored ones of the same requests.
    pub(crate) fn put_algorithms(&self, key: &str, measured: &BTreeMap<String, String>) {
        let mut all = self.algorithms(key);
        all.extend(measured.iter().map(|(request, algorithm)| (request.clone(), algorithm.clone())));
        let lines: String = all.iter().map(|(request, algorithm)| format!("{request}\t{algorithm}\n")).collect();
        let text = format!("{:032x}\n{lines}", hash(&[lines.as_bytes()]));
        self.write(&self.algorithms_file(key), text.as_bytes());
    }

    fn algorithms_file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.algorithms"))
    }

    /// Writes atomically: other processes may read the folder.
    fn write(&self, path: &Path, content: &[u8]) {
        let unfinished = path.with_extension(std::process::id().to_string());
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&unfinished, content));
        if written.and_then(|()| fs::rename(&unfinished, path)).is_err() {
            let _ = fs::remove_file(&unfinished);
        }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }
}

/// A compiled module and the names of its kernels, in source order. The names are those of the program that compiled
/// it: the key depends on the kernels' code, not on their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub code: Vec<u8>,
    pub names: Vec<String>,
}

/// Size of the names' length field in bytes.
const LENGTH: usize = size_of::<u64>();
/// Size of the checksum at the end of a file in bytes.
const CHECKSUM: usize = size_of::<u128>();

/// The name of a file: a hash of everything that the code depends on.
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
    fn measured_algorithms_of_several_runs_are_all_kept() {
        let cache = KernelCache::new(std::env::temp_dir().join(format!("plimsoll-algorithms-{}", std::process::id())));
        let table = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect::<BTreeMap<_, _>>();
        assert_eq!(cache.algorithms("gpu"), table(&[]));
        cache.put_algorithms("gpu", &table(&[("matmul 1", "a"), ("matmul 2", "b")]));
        cache.put_algorithms("gpu", &table(&[("matmul 2", "c"), ("conv", "engine 3 1=2")]));
        let all = table(&[("conv", "engine 3 1=2"), ("matmul 1", "a"), ("matmul 2", "c")]);
        assert_eq!((cache.algorithms("gpu"), cache.algorithms("other")), (all, table(&[])));
        let text = fs::read_to_string(cache.algorithms_file("gpu")).unwrap();
        for damaged in [text.replace("engine 3", "engine 4"), text[..text.len() - 4].to_string(), String::new()] {
            fs::write(cache.algorithms_file("gpu"), damaged).unwrap();
            assert_eq!(cache.algorithms("gpu"), table(&[]), "a damaged file counts as none");
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
