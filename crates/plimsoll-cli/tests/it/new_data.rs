//! A trained model on new data: without labels, without the data it was trained on, and with the preprocessing it was
//! trained with.

use super::{Sandbox, command, npy};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// A grey image of this brightness, with a bright square at a place.
fn picture(path: &Path, brightness: u8, at: (usize, usize)) {
    let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), 16, 16);
    encoder.set_color(png::ColorType::Grayscale);
    let pixels: Vec<u8> = (0..256).map(|i| if in_square(i, at) { 250 } else { brightness }).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
}

fn in_square(pixel: usize, (top, left): (usize, usize)) -> bool {
    (top..top + 5).contains(&(pixel / 16)) && (left..left + 5).contains(&(pixel % 16))
}

/// Folders of dark and light images, to train on and to validate on.
fn images(sandbox: &Sandbox) {
    for (part, class, base) in [("train", "dark", 20), ("train", "light", 160), ("test", "dark", 30), ("test", "light", 170)] {
        let folder = sandbox.path(&format!("{part}/{class}"));
        std::fs::create_dir_all(&folder).unwrap();
        (0..12).for_each(|n| picture(&folder.join(format!("{n:02}.png")), base + 3 * n as u8, (n % 8, 2 * n % 10)));
    }
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'image_folder'\npath = 'train'\nshuffle = true\n\
         map = [{ op = 'decode', channels = 1 }, { op = 'flip_left_right' }, { op = 'resize', size = 8 }, { op = 'scale', by = '1/255' }]\n\
         [data.validation]\npath = 'test'\n\
         stages = [{ op = 'decode', channels = 1 }, { op = 'resize', size = 8 }, { op = 'scale', by = '1/255' }]\n\
         [model]\nlayers = [{ type = 'flatten' }, { type = 'dense', units = 2 }]\n\
         [train]\nbatch = 8\nepochs = 40\noptimizer = { type = 'adam', lr = 0.02 }\n[budget]\nhost = '64MiB'\n",
    );
}

