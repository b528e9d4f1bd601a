//! Input that would give a wrong answer is refused, and what is left out is listed.

use super::super::{Sandbox, npy};
use super::files::{ParquetColumn, Zip, npz, parquet};

const DENSE: &str =
    "[model]\nlayers = [{ type = \"dense\", units = 2 }]\n[train]\nepochs = 1\nbatch = 4\nloss = \"softmax_cross_entropy\"\n";

fn f64s(rows: usize) -> Vec<u8> {
    (0..rows).flat_map(|row| (row as f64 / 2.0).to_le_bytes()).collect()
}

fn i32s(rows: i32) -> Vec<u8> {
    (0..rows).flat_map(|row| (row % 2).to_le_bytes()).collect()
}

/// A Parquet table whose column `odd` has a logical type, and its configuration.
fn write_odd(sandbox: &Sandbox, odd: ParquetColumn) {
    sandbox.write("t.parquet", parquet(8, &[ParquetColumn::new("a", 5, f64s(8)), odd, ParquetColumn::new("y", 1, i32s(8))], None));
    sandbox.write("run.toml", format!("[data]\nsource = \"parquet\"\npath = \"t.parquet\"\ntarget = \"y\"\n{DENSE}"));
}

#[test]
fn parquet_columns_are_read_as_their_logical_type_or_refused_by_name() {
    let sandbox = Sandbox::new("g-logical");
    let longs = |value: i64| std::iter::repeat_n(value.to_le_bytes(), 8).flatten().collect::<Vec<u8>>();
    let words = |value: i32| std::iter::repeat_n(value.to_le_bytes(), 8).flatten().collect::<Vec<u8>>();
    let long = |value, converted, logical| ParquetColumn { converted, logical, ..ParquetColumn::new("odd", 2, longs(value)) };
    let word = |value, converted, logical| ParquetColumn { converted, logical, ..ParquetColumn::new("odd", 1, words(value)) };
    for (odd, value, date) in [
        (word(-1, Some(13), None), 4_294_967_295.0, false),
        (long(-1, Some(14), None), 18_446_744_073_709_551_615.0, false),
        // INTEGER { bitWidth: 32, isSigned: false }
        (word(-1, None, Some((10, vec![0x13, 32, 0x12]))), 4_294_967_295.0, false),
        (word(7, Some(11), None), 7.0, false),
        (word(7, Some(5), None), 7.0, false),
        (word(7, Some(6), None), 7.0, true),
        (word(7, None, Some((6, vec![]))), 7.0, true),
        (long(43_200_000_000, Some(10), None), 0.5, true),
        (long(21_600_000_000, Some(8), None), 0.25, true),
    ] {
        write_odd(&sandbox, odd);
        let plan = sandbox.succeed(&["plan", "run.toml"]);
        assert!(plan.contains("reads          a, odd → y"), "{plan}");
        assert_eq!(plan.contains("encoded        odd (date)"), date, "{plan}");
        let sample = sandbox.json(&["data", "inspect", "run.toml", "--json"]);
        let found = sample["samples"][0]["x"]["max"].as_f64().unwrap();
        assert!((found - value).abs() <= value * 1e-6, "{found}, not {value}");
    }
    write_odd(&sandbox, ParquetColumn { converted: Some(20), ..ParquetColumn::new("odd", 6, Vec::new()) });
    let plan = sandbox.succeed(&["plan", "run.toml"]);
    assert!(plan.contains("not read       odd (BSON)"), "{plan}");
    let (code, error) = sandbox.fail(&["plan", "run.toml", "--set", "data.features=[\"a\", \"odd\"]"]);
    assert!(code == 1 && error.contains("its column `odd` is not read (BSON)"), "{error}");
    write_odd(&sandbox, word(7, Some(6), None));
    let plan = sandbox.succeed(&["plan", "run.toml", "--set", "data.features=[\"a\"]"]);
    assert!(plan.contains("not read       odd (not among the features)"), "{plan}");
}

