//! Images on any way: decoded, cut, kept, left out, joined and mixed, by any number of threads, under any limit and
//! from any position they are the bits of the same pipeline in its plainest form.

mod case_count;
mod image_files;
mod sample_files;

use case_count::cases;
use image_files::{Folder, picture, png};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{
    CropArea, Decode, Method, Op, cast_f32, center_crop, crop_or_pad, flip_left_right, flip_up_down, one_hot, random_brightness,
    random_crop, random_resized_crop, random_rot90, resize, scale,
};
use plimsoll_data::source::Feature;
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, FeedState, Mix, Options, Parallelism, Prefetch, Schema, Shuffle};
use proptest::prelude::*;
use sample_files::{Value, example, gzip, record};
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use tempfile::TempDir;

/// Images of two classes, all of which can be read.
static SOUND: LazyLock<Folder> = LazyLock::new(|| folder(0));

/// The same, and some that are damaged.
static DAMAGED: LazyLock<Folder> = LazyLock::new(|| folder(5));

/// Both in packed records, the first few of them in a file of their own.
static PACKED: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = TempDir::new().unwrap();
    for (name, damaged) in [("sound", 0), ("damaged", 5)] {
        let records: Vec<Vec<u8>> = files(damaged)
            .map(|(number, _, file)| {
                let class = i64::from(number >= 6);
                let mut framed = record(&example(&[("image", Value::Bytes(&file)), ("label", Value::Ints(&[class]))]));
                if damaged > 0 && number == 4 {
                    // Not what its checksum says.
                    *framed.last_mut().unwrap() ^= 1;
                }
                framed
            })
            .collect();
        for (part, records) in [&records[..5], &records[5..]].into_iter().enumerate() {
            fs::write(folder.path().join(format!("{name}-{part}.gz")), gzip(&records.concat())).unwrap();
        }
    }
    folder
});

fn packed(name: &str) -> Dataset {
    let features = [("x", Feature::image("image")), ("y", Feature::i32("label", []))];
    Dataset::tfrecord(PACKED.path().join(format!("{name}-*.gz")), &features).unwrap()
}

fn folder(damaged: usize) -> Folder {
    let folder = Folder::new();
    for (number, name, file) in files(damaged) {
        folder.write(&format!("{}/{number:02}.{name}", if number < 6 { "cat" } else { "dog" }), &file);
    }
    folder
}

/// Thirteen images of all kinds; every so many one is cut off or not one at all.
fn files(damaged: usize) -> impl Iterator<Item = (usize, &'static str, Vec<u8>)> {
    (0..13usize).map(move |number| {
        let (width, height) = (14 + 5 * (number * 7 % 13), 12 + 3 * (number * 5 % 13));
        let pixels = picture(width, height, number as u8);
        let jpeg = |progressive: bool, factor: SamplingFactor| {
            let mut bytes = Vec::new();
            let mut encoder = Encoder::new(&mut bytes, 90);
            encoder.set_progressive(progressive);
            encoder.set_sampling_factor(factor);
            encoder.encode(&pixels, width as u16, height as u16, ColorType::Rgb).unwrap();
            bytes
        };
        let (name, mut file) = match number % 4 {
            0 => ("png", png(&pixels, width, height, png::ColorType::Rgb)),
            1 => ("jpg", jpeg(false, SamplingFactor::F_2_2)),
            2 => ("jpg", jpeg(true, SamplingFactor::F_1_1)),
            _ => ("png", png(&pixels[..width * height], width, height, png::ColorType::Grayscale)),
        };
        if damaged > 0 && number % damaged == 2 {
            file.truncate(file.len() / 3);
        }
        if damaged > 0 && number == 9 {
            file = b"no image at all".to_vec();
        }
        (number, name, file)
    })
}

/// A column beside the images.
fn numbers(rows: u64) -> Dataset {
    let schema = Schema::new(vec![Column::new("z", DType::I32, [])]).unwrap();
    Dataset::from_fn(schema, rows, |n, row| row.i32(0, &[n as i32]))
}

