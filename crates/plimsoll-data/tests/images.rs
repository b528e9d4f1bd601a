//! Folders of images: what comes out of them, at any parallelism, under any limit, and what they are refused for.

mod image_files;

use image_files::{Folder, epochs, picture, png, twelve};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use plimsoll_core::{Bytes, DType};
use plimsoll_data::ops::{
    Decode, Method, cast_f32, center_crop, decode, flip_left_right, flip_up_down, one_hot, random_crop, resize, scale,
};
use plimsoll_data::{Column, DataError, Dataset, ImageReader, Parallelism, Rows, Shuffle};
use std::fs;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn jpeg(pixels: &[u8], width: usize, height: usize, color: ColorType, change: impl Fn(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 95);
    change(&mut encoder);
    encoder.encode(pixels, width as u16, height as u16, color).unwrap();
    bytes
}

/// An image as `decode` gives it, cut whole.
fn decoded(folder: &Folder, how: Decode, height: usize, width: usize) -> Vec<u8> {
    let data = folder.data().map("x", [how.op(), center_crop(height, width)]).batch(8);
    epochs(&data, None, 1).unwrap().swap_remove(0)
}

/// One image in a folder.
fn only(name: &str, contents: &[u8]) -> Folder {
    let folder = Folder::new();
    folder.write(&format!("a/{name}"), contents);
    folder
}

#[test]
fn classes_are_folders_and_rows_are_sorted() {
    let folder = twelve();
    folder.write("cat/notes.txt", b"not an image");
    folder.write("cat/.hidden.png", b"nor this");
    // Numbered as in another folder; a class without images here keeps its number.
    let classes = ["bird", "cat", "dog"].map(String::from);
    let data = Dataset::image_folder_with(folder.path().join("data"), &classes).unwrap();
    let data = data.map("x", [decode(), resize(4, 4, Method::Nearest)]).batch(5);
    assert_eq!(data.class_names(), classes);
    assert_eq!(data.output_schema().unwrap().columns()[1].classes.as_deref(), Some(&classes[..]));
    assert_eq!((data.len(), data.output_schema().unwrap().to_string().as_str()), (12, "x: f32[4, 4, 3], y: i32[]"));
    let columns = epochs(&data, None, 1).unwrap();
    let labels: Vec<i32> = columns[1].as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
    assert_eq!(labels, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]);
    // The third channel is the number of the image.
    let numbers: Vec<f32> = floats(&columns[0]).chunks_exact(48).map(|image| image[2] / 20.0).collect();
    assert_eq!(numbers, (0..12).map(|number| number as f32).collect::<Vec<_>>());
}

#[test]
fn a_reader_gives_the_pipelines_pixels_of_single_files() {
    let (width, height) = (37, 22);
    let pixels = picture(width, height, 3);
    let mut reader = ImageReader::new();
    let mut read = Vec::new();
    for (name, contents) in [
        ("a.jpg", jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.set_sampling_factor(SamplingFactor::F_2_2))),
        ("b.jpg", jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.set_progressive(true))),
        ("c.png", png(&pixels, width, height, png::ColorType::Rgb)),
    ] {
        let folder = only(name, &contents);
        let path = folder.path().join("data/a").join(name);
        assert_eq!(reader.read(&path, &mut read).unwrap(), (height, width), "{name}");
        assert!(read == decoded(&folder, Decode::new(), height, width), "{name}");
    }
    assert!(reader.read("no such file", &mut read).unwrap_err().to_string().contains("no such file"));
}

