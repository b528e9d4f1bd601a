//! Decodes a whole file to pixels, in memory of the caller.

use super::bmp::Bmp;
use super::header_reader::header;
use super::jpeg::{Decoder, Undecoded};
use super::mask::mask;
use super::probe::{Format, Probe};
use super::tiff::Tiff;
use crate::DataError;
use png::{ColorType, Transformations};
use std::io::Cursor;
use std::num::NonZeroU64;
use std::path::Path;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The channels of decoded pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    Grey,
    Colour,
    /// The class index of a mask: a palette index, or a grey value as it is stored.
    Index,
}

impl Channels {
    pub fn count(self) -> usize {
        match self {
            Channels::Grey | Channels::Index => 1,
            Channels::Colour => 3,
        }
    }
}

/// Decodes `file` to the start of `pixels`, which has space for the channels in the [probe](Probe); `lines` has the
/// number of bytes in it.
pub(crate) fn decode(
    probe: &Probe,
    path: &Path,
    file: &[u8],
    channels: Channels,
    baseline: &mut Decoder,
    lines: &mut [u8],
    pixels: &mut [u8],
) -> Result<(), DataError> {
    if channels == Channels::Index {
        return mask(probe, path, file, lines, pixels);
    }
    match probe.format {
        Format::Jpeg => {
            ends(probe, path, file)?;
            match baseline.run(file, (probe.width, probe.height), channels, lines, pixels) {
                Ok(()) => Ok(()),
                Err(Undecoded::HandOver) => jpeg(probe, path, file, channels, pixels),
                Err(Undecoded::Broken(at)) => {
                    Err(DataError::image(path, format!("its data is damaged: it ends early or makes no sense before byte {at}")))
                }
            }
        }
        Format::Png => png(probe, path, file, channels, pixels),
        Format::WebP => webp(probe, path, file, channels, pixels),
        Format::Gif => gif(probe, path, file, channels, pixels),
        Format::Bmp => {
            let bmp = header(&file, path, Bmp::read)?;
            bmp.colours(file, pixels).map_err(|problem| DataError::image(path, problem))?;
            convert(pixels, probe.width * probe.height, 3, false, channels);
            Ok(())
        }
        Format::Tiff => {
            let tiff = header(&file, path, Tiff::read)?;
            tiff.pixels(path, file, lines, pixels)?;
            convert(pixels, probe.width * probe.height, if tiff.is_grey() { 1 } else { 3 }, tiff.is_grey(), channels);
            Ok(())
        }
    }
}

/// Checks for the end marker, because decoders fill missing data with grey. Compressed data cannot contain the
/// marker, so its absence is certain.
fn ends(probe: &Probe, path: &Path, file: &[u8]) -> Result<(), DataError> {
    match file[probe.data as usize..].windows(2).rev().any(|pair| pair == [0xFF, 0xD9]) {
        true => Ok(()),
        false => Err(DataError::image(path, "it is truncated: the end of its data is missing")),
    }
}

/// All kinds of JPEG.
fn jpeg(probe: &Probe, path: &Path, file: &[u8], channels: Channels, pixels: &mut [u8]) -> Result<(), DataError> {
    // The decoder cannot convert CMYK to grey, so decode to RGB and convert afterwards.
    let delivered = if probe.inks { Channels::Colour } else { channels };
    // A truncated image is an error, not an image that is grey from some line on.
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(match delivered {
            Channels::Colour => ColorSpace::RGB,
            Channels::Grey | Channels::Index => ColorSpace::Luma,
        });
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let problem = |error: &dyn std::fmt::Debug| DataError::image(path, format!("its data is broken ({error:?})"));
    decoder.decode_headers().map_err(|error| problem(&error))?;
    let wanted = probe.width * probe.height * delivered.count();
    if decoder.dimensions() != Some((probe.width, probe.height)) || decoder.output_buffer_size() != Some(wanted) {
        return Err(DataError::image(path, "it changed while it was read, or its header says two things"));
    }
    decoder.decode_into(&mut pixels[..wanted]).map_err(|error| problem(&error))?;
    if delivered != channels {
        convert(pixels, probe.width * probe.height, delivered.count(), false, channels);
    }
    Ok(())
}

