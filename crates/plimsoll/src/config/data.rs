//! The `[data]` table: a source and the stages behind it.

use super::short::ShortKeys;
use super::sources::{Opened, SourceKind};
use super::stages::{self, Defaults, Stage};
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::nn::Model;
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::preprocessing::Preprocessing;
use crate::reader::Reader;
use crate::spec::HeldOut;
use plimsoll_core::budget::give_back_memory_of_phase;
use plimsoll_core::{Bytes, DType};
use plimsoll_data::ops::finite;
use plimsoll_data::source::{Encoding, FittedColumn};
use plimsoll_data::{Cache, Column, Dataset, Extent, Parallelism, Prefetch, SplitMethod, SplitSpec, Splits, Vocabulary};
use std::path::Path;
use toml::Value;

/// The number of rows to generate for a network of the zoo, if the source is `synthetic`.
pub(super) fn synthetic_rows(root: &Reader<'_>) -> Result<Option<u64>> {
    let Some(data) = root.section("data")? else { return Ok(None) };
    if data.value("source").and_then(Value::as_str) != Some("synthetic") {
        return Ok(None);
    }
    let rows = data.count("rows", 1)?.unwrap_or(1 << 20);
    data.finish()?;
    Ok(Some(rows))
}

/// The vocabulary and the context length of the text that is trained on.
pub(super) fn text(root: &Reader<'_>, folder: &Path) -> Result<(Vocabulary, usize)> {
    let opened = match root.section("data")? {
        Some(data) => SourceKind::of(&data)?.map(|kind| kind.open(&data, folder, false, None, None)).transpose()?,
        None => None,
    };
    match opened.and_then(|opened| opened.text) {
        Some(text) => Ok((text.vocabulary().clone(), text.context())),
        None => {
            Err(Error::Config("this run was not trained on text (`data.source` is not \"text\"), so it cannot generate any".to_string()))
        }
    }
}

/// The rows to train on and those to validate on.
#[cfg(test)]
pub(super) fn datasets(root: &Reader<'_>, folder: &Path, batch: Option<usize>, seed: u64) -> Result<(Dataset, Option<Dataset>)> {
    open(root, folder, batch, seed, None, None).map(|parts| (parts.training, parts.validation))
}

/// The data of a run.
pub(super) struct RunData {
    pub training: Dataset,
    pub validation: Option<Dataset>,
    pub test: Option<Dataset>,
    /// How validation rows were chosen.
    pub how: HeldOut,
}

/// The rows to train on, to validate on and to test on. With fitted preprocessing, columns, statistics and classes are
/// those of a trained model. `host` is the budget that columns are fitted within.
pub(super) fn open(
    root: &Reader<'_>,
    folder: &Path,
    batch: Option<usize>,
    seed: u64,
    fitted: Option<&Preprocessing>,
    host: Option<Bytes>,
) -> Result<RunData> {
    let Some(data) = root.section("data")? else {
        return Err(root.missing("data", "a table that says what to train on, such as source = \"digits\""));
    };
    let kind = SourceKind::required(&data)?;
    let batch_of_data = data.count("batch", 1)?.map(|rows| rows as usize);
    let defaults = Defaults { folder, seed, batch_of_run: batch, batch_of_data, batch: 32 };
    let holdout = holdout(&data)?;
    let (own_validation, own_test) = (data.section("validation")?, data.section("test")?);
    let mask_values = mask_values(&data, kind)?;
    let stages = match stages::read(&data, defaults)? {
        Some(list) => Stages::Listed(list),
        None => Stages::Short(Box::new(ShortKeys::read(&data, defaults)?)),
    };
    // Validation rows are batched as training rows are, unless their own list has a batch size.
    let own_stages = match &own_validation {
        Some(table) => stages::read(table, Defaults { batch_of_run: None, batch_of_data: None, batch: defaults.rows(), ..defaults })?,
        None => None,
    };

    let lenient = data.value("ignore_errors").is_some() || stages::leave_out_errors(&data);
    // What reading the configuration, and of a trained run its files, needed.
    give_back_memory_of_phase();
    let opened = kind.open(&data, folder, lenient, fitted, host)?;
    data.finish()?;
    let (training, held_out, mut test, how) = split(&opened, kind, own_validation, holdout, folder, lenient)?;
    if let Some(table) = own_test {
        if test.is_some() {
            return Err(Error::Config("`data.test` and a share to test on exclude each other; use one of the two".to_string()));
        }
        test = kind.validation(&opened, Some(&table), folder, lenient)?;
        table.finish()?;
    }
    let checked = |rows: Dataset| if kind.unchecked_floats && has_float_labels(&rows) { rows.map("y", [finite()]) } else { rows };
    let mask_of = kind.has_masks.then_some(&mask_values[..]);
    let for_evaluation = |rows: Dataset| match (&own_stages, &stages) {
        (Some(list), _) => apply_listed(list, checked(rows), defaults.rows(), mask_of),
        (None, Stages::Listed(list)) => apply_listed(&stages::for_validation(list), checked(rows), defaults.rows(), mask_of),
        (None, Stages::Short(short)) => short.held_out(rows, checked, mask_of),
    };
    let (validation, test) = (held_out.map(for_evaluation).transpose()?, test.map(for_evaluation).transpose()?);
    let training = match &stages {
        Stages::Listed(list) => apply_listed(list, checked(training), defaults.rows(), mask_of)?,
        Stages::Short(short) => short.training(training, checked, mask_of)?,
    };
    Ok(RunData { training, validation, test, how })
}

