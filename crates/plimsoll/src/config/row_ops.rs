//! Operations on the rows of a column: the entries of `data.map`, and those of `data.stages` that are not stages
//! themselves.
//!
//! An operation is one [`RowOp`]: configurations, error messages and the table in `docs/images.md` follow from it.

use crate::error::{Error, Result};
use crate::reader::{Reader, choose};
use plimsoll_data::ops::{
    CropArea, Decode, Method, Op, brightness, cast_f32, center_crop, contrast, crop_or_pad, fill, finite, flip_left_right, flip_up_down,
    grey, hue, normalize, one_hot, pad, random_brightness, random_contrast, random_crop, random_hue, random_resized_crop, random_rot90,
    random_rotate, random_saturation, resize, rot90, rotate, saturation, scale, standardize,
};
use std::sync::Arc;

/// The description of an operation.
pub(super) struct RowOp {
    /// The name in configurations.
    name: &'static str,
    /// The default column.
    column: &'static str,
    /// Its keys, as the documentation lists them.
    keys: &'static str,
    /// Its computation, as the documentation describes it.
    does: &'static str,
    read: fn(&OpArgs<'_>) -> Result<Arc<dyn Op>>,
}

const IMAGES: &str = "x";
const LABELS: &str = "y";

static ROW_OPS: [RowOp; 29] = [
    RowOp {
        name: "decode",
        column: IMAGES,
        keys: "`channels` (1 or 3), `upright` (apply the EXIF orientation)",
        does: "JPEG (baseline, progressive, grey, CMYK), PNG, WebP, GIF, BMP or TIFF to u8; of an animation, the first frame",
        read: decode,
    },
    RowOp {
        name: "resize",
        column: IMAGES,
        keys: "`size`, `method`",
        does: "f32 of one size; `nearest`, `bilinear`, `bicubic`, `area`, `bilinear_antialias`, `bicubic_antialias`",
        read: |args| {
            let (height, width) = args.size()?;
            Ok(resize(height, width, args.method()?))
        },
    },
    RowOp {
        name: "center_crop",
        column: IMAGES,
        keys: "`size`",
        does: "the centre of each image",
        read: |args| {
            let (height, width) = args.size()?;
            Ok(center_crop(height, width))
        },
    },
    RowOp {
        name: "random_crop",
        column: IMAGES,
        keys: "`size`, `seed`",
        does: "a random crop of each image",
        read: |args| {
            let (height, width) = args.size()?;
            Ok(random_crop(height, width, args.seed()?))
        },
    },
    RowOp {
        name: "random_resized_crop",
        column: IMAGES,
        keys: "`size`, `share`, `ratio`, `method`, `seed`",
        does: "a random crop of this share of the area and this aspect ratio, resized",
        read: |args| {
            let ((height, width), default) = (args.size()?, CropArea::default());
            let share = args.pair("share")?.unwrap_or(default.share);
            let ratio = args.pair("ratio")?.unwrap_or(default.ratio);
            Ok(random_resized_crop(height, width, CropArea { share, ratio, method: args.method()?, seed: args.seed()? }))
        },
    },
    RowOp {
        name: "pad",
        column: IMAGES,
        keys: "`size`, `value`",
        does: "centred in a larger frame",
        read: |args| {
            let (height, width) = args.size()?;
            Ok(pad(height, width, args.number_or_zero("value")?))
        },
    },
    RowOp {
        name: "crop_or_pad",
        column: IMAGES,
        keys: "`size`, `value`",
        does: "centred in a frame; larger images are cropped",
        read: |args| {
            let (height, width) = args.size()?;
            Ok(crop_or_pad(height, width, args.number_or_zero("value")?))
        },
    },
    RowOp {
        name: "flip_left_right",
        column: IMAGES,
        keys: "`seed`",
        does: "half of the images mirrored",
        read: |args| Ok(flip_left_right(args.seed()?)),
    },
    RowOp {
        name: "flip_up_down",
        column: IMAGES,
        keys: "`seed`",
        does: "half of the images upside down",
        read: |args| Ok(flip_up_down(args.seed()?)),
    },
    RowOp {
        name: "rot90",
        column: IMAGES,
        keys: "`quarters`",
        does: "rotated counter-clockwise by quarter turns",
        read: |args| Ok(rot90(args.table.count("quarters", 0)?.unwrap_or(1) as u32 % 4)),
    },
    RowOp {
        name: "random_rot90",
        column: IMAGES,
        keys: "`seed`",
        does: "rotated by a random number of quarter turns",
        read: |args| Ok(random_rot90(args.seed()?)),
    },
    RowOp {
        name: "rotate",
        column: IMAGES,
        keys: "`degrees`, `fill`",
        does: "rotated counter-clockwise by any angle, bilinear",
        read: |args| Ok(rotate(args.number("degrees", "the angle, counter-clockwise")?, args.number_or_zero("fill")?)),
    },
    RowOp {
        name: "random_rotate",
        column: IMAGES,
        keys: "`degrees`, `fill`, `seed`",
        does: "rotated by a random angle up to `degrees` in either direction",
        read: |args| {
            let degrees = args.number("degrees", "the largest angle in either direction")?;
            Ok(random_rotate(degrees, args.number_or_zero("fill")?, args.seed()?))
        },
    },
    RowOp {
        name: "brightness",
        column: IMAGES,
        keys: "`by`",
        does: "`by` is added; for f32 in the units of the image",
        read: |args| Ok(brightness(args.number("by", "the number to add")?)),
    },
    RowOp {
        name: "random_brightness",
        column: IMAGES,
        keys: "`by`, `seed`",
        does: "a random number of up to `by` is added or subtracted",
        read: |args| Ok(random_brightness(args.number("by", "the largest number to add or subtract")?, args.seed()?)),
    },
    RowOp {
        name: "contrast",
        column: IMAGES,
        keys: "`by`",
        does: "the distance from each channel's mean scaled",
        read: |args| Ok(contrast(args.number("by", "the factor")?)),
    },
    RowOp {
        name: "random_contrast",
        column: IMAGES,
        keys: "`by` (a pair), `seed`",
        does: "the same with a random factor",
        read: |args| {
            let (min, max) = args.factors()?;
            Ok(random_contrast(min, max, args.seed()?))
        },
    },
    RowOp {
        name: "saturation",
        column: IMAGES,
        keys: "`by`",
        does: "saturation scaled",
        read: |args| Ok(saturation(args.number("by", "the factor")?)),
    },
    RowOp {
        name: "random_saturation",
        column: IMAGES,
        keys: "`by` (a pair), `seed`",
        does: "the same with a random factor",
        read: |args| {
            let (min, max) = args.factors()?;
            Ok(random_saturation(min, max, args.seed()?))
        },
    },
    RowOp {
        name: "hue",
        column: IMAGES,
        keys: "`by`",
        does: "hue rotated by a fraction of the circle",
        read: |args| Ok(hue(args.number("by", "a fraction of the circle, such as 0.1")?)),
    },
    RowOp {
        name: "random_hue",
        column: IMAGES,
        keys: "`by`, `seed`",
        does: "hue rotated by a random fraction of up to `by` in either direction",
        read: |args| Ok(random_hue(args.number("by", "the largest fraction in either direction, such as 0.1")?, args.seed()?)),
    },
    RowOp { name: "grey", column: IMAGES, keys: "", does: "three channels to one", read: |_| Ok(grey()) },
    RowOp { name: "standardize", column: IMAGES, keys: "", does: "zero mean and unit variance per image", read: |_| Ok(standardize()) },
    RowOp {
        name: "scale",
        column: IMAGES,
        keys: "`by`",
        does: "each element times `by`",
        read: |args| Ok(scale(args.number("by", "the factor")?)),
    },
    RowOp {
        name: "normalize",
        column: IMAGES,
        keys: "`mean`, `std`",
        does: "`(x - mean) / std`; with lists, per channel",
        read: |args| {
            let numbers = |key| args.table.numbers(key)?.ok_or_else(|| args.table.missing(key, "a number, or one per channel"));
            Ok(normalize(numbers("mean")?, numbers("std")?))
        },
    },
    RowOp { name: "cast", column: IMAGES, keys: "", does: "each element as f32", read: |_| Ok(cast_f32()) },
    RowOp {
        name: "one_hot",
        column: LABELS,
        keys: "`classes`, `column` (default `y`)",
        does: "class indices to probabilities",
        read: |args| {
            let classes = args.table.count("classes", 1)?.ok_or_else(|| args.table.missing("classes", "the number of classes"))?;
            Ok(one_hot(classes as usize))
        },
    },
    RowOp {
        name: "finite",
        column: LABELS,
        keys: "`column` (default `y`)",
        does: "refuses rows with NaN or infinite values",
        read: |_| Ok(finite()),
    },
    RowOp {
        name: "fill",
        column: IMAGES,
        keys: "`value`",
        does: "pads variable-length rows to their declared length",
        read: |args| Ok(fill(args.number_or_zero("value")?)),
    },
];

/// The arguments for reading an operation.
struct OpArgs<'a> {
    table: &'a Reader<'a>,
    /// Default seed of random operations.
    seed: u64,
}

