//! Every command of the book runs, on a few rows, except in blocks that are marked: `gpu` needs one, `keras` is a
//! program of another library, and `long` takes more than seconds. `tools/book_long.py` runs those.
//!
//! A block ```` ```toml ```` that begins with `# NAME.toml` is written to that file, for the commands after it. Other
//! files that commands name are made here, with the names of what `tools/book_data.py` writes. A command whose output
//! begins with `error:` has to fail.

use super::{Block, blocks, documents};
use crate::{Sandbox, npy, program};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Marks of blocks that this test does not run.
const MARKS: [&str; 3] = ["gpu", "keras", "long"];

#[test]
fn every_command_of_the_book_runs() {
    let documents = documents();
    let pages: Vec<_> = documents.iter().filter(|(path, _)| path == Path::new("README.md") || path.starts_with("docs")).collect();
    let threads: Vec<_> = pages
        .into_iter()
        .map(|(path, text)| (path.clone(), blocks(text)))
        .filter(|(_, blocks)| blocks.iter().any(is_run))
        .map(|(path, blocks)| std::thread::spawn(move || run_page(&path, &blocks)))
        .collect();
    let failures: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert!(failures.is_empty(), "commands of the book failed:\n{}", failures.join("\n"));
}

/// Whether a block has commands that this test runs.
fn is_run(block: &Block) -> bool {
    let mut words = block.info.split_whitespace();
    words.next() == Some("console") && !words.any(|mark| MARKS.contains(&mark))
}

/// Runs the commands of a page in a folder of its own. Returns what failed.
fn run_page(path: &Path, blocks: &[Block]) -> Vec<String> {
    let name = path.to_str().unwrap();
    let sandbox = Sandbox::new(&format!("book-{}", name.replace('/', "-")));
    make_commands(&sandbox);
    let all: String = blocks.iter().filter(|block| is_run(block)).map(|block| block.text.as_str()).collect();
    make_files(&sandbox, name, &all);
    let mut failures = Vec::new();
    for block in blocks {
        if let Some(file) = block.file_name().filter(|_| block.info == "toml") {
            sandbox.write(file, &block.text);
        }
        for command in commands(block).filter(|_| is_run(block)) {
            let place = format!("{name}:{}: `{}`", block.line, command.line);
            if !command.line.contains("plimsoll ") {
                failures.push(format!("{place} is another program: mark the block `long`, `gpu` or `keras`"));
                continue;
            }
            let output = shell(&sandbox, &command.line);
            let error = String::from_utf8_lossy(&output.stderr);
            match (output.status.success(), command.fails) {
                (true, true) => failures.push(format!("{place} is shown with an error, but succeeds")),
                (false, false) => failures.push(format!("{place}: {}", error.trim())),
                (false, true) if !error.lines().any(|line| line.starts_with("error: ")) => {
                    failures.push(format!("{place}: {}", error.trim()))
                }
                _ => {}
            }
        }
    }
    failures
}

/// A command, and whether its output is an error.
struct Shown {
    line: String,
    fails: bool,
}

/// The commands of a block: lines after `$ `, with those that they are continued on.
fn commands(block: &Block) -> impl Iterator<Item = Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut continued = false;
    for line in block.text.lines() {
        if let Some(line) = line.strip_prefix("$ ") {
            found.push(Shown { line: line.to_string(), fails: false });
        } else if let Some(last) = found.last_mut() {
            match continued {
                true => write!(last.line, "\n{line}").unwrap(),
                false => last.fails |= line.starts_with("error: "),
            }
        }
        continued = line.ends_with('\\');
    }
    found.into_iter()
}

/// The program by its name, and a browser that opens nothing.
fn make_commands(sandbox: &Sandbox) {
    std::fs::create_dir_all(sandbox.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), sandbox.path("bin/plimsoll")).unwrap();
    std::os::unix::fs::symlink("/bin/true", sandbox.path("bin/xdg-open")).unwrap();
}