/// Refuses a table that gives several inputs to a model that reads one: the others would have no effect.
pub(super) fn refuse_unread_inputs(root: &Reader<'_>, rows: &Dataset, model: &Model) -> Result<()> {
    let ([input], Some(data)) = (model.inputs(), root.section("data")?) else { return Ok(()) };
    let schema = rows.output_schema()?;
    let named = data.value("inputs").and_then(Value::as_table);
    let of_table = |name: &str| named.is_some_and(|named| named.contains_key(name)) || rows.file_use().used.iter().any(|used| used == name);
    let inputs = schema.columns().iter().map(|column| column.name.as_str()).filter(|name| *name == "x" || of_table(name));
    let inputs: Vec<String> = inputs.map(|name| format!("`{name}`")).collect();
    if inputs.len() < 2 || input != "x" {
        return Ok(());
    }
    Err(Error::Config(format!(
        "the table gives the inputs {}, and the model reads one; name them in `model.inputs`, encode indices as numbers \
         (`output = \"one_hot\"`), or `drop` the columns",
        inputs.join(", ")
    )))
}

/// Refuses to train on numbers of a table as if they were probabilities of classes, which they are without a loss.
pub(super) fn refuse_numbers_as_classes(rows: &Dataset, losses: &OutputLosses) -> Result<()> {
    let OutputLosses::Only(OutputLoss { objective, labels: None, .. }) = losses else { return Ok(()) };
    if objective.loss != Loss::SoftmaxCrossEntropy || !has_float_labels(rows) {
        return Ok(());
    }
    let (columns, targets) = (rows.fitted_columns(), rows.file_use().targets);
    let is_number = |column: &&FittedColumn| matches!(column.encoding, Encoding::Normalize { .. } | Encoding::Rescale { .. });
    let number = columns.iter().filter(|column| targets.contains(&column.name)).find(is_number);
    match number {
        None => Ok(()),
        Some(column) => Err(Error::Config(format!(
            "the target `{}` has numbers, and the default loss is for classes; set `train.loss`, such as \"mse\"",
            column.name
        ))),
    }
}

/// The pixel values of the classes of masks; empty if they are class indices.
fn mask_values(data: &Reader<'_>, kind: &SourceKind) -> Result<Vec<u8>> {
    let Some(value) = data.value("values").filter(|_| kind.has_masks) else { return Ok(Vec::new()) };
    let values = data.counts("values")?.unwrap_or_default();
    let bytes: Option<Vec<u8>> = values.into_iter().map(|value| u8::try_from(value).ok()).collect();
    bytes.filter(|bytes| !bytes.is_empty()).ok_or_else(|| data.wrong("values", value, "pixel values from 0 to 255, such as [0, 255]"))
}

/// Rows to hold out.
enum Holdout {
    /// A share of the rows, stratified, and the seed of the choice.
    Share { share: f64, seed: u64 },
    /// Any other split.
    Split(SplitSpec),
}