#[test]
fn a_resized_picture_is_what_resizing_its_pixels_gives() {
    let (width, height) = (37, 29);
    let pixels = picture(width, height, 3);
    let folder = only("a.png", &png(&pixels, width, height, png::ColorType::Rgb));
    for (size, method) in [((16, 20), Method::Bilinear), ((64, 50), Method::Bilinear), ((16, 20), Method::Nearest)] {
        let resize = resize(size.0, size.1, method);
        let column = Column::new("x", DType::U8, [height, width, 3]);
        let mut expected = vec![0; resize.output(&column).unwrap().row_bytes().get()];
        resize.kernel(&column).run(Rows::From(0), &pixels, &mut expected).unwrap();
        let plain = folder.data().map("x", [decode(), resize.clone()]).batch(1);
        assert_eq!(epochs(&plain, None, 1).unwrap()[0], expected);
        // Multiplied on the way out or afterwards: the same numbers.
        let fused = folder.data().map("x", [decode(), resize.clone(), scale(1.0 / 255.0)]).batch(1);
        let apart = folder.data().map("x", [decode(), resize, cast_f32(), scale(1.0 / 255.0)]).batch(1);
        assert_eq!(epochs(&fused, None, 1).unwrap(), epochs(&apart, None, 1).unwrap());
    }
}

#[test]
fn threads_and_limits_change_nothing() {
    let folder = twelve();
    let build = || {
        let ops = [decode(), flip_left_right(1), resize(24, 20, Method::Bilinear), flip_up_down(2), random_crop(16, 16, 3), scale(0.5)];
        folder.data().shuffle(Shuffle::seed(7)).map("x", ops).map("y", [one_hot(2)]).batch(5)
    };
    let alone = epochs(&build().parallelism(Parallelism::Threads(1)), None, 3).unwrap();
    let per_epoch = alone[0].len() / 3;
    assert_ne!(alone[0][..per_epoch], alone[0][per_epoch..2 * per_epoch], "epochs differ");
    for threads in [2, 5] {
        let data = build().parallelism(Parallelism::Threads(threads));
        let least = data.plan(None).unwrap().minimum();
        for limit in [None, Some(least), Some(least + Bytes::mib(9))] {
            assert_eq!(epochs(&data, limit, 3).unwrap(), alone, "{threads} threads in {limit:?}");
        }
    }
}

#[test]
fn a_flip_before_the_resize_is_a_flip_of_the_pixels() {
    let (width, height) = (31, 22);
    let pixels = picture(width, height, 1);
    let mirrored: Vec<u8> =
        pixels.chunks_exact(width * 3).flat_map(|line| line.chunks_exact(3).rev().flatten().copied().collect::<Vec<_>>()).collect();
    let resized = |pixels: &[u8], ops: Vec<std::sync::Arc<dyn plimsoll_data::ops::Op>>| {
        let folder = only("a.png", &png(pixels, width, height, png::ColorType::Rgb));
        epochs(&folder.data().map("x", ops).batch(1), None, 1).unwrap().swap_remove(0)
    };
    let last = || resize(9, 13, Method::Bilinear);
    let (plain, flipped) = (resized(&pixels, vec![decode(), last()]), resized(&mirrored, vec![decode(), last()]));
    let mut seen = [false; 2];
    for seed in 0..16 {
        let by_lot = resized(&pixels, vec![decode(), flip_left_right(seed), last()]);
        seen[usize::from(by_lot == flipped)] = true;
        assert!(by_lot == flipped || by_lot == plain);
    }
    assert_eq!(seen, [true; 2], "some are mirrored and some are not");
}

