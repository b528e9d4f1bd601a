//! Mixes the rows of a batch in pairs: mixup and cutmix.
//!
//! The worker that completes a slot mixes its batches in place, before they are passed on. The first row is paired
//! with the last, the second with the last but one: in a shuffled batch that is as good as any pairing, and it needs
//! no second batch.

use crate::rng::{Salt, uniform};
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::DType;
use std::fmt;

/// How rows of a batch are mixed. Labels are class probabilities (such as one-hot vectors) and are mixed as well.
///
/// ```
/// use plimsoll_data::{Dataset, Mix, Split, ops::{one_hot, scale}};
/// let digits = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32);
/// assert!(digits.mix(Mix::up(0.2).seed(7)).output_schema().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    way: Way,
    alpha: f32,
    seed: u64,
    images: String,
    labels: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Up,
    Cut,
}

impl Mix {
    /// Mixup: the weighted mean of two rows, with a weight from the beta distribution Beta(`alpha`, `alpha`).
    pub fn up(alpha: f32) -> Mix {
        Mix { way: Way::Up, alpha, seed: 0, images: "x".into(), labels: "y".into() }
    }

    /// CutMix: two images exchange a rectangle, whose fraction of the area is drawn like the weight of mixup.
    pub fn cut(alpha: f32) -> Mix {
        Mix { way: Way::Cut, ..Mix::up(alpha) }
    }

    /// Sets the random seed.
    pub fn seed(self, seed: u64) -> Mix {
        Mix { seed, ..self }
    }

    /// Sets the column names, which are `x` and `y` by default.
    pub fn columns(self, images: &str, labels: &str) -> Mix {
        Mix { images: images.into(), labels: labels.into(), ..self }
    }

    /// Prepares it for batches of `batch` rows of this schema.
    pub(crate) fn mixer(&self, schema: &Schema, batch: usize) -> Result<Mixer, DataError> {
        let refuse = |problem: String| DataError::Stage(format!("{self} cannot be done: {problem}"));
        let find = |name: &str| {
            let index = schema.index_of(name).ok_or_else(|| refuse(format!("there is no column `{name}`; the columns are {schema}")))?;
            Ok::<_, DataError>((index, &schema.columns()[index]))
        };
        let ((image, pixels), (label, shares)) = (find(&self.images)?, find(&self.labels)?);
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(refuse("alpha has to be a number above 0".into()));
        }
        if let Some(ragged) = [pixels, shares].into_iter().find(|column| column.extent == Extent::UpTo) {
            return Err(refuse(format!("column {ragged} has rows that vary in length; pad them to what is declared, or put fill before")));
        }
        if shares.dtype != DType::F32 || shares.shape.len() != 1 {
            let problem = format!("column {shares} holds no share per class; map it with one_hot before");
            return Err(refuse(problem));
        }
        if image == label {
            return Err(refuse(format!("column {pixels} cannot be both what is mixed and its shares; name two columns")));
        }
        let shape = match (self.way, pixels.shape.as_slice()) {
            (Way::Up, _) if pixels.dtype != DType::F32 => {
                return Err(refuse(format!("column {pixels} is mixed as f32; map it with cast or scale before")));
            }
            (Way::Up, _) => [1, 1, pixels.row_bytes().get()],
            (Way::Cut, &[height, width, _]) => [height, width, row_of(pixels) / (height * width).max(1)],
            (Way::Cut, _) => return Err(refuse(format!("column {pixels} is no image [height, width, channels]"))),
        };
        Ok(Mixer { mix: self.clone(), image, label, shape, row: row_of(pixels), classes: row_of(shares), batch })
    }
}

fn row_of(column: &Column) -> usize {
    column.row_bytes().get()
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.way {
            Way::Up => "mixup",
            Way::Cut => "cutmix",
        };
        write!(f, "{name}({}, seed {})", self.alpha, self.seed)
    }
}

/// A `Mix` for one schema and batch size.
pub(crate) struct Mixer {
    mix: Mix,
    /// Indices of the columns.
    image: usize,
    label: usize,
    /// Height, width, and bytes of a pixel.
    shape: [usize; 3],
    /// Bytes of a row of each column.
    row: usize,
    classes: usize,
    batch: usize,
}