/// `holdout = 0.1`, or a table with a seed, a method and a share to test on; and `fold = "3/5"`. The seed is not that
/// of the run: another seed trains on the same rows.
fn holdout(data: &Reader<'_>) -> Result<Option<Holdout>> {
    let fold = fold(data)?;
    if !matches!(data.value("holdout"), Some(Value::Table(_))) {
        return match (data.number("holdout")?, fold) {
            (None, None) => Ok(None),
            (Some(share), None) => Ok(Some(Holdout::Share { share, seed: 0 })),
            (None, Some(fold)) => Ok(Some(Holdout::Split(SplitSpec { fold: Some(fold), validation: 0.0, ..SplitSpec::default() }))),
            (Some(_), Some(_)) => Err(share_and_fold()),
        };
    }
    let Some(table) = data.section("holdout")? else { return Ok(None) };
    let (share, test) = (table.number("share")?, table.number("test")?);
    let seed = table.count("seed", 0)?.unwrap_or(0);
    let by = table.choice("by", &[("stratified", 0), ("random", 1), ("group", 2), ("time", 3)])?;
    let column = table.text("column")?.map(str::to_string);
    if fold.is_none() && share.is_none() && test.is_none() {
        table.check_keys()?;
        return Err(table.missing("share", "the fraction of the rows to hold out, such as 0.1"));
    }
    if fold.is_some() && share.is_some() {
        return Err(share_and_fold());
    }
    let method = match (by, column) {
        (Some(2), Some(column)) => SplitMethod::Group(column),
        (Some(2), None) => return Err(table.missing("column", "the column of groups; rows with the same value come together")),
        (Some(3), column) => SplitMethod::Time(column),
        (_, Some(_)) => return Err(Error::Config(format!("`{}` is for `by = \"group\"` and `by = \"time\"`", table.name("column")))),
        (Some(1), None) => SplitMethod::Random,
        (_, None) => SplitMethod::Stratified,
    };
    table.finish()?;
    Ok(Some(match (share, test, fold, by) {
        (Some(share), None, None, None) => Holdout::Share { share, seed },
        _ => Holdout::Split(SplitSpec { method, validation: share.unwrap_or(0.0), test: test.unwrap_or(0.0), fold, seed }),
    }))
}

fn share_and_fold() -> Error {
    Error::Config("`data.fold` and a share to hold out exclude each other: the fold is what is validated on".to_string())
}

/// `fold = "3/5"`: the third of five.
fn fold(data: &Reader<'_>) -> Result<Option<(u64, u64)>> {
    let Some(value) = data.value("fold") else { return Ok(None) };
    let parts = value.as_str().and_then(|text| text.split_once('/'));
    let numbers = parts.and_then(|(fold, folds)| Some((fold.trim().parse().ok()?, folds.trim().parse().ok()?)));
    let fold = numbers.filter(|(fold, folds)| *folds >= 2 && (1..=*folds).contains(fold));
    fold.map(Some).ok_or_else(|| data.wrong("fold", value, "a fold and the number of folds, such as \"3/5\""))
}

/// The stages of a table: a list, or short keys that each have a default place.
enum Stages {
    Listed(Vec<Stage>),
    Short(Box<ShortKeys>),
}

/// Applies a list, with batches of `batch` rows if it has none itself; operations that move pixels also to masks, if
/// there are any with these values.
fn apply_listed(list: &[Stage], rows: Dataset, batch: usize, masks: Option<&[u8]>) -> Result<Dataset> {
    let rows = stages::apply(list, rows, masks)?;
    Ok(if rows.batch_size().is_some() { rows } else { rows.batch(batch) })
}

/// The training, validation and test rows, before any stage.
fn split(
    opened: &Opened,
    kind: &SourceKind,
    own: Option<Reader<'_>>,
    holdout: Option<Holdout>,
    folder: &Path,
    lenient: bool,
) -> Result<(Dataset, Option<Dataset>, Option<Dataset>, HeldOut)> {
    let whole = opened.training.clone();
    // A table with only stages does not define the validation rows.
    let has_source = own.as_ref().is_some_and(|table| table.entries().any(|(key, ..)| key != "stages"));
    match (own, holdout) {
        (Some(_), Some(_)) if has_source => Err(Error::Config("`data.holdout` and `data.validation` exclude each other".to_string())),
        (Some(table), None) => {
            let rows = kind.validation(opened, Some(&table), folder, lenient)?;
            table.finish()?;
            Ok((whole, rows, opened.test.clone(), HeldOut::Given))
        }
        (_, Some(_)) if opened.overlapping => {
            let what = "`data.holdout` would hold out rows that share values with training rows; use `data.split`, such as 0.9";
            Err(Error::Config(what.to_string()))
        }
        (_, Some(Holdout::Split(spec))) => {
            let Splits { training, validation, test } = whole.split(&spec)?;
            // The choice of rows does not depend on what is fitted to them.
            let Splits { training, validation, test } = match &opened.refit {
                Some(refit) => refit(&|row| training.has_source_row(row))?.split(&spec)?,
                None => Splits { training, validation, test },
            };
            Ok((training, validation, test, HeldOut::Split(spec.describe())))
        }
        (_, Some(Holdout::Share { share, seed })) => {
            let Some(rows) = whole.size() else {
                let what = format!(
                    "`data.holdout` is a fraction of the rows, and the number of rows of {} is not known beforehand",
                    whole.describe()
                );
                return Err(Error::Config(format!("{what}; use `data.validation` instead")));
            };
            let held = (rows as f64 * share).round() as u64;
            if !(0.0..1.0).contains(&share) || (held == 0 && share > 0.0) || held >= rows {
                let what = format!(
                    "`data.holdout` is {share}, but should be a fraction of the {rows} rows that leaves some to train on and some to hold out"
                );
                return Err(Error::Config(what));
            }
            if held == 0 {
                return Ok((whole, None, None, HeldOut::Given));
            }
            let (training, held_out) = whole.holdout(share, seed)?;
            // The choice of rows does not depend on what is fitted to them.
            let (training, held_out) = match &opened.refit {
                Some(refit) => refit(&|row| training.has_source_row(row))?.holdout(share, seed)?,
                None => (training, held_out),
            };
            Ok((training, Some(held_out), None, HeldOut::Random { share, seed }))
        }
        (None, None) => {
            let how = opened.split.map_or(HeldOut::Given, |split| HeldOut::Last { split });
            Ok((whole, kind.validation(opened, None, folder, lenient)?, opened.test.clone(), how))
        }
    }
}