/// A pipeline as it was drawn.
#[derive(Clone, Debug)]
struct Drawn {
    source: u8,
    /// What is done to the order of files.
    orders: Vec<(u8, u8)>,
    grey: bool,
    flips: Vec<u8>,
    end: (u8, u8),
    /// What follows on images of one size.
    maps: Vec<(u8, u8)>,
    cache: Option<u8>,
    max_item: Option<u64>,
    threads: usize,
    /// Stages on rows that come one after the other.
    stages: Vec<(u8, u8)>,
    batch: usize,
    again: Option<usize>,
    drops: bool,
    mix: Option<u8>,
    ahead: Option<usize>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let pairs = |most: usize| prop::collection::vec((any::<u8>(), any::<u8>()), 0..most);
    let order = (any::<u8>(), pairs(3), any::<bool>());
    let way = (prop::collection::vec(any::<u8>(), 0..2), any::<(u8, u8)>(), pairs(3));
    let held = (prop::option::of(any::<u8>()), prop::option::weighted(0.2, 300_000u64..800_000), 1usize..6);
    let batches =
        (1usize..7, prop::option::of(1usize..7), any::<bool>(), prop::option::weighted(0.3, any::<u8>()), prop::option::of(0usize..4));
    (order, way, held, pairs(4), batches).prop_map(|((source, orders, grey), (flips, end, maps), held, stages, batches)| {
        let ((cache, max_item, threads), (batch, again, drops, mix, ahead)) = (held, batches);
        // What differs from epoch to epoch is not kept.
        let flips = if cache.is_some() { Vec::new() } else { flips };
        Drawn { source, orders, grey, flips, end, maps, cache, max_item, threads, stages, batch, again, drops, mix, ahead }
    })
}