#[test]
fn images_are_predicted_as_they_are_evaluated() {
    let sandbox = Sandbox::new("new-images");
    images(&sandbox);
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    let scores = sandbox.json(&["evaluate", "run", "--json"]);
    assert_eq!(scores["report"]["classes"][1]["name"], "light");
    sandbox.succeed(&["predict", "run", "--out", "held-out.npy"]);
    sandbox.succeed(&["export", "run", "--to", "run.tflite"]);
    sandbox.succeed(&["export", "run", "--to", "int8.tflite", "--int8", "--calibrate", "run.toml"]);
    // Neither the training data nor labels are needed.
    std::fs::rename(sandbox.path("test"), sandbox.path("photos")).unwrap();
    std::fs::remove_dir_all(sandbox.path("train")).unwrap();
    sandbox.succeed(&["predict", "run", "photos", "--out", "new.npy"]);
    assert_eq!(std::fs::read(sandbox.path("new.npy")).unwrap(), std::fs::read(sandbox.path("held-out.npy")).unwrap());
    sandbox.succeed(&["predict", "run", "photos/", "--out", "p.csv", "--top", "2"]);
    let table = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
    let printed = command().args(["predict", "run", "photos/", "--top", "2"]).current_dir(sandbox.path(".")).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), table, "the table is printed where no file is named");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("file,class,probability,class_2,probability_2"));
    let right = lines.clone().filter(|line| line.split(',').next().unwrap().contains(line.split(',').nth(1).unwrap())).count();
    assert_eq!(lines.clone().count(), 24);
    assert!((right as f64 / 24.0 - scores["accuracy"].as_f64().unwrap()).abs() < 1e-6, "{table}");
    assert!(right >= 23 && lines.next().unwrap().starts_with("photos/dark/00.png,dark,0."), "{table}");
    // A TFLite file prepares images as the run did, and names classes and files.
    let column = |table: &str, i: usize| -> Vec<String> { table.lines().map(|line| line.split(',').nth(i).unwrap().to_string()).collect() };
    for (file, tolerance) in [("run.tflite", 1e-5), ("int8.tflite", 0.05)] {
        sandbox.succeed(&["predict", file, "photos/", "--out", "q.csv", "--top", "2"]);
        let found = std::fs::read_to_string(sandbox.path("q.csv")).unwrap();
        assert_eq!([column(&found, 0), column(&found, 1)], [column(&table, 0), column(&table, 1)], "{file}");
        let number = |cell: &String| cell.parse::<f64>().unwrap();
        let pairs = column(&found, 2)[1..].iter().map(number).zip(column(&table, 2)[1..].iter().map(number)).collect::<Vec<_>>();
        assert!(pairs.iter().all(|(found, wanted)| (found - wanted).abs() < tolerance), "{file}: {pairs:?}");
    }
    // Files by name and by pattern, and names on standard input.
    let one = |arguments: &[&str]| {
        sandbox.succeed(&[&["predict", "run", "--out", "one.csv"], arguments].concat());
        std::fs::read_to_string(sandbox.path("one.csv")).unwrap()
    };
    assert_eq!(one(&["photos/light/03.png"]).lines().count(), 2);
    assert_eq!(one(&["photos/light/0*.png", "photos/dark/00.png"]).lines().count(), 12);
    let mut piped = command();
    piped.args(["predict", "run", "-", "--out", "piped.csv"]).current_dir(sandbox.path("."));
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"photos/light/03.png\nphotos/dark/04.png\n").unwrap();
    assert!(child.wait().unwrap().success());
    let piped = std::fs::read_to_string(sandbox.path("piped.csv")).unwrap();
    assert!(piped.contains("\nphotos/light/03.png,light,") && piped.contains("\nphotos/dark/04.png,dark,"), "{piped}");
    let mut child = command()
        .args(["predict", "run", "-"])
        .current_dir(sandbox.path("."))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"photos/none.png\n").unwrap();
    let refused = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(refused.starts_with("error: no file matches photos/none.png"), "{refused}");
    sandbox.write("none.npy", npy("|u1", "(0, 16, 16, 1)", &[]));
    let (_, error) = sandbox.fail(&["predict", "run", "--input", "none.npy", "--out", "p.csv"]);
    assert!(error.starts_with("error: there is nothing to predict: npy none.npy"), "{error}");
    // Arrays of pixels are resized and scaled too.
    let pixels: Vec<u8> = (0..256).map(|i| if in_square(i, (3, 6)) { 250 } else { 30 + 9 }).collect();
    sandbox.write("x.npy", npy("|u1", "(1, 16, 16, 1)", &pixels));
    picture(&sandbox.path("same.png"), 30 + 9, (3, 6));
    let numbers = |file: &str| {
        sandbox.succeed(&["predict", "run", "--input", file, "--out", "y.npy"]);
        std::fs::read(sandbox.path("y.npy")).unwrap()
    };
    assert_eq!(numbers("x.npy"), numbers("same.png"));
    for (arguments, part) in [
        (&["predict", "run", "nothing", "--out", "p.csv"][..], "no file matches nothing"),
        (&["predict", "run", "photos", "--rows", "training", "--out", "p.csv"], "`--rows` chooses rows of the run"),
        (&["predict", "run", "photos", "--out", "masks"], "masks are for models that predict a class per pixel"),
        (&["predict", "run", "run", "--out", "p.csv"], "run has no images in it"),
        (&["predict", "run", "photos", "--json"], "the document of --json is on standard output; name a file with --out"),
        (&["plan", "photos", "--inference"], "photos is a folder without a config.toml"),
    ] {
        let (_, error) = sandbox.fail(arguments);
        assert!(error.contains(part), "{error}");
    }
    assert!(!sandbox.path("masks").exists(), "a folder is left only if masks are in it");
    let (_, error) = sandbox.fail(&["predict", "run", "photos", "--out", "nowhere/p.csv"]);
    assert_eq!(error, "error: cannot write nowhere/p.csv: No such file or directory (os error 2)");
}