/// A NaN label would turn the loss and then all weights into NaN, so float labels are checked.
fn has_float_labels(rows: &Dataset) -> bool {
    let is_float = |column: &Column| column.name == "y" && column.dtype == DType::F32 && column.extent == Extent::Fixed;
    rows.output_schema().is_ok_and(|schema| schema.columns().iter().any(is_float))
}

pub(super) fn prefetch(data: &Reader<'_>, key: &'static str) -> Result<Prefetch> {
    match data.value(key) {
        None => Ok(Prefetch::Auto),
        Some(Value::String(word)) if word == "auto" => Ok(Prefetch::Auto),
        Some(Value::Integer(n)) if *n >= 1 => Ok(Prefetch::Batches(*n as usize)),
        Some(other) => Err(data.wrong(key, other, "\"auto\" or a number of batches")),
    }
}

pub(super) fn parallelism(data: &Reader<'_>, key: &'static str) -> Result<Parallelism> {
    match data.value(key) {
        None => Ok(Parallelism::Auto),
        Some(Value::String(word)) if word == "auto" => Ok(Parallelism::Auto),
        Some(Value::Integer(n)) if *n >= 1 => Ok(Parallelism::Threads(*n as usize)),
        Some(other) => Err(data.wrong(key, other, "\"auto\" or a number of threads")),
    }
}

/// The values of a cache, for error messages.
pub(super) const CACHES: &str = "\"memory\", \"auto\" or a table such as { file = \"cache.plc\" } or { memory = \"256MiB\" }";

/// A cache, such as the key `cache` of a table.
pub(super) fn cache(data: &Reader<'_>, key: &'static str, folder: &Path) -> Result<Option<Cache>> {
    match data.value(key) {
        None => Ok(None),
        Some(Value::String(word)) if word == "memory" => Ok(Some(Cache::Memory)),
        Some(Value::String(word)) if word == "auto" => Ok(Some(Cache::Auto)),
        Some(Value::Table(_)) => {
            let table = data.section(key)?.expect("just seen");
            let (max, file) = (size(&table, "memory")?, table.text("file")?);
            let on_full = table.choice("on_full", &[("stop", false), ("continue", true)])?;
            table.check_keys()?;
            match (max, file.map(|file| folder.join(file)), on_full) {
                (Some(max), None, None) => Ok(Some(Cache::MemoryUpTo(max))),
                (None, Some(file), Some(true)) => Ok(Some(Cache::FileIfSpace(file))),
                (None, Some(file), _) => Ok(Some(Cache::File(file))),
                (None, None, _) => Err(table.missing("file", "the path of the cache; or `memory`, the most memory to use")),
                (Some(_), ..) => {
                    let key = data.name(key);
                    Err(Error::Config(format!("`{key}.memory` excludes the keys of a cache file; use one of the two")))
                }
            }
        }
        Some(other) => Err(data.wrong(key, other, CACHES)),
    }
}

