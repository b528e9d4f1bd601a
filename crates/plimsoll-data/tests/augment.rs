//! Operations that change images at random, and images brought to size in other ways: on files, on rows, at any number
//! of threads.

mod collect;
mod image_files;

use image_files::{Folder, epochs, picture, png, twelve};
use plimsoll_core::{Bytes, DType};
use plimsoll_data::ops::{
    CropArea, Decode, Method, Op, brightness, center_crop, contrast, crop_or_pad, decode, flip_left_right, flip_up_down, grey, hue,
    one_hot, pad, random_brightness, random_contrast, random_crop, random_hue, random_resized_crop, random_rot90, random_rotate,
    random_saturation, resize, rot90, rotate, saturation, scale, standardize,
};
use plimsoll_data::{Column, Dataset, Mix, Parallelism, Rows, Shuffle, Tensor};
use std::sync::Arc;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// One operation on one image.
fn apply(op: &dyn Op, column: &Column, image: &[u8], row: u64) -> Vec<u8> {
    let mut kernel = op.kernel(column);
    if op.in_place(column) {
        let mut bytes = image.to_vec();
        kernel.run_in_place(Rows::From(row), &mut bytes).unwrap();
        return bytes;
    }
    let mut bytes = vec![0; op.output(column).unwrap().row_bytes().get()];
    kernel.run(Rows::From(row), image, &mut bytes).unwrap();
    bytes
}

fn only(pixels: &[u8], height: usize, width: usize) -> Folder {
    let folder = Folder::new();
    folder.write("a/a.png", &png(pixels, width, height, png::ColorType::Rgb));
    folder
}

#[test]
fn what_is_done_to_a_file_is_what_is_done_to_its_pixels() {
    let (height, width) = (41, 29);
    let pixels = picture(width, height, 3);
    let folder = only(&pixels, height, width);
    let column = Column::new("x", DType::U8, [height, width, 3]);
    let methods = Method::ALL.map(|method| resize(12, 17, method));
    let parts = Method::ALL.map(|method| random_resized_crop(12, 17, CropArea { method, seed: 9, ..CropArea::default() }));
    let frames = [pad(50, 40, 7.0), crop_or_pad(30, 40, 0.0), crop_or_pad(60, 10, 255.0)];
    for op in methods.into_iter().chain(parts).chain(frames) {
        let expected = apply(&*op, &column, &pixels, 0);
        let actual = epochs(&folder.data().map("x", [decode(), op.clone()]).batch(1), None, 1).unwrap();
        assert_eq!(actual[0], expected, "{}", op.describe());
        // Mirrored on the way, by a seed that says so: as if the pixels had been.
        for flip in [flip_left_right, flip_up_down] {
            let seed = (0..).find(|&seed| apply(&*flip(seed), &column, &pixels, 0) != pixels).unwrap();
            let expected = apply(&*op, &column, &apply(&*flip(seed), &column, &pixels, 0), 0);
            let actual = epochs(&folder.data().map("x", [decode(), flip(seed), op.clone()]).batch(1), None, 1).unwrap();
            match expected.len() == op.output(&column).unwrap().elements() {
                true => assert_eq!(actual[0], expected, "{}", op.describe()),
                // Added up from the other side, so not to the last bit.
                false => {
                    let off = floats(&actual[0]).iter().zip(floats(&expected)).fold(0f32, |off, (a, b)| off.max((a - b).abs()));
                    assert!(off < 1e-2, "{}: {off}", op.describe());
                }
            }
        }
    }
}

#[test]
fn lots_depend_on_seed_epoch_and_row_only() {
    let folder = twelve();
    let build = |seed: u64| {
        let ops = [
            decode(),
            random_resized_crop(24, 24, CropArea { seed, method: Method::BilinearAntialias, ..CropArea::default() }),
            random_brightness(20.0, seed),
            random_contrast(0.5, 1.5, seed),
            random_saturation(0.5, 1.5, seed),
            random_hue(0.2, seed),
            random_rotate(15.0, 0.0, seed),
            random_rot90(seed),
            scale(1.0 / 255.0),
        ];
        folder.data().shuffle(Shuffle::seed(1)).map("x", ops).map("y", [one_hot(2)]).batch(5)
    };
    let alone = epochs(&build(3).parallelism(Parallelism::Threads(1)), None, 2).unwrap();
    let half = alone[0].len() / 2;
    assert_ne!(alone[0][..half], alone[0][half..], "epochs differ");
    assert_ne!(alone, epochs(&build(4), None, 2).unwrap(), "seeds differ");
    let mixed = epochs(&build(3).mix(Mix::up(0.4).seed(3)).parallelism(Parallelism::Threads(1)), None, 2).unwrap();
    assert_ne!(alone, mixed);
    for threads in [2, 5] {
        let data = build(3).parallelism(Parallelism::Threads(threads));
        let least = data.plan(None).unwrap().minimum();
        for limit in [None, Some(least), Some(least + Bytes::mib(9))] {
            assert_eq!(epochs(&data, limit, 2).unwrap(), alone, "{threads} threads in {limit:?}");
        }
        assert_eq!(epochs(&data.mix(Mix::up(0.4).seed(3)), None, 2).unwrap(), mixed, "mixed on {threads} threads");
    }
}

