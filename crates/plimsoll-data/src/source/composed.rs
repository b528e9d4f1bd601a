//! `zip` and `concatenate` of indexed sources, with random access.

use super::{ColumnScale, FileUse, Gather, ImageScans, Source, class_column};
use crate::block::{BlockMut, ColumnMut};
use crate::{DataError, Extent, Schema};
use std::hash::Hasher;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Columns of several sources, joined row by row.
struct Zipped {
    sources: Vec<Arc<dyn Source>>,
    schema: Schema,
}

/// Rows of several sources, one source after the other.
struct Concatenated {
    sources: Vec<Arc<dyn Source>>,
    scans: ImageScans,
}

/// Joins the columns of several sources.
pub(crate) fn zipped(sources: Vec<Arc<dyn Source>>) -> Result<Arc<dyn Source>, DataError> {
    let schema = Schema::new(sources.iter().flat_map(|source| source.schema().columns().to_vec()).collect())?;
    Ok(Arc::new(Zipped { sources, schema }))
}

/// Concatenates sources, if they have the same schema.
pub(crate) fn concatenated(sources: Vec<Arc<dyn Source>>) -> Option<Arc<dyn Source>> {
    let alike = sources.iter().all(|source| source.schema() == sources[0].schema());
    alike.then(|| Arc::new(Concatenated { sources, scans: ImageScans::default() }) as Arc<dyn Source>)
}

fn describe(what: &str, sources: &[Arc<dyn Source>]) -> String {
    format!("{what}({})", sources.iter().map(|source| source.describe()).collect::<Vec<_>>().join(" | "))
}

/// What all of them read, each name once.
pub(crate) fn merge_use(uses: impl Iterator<Item = FileUse>) -> FileUse {
    fn add<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
        more.into_iter().for_each(|item| {
            if !all.contains(&item) {
                all.push(item)
            }
        });
    }
    uses.fold(FileUse::default(), |mut all, read| {
        add(&mut all.used, read.used);
        add(&mut all.targets, read.targets);
        add(&mut all.outputs, read.outputs);
        add(&mut all.encoded, read.encoded);
        add(&mut all.unused, read.unused);
        all
    })
}

fn merged(sources: &[Arc<dyn Source>]) -> FileUse {
    merge_use(sources.iter().map(|source| source.file_use()))
}

impl Zipped {
    /// Calls `read` for each source with its columns.
    fn each(
        &self,
        out: &mut BlockMut<'_, '_>,
        mut write: impl FnMut(&dyn Source, &mut BlockMut<'_, '_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let rows = out.rows();
        let mut rest = out.columns();
        for source in &self.sources {
            let (columns, after) = rest.split_at_mut(source.schema().columns().len());
            write(&**source, &mut BlockMut::new(source.schema(), rows, columns))?;
            rest = after;
        }
        Ok(())
    }
}

impl Zipped {
    /// The source of a column, and its position there.
    fn part(&self, column: usize) -> Option<(&Arc<dyn Source>, usize)> {
        let mut column = column;
        for source in &self.sources {
            match column.checked_sub(source.schema().columns().len()) {
                Some(rest) => column = rest,
                None => return Some((source, column)),
            }
        }
        None
    }
}

impl Source for Zipped {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn parts(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    fn len(&self) -> u64 {
        self.sources.iter().map(|source| source.len()).min().unwrap_or(0)
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.each(out, |source, out| source.read(first_row, scratch, out))
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.each(out, |source, out| source.gather(rows, scratch, out))
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        let Some(mut column) = class_column(&self.schema) else { return Ok(false) };
        for source in &self.sources {
            match column.checked_sub(source.schema().columns().len()) {
                Some(rest) => column = rest,
                // The column alone decides: another integer of this source may not be the class.
                None if class_column(source.schema()) != Some(column) => return Ok(false),
                None => {
                    let mut left = self.len();
                    return source.classes(&mut |class| {
                        if left > 0 {
                            left -= 1;
                            visit(class);
                        }
                    });
                }
            }
        }
        Ok(false)
    }

    fn file(&self, row: u64, column: usize, path: &mut PathBuf) {
        let (source, column) = self.part(column).expect("called only for a column of files");
        source.file(row, column, path);
    }

    fn file_part(&self, row: u64, column: usize) -> Result<Option<Range<u64>>, DataError> {
        self.part(column).map_or(Ok(None), |(source, column)| source.file_part(row, column))
    }

    /// Headers are read before planning if one source has all files.
    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        let has_files = |source: &&Arc<dyn Source>| source.schema().columns().iter().any(|column| column.extent == Extent::Files);
        let mut with_files = self.sources.iter().enumerate().filter(|(_, source)| has_files(source));
        // The columns of the first source have the same positions here; a source with one column of files needs none.
        let (at, source) = with_files.next().filter(|_| with_files.next().is_none())?;
        let files = source.schema().columns().iter().filter(|column| column.extent == Extent::Files).count();
        if at == 0 || files == 1 { source.image_scans() } else { None }
    }

