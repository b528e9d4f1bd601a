//! WebDataset: tar files in which the files of a sample are adjacent and share a name up to the first dot.

use super::{ImageScans, Source, identify_named, named};
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Samples of tar files, with random access: `x` is the image (`.jpg`, `.jpeg`, `.png`, `.webp` or `.gif`), `y` the
/// class in `.cls` as i32. Opening reads all headers; each sample takes 24 bytes in the index.
pub struct WebDataset {
    schema: Schema,
    shards: Vec<Shard>,
    samples: Vec<ImageSample>,
    scans: ImageScans,
}

struct Shard {
    path: PathBuf,
    /// One past its last row.
    end: u64,
}

#[derive(Clone, Copy)]
struct ImageSample {
    image: u64,
    bytes: u64,
    label: i32,
}

/// The members of a sample found so far.
#[derive(Default)]
struct PendingSample {
    key: Vec<u8>,
    at: u64,
    image: Option<(u64, u64)>,
    label: Option<i32>,
}

const BLOCK: u64 = 512;

/// Maximum size of a label or a name.
const MOST_TEXT: u64 = 64 << 10;

impl WebDataset {
    /// Indexes the samples of tar files.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<WebDataset, DataError> {
        let schema = Schema::new(vec![Column::files("x"), Column::new("y", DType::I32, [])])?;
        let mut data = WebDataset { schema, shards: Vec::new(), samples: Vec::new(), scans: ImageScans::default() };
        for path in paths {
            data.list(path.as_ref())?;
        }
        data.samples.shrink_to_fit();
        Ok(data)
    }

    fn list(&mut self, path: &Path) -> Result<(), DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let broken = |at: u64, problem: String| DataError::Record { path: path.to_path_buf(), at, problem };
        let cut = |at: u64| broken(at, "the file ends inside it; copy or write the file again".into());
        let text = |at: u64, bytes: u64| {
            let mut text = vec![0; bytes.min(MOST_TEXT) as usize];
            file.read_exact_at(&mut text, at).map_err(|_| cut(at))?;
            Ok::<_, DataError>(text)
        };
        let (mut at, mut found, mut long_name) = (0, PendingSample::default(), None);
        while at < length {
            let mut header = [0; BLOCK as usize];
            file.read_exact_at(&mut header, at).map_err(|_| cut(at))?;
            if header.iter().all(|byte| *byte == 0) {
                break;
            }
            let entry = TarEntry::read(&header).map_err(|problem| broken(at, problem))?;
            let data = at + BLOCK;
            let after = entry.bytes.checked_next_multiple_of(BLOCK).and_then(|bytes| data.checked_add(bytes));
            let after = after.filter(|_| data.checked_add(entry.bytes).is_some_and(|end| end <= length)).ok_or_else(|| cut(at))?;
            match entry.kind {
                // A long name for the next entry: GNU (the name itself), or pax (one of several records).
                b'L' => long_name = Some(text(data, entry.bytes)?.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()),
                b'x' => long_name = pax_path(&text(data, entry.bytes)?).or(long_name),
                b'0' | 0 => {
                    let name = long_name.take().unwrap_or(entry.name);
                    safe(&name).map_err(|problem| broken(at, problem))?;
                    let (key, extension) = split(&name);
                    if found.key != key {
                        self.keep(&found, &broken)?;
                        found = PendingSample { key: key.to_vec(), at, ..PendingSample::default() };
                    }
                    match extension.to_ascii_lowercase().as_slice() {
                        b"jpg" | b"jpeg" | b"png" | b"webp" | b"gif" => found.image = Some((data, entry.bytes)),
                        b"cls" => {
                            let digits = text(data, entry.bytes)?;
                            let label = str::from_utf8(digits.trim_ascii()).ok().and_then(|text| text.parse().ok());
                            let name = String::from_utf8_lossy(&name);
                            let no_class =
                                || broken(at, format!("{name} is {:?}, which is no class number", String::from_utf8_lossy(&digits)));
                            found.label = Some(label.ok_or_else(no_class)?);
                        }
                        _ => {}
                    }
                }
                _ => long_name = None,
            }
            at = after;
        }
        self.keep(&found, &broken)?;
        self.shards.push(Shard { path: path.to_path_buf(), end: self.samples.len() as u64 });
        Ok(())
    }

    fn keep(&mut self, found: &PendingSample, broken: &dyn Fn(u64, String) -> DataError) -> Result<(), DataError> {
        let key = String::from_utf8_lossy(&found.key);
        match (found.image, found.label) {
            (Some((image, bytes)), Some(label)) => self.samples.push(ImageSample { image, bytes, label }),
            (None, None) => {}
            (None, Some(_)) => return Err(broken(found.at, format!("sample {key} has a class and no .jpg, .jpeg, .png, .webp or .gif"))),
            (Some(_), None) => return Err(broken(found.at, format!("sample {key} has an image and no class (.cls)"))),
        }
        Ok(())
    }

    fn shard(&self, row: u64) -> &Shard {
        &self.shards[self.shards.partition_point(|shard| shard.end <= row)]
    }
}

