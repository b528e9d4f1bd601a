//! The files that predictions are written to.

use anyhow::{Context, Result};
use plimsoll::{OutputColumns, OutputKind, Predicted, binary, top, write_mask};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A .npy file.
    Array,
    /// A .csv file.
    Table,
    /// The same on standard output.
    Printed,
    /// A folder of masks.
    Masks,
}

/// How rows of a table are written.
pub struct Table {
    /// The name of the first column.
    pub first: &'static str,
    pub columns: OutputColumns,
    /// Classes per row.
    pub top: usize,
    /// The folders that were given.
    pub folders: Vec<PathBuf>,
}

impl Table {
    fn class(&self, class: usize) -> String {
        self.columns.classes.get(class).map_or_else(|| class.to_string(), |name| quoted(name))
    }

    fn header(&self, kind: OutputKind, per_row: usize) -> String {
        let mut text = self.first.to_string();
        match kind {
            OutputKind::Classes { count, .. } if per_row == count => {
                for rank in 1..=self.top.min(count) {
                    let suffix = if rank == 1 { String::new() } else { format!("_{rank}") };
                    text += &format!(",class{suffix},probability{suffix}");
                }
            }
            OutputKind::Binary { .. } if per_row == 1 => text += ",class,probability",
            _ => {
                for at in 0..per_row {
                    // Several time steps repeat the same columns.
                    let names = &self.columns.names;
                    text += &match names.len() {
                        0 => format!(",y{at}"),
                        count if count == per_row => format!(",{}", quoted(&names[at])),
                        count => format!(",{}", quoted(&format!("{}+{}", names[at % count], at / count + 1))),
                    };
                }
            }
        }
        text
    }

    fn row(&self, kind: OutputKind, name: &str, values: &mut [f32]) -> String {
        kind.to_probabilities(values);
        let mut text = quoted(name);
        match kind {
            OutputKind::Classes { count, .. } if values.len() == count => {
                for (class, probability) in top(values, self.top.min(count)) {
                    text += &format!(",{},{probability}", self.class(class));
                }
            }
            OutputKind::Binary { .. } if values.len() == 1 => {
                let (class, probability) = binary(values[0]);
                text += &format!(",{},{probability}", self.class(class));
            }
            _ => values.iter().for_each(|value| text += &format!(",{value}")),
        }
        text
    }
}

/// A field of a table, in quotes if it needs them.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

/// The name of a file until it is complete.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsStr::to_os_string).unwrap_or_default();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Where one result of the model goes.
pub struct Out {
    pub name: String,
    pub path: PathBuf,
    pub rows: u64,
    pub shape: Vec<usize>,
    kind: OutputKind,
    format: Format,
    table: Table,
    /// The file until it is complete.
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
    /// Hashes of the names of masks so far.
    masks: HashSet<u64>,
    failed: Option<anyhow::Error>,
}

impl Out {
    /// An array's header, whatever its number of rows.
    const HEADER: usize = 128;

    /// A file, with the result's name in its own if there are several.
    pub fn new(path: &Path, output: &Predicted, kind: OutputKind, several: bool, format: Format, table: Table) -> Out {
        let path = match (several, format) {
            (false, _) | (_, Format::Printed) => path.to_path_buf(),
            (true, Format::Masks) => path.join(output.name.replace('/', "-")),
            (true, _) => {
                let (stem, extension) = (path.file_stem().unwrap_or_default(), if format == Format::Table { "csv" } else { "npy" });
                path.with_file_name(format!("{}-{}.{extension}", stem.to_string_lossy(), output.name.replace('/', "-")))
            }
        };
        let (name, shape, temporary) = (output.name.clone(), output.shape.clone(), beside(&path));
        let mut out = Out { name, file: None, path, temporary, kind, format, table, rows: 0, shape, masks: HashSet::new(), failed: None };
        out.failed = if several && format == Format::Printed {
            Some(anyhow::anyhow!("the model has several outputs, which are a table each; name a file with --out"))
        } else {
            out.create().err()
        };
        out
    }

    /// Where it goes, as text.
    fn place(&self) -> String {
        match self.format {
            Format::Printed => "standard output".to_string(),
            _ => self.path.display().to_string(),
        }
    }

    /// Whether it has a name of its own until it is complete.
    fn is_renamed(&self) -> bool {
        matches!(self.format, Format::Array | Format::Table)
    }

