//! Sources without files: synthetic rows, consecutive integers, and the embedded digits.

use super::{InputKind, Opened, SourceArgs, SourceKind};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::source::ShapesSpec;
use plimsoll_data::{Dataset, RandomSpec, Split};

pub(super) const DIGITS: SourceKind = SourceKind {
    name: "digits",
    keys: "",
    rows: "the embedded data set",
    paths: &[],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |_| Ok(Opened::new(Dataset::digits(Split::Train)).with_validation(|_| Ok(Some(Dataset::digits(Split::Test))))),
    from_path: None,
};

pub(super) const RANDOM: SourceKind = SourceKind {
    name: "random",
    keys: "`rows`, `x`, `y` or `classes`, `dtype`, `seed`",
    rows: "synthetic numbers",
    paths: &[],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| Ok(Opened::new(random(args.table)?)),
    from_path: None,
};

pub(super) const RANGE: SourceKind = SourceKind {
    name: "range",
    keys: "`start`, `stop`, `step`",
    rows: "integers in order",
    paths: &[],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: range,
    from_path: None,
};

pub(super) const SHAPES: SourceKind = SourceKind {
    name: "shapes",
    keys: "`rows`, `size`, `seed`, `shapes`",
    rows: "synthetic images u8 `[h, w, 3]` of circles, rectangles and triangles, with a mask i32 `[h, w]`",
    paths: &[],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| {
        let size = args.table.pair("size")?.unwrap_or((64, 64));
        let most = args.table.count("shapes", 1)?.unwrap_or(4) as usize;
        let training = shapes(args.table, size, most)?;
        Ok(Opened::new(training).with_validation(move |table| table.map(|table| shapes(table, size, most)).transpose()))
    },
    from_path: None,
};

fn shapes(table: &Reader<'_>, (height, width): (usize, usize), most: usize) -> Result<Dataset> {
    let rows = table.count("rows", 1)?.ok_or_else(|| table.missing("rows", "the number of images to generate"))?;
    let seed = table.count("seed", 0)?.unwrap_or(0);
    Ok(Dataset::shapes(ShapesSpec::new(rows, height, width).seed(seed).at_most(most))?)
}

fn range(args: &SourceArgs<'_>) -> Result<Opened> {
    let number = |key: &'static str, default: Option<i32>| match args.table.value(key) {
        None => default.ok_or_else(|| args.table.missing(key, "the number to end before")),
        Some(value) => {
            let wrong = || args.table.wrong(key, value, "an integer of 32 bits");
            value.as_integer().and_then(|number| i32::try_from(number).ok()).ok_or_else(wrong)
        }
    };
    Ok(Opened::new(Dataset::range(number("start", Some(0))?, number("stop", None)?, number("step", Some(1))?)?))
}

fn random(data: &Reader<'_>) -> Result<Dataset> {
    let rows = data.count("rows", 1)?.ok_or_else(|| data.missing("rows", "the number of rows to generate"))?;
    let x = data.counts("x")?.ok_or_else(|| data.missing("x", "the shape of one row, such as [28, 28, 1]"))?;
    let spec = RandomSpec::new(rows).seed(data.count("seed", 0)?.unwrap_or(0));
    let spec = match data.choice("dtype", &[("f32", false), ("u8", true)])?.unwrap_or(false) {
        true => spec.bytes("x", x),
        false => spec.floats("x", x),
    };
    let spec = match (data.count("classes", 1)?, data.counts("y")?) {
        (Some(classes), None) => spec.labels("y", u32::try_from(classes).unwrap_or(u32::MAX)),
        (None, Some(shape)) => spec.floats("y", shape),
        (None, None) => return Err(data.missing("y", "the shape of one row's labels, or `classes` for class indices instead")),
        (Some(_), Some(_)) => {
            let what = format!("`{}` and `{}` both define the labels; leave one of them out", data.name("y"), data.name("classes"));
            return Err(Error::Config(what));
        }
    };
    Ok(Dataset::random(spec)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_synthetic_rows_are_defined_once() {
        let error = |labels: &str| {
            let table = format!("[data]\nrows = 3\nx = [2]\n{labels}").parse::<toml::Table>().unwrap();
            let data = Reader::root(&table).section("data").unwrap().unwrap();
            random(&data).err().map(|error| error.to_string())
        };
        assert_eq!(error("classes = 3"), None);
        assert_eq!(error("y = [1]"), None);
        assert_eq!(error("").unwrap(), "`data.y` is missing: the shape of one row's labels, or `classes` for class indices instead");
        assert_eq!(error("y = [1]\nclasses = 3").unwrap(), "`data.y` and `data.classes` both define the labels; leave one of them out");
    }
}