struct TarEntry {
    name: Vec<u8>,
    bytes: u64,
    kind: u8,
}

impl TarEntry {
    fn read(header: &[u8; BLOCK as usize]) -> Result<TarEntry, String> {
        let damaged = || "its header does not match its checksum; the file is damaged or no tar file".to_string();
        // The checksum is computed with spaces in its own field.
        let sum: u64 = header.iter().enumerate().map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte })).sum();
        if octal(&header[148..156]) != Some(sum) {
            return Err(damaged());
        }
        let bytes = match header[124] & 0x80 {
            0 => octal(&header[124..136]),
            // Sizes above 8 GiB are binary.
            _ => Some(u64::from_be_bytes(header[128..136].try_into().expect("8 bytes"))),
        };
        let text = |from: usize, to: usize| header[from..to].split(|byte| *byte == 0).next().unwrap_or_default();
        let mut name = Vec::new();
        if &header[257..262] == b"ustar" && header[345] != 0 {
            name.extend_from_slice(text(345, 500));
            name.push(b'/');
        }
        name.extend_from_slice(text(0, 100));
        Ok(TarEntry { name, bytes: bytes.ok_or_else(damaged)?, kind: header[156] })
    }
}

fn octal(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

/// The value of `path` in pax records of the form `LENGTH KEY=VALUE`.
fn pax_path(settings: &[u8]) -> Option<Vec<u8>> {
    let mut rest = settings;
    while let Some(space) = rest.iter().position(|byte| *byte == b' ') {
        let length: usize = str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let setting = rest.get(space + 1..length)?.strip_suffix(b"\n")?;
        if let Some(path) = setting.strip_prefix(b"path=") {
            return Some(path.to_vec());
        }
        rest = rest.get(length..)?;
    }
    None
}

/// Rejects names that leave their folder. Nothing is extracted, but such an archive is malicious.
fn safe(name: &[u8]) -> Result<(), String> {
    if name.first() == Some(&b'/') || name.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(format!("its name {:?} leads out of the folder; such files are refused", String::from_utf8_lossy(name)));
    }
    Ok(())
}

/// A name up to the first dot of its last component, and the rest.
fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match name[last..].iter().position(|byte| *byte == b'.') {
        Some(dot) => (&name[..last + dot], &name[last + dot + 1..]),
        None => (name, &[]),
    }
}

impl Source for WebDataset {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (row, label) in rows.iter(out.rows()).zip(out.column(1).as_chunks_mut::<4>().0) {
            *label = self.samples[row as usize].label.to_ne_bytes();
        }
        Ok(())
    }

    fn held_bytes(&self) -> Bytes {
        Bytes(size_of_val(&self.samples[..]) as u64)
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.shard(row).path);
    }

    fn file_part(&self, row: u64) -> Result<Option<Range<u64>>, DataError> {
        let ImageSample { image, bytes, .. } = self.samples[row as usize];
        Ok(Some(image..image + bytes))
    }

    fn locate(&self, row: u64, _column: usize) -> Option<(PathBuf, u64)> {
        Some((self.shard(row).path.clone(), self.samples[row as usize].image))
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        [rows.start, rows.end].iter().for_each(|number| hash.write(&number.to_le_bytes()));
        self.shards.iter().try_for_each(|shard| identify_named(&shard.path, hash))?;
        Ok(true)
    }

    fn describe(&self) -> String {
        named("webdataset", self.shards.iter().map(|shard| shard.path.as_path()))
    }
}
