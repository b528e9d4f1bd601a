//! Predicted segmentation masks as PNG files.

use crate::error::{Error, Result};
use crate::output_kind::top;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Writes the most likely class of every pixel as a PNG with a palette: the value of a pixel is its class, and the
/// first classes have colours that are easy to tell apart. `scores` has `classes` numbers per pixel.
pub fn write_mask(path: &Path, scores: &[f32], height: usize, width: usize, classes: usize) -> Result<()> {
    let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let failed = |failed: png::EncodingError| error(std::io::Error::other(failed));
    if classes > 256 {
        return Err(Error::Config(format!("a PNG mask has up to 256 classes, and the model has {classes}; write a .npy file instead")));
    }
    let pixels: Vec<u8> = scores.chunks_exact(classes).map(|scores| top(scores, 1).first().map_or(0, |(class, _)| *class as u8)).collect();
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path).map_err(error)?), width as u32, height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette((0..classes).flat_map(colour).collect::<Vec<u8>>());
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)
}

/// The colour of a class: black, then hues that are far apart.
fn colour(class: usize) -> [u8; 3] {
    if class == 0 {
        return [0, 0, 0];
    }
    // Steps of the golden ratio around the circle of hues.
    let hue = (class as f64 * 0.618_033_988_749_895).fract() * 6.0;
    let ramp = |offset: f64| {
        let distance = ((hue + offset) % 6.0 - 3.0).abs() - 1.0;
        (distance.clamp(0.0, 1.0) * 205.0) as u8 + 50
    };
    [ramp(0.0), ramp(4.0), ramp(2.0)]
}