    fn masked_column(&self, column: usize) -> Option<usize> {
        let (source, at) = self.part(column)?;
        source.masked_column(at).map(|masked| column - at + masked)
    }

    fn row_name(&self, row: u64) -> String {
        self.sources.iter().map(|source| source.row_name(row)).collect::<Vec<_>>().join(" with ")
    }

    fn file_use(&self) -> FileUse {
        merged(&self.sources)
    }

    fn scales(&self) -> Vec<ColumnScale> {
        self.sources.iter().map(|source| source.scales()).find(|scales| !scales.is_empty()).unwrap_or_default()
    }

    fn locate(&self, row: u64, column: usize) -> Option<(PathBuf, u64)> {
        self.part(column).and_then(|(source, column)| source.locate(row, column))
    }

    fn describe(&self) -> String {
        describe("zip", &self.sources)
    }
}

impl Concatenated {
    /// Reads `rows` rows starting at `first` into the block, starting at row `at`.
    fn read_part(
        &self,
        mut first: u64,
        mut at: usize,
        rows: usize,
        scratch: &mut [u8],
        out: &mut BlockMut<'_, '_>,
    ) -> Result<(), DataError> {
        let end = at + rows;
        for source in &self.sources {
            if at == end {
                break;
            }
            if first >= source.len() {
                first -= source.len();
                continue;
            }
            let rows = ((source.len() - first).min((end - at) as u64)) as usize;
            let mut columns: Vec<ColumnMut<'_>> = Vec::with_capacity(self.schema().columns().len());
            for (column, declared) in out.columns().iter_mut().zip(self.schema().columns()) {
                let bytes = declared.row_bytes().get();
                columns.push(ColumnMut::new(&mut column.bytes()[at * bytes..][..rows * bytes]));
            }
            source.read(first, scratch, &mut BlockMut::new(source.schema(), rows, &mut columns))?;
            at += rows;
            first = 0;
        }
        Ok(())
    }

    /// The source of a row, and its index there.
    fn of(&self, mut row: u64) -> (&dyn Source, u64) {
        for source in &self.sources {
            match row.checked_sub(source.len()) {
                Some(rest) => row = rest,
                None => return (&**source, row),
            }
        }
        unreachable!("only rows that exist are asked for")
    }
}

impl Source for Concatenated {
    fn schema(&self) -> &Schema {
        self.sources[0].schema()
    }

    fn parts(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    fn len(&self) -> u64 {
        self.sources.iter().map(|source| source.len()).fold(0, u64::saturating_add)
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.read_part(first_row, 0, out.rows(), scratch, out)
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        rows.rows.iter().enumerate().try_for_each(|(at, &row)| self.read_part(row, at, 1, scratch, out))
    }

    /// Rows are read one by one.
    fn wants_ascending(&self) -> bool {
        false
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        self.sources.iter().all(|source| source.image_scans().is_some()).then_some((self, &self.scans))
    }

    fn file(&self, row: u64, column: usize, path: &mut PathBuf) {
        let (source, row) = self.of(row);
        source.file(row, column, path);
    }

    fn file_part(&self, row: u64, column: usize) -> Result<Option<Range<u64>>, DataError> {
        let (source, row) = self.of(row);
        source.file_part(row, column)
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        self.sources.iter().try_fold(true, |known, source| Ok(known && source.classes(visit)?))
    }

    fn row_name(&self, row: u64) -> String {
        let (source, row) = self.of(row);
        source.row_name(row)
    }

    fn file_use(&self) -> FileUse {
        merged(&self.sources)
    }

    fn scales(&self) -> Vec<ColumnScale> {
        self.sources[0].scales()
    }

    fn locate(&self, row: u64, column: usize) -> Option<(PathBuf, u64)> {
        let (source, row) = self.of(row);
        source.locate(row, column)
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        let (mut first, mut known) = (0u64, true);
        for source in &self.sources {
            let end = first.saturating_add(source.len());
            let (from, to) = (rows.start.clamp(first, end), rows.end.clamp(first, end));
            if from < to {
                known &= source.fingerprint(from - first..to - first, hash)?;
            }
            first = end;
        }
        Ok(known)
    }

    fn describe(&self) -> String {
        describe("concatenate", &self.sources)
    }
}