#[test]
fn tables_are_predicted_in_their_units_from_files_and_standard_input() {
    let sandbox = Sandbox::new("new-tables");
    let rows = |range: std::ops::Range<i32>| -> String {
        range.map(|n| format!("{},{},{}\n", n % 17, (n * 7) % 23, 100.5 + 3.0 * f64::from(n % 17) - f64::from((n * 7) % 23))).collect()
    };
    sandbox.write("t.csv", format!("a,b,price\n{}", rows(0..200)));
    sandbox.write("v.csv", format!("a,b,price\n{}", rows(200..240)));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'price'\nstandardize = true\n[data.validation]\npath = 'v.csv'\n\
         [model]\nlayers = [{ type = 'dense', units = 1 }]\n[train]\nloss = 'mse'\nbatch = 16\nepochs = 60\noptimizer = { type = 'adam', lr = 0.05 }\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    sandbox.succeed(&["predict", "run", "--out", "held-out.csv"]);
    sandbox.succeed(&["predict", "run", "v.csv", "--out", "same.csv"]);
    let read = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    assert_eq!(read("held-out.csv"), read("same.csv"));
    // A TFLite file reads the same table, in its units.
    sandbox.succeed(&["export", "run", "--to", "run.tflite"]);
    sandbox.succeed(&["predict", "run.tflite", "v.csv", "--out", "tflite.csv"]);
    let numbers =
        |table: &str| -> Vec<f64> { table.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect() };
    let (found, wanted) = (numbers(&read("tflite.csv")), numbers(&read("same.csv")));
    assert_eq!((read("tflite.csv").lines().next(), found.len()), (Some("row,price"), wanted.len()));
    assert!(found.iter().zip(&wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-3), "{found:?}, {wanted:?}");
    // Several files are one table.
    let lines: Vec<String> = read("v.csv").lines().map(str::to_string).collect();
    sandbox.write("part-0.csv", format!("{}\n", lines[..20].join("\n")));
    sandbox.write("part-1.csv", format!("{}\n{}\n", lines[0], lines[20..].join("\n")));
    for parts in [&["part-0.csv", "part-1.csv"][..], &["part-*.csv"]] {
        sandbox.succeed(&[&["predict", "run"], parts, &["--out", "parts.csv"]].concat());
        assert_eq!(read("parts.csv"), read("same.csv"));
    }
    let (_, error) = sandbox.fail(&["predict", "run", "part-7.csv"]);
    assert_eq!(error, "error: cannot open part-7.csv: there is no such file");
    // A reader of standard output may have seen enough.
    let mut child = command().args(["predict", "run", "v.csv"]).current_dir(sandbox.path(".")).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    // The columns may come without the label, in any order, and from a pipe.
    std::fs::remove_file(sandbox.path("t.csv")).unwrap();
    let mut child = command()
        .args(["predict", "run", "-", "--out", "piped.csv"])
        .current_dir(sandbox.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"b,a\n5,10\n20,0\n").unwrap();
    assert!(child.wait().unwrap().success());
    let piped = read("piped.csv");
    let prices: Vec<f64> = piped.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(piped.lines().next(), Some("row,price"));
    assert!((prices[0] - 125.5).abs() < 1.0 && (prices[1] - 80.5).abs() < 1.0, "{piped}");
    sandbox.write("wrong.csv", "a,c\n1,2\n");
    let (_, error) = sandbox.fail(&["predict", "run", "wrong.csv", "--out", "p.csv"]);
    assert!(error.contains("`b`") && error.contains("wrong.csv"), "{error}");
    let (_, error) = sandbox.fail(&["predict", "run", "run", "--out", "p.csv"]);
    assert_eq!(error, "error: run is a folder, and this model was trained on a table; give it files");
}

#[test]
fn every_output_has_the_units_and_classes_of_its_labels() {
    let sandbox = Sandbox::new("new-outputs");
    let row = |n: i32| {
        let a = n % 17;
        let (kind, price) = (if a > 8 { "house" } else { "flat" }, 500.0 + 30.0 * f64::from(a));
        format!("{a},{price},{},{kind}\n", price / 10.0)
    };
    sandbox.write("t.csv", format!("a,price,tax,kind\n{}", (0..300).map(row).collect::<String>()));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'csv'\npath = 't.csv'\nstandardize = true\nselect = ['a']\noutputs = { cost = ['price', 'tax'], what = 'kind' }\nholdout = 0.2\n\
         [model]\nlayers = [{ name = 'h', type = 'dense', units = 4 }, { name = 'cost', type = 'dense', units = 2, inputs = ['h'] }, \
         { name = 'what', type = 'dense', units = 2, inputs = ['h'] }]\noutputs = ['cost', 'what']\n\
         [train]\nloss = { cost = 'mse', what = 'softmax_cross_entropy' }\nbatch = 16\nepochs = 60\noptimizer = { type = 'adam', lr = 0.05 }\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    let read = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    sandbox.succeed(&["predict", "run", "t.csv", "--out", "p.csv"]);
    let (cost, what) = (read("p-cost.csv"), read("p-what.csv"));
    let fields = |line: &str| -> Vec<f64> { line.split(',').map(|field| field.parse().unwrap()).collect() };
    let third = fields(cost.lines().nth(4).unwrap());
    assert_eq!(cost.lines().next(), Some("row,price,tax"));
    assert!((third[1] - 590.0).abs() < 15.0 && (third[2] - 59.0).abs() < 1.5, "{cost}");
    assert!(what.contains("\n0,flat,0.") && what.contains("\n16,house,0."), "{what}");
    // The same for rows of the run, and in Rust.
    sandbox.succeed(&["predict", "run", "--rows", "training", "--out", "rows.csv"]);
    assert!(read("rows-cost.csv").starts_with("row,price,tax\n0,") && read("rows-what.csv").contains(",flat,"));
    let mut model = plimsoll::nn::Model::load(sandbox.path("run")).unwrap();
    let predictions = model.predict(&sandbox.path("t.csv")).unwrap();
    assert!((f64::from(predictions.row(3)[0]) - third[1]).abs() < 1e-3);
    assert_eq!(model.columns().of("what").classes, ["flat", "house"]);
    let inspected = sandbox.succeed(&["data", "inspect", "run.toml"]);
    assert!(inspected.contains("reads     a → price, tax, kind"), "{inspected}");
}

