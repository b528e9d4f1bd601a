//! Tables that pandas, pyarrow, polars and fastparquet wrote, read to the values that their writers report, or refused.
//!
//! `fixtures/make_tables.py` writes them. The list of results is part of the documentation; to write it again:
//! `UPDATE_DOCS=1 cargo test -p plimsoll-data --test tables`.

use collect::column;
use plimsoll_core::Bytes;
use plimsoll_data::ops::fill;
use plimsoll_data::source::{
    ArrowSpec, ColumnKind, ColumnOptions, Csv, CsvSpec, Encode, Fill, Missing, ParquetSpec, TableSpec, VocabularyOptions,
};
use plimsoll_data::{DataError, Dataset};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

mod collect;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tables")
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_string()).collect()
}

fn missing(value: &Value) -> Missing {
    match value {
        Value::Number(number) => Missing::Constant(Fill::Number(number.as_f64().unwrap())),
        Value::String(word) if word == "mean" => Missing::Mean,
        Value::String(word) if word == "most_frequent" => Missing::MostFrequent,
        Value::String(word) => Missing::Constant(Fill::Text(word.clone())),
        other => panic!("{other}"),
    }
}

/// The table of a case.
fn open(case: &Value) -> Result<Dataset, DataError> {
    let (file, asked) = (case["file"].as_str().unwrap(), &case["spec"]);
    let mut spec = TableSpec::new().targets(asked["target"].as_str().map(str::to_string));
    for (key, value) in asked.as_object().unwrap() {
        spec = match key.as_str() {
            "features" => spec.features(texts(value)),
            "drop" => spec.drop(texts(value)),
            "missing" => spec.missing(missing(value)),
            "missing_values" => spec.missing_values(texts(value)),
            "indicator" => spec.indicator(),
            "rename" => value.as_object().unwrap().iter().fold(spec, |spec, (old, new)| spec.rename_one(old, new.as_str().unwrap())),
            "categories" => texts(value).iter().fold(spec, |spec, name| {
                let missing = asked["columns"].get(name).map(missing);
                spec.column(name, ColumnOptions { kind: Some(ColumnKind::Category), missing, ..ColumnOptions::default() })
            }),
            "columns" if !asked["categories"].is_null() => spec,
            "columns" => value.as_object().unwrap().iter().fold(spec, |spec, (name, how)| {
                spec.column(name, ColumnOptions { missing: Some(missing(how)), ..ColumnOptions::default() })
            }),
            "formats" => value.as_object().unwrap().iter().fold(spec, |spec, (name, format)| {
                let format = Some(format.as_str().unwrap().to_string());
                spec.column(name, ColumnOptions { kind: Some(ColumnKind::Date), format, ..ColumnOptions::default() })
            }),
            _ => spec,
        };
    }
    let path = folder().join(file);
    if file.ends_with(".parquet") || asked["parquet"] == true {
        let mut spec = ParquetSpec::from(spec);
        if let Some(groups) = asked["row_groups"].as_array() {
            spec = spec.row_groups(groups[0].as_u64().unwrap() as usize..groups[1].as_u64().unwrap() as usize);
        }
        return Dataset::parquet(path, &spec);
    }
    if [".arrow", ".arrows", ".feather"].iter().any(|ending| file.ends_with(ending)) || asked["arrow"] == true {
        return Dataset::arrow(path, &ArrowSpec::from(spec));
    }
    let mut spec = CsvSpec::from(spec);
    let byte = |value: &Value| value.as_str().map(|text| text.as_bytes()[0]);
    if let Some(delimiter) = byte(&asked["delimiter"]) {
        spec = spec.delimiter(delimiter);
    }
    if let Some(mark) = byte(&asked["decimal"]) {
        spec = spec.decimal(mark);
    }
    if asked["header"] == false {
        spec = spec.no_header().names(texts(&asked["names"]));
    }
    if asked["json_lines"] == true {
        spec = spec.json_lines();
    }
    Csv::open(&path, &spec)?.dataset()
}

