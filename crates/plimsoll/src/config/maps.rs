//! The operations of `data.map`.

use super::reader::{Reader, choose};
use crate::error::{Error, Result};
use plimsoll_data::ops::{
    Decode, Method, Op, cast_f32, center_crop, flip_left_right, flip_up_down, normalize, one_hot, random_crop, resize, scale,
};
use std::sync::Arc;

#[derive(Clone, Copy)]
enum Name {
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
}

const KNOWN: [(&str, Name); 10] = [
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
];

/// The operations on columns, in order.
pub(super) fn maps(data: &Reader<'_>, seed: u64) -> Result<Vec<(String, Arc<dyn Op>)>> {
    let mut maps = Vec::new();
    for map in data.sections("map")?.unwrap_or_default() {
        let Some(name) = map.text("op")? else { return Err(map.missing("op", "which operation, such as \"scale\"")) };
        let size = || {
            let size = map.pair("size")?;
            size.ok_or_else(|| map.missing("size", "height and width, such as [64, 64]"))
        };
        let seed = || Ok::<_, Error>(map.count("seed", 0)?.unwrap_or(seed));
        let (column, op): (&str, Arc<dyn Op>) = match choose(&map.name("op"), name, &KNOWN)? {
            Name::Decode => ("x", decode(&map)?),
            Name::Cast => ("x", cast_f32()),
            Name::Scale => ("x", scale(map.number("by")?.ok_or_else(|| map.missing("by", "the factor"))? as f32)),
            Name::Normalize => {
                let mean = map.numbers("mean")?.ok_or_else(|| map.missing("mean", "a number, or one per channel"))?;
                let std = map.numbers("std")?.ok_or_else(|| map.missing("std", "a number, or one per channel"))?;
                ("x", normalize(mean, std))
            }
            Name::Resize => {
                let (height, width) = size()?;
                let method = map.choice("method", &[("bilinear", Method::Bilinear), ("nearest", Method::Nearest)])?;
                ("x", resize(height, width, method.unwrap_or(Method::Bilinear)))
            }
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
        let column = map.text("column")?.unwrap_or(column).to_string();
        map.finish()?;
        maps.push((column, op));
    }
    Ok(maps)
}

fn decode(map: &Reader<'_>) -> Result<Arc<dyn Op>> {
    let decode = match map.count("channels", 1)? {
        None | Some(3) => Decode::new(),
        Some(1) => Decode::new().grey(),
        Some(other) => return Err(Error::Config(format!("`{}` is {other}, but should be 1 or 3", map.name("channels")))),
    };
    Ok(if map.flag("upright")?.unwrap_or(false) { decode.upright().op() } else { decode.op() })
}
