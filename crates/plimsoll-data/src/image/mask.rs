//! Decodes segmentation masks: one class index per pixel, as it is stored.

use super::bmp::Bmp;
use super::header_reader::header;
use super::probe::{Format, Probe};
use super::tiff::Tiff;
use crate::DataError;
use png::{BitDepth, ColorType, Transformations};
use std::io::Cursor;
use std::num::NonZeroU64;
use std::path::Path;

const COLOURS: &str = "its pixels are colours, and a mask has one class index per pixel; save it as a grey or palette PNG";

/// Decodes the class indices of a file to the start of `pixels`: palette indices, or grey values as they are.
pub(super) fn mask(probe: &Probe, path: &Path, file: &[u8], lines: &mut [u8], pixels: &mut [u8]) -> Result<(), DataError> {
    let area = probe.width * probe.height;
    let refuse = |problem: String| DataError::image(path, problem);
    match probe.format {
        Format::Png => png(probe, path, file, pixels),
        Format::Gif => gif(probe, path, file, pixels),
        Format::Bmp => {
            let bmp = header(&file, path, Bmp::read)?;
            match bmp.indices(file, &mut pixels[..area]) {
                Ok(()) => Ok(()),
                // Grey values in three equal channels.
                Err(_) => {
                    bmp.colours(file, pixels).map_err(refuse)?;
                    equal_channels(path, pixels, area, 3)
                }
            }
        }
        Format::Tiff => {
            let tiff = header(&file, path, Tiff::read)?;
            tiff.indices(path, file, lines, &mut pixels[..area])
        }
        Format::Jpeg => Err(refuse("it is a JPEG, whose compression changes class indices; save masks as PNG".into())),
        Format::WebP => Err(refuse("it is a WebP, which has no class indices; save masks as PNG".into())),
    }
}

fn png(probe: &Probe, path: &Path, file: &[u8], pixels: &mut [u8]) -> Result<(), DataError> {
    let problem = |error: png::DecodingError| DataError::image(path, format!("its data is broken ({error})"));
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes: probe.work.get() });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(problem)?;
    let size = (reader.info().width as usize, reader.info().height as usize);
    if reader.info().bit_depth == BitDepth::Sixteen {
        return Err(DataError::image(path, "it has 16 bits per pixel, and a mask has class indices of 8; save it with 8 bits"));
    }
    let Some(bytes) = reader.output_buffer_size().filter(|&bytes| bytes <= pixels.len() && size == (probe.width, probe.height)) else {
        return Err(DataError::image(path, "it changed while it was read"));
    };
    let output = reader.next_frame(&mut pixels[..bytes]).map_err(problem)?;
    match output.color_type {
        ColorType::Grayscale | ColorType::Indexed => unpack(pixels, probe, output.bit_depth as usize, output.line_size),
        colours => equal_channels(path, pixels, probe.width * probe.height, colours.samples())?,
    }
    Ok(())
}

/// Unpacks samples of one to eight bits, lines of whole bytes, to a byte each. From last to first, because they grow.
fn unpack(pixels: &mut [u8], probe: &Probe, bits: usize, line: usize) {
    if bits == 8 {
        return;
    }
    let per_byte = 8 / bits;
    for y in (0..probe.height).rev() {
        for x in (0..probe.width).rev() {
            let byte = pixels[y * line + x / per_byte];
            pixels[y * probe.width + x] = byte >> ((per_byte - 1 - x % per_byte) * bits) & ((1 << bits) - 1);
        }
    }
}

/// Keeps one of several colour channels, if they are equal; alpha is dropped.
fn equal_channels(path: &Path, pixels: &mut [u8], area: usize, channels: usize) -> Result<(), DataError> {
    for at in 0..area {
        let pixel = &pixels[at * channels..][..channels];
        if channels >= 3 && (pixel[0] != pixel[1] || pixel[0] != pixel[2]) {
            return Err(DataError::image(path, COLOURS));
        }
        pixels[at] = pixel[0];
    }
    Ok(())
}

/// The palette indices of the first frame; 0 where it does not cover the canvas.
fn gif(probe: &Probe, path: &Path, file: &[u8], pixels: &mut [u8]) -> Result<(), DataError> {
    let problem = |error: gif::DecodingError| DataError::image(path, format!("its data is broken ({error})"));
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    options.check_frame_consistency(true);
    options.set_memory_limit(gif::MemoryLimit::Bytes(NonZeroU64::MIN.saturating_add(probe.work.0)));
    let mut decoder = options.read_info(Cursor::new(file)).map_err(problem)?;
    let Some(frame) = decoder.next_frame_info().map_err(problem)? else {
        return Err(DataError::image(path, "it has no image"));
    };
    let [left, top, width, height] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    if (left + width > probe.width) || (top + height > probe.height) || decoder.buffer_size() != width * height {
        return Err(DataError::image(path, "it changed while it was read, or its header says two things"));
    }
    let (canvas, numbers) = pixels.split_at_mut(probe.width * probe.height);
    let numbers = &mut numbers[..width * height];
    decoder.read_into_buffer(numbers).map_err(problem)?;
    canvas.fill(0);
    for (y, line) in numbers.chunks_exact(width.max(1)).enumerate() {
        canvas[(top + y) * probe.width + left..][..width].copy_from_slice(line);
    }
    Ok(())
}