#[test]
fn what_is_read_and_what_is_not_is_listed() {
    let sandbox = Sandbox::new("g-listed");
    let rows: String = (0..8).map(|row| format!("{row},{}.5,red,{},{}\n", row, row % 2 == 0, row % 2)).collect();
    sandbox.write("t.csv", format!(",size,colour,is_new,class\n{rows}"));
    sandbox.write("csv.toml", format!("[data]\nsource = \"csv\"\npath = \"t.csv\"\ntarget = \"class\"\n{DENSE}"));
    let reads = "reads          size, is_new → class\n";
    let not = "encoded        is_new (boolean)\n  not read       \"\" (index column), colour (constant)\n";
    let plan = sandbox.succeed(&["plan", "csv.toml"]);
    assert!(plan.contains(reads) && plan.contains(not), "{plan}");
    let output = sandbox.run(&["train", "csv.toml", "--out", "run"]);
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && progress.contains(reads) && progress.contains(not), "{progress}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(sandbox.path("run/report.json")).unwrap()).unwrap();
    assert_eq!(report["data"]["training"]["unused"][1], serde_json::json!({ "name": "colour", "reason": "constant" }));
    let inspected = sandbox.succeed(&["data", "inspect", "csv.toml"]);
    assert!(
        inspected.contains("reads     size, is_new → class") && inspected.contains("not read  \"\" (index column), colour (constant)"),
        "{inspected}"
    );
    assert_eq!(sandbox.json(&["data", "inspect", "csv.toml", "--json"])["used"], serde_json::json!(["size", "is_new"]));
}