impl Mixer {
    /// Mixes all batches of some rows; the first row is at position `place` of the epoch.
    pub fn run<'c>(&self, epoch: u64, place: u64, columns: impl Iterator<Item = &'c mut [u8]>) {
        let (mut images, mut labels): (&mut [u8], &mut [u8]) = (&mut [], &mut []);
        for (index, column) in columns.enumerate() {
            if index == self.image {
                images = column;
            } else if index == self.label {
                labels = column;
            }
        }
        // The batch size may exceed the number of rows.
        let of_batch = |row: usize| self.batch.saturating_mul(row.max(1));
        let batches = images.chunks_mut(of_batch(self.row)).zip(labels.chunks_mut(of_batch(self.classes)));
        for (number, (images, labels)) in batches.enumerate() {
            let rows = labels.len() / self.classes.max(1);
            for first in 0..rows / 2 {
                let at = place + (number * self.batch + first) as u64;
                let mut lots = MixDraws { seed: self.mix.seed, epoch, row: at.wrapping_mul(1 << 16), drawn: 0 };
                let own = beta(f64::from(self.mix.alpha), &mut lots);
                let (one, other) = pair(images, self.row, first, rows - 1 - first);
                let own = match self.mix.way {
                    Way::Up => {
                        blend(one, other, own as f32);
                        own as f32
                    }
                    Way::Cut => self.exchange(one, other, own, &mut lots),
                };
                let (one, other) = pair(labels, self.classes, first, rows - 1 - first);
                blend(one, other, own);
            }
        }
    }

    /// Exchanges a rectangle at a random position; returns the fraction of each image that is its own.
    fn exchange(&self, one: &mut [u8], other: &mut [u8], own: f64, lots: &mut MixDraws) -> f32 {
        let [height, width, pixel] = self.shape;
        let side = (1.0 - own).sqrt();
        let span = |length: usize, lot: f64| {
            let (middle, half) = (lot * length as f64, side * length as f64 / 2.0);
            let from = (middle - half).round().max(0.0) as usize;
            (from, ((middle + half).round() as usize).min(length).max(from))
        };
        let (top, bottom) = span(height, lots.next());
        let (left, right) = span(width, lots.next());
        for y in top..bottom {
            let line = (y * width + left) * pixel..(y * width + right) * pixel;
            one[line.clone()].swap_with_slice(&mut other[line]);
        }
        1.0 - ((bottom - top) * (right - left)) as f32 / (height * width) as f32
    }
}

/// Mutable references to two rows.
fn pair(rows: &mut [u8], row: usize, first: usize, second: usize) -> (&mut [u8], &mut [u8]) {
    let (before, after) = rows.split_at_mut(second * row);
    (&mut before[first * row..][..row], &mut after[..row])
}

/// Replaces both rows by weighted means, each with weight `own` for itself.
fn blend(one: &mut [u8], other: &mut [u8], own: f32) {
    for (one, other) in one.as_chunks_mut::<4>().0.iter_mut().zip(other.as_chunks_mut::<4>().0) {
        let (a, b) = (f32::from_ne_bytes(*one), f32::from_ne_bytes(*other));
        *one = (a * own + b * (1.0 - own)).to_ne_bytes();
        *other = (b * own + a * (1.0 - own)).to_ne_bytes();
    }
}

/// The random numbers of one pair.
struct MixDraws {
    seed: u64,
    epoch: u64,
    row: u64,
    drawn: u64,
}

impl MixDraws {
    /// Uniform in [0, 1).
    fn next(&mut self) -> f64 {
        self.drawn += 1;
        uniform(self.seed, Salt::Mix, self.epoch, self.row.wrapping_add(self.drawn))
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * (1.0 - self.next()).ln()).sqrt(), self.next() * std::f64::consts::TAU);
        radius * angle.cos()
    }
}

/// A sample of Beta(`alpha`, `alpha`), from two gamma samples.
fn beta(alpha: f64, lots: &mut MixDraws) -> f64 {
    let (one, other) = (log_gamma_lot(alpha, lots), log_gamma_lot(alpha, lots));
    // With logarithms, because for small parameters both samples often underflow.
    1.0 / (1.0 + (other - one).exp())
}

/// The logarithm of a gamma sample, by the method of Marsaglia and Tsang.
fn log_gamma_lot(alpha: f64, lots: &mut MixDraws) -> f64 {
    let boost = if alpha < 1.0 { (1.0 - lots.next()).ln() / alpha } else { 0.0 };
    let d = if alpha < 1.0 { alpha + 1.0 } else { alpha } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = lots.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - lots.next()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln() + boost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_the_beta_distribution() {
        for alpha in [0.2, 1.0, 4.0] {
            let draws: Vec<f64> =
                (0..20_000).map(|row| beta(alpha, &mut MixDraws { seed: 1, epoch: 0, row: row << 16, drawn: 0 })).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: mean {mean}");
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((variance / expected - 1.0).abs() < 0.05, "{alpha}: variance {variance}, not {expected}");
            assert!(draws.iter().all(|draw| (0.0..=1.0).contains(draw)));
        }
    }
}
