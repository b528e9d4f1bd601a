//! Arrow files and streams: their messages, and the buffers of a record batch.

use super::flat::{MalformedMessage, Table};
use super::schema::{ArrowField, ArrowSchema};
use crate::DataError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 6] = b"ARROW1";

/// Larger metadata means corruption.
const LARGEST_METADATA: u64 = 64 << 20;

/// Rows of a file that mean corruption.
const MOST_ROWS: u64 = 1 << 48;

const DAMAGED: &str = "its metadata cannot be read; the file is damaged or cut off, copy or write it again";

/// A file or a stream whose messages were listed.
pub(super) struct ArrowFile {
    pub path: PathBuf,
    pub file: File,
    pub length: u64,
    pub schema: ArrowSchema,
    pub batches: Vec<MessageAt>,
    dictionaries: Vec<DictionaryAt>,
}

/// A message with a record batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageAt {
    /// Offset and length of its metadata.
    at: u64,
    metadata: u64,
    /// Offset and length of its buffers.
    body: u64,
    body_length: u64,
    pub rows: u64,
    /// Dictionaries that came before it.
    dictionaries: usize,
}

#[derive(Clone, Copy, Debug)]
struct DictionaryAt {
    id: i64,
    /// Whether it is added to those before.
    delta: bool,
    message: MessageAt,
}

/// How buffers are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Lz4,
    Zstandard,
}

/// A buffer in a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferSpan {
    pub at: u64,
    pub length: u64,
}

/// The values of a field in a record batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferSlot {
    pub length: u64,
    pub nulls: u64,
    pub buffers: Vec<BufferSpan>,
    pub children: Vec<BufferSlot>,
}

/// A record batch.
pub(super) struct RecordBatch {
    pub codec: Option<Codec>,
    /// By field of the schema.
    pub slots: Vec<BufferSlot>,
}

impl ArrowFile {
    pub fn open(path: &Path) -> Result<ArrowFile, DataError> {
        let refuse = |problem: String| DataError::Arrow { path: path.to_path_buf(), problem };
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let mut start = [0; 8];
        let count = file.read_at(&mut start, 0).map_err(|error| DataError::io("read", path, error))?;
        let mut arrow = ArrowFile {
            path: path.to_path_buf(),
            file,
            length,
            schema: ArrowSchema::default(),
            batches: Vec::new(),
            dictionaries: Vec::new(),
        };
        let listed = match &start[..count] {
            [b'F', b'E', b'A', b'1', ..] => Err("it is Feather version 1, which is not read; write it with version=2".into()),
            [0x1F, 0x8B, ..] => Err("it is compressed as a whole; decompress it, or compress its buffers (compression=\"zstd\")".into()),
            start if start.starts_with(MAGIC) => arrow.list_file(),
            _ => arrow.list_stream(),
        };
        listed.map_err(refuse)?;
        let rows = arrow.batches.iter().try_fold(0u64, |rows, batch| rows.checked_add(batch.rows));
        rows.filter(|rows| *rows < MOST_ROWS).ok_or_else(|| refuse("its batches have more rows than any file".into()))?;
        Ok(arrow)
    }