#[test]
fn targets_with_an_encoding_of_their_own_come_in_their_units() {
    let sandbox = Sandbox::new("new-encoded");
    let rows: String = (0..200).map(|n| format!("{},{}\n", n % 17, 900 + 3 * (n % 17))).collect();
    sandbox.write("t.csv", format!("a,price\n{rows}"));
    for (run, encoding) in [("a", "encode = 'normalize'"), ("b", "encode = 'rescale', scale = 0.01, offset = -9")] {
        let columns = format!("a = {{ encode = 'normalize' }}, price = {{ {encoding} }}");
        sandbox.write(
            "run.toml",
            format!(
                "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'price'\ncolumns = {{ {columns} }}\n\
                 [model]\nlayers = [{{ type = 'dense', units = 1 }}]\n\
                 [train]\nloss = 'mse'\nbatch = 16\nepochs = 40\noptimizer = {{ type = 'adam', lr = 0.05 }}\n"
            ),
        );
        sandbox.succeed(&["train", "run.toml", "--quiet", "--out", run]);
        sandbox.succeed(&["predict", run, "t.csv", "--out", "p.csv"]);
        let table = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
        let price: f64 = table.lines().nth(11).unwrap().split(',').nth(1).unwrap().parse().unwrap();
        assert!((price - 930.0).abs() < 2.0, "{encoding}: {table}");
    }
}

#[test]
fn classes_of_a_lookup_are_named_with_that_of_unknown_values() {
    let sandbox = Sandbox::new("new-unknown");
    let rows: String = (0..200).map(|n| format!("{},{}\n", n % 17, if n % 17 > 8 { "house" } else { "flat" })).collect();
    sandbox.write("t.csv", format!("a,kind\n{rows}"));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'kind'\nstandardize = true\ncolumns = { kind = { encode = 'lookup', output = 'int' } }\n\
         [model]\nlayers = [{ type = 'dense', units = 3 }]\n[train]\nbatch = 16\nepochs = 40\noptimizer = { type = 'adam', lr = 0.05 }\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    sandbox.succeed(&["predict", "run", "t.csv", "--out", "p.csv"]);
    let table = std::fs::read_to_string(sandbox.path("p.csv")).unwrap();
    assert!(table.contains("\n0,flat,0.") && table.contains("\n16,house,0."), "{table}");
}

#[test]
fn numbers_are_not_trained_on_as_classes() {
    let sandbox = Sandbox::new("new-numbers");
    sandbox.write("t.csv", "a,b,price\n1,2,3.5\n2,4,1\n3,1,2.5\n");
    let refused = |target: &str, units: usize, train: &str| {
        let text = format!(
            "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = {target}\n[model]\nlayers = [{{ type = 'dense', units = {units} }}]\n{train}"
        );
        sandbox.write("run.toml", text);
        sandbox.fail(&["plan", "run.toml"]).1
    };
    let numbers = "error: the target `price` has numbers, and the default loss is for classes; set `train.loss`, such as \"mse\"";
    assert_eq!(refused("'price'", 1, ""), numbers);
    assert_eq!(refused("['price', 'a']", 2, ""), numbers);
    let single = "error: layer `loss`: the loss is a softmax over classes, which is always 1 for a single output; for numbers, choose a loss \
                  such as \"mse\"; for two classes, \"binary_cross_entropy\" or two outputs";
    assert_eq!(refused("'price'", 1, "[train]\nloss = 'softmax_cross_entropy'\n"), single);
    assert_eq!(refused("'a'", 1, ""), single);
}

#[test]
fn texts_and_arrow_files_are_predicted_as_they_are_evaluated() {
    let sandbox = Sandbox::new("new-texts");
    let words = ["fine", "good", "great", "dull", "poor", "bad"];
    let rows = |range: std::ops::Range<usize>, other: &str| -> String {
        range.map(|n| format!("\"the {} day, {other}{n}\",{}\n", words[n * 5 % 6], if n * 5 % 6 < 3 { "up" } else { "down" })).collect()
    };
    sandbox.write("t.csv", format!("line,mood\n{}", rows(0..120, "no ")));
    // With tokens that were not trained on, and without any.
    sandbox.write("v.csv", format!("line,mood\n{}\"\",up\n", rows(120..140, "new")));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'mood'\ncolumns = { line = { type = 'text', max_tokens = 40, length = 5 } }\n\
         shuffle = { seed = 1 }\n[data.validation]\npath = 'v.csv'\n\
         [model]\nlayers = [{ type = 'embedding', vocabulary = 40, width = 4, mask_zero = true }, { type = 'global_average_pool' }, \
         { type = 'dense', units = 2 }]\n[train]\nbatch = 8\nepochs = 20\noptimizer = { type = 'adam', lr = 0.05 }\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    let scores = sandbox.json(&["evaluate", "run", "--json"]);
    sandbox.succeed(&["predict", "run", "--out", "held-out.npy"]);
    std::fs::remove_file(sandbox.path("t.csv")).unwrap();
    sandbox.succeed(&["predict", "run", "v.csv", "--out", "new.npy"]);
    let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    assert_eq!(read("new.npy"), read("held-out.npy"));
    sandbox.succeed(&["predict", "run", "v.csv", "--out", "p.csv"]);
    let (table, truth) = (String::from_utf8(read("p.csv")).unwrap(), String::from_utf8(read("v.csv")).unwrap());
    let right =
        table.lines().zip(truth.lines()).skip(1).filter(|(found, row)| row.ends_with(&format!(",{}", found.split(',').nth(1).unwrap())));
    let accuracy = right.count() as f64 / 21.0;
    assert!((accuracy - scores["accuracy"].as_f64().unwrap()).abs() < 1e-6 && accuracy > 0.9, "{table}{scores}");
    // The same of an Arrow file with categories, and of its rows without the dictionaries.
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/fixtures/tables");
    for name in ["categories.arrow", "mixed.arrow"] {
        std::fs::copy(tables.join(name), sandbox.path(name)).unwrap();
    }
    sandbox.write(
        "arrow.toml",
        "[data]\nsource = 'arrow'\npath = 'categories.arrow'\ntarget = 'class'\nstandardize = 'features'\n\
         [model]\nlayers = [{ type = 'dense', units = 2 }]\n[train]\nbatch = 4\nepochs = 2\n",
    );
    sandbox.succeed(&["train", "arrow.toml", "--quiet", "--out", "arrow"]);
    sandbox.succeed(&["predict", "arrow", "--rows", "training", "--out", "trained.npy"]);
    for name in ["categories.arrow", "mixed.arrow"] {
        sandbox.succeed(&["predict", "arrow", name, "--out", "new.npy"]);
        assert_eq!(read("new.npy"), read("trained.npy"), "{name}");
    }
}

