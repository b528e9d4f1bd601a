//! Files that Keras, h5py and others wrote (`references/make_models.py`), read back; and what is refused, by name.

use plimsoll_formats::hdf5::{Hdf5, Hdf5Node, Layout};
use plimsoll_formats::keras::{KerasModel, Weights};
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::zip::{Zip, ZipWriter};
use std::io::{Cursor, Write};
use std::path::Path;

pub fn reference(name: &str) -> Region {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references").join(name);
    Region::bytes(std::fs::read(path).unwrap())
}

/// What the script writes: 0, 1/8, 2/8 and so on.
fn eighths(count: usize) -> Vec<f64> {
    (0..count).map(|index| index as f64 / 8.0).collect()
}

#[test]
fn a_keras_archive_has_its_configuration_and_weights_by_path() {
    let model = KerasModel::open(reference("small.keras")).unwrap();
    assert_eq!(model.config["class_name"], "Sequential");
    assert_eq!(model.config["config"]["layers"][1]["config"]["name"], "body");
    assert_eq!(model.compile_config.unwrap()["loss"], "mse");
    assert!(model.keras_version.unwrap().starts_with("3."));
    let Weights::Paths(weights) = model.weights else { panic!("weights by path") };
    assert_eq!(weights.attribute("layers/dense_1/vars", "name").unwrap(), ["head"]);
    let kernel = weights.dataset("layers/dense/vars/0").unwrap();
    assert_eq!((kernel.dtype, &kernel.shape[..]), (DType::F32, &[4, 3][..]));
    assert_eq!(kernel.numbers(100).unwrap(), eighths(12));
    assert_eq!(weights.dataset("layers/dense_1/vars/1").unwrap().numbers(100).unwrap(), eighths(2));
}

#[test]
fn a_legacy_file_has_the_same_by_layer() {
    let model = KerasModel::open(reference("small.h5")).unwrap();
    assert_eq!(model.config["class_name"], "Sequential");
    assert_eq!(model.compile_config.unwrap()["loss"], "mse");
    let Weights::Legacy(weights) = model.weights else { panic!("weights by layer") };
    assert_eq!(weights.layers(), ["body", "head"]);
    let body = weights.of("body");
    assert_eq!(body.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["small/body/kernel", "small/body/bias"]);
    assert_eq!(body[0].1.numbers(100).unwrap(), eighths(12));
}

#[test]
fn a_bare_configuration_has_no_weights() {
    let model = KerasModel::open(reference("small_config.json")).unwrap();
    assert_eq!(model.config["config"]["layers"].as_array().unwrap().len(), 3);
    assert!(matches!(model.weights, Weights::None));
}

#[test]
fn all_layouts_that_h5py_writes_are_read() {
    let file = Hdf5::open(reference("layouts.h5")).unwrap();
    let numbers = |path: &str| file.dataset(path).unwrap_or_else(|| panic!("{path}")).numbers(1000).unwrap();
    for path in ["chunked", "gzip", "half"] {
        assert_eq!(numbers(path), eighths(37 * 11), "{path}");
        // From any position, in any number of pieces.
        let tensor = file.dataset(path).unwrap();
        let mut reader = tensor.reader();
        for at in [0, 3, 10, 11, 85, 400] {
            let mut some = [0.0; 7];
            reader.f32s(at, &mut some).unwrap();
            assert_eq!(some.map(f64::from)[..], eighths(407)[at as usize..at as usize + 7], "{path} from {at}");
        }
    }
    assert_eq!(numbers("whole"), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]);
    assert_eq!(numbers("flags"), [1.0, 0.0]);
    assert_eq!((numbers("scalar"), &file.dataset("scalar").unwrap().shape[..]), (vec![2.5], &[][..]));
    assert_eq!(numbers("unwritten"), [0.0; 15]);
    assert_eq!(numbers("empty"), [0.0; 0]);
    assert_eq!(numbers("compact"), eighths(3));
    assert_eq!(file.objects.keys().filter(|path| path.starts_with("many/")).count(), 300);
    assert_eq!(numbers("many/member_299"), [2.5]);
    assert_eq!(file.attribute("", "text").unwrap(), ["variable length ✓"]);
    assert_eq!(file.attribute("", "list").unwrap(), ["a", "bc"]);
    assert_eq!(file.attribute("", "bytes").unwrap(), ["fixed"]);
    assert_eq!(file.attribute("", "number"), None);
}

#[test]
fn what_would_open_other_files_or_run_code_is_refused_by_name() {
    let hdf5 = |name: &str| Hdf5::open(reference(name)).unwrap_err().to_string();
    assert_eq!(hdf5("refused_external_link.h5"), "`stolen` in the root group is a link to another file, which is not opened");
    assert_eq!(hdf5("refused_soft_link.h5"), "`alias` in the root group is a soft link; only objects themselves are read");
    assert_eq!(hdf5("refused_virtual.h5"), "the dataset `data` is virtual: its elements are in other files, which are not opened");
    assert_eq!(hdf5("refused_external_storage.h5"), "the elements of the dataset `data` are in another file, which is not opened");
    assert!(hdf5("refused_latest.h5").starts_with("the HDF5 file has superblock version 3; Keras writes version 0"));
    assert_eq!(hdf5("refused_filter.h5"), "the dataset `a` is compressed with the filter 32000; gzip and shuffle are read");
    let keras = |name: &str| KerasModel::open(reference(name)).unwrap_err().to_string();
    let hint = "no code from a file is run; express it with layers of Keras";
    assert_eq!(keras("refused_lambda.keras"), format!("`evil` is a Lambda, which is Python code: {hint}"));
    assert_eq!(keras("refused_custom.keras"), format!("`odd` is of the custom class `mine>Doubled`: {hint}"));
}

#[test]
fn written_files_are_read_back_whatever_the_number_of_members() {
    for members in [0, 1, 8, 9, 256, 257, 300, 9000] {
        let mut root = Hdf5Node::group();
        root.insert("empty", Hdf5Node::group());
        for index in 0..members {
            root.insert(&format!("layers/dense_{index}/vars/0"), Hdf5Node::Dataset { dtype: DType::F32, shape: vec![1 + index % 3] });
        }
        let layout = Layout::new(&root);
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let element = |path: &str| path.split(['_', '/']).nth(2).unwrap().parse::<u64>().unwrap();
        archive.member("config.json", 2, |out| out.write_all(b"{}")).unwrap();
        let write = |out: &mut dyn Write| {
            layout.write(out, |path, out| {
                let index = element(path);
                (0..1 + index % 3).try_for_each(|_| out.write_all(&(index as f32).to_le_bytes()))
            })
        };
        archive.member("model.weights.h5", layout.length(), write).unwrap();
        let zip = Zip::open(Region::bytes(archive.finish().unwrap().into_inner())).unwrap();
        assert_eq!(zip.names().collect::<Vec<_>>(), ["config.json", "model.weights.h5"]);
        let file = Hdf5::open(zip.stored("model.weights.h5").unwrap().unwrap()).unwrap();
        assert_eq!(file.objects.values().filter(|object| object.dataset.is_some()).count() as u64, members);
        assert!(file.objects["empty"].dataset.is_none());
        for index in (0..members).step_by(97) {
            let tensor = file.dataset(&format!("layers/dense_{index}/vars/0")).unwrap();
            assert_eq!(tensor.numbers(10).unwrap(), vec![index as f64; 1 + (index % 3) as usize]);
        }
    }
}
