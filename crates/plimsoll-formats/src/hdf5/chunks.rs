//! Datasets in chunks, each compressed by itself.

use super::UNDEFINED;
use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata, Region};
use crate::tensor::{Chunked, DType, HeldChunk};
use flate2::read::ZlibDecoder;
use std::io::Read;

/// The largest chunk that is decompressed: a reader holds one. h5py's own choice is at most 1 MiB.
pub const MAX_CHUNK: u64 = 16 << 20;

const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;

/// The chunks of a dataset.
#[derive(Debug)]
pub struct ChunkedDataset {
    /// Elements of a chunk along each axis.
    dims: Vec<u64>,
    element: u64,
    filters: Vec<u16>,
    /// By the coordinates of their first elements, in order.
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    offset: Vec<u64>,
    stored: Region,
    /// Filters that were not applied to it.
    skipped: u32,
}

impl ChunkedDataset {
    /// Reads the index of the chunks; none if the dataset was never written.
    pub fn read(
        metadata: &Metadata,
        layout: &mut FieldReader<'_>,
        filters: Option<&[u8]>,
        shape: &[u64],
        dtype: DType,
        what: &str,
    ) -> Result<Option<ChunkedDataset>> {
        let rank = usize::from(layout.u8()?);
        let tree = layout.u64()?;
        let dims = (0..rank).map(|_| layout.u32().map(u64::from)).collect::<Result<Vec<u64>>>()?;
        let Some((element, dims)) = dims.split_last().filter(|(_, dims)| dims.len() == shape.len() && !dims.is_empty()) else {
            return damaged(format!("{what} has chunks of another rank"));
        };
        let size = dims.iter().try_fold(*element, |size, dim| size.checked_mul(*dim)).unwrap_or(u64::MAX);
        if size == 0 || *element != dtype.size() {
            return damaged(format!("{what} has chunks of an impossible size"));
        }
        if size > MAX_CHUNK {
            return unsupported(format!("{what} has chunks of {size} bytes; at most {MAX_CHUNK} are read (h5repack -l changes them)"));
        }
        let filters = filters.map_or(Ok(Vec::new()), |message| pipeline(message, what))?;
        if tree == UNDEFINED {
            return Ok(None);
        }
        let mut chunks = ChunkedDataset { dims: dims.to_vec(), element: *element, filters, chunks: Vec::new() };
        chunks.nodes(metadata, tree, what, 0)?;
        chunks.chunks.sort_by(|a, b| a.offset.cmp(&b.offset));
        Ok(Some(chunks))
    }