#[test]
fn arrays_of_another_shape_are_refused() {
    let sandbox = Sandbox::new("new-shapes");
    let floats = |count: usize| (0..count).flat_map(|n| (n as f32 / 9.0).to_le_bytes()).collect::<Vec<u8>>();
    sandbox.write("x.npy", npy("<f4", "(8, 5)", &floats(40)));
    sandbox.write("y.npy", npy("|u1", "(8,)", &[0, 1, 0, 1, 1, 0, 1, 0]));
    sandbox.write("wide.npy", npy("<f4", "(4, 6)", &floats(24)));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'npy'\nx = 'x.npy'\ny = 'y.npy'\n[model]\nlayers = [{ type = 'dense', units = 2 }]\n[train]\nepochs = 1\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    let (_, error) = sandbox.fail(&["predict", "run", "wide.npy"]);
    assert!(error.ends_with("rows to predict need the shape of those it was trained on, and have x: f32[6]"), "{error}");
}

#[test]
fn numbers_are_classes_where_that_is_declared() {
    let sandbox = Sandbox::new("number-classes");
    sandbox.write("t.csv", "a,stars\n1,2.5\n2,10\n3,2.5\n4,3\n5,10\n");
    sandbox.write("run.toml", "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'stars'\ntypes = { stars = 'category' }\n");
    let rows = sandbox.succeed(&["data", "inspect", "run.toml"]);
    assert!(rows.contains("\n  classes   2.5, 3, 10\n") && rows.contains("· y: 2 (10)"), "{rows}");
    // A few numbers among texts are classes too.
    sandbox.write("t.csv", "a,stars\n1,good\n2,10\n3,good\n4,bad\n5,good\n");
    let rows = sandbox.succeed(&["data", "inspect", "run.toml"]);
    assert!(rows.contains("\n  classes   10, bad, good\n"), "{rows}");
}

#[test]
fn integers_are_the_same_categories_with_and_without_decimals() {
    let sandbox = Sandbox::new("integer-categories");
    let table = |decimals: &str| {
        let row = |n: usize| format!("{}{decimals},{n},{}\n", 10 * (n % 3), ["low", "high"][n % 2]);
        format!("kind,size,class\n{}", (0..24).map(row).collect::<String>())
    };
    for (trained, new) in [("", ".0"), (".0", "")] {
        sandbox.write("t.csv", table(trained));
        sandbox.write("new.csv", table(new));
        // Leading zeros make another category.
        sandbox.write("zeros.csv", table(trained).replace("\n10", "\n010"));
        sandbox.write(
            "run.toml",
            "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'class'\ntypes = { kind = 'category' }\n\
             [model]\nlayers = [{ type = 'dense', units = 2 }]\n[train]\nbatch = 4\nepochs = 1\n",
        );
        sandbox.succeed(&["train", "run.toml", "--quiet", "--overwrite", "--out", "run"]);
        let [same, other, zeros] = ["t.csv", "new.csv", "zeros.csv"].map(|file| sandbox.succeed(&["predict", "run", file]));
        assert_eq!(other, same);
        assert_ne!(zeros, same);
    }
}

