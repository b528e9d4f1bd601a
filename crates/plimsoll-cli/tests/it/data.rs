//! `plimsoll data`, and training from a folder of images.

use super::Sandbox;

const PICTURES: &str = r#"[data]
source = "image_folder"
path = "pictures"
shuffle = { seed = 7 }
map = [{ op = "decode" }, { op = "resize", size = [8, 8], method = "bilinear" }, { op = "scale", by = 0.00392156862745098 }]
batch = 4
prefetch = "auto"
"#;

/// A folder of two classes of images: dark and bright.
pub fn pictures(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    for (class, bright) in [("dark", 20u8), ("bright", 220)] {
        std::fs::create_dir_all(sandbox.path("pictures").join(class)).unwrap();
        for number in 0..10u8 {
            let (width, height) = (10 + u32::from(number), 20 - u32::from(number));
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, width, height);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            let pixels = vec![bright + number; (width * height * 3) as usize];
            encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
            sandbox.write(&format!("pictures/{class}/{number}.png"), file);
        }
    }
    sandbox.write("data.toml", PICTURES);
    sandbox
}

#[test]
fn a_benchmark_reports_throughput_and_stays_within_planned_memory() {
    let sandbox = pictures("bench");
    let document = sandbox.json(&["data", "bench", "data.toml", "--epochs", "3", "--host-memory", "64MiB", "--json"]);
    let epochs = document["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 3);
    assert!(epochs.iter().all(|epoch| epoch["examples"] == 20 && epoch["examples_per_s"].as_f64().unwrap() > 0.0));
    let bytes = |key: &str| document[key].as_u64().unwrap();
    assert!(bytes("peak_rss_bytes") <= bytes("planned_bytes") && bytes("planned_bytes") <= 64 << 20, "{document}");
    let held: u64 = document["stages"].as_array().unwrap().iter().filter_map(|stage| stage["bytes"].as_u64()).sum();
    assert_eq!(held, bytes("planned_bytes"));
    // Rows are counted from when their production starts, possibly before the first is requested.
    let (rows, together) = (60.0, document["examples_per_s"].as_f64().unwrap());
    let seconds: f64 = epochs.iter().map(|epoch| epoch["seconds"].as_f64().unwrap()).sum();
    assert!(together > 0.0 && together <= rows / seconds, "{document}");
    let shown = sandbox.succeed(&["data", "bench", "data.toml"]);
    assert!(shown.contains("examples/s"), "{shown}");
}

#[test]
fn skipped_rows_are_counted_and_reported() {
    let sandbox = pictures("bench-left-out");
    sandbox.write("pictures/dark/3.png", "");
    let error = sandbox.fail(&["data", "bench", "data.toml"]).1;
    assert!(error.contains("3.png cannot be decoded: it is empty"), "{error}");
    let lenient = ["--set", "data.ignore_errors=2"];
    let document = sandbox.json(&[&["data", "bench", "data.toml", "--epochs", "3", "--json"], &lenient[..]].concat());
    assert!(document["epochs"].as_array().unwrap().iter().all(|epoch| epoch["left_out"] == 1), "{document}");
    let named = document["left_out"].as_array().unwrap();
    assert!(named.len() == 1 && named[0].as_str().unwrap().contains("3.png"), "{document}");
    assert!(sandbox.succeed(&[&["data", "bench", "data.toml"], &lenient[..]].concat()).contains("skipped   1 row of an epoch:"));

    sandbox.write(
        "train.toml",
        format!(
            "{PICTURES}[model]\nlayers = [{{ type = \"flatten\" }}, {{ type = \"dense\", units = 2 }}]\n[train]\nbatch = 4\nepochs = 2\n"
        ),
    );
    let said = sandbox.run(&[&["train", "train.toml", "--out", "out"], &lenient[..]].concat());
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.contains("warning: 1 row was left out of epoch 2; the first: pictures/dark/3.png cannot be decoded"), "{told}");
    let log = std::fs::read_to_string(sandbox.path("out").join("log.jsonl")).unwrap();
    assert!(log.lines().all(|line| line.contains("\"left_out\":1")), "{log}");
}