/// The names of operations, for error messages that suggest the nearest one.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static RowOp)> {
    ROW_OPS.iter().map(|op| (op.name, op))
}

/// The table of operations in the documentation.
pub(super) fn reference() -> String {
    let rows = ROW_OPS.iter().map(|op| format!("| `{}` | {} | {} |\n", op.name, op.keys, op.does));
    format!("| `op` | keys | what it does |\n|---|---|---|\n{}", rows.collect::<String>())
}

/// The operations of `map` and the columns they are applied to, in order.
pub(super) fn maps(data: &Reader<'_>, seed: u64) -> Result<Vec<(String, Arc<dyn Op>)>> {
    let mut maps = Vec::new();
    for map in data.sections("map")?.unwrap_or_default() {
        maps.push(RowOp::of(&map)?.read(&map, seed)?);
        map.finish()?;
    }
    Ok(maps)
}

/// The operations of a list, all on the same column.
pub(super) fn operations(table: &Reader<'_>, key: &'static str, seed: u64) -> Result<Vec<Arc<dyn Op>>> {
    let example = "a list of operations, such as [{ op = \"cast\" }, { op = \"scale\", by = 0.5 }]";
    let list = table.sections(key)?.filter(|list| !list.is_empty()).ok_or_else(|| table.missing(key, example))?;
    let read = |map: Reader<'_>| {
        let op = (RowOp::of(&map)?.read)(&OpArgs { table: &map, seed })?;
        map.finish()?;
        Ok(op)
    };
    list.into_iter().map(read).collect()
}

