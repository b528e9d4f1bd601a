//! Files of other tools in `fixtures/`, written by the scripts there: each is read to the values that its writer
//! reports, or refused with a hint. The manifests, one per script, are also the table in `docs/formats.md`.

use crate::collect::column;
use plimsoll_core::DType;
use plimsoll_data::ops::{crop_or_pad, decode, decode_mask};
use plimsoll_data::source::{Feature, LabelFile, LabelKind};
use plimsoll_data::{DataError, Dataset, numbers};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The entries of all manifests, by the names of these.
fn entries() -> Vec<Value> {
    let manifests = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut manifests: Vec<PathBuf> = manifests.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    manifests.sort();
    manifests.iter().flat_map(|path| serde_json::from_slice::<Vec<Value>>(&fs::read(path).unwrap()).unwrap()).collect()
}

/// The size of all images of the fixtures.
const SIZE: (usize, usize) = (5, 7);

fn sized(data: Dataset) -> Dataset {
    data.map("x", [decode(), crop_or_pad(SIZE.0, SIZE.1, 0.0)])
}

/// The rows of a fixture, as its reader makes them; `None` if another test reads it.
fn open(entry: &Value) -> Option<Result<Dataset, DataError>> {
    let (path, text) = (folder().join(entry["file"].as_str().unwrap()), |key: &str| entry[key].as_str().map(str::to_string));
    Some(match entry["reader"].as_str().unwrap() {
        "npy" => Dataset::npy(&[("x", path)]),
        "npz" => Dataset::npz(path, &[("x", "x"), ("y", "y")]),
        "image" => Dataset::image_files(path).map(sized),
        "mask" => {
            let alone = tempfile::tempdir().unwrap();
            let (images, masks) = (alone.path().join("images"), alone.path().join("masks"));
            [&images, &masks].iter().for_each(|folder| fs::create_dir(folder).unwrap());
            let name = path.file_name().unwrap();
            fs::copy(folder().join("image/rgb.bmp"), images.join(name).with_extension("bmp")).unwrap();
            fs::copy(&path, masks.join(name)).unwrap();
            let data = Dataset::image_masks(&images, &masks, &[]);
            let data = data.map(|data| sized(data).map("y", [decode_mask(), crop_or_pad(SIZE.0, SIZE.1, 0.0)]).batch(1));
            // Read before the folder is removed.
            return Some(data.and_then(|data| column(&data, 1, 0, None)).and_then(|rows| {
                let rows: Vec<u8> = rows.concat();
                let shape = [1, SIZE.0, SIZE.1, 1];
                Dataset::from_tensor_slices([("y", plimsoll_data::Tensor::u8(shape, rows)?)])
            }));
        }
        "pairs" => Dataset::image_masks(path.join("images"), path.join("masks"), &[])
            .map(|data| data.map_image_and_mask([decode(), crop_or_pad(SIZE.0, SIZE.1, 0.0)])),
        "labels" => {
            let label = text("label").unwrap();
            let kind = if label == "weight" { LabelKind::Number } else { LabelKind::Class };
            let labels = LabelFile { path: path.join("labels.csv"), file: None, label: Some(label), kind };
            Dataset::labelled_images(&path, &labels).map(sized)
        }
        "webdataset" => Dataset::webdataset(path).map(sized),
        "tfrecord" => Dataset::tfrecord(path, &[("x", Feature::f32("x", [3, 2])), ("y", Feature::i32("y", []))]),
        _ => return None,
    })
}

/// The values of a column, as the manifest lists them.
fn values(data: &Dataset, name: &str) -> Result<Vec<Vec<f64>>, DataError> {
    let schema = data.output_schema()?;
    let index = schema.index_of(name).unwrap();
    let dtype: DType = schema.columns()[index].dtype;
    Ok(column(&data.clone().batch(2), index, 0, None)?.iter().map(|row| numbers(dtype, row).collect()).collect())
}

#[test]
fn fixtures_are_read_to_the_values_of_their_writers_or_refused_with_a_hint() {
    let mut read = 0;
    for entry in entries() {
        let Some(opened) = open(&entry) else { continue };
        let (what, data) = (entry["what"].as_str().unwrap(), opened);
        read += 1;
        match entry["refused"].as_str() {
            Some(hint) => {
                let name = |data: &Dataset| data.output_schema().unwrap().columns()[0].name.clone();
                let error = data.and_then(|data| values(&data, &name(&data))).expect_err(what).to_string();
                assert!(error.contains(hint), "{what}: {error}");
            }
            None => {
                let data = data.unwrap_or_else(|error| panic!("{what}: {error}"));
                for (column, rows) in entry["rows"].as_object().unwrap() {
                    let expected: Vec<Vec<f64>> = serde_json::from_value(rows.clone()).unwrap();
                    let found = values(&data, column).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(found, expected, "{what}, column {column}");
                }
                if let Some(classes) = entry["classes"].as_array() {
                    assert_eq!(data.class_names(), classes.iter().map(|name| name.as_str().unwrap()).collect::<Vec<_>>(), "{what}");
                }
            }
        }
    }
    assert!(read >= 61, "{read} fixtures");
}

/// The table in the documentation follows from the manifests; `UPDATE_DOCS=1` writes it.
#[test]
fn the_documented_table_of_formats_is_that_of_the_fixtures() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut table = "| what | written by | result |\n|---|---|---|\n".to_string();
    for entry in entries() {
        let result = entry["refused"].as_str().map_or("read".to_string(), |hint| format!("refused: … {hint}"));
        table += &format!("| {} | `{}` | {result} |\n", entry["what"].as_str().unwrap(), entry["writer"].as_str().unwrap());
    }
    let (start, end) = ("<!-- fixtures -->\n", "<!-- end of fixtures -->");
    let (before, rest) = text.split_once(start).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{start}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(found, table, "run UPDATE_DOCS=1 cargo test -p plimsoll-data --test formats");
}
