//! Reads and decodes files to rows of one size, straight into their destination.

use super::pool::{DecodeMemory, DecodePool, item_bytes};
use crate::image::resample::{From, Resampler};
use crate::image::{self, Channels, Orientation, Probe};
use crate::meter::Meter;
use crate::ops::{self, Decode, ItemStep, Method};
use crate::source::Source;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The operations from a file to a row of a block.
#[derive(Clone)]
pub(crate) struct DecodeRecipe {
    pub decode: Decode,
    /// Random flips: horizontal (or vertical), and the seed.
    pub flips: Vec<(bool, u64)>,
    /// The operation that gives all images one size.
    pub end: ItemStep,
    /// The output: u8 if it is cached or only cropped, else f32.
    pub output: Column,
    /// A factor applied to the output.
    pub factor: Option<f32>,
}

/// The size and method of a step, if it is a resize.
fn resize(step: ItemStep) -> Option<(usize, usize, Method)> {
    match step {
        ItemStep::Resize { height, width, method } => Some((height, width, method)),
        ItemStep::ResizedCrop { height, width, part } => Some((height, width, part.method)),
        _ => None,
    }
}

impl DecodeRecipe {
    /// Combines the steps of one column; `output` is the column after the last.
    pub fn new(steps: &[ItemStep], output: Column) -> Option<DecodeRecipe> {
        let (&ItemStep::Decode(decode), rest) = steps.split_first()? else { return None };
        let (&end, flips) = rest.split_last()?;
        if matches!(end, ItemStep::Decode(_) | ItemStep::Flip { .. }) {
            return None;
        }
        let flips = flips.iter().map(|step| match *step {
            ItemStep::Flip { left_right, seed } => Some((left_right, seed)),
            _ => None,
        });
        Some(DecodeRecipe { decode, flips: flips.collect::<Option<_>>()?, end, output, factor: None })
    }

    /// Whether the image of a header is transposed after decoding.
    fn transposes(&self, probe: &Probe) -> bool {
        self.decode.orient && probe.orientation.transposed
    }

    /// Bytes of the tables of a kernel and of its path buffer.
    pub fn kernel_bytes(&self) -> Bytes {
        let bytes = |(height, width, method)| Resampler::bytes(method, height, width, self.decode.channels.count());
        resize(self.end).map_or(Bytes::ZERO, bytes) + Bytes((image::jpeg::Decoder::BYTES + PATH) as u64)
    }
}

/// The state of one thread that decodes files.
pub(crate) struct DecodeKernel {
    source: Arc<dyn Source>,
    /// The column of files.
    column: usize,
    /// The column of the images that these are the masks of.
    masked: Option<usize>,
    recipe: DecodeRecipe,
    resampler: Option<Resampler>,
    baseline: image::jpeg::Decoder,
    /// The memory for files and their pixels, and the cache of decoded rows.
    pool: Arc<DecodePool>,
    meter: Arc<Meter>,
    path: PathBuf,
    /// The memory limit for a single file.
    cap: ItemCap,
    epoch: u64,
}

/// The memory limits for a single file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemCap {
    /// The limit regardless of the budget: the user's setting or the default. An image above it counts as a bad row.
    pub stated: Bytes,
    /// The limit with the available memory.
    pub here: Bytes,
}

