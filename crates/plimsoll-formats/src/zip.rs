//! Zip archives as Keras and NumPy write them: members that are stored without compression, with 64-bit sizes where
//! needed.

use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata, Region};
use flate2::read::DeflateDecoder;
use std::io::{self, Read, Seek, SeekFrom, Write};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
/// The comment of an archive has at most 65535 bytes.
const END_BYTES: u64 = 22;
const LAST: u64 = END_BYTES + 0xFFFF;
/// The modification date of written members: 1 January 1980, the first that the format has.
const DATE: u16 = 0x21;

/// An open archive: its directory.
#[derive(Debug)]
pub struct Zip {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: String,
    bytes: Region,
    compressed: bool,
}

impl Zip {
    /// Whether bytes begin like an archive.
    pub fn is_zip(start: &[u8]) -> bool {
        start.starts_with(&LOCAL.to_le_bytes()) || start.starts_with(&END.to_le_bytes())
    }

    /// Reads the directory of an archive.
    pub fn open(region: Region) -> Result<Zip> {
        let metadata = Metadata::new(region.clone());
        let length = region.length();
        let from = length.saturating_sub(LAST);
        let tail = metadata.read(from, length - from, "the end of the zip archive")?;
        let end = (0..tail.len().saturating_sub(END_BYTES as usize - 1)).rev().find(|at| tail[*at..].starts_with(&END.to_le_bytes()));
        let Some(end) = end else { return damaged("it is not a zip archive, or it is cut off: it has no directory") };
        let mut fields = FieldReader::new(&tail[end + 10..], "the end of the zip archive");
        let (mut entries, mut size, mut start) = (u64::from(fields.u16()?), u64::from(fields.u32()?), u64::from(fields.u32()?));
        if entries == 0xFFFF || size == 0xFFFF_FFFF || start == 0xFFFF_FFFF {
            let locator = (from + end as u64).checked_sub(20).map(|at| metadata.read(at, 20, "the zip64 locator"));
            let Some(locator) = locator.transpose()? else { return damaged("its zip64 locator is cut off") };
            let mut fields = FieldReader::new(&locator, "the zip64 locator");
            if fields.u32()? == LOCATOR64 {
                fields.u32()?;
                let record = metadata.read(fields.u64()?, 56, "the zip64 end of the archive")?;
                let mut fields = FieldReader::new(&record, "the zip64 end of the archive");
                if fields.u32()? != END64 {
                    return damaged("its zip64 locator points at something else");
                }
                fields.take(28)?;
                (entries, size, start) = (fields.u64()?, fields.u64()?, fields.u64()?);
            }
        }
        let directory = metadata.read(start, size, "the directory of the zip archive")?;
        let mut fields = FieldReader::new(&directory, "the directory of the zip archive");
        let mut members: Vec<Member> = Vec::new();
        for _ in 0..entries {
            let member = Member::read(&mut fields, &metadata)?;
            if members.iter().any(|known| known.name == member.name) {
                return damaged(format!("it has two members `{}`", member.name));
            }
            members.push(member);
        }
        Ok(Zip { members })
    }

    /// The names of the members.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// The bytes of a member that is stored without compression; none if there is no such member.
    pub fn stored(&self, name: &str) -> Result<Option<Region>> {
        match self.members.iter().find(|member| member.name == name) {
            Some(member) if member.compressed => {
                unsupported(format!("the member `{name}` of the archive is compressed; store it (Python: `ZipFile(file, \"w\")`)"))
            }
            member => Ok(member.map(|member| member.bytes.clone())),
        }
    }

    /// The contents of a small member, compressed or not, of at most `limit` bytes.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(member) = self.members.iter().find(|member| member.name == name) else { return Ok(None) };
        let stored = member.bytes.read_all(limit, name)?;
        if !member.compressed {
            return Ok(Some(stored));
        }
        let mut bytes = Vec::new();
        if DeflateDecoder::new(&stored[..]).take(limit + 1).read_to_end(&mut bytes).is_err() {
            return damaged(format!("the member `{name}` of the archive cannot be decompressed"));
        }
        match bytes.len() as u64 > limit {
            true => unsupported(format!("the member `{name}` of the archive has more than {limit} bytes")),
            false => Ok(Some(bytes)),
        }
    }
}

impl Member {
    /// The next entry of the directory.
    fn read(fields: &mut FieldReader<'_>, metadata: &Metadata) -> Result<Member> {
        if fields.u32()? != CENTRAL {
            return damaged("the directory of the zip archive is damaged");
        }
        fields.take(4)?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        fields.take(8)?;
        let (mut packed, mut size) = (u64::from(fields.u32()?), u64::from(fields.u32()?));
        let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
        fields.take(8)?;
        let mut header = u64::from(fields.u32()?);
        let name = String::from_utf8_lossy(fields.take(name.into())?).into_owned();
        let mut extras = FieldReader::new(fields.take(extra.into())?, "the directory of the zip archive");
        fields.take(comment.into())?;
        while extras.rest().len() >= 4 {
            let (kind, length) = (extras.u16()?, extras.u16()?);
            let mut values = FieldReader::new(extras.take(length.into())?, "the zip64 sizes of a member");
            if kind == 1 {
                for value in [&mut size, &mut packed, &mut header] {
                    if *value == 0xFFFF_FFFF {
                        *value = values.u64()?;
                    }
                }
            }
        }
        if flags & 1 != 0 {
            return unsupported(format!("the member `{name}` of the archive is encrypted"));
        }
        if method != 0 && method != 8 {
            return unsupported(format!("the member `{name}` of the archive has the compression method {method}; store it"));
        }
        if method == 0 && packed != size {
            return damaged(format!("the member `{name}` of the archive has two different sizes"));
        }
        let local = metadata.read(header, 30, "the header of a member")?;
        let mut fields = FieldReader::new(&local, "the header of a member");
        if fields.u32()? != LOCAL {
            return damaged(format!("the header of the member `{name}` is damaged"));
        }
        fields.take(22)?;
        let skipped = 30 + u64::from(fields.u16()?) + u64::from(fields.u16()?);
        let bytes = metadata.region.part(header.saturating_add(skipped), packed, &format!("the member `{name}` of the archive"))?;
        Ok(Member { name, bytes, compressed: method == 8 })
    }
}