/// The largest difference of two images in any channel.
fn apart(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

/// An image without sharp edges, which JPEG keeps well.
fn soft(width: usize, height: usize) -> Vec<u8> {
    (0..height).flat_map(|y| (0..width).flat_map(move |x| [(60 + x * 2) as u8, (40 + y * 2) as u8, (200 - x - y) as u8])).collect()
}

#[test]
fn every_kind_of_jpeg_is_decoded() {
    let (width, height) = (45, 38);
    let pixels = soft(width, height);
    let check = |name: &str, contents: &[u8], expected: &[u8]| {
        let actual = decoded(&only("a.jpg", contents), Decode::new(), height, width);
        assert!(apart(&actual, expected) < 12, "{name}: {}", apart(&actual, expected));
    };
    check("baseline", &jpeg(&pixels, width, height, ColorType::Rgb, |_| ()), &pixels);
    check("progressive", &jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.set_progressive(true)), &pixels);
    let halved = jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.set_sampling_factor(SamplingFactor::F_2_2));
    check("halved colours", &halved, &pixels);
    let restarts = jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.set_restart_interval(2));
    check("restart marks", &restarts, &pixels);
    let grey: Vec<u8> = (0..width * height).map(|index| (50 + index % width * 2) as u8).collect();
    let tripled: Vec<u8> = grey.iter().flat_map(|&value| [value; 3]).collect();
    let contents = jpeg(&grey, width, height, ColorType::Luma, |_| ());
    check("grey", &contents, &tripled);
    assert!(apart(&decoded(&only("a.jpg", &contents), Decode::new().grey(), height, width), &grey) < 12);
    // Without ink only the complement is left.
    let inks: Vec<u8> = pixels.as_chunks::<3>().0.iter().flat_map(|[r, g, b]| [255 - r, 255 - g, 255 - b, 0]).collect();
    let contents = jpeg(&inks, width, height, ColorType::Cmyk, |_| ());
    check("four inks", &contents, &pixels);
    let weigh = |[r, g, b]: &[u8; 3]| (0.299 * f32::from(*r) + 0.587 * f32::from(*g) + 0.114 * f32::from(*b)) as u8;
    let greyed: Vec<u8> = pixels.as_chunks::<3>().0.iter().map(weigh).collect();
    assert!(apart(&decoded(&only("a.jpg", &contents), Decode::new().grey(), height, width), &greyed) < 12);
}

#[test]
fn every_kind_of_png_is_decoded() {
    let (width, height) = (9, 7);
    let pixels = picture(width, height, 5);
    let rgba: Vec<u8> = pixels.as_chunks::<3>().0.iter().flat_map(|[r, g, b]| [*r, *g, *b, 99]).collect();
    let grey: Vec<u8> = (0..width * height).map(|index| (index * 4) as u8).collect();
    let grey_alpha: Vec<u8> = grey.iter().flat_map(|&value| [value, 77]).collect();
    let tripled: Vec<u8> = grey.iter().flat_map(|&value| [value; 3]).collect();
    let all = [
        (png::ColorType::Rgb, &pixels, &pixels),
        (png::ColorType::Rgba, &rgba, &pixels),
        (png::ColorType::Grayscale, &grey, &tripled),
        (png::ColorType::GrayscaleAlpha, &grey_alpha, &tripled),
    ];
    for (color, stored, expected) in all {
        // The name lies; the contents count.
        let folder = only("a.jpg", &png(stored, width, height, color));
        assert_eq!(decoded(&folder, Decode::new(), height, width), *expected, "{color:?}");
    }
    let folder = only("a.png", &png(&grey_alpha, width, height, png::ColorType::GrayscaleAlpha));
    assert_eq!(decoded(&folder, Decode::new().grey(), height, width), grey);
}

