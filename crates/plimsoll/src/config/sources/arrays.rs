//! Arrays of NumPy.

use super::{InputKind, Opened, SourceArgs, SourceKind, only_path, with_path};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::Dataset;
use std::path::PathBuf;
use toml::Value;

pub(super) const NPY: SourceKind = SourceKind {
    name: "npy",
    keys: r#"`x`, `y`: paths; or `files = { x = "a.npy", digit = "b.npy" }` for columns of any name"#,
    rows: "the first dimension of each array",
    paths: &["x", "y", "files"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: npy,
    from_path: Some(|path| Ok(with_path("x", path))),
};

pub(super) const NPZ: SourceKind = SourceKind {
    name: "npz",
    keys: r#"`path`, `arrays = ["images", "labels"]` or `{ x = "images", digit = "labels" }`"#,
    rows: "the same, from one file of `numpy.savez`; files of `numpy.savez_compressed` are decompressed as a stream",
    paths: &["path"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: npz,
    from_path: Some(only_path),
};

fn npy(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let files: Vec<(&str, PathBuf)> = if table.value("files").is_some() {
        let files = columns(table, "files", "{ x = \"images.npy\", digit = \"digits.npy\" }")?;
        files.into_iter().map(|(column, file)| (column, args.folder.join(file))).collect()
    } else {
        let x = args.path("x", "the path of a .npy file")?;
        // Rows can be inspected without labels; training requires them.
        let y = table.text("y")?.map(|y| ("y", args.folder.join(y)));
        [("x", x)].into_iter().chain(y).collect()
    };
    Ok(Opened::new(Dataset::npy(&files)?))
}

fn npz(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let path = args.path("path", "the path of a .npz file")?;
    if table.value("arrays").is_some_and(Value::is_table) {
        let arrays = columns(table, "arrays", "{ x = \"images\", digit = \"digits\" }")?;
        return Ok(Opened::new(Dataset::npz(path, &arrays)?));
    }
    let names = table.texts("arrays")?.unwrap_or_else(|| vec!["x".into(), "y".into()]);
    let [x, y] = &names[..] else {
        let what = format!("`{}` is {names:?}, but should be two names, such as [\"images\", \"labels\"]", table.name("arrays"));
        return Err(Error::Config(what));
    };
    Ok(Opened::new(Dataset::npz(path, &[("x", x), ("y", y)])?))
}

/// A table of columns with their sources.
fn columns<'a>(data: &Reader<'a>, key: &'static str, example: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let wanted = format!("a table of columns, such as {example}");
    let Some(Value::Table(table)) = data.value(key) else {
        return Err(data.value(key).map_or_else(|| data.missing(key, &wanted), |value| data.wrong(key, value, &wanted)));
    };
    table
        .iter()
        .map(|(column, name)| Ok((column.as_str(), name.as_str().ok_or_else(|| data.wrong(key, &Value::Table(table.clone()), &wanted))?)))
        .collect()
}
