//! Tests against the general decoder: the same pixels for every file that is not handed over.

use super::*;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// An image with edges, gradients and noise, so that blocks of all lengths occur.
fn sample_image(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let mut noise = 0x2545_F491u32;
    let mut pixels = Vec::new();
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        for channel in 0..channels {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            pixels.push(match (x / 24 + y / 24) % 4 {
                0 => 200 - 50 * channel as u8,
                1 => (x * 3 + y * (channel + 1)) as u8,
                2 => (noise >> 24) as u8,
                _ => {
                    if (x / 3 + y / 5) % 2 == 0 {
                        250
                    } else {
                        3 + 60 * channel as u8
                    }
                }
            });
        }
    }
    pixels
}

fn encode(width: usize, height: usize, color: ColorType, quality: u8, set: impl FnOnce(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, quality);
    set(&mut encoder);
    let channels = if color == ColorType::Luma { 1 } else { 3 };
    encoder.encode(&sample_image(width, height, channels), width as u16, height as u16, color).unwrap();
    file
}

/// The result of the general decoder.
fn oracle(file: &[u8], channels: Channels) -> Option<((usize, usize), Vec<u8>)> {
    let colours = if channels == Channels::Grey { ColorSpace::Luma } else { ColorSpace::RGB };
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), DecoderOptions::default().jpeg_set_out_colorspace(colours));
    let pixels = decoder.decode().ok()?;
    Some((decoder.dimensions()?, pixels))
}

fn own(decoder: &mut Decoder, file: &[u8], size: (usize, usize), channels: Channels) -> Result<Vec<u8>, Undecoded> {
    // The result must not depend on the previous content of the buffer.
    let mut lines = vec![0xA5; Decoder::lines(size.0)];
    let mut pixels = vec![0x5A; size.0 * size.1 * channels.count()];
    decoder.run(file, size, channels, &mut lines, &mut pixels)?;
    Ok(pixels)
}

#[test]
fn pixels_are_the_oracles_for_all_sizes_samplings_and_levels() {
    let mut decoders: Vec<Decoder> = Level::all().into_iter().map(Decoder::at).collect();
    let samplings = [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2];
    let sizes = [(1, 1), (7, 9), (8, 8), (16, 16), (17, 15), (31, 33), (32, 40), (33, 17), (64, 2), (3, 70), (113, 97), (200, 51)];
    let mut case = 0usize;
    for (sampling, (width, height)) in samplings.iter().flat_map(|sampling| sizes.map(|size| (sampling, size))) {
        for quality in [15, 55, 92, 100] {
            case += 1;
            let restart = [0, 0, 1, 3, 40][case % 5];
            let color = if case.is_multiple_of(6) { ColorType::Luma } else { ColorType::Rgb };
            let file = encode(width, height, color, quality, |encoder| {
                encoder.set_sampling_factor(*sampling);
                // With optimized tables, the encoder writes one scan per component and no restart markers.
                encoder.set_optimized_huffman_tables(color == ColorType::Luma && restart == 0);
                if restart > 0 {
                    encoder.set_restart_interval(restart);
                }
            });
            for channels in [Channels::Colour, Channels::Grey] {
                let (size, expected) = oracle(&file, channels).expect("a good file");
                for decoder in &mut decoders {
                    let name = format!("{width} × {height}, {sampling:?}, quality {quality}, {color:?}, {channels:?}, {:?}", decoder.level);
                    match own(decoder, &file, size, channels) {
                        Ok(pixels) => assert!(pixels == expected, "{name}"),
                        // The general decoder converts such images to grey in a different way.
                        Err(undecoded) => assert!(
                            undecoded == Undecoded::HandOver && channels == Channels::Grey && *sampling == SamplingFactor::F_1_2,
                            "{name}: handed over"
                        ),
                    }
                }
            }
        }
    }
}

#[test]
fn other_kinds_are_handed_over() {
    let mut decoder = Decoder::new();
    let mut over = |file: &[u8]| own(&mut decoder, file, (40, 30), Channels::Colour) == Err(Undecoded::HandOver);
    assert!(!over(&encode(40, 30, ColorType::Rgb, 80, |_| ())));
    assert!(over(&encode(40, 30, ColorType::Rgb, 80, |encoder| encoder.set_progressive(true))));
    assert!(over(&encode(40, 30, ColorType::Rgb, 80, |encoder| encoder.set_sampling_factor(SamplingFactor::F_4_1))));
    assert!(over(&encode(41, 30, ColorType::Rgb, 80, |_| ())), "another size than was probed");
    assert!(over(b"") && over(b"\xFF\xD8\xFF"));
}

/// A corrupted file is handed over, is reported as broken, or has the same pixels.
#[test]
fn damaged_files_are_handed_over_or_refused_or_decoded_alike() {
    let mut decoder = Decoder::new();
    let mut lots = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |limit: usize| {
        lots ^= lots << 13;
        lots ^= lots >> 7;
        lots ^= lots << 17;
        (lots % limit as u64) as usize
    };
    let (mut decoded, mut over, mut broken) = (0, 0, 0);
    for sampling in [SamplingFactor::F_1_1, SamplingFactor::F_2_2] {
        for restart in [0, 2] {
            let good = encode(50, 37, ColorType::Rgb, 70, |encoder| {
                encoder.set_sampling_factor(sampling);
                if restart > 0 {
                    encoder.set_restart_interval(restart);
                }
            });
            for _ in 0..1500 {
                let mut file = good.clone();
                for _ in 0..=below(3) {
                    let at = below(file.len());
                    match below(5) {
                        0 => file[at] ^= 1 << below(8),
                        1 => file[at] = [0, 0xFF, 0xD9, 0xD0][below(4)],
                        2 => file.truncate(at.max(4)),
                        3 => file.insert(at, below(256) as u8),
                        _ => drop(file.remove(at)),
                    }
                }
                match own(&mut decoder, &file, (50, 37), Channels::Colour) {
                    Err(Undecoded::HandOver) => over += 1,
                    Err(Undecoded::Broken(at)) => {
                        broken += 1;
                        assert!(at <= file.len());
                    }
                    Ok(pixels) => {
                        decoded += 1;
                        assert!(oracle(&file, Channels::Colour) == Some(((50, 37), pixels)), "{file:02X?}");
                    }
                }
            }
        }
    }
    assert!(decoded > 300 && over > 300 && broken > 300, "{decoded} decoded, {over} handed over, {broken} broken");
}

#[test]
fn data_that_ends_early_is_named_by_its_place() {
    let mut file = encode(64, 64, ColorType::Rgb, 80, |_| ());
    let middle = file.len() * 3 / 4;
    file[middle] = 0xFF;
    file[middle + 1] = 0xD9;
    match own(&mut Decoder::new(), &file, (64, 64), Channels::Colour) {
        Err(Undecoded::Broken(at)) => assert!((file.len() / 2..=middle).contains(&at), "{at} of {middle}"),
        other => panic!("{other:?}"),
    }
}