#[test]
fn lots_stay_in_their_range_and_differ_between_operations() {
    let column = Column::new("x", DType::F32, [1, 2, 1]);
    let image: Vec<u8> = [0.25f32, 0.75].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let (mut bright, mut strong) = (Vec::new(), Vec::new());
    for row in 0..500 {
        bright.push(floats(&apply(&*random_brightness(0.1, 7), &column, &image, row))[0] - 0.25);
        strong.push((0.5 - floats(&apply(&*random_contrast(0.5, 1.5, 7), &column, &image, row))[0]) / 0.25);
    }
    assert!(bright.iter().all(|by| by.abs() <= 0.1) && strong.iter().all(|by| (0.5..=1.5).contains(by)));
    let spread = |lots: &[f32]| lots.iter().fold((f32::MAX, f32::MIN), |(least, most), &lot| (least.min(lot), most.max(lot)));
    assert!(spread(&bright).0 < -0.09 && spread(&bright).1 > 0.09 && spread(&strong).0 < 0.52 && spread(&strong).1 > 1.48);
    // With the same seed, bright images are not the strong ones.
    let together: f32 = bright.iter().zip(&strong).map(|(bright, strong)| bright / 0.1 * (strong - 1.0) / 0.5).sum();
    assert!((together / 500.0).abs() < 0.06, "{together}");
}

/// Images with the number of their row in every pixel, and as many classes as rows.
fn numbered(rows: usize) -> Dataset {
    let x = (0..rows).flat_map(|row| vec![row as f32; 6 * 5 * 2]).collect::<Vec<_>>();
    let x = Tensor::f32([rows, 6, 5, 2], x).unwrap();
    let y = Tensor::i32([rows], (0..rows as i32).collect::<Vec<_>>()).unwrap();
    Dataset::from_tensor_slices([("x", x), ("y", y)]).unwrap().map("y", [one_hot(rows)])
}

#[test]
fn mixed_labels_say_what_is_in_the_pictures() {
    let rows = 13;
    for mix in [Mix::up(0.3), Mix::cut(1.0)] {
        let data = numbered(rows).batch(5).mix(mix.clone().seed(2));
        let columns = epochs(&data, None, 3).unwrap();
        let (images, labels) = (floats(&columns[0]), floats(&columns[1]));
        let mut moved = 0;
        for (image, shares) in images.chunks_exact(60).zip(labels.chunks_exact(rows)) {
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            let promised: f32 = shares.iter().enumerate().map(|(class, share)| class as f32 * share).sum();
            let mean = image.iter().sum::<f32>() / 60.0;
            assert!((promised - mean).abs() < 1e-4, "{mix}: {promised} promised, {mean} there");
            moved += usize::from(shares.iter().all(|share| *share < 0.999));
        }
        assert!(moved > 6, "{mix}: {moved} of 39 rows were mixed");
        // The third row of a batch of five, and of three, stays as it is.
        assert_eq!(&images[2 * 60..3 * 60], &[2.0; 60]);
        let halves = columns[0].len() / 3;
        assert_ne!(columns[0][..halves], columns[0][halves..2 * halves], "{mix}: epochs differ");
    }
}

#[test]
fn mixing_goes_on_from_where_it_was() {
    use plimsoll_core::Ledger;
    use plimsoll_data::{Feed, Options};
    let data = numbered(13).shuffle(Shuffle::seed(5)).batch(4).mix(Mix::up(0.3));
    let (plan, ledger) = (data.plan(None).unwrap(), Ledger::new("host", None));
    let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
    feed.next().unwrap();
    let state = feed.state();
    let second = feed.next().unwrap().unwrap().column(0).to_vec();
    let mut resumed = Feed::start(&data, &plan, &ledger, Options::resume(&state, &data).unwrap()).unwrap();
    assert_eq!(resumed.next().unwrap().unwrap().column(0), second);
}