fn png(probe: &Probe, path: &Path, file: &[u8], channels: Channels, pixels: &mut [u8]) -> Result<(), DataError> {
    let problem = |error: png::DecodingError| DataError::image(path, format!("its data is broken ({error})"));
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes: probe.work.get() });
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(problem)?;
    let size = (reader.info().width as usize, reader.info().height as usize);
    let Some(bytes) = reader.output_buffer_size().filter(|&bytes| bytes <= pixels.len() && size == (probe.width, probe.height)) else {
        return Err(DataError::image(path, "it changed while it was read"));
    };
    let output = reader.next_frame(&mut pixels[..bytes]).map_err(problem)?;
    let have = output.color_type.samples();
    let grey = matches!(output.color_type, ColorType::Grayscale | ColorType::GrayscaleAlpha);
    convert(pixels, probe.width * probe.height, have, grey, channels);
    Ok(())
}

/// WebP; the first frame of an animation.
fn webp(probe: &Probe, path: &Path, file: &[u8], channels: Channels, pixels: &mut [u8]) -> Result<(), DataError> {
    let problem = |error: image_webp::DecodingError| DataError::image(path, format!("its data is broken ({error})"));
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(file)).map_err(problem)?;
    decoder.set_memory_limit(probe.work.get());
    let (width, height) = decoder.dimensions();
    let bytes = decoder.output_buffer_size().filter(|&bytes| bytes <= pixels.len());
    let Some(bytes) = bytes.filter(|_| (width as usize, height as usize) == (probe.width, probe.height)) else {
        return Err(DataError::image(path, "it changed while it was read, or its header says two things"));
    };
    let have = if decoder.has_alpha() { 4 } else { 3 };
    decoder.read_image(&mut pixels[..bytes]).map_err(problem)?;
    convert(pixels, probe.width * probe.height, have, false, channels);
    Ok(())
}

/// GIF; the first frame of an animation, on black where it is transparent or does not cover the canvas.
fn gif(probe: &Probe, path: &Path, file: &[u8], channels: Channels, pixels: &mut [u8]) -> Result<(), DataError> {
    let problem = |error: gif::DecodingError| DataError::image(path, format!("its data is broken ({error})"));
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    options.check_frame_consistency(true);
    options.set_memory_limit(gif::MemoryLimit::Bytes(NonZeroU64::MIN.saturating_add(probe.work.0)));
    let mut decoder = options.read_info(Cursor::new(file)).map_err(problem)?;
    let area = probe.width * probe.height;
    let Some(frame) = decoder.next_frame_info().map_err(problem)? else {
        return Err(DataError::image(path, "it has no image"));
    };
    let [left, top, width, height] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    let transparent = frame.transparent.map(usize::from);
    // RGB goes to the front of the buffer, and the palette indices behind it.
    let (colours, numbers) = pixels[..4 * area].split_at_mut(3 * area);
    if (left + width > probe.width) || (top + height > probe.height) || decoder.buffer_size() != width * height {
        return Err(DataError::image(path, "it changed while it was read, or its header says two things"));
    }
    let numbers = &mut numbers[..width * height];
    decoder.read_into_buffer(numbers).map_err(problem)?;
    let Some(palette) = decoder.palette().ok() else {
        return Err(DataError::image(path, "it has no colours"));
    };
    colours.fill(0);
    for (y, line) in numbers.chunks_exact(width.max(1)).enumerate() {
        for (x, &number) in line.iter().enumerate().filter(|(_, number)| transparent != Some(usize::from(**number))) {
            let Some(colour) = palette.get(3 * usize::from(number)..).and_then(|rest| rest.first_chunk::<3>()) else {
                return Err(DataError::image(path, format!("its pixel at {x}, {y} has a colour that it does not list")));
            };
            colours[((top + y) * probe.width + left + x) * 3..][..3].copy_from_slice(colour);
        }
    }
    convert(pixels, area, 3, false, channels);
    Ok(())
}

/// Converts pixels of `have` channels to the requested channels, in place; alpha is dropped.
fn convert(pixels: &mut [u8], count: usize, have: usize, grey: bool, channels: Channels) {
    match (grey, channels) {
        (true, Channels::Grey | Channels::Index) => {
            for index in 0..count {
                pixels[index] = pixels[index * have];
            }
        }
        // Each pixel grows to three bytes, so convert from last to first.
        (true, Channels::Colour) => {
            for index in (0..count).rev() {
                let value = pixels[index * have];
                pixels[index * 3..][..3].fill(value);
            }
        }
        (false, Channels::Colour) => {
            for index in 0..if have == 3 { 0 } else { count } {
                pixels.copy_within(index * have..index * have + 3, index * 3);
            }
        }
        (false, Channels::Grey | Channels::Index) => {
            for index in 0..count {
                let [red, green, blue] = [0, 1, 2].map(|channel| f32::from(pixels[index * have + channel]));
                pixels[index] = (0.299 * red + 0.587 * green + 0.114 * blue).round() as u8;
            }
        }
    }
}