fn shell(sandbox: &Sandbox, line: &str) -> std::process::Output {
    let path = format!("{}:{}", sandbox.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(&sandbox.folder).env("PATH", path).env_remove("COLUMNS");
    shell.envs([crate::BUILT_IN]).env("XDG_CACHE_HOME", sandbox.path("cache")).output().unwrap()
}

/// A run on the embedded digits, in seconds.
const DIGITS: &str = "plimsoll train --quiet --epochs 1 --set data.take=96 --out ";

/// Makes a file or a folder.
type Maker<'m> = &'m dyn Fn(&Sandbox);

/// Files that commands of a page name, in the order in which they are made from each other.
fn make_files(sandbox: &Sandbox, page: &str, commands: &str) {
    arrays(sandbox, page);
    let run = if page.ends_with("images.md") { FLOWERS } else { RUN };
    let makers: [(&str, Maker<'_>); 9] = [
        ("photos", &|sandbox| images(sandbox, "photos", 40)),
        ("run.toml", &|sandbox| sandbox.write("run.toml", run)),
        ("config.toml", &|sandbox| sandbox.write("config.toml", RUN)),
        ("runs/digits-1", &|sandbox| make(sandbox, &format!("{DIGITS}runs/digits-1"))),
        ("runs/digits-2", &|sandbox| make(sandbox, &format!("{DIGITS}runs/digits-2 --seed 2"))),
        ("runs/flowers-1", &|sandbox| trained(sandbox, "flowers", FLOWERS)),
        ("runs/prices-1", &|sandbox| trained(sandbox, "prices", PRICES)),
        ("model.keras", &|sandbox| exported(sandbox, "model.keras")),
        ("model.onnx", &|sandbox| exported(sandbox, "model.onnx")),
    ];
    for (name, maker) in makers {
        if commands.contains(name) {
            maker(sandbox);
        }
    }
}

const RUN: &str = "
[data]
source = \"npy\"
x = \"x.npy\"
y = \"y.npy\"
holdout = 0.25
[model]
layers = [{ type = \"dense\", units = 16, activation = \"relu\" }, { type = \"dense\", units = 10 }]
[train]
batch = 16
loss = \"mae\"
";

const FLOWERS: &str = "
[data]
source = \"image_folder\"
path = \"photos\"
holdout = 0.25
map = [{ op = \"decode\" }, { op = \"resize\", size = [16, 16] }, { op = \"scale\", by = \"1/255\" }]
[model]
layers = [{ type = \"conv2d\", filters = 4, size = 3 }, { type = \"global_average_pool\" }, { type = \"dense\", units = 10 }]
";

const PRICES: &str = "
[data]
source = \"csv\"
path = \"prices.csv\"
target = \"price\"
holdout = 0.25
[model]
layers = [{ type = \"dense\", units = 1 }]
[train]
loss = \"mse\"
";

/// Runs a command that the book does not show.
fn make(sandbox: &Sandbox, line: &str) {
    let output = shell(sandbox, line);
    assert!(output.status.success(), "`{line}`: {}", String::from_utf8_lossy(&output.stderr));
}

/// A run of this configuration.
fn trained(sandbox: &Sandbox, name: &str, configuration: &str) {
    let table: String = (0..16).map(|i| format!("{},{},{}\n", i, i % 3, i * 2)).collect();
    sandbox.write("prices.csv", format!("size,rooms,price\n{table}"));
    sandbox.write("new.csv", "size,rooms\n3,1\n4,2\n");
    images(sandbox, "photos", 40);
    sandbox.write(&format!("{name}.toml"), configuration);
    make(sandbox, &format!("plimsoll train {name}.toml --quiet --out runs/{name}-1"));
}

/// The model of a run on the digits as a file of another program.
fn exported(sandbox: &Sandbox, file: &str) {
    if !sandbox.path("runs/digits-1").exists() {
        make(sandbox, &format!("{DIGITS}runs/digits-1"));
    }
    make(sandbox, &format!("plimsoll export runs/digits-1 --to {file} --rows 0"));
}

/// Arrays of the names that the book uses. Where `x.npy` is given to a network for digits, it has their shape.
fn arrays(sandbox: &Sandbox, page: &str) {
    let digits = ["predict", "models", "onnx", "tflite"].iter().any(|name| page == format!("docs/{name}.md"));
    let (rows, shape) = if digits { (8, "(8, 8, 8, 1)") } else { (96, "(96, 100)") };
    let width = if digits { 64 } else { 100 };
    sandbox.write("x.npy", npy("<f4", shape, &floats(rows * width)));
    sandbox.write("y.npy", npy("<f4", "(96, 10)", &floats(960)));
    sandbox.write("images.npy", npy("|u1", "(40, 28, 28, 1)", &(0..40 * 784).map(|i| (i % 251) as u8).collect::<Vec<_>>()));
    sandbox.write("labels.npy", npy("<i4", "(40,)", &integers(40, 10)));
    sandbox.write("tokens.npy", npy("<i4", "(2, 4)", &integers(8, 50_000)));
    sandbox.write("next.npy", npy("<i4", "(2, 4)", &integers(8, 50_000)));
    sandbox.write("series.npy", npy("<f4", "(4, 32, 8)", &floats(4 * 32 * 8)));
    sandbox.write("target.npy", npy("<f4", "(4, 1)", &floats(4)));
}

/// Photographs of ten classes, in a folder for each.
fn images(sandbox: &Sandbox, name: &str, count: usize) {
    for i in 0..count {
        let folder = sandbox.path(name).join(format!("class{}", i % 10));
        std::fs::create_dir_all(&folder).unwrap();
        let mut encoder = png::Encoder::new(File::create(folder.join(format!("{i}.png"))).unwrap(), 40, 30);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&vec![(i * 6) as u8; 40 * 30 * 3]).unwrap();
    }
}

fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes()).collect()
}

fn integers(count: usize, below: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i * 7919 % below) as i32).to_le_bytes()).collect()
}
