//! Synthetic images of circles, rectangles and triangles, each with a segmentation mask.

use super::Source;
use crate::block::{BlockMut, Rows};
use crate::rng::mix64;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// The size and number of synthetic images.
///
/// ```
/// use plimsoll_data::{Dataset, source::ShapesSpec};
/// let data = Dataset::shapes(ShapesSpec::new(1000, 64, 64).seed(7))?;
/// assert_eq!(data.output_schema()?.to_string(), "x: u8[64, 64, 3], y: i32[64, 64]");
/// assert_eq!(data.class_names(), ["background", "circle", "rectangle", "triangle"]);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ShapesSpec {
    rows: u64,
    height: usize,
    width: usize,
    seed: u64,
    most: usize,
}

const CLASSES: [&str; 4] = ["background", "circle", "rectangle", "triangle"];

impl ShapesSpec {
    /// `rows` images of this size.
    pub fn new(rows: u64, height: usize, width: usize) -> ShapesSpec {
        ShapesSpec { rows, height, width, seed: 0, most: 4 }
    }

    /// Sets the seed; 0 by default.
    pub fn seed(mut self, seed: u64) -> ShapesSpec {
        self.seed = seed;
        self
    }

    /// Sets the maximum number of shapes per image; 4 by default. Later shapes cover earlier ones.
    pub fn at_most(mut self, shapes: usize) -> ShapesSpec {
        self.most = shapes;
        self
    }
}

/// The source of a [`ShapesSpec`]: `x` is u8 `[height, width, 3]`, `y` the class of each pixel as i32 `[height,
/// width]`.
pub struct Shapes {
    spec: ShapesSpec,
    schema: Schema,
}

impl Shapes {
    /// Checks the specification.
    pub fn new(spec: ShapesSpec) -> Result<Shapes, DataError> {
        if spec.most == 0 || spec.height < 8 || spec.width < 8 {
            let problem = "images of shapes need at least 8 × 8 pixels and one shape; ask for more";
            return Err(DataError::Stage(problem.into()));
        }
        let classes: Arc<[String]> = CLASSES.map(String::from).into();
        let mask = Column::new("y", DType::I32, [spec.height, spec.width]).with_classes(classes);
        Ok(Shapes { spec, schema: Schema::new(vec![Column::new("x", DType::U8, [spec.height, spec.width, 3]), mask])? })
    }
}

/// A random number generator.
struct Dice {
    state: u64,
}

impl Dice {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix64(self.state)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    fn share(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

struct Shape {
    class: i32,
    color: [u8; 3],
    middle: (f32, f32),
    /// Half the width and half the height.
    half: (f32, f32),
    /// Cosine and sine of its angle.
    turn: (f32, f32),
}

impl Shape {
    fn roll(dice: &mut Dice, height: usize, width: usize) -> Shape {
        let (height, width) = (height as f32, width as f32);
        let class = 1 + dice.below(3) as i32;
        let size = height.min(width) * (0.1 + 0.2 * dice.share());
        let flat = if class == 1 { 1.0 } else { 0.5 + 0.5 * dice.share() };
        // A rotation by a random angle, from a rational point on the circle, because trigonometric functions differ
        // between machines.
        let half_tangent = 2.0 * dice.share() - 1.0;
        let square = half_tangent * half_tangent;
        Shape {
            class,
            color: [0; 3].map(|_| 128 + dice.below(128) as u8),
            middle: (width * (0.15 + 0.7 * dice.share()), height * (0.15 + 0.7 * dice.share())),
            half: (size, size * flat),
            turn: ((1.0 - square) / (1.0 + square), 2.0 * half_tangent / (1.0 + square)),
        }
    }

    /// The rectangle of pixels that it may cover.
    fn bounds(&self, height: usize, width: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let reach = self.half.0 + self.half.1;
        let range = |middle: f32, end: usize| (middle - reach).max(0.0) as usize..((middle + reach).max(0.0) as usize + 1).min(end);
        (range(self.middle.1, height), range(self.middle.0, width))
    }

    fn covers(&self, x: f32, y: f32) -> bool {
        let (x, y) = (x - self.middle.0, y - self.middle.1);
        let (x, y) = ((x * self.turn.0 + y * self.turn.1) / self.half.0, (y * self.turn.0 - x * self.turn.1) / self.half.1);
        match self.class {
            1 => x * x + y * y <= 1.0,
            2 => x.abs() <= 1.0 && y.abs() <= 1.0,
            _ => y <= 1.0 && y >= 2.0 * x.abs() - 1.0,
        }
    }
}

impl Source for Shapes {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.spec.rows
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        let pixels = self.spec.height * self.spec.width;
        for (index, row) in rows.iter(out.rows()).enumerate() {
            let mut dice = Dice { state: mix64(self.spec.seed ^ mix64(row ^ 0x7368_6170_6573)) };
            let ground: [u8; 3] = [0; 3].map(|_| dice.below(96) as u8);
            let noise = dice.next();
            let image = out.column(0)[index * pixels * 3..][..pixels * 3].as_chunks_mut::<3>().0;
            for (at, pixel) in image.iter_mut().enumerate() {
                // Some noise, so that the background is not recognizable by being constant.
                let shade = (mix64(noise ^ at as u64) >> 60) as u8;
                *pixel = ground.map(|channel| channel + shade);
            }
            out.column(1)[index * pixels * 4..][..pixels * 4].fill(0);
            for _ in 0..=dice.below(self.spec.most as u64) {
                let shape = Shape::roll(&mut dice, self.spec.height, self.spec.width);
                let (rows, columns) = shape.bounds(self.spec.height, self.spec.width);
                for y in rows {
                    for x in columns.clone() {
                        if shape.covers(x as f32 + 0.5, y as f32 + 0.5) {
                            let at = y * self.spec.width + x;
                            out.column(0)[(index * pixels + at) * 3..][..3].copy_from_slice(&shape.color);
                            out.column(1)[(index * pixels + at) * 4..][..4].copy_from_slice(&shape.class.to_ne_bytes());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn class_names(&self) -> Vec<String> {
        CLASSES.map(String::from).to_vec()
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        hash.write(format!("{:?}", self.spec).as_bytes());
        Ok(true)
    }

    fn describe(&self) -> String {
        let ShapesSpec { rows, height, width, seed, .. } = self.spec;
        format!("{rows} images of shapes ({height} × {width}, seed {seed})")
    }
}