#[test]
fn forecasts_are_named_by_the_rows_ahead() {
    let sandbox = Sandbox::new("new-forecasts");
    let rows: String = (0..80).map(|n| format!("{},{}\n", n % 7, n % 11)).collect();
    sandbox.write("t.csv", format!("load,sun\n{rows}"));
    let windows = [("horizons = [1, 6]", "row,load+1,sun+1,load+6,sun+6"), ("horizon = 2, offset = 5", "row,load+5,sun+5,load+6,sun+6")];
    for (at, (ahead, header)) in windows.into_iter().enumerate() {
        sandbox.write(
            "run.toml",
            format!(
                "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = ['load', 'sun']\ntypes = {{ load = 'float', sun = 'float' }}\n\
                 window = {{ length = 4, {ahead} }}\n[model]\nlayers = [{{ type = 'flatten' }}, {{ type = 'dense', units = 4 }}]\n\
                 [train]\nloss = 'mse'\nepochs = 1\n"
            ),
        );
        let run = format!("run-{at}");
        sandbox.succeed(&["train", "run.toml", "--quiet", "--out", &run]);
        for arguments in [&["t.csv"][..], &["--rows", "training"]] {
            let printed = sandbox.succeed(&[&["predict", &run], arguments].concat());
            assert_eq!(printed.lines().next(), Some(header), "{arguments:?}");
        }
    }
}

#[test]
fn forecasts_are_the_same_from_a_table_of_any_format() {
    let sandbox = Sandbox::new("forecast-formats");
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/fixtures/tables/series");
    let files = ["series.csv", "series.csv.gz", "series.parquet", "series.feather"];
    files.iter().for_each(|name| _ = std::fs::copy(tables.join(name), sandbox.path(name)).unwrap());
    let mut found = Vec::new();
    for (source, file) in [("csv", "series.csv"), ("csv", "series.csv.gz"), ("parquet", "series.parquet"), ("arrow", "series.feather")] {
        sandbox.write(
            "run.toml",
            format!(
                "[data]\nsource = '{source}'\npath = '{file}'\ntarget = 'load'\nstandardize = true\nsplit = 0.75\n\
                 window = {{ length = 6, horizons = [1, 3] }}\n[model]\nlayers = [{{ type = 'flatten' }}, {{ type = 'dense', units = 2 }}]\n\
                 [train]\nloss = 'mse'\nepochs = 2\nbatch = 8\n"
            ),
        );
        sandbox.succeed(&["train", "run.toml", "--quiet", "--overwrite", "--out", "run"]);
        let scores = sandbox.json(&["evaluate", "run", "--json"]);
        let printed = files.map(|other| sandbox.succeed(&["predict", "run", other]));
        assert!(printed.iter().all(|other| *other == printed[0]), "{file}");
        assert!(printed[0].starts_with("row,load+1,load+3\n") && printed[0].lines().count() == 1 + 60 - 5, "{}", printed[0]);
        let other_rows = sandbox.json(&["evaluate", "run", "--json", "--set", "data.validation.rows=[45, 60]"]);
        assert_eq!(other_rows["loss"], scores["loss"], "{file}");
        let whole = sandbox.json(&["evaluate", "run", "--json", "--set", &format!("data.validation.path={file}")]);
        assert_ne!(whole["loss"], scores["loss"]);
        found.push((scores["loss"].clone(), printed[0].clone()));
    }
    assert!(found.iter().all(|one| *one == found[0]));
    // Windows overlap, so that rows cannot be held out at random.
    let (_, error) = sandbox.fail(&["train", "run.toml", "--out", "other", "--set", "data.holdout=0.2"]);
    assert!(error.contains("`data.holdout` would hold out rows that share values with training rows; use `data.split`"), "{error}");
}

#[test]
fn a_table_of_any_format_is_predicted() {
    let sandbox = Sandbox::new("new-formats");
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/fixtures/tables");
    let files = ["mixed.csv", "mixed.jsonl", "mixed.jsonl.gz", "mixed.parquet", "mixed.arrow"];
    files.iter().for_each(|name| _ = std::fs::copy(tables.join(name), sandbox.path(name)).unwrap());
    let text = std::fs::read_to_string(sandbox.path("mixed.csv")).unwrap();
    // As Excel writes it in many countries.
    sandbox.write("commas.csv", text.replace(',', ";").replace('.', ","));
    let read = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    for (source, file) in [("csv", "mixed.csv"), ("json_lines", "mixed.jsonl"), ("parquet", "mixed.parquet")] {
        sandbox.write(
            "run.toml",
            format!(
                "[data]\nsource = '{source}'\npath = '{file}'\ntarget = 'class'\nstandardize = 'features'\nholdout = 0.25\n\
                 [model]\nlayers = [{{ type = 'dense', units = 2 }}]\n[train]\nbatch = 4\nepochs = 2\n"
            ),
        );
        // A file of another format is inferred to the same columns.
        let columns = sandbox.succeed(&["data", "inspect", "run.toml", "--rows", "0"]);
        assert!(columns.contains("size (standardized), colour (") && columns.contains("new (boolean), day (date"), "{columns}");
        sandbox.succeed(&["train", "run.toml", "--quiet", "--out", source]);
        sandbox.succeed(&["predict", source, file, "--out", "same.csv"]);
        for other in files.iter().chain(&["commas.csv"]) {
            sandbox.succeed(&["predict", source, other, "--out", "other.csv"]);
            assert_eq!(read("other.csv"), read("same.csv"), "trained on {file}, given {other}");
        }
    }
    // A category in another encoding would be an unknown one.
    let latin1: Vec<u8> = text.replace("red", "gr\u{fc}n").chars().map(|letter| letter as u8).collect();
    sandbox.write("latin1.csv", &latin1);
    let (_, error) = sandbox.fail(&["predict", "csv", "latin1.csv", "--out", "p.csv"]);
    assert!(
        error.contains("latin1.csv, line 2: column `colour` is \"gr\u{fffd}n\", which is not UTF-8; save the file as UTF-8"),
        "{error}"
    );
    let (_, refused) = sandbox.fail(&["data", "inspect", "run.toml", "--set", "data.source=csv", "--set", "data.path=latin1.csv"]);
    assert_eq!(refused, error);
}