    pub fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.rows).sum()
    }

    fn bytes(&self, at: u64, length: u64) -> Result<Vec<u8>, String> {
        let sound = length <= LARGEST_METADATA && at.checked_add(length).is_some_and(|end| end <= self.length);
        let mut bytes = vec![0; if sound { length as usize } else { return Err(DAMAGED.into()) }];
        self.file.read_exact_at(&mut bytes, at).map_err(|_| DAMAGED)?;
        Ok(bytes)
    }

    /// Lists the messages of a file by its footer.
    fn list_file(&mut self) -> Result<(), String> {
        const CUT: &str = "its end is cut off; copy or write it again";
        let tail_at = self.length.checked_sub(10).filter(|at| *at >= 8).ok_or(CUT)?;
        let tail = self.bytes(tail_at, 10)?;
        if &tail[4..] != MAGIC {
            return Err(CUT.into());
        }
        let size = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        let footer = self.bytes(tail_at.checked_sub(size).ok_or(DAMAGED)?, size)?;
        let read = |footer: Table<'_>| {
            let schema = ArrowSchema::read(footer.table(1)?.ok_or(MalformedMessage)?)?;
            let blocks = |field: usize| {
                let blocks = footer.vector(field)?;
                let place = |at| Ok((blocks.i64(at, 24, 0)? as u64, blocks.i32(at, 24, 8)? as u32));
                (0..blocks.len).map(place).collect::<Result<Vec<(u64, u32)>, MalformedMessage>>()
            };
            Ok::<_, MalformedMessage>((schema, blocks(2)?, blocks(3)?))
        };
        let (schema, dictionaries, batches) = Table::root(&footer).and_then(read).map_err(|_| DAMAGED)?;
        self.schema = schema?;
        for (blocks, wanted) in [(dictionaries, 2), (batches, 3)] {
            for (at, length) in blocks {
                let (kind, _) = self.message(at)?.ok_or(DAMAGED)?;
                if kind != wanted || length == 0 {
                    return Err(DAMAGED.into());
                }
            }
        }
        Ok(())
    }

    /// Lists the messages of a stream.
    fn list_stream(&mut self) -> Result<(), String> {
        let mut at = 0;
        while let Some((_, next)) = self.message(at).map_err(|error| if at == 0 { NEITHER.to_string() } else { error })? {
            at = next;
        }
        match self.schema.fields.is_empty() && self.batches.is_empty() {
            true => Err(NEITHER.into()),
            false => Ok(()),
        }
    }

    /// Adds the message at `at` and returns its kind and the offset of the next one; `None` at the end of a stream.
    fn message(&mut self, at: u64) -> Result<Option<(u8, u64)>, String> {
        if at == self.length {
            return Ok(None);
        }
        let head = self.bytes(at, 8.min(self.length.saturating_sub(at)))?;
        let word = |from: usize| head.get(from..from + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        // Older writers begin with the length.
        let (metadata, size) = match word(0).ok_or(DAMAGED)? {
            u32::MAX => (at + 8, word(4).ok_or(DAMAGED)?),
            size => (at + 4, size),
        };
        if size == 0 {
            return Ok(None);
        }
        let bytes = self.bytes(metadata, u64::from(size))?;
        let message = Table::root(&bytes).map_err(|_| DAMAGED)?;
        let (kind, body_length) = (message.u8(1).map_err(|_| DAMAGED)?, message.i64(3).map_err(|_| DAMAGED)?);
        let body = metadata + u64::from(size);
        let body_length = u64::try_from(body_length).map_err(|_| DAMAGED)?;
        let end = body.checked_add(body_length).filter(|end| *end <= self.length);
        let end = end.ok_or("its last batch is cut off; copy or write it again")?;
        let header = message.table(2).ok().flatten().ok_or(DAMAGED)?;
        let place = |rows: i64| {
            let rows = u64::try_from(rows).map_err(|_| DAMAGED)?;
            Ok::<_, String>(MessageAt {
                at: metadata,
                metadata: size.into(),
                body,
                body_length,
                rows,
                dictionaries: self.dictionaries.len(),
            })
        };
        match kind {
            1 if self.schema.fields.is_empty() => self.schema = ArrowSchema::read(header).map_err(|_| DAMAGED)??,
            2 => {
                let read = || Ok((header.i64(0)?, header.flag(2)?, header.table(1)?.ok_or(MalformedMessage)?.i64(0)?));
                let (id, delta, rows) = read().map_err(|_: MalformedMessage| DAMAGED)?;
                let message = place(rows)?;
                self.dictionaries.push(DictionaryAt { id, delta, message });
            }
            3 => {
                let message = place(header.i64(0).map_err(|_| DAMAGED)?)?;
                self.batches.push(message);
            }
            _ => {}
        }
        Ok(Some((kind, end)))
    }

    /// Bytes of the lists of messages and of the columns.
    pub fn held(&self) -> usize {
        let fields: usize = self.schema.fields.iter().map(ArrowField::held).sum();
        size_of_val(&self.batches[..]) + size_of_val(&self.dictionaries[..]) + fields
    }

    /// Bytes of the largest metadata once they are read.
    pub fn metadata_bytes(&self) -> u64 {
        let messages = self.batches.iter().chain(self.dictionaries.iter().map(|dictionary| &dictionary.message));
        messages.map(|message| message.metadata).max().unwrap_or(0) * 8
    }

    /// The messages of the dictionary of a record batch, by index.
    pub fn dictionary(&self, batch: &MessageAt, id: i64) -> std::ops::Range<usize> {
        let known = &self.dictionaries[..batch.dictionaries];
        let start = known.iter().rposition(|dictionary| dictionary.id == id && !dictionary.delta).unwrap_or(0);
        start..known.len()
    }

    /// The dictionary message at an index, if it is of this dictionary.
    pub fn dictionary_message(&self, at: usize, id: i64) -> Option<&MessageAt> {
        Some(&self.dictionaries[at]).filter(|dictionary| dictionary.id == id).map(|dictionary| &dictionary.message)
    }

    /// Reads the metadata of a record batch of these fields.
    pub fn batch<'f>(&self, message: &MessageAt, fields: impl IntoIterator<Item = &'f ArrowField> + Clone) -> Result<RecordBatch, String> {
        let bytes = self.bytes(message.at, message.metadata)?;
        let read = || {
            let header = Table::root(&bytes)?.table(2)?.ok_or(MalformedMessage)?;
            let batch = if Table::root(&bytes)?.u8(1)? == 2 { header.table(1)?.ok_or(MalformedMessage)? } else { header };
            if batch.i64(0)? as u64 != message.rows {
                return Err(MalformedMessage);
            }
            let codec = match batch.table(3)? {
                None => None,
                Some(codec) if codec.u8(0)? == 0 => Some(Codec::Lz4),
                Some(codec) if codec.u8(0)? == 1 => Some(Codec::Zstandard),
                Some(_) => return Err(MalformedMessage),
            };
            let mut cursor = Cursor { batch, message, node: 0, buffer: 0, variadic: 0 };
            let slots =
                fields.clone().into_iter().map(|field| cursor.slot(field)).collect::<Result<Vec<BufferSlot>, MalformedMessage>>()?;
            // Columns have as many rows as the batch.
            if slots.iter().any(|slot| slot.length != message.rows) {
                return Err(MalformedMessage);
            }
            Ok(RecordBatch { codec, slots })
        };
        read().map_err(|_| "its buffers do not fit its columns; the file is damaged".to_string())
    }

    pub fn broken(&self, message: &MessageAt, problem: impl std::fmt::Display) -> DataError {
        DataError::Record { path: self.path.clone(), at: message.at, problem: problem.to_string() }
    }
}