/// Rows without indices: those of a Parquet table, and images in TFRecords.
#[test]
fn skipped_rows_of_a_stream_are_counted_and_reported() {
    let sandbox = Sandbox::new("bench-stream-left-out");
    let reference = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference");
    std::fs::copy(reference.join("holes.parquet"), sandbox.path("holes.parquet")).unwrap();
    let mut packed = std::fs::read(reference.join("encoded_images.tfrecord.gz")).unwrap();
    std::fs::write(sandbox.path("0.tfrecord.gz"), &packed).unwrap();
    packed.truncate(packed.len() / 2);
    std::fs::write(sandbox.path("1.tfrecord.gz"), &packed).unwrap();
    std::fs::copy(sandbox.path("0.tfrecord.gz"), sandbox.path("2.tfrecord.gz")).unwrap();
    let table = "[data]\nsource = \"parquet\"\npath = \"holes.parquet\"\ntarget = \"few\"\nfeatures = [\"half\"]\nbatch = 1\n";
    let records = r#"[data]
source = "tfrecord"
path = "*.tfrecord.gz"
input = { name = "image/encoded", dtype = "image" }
label = { name = "image/class/label", dtype = "i32" }
map = [{ op = "decode" }, { op = "resize", size = [4, 4] }]
batch = 1
"#;
    for (config, wrong, rows) in
        [(table, "holes.parquet, row 1 (the first is 0)", 2..3), (records, "1.tfrecord.gz, the record at byte", 6..9)]
    {
        sandbox.write("data.toml", config);
        let bench = ["data", "bench", "data.toml", "--epochs", "2", "--host-memory", "64MiB"];
        let error = sandbox.fail(&bench).1;
        assert!(error.contains(wrong), "{error}");
        let document = sandbox.json(&[&bench[..], &["--json", "--set", "data.ignore_errors=1"]].concat());
        let epochs = document["epochs"].as_array().unwrap();
        assert!(epochs.iter().all(|epoch| epoch["left_out"] == 1 && rows.contains(&epoch["examples"].as_u64().unwrap())), "{document}");
        let named = document["left_out"].as_array().unwrap();
        assert!(named.len() == 1 && named[0].as_str().unwrap().contains(wrong), "{document}");
    }
}