/// The encoded bytes of an image.
enum Encoded<'b> {
    /// In this part of a file.
    File(&'b File, Range<u64>),
    /// In a buffer that will be reused soon.
    Held(&'b [u8]),
}

/// An image with its bytes and the memory for decoding it.
pub(crate) struct StartedImage {
    probe: Probe,
    transposed: bool,
    parts: KernelParts,
    memory: DecodeMemory,
    /// Total bytes.
    needed: u128,
}

/// Longer than any path the system can open.
const PATH: usize = 4096;

impl DecodeKernel {
    /// Decodes the files of a column.
    pub fn new(
        source: (Arc<dyn Source>, usize),
        recipe: DecodeRecipe,
        cap: ItemCap,
        pool: Arc<DecodePool>,
        meter: Arc<Meter>,
    ) -> DecodeKernel {
        let (source, column) = source;
        let masked = if recipe.decode.channels == Channels::Index { source.masked_column(column) } else { None };
        let channels = recipe.decode.channels.count();
        let resampler = resize(recipe.end).map(|(height, width, method)| Resampler::new(method, height, width, channels));
        let (baseline, path) = (image::jpeg::Decoder::new(), PathBuf::with_capacity(PATH));
        DecodeKernel { source, column, masked, recipe, resampler, baseline, pool, meter, path, cap, epoch: 0 }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Writes one row.
    pub fn run(&mut self, row: u64, out: &mut [u8]) -> Result<(), DataError> {
        if self.pool.store().is_none() {
            return self.make(row, out).map(|_| ());
        }
        let start = Instant::now();
        let found = self.pool.find(row, out)?;
        Meter::add(&self.meter.cache, start);
        if !found {
            let expensive = self.make(row, out)?;
            self.pool.keep(row, out, expensive)?;
        }
        Ok(())
    }

    /// Decodes one row; returns whether it is a giant.
    fn make(&mut self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        if let Some(image) = self.masked {
            self.check_size(row, image)?;
        }
        self.source.file(row, self.column, &mut self.path);
        let part = self.source.file_part(row, self.column)?;
        let made = self.make_from(row, part.clone(), out);
        // For a file with many images, add the position to the error.
        made.map_err(|error| match (error, part) {
            (DataError::Image { path, problem }, Some(part)) => {
                DataError::Image { path, problem: format!("the image at byte {}: {problem}", part.start) }
            }
            (error, _) => error,
        })
    }

    /// Checks that a mask has the size of its image, so that both are cropped alike.
    fn check_size(&mut self, row: u64, image: usize) -> Result<(), DataError> {
        let mut path = mem::take(&mut self.path);
        let mut size = |column: usize| {
            self.source.file(row, column, &mut path);
            let file = File::open(&path).map_err(|error| DataError::io("open", &path, error))?;
            let length = file.metadata().map_err(|error| DataError::io("examine", &path, error))?.len();
            let Probe { width, height, .. } = image::probe(&file, &path, 0..length)?;
            Ok::<_, DataError>((width, height))
        };
        let sizes = size(image).and_then(|image| Ok((image, size(self.column)?)));
        self.path = path;
        match sizes? {
            (image, mask) if image == mask => Ok(()),
            ((width, height), mask) => {
                let problem =
                    format!("it is {} × {} pixels, but its image is {width} × {height}; a mask has the size of its image", mask.0, mask.1);
                Err(DataError::image(&self.path, problem))
            }
        }
    }

    fn make_from(&mut self, row: u64, part: Option<Range<u64>>, out: &mut [u8]) -> Result<bool, DataError> {
        let start = Instant::now();
        let path = mem::take(&mut self.path);
        let file = File::open(&path).map_err(|error| DataError::io("open", &path, error));
        let made = file.and_then(|file| {
            let length = || file.metadata().map(|metadata| metadata.len());
            let part = part.map_or_else(|| length().map(|length| 0..length), Ok);
            let part = part.map_err(|error| DataError::io("examine", &path, error))?;
            let started = self.start_with(&path, Encoded::File(&file, part), start)?;
            self.finish(row, &path, started, out)
        });
        self.path = path;
        made
    }

    /// Acquires memory for an encoded image in a buffer and copies the bytes. Errors name `path`.
    pub fn start(&self, path: &Path, encoded: &[u8]) -> Result<StartedImage, DataError> {
        self.start_with(path, Encoded::Held(encoded), Instant::now())
    }

    fn start_with(&self, path: &Path, from: Encoded<'_>, start: Instant) -> Result<StartedImage, DataError> {
        let probe = match &from {
            Encoded::File(file, part) => image::probe(*file, path, part.clone())?,
            Encoded::Held(bytes) => image::probe(bytes, path, 0..bytes.len() as u64)?,
        };
        let transposed = self.recipe.transposes(&probe);
        let parts = KernelParts::new(&probe, &self.recipe);
        let needed = item_bytes(parts.total(), probe.work);
        if needed > u128::from(self.cap.here.min(self.cap.stated).0) {
            let (path, Probe { width, height, .. }, ItemCap { stated, here }) = (path.to_path_buf(), probe, self.cap);
            let needed = Bytes(u64::try_from(needed).unwrap_or(u64::MAX));
            return Err(match needed > stated {
                true => DataError::TooLarge { path, width, height, needed, cap: stated },
                false => DataError::NoRoom { path, width, height, needed, cap: here },
            });
        }
        let mut start = Meter::lap(&self.meter.read, start);
        let (mut memory, waited) = self.pool.acquire(parts.total() as usize, probe.work);
        if waited {
            start = Meter::lap(&self.meter.pool, start);
        }
        let encoded = &mut memory.region[..parts.file as usize];
        match from {
            Encoded::File(file, part) => {
                file.read_exact_at(encoded, part.start).map_err(|error| DataError::io("read", path, error))?;
            }
            Encoded::Held(bytes) => encoded.copy_from_slice(bytes),
        }
        Meter::lap(&self.meter.read, start);
        Ok(StartedImage { probe, transposed, parts, memory, needed })
    }

    /// Decodes an image that has its memory. Returns whether it exceeds the memory for files alone.
    pub fn finish(&mut self, row: u64, path: &Path, started: StartedImage, out: &mut [u8]) -> Result<bool, DataError> {
        let StartedImage { probe, transposed, parts, mut memory, needed } = started;
        let (channels, start) = (self.recipe.decode.channels, Instant::now());
        let (encoded, rest) = memory.region.split_at_mut(parts.file as usize);
        let (pixels, rest) = rest.split_at_mut(parts.pixels as usize);
        let (turned, rest) = rest.split_at_mut(parts.turned as usize);
        let (weights, lines) = rest.split_at_mut(parts.weights as usize);
        image::decode(&probe, path, encoded, channels, &mut self.baseline, lines, pixels)?;
        let (mut height, mut width) = (probe.height, probe.width);
        let mut image = &pixels[..height * width * channels.count()];
        if transposed {
            let turned = &mut turned[..image.len()];
            image::transpose(image, height, width, channels.count(), turned);
            (height, width, image) = (width, height, turned);
        }
        let start = Meter::lap(&self.meter.decode, start);

        let orientation = if self.recipe.decode.orient { probe.orientation } else { Orientation::default() };
        let Orientation { mut mirrored, mut upside_down, .. } = orientation;
        for &(left_right, seed) in &self.recipe.flips {
            let flips = ops::flips(seed, self.epoch, row);
            mirrored ^= left_right && flips;
            upside_down ^= !left_right && flips;
        }
        let from = From { height, width, line: width, mirrored, upside_down };
        match self.recipe.end {
            ItemStep::Resize { .. } | ItemStep::ResizedCrop { .. } => {
                let (from, first) = match self.recipe.end {
                    ItemStep::ResizedCrop { part, .. } => within(from, part.window(height, width, self.epoch, row)),
                    _ => (from, 0),
                };
                let image = &image[first * channels.count()..];
                let weights = weights.as_chunks_mut().0;
                let resampler = self.resampler.as_mut().expect("made with the kernel");
                resampler.aim(from);
                match (self.recipe.output.dtype, self.recipe.factor) {
                    // Add 0.5, because a cast truncates.
                    (DType::U8, _) => resampler.run(image, weights, out, |value| (value + 0.5) as u8),
                    (_, Some(factor)) => resampler.run(image, weights, out.as_chunks_mut().0, |value| (value * factor).to_ne_bytes()),
                    (_, None) => resampler.run(image, weights, out.as_chunks_mut().0, f32::to_ne_bytes),
                }
            }
            ItemStep::Crop { height: crop_height, width: crop_width, seed } => {
                if crop_height > height || crop_width > width {
                    return Err(DataError::TooSmall { path: path.to_path_buf(), width, height, crop_width, crop_height });
                }
                let corner = ops::corner((height, width), (crop_height, crop_width), seed, self.epoch, row);
                crop(image, from, corner, crop_width, channels.count(), out);
            }
            ItemStep::Fit(fit) => {
                if !fit.cuts && (height > fit.height || width > fit.width) {
                    let (path, frame_height, frame_width) = (path.to_path_buf(), fit.height, fit.width);
                    return Err(DataError::TooBig { path, width, height, frame_width, frame_height });
                }
                let count = channels.count();
                let image = &mut (if transposed { turned } else { pixels })[..height * width * count];
                if mirrored {
                    // Lines are copied whole, so they are mirrored first.
                    image.chunks_exact_mut(width * count).for_each(|line| ops::reverse(line, count));
                }
                let line = |y: usize| &image[(if upside_down { height - 1 - y } else { y }) * width * count..][..width * count];
                fit.run((height, width), count, &[fit.value as u8], line, out);
            }
            ItemStep::Decode(_) | ItemStep::Flip { .. } => unreachable!("these do not end a recipe"),
        }
        Meter::lap(&self.meter.resize, start);
        Ok(self.pool.is_giant(needed))
    }
}

/// The memory of one item, in u128 because a header may contain any numbers.
struct KernelParts {
    file: u128,
    pixels: u128,
    turned: u128,
    /// Weight tables of a resize.
    weights: u128,
    /// Line buffers of the decoder.
    lines: u128,
}

impl KernelParts {
    fn new(probe: &Probe, recipe: &DecodeRecipe) -> KernelParts {
        let (channels, transposed, end) = (recipe.decode.channels.count(), recipe.transposes(probe), recipe.end);
        let size = if transposed { (probe.width, probe.height) } else { (probe.height, probe.width) };
        let words = resize(end).map_or(0, |(height, width, method)| Resampler::words(method, size, (height, width), channels));
        let area = probe.width as u128 * probe.height as u128;
        KernelParts {
            file: u128::from(probe.file.0),
            pixels: area * probe.channels.max(channels) as u128,
            turned: if transposed { area * channels as u128 } else { 0 },
            weights: 4 * words,
            lines: probe.lines as u128,
        }
    }

    fn total(&self) -> u128 {
        self.file + self.pixels + self.turned + self.weights + self.lines
    }
}

/// Bytes for reading and decoding an image.
pub(super) fn needed_bytes(probe: &Probe, recipe: &DecodeRecipe) -> u128 {
    item_bytes(KernelParts::new(probe, recipe).total(), probe.work)
}

/// A rectangle of the oriented image: its layout, and the offset of its first stored pixel.
fn within(from: From, window: ops::CropRect) -> (From, usize) {
    let left = if from.mirrored { from.width - window.left - window.width } else { window.left };
    let top = if from.upside_down { from.height - window.top - window.height } else { window.top };
    (From { height: window.height, width: window.width, ..from }, top * from.line + left)
}

/// Copies the part of the oriented image that starts at `corner`.
fn crop(image: &[u8], from: From, corner: (usize, usize), width: usize, channels: usize, out: &mut [u8]) {
    for (y, out) in out.chunks_exact_mut(width * channels).enumerate() {
        let y = corner.0 + y;
        let line = &image[(if from.upside_down { from.height - 1 - y } else { y }) * from.width * channels..][..from.width * channels];
        if from.mirrored {
            for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
                pixel.copy_from_slice(&line[(from.width - 1 - corner.1 - x) * channels..][..channels]);
            }
        } else {
            out.copy_from_slice(&line[corner.1 * channels..][..width * channels]);
        }
    }
}
