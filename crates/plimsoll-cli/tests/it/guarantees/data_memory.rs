//! What grows with images, classes, columns and predictions is planned: an accepted budget is enough, a smaller one is
//! refused before the run.

use super::{Sandbox, files, json};
use std::fs;
use std::path::Path;

/// The smallest budget of a run, after checking that one byte less is refused.
fn minimum(sandbox: &Sandbox, config: &str) -> u64 {
    let plan = |budget: u64| {
        let output = sandbox.run(&["plan", config, "--json", "--host-memory", &budget.to_string()]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), document["min_bytes"].as_u64().unwrap())
    };
    let (_, minimum) = plan(1 << 34);
    assert_eq!(plan(minimum - 1), (Some(3), minimum));
    minimum
}

/// Trains in exactly this budget; checks that the measured peak is within the plan, and the plan within the budget.
fn train_within(sandbox: &Sandbox, config: &str, budget: u64) {
    sandbox.succeed(&["train", config, "--quiet", "--out", "run", "--overwrite", "--host-memory", &budget.to_string()]);
    let report = json(&sandbox.path("run/report.json"));
    let bytes = |key: &str| report[key].as_u64().unwrap();
    let (measured, planned) = (bytes("measured_peak_rss_bytes"), bytes("planned_bytes"));
    assert!(measured <= planned && planned <= budget, "{config}: {measured} measured, {planned} planned, budget {budget}");
}

fn png(path: &Path, width: u32, height: u32) {
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(&vec![7; (width * height * 3) as usize]).unwrap();
}

/// A folder of small images in two classes.
fn pictures(sandbox: &Sandbox, count: u32) {
    for class in ["dark", "light"] {
        let folder = sandbox.path("pictures").join(class);
        fs::create_dir_all(&folder).unwrap();
        (0..count).for_each(|number| png(&folder.join(format!("{number}.png")), 20 + number, 24));
    }
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"image_folder\"\npath = \"pictures\"\nholdout = 0.25\nbatch = 4\n\
         map = [{ op = \"decode\" }, { op = \"resize\", size = [8, 8] }, { op = \"scale\", by = 0.004 }]\n\
         [model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n[train]\nepochs = 2\n",
    );
}

#[test]
fn an_accepted_budget_is_enough_for_the_largest_image_of_a_folder() {
    let sandbox = Sandbox::new("largest-image");
    pictures(&sandbox, 8);
    let small = minimum(&sandbox, "run.toml");
    png(&sandbox.path("pictures/dark/large.png"), 1200, 900);
    let large = minimum(&sandbox, "run.toml");
    assert!(large > small + (3 << 20), "{small} without and {large} with an image of three megabytes");
    train_within(&sandbox, "run.toml", large);
    let document = sandbox.json(&["plan", "run.toml", "--json"]);
    let images = &document["data"]["training"]["images"];
    assert_eq!((images["files"].as_u64(), images["scanned"].as_u64()), (Some(17), Some(17)), "{document}");
    assert!(sandbox.succeed(&["plan", "run.toml"]).contains("17 headers read; the largest takes"));
}

#[test]
fn decoding_small_images_reserves_what_they_take() {
    let sandbox = Sandbox::new("small-images");
    pictures(&sandbox, 8);
    let document = sandbox.json(&["plan", "run.toml", "--json"]);
    let pipeline = document["pipeline"].as_object().unwrap();
    let decode: u64 = pipeline.iter().filter(|(name, _)| name.contains("decode")).map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
    assert!(decode > 0 && decode < 4 << 20, "{document}");
}

#[test]
fn the_minimum_follows_an_image_that_is_replaced_by_a_larger_one() {
    let sandbox = Sandbox::new("grown-image");
    pictures(&sandbox, 8);
    let minimum = minimum(&sandbox, "run.toml");
    png(&sandbox.path("pictures/dark/1.png"), 1200, 900);
    let (code, error) = sandbox.fail(&["train", "run.toml", "--quiet", "--out", "run", "--host-memory", &minimum.to_string()]);
    assert!(code == 3 && !sandbox.path("run").exists(), "refused before it starts: {error}");
}

