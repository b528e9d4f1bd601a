//! Operations on the rows of a column: the entries of `data.map`, and those of `data.stages` that are not stages themselves.

use crate::error::{Error, Result};
use crate::reader::{Reader, choose};
use plimsoll_data::ops::{
    Decode, Method, Op, Part, brightness, cast_f32, center_crop, contrast, crop_or_pad, fill, finite, flip_left_right, flip_up_down, grey,
    hue, normalize, one_hot, pad, random_brightness, random_contrast, random_crop, random_hue, random_resized_crop, random_rot90,
    random_rotate, random_saturation, resize, rot90, rotate, saturation, scale, standardize,
};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Name {
    Cast,
    Scale,
    Normalize,
    Resize,
    OneHot,
    Decode,
    CenterCrop,
    RandomCrop,
    FlipLeftRight,
    FlipUpDown,
    RandomResizedCrop,
    Pad,
    CropOrPad,
    Rot90,
    RandomRot90,
    Rotate,
    RandomRotate,
    Brightness,
    RandomBrightness,
    Contrast,
    RandomContrast,
    Saturation,
    RandomSaturation,
    Hue,
    RandomHue,
    Grey,
    Standardize,
    Finite,
    Fill,
}

pub(super) const KNOWN: [(&str, Name); 29] = [
    ("cast", Name::Cast),
    ("scale", Name::Scale),
    ("normalize", Name::Normalize),
    ("resize", Name::Resize),
    ("one_hot", Name::OneHot),
    ("decode", Name::Decode),
    ("center_crop", Name::CenterCrop),
    ("random_crop", Name::RandomCrop),
    ("flip_left_right", Name::FlipLeftRight),
    ("flip_up_down", Name::FlipUpDown),
    ("random_resized_crop", Name::RandomResizedCrop),
    ("pad", Name::Pad),
    ("crop_or_pad", Name::CropOrPad),
    ("rot90", Name::Rot90),
    ("random_rot90", Name::RandomRot90),
    ("rotate", Name::Rotate),
    ("random_rotate", Name::RandomRotate),
    ("brightness", Name::Brightness),
    ("random_brightness", Name::RandomBrightness),
    ("contrast", Name::Contrast),
    ("random_contrast", Name::RandomContrast),
    ("saturation", Name::Saturation),
    ("random_saturation", Name::RandomSaturation),
    ("hue", Name::Hue),
    ("random_hue", Name::RandomHue),
    ("grey", Name::Grey),
    ("standardize", Name::Standardize),
    ("finite", Name::Finite),
    ("fill", Name::Fill),
];

/// The operations on columns, in order.
pub(super) fn maps(data: &Reader<'_>, seed: u64) -> Result<Vec<(String, Arc<dyn Op>)>> {
    let mut maps = Vec::new();
    for map in data.sections("map")?.unwrap_or_default() {
        let (usual, op) = operation(&map, named(&map)?, seed)?;
        let column = map.text("column")?.unwrap_or(usual).to_string();
        map.finish()?;
        maps.push((column, op));
    }
    Ok(maps)
}

/// The operations of a list, all on the same column.
pub(super) fn operations(table: &Reader<'_>, key: &'static str, seed: u64) -> Result<Vec<Arc<dyn Op>>> {
    let example = "a list of operations, such as [{ op = \"cast\" }, { op = \"scale\", by = 0.5 }]";
    let list = table.sections(key)?.filter(|list| !list.is_empty()).ok_or_else(|| table.missing(key, example))?;
    let read = |map: Reader<'_>| {
        let (_, op) = operation(&map, named(&map)?, seed)?;
        map.finish()?;
        Ok(op)
    };
    list.into_iter().map(read).collect()
}

fn named(map: &Reader<'_>) -> Result<Name> {
    let Some(name) = map.text("op")? else { return Err(map.missing("op", "which operation, such as \"scale\"")) };
    choose(&map.name("op"), name, &KNOWN)
}

