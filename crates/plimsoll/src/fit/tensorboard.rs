//! Events for TensorBoard: scores of every epoch, histograms of the weights, rows of the first batch, and the plan as
//! text.

use super::FirstBatch;
use crate::error::{Error, Result};
use crate::history::Epoch;
use crate::plan::RunPlan;
use crate::session::Session;
use crate::thumbnails::Thumbnails;
use crate::{spec::RunSpec, system};
use plimsoll_core::graph::{StateId, StateKind};
use plimsoll_core::{Bytes, DType};
use plimsoll_formats::tensorboard::{Bucket, EventWriter};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Thumbnails of the first batch, and buckets of a histogram.
const THUMBNAILS: usize = 4;
const BUCKETS: usize = 30;

/// Bytes of a weight that are read at a time.
const PART: usize = 4096;

/// An event file under way.
pub(super) struct TensorBoard {
    path: PathBuf,
    events: EventWriter<BufWriter<File>>,
}

impl TensorBoard {
    /// Begins a file in a folder; a resumed run adds one of its own.
    pub fn open(folder: &Path, spec: &RunSpec, plan: &RunPlan, step: u64) -> Result<TensorBoard> {
        let now = seconds();
        let path = folder.join(format!("events.out.tfevents.{:010}.plimsoll.{step}", now as u64));
        let open = || {
            fs::create_dir_all(folder)?;
            EventWriter::new(BufWriter::new(File::create(&path)?), now)
        };
        let events = open().map_err(|source| Error::Io { action: "write", path: path.clone(), source })?;
        let mut board = TensorBoard { path, events };
        let (plan, config) = (format!("```\n{plan}\n```"), format!("```\n{}\n```", spec.config));
        board.write(|events| {
            events.text("plan", step as i64, now, &plan)?;
            events.text("configuration", step as i64, now, &config)
        })?;
        Ok(board)
    }

    /// The first images of the first batch.
    pub fn first_batch(&mut self, first: &FirstBatch<'_>) -> Result<()> {
        let columns = first.schema.columns().iter().enumerate();
        let found = columns.filter_map(|(index, column)| {
            let bytes = first.batch.column(index);
            Some((&column.name, bytes, Thumbnails::of(column, bytes)?))
        });
        for (name, bytes, thumbnails) in found {
            let (height, width, channels) = thumbnails.shown();
            let size = (width as u32, height as u32);
            self.write(|events| {
                let pngs = (0..first.batch.rows.min(THUMBNAILS)).map(|row| {
                    let pixels: Vec<u8> = thumbnails.pixels(bytes, row).collect();
                    png(size, channels, &pixels)
                });
                let pngs = pngs.collect::<io::Result<Vec<_>>>()?;
                let pngs: Vec<&[u8]> = pngs.iter().map(Vec::as_slice).collect();
                events.images(&format!("first batch/{name}"), 0, seconds(), size, &pngs)
            })?;
        }
        Ok(())
    }

    /// The scores of an epoch, memory and speed, and a histogram of every weight.
    pub fn epoch(&mut self, epoch: &Epoch, session: &Session) -> Result<()> {
        let (step, now) = (session.step as i64, seconds());
        let held_out = epoch.validation.iter().flat_map(|scores| scores.iter().map(|(name, value)| (format!("{name}/validation"), value)));
        let trained = epoch.training.iter().map(|(name, value)| (format!("{name}/training"), value));
        let mebibytes = |bytes: Bytes| bytes.0 as f64 / (1 << 20) as f64;
        let run = [
            ("run/learning_rate", epoch.learning_rate),
            ("run/examples_per_s", epoch.examples_per_s),
            ("memory/resident_MiB", mebibytes(system::resident())),
            ("memory/planned_peak_MiB", mebibytes(session.plan.total())),
        ];
        let run = run.into_iter().map(|(name, value)| (name.to_string(), value));
        for (tag, value) in trained.chain(held_out).chain(run) {
            self.write(|events| events.scalar(&tag, step, now, value as f32))?;
        }
        let states = session.plan.memory.programs.first().map_or(&[][..], |program| program.graph.states());
        for (index, state) in
            states.iter().enumerate().filter(|(_, state)| state.kind == StateKind::Parameter && state.ty.dtype == DType::F32)
        {
            let buckets = histogram(session, StateId(index as u32), state.ty.bytes(1))?;
            self.write(|events| events.histogram(&format!("weights/{}", state.name), step, now, &buckets))?;
        }
        self.write(|events| events.flush())
    }

    fn write(&mut self, write: impl FnOnce(&mut EventWriter<BufWriter<File>>) -> io::Result<()>) -> Result<()> {
        write(&mut self.events).map_err(|source| Error::Io { action: "write", path: self.path.clone(), source })
    }
}

/// The histogram of a weight, read twice in small parts: once for its range, once to count.
fn histogram(session: &Session, state: StateId, size: Bytes) -> Result<Vec<Bucket>> {
    let mut part = [0; PART];
    let mut visit = |see: &mut dyn FnMut(f64)| -> Result<()> {
        for from in (0..size.get()).step_by(PART) {
            let bytes = &mut part[..PART.min(size.get() - from)];
            session.executor.read_state_part(state, Bytes(from as u64), bytes)?;
            let values = bytes.chunks_exact(4).map(|word| f64::from(f32::from_ne_bytes([word[0], word[1], word[2], word[3]])));
            values.filter(|value| value.is_finite()).for_each(&mut *see);
        }
        Ok(())
    };
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    visit(&mut |value| (min, max) = (min.min(value), max.max(value)))?;
    if min > max {
        return Ok(Vec::new());
    }
    let width = ((max - min) / BUCKETS as f64).max(f64::MIN_POSITIVE);
    let edge = |i: usize| if i == BUCKETS { max.max(min + width) } else { min + width * i as f64 };
    let mut buckets: Vec<Bucket> = (0..BUCKETS).map(|i| Bucket { left: edge(i), right: edge(i + 1), count: 0.0 }).collect();
    visit(&mut |value| buckets[(((value - min) / width) as usize).min(BUCKETS - 1)].count += 1.0)?;
    Ok(buckets)
}

/// Seconds since 1970.
fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn png((width, height): (u32, u32), channels: usize, pixels: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(if channels == 1 { png::ColorType::Grayscale } else { png::ColorType::Rgb });
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(bytes)
}