#[test]
fn class_names_are_planned() {
    let sandbox = Sandbox::new("class-names");
    let long = "a-class-with-a-very-long-name-".repeat(7);
    fs::create_dir_all(sandbox.path("pictures")).unwrap();
    png(&sandbox.path("one.png"), 4, 4);
    for class in 0..6000 {
        let folder = sandbox.path("pictures").join(format!("{long}{class:05}"));
        fs::create_dir(&folder).unwrap();
        fs::hard_link(sandbox.path("one.png"), folder.join("a.png")).unwrap();
    }
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"image_folder\"\npath = \"pictures\"\nbatch = 100\n\
         map = [{ op = \"decode\" }, { op = \"resize\", size = [2, 2] }, { op = \"scale\", by = 0.004 }]\n\
         [model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 1 }, { type = \"dense\", units = 6000 }]\n\
         [train]\nepochs = 1\n",
    );
    let minimum = minimum(&sandbox, "run.toml");
    assert!(minimum > 5 * 6000 * 200, "several copies of the names: {minimum}");
    train_within(&sandbox, "run.toml", minimum);
}

#[test]
fn a_table_of_very_many_columns_is_planned() {
    let sandbox = Sandbox::new("many-columns");
    let columns = 150_000;
    let mut table: String = (0..columns).map(|column| format!("column{column},")).collect();
    table += "class\n";
    for row in 0..4 {
        table.extend((0..columns).map(|column| if (column + row) % 3 == 0 { "1," } else { "0," }));
        table += &format!("{}\n", row % 2);
    }
    sandbox.write("table.csv", table);
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"csv\"\npath = \"table.csv\"\ntarget = \"class\"\nbatch = 2\n\
         [model]\nlayers = [{ type = \"dense\", units = 2 }]\n[train]\nepochs = 1\n",
    );
    let minimum = minimum(&sandbox, "run.toml");
    train_within(&sandbox, "run.toml", minimum);
    sandbox.succeed(&["predict", "run", "--out", "p.csv"]);
}

/// A run with very many classes.
fn many_classes(sandbox: &Sandbox) {
    sandbox.write(
        "run.toml",
        "[data]\nsource = \"random\"\nrows = 8\nx = [2]\nclasses = 300000\nbatch = 4\n\
         [model]\nlayers = [{ type = \"dense\", units = 1 }, { type = \"dense\", units = 300000 }]\n\
         [train]\nepochs = 1\nmetrics = [\"f1\"]\n",
    );
}

#[test]
fn metrics_of_very_many_classes_are_planned() {
    let sandbox = Sandbox::new("many-classes");
    many_classes(&sandbox);
    let minimum = minimum(&sandbox, "run.toml");
    train_within(&sandbox, "run.toml", minimum);
}

#[test]
fn predictions_are_planned_and_refused_before_the_first_row() {
    let sandbox = Sandbox::new("planned-predictions");
    many_classes(&sandbox);
    sandbox.succeed(&["train", "run.toml", "--quiet", "--out", "run"]);
    sandbox.write("p.npy", "an earlier file");
    let predict = |budget: u64| sandbox.run(&["predict", "run", "--out", "p.npy", "--json", "--host-memory", &budget.to_string()]);
    let refused = predict(8 << 20);
    assert_eq!(refused.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let minimum = document["min_bytes"].as_u64().unwrap();
    assert_eq!(predict(minimum - 1).status.code(), Some(3));
    assert_eq!(fs::read(sandbox.path("p.npy")).unwrap(), b"an earlier file", "it stays until the new one is complete");
    assert!(super::incomplete(&sandbox.folder).is_empty());
    let predicted = predict(minimum);
    assert!(predicted.status.success(), "{}", String::from_utf8_lossy(&predicted.stderr));
    assert_eq!(fs::metadata(sandbox.path("p.npy")).unwrap().len(), 128 + 8 * 300_000 * 4);
    assert!(super::incomplete(&sandbox.folder).is_empty() && files(&sandbox.folder).len() > 3);
}