/// Writes an archive of stored members, one after the other.
///
/// ```
/// use plimsoll_formats::{source::Region, zip::{Zip, ZipWriter}};
/// use std::io::{Cursor, Write};
/// let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
/// archive.member("a.txt", 5, |out| out.write_all(b"hello"))?;
/// let bytes = archive.finish()?.into_inner();
/// let zip = Zip::open(Region::bytes(bytes)).unwrap();
/// assert_eq!(zip.read("a.txt", 100).unwrap().unwrap(), b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ZipWriter<W: Write + Seek> {
    out: W,
    directory: Vec<u8>,
    entries: u64,
}

/// Passes bytes on, and keeps their checksum and number.
struct ChecksumWriter<'a, W: Write> {
    out: &'a mut W,
    checksum: crc32fast::Hasher,
    written: u64,
}

impl<W: Write> Write for ChecksumWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.out.write(bytes)?;
        self.checksum.update(&bytes[..taken]);
        self.written += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write + Seek> ZipWriter<W> {
    /// An archive without members.
    pub fn new(out: W) -> ZipWriter<W> {
        ZipWriter { out, directory: Vec::new(), entries: 0 }
    }

    /// Adds a member of exactly `length` bytes, which `write` writes.
    pub fn member(&mut self, name: &str, length: u64, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let at = self.out.stream_position()?;
        let large = length >= 0xFFFF_FFFF;
        let version: u16 = if large || at >= 0xFFFF_FFFF { 45 } else { 20 };
        let size = if large { u32::MAX } else { length as u32 };
        let mut sizes = Vec::new();
        if large {
            sizes.extend([1u16.to_le_bytes(), 16u16.to_le_bytes()].concat());
            sizes.extend([length.to_le_bytes(), length.to_le_bytes()].concat());
        }
        // From the version needed to the date.
        let mut common = Vec::new();
        for field in [version, 0x0800, 0, 0, DATE] {
            common.extend(field.to_le_bytes());
        }
        let mut header = [&LOCAL.to_le_bytes()[..], &common].concat();
        header.extend([0, size, size].map(u32::to_le_bytes).concat());
        header.extend([name.len() as u16, sizes.len() as u16].map(u16::to_le_bytes).concat());
        self.out.write_all(&[&header, name.as_bytes(), &sizes].concat())?;
        let mut counted = ChecksumWriter { out: &mut self.out, checksum: crc32fast::Hasher::new(), written: 0 };
        write(&mut counted)?;
        let (checksum, written) = (counted.checksum.finalize(), counted.written);
        if written != length {
            return Err(io::Error::other(format!("the member `{name}` should have {length} bytes, but {written} were written")));
        }
        let end = self.out.stream_position()?;
        self.out.seek(SeekFrom::Start(at + 14))?;
        self.out.write_all(&checksum.to_le_bytes())?;
        self.out.seek(SeekFrom::Start(end))?;

        let far = at >= 0xFFFF_FFFF;
        let mut extra = Vec::new();
        if large || far {
            let values: Vec<u64> = [large.then_some([length; 2]).into_iter().flatten().collect(), far.then_some(at).into_iter().collect()]
                .into_iter()
                .flat_map(|values: Vec<u64>| values)
                .collect();
            extra.extend([1u16.to_le_bytes(), (values.len() as u16 * 8).to_le_bytes()].concat());
            values.iter().for_each(|value| extra.extend(value.to_le_bytes()));
        }
        self.directory.extend([&CENTRAL.to_le_bytes()[..], &version.to_le_bytes(), &common].concat());
        self.directory.extend([checksum, size, size].map(u32::to_le_bytes).concat());
        self.directory.extend([name.len() as u16, extra.len() as u16, 0, 0, 0].map(u16::to_le_bytes).concat());
        self.directory.extend(0o644u32.rotate_left(16).to_le_bytes());
        self.directory.extend((if far { u32::MAX } else { at as u32 }).to_le_bytes());
        self.directory.extend([name.as_bytes(), &extra].concat());
        self.entries += 1;
        Ok(())
    }

    /// Writes the directory.
    pub fn finish(mut self) -> io::Result<W> {
        let (at, size) = (self.out.stream_position()?, self.directory.len() as u64);
        self.out.write_all(&self.directory)?;
        if at >= 0xFFFF_FFFF {
            let mut record = [&END64.to_le_bytes()[..], &44u64.to_le_bytes(), &45u16.to_le_bytes(), &45u16.to_le_bytes(), &[0; 8]].concat();
            record.extend([self.entries, self.entries, size, at].map(u64::to_le_bytes).concat());
            record.extend([&LOCATOR64.to_le_bytes()[..], &[0; 4], &(at + size).to_le_bytes(), &1u32.to_le_bytes()].concat());
            self.out.write_all(&record)?;
        }
        let entries = self.entries.min(0xFFFF) as u16;
        let mut end = [&END.to_le_bytes()[..], &[0; 4], &entries.to_le_bytes(), &entries.to_le_bytes()].concat();
        end.extend([size, at].map(|value| (value.min(0xFFFF_FFFF) as u32).to_le_bytes()).concat());
        end.extend([0; 2]);
        self.out.write_all(&end)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