impl RowOp {
    /// The operation that an entry names.
    fn of(map: &Reader<'_>) -> Result<&'static RowOp> {
        let Some(name) = map.text("op")? else { return Err(map.missing("op", "which operation, such as \"scale\"")) };
        choose(&map.name("op"), name, &names().collect::<Vec<_>>())
    }

    /// The operation of an entry, and the column it is applied to.
    pub fn read(&self, table: &Reader<'_>, seed: u64) -> Result<(String, Arc<dyn Op>)> {
        let op = (self.read)(&OpArgs { table, seed })?;
        Ok((table.text("column")?.unwrap_or(self.column).to_string(), op))
    }
}

/// There is one definition for each name.
impl PartialEq for RowOp {
    fn eq(&self, other: &RowOp) -> bool {
        self.name == other.name
    }
}

impl OpArgs<'_> {
    fn size(&self) -> Result<(usize, usize)> {
        self.table.pair("size")?.ok_or_else(|| self.table.missing("size", "height and width, such as [64, 64]"))
    }

    fn seed(&self) -> Result<u64> {
        Ok(self.table.count("seed", 0)?.unwrap_or(self.seed))
    }

    /// A required number.
    fn number(&self, key: &'static str, what: &str) -> Result<f32> {
        Ok(self.table.number(key)?.ok_or_else(|| self.table.missing(key, what))? as f32)
    }

    fn number_or_zero(&self, key: &'static str) -> Result<f32> {
        Ok(self.table.number(key)?.unwrap_or(0.0) as f32)
    }

    fn method(&self) -> Result<Method> {
        Ok(self.table.choice("method", &Method::ALL.map(|method| (method.name(), method)))?.unwrap_or(Method::Bilinear))
    }

    /// Two numbers.
    fn pair(&self, key: &'static str) -> Result<Option<(f32, f32)>> {
        match self.table.numbers(key)?.as_deref() {
            None => Ok(None),
            Some(&[min, max]) => Ok(Some((min, max))),
            Some(_) => {
                Err(Error::Config(format!("`{}` should be two numbers, the smaller one first, such as [0.8, 1.2]", self.table.name(key))))
            }
        }
    }

    /// The range of a random factor.
    fn factors(&self) -> Result<(f32, f32)> {
        self.pair("by")?.ok_or_else(|| self.table.missing("by", "the smallest and the largest factor, such as [0.8, 1.2]"))
    }
}

fn decode(args: &OpArgs<'_>) -> Result<Arc<dyn Op>> {
    let decode = match args.table.count("channels", 1)? {
        None | Some(3) => Decode::new(),
        Some(1) => Decode::new().grey(),
        Some(other) => return Err(Error::Config(format!("`{}` is {other}, but should be 1 or 3", args.table.name("channels")))),
    };
    Ok(if args.table.flag("upright")?.unwrap_or(false) { decode.upright().op() } else { decode.op() })
}
