//! `plimsoll data`, and training from a folder of pictures.

use super::Sandbox;

const PICTURES: &str = r#"[data]
source = "image_folder"
path = "pictures"
shuffle = { seed = 7 }
map = [{ op = "decode" }, { op = "resize", size = [8, 8], method = "bilinear" }, { op = "scale", by = 0.00392156862745098 }]
batch = 4
prefetch = "auto"
"#;

/// A folder of two classes of pictures: dark ones and bright ones.
fn pictures(name: &str) -> Sandbox {
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
fn a_bench_states_speed_and_memory_and_keeps_its_word() {
    let sandbox = pictures("bench");
    let document = sandbox.json(&["data", "bench", "data.toml", "--epochs", "3", "--host-memory", "64MiB", "--json"]);
    let epochs = document["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 3);
    assert!(epochs.iter().all(|epoch| epoch["examples"] == 20 && epoch["examples_per_s"].as_f64().unwrap() > 0.0));
    let bytes = |key: &str| document[key].as_u64().unwrap();
    assert!(bytes("peak_rss_bytes") <= bytes("planned_bytes") && bytes("planned_bytes") <= 64 << 20, "{document}");
    let held: u64 = document["stages"].as_array().unwrap().iter().filter_map(|stage| stage["bytes"].as_u64()).sum();
    assert_eq!(held, bytes("planned_bytes"));
    assert!(sandbox.succeed(&["data", "bench", "data.toml"]).contains("examples/s"));
}

#[test]
fn a_line_too_small_says_the_least_that_works() {
    let sandbox = pictures("bench-line");
    let output = sandbox.run(&["data", "bench", "data.toml", "--host-memory", "4MiB", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let least = document["min_bytes"].as_u64().unwrap().to_string();
    let kept = sandbox.json(&["data", "bench", "data.toml", "--host-memory", &least, "--json"]);
    assert!(kept["peak_rss_bytes"].as_u64() <= document["min_bytes"].as_u64(), "{kept}");
}

#[test]
fn the_second_epoch_comes_from_the_cache() {
    let sandbox = pictures("bench-cache");
    for cache in ["data.cache=\"memory\"", "data.cache={ file = \"kept.plc\" }"] {
        let document = sandbox.json(&["data", "bench", "data.toml", "--epochs", "2", "--set", cache, "--json"]);
        assert_eq!(document["epochs"][1]["examples"], 20);
    }
    assert!(sandbox.path("kept.plc").exists());
}

#[test]
fn an_inspection_shows_rows_and_draws_pictures() {
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
    assert_eq!((reader.info().width, reader.info().height), (16, 8));
    let document = sandbox.json(&["data", "inspect", "data.toml", "--json"]);
    assert_eq!((document["rows"].as_u64(), document["classes"][0].as_str()), (Some(20), Some("bright")));
}

#[test]
fn a_folder_of_pictures_can_be_learnt_from() {
    let sandbox = pictures("learn");
    let rest = "[model]\nlayers = [{ type = \"flatten\" }, { type = \"dense\", units = 2 }]\n[train]\nepochs = 20\noptimizer = { type = \"adam\", lr = 1e-2 }\n[budget]\nhost = \"64MiB\"\n";
    sandbox.write("run.toml", format!("{PICTURES}cache = \"memory\"\n{rest}"));
    let document = sandbox.json(&["train", "run.toml", "--out", "out", "--json", "--quiet"]);
    assert_eq!(document["epochs"][19]["accuracy"], 1.0, "{document}");
    assert!(document["measured_peak_rss_bytes"].as_u64() <= document["planned_bytes"].as_u64());
}

#[test]
fn bad_pictures_and_keys_are_named() {
    let sandbox = pictures("bad-pictures");
    let error = |arguments: &[&str]| {
        let (code, error) = sandbox.fail(&[&["data", "bench", "data.toml"], arguments].concat());
        assert_eq!(code, 1);
        error
    };
    insta::assert_snapshot!(error(&["--set", "data.path=nowhere"]), @"error: cannot list nowhere: No such file or directory (os error 2)");
    insta::assert_snapshot!(error(&["--set", "data.cache=disk"]), @r#"error: `data.cache` is "disk", but should be "memory" or a table such as { file = "cache.plc" }"#);
    insta::assert_snapshot!(error(&["--set", "data.parallelism=0"]), @r#"error: `data.parallelism` is 0, but should be "auto" or a number of threads"#);
    insta::assert_snapshot!(error(&["--set", "data.max_item=much"]), @"error: `data.max_item`: `much` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)");
    insta::assert_snapshot!(error(&["--set", "data.map=[{ op = \"decode\", channels = 2 }]"]), @"error: `data.map[0].channels` is 2, but should be 1 or 3");
    insta::assert_snapshot!(error(&["--set", "data.map=[{ op = \"decoed\" }]"]), @r#"error: `data.map[0].op` is "decoed", but should be one of cast, scale, normalize, resize, one_hot, decode, center_crop, random_crop, flip_left_right, flip_up_down, random_resized_crop, pad, crop_or_pad, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, finite; did you mean "decode"?"#);
    sandbox.write("pictures/dark/5.png", "broken");
    insta::assert_snapshot!(error(&[]), @"error: pictures/dark/5.png cannot be decoded: it begins like neither a JPEG nor a PNG; replace the file or take it out of the folder");
}
