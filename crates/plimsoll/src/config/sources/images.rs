//! Encoded images: folders, glob patterns and tar shards.

use super::{Opened, SourceArgs, SourceKind, only_path};
use crate::error::Result;
use plimsoll_data::Dataset;
use std::path::Path;
use toml::{Table, Value};

pub(super) const IMAGE_FOLDER: SourceKind = SourceKind {
    name: "image_folder",
    keys: "`path`; `classes`: a folder that defines the classes and their order",
    rows: "one class per folder; an empty folder is an error",
    paths: &["path", "classes"],
    unchecked_floats: false,
    open: |args| {
        let known = args.fitted.map(|fitted| &fitted.classes[..]).filter(|classes| !classes.is_empty());
        let training = image_folder(args, known)?;
        let (classes, folder) = (training.class_names(), args.folder.to_path_buf());
        Ok(Opened::new(training).with_validation(move |table| {
            let Some(table) = table else { return Ok(None) };
            image_folder(&SourceArgs { table, folder: &folder, lenient: false, fitted: None }, Some(&classes)).map(Some)
        }))
    },
    from_path: Some(decoded),
};

pub(super) const IMAGE_FILES: SourceKind = SourceKind {
    name: "image_files",
    keys: "`path`: a glob pattern such as `photos/**/*.jpg`",
    rows: "images without labels, sorted by name",
    paths: &["path"],
    unchecked_floats: false,
    open: |args| Ok(Opened::new(Dataset::image_files(args.path("path", "a glob pattern of images, such as photos/**/*.jpg")?)?)),
    from_path: Some(decoded),
};

pub(super) const WEBDATASET: SourceKind = SourceKind {
    name: "webdataset",
    keys: "`path`: a glob pattern such as `train-*.tar`",
    rows: "images with their class in `.cls`",
    paths: &["path"],
    unchecked_floats: false,
    open: |args| {
        let path = args.path("path", "the path of a tar file, or a glob pattern such as train-*.tar")?;
        Ok(Opened::new(Dataset::webdataset(path)?))
    },
    from_path: Some(decoded),
};

/// A path, with images decoded and resized to the usual input size.
fn decoded(path: &Path) -> Result<Table> {
    let mut table = only_path(path)?;
    table.insert("map".into(), decode_and_resize());
    Ok(table)
}

/// `map = [{ op = "decode" }, { op = "resize", size = [224, 224] }]`
pub(super) fn decode_and_resize() -> Value {
    let op = |name: &str| Table::from_iter([("op".to_string(), Value::from(name))]);
    let mut resize = op("resize");
    resize.insert("size".into(), Value::from(vec![224, 224]));
    Value::from(vec![op("decode"), resize])
}

fn image_folder(args: &SourceArgs<'_>, classes: Option<&[String]>) -> Result<Dataset> {
    let path = args.path("path", "a folder with one folder of images per class")?;
    if let Some(other) = args.table.text("classes")? {
        let classes = Dataset::image_folder(args.folder.join(other))?.class_names();
        return Ok(Dataset::image_folder_with(path, &classes)?);
    }
    Ok(match classes {
        Some(classes) => Dataset::image_folder_with(path, classes)?,
        None => Dataset::image_folder(path)?,
    })
}