/// The rows of a column as numbers.
fn rows(data: &Dataset, name: &str) -> Result<Vec<Vec<f32>>, DataError> {
    let schema = data.output_schema()?;
    let at = schema.index_of(name).unwrap_or_else(|| panic!("no `{name}` in {schema}"));
    let dtype = schema.columns()[at].dtype;
    let row = |bytes: Vec<u8>| plimsoll_data::numbers(dtype, &bytes).map(|number| number as f32).collect();
    Ok(column(data, at, 0, None)?.into_iter().map(row).collect())
}

/// What came of a case, in words.
fn outcome(case: &Value) -> Result<String, String> {
    let expected = |key: &str| -> Vec<Vec<f32>> {
        let row = |row: &Value| row.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect();
        case[key].as_array().unwrap().iter().map(row).collect()
    };
    let ragged = case["spec"]["ragged"] == true;
    let read = open(case).and_then(|data| {
        let data = if ragged { data.map("x", [fill(0.0)]) } else { data };
        let data = data.batch(5);
        Ok((rows(&data, "x")?, rows(&data, "y")?))
    });
    let name = format!("{} ({})", case["file"], case["about"]);
    match (read, case["refused"].as_str()) {
        (Err(error), Some(words)) => {
            let error = error.to_string();
            if error.contains(words) { Ok(format!("refused: {words} …")) } else { Err(format!("{name}: {error}, not {words}")) }
        }
        (Ok(_), Some(words)) => Err(format!("{name}: read, but should be refused with {words}")),
        (Err(error), None) => Err(format!("{name}: {error}")),
        (Ok((x, y)), None) => {
            let mut wanted = expected("x");
            if ragged {
                let longest = wanted.iter().map(Vec::len).max().unwrap_or(0);
                wanted.iter_mut().for_each(|row| row.resize(longest, 0.0));
            }
            match (&x, &y) == (&wanted, &expected("y")) {
                true => Ok("read".to_string()),
                false => Err(format!("{name}: {x:?} and {y:?}, not {wanted:?} and {:?}", expected("y"))),
            }
        }
    }
}

#[test]
fn tables_are_read_as_their_writers_report_or_refused_in_words() {
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(folder().join("tables.json")).unwrap()).unwrap();
    let mut list = "| file | written by | what | result |\n|---|---|---|---|\n".to_string();
    let mut wrong = Vec::new();
    for case in &cases {
        let result = outcome(case).unwrap_or_else(|problem| {
            wrong.push(problem);
            String::new()
        });
        let text = |key: &str| case[key].as_str().unwrap().replace('|', "\\|");
        list += &format!("| `{}` | {} | {} | {} |\n", text("file"), text("writer"), text("about"), result);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() >= 80);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tables.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- files -->\n").expect("the page has a place for the list");
    let (found, after) = rest.split_once("<!-- end of files -->").expect("the list has an end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}<!-- files -->\n{list}<!-- end of files -->{after}")).unwrap();
        return;
    }
    assert!(found == list, "docs/tables.md has another list; write it again with UPDATE_DOCS=1");
}

#[test]
fn categories_counted_while_columns_are_inferred_are_those_of_a_pass_over_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    // Ties, a category that is a number, missing values, a bad row.
    let good = "n,c,d,y\n1,b,1,p\n2,a,x,q\n3,a,x,p\n4,c,1,q\n5,b,x,p\n6,c,x,p\n";
    for (text, lenient) in [(good.to_string(), false), (good.replace("4,c", "4,"), false), (good.replace("3,a", "?,a"), true)] {
        fs::write(&path, text).unwrap();
        let spec = CsvSpec::from(TableSpec::new().targets(["y"]));
        let table = Csv::open(&path, &if lenient { spec.lenient() } else { spec }).unwrap();
        let counted_again = table.fitted_to(&|_| true).unwrap();
        assert_eq!(table.fitted(), counted_again.fitted());
    }
}