    fn create(&mut self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.place());
        match (self.format, self.kind, &self.shape[..]) {
            (Format::Masks, OutputKind::Classes { .. }, [_, _, _]) => std::fs::create_dir_all(&self.path).with_context(cannot)?,
            (Format::Masks, ..) => {
                anyhow::bail!(
                    "masks are for models that predict a class per pixel, and `{}` is {:?}; use a .csv or .npy file",
                    self.name,
                    self.shape
                )
            }
            (Format::Printed, ..) => {
                let stdout = io::stdout().as_fd().try_clone_to_owned().with_context(cannot)?;
                self.file = Some(BufWriter::new(File::from(stdout)));
            }
            _ => self.file = Some(BufWriter::new(File::create(&self.temporary).with_context(cannot)?)),
        }
        Ok(())
    }

    /// The file that is left if the command ends early.
    pub fn temporary(&self) -> Option<&PathBuf> {
        self.is_renamed().then_some(&self.temporary)
    }

    /// After an error nothing more is written; it is reported at the end.
    pub fn add(&mut self, output: &Predicted, first_row: u64, row_name: &dyn Fn(u64) -> String) {
        if self.failed.is_none() {
            let mut file = self.file.take();
            self.failed = self.write(file.as_mut(), &output.values, first_row, row_name).err();
            self.file = file;
        }
    }

    fn write(
        &mut self,
        file: Option<&mut BufWriter<File>>,
        values: &[f32],
        first_row: u64,
        row_name: &dyn Fn(u64) -> String,
    ) -> Result<()> {
        let per_row: usize = self.shape.iter().product();
        let place = self.place();
        let cannot = || format!("cannot write {place}");
        let Some(file) = file else { return self.masks(values, first_row, row_name) };
        if self.rows == 0 {
            match self.format {
                Format::Table | Format::Printed => writeln!(file, "{}", self.table.header(self.kind, per_row)).with_context(cannot)?,
                _ => file.write_all(&[0; Out::HEADER]).with_context(cannot)?,
            }
        }
        let mut scratch = vec![0.0; per_row];
        for (at, row) in values.chunks_exact(per_row.max(1)).enumerate() {
            if self.format != Format::Array {
                scratch.copy_from_slice(row);
                let line = self.table.row(self.kind, &row_name(first_row + at as u64), &mut scratch);
                writeln!(file, "{line}").with_context(cannot)?;
            } else {
                row.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())).with_context(cannot)?;
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// Writes one mask per row, named like its image; those of the subfolders of an input are in subfolders.
    fn masks(&mut self, values: &[f32], first_row: u64, row_name: &dyn Fn(u64) -> String) -> Result<()> {
        let &[height, width, classes] = &self.shape[..] else { unreachable!("checked when it was opened") };
        for (at, scores) in values.chunks_exact(height * width * classes).enumerate() {
            let name = row_name(first_row + at as u64);
            let below = self.table.folders.iter().find_map(|folder| Path::new(&name).strip_prefix(folder).ok());
            let image = below.or(Path::new(&name).file_name().map(Path::new)).unwrap_or(Path::new(&name));
            let stem = image.file_stem().unwrap_or(image.as_os_str()).to_string_lossy();
            let mask = self.path.join(image).with_file_name(format!("{stem}.png"));
            let mut hash = DefaultHasher::new();
            mask.hash(&mut hash);
            if !self.masks.insert(hash.finish()) {
                anyhow::bail!("{name} and another image have the mask {}; predict them into folders of their own", mask.display());
            }
            if let Some(folder) = mask.parent().filter(|folder| *folder != self.path) {
                std::fs::create_dir_all(folder).with_context(|| format!("cannot write {}", folder.display()))?;
            }
            write_mask(&mask, scores, height, width, classes)?;
            self.rows += 1;
        }
        Ok(())
    }

    /// The header of an array says how many rows there are, so it comes last.
    pub fn finish(&mut self) -> Result<()> {
        let ended = match (self.failed.take(), self.file.take()) {
            (Some(failed), _) => Err(failed),
            (None, Some(mut file)) => self.end(&mut file).with_context(|| format!("cannot write {}", self.place())),
            (None, None) => Ok(()),
        };
        // A reader that has closed the pipe has seen enough.
        let seen_enough = |error: &anyhow::Error| {
            let cause = error.downcast_ref::<io::Error>();
            self.format == Format::Printed && cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
        };
        ended.or_else(|error| if seen_enough(&error) { Ok(()) } else { Err(error) })
    }

    fn end(&self, file: &mut BufWriter<File>) -> io::Result<()> {
        if self.format == Format::Array {
            let shape: String = self.shape.iter().map(|size| format!("{size}, ")).collect();
            let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {shape}), }}", self.rows);
            let length = Out::HEADER - 10;
            let mut header = b"\x93NUMPY\x01\x00".to_vec();
            header.extend((length as u16).to_le_bytes());
            header.extend(format!("{text:<width$}\n", width = length - 1).bytes());
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
        }
        file.flush()?;
        if self.format == Format::Printed { Ok(()) } else { file.get_ref().sync_all() }
    }

    pub fn rename(&self) -> Result<()> {
        if !self.is_renamed() {
            return Ok(());
        }
        std::fs::rename(&self.temporary, &self.path).with_context(|| format!("cannot write {}", self.path.display()))
    }
}