#[test]
fn a_picture_is_turned_as_the_camera_was_held_if_asked() {
    let (width, height) = (40, 24);
    let pixels = soft(width, height);
    let exif = [&b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"[..], &[0; 4]].concat();
    let contents = jpeg(&pixels, width, height, ColorType::Rgb, |encoder| encoder.add_app_segment(1, exif.clone()).unwrap());
    let folder = only("a.jpg", &contents);
    assert!(apart(&decoded(&folder, Decode::new(), height, width), &pixels) < 12);
    // Number 6: a quarter turn clockwise, so columns read from the bottom become lines.
    let turned: Vec<u8> = (0..width)
        .flat_map(|x| (0..height).rev().flat_map(move |y| (0..3).map(move |c| (y * width + x) * 3 + c)))
        .map(|at| pixels[at])
        .collect();
    assert!(apart(&decoded(&folder, Decode::new().upright(), width, height), &turned) < 12);
}

#[test]
fn the_plan_states_each_stage() {
    let ops = [decode(), resize(32, 32, Method::Bilinear), scale(1.0 / 255.0)];
    let folder = twelve();
    let data = folder.data().shuffle(Shuffle::seed(7)).map("x", ops).parallelism(Parallelism::Threads(2)).batch(4);
    insta::assert_snapshot!(data.plan(None).unwrap(), @"
    2 worker stacks           1.00 MiB
    names                        388 B
    shuffle                       16 B
    decode (each ≤ 157 KiB)    157 KiB
    map x                      115 KiB
    staging ring               432 KiB
    total                     1.69 MiB  (3 slots of 3 × 4 rows; minimum: 697 KiB)
    ");
    insta::assert_snapshot!(data.plan(Some(Bytes::kib(800))).unwrap(), @"
    producer stack              512 KiB
    names                         388 B
    shuffle                         8 B
    decode (each ≤ 78.7 KiB)   78.7 KiB
    map x                      57.5 KiB
    staging ring               48.1 KiB
    total                       697 KiB  (1 slots of 1 × 4 rows; minimum: 697 KiB)
    ");
    insta::assert_snapshot!(data.plan(Some(Bytes::kib(600))).unwrap_err(), @"the input pipeline cannot run in 600 KiB: it needs at least 697 KiB (producer stack 512 KiB, names 388 B, shuffle 8 B, decode (each ≤ 78.7 KiB) 78.7 KiB, map x 57.5 KiB, staging ring 48.1 KiB); raise the limit or lower the batch size");
    // What one may take is no reason to reserve more than the images take.
    let capped = data.clone().max_item(Bytes::mib(1));
    assert_eq!(capped.plan(None).unwrap().total(), data.plan(None).unwrap().total());
}

#[test]
fn bad_files_are_named() {
    let whole = jpeg(&soft(60, 50), 60, 50, ColorType::Rgb, |_| ());
    let whole_png = png(&picture(60, 50, 1), 60, 50, png::ColorType::Rgb);
    let error = |name: &str, contents: &[u8]| {
        let folder = twelve();
        folder.write(&format!("cat/{name}"), contents);
        let data = folder.data().map("x", [decode(), resize(8, 8, Method::Bilinear)]).parallelism(Parallelism::Threads(3)).batch(4);
        folder.text(epochs(&data, None, 1).unwrap_err())
    };
    insta::assert_snapshot!(error("empty.jpg", b""), @"FOLDER/data/cat/empty.jpg cannot be decoded: it is empty; replace the file or take it out of the folder");
    insta::assert_snapshot!(error("text.jpg", b"this is no image at all"), @"FOLDER/data/cat/text.jpg cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder");
    insta::assert_snapshot!(error("short.png", &whole_png[..20]), @"FOLDER/data/cat/short.png cannot be decoded: it ends in the middle of its header; replace the file or take it out of the folder");
    insta::assert_snapshot!(error("header.jpg", &whole[..30]), @"FOLDER/data/cat/header.jpg cannot be decoded: it ends in the middle of its header; replace the file or take it out of the folder");
    insta::assert_snapshot!(error("cut.jpg", &whole[..whole.len() * 2 / 3]), @"FOLDER/data/cat/cut.jpg cannot be decoded: it is truncated: the end of its data is missing; replace the file or take it out of the folder");
    insta::assert_snapshot!(error("cut.png", &whole_png[..whole_png.len() / 2]), @"FOLDER/data/cat/cut.png cannot be decoded: its data is broken (unexpected end of file); replace the file or take it out of the folder");
    let mut damaged = whole_png.clone();
    damaged[60] ^= 0xFF;
    insta::assert_snapshot!(error("damaged.png", &damaged), @"FOLDER/data/cat/damaged.png cannot be decoded: its data is broken (Corrupt deflate stream. InvalidCodeLengthRepeat); replace the file or take it out of the folder");
    let mut none = whole_png.clone();
    none[16..24].fill(0);
    insta::assert_snapshot!(error("none.png", &none), @"FOLDER/data/cat/none.png cannot be decoded: its header says it is 0 × 0 pixels; replace the file or take it out of the folder");

    // Headers that promise far more than there is.
    let mut bomb = whole_png.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]);
    insta::assert_snapshot!(error("bomb.png", &bomb), @"FOLDER/data/cat/bomb.png is 60000 × 60000 pixels and takes 10.1 GiB to read and decode, but a single item may take 128 MiB; raise max_item, or make the image smaller");
    let mut bomb = whole.clone();
    let frame = bomb.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xEA, 0x60, 0xEA, 0x60]);
    insta::assert_snapshot!(error("bomb.jpg", &bomb), @"FOLDER/data/cat/bomb.jpg is 60000 × 60000 pixels and takes 10.1 GiB to read and decode, but a single item may take 128 MiB; raise max_item, or make the image smaller");
}

