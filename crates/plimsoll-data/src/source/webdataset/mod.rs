//! WebDataset: tar files in which the files of a sample are adjacent and share a name up to the first dot.

mod packed;
mod tar;

pub(super) use packed::{LABEL, TarFault, TarSamples};

use super::{ImageScans, Source, identify_named, named};
use crate::block::{BlockMut, Rows};
use crate::image::{EXTENSIONS, is_image_name};
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tar::{BLOCK, MOST_TEXT, TarEntry, class_number, pax_path, safe, split};

/// Samples of tar files, with random access: `x` is the image, by its extension, `y` the class in `.cls` as i32.
/// Opening reads all headers; each sample takes 24 bytes in the index.
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
                    if is_image_name(extension) {
                        found.image = Some((data, entry.bytes));
                    } else if extension.eq_ignore_ascii_case(b"cls") {
                        let label = class_number(&name, &text(data, entry.bytes)?);
                        found.label = Some(label.map_err(|problem| broken(at, problem))?);
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
        match (found.image, found.label) {
            (Some((image, bytes)), Some(label)) => self.samples.push(ImageSample { image, bytes, label }),
            (None, None) => {}
            (None, Some(_)) => return Err(broken(found.at, no_image(&found.key))),
            (Some(_), None) => return Err(broken(found.at, no_class(&found.key))),
        }
        Ok(())
    }

    fn shard(&self, row: u64) -> &Shard {
        &self.shards[self.shards.partition_point(|shard| shard.end <= row)]
    }
}

fn no_image(key: &[u8]) -> String {
    format!("sample {} has a class and no image ({EXTENSIONS})", String::from_utf8_lossy(key))
}

fn no_class(key: &[u8]) -> String {
    format!("sample {} has an image and no class (.cls)", String::from_utf8_lossy(key))
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

    fn file(&self, row: u64, _column: usize, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.shard(row).path);
    }

    fn file_part(&self, row: u64, _column: usize) -> Result<Option<Range<u64>>, DataError> {
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
