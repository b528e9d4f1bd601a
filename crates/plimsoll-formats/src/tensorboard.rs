//! TensorBoard event files: scalars, histograms, images and text, as tensors with plugin metadata, the form TensorFlow
//! 2 writes.

use crate::protobuf::Message;
use crate::tfrecord::write_record;
use std::io::{self, Write};

const DT_FLOAT: i64 = 1;
const DT_DOUBLE: i64 = 2;
const DT_STRING: i64 = 7;

/// What TensorBoard may do with the tensors of a tag.
const SCALAR: i64 = 1;
const TENSOR: i64 = 2;
const BLOB_SEQUENCE: i64 = 3;

/// Writes events to a file whose name contains `tfevents`. Holds one event at a time.
///
/// ```
/// use plimsoll_formats::tensorboard::EventWriter;
/// let mut events = EventWriter::new(Vec::new(), 1_700_000_000.0)?;
/// events.scalar("loss", 1, 1_700_000_001.0, 0.25)?;
/// events.text("plan", 0, 1_700_000_001.0, "planned peak **22.7 MiB**")?;
/// assert!(events.into_inner().windows(13).any(|bytes| bytes == b"brain.Event:2"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct EventWriter<W> {
    writer: W,
    message: Message,
}

/// A bucket of a histogram: from `left` to `right`, and how many values are in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// The smallest value.
    pub left: f64,
    /// The largest value.
    pub right: f64,
    /// How many values.
    pub count: f64,
}

/// Where an event belongs.
struct Place<'a> {
    tag: &'a str,
    step: i64,
    wall_time: f64,
}

impl<W: Write> EventWriter<W> {
    /// Begins a file; `wall_time` is seconds since 1970.
    pub fn new(writer: W, wall_time: f64) -> io::Result<EventWriter<W>> {
        let mut events = EventWriter { writer, message: Message::default() };
        events.message.double(1, wall_time);
        events.message.bytes(3, b"brain.Event:2");
        events.record()?;
        Ok(events)
    }

    /// Continues a file that has begun already.
    pub fn append(writer: W) -> EventWriter<W> {
        EventWriter { writer, message: Message::default() }
    }

    /// One number.
    pub fn scalar(&mut self, tag: &str, step: i64, wall_time: f64, value: f32) -> io::Result<()> {
        self.summary(&Place { tag, step, wall_time }, "scalars", SCALAR, |tensor| {
            tensor.integer(1, DT_FLOAT);
            tensor.message(2, |_| {});
            tensor.float(5, value);
        })
    }

    /// A histogram by its buckets, from left to right.
    pub fn histogram(&mut self, tag: &str, step: i64, wall_time: f64, buckets: &[Bucket]) -> io::Result<()> {
        self.summary(&Place { tag, step, wall_time }, "histograms", TENSOR, |tensor| {
            tensor.integer(1, DT_DOUBLE);
            tensor.message(2, |shape| [buckets.len() as i64, 3].into_iter().for_each(|size| dimension(shape, size)));
            let numbers = buckets.iter().flat_map(|bucket| [bucket.left, bucket.right, bucket.count]);
            let content: Vec<u8> = numbers.flat_map(f64::to_le_bytes).collect();
            tensor.bytes(4, &content);
        })
    }

    /// Images as PNG files, all of one size.
    pub fn images(&mut self, tag: &str, step: i64, wall_time: f64, (width, height): (u32, u32), pngs: &[&[u8]]) -> io::Result<()> {
        self.summary(&Place { tag, step, wall_time }, "images", BLOB_SEQUENCE, |tensor| {
            tensor.integer(1, DT_STRING);
            tensor.message(2, |shape| dimension(shape, 2 + pngs.len() as i64));
            tensor.bytes(8, width.to_string().as_bytes());
            tensor.bytes(8, height.to_string().as_bytes());
            pngs.iter().for_each(|png| tensor.bytes(8, png));
        })
    }

    /// Markdown text.
    pub fn text(&mut self, tag: &str, step: i64, wall_time: f64, text: &str) -> io::Result<()> {
        self.summary(&Place { tag, step, wall_time }, "text", TENSOR, |tensor| {
            tensor.integer(1, DT_STRING);
            tensor.message(2, |shape| dimension(shape, 1));
            tensor.bytes(8, text.as_bytes());
        })
    }

    /// Passes everything on.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// What it writes to.
    pub fn get_ref(&self) -> &W {
        &self.writer
    }

    /// What it wrote to.
    pub fn into_inner(self) -> W {
        self.writer
    }

    fn summary(&mut self, place: &Place<'_>, plugin: &str, class: i64, tensor: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.message.double(1, place.wall_time);
        self.message.integer(2, place.step);
        self.message.message(5, |summary| {
            summary.message(1, |value| {
                value.bytes(1, place.tag.as_bytes());
                value.message(8, tensor);
                value.message(9, |metadata| {
                    metadata.message(1, |data| data.bytes(1, plugin.as_bytes()));
                    metadata.integer(4, class);
                });
            });
        });
        self.record()
    }

    fn record(&mut self) -> io::Result<()> {
        let written = write_record(&mut self.writer, self.message.as_bytes());
        self.message.clear();
        written
    }
}

fn dimension(shape: &mut Message, size: i64) {
    shape.message(2, |dimension| dimension.integer(1, size));
}

/// A histogram of finite values in this many buckets of equal width; none if there is no finite value.
pub fn histogram_of(values: impl Iterator<Item = f32> + Clone, buckets: usize) -> Vec<Bucket> {
    let finite = values.filter(|value| value.is_finite()).map(f64::from);
    let (min, max) = finite.clone().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)));
    if min > max {
        return Vec::new();
    }
    let width = ((max - min) / buckets as f64).max(f64::MIN_POSITIVE);
    let edge = |i: usize| if i == buckets { max.max(min + width) } else { min + width * i as f64 };
    let mut found: Vec<Bucket> = (0..buckets).map(|i| Bucket { left: edge(i), right: edge(i + 1), count: 0.0 }).collect();
    finite.for_each(|value| found[(((value - min) / width) as usize).min(buckets - 1)].count += 1.0);
    found
}