#[test]
fn masks_are_trained_on_and_written() {
    let sandbox = Sandbox::new("new-masks");
    for folder in ["images", "masks", "new"] {
        std::fs::create_dir(sandbox.path(folder)).unwrap();
    }
    for n in 0..24 {
        let at = (n * 5 % 11, n * 3 % 11);
        picture(&sandbox.path(&format!("images/{n:02}.png")), 40, at);
        let mut encoder = png::Encoder::new(std::fs::File::create(sandbox.path(&format!("masks/{n:02}.png"))).unwrap(), 16, 16);
        encoder.set_color(png::ColorType::Grayscale);
        let pixels: Vec<u8> = (0..256).map(|i| if in_square(i, at) { 255 } else { 0 }).collect();
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    }
    picture(&sandbox.path("new/street.png"), 40, (2, 9));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'image_masks'\nimages = 'images'\nmasks = 'masks'\nclasses = ['ground', 'square']\nvalues = [0, 255]\n\
         holdout = { share = 0.25, test = 0.25, by = 'random' }\nshuffle = true\n\
         map = [{ op = 'decode', channels = 1 }, { op = 'flip_up_down' }, { op = 'resize', size = 16 }, { op = 'scale', by = '1/255' }]\n\
         [model]\nlayers = [{ type = 'conv2d', filters = 2, size = 1 }]\n\
         [train]\nbatch = 4\nepochs = 60\nmetrics = ['accuracy', 'iou']\noptimizer = { type = 'adam', lr = 0.1 }\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    for rows in ["validation", "test"] {
        let scores = sandbox.json(&["evaluate", "run", "--split", rows, "--json"]);
        assert!(scores["accuracy"].as_f64().unwrap() > 0.99 && scores["iou"].as_f64().unwrap() > 0.97, "{scores}");
        assert_eq!(scores["report"]["mean"]["support"], 6 * 256, "{scores}");
        assert_eq!(scores["report"]["classes"][1]["name"], "square");
    }
    sandbox.succeed(&["predict", "run", "new", "--out", "predicted"]);
    let file = std::io::BufReader::new(std::fs::File::open(sandbox.path("predicted/street.png")).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; 256];
    assert_eq!(reader.info().color_type, png::ColorType::Indexed);
    reader.next_frame(&mut pixels).unwrap();
    assert_eq!(pixels, (0..256).map(|i| u8::from(in_square(i, (2, 9)))).collect::<Vec<u8>>());
    // Images of subfolders have masks in subfolders; no mask replaces another.
    for name in ["more/a/1.png", "more/b/1.png"] {
        std::fs::create_dir_all(sandbox.path(name).parent().unwrap()).unwrap();
        picture(&sandbox.path(name), 40, (2, 9));
    }
    sandbox.succeed(&["predict", "run", "more/", "--out", "below"]);
    assert!(sandbox.path("below/a/1.png").exists() && sandbox.path("below/b/1.png").exists() && !sandbox.path("below/1.png").exists());
    let (_, error) = sandbox.fail(&["predict", "run", "more/a/1.png", "more/b/1.png", "--out", "same"]);
    assert_eq!(error, "error: more/b/1.png and another image have the mask same/1.png; predict them into folders of their own");
    // Other images instead of those that were held out.
    let all = ["data.validation.images=images", "data.validation.masks=masks"].map(|set| ["--set", set]).concat();
    let scores = sandbox.json(&[&["evaluate", "run", "--json"], &all[..]].concat());
    assert_eq!((&scores["rows"], &scores["report"]["mean"]["support"]), (&"held-out".into(), &(24 * 256).into()), "{scores}");
    let unnamed = std::fs::read_to_string(sandbox.path("run.toml")).unwrap().replace("values = [0, 255]\n", "");
    sandbox.write("unnamed.toml", unnamed);
    let (_, error) = sandbox.fail(&["train", "unnamed.toml", "--quiet", "--out", "other"]);
    assert!(error.contains("has the label 255, but the model has 2 classes (0 to 1); masks whose pixels are not class indices"), "{error}");
    sandbox.write("masks/extra.png", b"");
    let (_, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "other"]);
    assert!(error.contains("masks/extra.png: the mask has no image of its name in"), "{error}");
}