#[test]
fn index_columns_of_pandas_are_no_features() {
    let sandbox = Sandbox::new("g-index");
    let columns = || {
        let long = |name| ParquetColumn::new(name, 2, f64s(8));
        let names = (0..8u8).flat_map(|row| [1, 0, 0, 0, b'a' + row]).collect();
        let text = ParquetColumn { converted: Some(0), ..ParquetColumn::new("name", 6, names) };
        vec![ParquetColumn::new("a", 5, f64s(8)), text, ParquetColumn::new("y", 1, i32s(8)), long("id"), long("__index_level_1__")]
    };
    sandbox.write("t.parquet", parquet(8, &columns(), Some(r#"{"index_columns": ["id", "__index_level_1__"], "columns": []}"#)));
    sandbox.write("run.toml", format!("[data]\nsource = \"parquet\"\npath = \"t.parquet\"\ntarget = \"y\"\n{DENSE}"));
    let plan = sandbox.succeed(&["plan", "run.toml"]);
    assert!(plan.contains("reads          a → y\n"), "{plan}");
    assert!(plan.contains("not read       name (text), id (index column), __index_level_1__ (index column)\n"), "{plan}");
    let named = sandbox.succeed(&["plan", "run.toml", "--set", "data.features=[\"a\", \"id\"]"]);
    assert!(named.contains("reads          a, id → y\n"), "{named}");
}

#[test]
fn files_of_a_folder_that_are_not_read_are_listed() {
    let sandbox = Sandbox::new("g-files");
    // The smallest grey PNG is enough: it is not decoded by a plan.
    for class in ["cat", "dog"] {
        std::fs::create_dir_all(sandbox.path(&format!("images/{class}"))).unwrap();
        sandbox.write(&format!("images/{class}/1.png"), b"");
        sandbox.write(&format!("images/{class}/notes.psd"), b"");
    }
    let map = "map = [{ op = \"decode\" }, { op = \"resize\", size = 8 }]\nbatch = 2";
    let model = "[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n";
    sandbox.write("run.toml", format!("[data]\nsource = \"image_folder\"\npath = \"images\"\n{map}\n{model}"));
    let plan = sandbox.succeed(&["plan", "run.toml"]);
    assert!(plan.contains("not read       2 files not called .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff, such as "), "{plan}");
}

/// Rows of a table in which `y = 2 x + 100`.
fn line(rows: std::ops::Range<i32>) -> String {
    "x,y\n".to_string() + &rows.map(|row| format!("{row},{}.5\n", 2 * row + 100)).collect::<String>()
}

#[test]
fn predictions_of_standardized_tables_are_in_the_units_of_the_file() {
    let sandbox = Sandbox::new("g-units");
    sandbox.write("train.csv", line(0..64));
    sandbox.write("other.csv", line(40..60));
    let data = "[data]\nsource = \"csv\"\npath = \"train.csv\"\ntarget = \"y\"\nstandardize = true\nshuffle = true\nbatch = 16\n";
    let train = "[train]\nepochs = 80\nloss = \"mse\"\noptimizer = { type = \"adam\", lr = 0.05 }\n";
    sandbox.write("run.toml", format!("{data}[model]\nlayers = [{{ type = \"dense\", units = 1 }}]\n{train}"));
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    // Other rows are standardized with the statistics of the training rows, whichever key names them.
    for other in [&[][..], &["--set", "data.path=other.csv"], &["--set", "data.validation.path=other.csv"]] {
        let other: Vec<String> = other.iter().map(|text| text.replace("other.csv", sandbox.path("other.csv").to_str().unwrap())).collect();
        let mut arguments = vec!["predict", "run", "--out", "p.csv"];
        arguments.extend(other.iter().map(String::as_str));
        let said = sandbox.succeed(&arguments);
        assert!(said.contains("2 columns are standardized with the mean and deviation of the training rows"), "{said}");
        let first = if other.is_empty() { 0 } else { 40 };
        let predictions = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
        for (row, line) in predictions.lines().skip(1).enumerate() {
            let value: f64 = line.rsplit(',').next().unwrap().parse().unwrap();
            let wanted = 2.0 * (first + row) as f64 + 100.5;
            assert!((value - wanted).abs() < 3.0, "row {row}: {value}, not {wanted}");
        }
    }
    let weights = std::fs::read(sandbox.path("run/weights.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&weights[8..8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize]).into_owned();
    assert!(header.contains("__metadata__") && header.contains("preprocessing"), "{header}");
    // A checkpoint belongs to the statistics it was trained with.
    sandbox.write("train.csv", line(1..65));
    let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "run", "--resume", "--epochs", "81"]);
    assert!(error.contains("the data changed since the checkpoint"), "{error}");
}

fn arrays() -> [(&'static str, Vec<u8>); 2] {
    let x: Vec<u8> = (0..40).flat_map(|n| (n as f32 / 8.0).to_le_bytes()).collect();
    [("x", npy("<f4", "(8, 5)", &x)), ("y", npy("<i4", "(8,)", &i32s(8)))]
}

#[test]
fn a_changed_byte_of_an_npz_file_is_noticed() {
    let sandbox = Sandbox::new("g-crc");
    sandbox.write("run.toml", format!("[data]\nsource = \"npz\"\npath = \"a.npz\"\n{DENSE}"));
    for (how, good, bad) in [(Zip::Stored, "a", "b"), (Zip::Deflated, "c", "d"), (Zip::Zip64, "e", "f")] {
        let (mut file, places) = npz(&arrays(), how);
        sandbox.write("a.npz", &file);
        sandbox.succeed(&["train", "run.toml", "--quiet", "--out", good]);
        file[places[0] + 150] ^= 1;
        sandbox.write("a.npz", &file);
        let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", bad]);
        assert!(error.contains("its array `x.npy` does not match its checksum (CRC-32)"), "{error}");
    }
}

#[test]
fn an_npz_file_with_fields_for_large_sizes_is_read() {
    let sandbox = Sandbox::new("g-zip64");
    sandbox.write("run.toml", format!("[data]\nsource = \"npz\"\npath = \"a.npz\"\n{DENSE}"));
    for how in [Zip::Stored, Zip::Zip64] {
        sandbox.write("a.npz", npz(&arrays(), how).0);
        let inspected = sandbox.succeed(&["data", "inspect", "run.toml"]);
        assert!(inspected.contains("rows      8 in 2 batches"), "{inspected}");
    }
}

#[test]
fn a_micro_batch_larger_than_the_batch_is_refused() {
    let sandbox = Sandbox::new("g-micro");
    let (code, error) = sandbox.fail(&["plan", "--batch", "32", "--micro-batch", "64"]);
    assert_eq!(code, 1);
    assert_eq!(error, "error: a micro-batch of 64 rows is larger than the batch of 32; use a smaller micro-batch, or a larger batch");
}

#[test]
fn a_number_that_is_not_finite_is_named_by_file_and_row() {
    let sandbox = Sandbox::new("g-nan");
    let mut x: Vec<f32> = (0..40).map(|n| n as f32 / 8.0).collect();
    x[6 * 5 + 2] = f32::NAN;
    sandbox.write("x.npy", npy("<f4", "(8, 5)", &x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()));
    sandbox.write("y.npy", npy("<i4", "(8,)", &i32s(8)));
    sandbox.write("run.toml", format!("[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\n{DENSE}"));
    let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "a"]);
    assert!(error.contains("the data, column `x`, row 6 of npy ") && error.contains("x.npy"), "{error}");
    // In a table, a number too large for f32 is a bad row.
    let rows: String =
        (0..20).map(|row| format!("{},{}\n", if row == 13 { "1e300".to_string() } else { row.to_string() }, row % 2)).collect();
    sandbox.write("t.csv", format!("x,y\n{rows}"));
    sandbox.write("csv.toml", format!("[data]\nsource = \"csv\"\npath = \"t.csv\"\ntarget = \"y\"\n{DENSE}"));
    let (_, error) = sandbox.fail(&["train", "csv.toml", "--quiet", "--out", "b"]);
    assert!(error.contains("t.csv, line 15: column `x` is 1e300, which nothing can be trained on"), "{error}");
}

/// Keys with a number that can be huge, in a model of images or of sequences, or in the data.
const IMAGES: [&str; 27] = [
    "{ type = \"dense\", units = N }",
    "{ type = \"conv2d\", filters = N, size = 3 }",
    "{ type = \"conv2d\", filters = 2, size = N }",
    "{ type = \"conv2d\", filters = 2, size = N, padding = \"same\" }",
    "{ type = \"conv2d\", filters = 2, size = 3, stride = N, padding = \"same\" }",
    "{ type = \"conv2d\", filters = 2, size = 3, dilation = N, padding = \"same\" }",
    "{ type = \"conv2d\", filters = 2, size = 3, groups = N }",
    "{ type = \"conv2d\", filters = 2, size = 3, padding = N }",
    "{ type = \"depthwise_conv2d\", size = 3, multiplier = N }",
    "{ type = \"depthwise_conv2d\", size = N }",
    "{ type = \"separable_conv2d\", filters = 2, size = 3, multiplier = N }",
    "{ type = \"conv2d_transpose\", filters = N, size = 3 }",
    "{ type = \"conv2d_transpose\", filters = 2, size = N }",
    "{ type = \"conv2d_transpose\", filters = 2, size = 3, stride = N }",
    "{ type = \"conv2d_transpose\", filters = 2, size = 3, stride = N, padding = 1 }",
    "{ type = \"conv2d_transpose\", filters = 2, size = 3, dilation = N }",
    "{ type = \"max_pool2d\", size = N, padding = \"same\" }",
    "{ type = \"max_pool2d\", size = 2, padding = N }",
    "{ type = \"average_pool2d\", size = N, padding = \"same\" }",
    "{ type = \"average_pool2d\", size = 2, stride = N }",
    "{ type = \"up_sampling2d\", factor = N }",
    "{ type = \"up_sampling2d\", factor = N, method = \"bilinear\" }",
    "{ type = \"group_norm\", groups = N }",
    "{ type = \"reshape\", shape = [N, 4] }",
    "{ type = \"zero_padding2d\", padding = N }",
    "{ type = \"zero_padding2d\", padding = [0, 0, N, 3] }",
    "{ type = \"cropping2d\", padding = [N, 1, 0, 0] }",
];
const SEQUENCES: [&str; 12] = [
    "{ type = \"conv1d\", filters = N, size = 3 }",
    "{ type = \"conv1d\", filters = 2, size = N, padding = \"causal\" }",
    "{ type = \"conv1d\", filters = 2, size = 3, dilation = N, padding = \"causal\" }",
    "{ type = \"conv1d\", filters = 2, size = 3, padding = N }",
    "{ type = \"position_embedding\", context = N }",
    "{ type = \"multi_head_attention\", heads = N, depth = 4 }",
    "{ type = \"multi_head_attention\", heads = 2, depth = N }",
    "{ type = \"multi_head_attention\", heads = 4, kv_heads = N }",
    "{ type = \"lstm\", units = N }",
    "{ type = \"gru\", units = N }",
    "{ type = \"simple_rnn\", units = N }",
    "{ type = \"bidirectional\", cell = \"gru\", units = N }",
];
const DATA: [&str; 14] = [
    "map = [{ op = \"resize\", size = N }]",
    "map = [{ op = \"center_crop\", size = N }]",
    "map = [{ op = \"random_resized_crop\", size = N }]",
    "map = [{ op = \"pad\", size = N }]",
    "map = [{ op = \"crop_or_pad\", size = [N, 1] }]",
    "map = [{ op = \"one_hot\", classes = N }]",
    "repeat = N",
    "shard = [N, 1]",
    "prefetch = N",
    "parallelism = N",
    "batch = N\ndrop_remainder = true",
    "stages = [{ op = \"window\", size = N }]",
    "stages = [{ op = \"window\", size = 2, stride = N }]",
    "stages = [{ op = \"padded_batch\", rows = N }]",
];

#[test]
fn sizes_that_overflow_are_refused_or_harmless() {
    let sandbox = Sandbox::new("g-huge");
    let table = |shape: &str, data: &str, layers: &str| {
        let data = format!("[data]\nsource = \"random\"\nrows = 32\nx = {shape}\nclasses = 2\n{data}\n");
        format!("{data}[model]\nlayers = [{layers}{{ type = \"flatten\" }}, {{ type = \"dense\", units = 2 }}]\n[train]\nepochs = 1\n")
    };
    let images = IMAGES.iter().map(|layer| table("[8, 8, 1]", "batch = 8", &format!("{layer}, ")));
    let sequences = SEQUENCES.iter().map(|layer| table("[8, 4]", "batch = 8", &format!("{layer}, ")));
    let data = DATA.iter().map(|data| table("[8, 8, 1]", data, ""));
    let cases: Vec<String> = images.chain(sequences).chain(data).collect();
    for (number, case) in cases.iter().enumerate() {
        // A TOML integer has 63 bits; the largest number of 64 is refused as a configuration.
        for huge in ["2147483648", "4294967296", "4611686018427387904", "9223372036854775807", "18446744073709551615"] {
            let name = format!("{number}.toml");
            sandbox.write(&name, case.replace('N', huge));
            let output = sandbox.run(&["plan", &name, "--host-memory", "300MiB", "--quiet"]);
            let error = String::from_utf8_lossy(&output.stderr);
            let known = matches!(output.status.code(), Some(0..=3));
            assert!(known && !error.contains("panicked"), "{:?} {error}\n{}", output.status, case.replace('N', huge));
        }
    }
}

#[test]
fn a_padding_that_wraps_around_does_not_train() {
    let sandbox = Sandbox::new("g-wrap");
    for padding in ["9223372036854775807", "[9223372036854775807, 9223372036854775807, 2, 0]", "4611686018427387904"] {
        let layers =
            format!("{{ type = \"zero_padding2d\", padding = {padding} }}, {{ type = \"flatten\" }}, {{ type = \"dense\", units = 2 }}");
        let data = "[data]\nsource = \"random\"\nrows = 32\nx = [8, 8, 1]\nclasses = 2\nbatch = 8\n";
        sandbox.write("run.toml", format!("{data}[model]\nlayers = [{layers}]\n"));
        let (code, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "run"]);
        assert!((1..=3).contains(&code) && error.contains("larger than any machine's memory"), "{code} {error}");
    }
}