/// One operation, and the column it is usually for.
pub(super) fn operation(map: &Reader<'_>, kind: Name, seed: u64) -> Result<(&'static str, Arc<dyn Op>)> {
    let size = || {
        let size = map.pair("size")?;
        size.ok_or_else(|| map.missing("size", "height and width, such as [64, 64]"))
    };
    let seed = || Ok::<_, Error>(map.count("seed", 0)?.unwrap_or(seed));
    let needed = |key: &'static str, what: &str| Ok::<_, Error>(map.number(key)?.ok_or_else(|| map.missing(key, what))? as f32);
    let corners = || Ok::<_, Error>(map.number("fill")?.unwrap_or(0.0) as f32);
    let (column, op): (&'static str, Arc<dyn Op>) = match kind {
        Name::Decode => ("x", decode(map)?),
        Name::Cast => ("x", cast_f32()),
        Name::Scale => ("x", scale(map.number("by")?.ok_or_else(|| map.missing("by", "the factor"))? as f32)),
        Name::Normalize => {
            let mean = map.numbers("mean")?.ok_or_else(|| map.missing("mean", "a number, or one per channel"))?;
            let std = map.numbers("std")?.ok_or_else(|| map.missing("std", "a number, or one per channel"))?;
            ("x", normalize(mean, std))
        }
        Name::Resize => {
            let (height, width) = size()?;
            ("x", resize(height, width, method(map)?))
        }
        Name::RandomResizedCrop => {
            let ((height, width), usual) = (size()?, Part::default());
            let share = range(map, "share")?.unwrap_or(usual.share);
            let ratio = range(map, "ratio")?.unwrap_or(usual.ratio);
            ("x", random_resized_crop(height, width, Part { share, ratio, method: method(map)?, seed: seed()? }))
        }
        Name::Pad | Name::CropOrPad => {
            let ((height, width), value) = (size()?, map.number("value")?.unwrap_or(0.0) as f32);
            ("x", if matches!(kind, Name::Pad) { pad(height, width, value) } else { crop_or_pad(height, width, value) })
        }
        Name::Rot90 => ("x", rot90(map.count("quarters", 0)?.unwrap_or(1) as u32 % 4)),
        Name::RandomRot90 => ("x", random_rot90(seed()?)),
        Name::Rotate => ("x", rotate(needed("degrees", "the angle, counter-clockwise")?, corners()?)),
        Name::RandomRotate => ("x", random_rotate(needed("degrees", "the largest angle in either direction")?, corners()?, seed()?)),
        Name::Brightness => ("x", brightness(needed("by", "what is added")?)),
        Name::RandomBrightness => ("x", random_brightness(needed("by", "the most that is added or taken away")?, seed()?)),
        Name::Contrast => ("x", contrast(needed("by", "the factor")?)),
        Name::Saturation => ("x", saturation(needed("by", "the factor")?)),
        Name::RandomContrast | Name::RandomSaturation => {
            let wanted = "the least and the greatest factor, such as [0.8, 1.2]";
            let (least, most) = range(map, "by")?.ok_or_else(|| map.missing("by", wanted))?;
            let random = if matches!(kind, Name::RandomContrast) { random_contrast } else { random_saturation };
            ("x", random(least, most, seed()?))
        }
        Name::Hue => ("x", hue(needed("by", "a share of the circle, such as 0.1")?)),
        Name::RandomHue => ("x", random_hue(needed("by", "the most in either direction, such as 0.1")?, seed()?)),
        Name::Grey => ("x", grey()),
        Name::Standardize => ("x", standardize()),
        Name::Finite => ("y", finite()),
        Name::Fill => ("x", fill(map.number("value")?.unwrap_or(0.0) as f32)),
        Name::CenterCrop => {
            let (height, width) = size()?;
            ("x", center_crop(height, width))
        }
        Name::RandomCrop => {
            let (height, width) = size()?;
            ("x", random_crop(height, width, seed()?))
        }
        Name::FlipLeftRight => ("x", flip_left_right(seed()?)),
        Name::FlipUpDown => ("x", flip_up_down(seed()?)),
        Name::OneHot => ("y", one_hot(map.count("classes", 1)?.ok_or_else(|| map.missing("classes", "how many there are"))? as usize)),
    };
    Ok((column, op))
}

fn method(map: &Reader<'_>) -> Result<Method> {
    Ok(map.choice("method", &Method::ALL.map(|method| (method.name(), method)))?.unwrap_or(Method::Bilinear))
}

/// Two numbers.
fn range(map: &Reader<'_>, key: &'static str) -> Result<Option<(f32, f32)>> {
    match map.numbers(key)?.as_deref() {
        None => Ok(None),
        Some(&[least, most]) => Ok(Some((least, most))),
        Some(_) => Err(Error::Config(format!("`{}` should be two numbers, the smaller one first, such as [0.8, 1.2]", map.name(key)))),
    }
}

fn decode(map: &Reader<'_>) -> Result<Arc<dyn Op>> {
    let decode = match map.count("channels", 1)? {
        None | Some(3) => Decode::new(),
        Some(1) => Decode::new().grey(),
        Some(other) => return Err(Error::Config(format!("`{}` is {other}, but should be 1 or 3", map.name("channels")))),
    };
    Ok(if map.flag("upright")?.unwrap_or(false) { decode.upright().op() } else { decode.op() })
}