#[test]
fn folds_and_groups_and_labels_of_a_flat_folder() {
    let sandbox = Sandbox::new("new-folds");
    std::fs::create_dir(sandbox.path("photos")).unwrap();
    let mut labels = "id,shade,camera\n".to_string();
    for n in 0..30u8 {
        picture(&sandbox.path(&format!("photos/p{n}.png")), if n % 2 == 0 { 20 + n } else { 150 + n }, (3, 3));
        labels += &format!("p{n},{},cam{}\n", ["dark", "light"][usize::from(n % 2)], n / 5);
    }
    sandbox.write("labels.csv", labels);
    sandbox.write("numbers.csv", (0..30).fold("id,weight\n".to_string(), |all, n| all + &format!("p{n},{n}\n")));
    sandbox.write(
        "numbers.toml",
        "[data]\nsource = 'image_folder'\npath = 'photos'\nlabels = { path = 'numbers.csv', type = 'number' }\n\
         map = [{ op = 'decode', channels = 1 }, { op = 'resize', size = 4 }]\n\
         [model]\nlayers = [{ type = 'flatten' }, { type = 'dense', units = 1 }]\n[train]\nloss = 'mse'\n",
    );
    sandbox.succeed(&["train", "numbers.toml", "--quiet", "--epochs", "1", "--out", "numbers"]);
    assert!(sandbox.succeed(&["predict", "numbers", "photos"]).starts_with("file,weight\nphotos/p0.png,"));
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'image_folder'\npath = 'photos'\nlabels = { path = 'labels.csv', label = 'shade' }\n\
         holdout = { by = 'group', column = 'camera', test = '1/6' }\n\
         map = [{ op = 'decode', channels = 1 }, { op = 'resize', size = 4 }, { op = 'scale', by = '1/255' }]\n\
         [model]\nlayers = [{ type = 'flatten' }, { type = 'dense', units = 2 }]\n\
         [train]\nbatch = 8\nepochs = 60\noptimizer = { type = 'adam', lr = 0.05 }\n",
    );
    let mut validated = Vec::new();
    for fold in 1..=5 {
        let (out, fold) = (format!("run{fold}"), format!("{fold}/5"));
        sandbox.succeed(&["train", "run.toml", "--quiet", "--fold", &fold, "--out", &out]);
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(sandbox.path(&format!("{out}/report.json"))).unwrap()).unwrap();
        assert_eq!(report["data"]["test"]["rows"], 5, "{}", report["data"]);
        validated.push(report["data"]["validation"]["rows"].as_u64().unwrap());
    }
    assert_eq!(validated, [5; 5]);
    let scores = sandbox.json(&["evaluate", "run1", "--split", "test", "--json"]);
    assert!(scores["rows"] == "test" && scores["accuracy"].as_f64().unwrap() > 0.9, "{scores}");
    let (_, error) = sandbox.fail(&["train", "run.toml", "--fold", "6/5", "--out", "x"]);
    assert!(error.contains("`data.fold` is \"6/5\", but should be a fold and the number of folds, such as \"3/5\""), "{error}");
    let (_, error) = sandbox.fail(&["evaluate", "run1", "--rows", "training", "--set", "data.labels.label=size"]);
    assert!(error.contains("its columns are id, shade, camera"), "{error}");
}

#[test]
fn runs_on_generated_rows_predict_them_and_are_exported() {
    let sandbox = Sandbox::new("generated-rows");
    sandbox.write(
        "run.toml",
        "[data]\nsource = 'random'\nrows = 32\nx = [4, 4, 3]\nclasses = 3\n\
         [model]\nlayers = [{ type = 'rescaling', scale = 0.5, offset = -1.0 }, { type = 'flatten' }, { type = 'dense', units = 3 }]\n\
         [train]\nbatch = 8\n",
    );
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    // Read back and compared.
    sandbox.succeed(&["export", "run", "--to", "run.keras"]);
    sandbox.succeed(&["train", "run.keras", "--set", "data.rows=16", "--quiet", "--out", "again"]);
    sandbox.succeed(&["predict", "again", "--out", "p.npy"]);
    assert_eq!(std::fs::read(sandbox.path("p.npy")).unwrap().len(), 128 + 16 * 3 * 4);
    let plan = sandbox.succeed(&["plan", "run.keras", "--inference"]);
    assert!(plan.contains("strategy") && !plan.contains("step time"), "{plan}");
}
