//! Encoded images: folders, glob patterns and tar shards.

use super::{InputKind, Opened, SourceArgs, SourceKind, only_path};
use crate::error::Result;
use plimsoll_data::Dataset;
use plimsoll_data::source::{ImageMasks, LabelFile, LabelKind, LabelledImages};
use std::path::Path;
use toml::{Table, Value};

pub(super) const IMAGE_FOLDER: SourceKind = SourceKind {
    name: "image_folder",
    keys: "`path`; `classes`: a folder that defines the classes and their order; `labels = { path = \"labels.csv\", name = \"id\", \
           label = \"breed\", type = \"class\" }` or only its path: a CSV file with the labels of a flat folder",
    rows: "one class per folder; an empty folder is an error. With `labels`, the rows of the CSV file; `type = \"number\"` for regression",
    paths: &["path", "classes", "labels"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Images,
    open: |args| {
        let known = args.fitted.map(|fitted| &fitted.classes[..]).filter(|classes| !classes.is_empty());
        let training = image_folder(args, known)?;
        let (classes, folder) = (training.class_names(), args.folder.to_path_buf());
        Ok(Opened::new(training).with_validation(move |table| {
            let Some(table) = table else { return Ok(None) };
            image_folder(&SourceArgs { table, folder: &folder, lenient: false, fitted: None, host: None }, Some(&classes)).map(Some)
        }))
    },
    from_path: Some(decoded),
};

pub(super) const IMAGE_MASKS: SourceKind = SourceKind {
    name: "image_masks",
    keys: "`images`, `masks`: folders; `suffix`: what follows the name of the image in that of its mask, such as \"_mask\"; \
           `classes = [\"background\", \"road\"]`; `values = [0, 255]`: the pixel value of each class, if it is not its index",
    rows: "images with segmentation masks of the same name; operations that move pixels are applied to both",
    paths: &["images", "masks"],
    unchecked_floats: false,
    has_masks: true,
    inputs: InputKind::Images,
    open: |args| {
        let fitted = args.fitted.map(|fitted| &fitted.classes[..]).filter(|classes| !classes.is_empty());
        let training = image_masks(args, fitted)?;
        let (classes, folder) = (training.class_names(), args.folder.to_path_buf());
        // Masks of validation data are named and numbered as those of the training data.
        let inherited = args.table.text("suffix")?.map(str::to_string);
        Ok(Opened::new(training).with_validation(move |table| {
            let Some(table) = table else { return Ok(None) };
            let args = SourceArgs { table, folder: &folder, lenient: false, fitted: None, host: None };
            let suffix = table.text("suffix")?.map(str::to_string).or_else(|| inherited.clone());
            open_masks(&args, suffix.as_deref().unwrap_or_default(), &classes).map(Some)
        }))
    },
    from_path: None,
};

pub(super) const IMAGE_FILES: SourceKind = SourceKind {
    name: "image_files",
    keys: "`path`: a glob pattern such as `photos/**/*.jpg`",
    rows: "images without labels, sorted by name",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Images,
    open: |args| Ok(Opened::new(Dataset::image_files(args.path("path", "a glob pattern of images, such as photos/**/*.jpg")?)?)),
    from_path: Some(decoded),
};

pub(super) const WEBDATASET: SourceKind = SourceKind {
    name: "webdataset",
    keys: "`path`: a glob pattern such as `train-*.tar` or `train-{000..012}.tar`",
    rows: "images with their class in `.cls`; `.tar.gz` is decompressed as a stream of images of up to 4 MiB",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Images,
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

/// Images with masks, of the classes that are named or known.
fn image_masks(args: &SourceArgs<'_>, known: Option<&[String]>) -> Result<Dataset> {
    let classes = args.table.texts("classes")?.or_else(|| known.map(<[String]>::to_vec)).unwrap_or_default();
    args.table.value("values");
    open_masks(args, args.table.text("suffix")?.unwrap_or_default(), &classes)
}

fn open_masks(args: &SourceArgs<'_>, suffix: &str, classes: &[String]) -> Result<Dataset> {
    let images = args.path("images", "a folder of images")?;
    let masks = args.path("masks", "a folder of masks, each with the name of its image")?;
    Ok(ImageMasks::open(&images, &masks, suffix, classes)?.into())
}

/// The CSV file of `labels`: its path, or a table.
fn labels(args: &SourceArgs<'_>) -> Result<Option<LabelFile>> {
    match args.table.value("labels") {
        None => Ok(None),
        Some(Value::String(path)) => Ok(Some(LabelFile { path: args.folder.join(path), ..LabelFile::default() })),
        Some(Value::Table(_)) => {
            let table = args.table.section("labels")?.expect("just seen");
            let path = table.text("path")?.ok_or_else(|| table.missing("path", "the CSV file with the labels"))?;
            let kinds = [("class", LabelKind::Class), ("number", LabelKind::Number)];
            let file = LabelFile {
                path: args.folder.join(path),
                file: table.text("name")?.map(str::to_string),
                label: table.text("label")?.map(str::to_string),
                kind: table.choice("type", &kinds)?.unwrap_or_default(),
            };
            table.finish()?;
            Ok(Some(file))
        }
        Some(other) => Err(args.table.wrong("labels", other, "the path of a CSV file, or a table such as { path = \"labels.csv\" }")),
    }
}

fn image_folder(args: &SourceArgs<'_>, classes: Option<&[String]>) -> Result<Dataset> {
    let path = args.path("path", "a folder with one folder of images per class")?;
    if let Some(labels) = labels(args)? {
        return Ok(LabelledImages::open(&path, &labels, classes)?.into());
    }
    if let Some(other) = args.table.text("classes")? {
        let classes = Dataset::image_folder(args.folder.join(other))?.class_names();
        return Ok(Dataset::image_folder_with(path, &classes)?);
    }
    Ok(match classes {
        Some(classes) => Dataset::image_folder_with(path, classes)?,
        None => Dataset::image_folder(path)?,
    })
}