    fn nodes(&mut self, metadata: &Metadata, at: u64, what: &str, depth: usize) -> Result<()> {
        if depth > 16 {
            return damaged(format!("the B-tree of {what} is deeper than any of its size"));
        }
        let start = metadata.read(at, 24, what)?;
        let mut fields = FieldReader::new(&start, what);
        if fields.take(4)? != b"TREE" || fields.u8()? != 1 {
            return damaged(format!("{what} has no B-tree of chunks"));
        }
        let (level, count) = (fields.u8()?, fields.u16()?);
        let rank = self.dims.len();
        let entry = 8 + 8 * (rank as u64 + 1) + 8;
        let body = metadata.read(at.saturating_add(24), u64::from(count) * entry, what)?;
        let mut fields = FieldReader::new(&body, what);
        for _ in 0..count {
            let (bytes, skipped) = (fields.u32()?, fields.u32()?);
            let offset = (0..rank).map(|_| fields.u64()).collect::<Result<Vec<u64>>>()?;
            fields.u64()?;
            let child = fields.u64()?;
            if level > 0 {
                self.nodes(metadata, child, what, depth + 1)?;
            } else {
                metadata.count(64)?;
                let stored = metadata.region.part(child, bytes.into(), &format!("a chunk of {what}"))?;
                self.chunks.push(Chunk { offset, stored, skipped });
            }
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.dims.iter().product::<u64>() as usize * self.element as usize
    }

    fn decode(&self, chunk: &Chunk) -> Result<Vec<u8>> {
        let size = self.size();
        // Incompressible data grows by a few bytes per block.
        let mut bytes = chunk.stored.read_all(MAX_CHUNK + MAX_CHUNK / 64 + 1024, "a compressed chunk")?;
        for (index, filter) in self.filters.iter().enumerate().rev() {
            if chunk.skipped >> index & 1 != 0 {
                continue;
            }
            bytes = match *filter {
                DEFLATE => {
                    let mut plain = Vec::with_capacity(size);
                    let done = ZlibDecoder::new(&bytes[..]).take(size as u64 + 1).read_to_end(&mut plain);
                    if done.is_err() || plain.len() != size {
                        return damaged("a compressed chunk is damaged");
                    }
                    plain
                }
                _ => unshuffle(&bytes, self.element as usize),
            };
        }
        if bytes.len() != size {
            return damaged(format!("a chunk has {} bytes, but {size} are expected", bytes.len()));
        }
        Ok(bytes)
    }
}

impl Chunked for ChunkedDataset {
    /// A chunk that was never written is zero.
    fn read_into(&self, shape: &[u64], at: u64, out: &mut [u8], held: &mut HeldChunk) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let (byte, first) = ((at + done as u64) % self.element, (at + done as u64) / self.element);
            let mut coordinates = vec![0; shape.len()];
            let mut rest = first;
            for (axis, dim) in shape.iter().enumerate().rev() {
                (coordinates[axis], rest) = (rest % dim.max(&1), rest / dim.max(&1));
            }
            if rest > 0 {
                return damaged("a tensor ends before the bytes that are asked for");
            }
            // To the end of the chunk or of the row.
            let last = shape.len() - 1;
            let inside = coordinates[last] % self.dims[last];
            let run = (self.dims[last] - inside).min(shape[last] - coordinates[last]);
            let length = ((run * self.element - byte) as usize).min(out.len() - done);
            let start: Vec<u64> = coordinates.iter().zip(&self.dims).map(|(at, dim)| at - at % dim).collect();
            let target = &mut out[done..done + length];
            match self.chunks.binary_search_by(|chunk| chunk.offset.cmp(&start)) {
                Err(_) => target.fill(0),
                Ok(index) => {
                    if held.as_ref().is_none_or(|(known, _)| *known != index) {
                        *held = Some((index, self.decode(&self.chunks[index])?));
                    }
                    let chunk = &held.as_ref().expect("just decoded").1;
                    let within = coordinates.iter().zip(&self.dims).fold(0, |within, (at, dim)| within * dim + at % dim);
                    let from = (within * self.element + byte) as usize;
                    target.copy_from_slice(&chunk[from..from + length]);
                }
            }
            done += length;
        }
        Ok(())
    }
}

/// Undoes the shuffle filter, which stores the first bytes of all elements, then the second bytes, and so on.
fn unshuffle(bytes: &[u8], element: usize) -> Vec<u8> {
    let count = bytes.len() / element;
    let mut plain = bytes.to_vec();
    for byte in 0..element {
        for index in 0..count {
            plain[index * element + byte] = bytes[byte * count + index];
        }
    }
    plain
}

/// The filters, in the order in which they were applied.
fn pipeline(message: &[u8], what: &str) -> Result<Vec<u16>> {
    let mut fields = FieldReader::new(message, what);
    let (version, count) = (fields.u8()?, fields.u8()?);
    fields.take(if version == 1 { 6 } else { 0 })?;
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = fields.u16()?;
        let name = if version == 1 || id >= 256 { fields.u16()? } else { 0 };
        fields.u16()?;
        let values = fields.u16()?;
        let name = usize::from(name);
        fields.take(if version == 1 { name.next_multiple_of(8) } else { name })?;
        fields.take(usize::from(values) * 4)?;
        if version == 1 && values % 2 == 1 {
            fields.take(4)?;
        }
        match id {
            DEFLATE | SHUFFLE => filters.push(id),
            3 => return unsupported(format!("{what} has checksums (the filter fletcher32), which are not read")),
            _ => return unsupported(format!("{what} is compressed with the filter {id}; gzip and shuffle are read")),
        }
    }
    Ok(filters)
}