const NEITHER: &str = "it is neither an Arrow file nor an Arrow stream";

/// The next node and buffer of a record batch, which has those of all fields in the order of the schema.
struct Cursor<'b> {
    batch: Table<'b>,
    message: &'b MessageAt,
    node: usize,
    buffer: usize,
    variadic: usize,
}

impl Cursor<'_> {
    fn slot(&mut self, field: &ArrowField) -> Result<BufferSlot, MalformedMessage> {
        let nodes = self.batch.vector(1)?;
        let (length, nulls) = (nodes.i64(self.node, 16, 0)?, nodes.i64(self.node, 16, 8)?);
        self.node += 1;
        let mut count = field.buffers;
        if field.views {
            count += usize::try_from(self.batch.vector(4)?.i64(self.variadic, 8, 0)?).map_err(|_| MalformedMessage)?;
            self.variadic += 1;
        }
        let buffers = (0..count).map(|_| self.span()).collect::<Result<_, _>>()?;
        let children = field.children.iter().map(|child| self.slot(child)).collect::<Result<_, _>>()?;
        let (length, nulls) = (u64::try_from(length).map_err(|_| MalformedMessage)?, u64::try_from(nulls).map_err(|_| MalformedMessage)?);
        Ok(BufferSlot { length, nulls, buffers, children })
    }

    fn span(&mut self) -> Result<BufferSpan, MalformedMessage> {
        let buffers = self.batch.vector(2)?;
        let (offset, length) = (buffers.i64(self.buffer, 16, 0)?, buffers.i64(self.buffer, 16, 8)?);
        self.buffer += 1;
        let (offset, length) = (u64::try_from(offset).map_err(|_| MalformedMessage)?, u64::try_from(length).map_err(|_| MalformedMessage)?);
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.message.body_length);
        Some(BufferSpan { at: self.message.body + offset, length }).filter(|_| inside).ok_or(MalformedMessage)
    }
}