#[test]
fn refusals_say_what_to_do() {
    let image = |dtype, shape: [usize; 3]| Column::new("x", dtype, shape);
    let refused = |op: Arc<dyn Op>, column: Column| op.output(&column).unwrap_err().to_string();
    let square = || image(DType::U8, [8, 8, 1]);
    insta::assert_snapshot!(refused(hue(0.1), square()), @"hue(0.1) cannot be applied to column `x`: its images have 1 channels, and colours take three: red, green, blue");
    insta::assert_snapshot!(refused(grey(), square()), @"grey() cannot be applied to column `x`: its images have 1 channels, and colours take three: red, green, blue");
    insta::assert_snapshot!(refused(contrast(-1.0), square()), @"contrast(-1) cannot be applied to column `x`: a factor below 0 would turn it round; use 0 or more");
    insta::assert_snapshot!(refused(saturation(f32::NAN), image(DType::F32, [8, 8, 3])), @"saturation(NaN) cannot be applied to column `x`: it takes finite numbers, the smaller one first");
    insta::assert_snapshot!(refused(random_rot90(1), image(DType::U8, [8, 9, 1])), @"random_rot90(seed 1) cannot be applied to column `x`: its images are 8 × 9, and only square ones stay alike; crop or resize before");
    insta::assert_snapshot!(refused(pad(4, 20, 0.0), square()), @"pad(4, 20, 0) cannot be applied to column `x`: its images are 8 × 8, larger than the frame; use crop_or_pad or resize before");
    insta::assert_snapshot!(refused(pad(20, 20, 0.5), square()), @"pad(20, 20, 0.5) cannot be applied to column `x`: its pixels are integers from 0 to 255, and 0.5 is none");
    insta::assert_snapshot!(refused(rotate(f32::INFINITY, 0.0), square()), @"rotate(inf°, fill 0) cannot be applied to column `x`: the angle and what fills the corners must be finite numbers");
    insta::assert_snapshot!(refused(brightness(0.1), Column::new("y", DType::I32, [])), @"brightness(0.1) cannot be applied to column `y`: its rows have shape [], and images are [height, width, channels]");
    insta::assert_snapshot!(refused(standardize(), image(DType::I32, [8, 8, 1])), @"standardize() cannot be applied to column `x`: its elements are i32, and pixels are u8 or f32");
    insta::assert_snapshot!(refused(rot90(1), Column::images("x", 3)), @"rot90(1) cannot be applied to column `x`: its rows have shape [3], and images are [height, width, channels]");
    insta::assert_snapshot!(refused(random_resized_crop(8, 8, CropArea { share: (0.0, 1.0), ..CropArea::default() }), square()), @"random_resized_crop(8, 8, bilinear, share 0 to 1, ratio 0.75 to 1.3333334, seed 0) cannot be applied to column `x`: the share of the area goes from above 0 to 1, the smaller number first");
    insta::assert_snapshot!(refused(random_resized_crop(8, 8, CropArea { ratio: (2.0, 1.0), ..CropArea::default() }), square()), @"random_resized_crop(8, 8, bilinear, share 0.08 to 1, ratio 2 to 1, seed 0) cannot be applied to column `x`: proportions are above 0, the smaller number first");

    let folder = twelve();
    let small = folder.data().map("x", [decode(), pad(24, 24, 0.0)]).batch(4);
    insta::assert_snapshot!(folder.text(epochs(&small, None, 1).unwrap_err()), @"FOLDER/data/cat/00.png is 20 × 50 pixels, too large for a frame of 24 × 24; use crop_or_pad, resize, or a larger frame");
    let plan = |data: Dataset| folder.text(data.plan(None).unwrap_err());
    insta::assert_snapshot!(plan(numbered(4).batch(2).mix(Mix::up(0.0))), @"mixup(0, seed 0) cannot be done: alpha has to be a number above 0");
    insta::assert_snapshot!(plan(numbered(4).batch(2).mix(Mix::up(1.0)).mix(Mix::cut(1.0))), @"rows of a batch are mixed once; leave one of mixup and cutmix out");
    insta::assert_snapshot!(plan(numbered(4).batch(2).mix(Mix::cut(1.0).columns("x", "x"))), @"cutmix(1, seed 0) cannot be done: column x: f32[6, 5, 2] holds no share per class; map it with one_hot before");
    insta::assert_snapshot!(plan(numbered(4).batch(2).mix(Mix::up(1.0).columns("y", "y"))), @"mixup(1, seed 0) cannot be done: column y: f32[4] cannot be both what is mixed and its shares; name two columns");
    insta::assert_snapshot!(plan(numbered(4).batch(2).mix(Mix::cut(1.0).columns("z", "y"))), @"cutmix(1, seed 0) cannot be done: there is no column `z`; the columns are x: f32[6, 5, 2], y: f32[4]");
    let files = || folder.data().map("x", [Decode::new().op(), pad(80, 80, 0.0)]).map("y", [one_hot(2)]);
    insta::assert_snapshot!(plan(files().batch(4).mix(Mix::up(1.0))), @"mixup(1, seed 0) cannot be done: column x: u8[80, 80, 3] is mixed as f32; map it with cast or scale before");
    insta::assert_snapshot!(plan(files().mix(Mix::cut(1.0)).filter(|_| true).batch(4)), @"cutmix(1, seed 0) works on batches, and a stage that takes single rows stands after it; put it last");
}