#[test]
fn an_infeasible_pipeline_budget_reports_the_minimum() {
    let sandbox = pictures("bench-line");
    let output = sandbox.run(&["data", "bench", "data.toml", "--host-memory", "4MiB", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let least = document["min_bytes"].as_u64().unwrap().to_string();
    let kept = sandbox.json(&["data", "bench", "data.toml", "--host-memory", &least, "--json"]);
    assert!(kept["peak_rss_bytes"].as_u64() <= document["min_bytes"].as_u64(), "{kept}");
}

#[test]
fn the_second_epoch_reads_the_cache() {
    let sandbox = pictures("bench-cache");
    for cache in ["data.cache=\"memory\"", "data.cache={ file = \"kept.plc\" }"] {
        let document = sandbox.json(&["data", "bench", "data.toml", "--epochs", "2", "--set", cache, "--json"]);
        assert_eq!(document["epochs"][1]["examples"], 20);
    }
    assert!(sandbox.path("kept.plc").exists());
}

#[test]
fn inspect_prints_rows_and_writes_images() {
    let sandbox = pictures("inspect");
    let shown = sandbox.succeed(&["data", "inspect", "data.toml", "--rows", "2", "--set", "data.shuffle=false", "--out", "sheet.png"]);
    insta::assert_snapshot!(shown, @"
    image_folder pictures → map(x: decode()) → map(x: resize(8, 8, bilinear)) → map(x: scale(0.003921569)) → parallelism(auto) → batch(4) → prefetch(auto)
      rows      20 in 5 batches, 772 B each
      columns   x: f32[8, 8, 3], y: i32[]
      classes   bright, dark
      first rows
        x: 0.863 … 0.863, mean 0.863 · y: 0 (bright)
        x: 0.867 … 0.867, mean 0.867 · y: 0 (bright)
    ");
    let sheet = std::fs::File::open(sandbox.path("sheet.png")).unwrap();
    let reader = png::Decoder::new(std::io::BufReader::new(sheet)).read_info().unwrap();
    assert_eq!((reader.info().width, reader.info().height), (256, 128), "small images are enlarged");
    let document = sandbox.json(&["data", "inspect", "data.toml", "--json"]);
    assert_eq!((document["rows"].as_u64(), document["classes"][0].as_str()), (Some(20), Some("bright")));
    assert!(document["passed_over"].is_null());
    // Files without an image extension are not read, but reported.
    sandbox.write("pictures/dark/old.psd", "BM");
    sandbox.write("pictures/dark/.hidden", "");
    let shown = sandbox.succeed(&["data", "inspect", "data.toml", "--rows", "0"]);
    assert!(
        shown
            .trim_end()
            .ends_with("  not read  1 file not called .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff, such as pictures/dark/old.psd"),
        "{shown}"
    );
}

#[test]
fn training_from_a_folder_of_images() {
    let sandbox = pictures("learn");
    let rest = "[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n[train]\nepochs = 20\noptimizer = { type = \"adam\", lr = 1e-2 }\n[budget]\nhost = \"64MiB\"\n";
    sandbox.write("run.toml", format!("{PICTURES}cache = \"memory\"\n{rest}"));
    let document = sandbox.json(&["train", "run.toml", "--out", "out", "--json", "--quiet"]);
    assert_eq!(document["epochs"][19]["accuracy"], 1.0, "{document}");
    assert!(document["measured_peak_rss_bytes"].as_u64() <= document["planned_bytes"].as_u64());
}

#[test]
fn corrupt_images_and_unknown_keys_are_reported() {
    let sandbox = pictures("bad-pictures");
    let error = |arguments: &[&str]| {
        let (code, error) = sandbox.fail(&[&["data", "bench", "data.toml"], arguments].concat());
        assert_eq!(code, 1);
        error
    };
    insta::assert_snapshot!(error(&["--set", "data.path=nowhere"]), @"error: cannot list nowhere: No such file or directory (os error 2)");
    insta::assert_snapshot!(error(&["--set", "data.cache=disk"]), @r#"error: `data.cache` is "disk", but should be "memory", "auto" or a table such as { file = "cache.plc" } or { memory = "256MiB" }"#);
    insta::assert_snapshot!(error(&["--set", "data.parallelism=0"]), @r#"error: `data.parallelism` is 0, but should be "auto" or a number of threads"#);
    insta::assert_snapshot!(error(&["--set", "data.max_item=much"]), @"error: `data.max_item`: `much` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)");
    insta::assert_snapshot!(error(&["--set", "data.map=[{ op = \"decode\", channels = 2 }]"]), @"error: `data.map[0].channels` is 2, but should be 1 or 3");
    insta::assert_snapshot!(error(&["--set", "data.map=[{ op = \"decoed\" }]"]), @r#"error: `data.map[0].op` is "decoed", but should be one of decode, resize, center_crop, random_crop, random_resized_crop, pad, crop_or_pad, flip_left_right, flip_up_down, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, scale, normalize, cast, one_hot, finite, fill; did you mean "decode"?"#);
    sandbox.write("pictures/dark/5.png", "broken");
    insta::assert_snapshot!(error(&[]), @"error: pictures/dark/5.png cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder");
}

#[test]
fn data_commands_accept_a_source_without_configuration() {
    let sandbox = pictures("plain");
    let shown =
        sandbox.succeed(&["data", "inspect", "--source", "image_folder", "--path", "pictures", "--rows", "1", "--out", "sheet.png"]);
    insta::assert_snapshot!(shown, @"
    image_folder pictures → map(x: decode()) → map(x: resize(224, 224, bilinear)) → parallelism(auto) → batch(64) → prefetch(auto)
      rows      20 in 1 batches, 588 KiB each
      columns   x: f32[224, 224, 3], y: i32[]
      classes   bright, dark
      first rows
        x: 220.000 … 220.000, mean 220.000 · y: 0 (bright)
    ");
    assert!(sandbox.path("sheet.png").exists());
    // With `--rows 0` nothing is read.
    sandbox.write("pictures/dark/5.png", "broken");
    let shown = sandbox.succeed(&["data", "inspect", "--source", "image_folder", "--path", "pictures", "--rows", "0"]);
    assert!(shown.contains("rows      20 in 1 batches") && !shown.contains("first rows"), "{shown}");
    sandbox.write("rows.npy", crate::npy("<f4", "(6, 2)", &[0; 48]));
    let document = sandbox.json(&["data", "bench", "--source", "npy", "--path", "rows.npy", "--set", "data.batch=2", "--json"]);
    assert_eq!(document["epochs"][0]["examples"], 6);
    sandbox.write("table.csv", "a,b\n1,2\n3,4.5\n");
    let shown = sandbox.succeed(&["data", "inspect", "--source", "csv", "--path", "table.csv"]);
    assert!(shown.contains("columns   x: f32[2]") && shown.contains("mean 3.750"), "{shown}");
    let shown = sandbox.succeed(&["data", "inspect", "--source", "image_files", "--path", "pictures/*/1*.png"]);
    assert!(shown.contains("columns   x: f32[224, 224, 3]"), "{shown}");
    let records = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference");
    for (name, columns) in [
        ("examples.tfrecord", "x: f32[3], y: i32[]"),
        ("examples.tfrecord.gz", "x: f32[3], y: i32[]"),
        ("encoded_images.tfrecord", "x: f32[224, 224, 3], y: i32[]"),
    ] {
        let shown = sandbox.succeed(&["data", "inspect", "--source", "tfrecord", "--path", records.join(name).to_str().unwrap()]);
        assert!(shown.contains(&format!("columns   {columns}\n")), "{shown}");
    }
    let refused = |arguments: &[&str]| sandbox.fail(&[&["data", "inspect"], arguments].concat()).1;
    insta::assert_snapshot!(refused(&["--source", "imagefolder", "--path", "pictures"]), @r#"error: `data.source` is "imagefolder", but should be one of npy, npz, image_folder, image_files, csv, json_lines, parquet, arrow, text, webdataset, tfrecord; did you mean "image_folder"?"#);
    insta::assert_snapshot!(refused(&["--source", "npy"]).lines().take(3).collect::<Vec<_>>().join("\n"), @"
    error: the following required arguments were not provided:
      --path <PATH>
    ");
    insta::assert_snapshot!(refused(&[]).lines().take(3).collect::<Vec<_>>().join("\n"), @"
    error: the following required arguments were not provided:
      <CONFIG>
    ");
}

#[test]
fn a_benchmark_reports_the_bottleneck() {
    let sandbox = pictures("limits");
    let shown = sandbox.succeed(&["data", "bench", "data.toml", "--epochs", "2"]);
    for word in ["stage", "memory", "time/row", "busy", "threads", "decode (", "staging ring", "waiting", "in use", "limit"] {
        assert!(shown.contains(word), "{word} is missing in\n{shown}");
    }
    let document = sandbox.json(&["data", "bench", "data.toml", "--json"]);
    let decode = document["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == "decode").unwrap();
    assert!(decode["us_per_example"].as_f64().unwrap() > 0.0 && decode["utilisation"].as_f64().unwrap() > 0.0, "{decode}");
    assert!(document["limit"].as_str().is_some_and(|limit| !limit.is_empty()));
}

#[test]
fn a_cache_is_prefilled_and_reused() {
    let sandbox = pictures("fill");
    let arguments = ["data", "cache", "data.toml", "--set", "data.cache={ file = \"kept.plc\" }"];
    let size = |name: &str| std::fs::metadata(sandbox.path(name)).unwrap().len();
    insta::assert_snapshot!(sandbox.succeed(&arguments), @"kept.plc filled: 20 rows, 7.83 KiB");
    assert_eq!(size("kept.plc"), 4096 + 20 * (8 * 8 * 3 + 4));
    insta::assert_snapshot!(sandbox.succeed(&arguments), @"kept.plc was complete already: 20 rows, 7.83 KiB");
    let document = sandbox.json(&[&arguments[..], &["--json"]].concat());
    assert_eq!((document["found"].as_bool(), document["bytes"].as_u64()), (Some(true), Some(size("kept.plc"))));
    // Skipped rows would be missing from the cache for good.
    let part = ["--set", "data.cache={ file = \"part.plc\" }", "--set", "data.batch=3", "--quiet", "--set"];
    insta::assert_snapshot!(sandbox.fail(&[&arguments[..3], &part, &["data.drop_remainder=true"]].concat()).1, @"error: part.plc could not be filled: an epoch has 18 rows and the cache of all rows 20; leave out take, drop_remainder and ignore_errors");
    // A partial cache is a cache of its own.
    insta::assert_snapshot!(sandbox.succeed(&[&arguments[..3], &part, &["data.shard=[2, 0]"]].concat()), @"part.plc filled: 10 rows, 5.91 KiB");
    insta::assert_snapshot!(sandbox.fail(&["data", "cache", "data.toml"]).1, @r#"error: there is no cache file to fill; name one with `data.cache`, such as { file = "cache.plc" }"#);
}

/// Runs the command where no file may grow beyond 4 KiB, as on a full disk.
fn without_room(sandbox: &Sandbox, arguments: &[&str]) -> std::process::Output {
    let script = "ulimit -f 8; exec \"$0\" \"$@\"";
    std::process::Command::new("sh")
        .args(["-c", script])
        .arg(crate::program())
        .args(arguments)
        .current_dir(&sandbox.folder)
        .output()
        .unwrap()
}

#[test]
fn a_full_cache_disk_stops_the_run_or_not_as_configured() {
    let sandbox = pictures("no-room");
    let left = || {
        std::fs::read_dir(&sandbox.folder)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("plc"))
            .count()
    };
    let bench = |cache: &str| without_room(&sandbox, &["data", "bench", "data.toml", "--epochs", "2", "--set", cache]);
    let stopped = bench("data.cache={ file = \"kept.plc\" }");
    let error = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(
        !stopped.status.success() && error.contains("kept.plc cannot be used as a cache: row ") && error.contains("cannot be written"),
        "{error}"
    );
    assert_eq!(left(), 0);
    let went_on = bench("data.cache={ file = \"kept.plc\", on_full = \"continue\" }");
    let shown = String::from_utf8_lossy(&went_on.stdout).into_owned();
    assert!(
        went_on.status.success() && shown.contains("so rows are made each time"),
        "{shown}{}",
        String::from_utf8_lossy(&went_on.stderr)
    );
    assert_eq!(left(), 0);
    let told = without_room(
        &sandbox,
        &["data", "bench", "data.toml", "--json", "--set", "data.cache={ file = \"kept.plc\", on_full = \"continue\" }"],
    );
    let document: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(document["note"].as_str().is_some_and(|note| note.ends_with("so rows are made each time")), "{document}");
    let filling =
        without_room(&sandbox, &["data", "cache", "data.toml", "--set", "data.cache={ file = \"kept.plc\", on_full = \"continue\" }"]);
    assert!(!filling.status.success() && String::from_utf8_lossy(&filling.stderr).contains("kept.plc could not be filled"));
}

/// A table of 200 rows, and a stream: 300 rows of a Parquet file.
fn tables(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    let rows: String = (0..200).map(|row| format!("{row},{},{}\n", row * 2, row % 3)).collect();
    sandbox.write("t.csv", format!("a,b,y\n{rows}"));
    let table = |source: &str, target: &str| {
        format!("[data]\nsource = \"{source}\"\npath = \"t.{source}\"\ntarget = \"{target}\"\nshuffle = {{ seed = 7 }}\nbatch = 4\n")
    };
    sandbox.write("csv.toml", table("csv", "y"));
    sandbox.write("parquet.toml", table("parquet", "few"));
    let reference = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference/snappy.parquet");
    std::fs::copy(reference, sandbox.path("t.parquet")).unwrap();
    sandbox
}

#[test]
fn caches_of_tables_and_streams_are_prefilled_and_reused() {
    let sandbox = tables("fill-tables");
    let fill = |config: &str| sandbox.succeed(&["data", "cache", config, "--set", "data.cache={ file = \"kept.plc\" }", "--quiet"]);
    insta::assert_snapshot!(fill("csv.toml"), @"kept.plc filled: 200 rows, 7.12 KiB");
    insta::assert_snapshot!(fill("csv.toml"), @"kept.plc was complete already: 200 rows, 7.12 KiB");
    // Another table of the same name.
    sandbox.write("t.csv", "a,b,y\n1,2,0\n");
    insta::assert_snapshot!(fill("csv.toml"), @"kept.plc filled: 1 rows, 4.02 KiB");
    let filled = fill("parquet.toml");
    assert!(filled.starts_with("kept.plc filled: 300 rows, "), "{filled}");
    assert_eq!(fill("parquet.toml"), filled.replace("filled", "was complete already"));
    let rows: String = (0..200).map(|row| format!("{row},{},{}\n", row * 2, row % 3)).collect();
    sandbox.write("t.csv", format!("a,b,y\n{rows}"));
    let bench = |config: &str, cache: &str| sandbox.succeed(&["data", "bench", config, "--epochs", "2", "--set", cache]);
    for (config, cache, line) in [
        ("csv.toml", "data.cache=\"memory\"", "cache (200 of 200 rows)"),
        ("csv.toml", "data.cache={ memory = \"1KiB\" }", "cache (78 of 200 rows)"),
        ("parquet.toml", "data.cache=\"memory\"", "cache (≤ "),
        ("parquet.toml", "data.cache={ file = \"kept.plc\" }", "cache (file)"),
    ] {
        let shown = bench(config, cache);
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
    let shown = bench("parquet.toml", "data.cache={ memory = \"1KiB\" }");
    assert!(shown.contains("takes more than the 1.00 KiB of its cache, so rows are made each time"), "{shown}");
}

#[test]
fn a_full_cache_disk_over_tables_and_streams_stops_the_run_or_not_as_configured() {
    let sandbox = tables("no-room-tables");
    for config in ["csv.toml", "parquet.toml"] {
        let bench = |on_full: &str| {
            let cache = format!("data.cache={{ file = \"kept.plc\", on_full = \"{on_full}\" }}");
            let output = without_room(&sandbox, &["data", "bench", config, "--epochs", "2", "--set", &cache]);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.success(), text(&output.stdout), text(&output.stderr))
        };
        let (went, _, error) = bench("stop");
        assert!(!went && error.contains("kept.plc cannot be used as a cache: row ") && error.contains("cannot be written"), "{error}");
        let (went, shown, error) = bench("continue");
        assert!(went && shown.contains("so rows are made each time"), "{shown}{error}");
        let left = std::fs::read_dir(&sandbox.folder)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("plc"));
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn image_augmentation_follows_the_configuration() {
    let sandbox = pictures("augment");
    let map = "data.map=[{ op = \"decode\" }, { op = \"random_resized_crop\", size = [8, 8], share = [0.5, 1.0], method = \"area\" }, \
               { op = \"random_brightness\", by = 0.1 }, { op = \"random_contrast\", by = [0.8, 1.2] }, { op = \"random_saturation\", by = [0.8, 1.2] }, \
               { op = \"random_hue\", by = 0.05 }, { op = \"random_rotate\", degrees = 10, fill = 0.5 }, { op = \"random_rot90\" }, { op = \"pad\", size = 12 }, \
               { op = \"standardize\" }, { op = \"one_hot\", classes = 2 }]";
    let shown = sandbox.succeed(&["data", "inspect", "data.toml", "--set", map, "--set", "data.mixup={ alpha = 0.4 }", "--rows", "0"]);
    insta::assert_snapshot!(shown, @"
    image_folder pictures → shuffle(seed 7) → map(x: decode()) → map(x: random_resized_crop(8, 8, area, share 0.5 to 1, ratio 0.75 to 1.3333334, seed 0)) → map(x: random_brightness(0.1, seed 0)) → map(x: random_contrast(0.8, 1.2, seed 0)) → map(x: random_saturation(0.8, 1.2, seed 0)) → map(x: random_hue(0.05, seed 0)) → map(x: random_rotate(10°, fill 0.5, seed 0)) → map(x: random_rot90(seed 0)) → map(x: pad(12, 12, 0)) → map(x: standardize()) → map(y: one_hot(2)) → parallelism(auto) → batch(4) → prefetch(auto) → mixup(0.4, seed 0)
      rows      20 in 5 batches, 1.70 KiB each
      columns   x: f32[12, 12, 3], y: f32[2]
      classes   bright, dark
    ");
    assert!(sandbox.succeed(&["data", "bench", "data.toml", "--set", map, "--set", "data.cutmix={}"]).contains("mix"));
    let error = |assignment: &str| sandbox.fail(&["data", "inspect", "data.toml", "--set", assignment]).1;
    insta::assert_snapshot!(error("data.map=[{ op = \"random_brigthness\", by = 0.1 }]"), @r#"error: `data.map[0].op` is "random_brigthness", but should be one of decode, resize, center_crop, random_crop, random_resized_crop, pad, crop_or_pad, flip_left_right, flip_up_down, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, scale, normalize, cast, one_hot, finite, fill; did you mean "random_brightness"?"#);
    insta::assert_snapshot!(error("data.map=[{ op = \"random_contrast\", by = 0.1 }]"), @"error: `data.map[0].by` should be two numbers, the smaller one first, such as [0.8, 1.2]");
    insta::assert_snapshot!(error("data.map=[{ op = \"random_hue\", byy = 0.1, by = 1 }]"), @"error: unknown key `data.map[0].byy`; did you mean `data.map[0].by`?");
    insta::assert_snapshot!(error("data.map=[{ op = \"resize\", size = 8, method = \"bicubik\" }]"), @r#"error: `data.map[0].method` is "bicubik", but should be one of nearest, bilinear, bicubic, area, bilinear_antialias, bicubic_antialias; did you mean "bicubic"?"#);
    insta::assert_snapshot!(error("data.mixup={ alfa = 1.0 }"), @"error: unknown key `data.mixup.alfa`; did you mean `data.mixup.alpha`?");
    insta::assert_snapshot!(error("data.mixup={ alpha = 1.0 }"), @"error: mixup(1, seed 0) cannot be done: column y: i32[] holds no share per class; map it with one_hot before");
    insta::assert_snapshot!(error("data.cache={ file = \"a\", on_full = \"cont\" }"), @r#"error: `data.cache.on_full` is "cont", but should be one of stop, continue"#);
}