#[test]
fn a_file_that_is_gone_is_named() {
    let folder = twelve();
    let data = folder.data().map("x", [decode(), center_crop(10, 10)]).batch(4);
    std::fs::remove_file(folder.path().join("data/dog/07.png")).unwrap();
    insta::assert_snapshot!(folder.text(epochs(&data, None, 1).unwrap_err()), @"cannot open FOLDER/data/dog/07.png: No such file or directory (os error 2)");
}

#[test]
fn the_first_bad_file_in_order_is_the_one_that_is_told() {
    let folder = twelve();
    for name in ["cat/02.png", "cat/04.png", "dog/05.png", "dog/06.png"] {
        folder.write(name, b"broken");
    }
    for _ in 0..20 {
        let data = folder.data().map("x", [decode(), center_crop(4, 4)]).parallelism(Parallelism::Threads(4)).batch(12);
        let error = epochs(&data, None, 1).unwrap_err();
        assert!(matches!(&error, DataError::Image { path, .. } if path.ends_with("cat/02.png")), "{error}");
    }
}

#[test]
fn stages_that_make_no_sense_say_what_to_do() {
    let folder = twelve();
    let plan = |data: Dataset| folder.text(data.batch(4).plan(None).unwrap_err());
    let data = || folder.data();
    insta::assert_snapshot!(plan(data()), @"column `x` has rows that differ in size and cannot be batched; map it with decode and resize");
    insta::assert_snapshot!(plan(data().map("x", [decode()])), @"column `x` has rows that differ in size and cannot be batched; map it with resize or a crop");
    insta::assert_snapshot!(plan(data().map("x", [scale(1.0)])), @"scale(1) cannot be applied to column `x`: its rows are files; put decode before it");
    insta::assert_snapshot!(plan(data().map("x", [resize(4, 4, Method::Bilinear)])), @"resize(4, 4, bilinear) cannot be applied to column `x`: its rows are files; put decode before it");
    insta::assert_snapshot!(plan(data().map("x", [decode(), scale(1.0)])), @"scale(1) cannot be applied to column `x`: its images differ in size; put resize or a crop before it");
    insta::assert_snapshot!(plan(data().map("x", [decode(), center_crop(4, 4), decode()])), @"decode() cannot be applied to column `x`: its rows are not files; leave it out");
    insta::assert_snapshot!(plan(data().map("x", [decode(), center_crop(4, 4), center_crop(5, 4)])), @"center_crop(5, 4) cannot be applied to column `x`: its images are 4 × 4; crop less or resize before");
    insta::assert_snapshot!(plan(data().map("x", [decode(), center_crop(4, 0)])), @"center_crop(4, 0) cannot be applied to column `x`: nothing would be left; ask for at least one pixel");
    insta::assert_snapshot!(plan(data().map("x", [decode(), center_crop(4, 4)]).parallelism(Parallelism::Threads(0))), @"parallelism(0) makes no rows; ask for at least one thread");
    let large = data().map("x", [decode(), center_crop(100, 100)]).batch(4);
    insta::assert_snapshot!(folder.text(epochs(&large, None, 1).unwrap_err()), @"FOLDER/data/cat/00.png is 20 × 50 pixels, too small to cut 100 × 100 out of it; resize before cropping, or crop less");
    std::fs::create_dir(folder.path().join("bare")).unwrap();
    insta::assert_snapshot!(folder.text(Dataset::image_folder(folder.path().join("bare")).unwrap_err()), @"FOLDER/bare is no folder of classes: it has no folders in it; make one for each class and put its images there, or name a table of labels as `labels`");
    std::fs::create_dir(folder.path().join("bare/class")).unwrap();
    insta::assert_snapshot!(folder.text(Dataset::image_folder(folder.path().join("bare")).unwrap_err()), @"FOLDER/bare is no folder of classes: its class FOLDER/bare/class holds no .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff files; put some there or remove it");
}