#[test]
fn missing_values_are_the_same_in_every_format() {
    let spec = || TableSpec::new().targets(["y"]).missing_values(["v"]).missing(Missing::Mean).indicator();
    let read = |data: Result<Dataset, DataError>| {
        let data = data.unwrap().batch(5);
        (rows(&data, "x").unwrap(), data.fitted_columns())
    };
    let of_csv = read(Csv::open(&folder().join("holes.csv"), &CsvSpec::from(spec())).and_then(Csv::dataset));
    let of_parquet = read(Dataset::parquet(folder().join("holes.parquet"), &ParquetSpec::from(spec())));
    // The number and where it is missing; then categories, of which `v` is none.
    assert_eq!(of_csv.0[..2], [[1.0, 0.0, 0.0, 1.0], [4.0, 1.0, 0.0, 1.0]]);
    assert_eq!(of_parquet.0, of_csv.0);
    assert_eq!(of_parquet.1[..2], of_csv.1[..2]);
    // Text for a number that is missing.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("nan.csv"), "a,y\n1,0\nNaN,1\n3,0\n").unwrap();
    let of_nan = read(Csv::open(&folder.path().join("nan.csv"), &CsvSpec::from(spec())).and_then(Csv::dataset));
    assert_eq!(of_nan.0, [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]);
}