/// A number of bytes, or text such as "64MiB".
pub(super) fn size(data: &Reader<'_>, key: &'static str) -> Result<Option<Bytes>> {
    match data.value(key) {
        None => Ok(None),
        Some(Value::Integer(n)) if *n >= 0 => Ok(Some(Bytes(*n as u64))),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|error| Error::Config(format!("`{}`: {error}", data.name(key)))),
        Some(other) => Err(data.wrong(key, other, "a size such as \"64MiB\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The training and validation rows of a `[data]` table, or the error.
    fn read(folder: &Path, text: &str) -> String {
        let table: toml::Table = text.parse().unwrap();
        let described = match datasets(&Reader::root(&table), folder, Some(8), 1) {
            Ok((training, None)) => training.describe(),
            Ok((training, Some(held_out))) => format!("{}\n  held out: {}", training.describe(), held_out.describe()),
            Err(error) => error.to_string(),
        };
        described.replace(&format!("{}/", folder.display()), "").replace(" → parallelism(auto) → batch(8) → prefetch(auto)", "")
    }

    #[test]
    fn files_are_split_and_validated_on() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "to be or not to be, that is it").unwrap();
        fs::write(folder.path().join("b.txt"), "to be it").unwrap();
        fs::write(folder.path().join("strange.txt"), "to be X").unwrap();
        let rows: String = (0..20).map(|row| format!("{row},{},{}\n", row * 2, row % 3)).collect();
        fs::write(folder.path().join("t.csv"), format!("t,u,class\n{rows}")).unwrap();
        for class in ["train/ant", "train/bee", "test/bee", "odd/wasp", "empty/ant"] {
            fs::create_dir_all(folder.path().join(class)).unwrap();
            fs::write(folder.path().join(class).join("1.png"), "").unwrap();
        }
        fs::remove_file(folder.path().join("empty/ant/1.png")).unwrap();
        let text = "[data]\nsource = 'text'\npath = 'a.txt'\ncontext = 4\n";
        let csv = "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'class'\n";
        let window = format!("{csv}window = {{ length = 4, horizon = 2 }}\nstandardize = true\n");
        let image_folder = "[data]\nsource = 'image_folder'\npath = 'train'\n";
        let cases = [
            text.to_string(),
            format!("{text}stride = 1\nsplit = 0.8"),
            format!("{text}split = 0.8\n[data.validation]\nstride = 1"),
            format!("{text}[data.validation]\npath = 'b.txt'"),
            format!("{text}[data.validation]\npath = 'strange.txt'"),
            format!("{text}[data.validation]\nstride = 2"),
            format!("{text}split = 1.0"),
            format!("{text}holdout = 0.1"),
            format!("{text}strid = 1"),
            "[data]\nsource = 'text'\npath = 'a.txt'".into(),
            csv.to_string(),
            format!("{csv}holdout = 0.25"),
            format!("{csv}features = ['u']\ntypes = {{ class = 'float' }}\nsplit = 0.5"),
            format!("{window}rows = [0, 12]\n[data.validation]\nrows = [8, 20]"),
            format!("{window}rows = [0, 12]\n[data.validation]\npath = 't.csv'"),
            format!("{window}rows = [0, 12]\n[data.validation]"),
            format!("{window}rows = [0, 40]"),
            format!("{window}rows = 7"),
            format!("{csv}types = {{ class = 'flaot' }}"),
            format!("{csv}window = {{ length = 4, horzion = 2 }}"),
            format!("{csv}window = {{ length = 4, horizon = 2, strde = 2 }}"),
            format!("{csv}standardize = 3"),
            format!("{csv}targets = 'u'"),
            format!("{image_folder}[data.validation]\npath = 'test'"),
            format!("{image_folder}[data.validation]\npath = 'odd'"),
            "[data]\nsource = 'image_folder'\npath = 'test'\nclasses = 'train'".into(),
            "[data]\nsource = 'image_folder'\npath = 'empty'".into(),
            "[data]\nsource = 'shapes'\nrows = 10\nsize = [16, 24]\n[data.validation]\nrows = 5\nseed = 9".into(),
            "[data]\nsource = 'shape'".into(),
            "[data]\nsource = 'npz'\npath = 'none.npz'\narrays = ['a', 'b']".into(),
            "[data]\nsource = 'npz'\npath = 'none.npz'\narrays = 'a'".into(),
            "[data]\nsource = 'tfrecord'\npath = 'a.txt'\ninput = { name = 'x', dtype = 'f32', shape = [2] }\nlabel = { name = 'y', dtype = 'i32' }".into(),
            "[data]\nsource = 'tfrecord'\npath = 'a.txt'\ninput = { name = 'x', dtype = 'f23' }".into(),
            "[data]\nsource = 'webdataset'\npath = 'none-*.tar'".into(),
            "[data]\nsource = 'digits'\nskip = 5\ntake = 100\nshard = [4, 1]\nshuffle = true\nrepeat = 3\ndrop_remainder = true".into(),
            "[data]\nsource = 'image_folder'\npath = 'train'\nignore_errors = 9\nmap = [{ op = 'decode' }, { op = 'resize', size = 4 }]"
                .into(),
            "[data]\nsource = 'digits'\nshard = [4, 4]".into(),
            "[data]\nsource = 'digits'\nignore_erors = 4".into(),
            "[data]".into(),
            "[data]\nsource = 'concatenate'\nparts = [{ source = 'image_folder', path = 'train' }, { source = 'image_folder', path = 'test', classes = 'train' }]\nmap = [{ op = 'decode' }]".into(),
            "[data]\nsource = 'sample_from'\nseed = 3\nparts = [{ source = 'csv', path = 't.csv', target = 'u', weight = 0.25 }, { source = 'csv', path = 't.csv', target = 'u', map = [{ op = 'scale', by = 2 }] }]".into(),
            "[data]\nsource = 'interleave'\ncycle = 2\nparts = [{ source = 'range', stop = 5 }, { source = 'range', start = 5, stop = 9, step = 2 }]".into(),
            "[data]\nsource = 'zip'\nparts = [{ source = 'range', stop = 5 }, { source = 'csv', path = 't.csv', featurs = ['t'] }]".into(),
            "[data]\nsource = 'zip'\nparts = [{ path = 't.csv' }]".into(),
            "[data]\nsource = 'zip'".into(),
            "[data]\nsource = 'range'\nstop = 'x'".into(),
            "[data]\nsource = 'image_files'\npath = 't*/*/*.png'".into(),
        ];
        insta::assert_snapshot!(cases.map(|case| read(folder.path(), &case)).join("\n"), @r#"
        text a.txt (characters 0 to 30, 4 at a time, every 4)
        text a.txt (characters 0 to 24, 4 at a time, every 1)
          held out: text a.txt (characters 24 to 30, 4 at a time, every 4)
        text a.txt (characters 0 to 24, 4 at a time, every 4)
          held out: text a.txt (characters 24 to 30, 4 at a time, every 1)
        text a.txt (characters 0 to 30, 4 at a time, every 4)
          held out: text b.txt (characters 0 to 8, 4 at a time, every 4)
        strange.txt cannot be read as text: 'X' in line 1 (byte 6) is not in the vocabulary; take the vocabulary from this file too
        `data.validation.path` is missing: the text to validate on; or set `data.split`, such as 0.9
        `data.split` is 1, but should be the fraction to train on, such as 0.9
        `data.holdout` would hold out rows that share values with training rows; use `data.split`, such as 0.9
        unknown key `data.strid`; did you mean `data.stride`?
        `data.context` is missing: the number of characters in a window
        csv t.csv (rows 0 to 20, t, u → class)
        csv t.csv (rows 0 to 20, t, u → class) → without holdout(0.25, seed 0)
          held out: csv t.csv (rows 0 to 20, t, u → class) → holdout(0.25, seed 0)
        csv t.csv (rows 0 to 10, u → class)
          held out: csv t.csv (rows 10 to 20, u → class)
        csv t.csv (rows 0 to 12, t, u, class → class, 4 rows → 2, every 1)
          held out: csv t.csv (rows 8 to 20, t, u, class → class, 4 rows → 2, every 1)
        csv t.csv (rows 0 to 12, t, u, class → class, 4 rows → 2, every 1)
          held out: csv t.csv (rows 0 to 20, t, u, class → class, 4 rows → 2, every 1)
        `data.validation.rows` is missing: the rows to validate on, such as [8640, 11520]
        t.csv, line 1: it has no rows 0 to 40; it has 20
        `data.rows` is 7, but should be the first row and the one after the last, such as [0, 8640]
        `data.types.class` is "flaot", but should be "float", "int", "bool", "date", "category", "text" or "list"
        `data.window.horizon` is missing: the number of rows to predict
        unknown key `data.window.strde`; did you mean `data.window.stride`?
        `data.standardize` is 3, but should be true, false or "features"
        unknown key `data.targets`; did you mean `data.target`?
        image_folder train
          held out: image_folder test
        odd is no folder of classes: its class `wasp` is not one of the training classes (ant, bee); rename or remove it
        image_folder test
        empty is no folder of classes: its class empty/ant holds no .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff files; put some there or remove it
        10 images of shapes (16 × 24, seed 0)
          held out: 5 images of shapes (16 × 24, seed 9)
        `data.source` is "shape", but should be one of npy, npz, image_folder, image_masks, image_files, csv, json_lines, parquet, arrow, text, webdataset, tfrecord, shapes, random, range, concatenate, zip, sample_from, interleave, digits; did you mean "shapes"?
        cannot open none.npz: No such file or directory (os error 2)
        `data.arrays` is ["a"], but should be two names, such as ["images", "labels"]
        a.txt, the record at byte 0: its length does not match its checksum; the file is damaged or no TFRecord file
        `data.input.dtype` is "f23", but should be one of f32, i32, u8, image; did you mean "f32"?
        no file matches none-*.tar; correct the path or the pattern
        digits (train) → skip(5) → take(100) → shard(4, 1) → shuffle(seed 1) → repeat(3) → drop_remainder
          held out: digits (test)
        image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → parallelism(auto) → ignore_errors(9) → batch(8) → prefetch(auto)
        `data.shard` is [4, 4], but should be how many parts there are and which this is, such as [4, 0]
        unknown key `data.ignore_erors`; did you mean `data.ignore_errors`?
        `data.source` is missing: one of npy, npz, image_folder, image_masks, image_files, csv, json_lines, parquet, arrow, text, webdataset, tfrecord, shapes, random, range, concatenate, zip, sample_from, interleave, digits
        concatenate(image_folder train | image_folder test) → map(x: decode())
        sample_from(0.25 : 1, seed 3)(csv t.csv (rows 0 to 20, t, class → u) | csv t.csv (rows 0 to 20, t, class → u) → map(x: scale(2)))
        interleave_parallel(2, 1)(5 numbers from 0 by 1 | 2 numbers from 5 by 2)
        unknown key `data.parts[1].featurs`; did you mean `data.parts[1].features`?
        `data.parts[0].source` is missing: one of npy, npz, image_folder, image_masks, image_files, csv, json_lines, parquet, arrow, text, webdataset, tfrecord, shapes, random, range, concatenate, zip, sample_from, interleave, digits
        `data.parts` is missing: a list of tables, such as [{ source = "npy", x = "a.npy" }, { source = "npy", x = "b.npy" }]
        `data.stop` is "x", but should be an integer of 32 bits
        image_files t*/*/*.png
        "#);
    }

    #[test]
    fn tfrecords_parquet_and_automatic_caches() {
        let folder = tempfile::tempdir().unwrap();
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference");
        for (from, to) in [
            ("snappy.parquet", "t.parquet"),
            ("encoded_images.tfrecord", "p.tfrecord"),
            ("encoded_images.tfrecord.gz", "p.tfrecord.gz"),
            ("examples.tfrecord", "a-1.tfrecord"),
            ("examples.tfrecord", "a-2.tfrecord"),
        ] {
            fs::copy(reference.join(from), folder.path().join(to)).unwrap();
        }
        let record = |path: &str, input: &str, rest: &str| format!("[data]\nsource = 'tfrecord'\npath = '{path}'\ninput = {input}\n{rest}");
        let label = "label = { name = 'label', dtype = 'i32' }\n";
        let picture = "{ name = 'image/encoded', dtype = 'image' }";
        let class = "label = { name = 'image/class/label', dtype = 'i32' }\n";
        let sized = "map = [{ op = 'decode' }, { op = 'resize', size = 4 }]\n";
        let turned = "map = [{ op = 'decode' }, { op = 'flip_left_right' }, { op = 'resize', size = 4 }]\n";
        let words = "{ name = 'words', dtype = 'i32', shape = [5], padded = -1 }";
        let pixels = "label = { name = 'pixels', dtype = 'f32', shape = [3] }\n";
        let cases = [
            record("p.tfrecord", picture, &format!("{class}{sized}cache = 'auto'\ndeterministic = false")),
            record("p.tfrecord", picture, &format!("{class}{turned}cache = 'auto'")),
            record("a-*.tfrecord", words, &format!("{label}interleave = {{ cycle = 2, block = 1 }}")),
            record("a-*.tfrecord", words, &format!("{label}interleave = {{ cycel = 2 }}")),
            record("a-*.tfrecord", words, pixels),
            record("a-*.tfrecord", "{ name = 'words', dtype = 'i32', shape = [5], padded = 'no' }", label),
            record("a-*.tfrecord", words, &format!("{label}cache = 'disk'")),
            "[data]\nsource = 'parquet'\npath = 't.parquet'\ntarget = 'few'\nrow_groups = [1, 3]\nshuffle = true".into(),
            "[data]\nsource = 'parquet'\npath = 't.parquet'\ntarget = 'half'\nfeatures = ['third']".into(),
            "[data]\nsource = 'parquet'\npath = 't.parquet'\ntarget = 'few'\nrow_groups = 3".into(),
            "[data]\nsource = 'parquet'\npath = 't.parquet'\ntarget = 'few'\nshuffle = true\nignore_errors = 5".into(),
            record("p.tfrecord.gz", picture, &format!("{class}{sized}shuffle = true\nmax_item = '8MiB'\nignore_errors = 1")),
        ];
        insta::assert_snapshot!(cases.map(|case| read(folder.path(), &case)).join("\n"), @r#"
        tfrecord p.tfrecord → map(x: decode()) → map(x: resize(4, 4, bilinear)) → parallelism(auto) → cache(auto) → batch(8) → prefetch(auto) → deterministic(false)
        tfrecord p.tfrecord → map(x: decode()) → parallelism(auto) → cache(auto) → map(x: flip_left_right(seed 1)) → map(x: resize(4, 4, bilinear)) → batch(8) → prefetch(auto)
        interleave_parallel(2, 1)(tfrecord a-1.tfrecord | tfrecord a-2.tfrecord)
        unknown key `data.interleave.cycel`; did you mean `data.interleave.cycle`?
        tfrecord a-1.tfrecord, a-2.tfrecord → map(y: finite())
        `data.input.padded` is "no", but should be true, or the value to use where a record has none
        `data.cache` is "disk", but should be "memory", "auto" or a table such as { file = "cache.plc" } or { memory = "256MiB" }
        parquet t.parquet → assert_cardinality(180) → shuffle(seed 1, 16.0 MiB)
        parquet t.parquet → assert_cardinality(300) → map(y: finite())
        `data.row_groups` is 3, but should be the first row group and the one after the last, such as [0, 8]
        parquet t.parquet → assert_cardinality(300) → shuffle(seed 1, 16.0 MiB) → parallelism(auto) → ignore_errors(5) → batch(8) → prefetch(auto)
        tfrecord p.tfrecord.gz → map(x: decode()) → map(x: resize(4, 4, bilinear)) → shuffle(seed 1, 16.0 MiB) → parallelism(auto) → ignore_errors(1) → batch(8) → prefetch(auto)
        "#);
    }

    #[test]
    fn caches_come_before_shuffling_and_random_operations() {
        let folder = tempfile::tempdir().unwrap();
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference");
        fs::copy(reference.join("snappy.parquet"), folder.path().join("t.parquet")).unwrap();
        let digits =
            "[data]\nsource = 'digits'\nshuffle = true\nrepeat = 2\nmap = [{ op = 'scale', by = 0.5 }, { op = 'flip_left_right' }]\n";
        let parquet = "[data]\nsource = 'parquet'\npath = 't.parquet'\ntarget = 'few'\nshuffle = true\nholdout = 0.5\n";
        let cases = [
            format!("{digits}cache = 'memory'"),
            format!("{digits}cache = {{ file = 'a.plc' }}"),
            format!("{parquet}cache = {{ memory = '1MiB' }}"),
            format!("{parquet}cache = {{ file = 'a.plc', on_full = 'continue' }}"),
            format!("{parquet}cache = 'auto'"),
            format!("{parquet}cache = {{ memory = 'plenty' }}"),
            format!("{parquet}cache = {{ memory = '1MiB', file = 'a.plc' }}"),
            format!("{parquet}cache = {{}}"),
        ];
        insta::assert_snapshot!(cases.map(|case| read(folder.path(), &case)).join("\n"), @r#"
        digits (train) → map(x: scale(0.5)) → parallelism(auto) → cache(memory) → shuffle(seed 1) → repeat(2) → map(x: flip_left_right(seed 1)) → batch(8) → prefetch(auto)
          held out: digits (test) → map(x: scale(0.5)) → parallelism(auto) → cache(memory) → map(x: flip_left_right(seed 1)) → batch(8) → prefetch(auto)
        digits (train) → map(x: scale(0.5)) → parallelism(auto) → cache(a.plc) → shuffle(seed 1) → repeat(2) → map(x: flip_left_right(seed 1)) → batch(8) → prefetch(auto)
          held out: digits (test) → map(x: scale(0.5)) → parallelism(auto) → cache(memory) → map(x: flip_left_right(seed 1)) → batch(8) → prefetch(auto)
        parquet t.parquet → assert_cardinality(300) → without holdout(0.5, seed 0) → parallelism(auto) → cache → shuffle(seed 1, 16.0 MiB) → batch(8) → prefetch(auto)
          held out: parquet t.parquet → assert_cardinality(300) → holdout(0.5, seed 0) → parallelism(auto) → cache → batch(8) → prefetch(auto)
        parquet t.parquet → assert_cardinality(300) → without holdout(0.5, seed 0) → parallelism(auto) → cache → shuffle(seed 1, 16.0 MiB) → batch(8) → prefetch(auto)
          held out: parquet t.parquet → assert_cardinality(300) → holdout(0.5, seed 0) → parallelism(auto) → cache → batch(8) → prefetch(auto)
        parquet t.parquet → assert_cardinality(300) → without holdout(0.5, seed 0) → parallelism(auto) → shuffle(seed 1, 16.0 MiB) → batch(8) → prefetch(auto)
          held out: parquet t.parquet → assert_cardinality(300) → holdout(0.5, seed 0)
        `data.cache.memory`: `plenty` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)
        `data.cache.memory` excludes the keys of a cache file; use one of the two
        `data.cache.file` is missing: the path of the cache; or `memory`, the most memory to use
        "#);
    }
}
