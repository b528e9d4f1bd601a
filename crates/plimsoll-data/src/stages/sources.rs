//! Sources as data sets.

use super::packed_images::PackedImages;
use crate::Dataset;
use crate::source::{
    self, ArrowSpec, Counted, Csv, CsvSpec, Digits, Feature, Function, ImageFiles, ImageFolder, ImageMasks, LabelFile, LabelledImages, Npy,
    Opened, PackedRecords, Packing, ParquetSpec, Random, RandomSpec, RowMut, Shapes, ShapesSpec, Split, Tensor, Tensors, Text, TfRecord,
    WebDataset,
};
use crate::{DataError, Schema};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Dataset {
    /// The embedded [digits](Digits): `x` u8 `[8, 8, 1]` from 0 to 16, `y` i32.
    pub fn digits(split: Split) -> Dataset {
        Dataset::from_source(Arc::new(Digits::new(split)))
    }

    /// Random rows.
    pub fn random(spec: RandomSpec) -> Result<Dataset, DataError> {
        Ok(Dataset::from_source(Arc::new(Random::new(spec)?)))
    }

    /// Columns from `.npy` files, given as pairs of column name and path.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let missing = Dataset::npy(&[("x", "no/such/x.npy"), ("y", "no/such/y.npy")]);
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such/x.npy: No such file or directory (os error 2)");
    /// ```
    pub fn npy<P: AsRef<Path>>(files: &[(&str, P)]) -> Result<Dataset, DataError> {
        Ok(Dataset::from_source(Arc::new(Npy::open(files)?)))
    }

    /// The images in the subfolders of a folder, one class per subfolder: `x` is the file, `y` its class index as
    /// i32. Needs [`decode`](crate::ops::decode) and then [`resize`](crate::ops::resize()) or a crop before it can be
    /// batched.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let missing = Dataset::image_folder("no/such/folder");
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot list no/such/folder: No such file or directory (os error 2)");
    /// ```
    pub fn image_folder(path: impl AsRef<Path>) -> Result<Dataset, DataError> {
        Ok(Dataset::from_source(Arc::new(ImageFolder::open(path.as_ref())?)))
    }

    /// Like [`image_folder`](Dataset::image_folder), with the class indices of another folder; a class that is not
    /// listed is an error.
    pub fn image_folder_with(path: impl AsRef<Path>, classes: &[String]) -> Result<Dataset, DataError> {
        Ok(Dataset::from_source(Arc::new(ImageFolder::open_with(path.as_ref(), Some(classes))?)))
    }

    /// Images and their segmentation masks from two folders, paired by file name: `x` is the image, `y` the mask of
    /// class indices. Map both with [`map_image_and_mask`](Dataset::map_image_and_mask). `classes` may be empty.
    pub fn image_masks(images: impl AsRef<Path>, masks: impl AsRef<Path>, classes: &[String]) -> Result<Dataset, DataError> {
        Ok(Dataset::from(ImageMasks::open(images.as_ref(), masks.as_ref(), "", classes)?))
    }

    /// Images of one folder with labels from a CSV file.
    pub fn labelled_images(path: impl AsRef<Path>, labels: &LabelFile) -> Result<Dataset, DataError> {
        Ok(Dataset::from(LabelledImages::open(path.as_ref(), labels, None)?))
    }

    /// A text file as windows of `context` characters. For splits, strides and a given vocabulary, see [`Text`].
    pub fn text(path: impl AsRef<Path>, context: usize) -> Result<Dataset, DataError> {
        Ok(Dataset::from(Text::open(path.as_ref(), context)?))
    }

    /// Columns of a CSV file, as rows or as time-series windows.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, source::CsvSpec};
    /// let missing = Dataset::csv("no/such.csv", &CsvSpec::new());
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such.csv: No such file or directory (os error 2)");
    /// ```
    pub fn csv(path: impl AsRef<Path>, spec: &CsvSpec) -> Result<Dataset, DataError> {
        Csv::open(path.as_ref(), spec)?.dataset()
    }

    /// Slices of tensors along their first dimension. The tensors are shared, not copied.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Tensor};
    /// let x = Tensor::f32([3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
    /// let data = Dataset::from_tensor_slices([("x", x), ("y", Tensor::i32([3], [0, 1, 0])?)])?;
    /// assert_eq!((data.len(), data.output_schema()?.to_string()), (3, "x: f32[2], y: i32[]".to_string()));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn from_tensor_slices<S: Into<String>>(columns: impl IntoIterator<Item = (S, Tensor)>) -> Result<Dataset, DataError> {
        Ok(Dataset::from(Tensors::new(columns)?))
    }

    /// The integers from `start` to `stop` (exclusive) by `step`, as the i32 column `x`.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// assert_eq!((Dataset::range(0, 10, 3)?.len(), Dataset::range(5, 0, -1)?.len(), Dataset::range(5, 0, 1)?.len()), (4, 5, 0));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn range(start: i32, stop: i32, step: i32) -> Result<Dataset, DataError> {
        Ok(Dataset::from(Counted::new(start, stop, step)?))
    }

    /// Rows computed by a closure: `make(n, row)` writes row `n`. Any thread may call it in any order, so it should
    /// depend only on `n`.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::{Column, Dataset, Schema};
    /// let schema = Schema::new(vec![Column::new("x", DType::F32, [2]), Column::new("y", DType::I32, [])])?;
    /// let data = Dataset::from_fn(schema, 1000, |n, row| {
    ///     row.f32(0, &[n as f32, 1.0])?;
    ///     row.i32(1, &[n as i32 % 2])
    /// });
    /// assert_eq!(data.len(), 1000);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn from_fn<F>(schema: Schema, rows: u64, make: F) -> Dataset
    where
        F: Fn(u64, &mut RowMut<'_, '_, '_>) -> Result<(), DataError> + Send + Sync + 'static,
    {
        Dataset::from(Function::new(schema, rows, make))
    }

    /// Synthetic images of circles, rectangles and triangles, with segmentation masks.
    pub fn shapes(spec: ShapesSpec) -> Result<Dataset, DataError> {
        Ok(Dataset::from(Shapes::new(spec)?))
    }

    /// Arrays of an `.npz` file, given as pairs of column name and array name. Files of `numpy.savez` are indexed;
    /// those of `numpy.savez_compressed` are decompressed while reading, as a [stream](Dataset#streams).
    pub fn npz(path: impl AsRef<Path>, arrays: &[(&str, &str)]) -> Result<Dataset, DataError> {
        Ok(match Npy::open_npz(path.as_ref(), arrays)? {
            Opened::Indexed(source) => Dataset::from_source(source),
            Opened::Sequential(source) => Dataset::from_sequential(*source),
        })
    }

    /// Examples in the TFRecord files that match a pattern; features are given with their column names. Files that
    /// TensorFlow compressed with GZIP or ZLIB are decompressed while reading, as a [stream](Dataset#streams) of
    /// records of up to 4 MiB. Their images are decoded and resized when records are read, even if those maps follow
    /// stages that only reorder rows.
    ///
    /// ```no_run
    /// use plimsoll_data::{Dataset, source::Feature};
    /// let data = Dataset::tfrecord("train-*.tfrecord", &[("x", Feature::f32("pixels", [28, 28, 1])), ("y", Feature::i32("label", []))])?;
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn tfrecord(pattern: impl AsRef<Path>, features: &[(&str, Feature)]) -> Result<Dataset, DataError> {
        let files = source::files(pattern)?;
        let packed = files.iter().map(|path| Ok(TfRecord::packing(path)? != Packing::None)).collect::<Result<Vec<_>, DataError>>()?;
        match packed.contains(&true) {
            true if packed.iter().all(|packed| *packed) => {
                let (schema, records) = PackedRecords::open(&files, features)?;
                Ok(match records.has_images() {
                    true => Dataset::from_stage(PackedImages::new(records, schema), Vec::new()),
                    false => Dataset::from_sequential(records.source(schema)),
                })
            }
            true => Err(DataError::Stage("some of the TFRecord files are packed and some are not; read them apart".into())),
            false => Ok(Dataset::from(TfRecord::open(&files, features)?)),
        }
    }

    /// The images that match a pattern with `*`, `?`, `[abc]` and `**`, sorted by name: `x` is the image. Like an
    /// image folder, it needs [`decode`](crate::ops::decode).
    ///
    /// ```
    /// let none = plimsoll_data::Dataset::image_files("no/such/**/*.jpg");
    /// assert_eq!(none.unwrap_err().to_string(), "no file matches no/such/**/*.jpg; correct the path or the pattern");
    /// ```
    pub fn image_files(pattern: impl AsRef<Path>) -> Result<Dataset, DataError> {
        Ok(Dataset::from_source(Arc::new(ImageFiles::open(pattern.as_ref())?)))
    }

    /// Columns of a Parquet file, of those that match a pattern, or of those in a folder, as a
    /// [stream](Dataset#streams): `x` f32, and `y` if there are targets.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, source::ParquetSpec};
    /// let missing = Dataset::parquet("no/such.parquet", &ParquetSpec::new());
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such.parquet: No such file or directory (os error 2)");
    /// ```
    pub fn parquet(path: impl AsRef<Path>, spec: &ParquetSpec) -> Result<Dataset, DataError> {
        Dataset::parquet_of(&source::parquet_files(path.as_ref())?, spec)
    }

    /// Like [`parquet`](Dataset::parquet), of several files with the same columns.
    pub fn parquet_of(files: &[PathBuf], spec: &ParquetSpec) -> Result<Dataset, DataError> {
        spec.open(files).map(Dataset::from_sequential)
    }

    /// Columns of an Arrow or Feather file or stream, of those that match a pattern, or of those in a folder, as a
    /// [stream](Dataset#streams): `x` f32, and `y` if there are targets.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, source::ArrowSpec};
    /// let missing = Dataset::arrow("no/such.arrow", &ArrowSpec::new());
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such.arrow: No such file or directory (os error 2)");
    /// ```
    pub fn arrow(path: impl AsRef<Path>, spec: &ArrowSpec) -> Result<Dataset, DataError> {
        Dataset::arrow_of(&source::arrow_files(path.as_ref())?, spec)
    }

    /// Like [`arrow`](Dataset::arrow), of several files with the same columns.
    pub fn arrow_of(files: &[PathBuf], spec: &ArrowSpec) -> Result<Dataset, DataError> {
        spec.open(files).map(Dataset::from_sequential)
    }

    /// Samples of the WebDataset tar files that match a pattern such as `train-{000..012}.tar`: `x` is the image, `y`
    /// its class as i32. Like an image folder, it needs [`decode`](crate::ops::decode). Files compressed with gzip are
    /// decompressed while reading, as a [stream](Dataset#streams) of images of up to 4 MiB.
    pub fn webdataset(pattern: impl AsRef<Path>) -> Result<Dataset, DataError> {
        let files = source::files(pattern)?;
        let packed = files.iter().map(|path| Ok(Packing::of(path, |_| false)? == Packing::Gzip)).collect::<Result<Vec<_>, DataError>>()?;
        if packed.iter().all(|packed| *packed) {
            let (schema, records) = PackedRecords::open_tar(&files)?;
            return Ok(Dataset::from_stage(PackedImages::new(records, schema), Vec::new()));
        }
        match packed.contains(&true) {
            true => Err(DataError::Stage("some of the tar files are compressed and some are not; read them apart".into())),
            false => Ok(Dataset::from(WebDataset::open(&files)?)),
        }
    }
}

impl Csv {
    /// The rows as a data set: a [stream](Dataset#streams) if the files are compressed.
    pub fn dataset(self) -> Result<Dataset, DataError> {
        Ok(match self.into_stream()? {
            Ok(stream) => Dataset::from_sequential(stream),
            Err(csv) => Dataset::from(csv),
        })
    }
}