#[test]
fn a_constant_for_missing_categories_is_one_of_them() {
    let read = |file: &str, oov: usize| {
        let encode = Encode::Lookup(VocabularyOptions { oov, ..VocabularyOptions::default() }, Default::default());
        let c =
            ColumnOptions { encode: Some(encode), missing: Some(Missing::Constant(Fill::Text("none".into()))), ..ColumnOptions::default() };
        let spec = TableSpec::new().targets(["y"]).features(["c"]).column("c", c);
        let path = folder().join(file);
        let data = match file.ends_with(".csv") {
            true => Csv::open(&path, &CsvSpec::from(spec)).and_then(Csv::dataset),
            false => Dataset::parquet(path, &ParquetSpec::from(spec)),
        };
        rows(&data.unwrap().batch(4), "x").unwrap()
    };
    assert_eq!(read("holes.csv", 0)[..3], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
    assert_eq!(read("holes.parquet", 0), read("holes.csv", 0));
    // Where unknown values have an index, it is that of the constant too.
    assert_eq!(read("holes.csv", 1)[2], [1.0, 0.0, 0.0]);
    // A number fills categories that are integers.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("n.csv"), "n,y\n7,0\n,1\n7,0\n5,0\n5,0\n7,1\n").unwrap();
    let encode = Some(Encode::Lookup(VocabularyOptions { oov: 1, ..VocabularyOptions::default() }, plimsoll_data::source::Output::Int));
    let n = ColumnOptions { kind: Some(ColumnKind::Number), encode, ..ColumnOptions::default() };
    let spec = TableSpec::new().targets(["y"]).column("n", n).missing(Missing::Constant(Fill::Number(5.0)));
    let data = Csv::open(&folder.path().join("n.csv"), &CsvSpec::from(spec)).and_then(Csv::dataset).unwrap();
    let wanted = rows(&data.batch(6), "x").unwrap();
    assert_eq!(wanted[1], wanted[3], "the missing value is a 5: {wanted:?}");
}

#[test]
fn what_is_asked_of_columns_that_do_not_fit_is_refused() {
    let csv = |file: &str, spec: TableSpec| {
        let read = Csv::open(&folder().join(file), &CsvSpec::from(spec.targets(["class"]))).and_then(Csv::dataset);
        refusal(read.and_then(|data| rows(&data.batch(2), "x")))
    };
    let parquet = |spec: TableSpec| {
        let read = Dataset::parquet(folder().join("mixed.parquet"), &ParquetSpec::from(spec.targets(["class"])));
        refusal(read.and_then(|data| rows(&data.batch(2), "x")))
    };
    let kind = |name: &str, kind: ColumnKind, integer: bool| {
        let options = ColumnOptions { kind: Some(kind), integer: integer.then_some(true), ..ColumnOptions::default() };
        TableSpec::new().column(name, options)
    };
    let lookup = VocabularyOptions { max_tokens: Some(1), ..VocabularyOptions::default() };
    let full = ColumnOptions { encode: Some(Encode::Lookup(lookup, Default::default())), ..ColumnOptions::default() };
    let format = ColumnOptions { kind: Some(ColumnKind::Date), format: Some("%Y-%Q".into()), ..ColumnOptions::default() };
    let refused = [
        csv("mixed.csv", TableSpec::new().features(["size", "new"]).drop(["new"])),
        csv("mixed.csv", TableSpec::new().drop(["class"])),
        csv("mixed.csv", TableSpec::new().rename_one("siez", "length")),
        csv("mixed.csv", kind("size", ColumnKind::Number, true)),
        parquet(kind("size", ColumnKind::Number, true)),
        parquet(kind("size", ColumnKind::Boolean, false)),
        parquet(kind("colour", ColumnKind::Number, false)),
        csv("mixed.csv", TableSpec::new().column("colour", full)),
        csv("mixed.csv", TableSpec::new().column("day", format)),
        csv("mixed.jsonl", TableSpec::new()),
        csv("caret.csv", TableSpec::new()),
    ];
    insta::assert_snapshot!(refused.join("\n"), @r#"
    mixed.csv, line 1: column `new` is dropped, and it is also named to be read; remove it from one of the two
    mixed.csv, line 1: column `class` is dropped, and it is also named to be read; remove it from one of the two
    mixed.csv, line 1: `rename` gives `siez` the name `length`, but there is no column `siez`; the columns are size, colour, new, day, class
    mixed.csv, line 2: column `size` is 0.5, which is no integer of 32 bits; read it as float
    mixed.parquet, row 0 (the first is 0): column `size` is 0.5, which is no integer; read it as float
    mixed.parquet, row 0 (the first is 0): column `size` is "0.5", which is neither true nor false; correct the row or read it as a category
    mixed.parquet, row 0 (the first is 0): column `colour` is "red", which is no number; choose another column or correct the row
    mixed.csv, line 1: column `colour` has no index left for categories: 1 of `max_tokens = 1` are for unknown values and the mask; raise it
    mixed.csv, line 1: column `day` has the date format "%Y-%Q" with %Q; the directives are %Y, %y, %m, %b, %B, %d, %j, %H, %I, %p, %M, %S, %f and %%
    mixed.jsonl, line 1: its lines are JSON objects; set source = "json_lines"
    caret.csv, line 1: there is no column `class`; the only column is a^b^y; if that is several, set `delimiter`
    "#);
    // Of options that are set twice, the later ones add to the earlier.
    let encode = Some(Encode::Lookup(VocabularyOptions::default(), plimsoll_data::source::Output::Int));
    let spec = kind("size", ColumnKind::Category, false).column("size", ColumnOptions { encode, ..ColumnOptions::default() });
    let data = Csv::open(&folder().join("mixed.csv"), &CsvSpec::from(spec.features(["size"]))).and_then(Csv::dataset).unwrap();
    assert_eq!(data.fitted_columns()[0].kind, ColumnKind::Category);
}

/// An error without the folder of its file.
fn refusal(read: Result<Vec<Vec<f32>>, DataError>) -> String {
    read.unwrap_err().to_string().replace(&format!("{}/", folder().display()), "")
}

#[test]
fn fitting_is_a_stage_of_the_plan_within_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    let rows: String = (0..4000).map(|row| format!("unique{row} common{} word,{}\n", row % 3, row % 2)).collect();
    fs::write(&path, format!("line,y\n{rows}")).unwrap();
    let fitting = |bytes: Bytes| {
        let vocabulary = VocabularyOptions { max_tokens: Some(5), ..VocabularyOptions::default() };
        let encode = Encode::Vectorize { tokens: Default::default(), vocabulary, output: Default::default(), length: Some(3) };
        let line = ColumnOptions { kind: Some(ColumnKind::Text), encode: Some(encode), ..ColumnOptions::default() };
        let spec = TableSpec::new().targets(["y"]).column("line", line).fitting_memory(bytes);
        let table = Csv::open(&path, &CsvSpec::from(spec)).unwrap();
        let plan = table.clone().dataset().unwrap().batch(8).plan(None).unwrap();
        let stage = plan.stages().iter().find(|(name, _)| name == "fitting").map(|(_, bytes)| *bytes);
        (table.fitted(), stage.expect("fitting has memory of its own"))
    };
    let ((whole, all), (pruned, few)) = (fitting(Bytes::mib(8)), fitting(Bytes::kib(64)));
    // Tokens that occurred once are dropped beyond the limit, which leaves the frequent ones.
    assert_eq!(whole, pruned);
    assert!(all > Bytes::kib(200) && few <= Bytes::kib(256) && few > Bytes::ZERO, "{all} {few}");
}