/// Height, width and pixels that another decoder made of a file of `reference`, by `make_pictures.py`.
fn known() -> Vec<(String, [usize; 2], Vec<f32>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    let text = fs::read_to_string(folder.join("pictures.txt")).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_string();
        let mut numbers = words.map(|word| word.parse::<f32>().unwrap());
        let size = [numbers.next().unwrap() as usize, numbers.next().unwrap() as usize];
        (name, size, numbers.collect())
    };
    text.lines().map(line).collect()
}

#[test]
fn webp_and_gif_are_what_others_make_of_them() {
    let reference = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    for (name, [height, width], expected) in known() {
        let folder = Folder::new();
        folder.write(&format!("class/{name}"), &fs::read(reference.join(&name)).unwrap());
        for threads in [1, 2] {
            let data =
                folder.data().map("x", [decode(), resize(height, width, Method::Nearest)]).parallelism(Parallelism::Threads(threads));
            let rows = epochs(&data.batch(1), None, 1).unwrap();
            let pixels: Vec<f32> = rows[0].as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
            assert_eq!(pixels.len(), expected.len(), "{name}");
            // Colours between pixels of a lossy file may be rounded otherwise.
            let most = if name == "lossy.webp" { 2.0 } else { 0.0 };
            let apart = pixels.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart <= most, "{name} differs by {apart}");
        }
        // Cut anywhere, it is refused by name or what is there is shown; nothing panics.
        let whole = fs::read(reference.join(&name)).unwrap();
        for length in (0..whole.len()).step_by(7) {
            folder.write(&format!("class/{name}"), &whole[..length]);
            let data = folder.data().map("x", [decode(), resize(4, 4, Method::Area)]).batch(1);
            if let Err(error) = epochs(&data, None, 1) {
                assert!(error.to_string().contains(&name) && !error.to_string().contains("panicked"), "{error}");
            }
        }
    }
}

#[test]
fn a_bomb_of_any_kind_is_refused_by_its_header() {
    let (wide, folder) = (60_000u16, Folder::new());
    let gif = [b"GIF89a", &wide.to_le_bytes()[..], &wide.to_le_bytes(), &[0; 30]].concat();
    let webp = [b"RIFF\x40\0\0\0WEBPVP8X\x0A\0\0\0\0\0\0\0", &[0x5F, 0xEA, 0, 0x5F, 0xEA, 0][..], &[0; 40]].concat();
    for (name, bytes) in [("class/a.gif", gif), ("class/a.webp", webp)] {
        let path = folder.write(name, &bytes);
        let data = folder.data().map("x", [decode(), resize(4, 4, Method::Area)]).batch(1);
        let told = folder.text(epochs(&data, None, 1).unwrap_err());
        assert!(told.contains("is 60000 × 60000 pixels and takes") && told.contains("raise max_item"), "{told}");
        fs::remove_file(path).unwrap();
    }
}