/// Whether it is built as drawn or as plainly as can be, and where its files are.
#[derive(Clone, Copy)]
enum Form<'f> {
    AsDrawn(&'f Path),
    Plain(&'f Path),
}

impl Drawn {
    fn is_stream(&self) -> bool {
        self.is_packed() || !self.stages.is_empty()
    }

    fn is_packed(&self) -> bool {
        self.source % 10 > 6
    }

    fn item_ops(&self) -> Vec<Arc<dyn Op>> {
        let mut ops = vec![if self.grey { Decode::new().grey().op() } else { Decode::new().op() }];
        ops.extend(self.flips.iter().map(|seed| if seed % 2 == 0 { flip_left_right(7) } else { flip_up_down(u64::from(*seed)) }));
        let (kind, by) = (self.end.0 % if self.cache.is_some() { 4 } else { 6 }, self.end.1);
        ops.push(match kind {
            0 | 1 => resize(16, 12, Method::ALL[usize::from(by) % 6]),
            // Some images are too small for it.
            2 => center_crop(12 + usize::from(by % 3), 10),
            3 => crop_or_pad(16, 12, 9.0),
            4 => random_crop(12, 10, u64::from(by)),
            _ => random_resized_crop(11, 12, CropArea { seed: u64::from(by), ..CropArea::default() }),
        });
        ops
    }

    fn map_ops(&self) -> Vec<Arc<dyn Op>> {
        let op = |(kind, by): &(u8, u8)| -> Arc<dyn Op> {
            match kind % 6 {
                0 => flip_left_right(u64::from(*by)),
                1 => random_crop(9, 9, u64::from(*by)),
                2 => random_brightness(0.3, u64::from(*by)),
                3 => scale(1.0 / 255.0),
                4 => random_rot90(u64::from(*by)),
                _ => resize(10, 10, Method::Bilinear),
            }
        };
        // Some of them want squares, some want floats.
        let mut ops = vec![cast_f32(), resize(10, 10, Method::Area)];
        ops.extend(self.maps.iter().map(op));
        ops.extend([resize(10, 10, Method::Nearest)]);
        ops
    }

    fn keeping(&self, data: Dataset, kind: u8, form: Form<'_>, name: &str) -> Dataset {
        let cache = match (form, kind % 4) {
            (Form::Plain(_), _) => Cache::MemoryUpTo(Bytes::ZERO),
            (Form::AsDrawn(_), 0) => Cache::MemoryUpTo(Bytes::kib(64)),
            (Form::AsDrawn(_), 1) => Cache::MemoryUpTo(Bytes(u64::from(kind) * 16)),
            (Form::AsDrawn(folder), 2) => Cache::File(folder.join(name)),
            (Form::AsDrawn(folder), _) => Cache::FileIfSpace(folder.join(name)),
        };
        data.cache(cache)
    }

    /// The data set, up to its batches.
    fn rows(&self, form: Form<'_>) -> Dataset {
        let mut data = match self.source % 10 {
            0 | 1 => SOUND.data(),
            2 | 3 => DAMAGED.data(),
            4 => Dataset::concatenate([SOUND.data(), DAMAGED.data()]),
            5 => Dataset::zip([SOUND.data(), numbers(10)]).version("1"),
            // Of rows that something was done to already, one after the other.
            6 => Dataset::zip([DAMAGED.data(), numbers(12).skip(1).version("1")]),
            7 => packed("sound"),
            8 => packed("damaged"),
            _ => Dataset::interleave([packed("sound"), packed("damaged")], 2, 3),
        };
        for (kind, by) in &self.orders {
            let by = u64::from(*by);
            data = match kind % 5 {
                0 => data.skip(by % 4),
                1 => data.take(by % 16),
                2 => data.shard(1 + by % 2, by % (1 + by % 2)),
                3 => data.repeat(1 + by % 2),
                _ => data.shuffle(Shuffle::seed(by)),
            };
        }
        data = data.map("x", self.item_ops());
        data = match (self.cache, form) {
            (None, _) => data,
            // A stream keeps images that have numbers in a file or not at all.
            (Some(_), Form::Plain(folder)) if self.is_stream() => data.cache(Cache::File(folder.join("plain.plc"))),
            (Some(kind), form) if self.is_stream() && !self.is_packed() => self.keeping(data, kind | 2, form, "pictures.plc"),
            (Some(kind), form) => self.keeping(data, kind, form, "pictures.plc"),
        };
        data = self.max_item.into_iter().fold(data, |data, bytes| data.max_item(Bytes(bytes)));
        // Behind each stage others.
        let threads = |data: Dataset, at: usize| match form {
            Form::Plain(_) => data.parallelism(Parallelism::Threads(1)),
            Form::AsDrawn(_) if (self.threads + at).is_multiple_of(6) => data,
            Form::AsDrawn(_) => data.parallelism(Parallelism::Threads((self.threads + at) % 6)),
        };
        data = threads(data, 0);
        for (at, (kind, by)) in self.stages.iter().enumerate() {
            data = self.stage(data, *kind, *by, form, at);
            if by % 3 > 0 {
                data = data.map("x", [cast_f32(), random_brightness(0.2, u64::from(*by))]);
            }
            data = threads(data, at + 1);
        }
        data.map("x", self.map_ops()).map("y", [one_hot(2)])
    }

    fn stage(&self, data: Dataset, kind: u8, by: u8, form: Form<'_>, at: usize) -> Dataset {
        let n = usize::from(by);
        let in_file = self.cache.is_some() || self.stages[..at].iter().any(|(kind, by)| kind % 10 == 3 && by % 4 > 1);
        match kind % 10 {
            0 => data.filter(move |row| !(row.numbers("x").sum::<f64>() as usize + n).is_multiple_of(4)),
            1 | 2 => data.ignore_errors(100),
            3 => self.keeping(data.filter(|_| true).version("1"), by, form, &format!("{at}.plc")),
            4 => data.filter(|_| true).shuffle_buffer(Shuffle::seed(u64::from(by)), Bytes(700 * u64::from(1 + by % 8))),
            5 => data.filter(|_| true).skip(u64::from(by % 3)).repeat(1 + u64::from(by % 2)),
            // A file has one reader at a time.
            _ if in_file => data.filter(|_| true).take(u64::from(by)),
            6 => Dataset::interleave_parallel(
                [data.clone().take(4), data.clone().skip(2), data.filter(|row| row.int("y") > 0)],
                1 + n % 3,
                2,
            ),
            7 => Dataset::sample_from([(data.clone().take(5), 0.5), (data, 1.0)], u64::from(by)),
            8 => Dataset::concatenate([data.clone().take(3), data]),
            _ => Dataset::interleave([data.clone(), data.take(6)], 2, 1 + n % 2),
        }
    }

    fn data(&self, form: Form<'_>) -> Dataset {
        let data = self.rows(form).batch(self.batch);
        let data = if self.drops { data.drop_remainder() } else { data };
        let data = match self.mix {
            Some(seed) if seed % 2 == 0 => data.mix(Mix::up(0.4).seed(u64::from(seed))),
            Some(seed) => data.mix(Mix::cut(0.8).seed(u64::from(seed))),
            None => data,
        };
        match form {
            Form::Plain(_) => data.prefetch(Prefetch::Batches(0)),
            Form::AsDrawn(_) => {
                let data = self.again.into_iter().fold(data, Dataset::rebatch);
                self.ahead.into_iter().fold(data, |data, ahead| data.prefetch(Prefetch::Batches(ahead)))
            }
        }
    }
}

/// All bytes of both columns, row by row.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const EPOCHS: u64 = 3;

/// The rows of epochs from where `options` say, and where the feed stood after each batch.
fn read(data: &Dataset, limit: Option<Bytes>, options: Options) -> Result<(Vec<FeedState>, Vec<Rows>), DataError> {
    let plan = data.plan(limit).expect("planned before");
    assert!(limit.is_none_or(|limit| plan.total() <= limit), "{limit:?} and\n{plan}");
    let ledger = Ledger::new("host", limit);
    let (mut states, mut all) = (Vec::new(), Vec::new());
    let came = (|| {
        let mut feed = Feed::start(data, &plan, &ledger, options)?;
        for epoch in options.first_epoch..EPOCHS {
            let mut rows = Rows::new();
            while let Some(batch) = feed.next()? {
                let [x, y] = [0, 1].map(|column| batch.column(column).chunks_exact(batch.column(column).len() / batch.rows));
                rows.extend(x.zip(y).map(|(x, y)| (x.to_vec(), y.to_vec())));
                states.push(feed.state());
            }
            all.push(rows);
            if epoch + 1 < EPOCHS {
                states.push(feed.state());
            }
        }
        Ok(())
    })();
    assert!(ledger.peak() <= plan.total(), "{} held, and planned was\n{plan}", ledger.peak());
    assert_eq!(ledger.used(), Bytes::ZERO);
    came.map(|()| (states, all))
}

/// Reads this many batches, whatever comes, and no more: everything is given back, and what was kept of half an epoch
/// does no harm.
fn leave_early(data: &Dataset, limit: Bytes, batches: usize) {
    let ledger = Ledger::new("host", Some(limit));
    if let Ok(mut feed) = Feed::start(data, &data.plan(Some(limit)).unwrap(), &ledger, Options::default()) {
        (0..batches).for_each(|_| drop(feed.next()));
    }
    assert_eq!(ledger.used(), Bytes::ZERO);
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn pictures_are_the_same_bits_on_any_way(
        drawn in drawn(),
        room in 0u64..=100,
        stop: prop::sample::Index,
        left_out in prop::bool::weighted(0.5),
    ) {
        let folder = TempDir::new().unwrap();
        let mut drawn = drawn;
        if left_out {
            drawn.stages.push((1, 0));
        }
        let (data, plain) = (drawn.data(Form::AsDrawn(folder.path())), drawn.data(Form::Plain(folder.path())));
        let plan = match (data.plan(None), plain.plan(None)) {
            (Ok(plan), Ok(_)) => plan,
            // What makes no sense makes none in either form.
            (Err(one), Err(other)) => {
                prop_assert!(format!("{one:?}").split('(').next() == format!("{other:?}").split('(').next(), "{one} and {other}");
                return Ok(());
            }
            (one, other) => return Err(TestCaseError::fail(format!("{one:?} and plainly {other:?} of {}", data.describe()))),
        };
        let expected = read(&plain, None, Options::default());
        let least = plan.minimum();
        prop_assert!(least <= plan.total(), "a plan below the minimum:\n{}", plan);
        match data.plan(Some(least - Bytes(1))) {
            Err(DataError::OverLimit { minimum, .. }) => prop_assert_eq!(minimum, least),
            other => prop_assert!(false, "a byte less than works: {other:?}"),
        }
        let some = Bytes(least.0 + (plan.total() - least).0 * room * room / 10_000);
        leave_early(&data, some, stop.index(20));
        // Twice under the first limit: what a file has kept is then found.
        for limit in [Some(some), Some(some), Some(least), None] {
            let came = read(&data, limit, Options { epochs: Some(EPOCHS), ..Options::default() });
            let ((states, came), (_, expected)) = match (came, &expected) {
                (Ok(came), Ok(expected)) => (came, expected),
                (Err(one), Err(other)) => {
                    prop_assert_eq!(one.to_string(), other.to_string(), "{} in {:?}", data.describe(), limit);
                    continue;
                }
                (one, other) => {
                    let (one, other) = (one.map(|_| "rows"), other.as_ref().map(|_| "rows"));
                    return Err(TestCaseError::fail(format!("{one:?} in {limit:?} and plainly {other:?} of {}", data.describe())));
                }
            };
            prop_assert!(came == *expected, "{} in {:?}", data.describe(), limit);
            if !states.is_empty() {
                let state = stop.get(&states);
                let (first, batch) = (state.epoch as usize, drawn.again.unwrap_or(drawn.batch));
                let (_, rest) = read(&data, limit, Options::resume(state, &data).unwrap()).unwrap();
                let mut expected = expected[first..].to_vec();
                let done = (state.batches as usize * batch).min(expected[0].len());
                expected[0].drain(..done);
                prop_assert!(rest == expected, "{} resumed in {:?} at {:?}", data.describe(), limit, state);
            }
        }
        for epoch in 0..EPOCHS {
            prop_assert_eq!(data.ignored_in(epoch).0, plain.ignored_in(epoch).0, "left out of epoch {} of {}", epoch, data.describe());
        }
    }
}