/// Whatever moves pixels moves those of the mask alike, and class indices stay class indices.
#[test]
fn images_and_masks_are_augmented_alike() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["images", "masks"] {
        std::fs::create_dir(folder.path().join(kind)).unwrap();
        for n in 0..6u8 {
            // Large squares of one class each; the value of a class in the image is 60 times its index.
            let factor = if kind == "images" { 60 } else { 1 };
            let pixels: Vec<u8> = (0..32 * 32).map(|i| ((i / 32 / 16 + i % 32 / 16 * 2) as u8 + n) % 4 * factor).collect();
            let file = std::fs::File::create(folder.path().join(kind).join(format!("{n}.png"))).unwrap();
            let mut encoder = png::Encoder::new(file, 32, 32);
            encoder.set_color(png::ColorType::Grayscale);
            encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        }
    }
    let (images, masks) = (folder.path().join("images"), folder.path().join("masks"));
    let open = || Dataset::image_masks(&images, &masks, &["a".to_string(), "b".to_string()]).unwrap();
    let grey_pixels = || Decode::new().grey().op();
    let area = CropArea { share: (0.3, 0.9), method: Method::Nearest, seed: 5, ..CropArea::default() };
    let chains: [Vec<Arc<dyn Op>>; 4] = [
        vec![grey_pixels(), flip_left_right(7), flip_up_down(8), resize(24, 24, Method::Nearest)],
        vec![grey_pixels(), random_crop(20, 20, 9), random_rot90(3)],
        vec![grey_pixels(), random_resized_crop(24, 24, area)],
        vec![grey_pixels(), crop_or_pad(40, 36, 0.0)],
    ];
    for ops in chains {
        let name = ops.iter().map(|op| op.describe()).collect::<Vec<_>>().join(", ");
        let data = open().map_image_and_mask(ops).batch(4);
        assert_eq!(data.class_names(), ["a", "b"]);
        for epoch in 0..3 {
            let [x, y] = [0, 1].map(|column| collect::column(&data, column, epoch, None).unwrap());
            for (image, mask) in x.iter().zip(&y) {
                let image: Vec<f32> = match image.len() == mask.len() {
                    true => image.iter().map(|pixel| f32::from(*pixel)).collect(),
                    false => image.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
                };
                assert!(image.iter().zip(mask).all(|(pixel, class)| *pixel == 60.0 * f32::from(*class)), "{name}");
            }
        }
    }
    // An interpolated rotation agrees away from edges; masks have no classes in between.
    let rotated = open().map_image_and_mask([grey_pixels(), center_crop(32, 32), random_rotate(40.0, 0.0, 2)]).batch(6);
    let [x, y] = [0, 1].map(|column| collect::column(&rotated, column, 1, None).unwrap().concat());
    let agree = x.iter().zip(&y).filter(|(pixel, class)| pixel.abs_diff(60 * **class) < 8).count();
    assert!(y.iter().all(|class| *class < 4) && agree * 10 > x.len() * 8, "{agree} of {}", x.len());
    // A mask of another size cannot be moved alike.
    std::fs::write(masks.join("0.png"), std::fs::read(folder.path().join("images/0.png")).unwrap()).unwrap();
    let mut small = png::Encoder::new(std::fs::File::create(masks.join("1.png")).unwrap(), 16, 32);
    small.set_color(png::ColorType::Grayscale);
    small.write_header().unwrap().write_image_data(&[0; 512]).unwrap();
    let data = open().map_image_and_mask([grey_pixels(), center_crop(8, 8)]).batch(2);
    let error = collect::column(&data, 1, 0, None).unwrap_err().to_string();
    assert!(error.contains("1.png") && error.contains("it is 16 × 32 pixels, but its image is 32 × 32"), "{error}");
    let cached = open().map_image_and_mask([grey_pixels(), center_crop(8, 8)]).cache(plimsoll_data::Cache::Memory).batch(2);
    assert!(cached.output_schema().unwrap_err().to_string().contains("are not cached"));
}
