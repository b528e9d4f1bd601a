//! Documents stay true: links and paths exist, commands and flags are those of the program and run, TOML parses,
//! programs in Rust are those of the examples, every error is explained, every page is in the book, pages stay short.

mod commands;

use crate::repository;
use crate::words::{files_below, help_texts, markdown};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The documents with their paths in the repository.
fn documents() -> Vec<(PathBuf, String)> {
    let root = repository();
    markdown(&root)
        .into_iter()
        .map(|path| (path.strip_prefix(&root).unwrap().to_path_buf(), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

/// Lines with their numbers, and the language of the fenced block that each is in.
fn lines(text: &str) -> impl Iterator<Item = (usize, Option<&str>, &str)> {
    let mut language = None;
    text.lines().enumerate().filter_map(move |(number, line)| {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(info) };
            return None;
        }
        Some((number + 1, language, line))
    })
}

/// A fenced block.
struct Block {
    /// Its language and marks.
    info: String,
    /// The line it begins on.
    line: usize,
    text: String,
}

impl Block {
    /// The name of the file that it shows, if its first line is a comment with one.
    fn file_name(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?.split_whitespace().next()?;
        name.contains('.').then_some(name)
    }
}

/// The fenced blocks of a page.
fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut open): (Vec<Block>, bool) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(info), false) => found.push(Block { info: info.trim().to_string(), line: number + 1, text: String::new() }),
            (None, true) => found.last_mut().expect("one is open").text += &format!("{line}\n"),
            _ => {}
        }
        open ^= line.trim_start().starts_with("```");
    }
    found
}

/// What stands between each pair of backticks of a line.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The anchor that a heading gets where Markdown is shown.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim_start_matches('#').trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Prose and comments are at most this wide; tables and code blocks have lines of their own length.
const WIDTH: usize = 120;

#[test]
fn lines_of_prose_and_comments_are_not_too_long() {
    let root = repository();
    let mut long = Vec::new();
    for (path, text) in documents() {
        let prose = lines(&text).filter(|(_, language, line)| language.is_none() && !line.trim_start().starts_with('|'));
        long.extend(prose.filter(|(_, _, line)| is_long(line)).map(|(number, _, _)| format!("{}:{number}", path.display())));
    }
    for path in files_below(root.join("crates"), &["rs"]) {
        let (text, shown) = (std::fs::read_to_string(&path).unwrap(), path.strip_prefix(&root).unwrap().display().to_string());
        long.extend(prose_of_comments(&text).filter(|(_, line)| is_long(line)).map(|(number, _)| format!("{shown}:{number}")));
    }
    assert!(long.is_empty(), "{} lines of prose or comments are longer than {WIDTH} characters:\n{}", long.len(), long.join("\n"));
}

/// The comment lines of a program with their numbers, without tables and examples.
fn prose_of_comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_example = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_example = false;
            return None;
        };
        let prose = comment.trim_start_matches(['/', '!']);
        let fence = prose.trim_start().starts_with("```");
        in_example ^= fence;
        let is_prose = !in_example && !fence && !prose.starts_with(" |") && !prose.starts_with("     ");
        is_prose.then_some((number + 1, line))
    })
}

/// Whether a line is too long, and no single word is the reason.
fn is_long(line: &str) -> bool {
    !line.starts_with("![") && line.chars().count() > WIDTH && line.split_whitespace().all(|word| word.chars().count() < WIDTH - 20)
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = repository();
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for (number, _, line) in lines(&text).filter(|(_, language, _)| language.is_none()) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
                if target.starts_with("https://") {
                    continue;
                }
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let linked = if file.is_empty() { root.join(&path) } else { root.join(path.parent().unwrap()).join(file) };
                let page = if heading.is_empty() { String::new() } else { std::fs::read_to_string(&linked).unwrap_or_default() };
                let known = heading.is_empty()
                    || lines(&page).any(|(_, language, line)| language.is_none() && line.starts_with('#') && anchor(line) == heading);
                if !linked.exists() || !known {
                    broken.push(format!("{}:{number}: {target}", path.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn named_paths_exist() {
    let root = repository();
    let mut missing = Vec::new();
    for (path, text) in documents().into_iter().filter(|(path, _)| path != Path::new("CHANGELOG.md")) {
        for (number, _, line) in lines(&text).filter(|(_, language, _)| language.is_none()) {
            for span in code_spans(line).filter(|span| is_path(span)) {
                let file = span.split(['#', ':']).next().unwrap();
                let places = [root.clone(), root.join("crates"), root.join(path.parent().unwrap())];
                if !places.iter().any(|place| place.join(file).exists()) {
                    missing.push(format!("{}:{number}: {span}", path.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no such files:\n{}", missing.join("\n"));
}

/// Whether a code span names a file or a folder of the repository.
fn is_path(span: &str) -> bool {
    let first = span.split('/').next().unwrap();
    let inside = first.starts_with("plimsoll")
        || ["crates", "docs", "examples", "rivals", "fuzz", "tools", ".ci", "..", "decisions"].contains(&first);
    inside && span.contains('/') && !span.contains(['*', ' ', '{', '…', '<', '$'])
}

#[test]
fn commands_and_flags_exist() {
    let help: HashMap<String, String> = help_texts().into_iter().collect();
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for (number, language, line) in lines(&text) {
            let shown: Vec<&str> = match language {
                None => code_spans(line).collect(),
                Some(info) if info.starts_with("console") => line.strip_prefix("$ ").into_iter().collect(),
                Some(_) => Vec::new(),
            };
            let commands = shown.iter().flat_map(|shown| shown.split("&&")).map(|shown| shown.split(" # ").next().unwrap().trim());
            for command in commands.filter(|command| command.starts_with("plimsoll ")) {
                let words: Vec<&str> = command.split_whitespace().skip(1).collect();
                let named: Vec<&str> =
                    words.iter().copied().take_while(|word| help.keys().any(|known| known.contains(&format!(" {word} ")))).collect();
                let text = help.get(&format!("plimsoll {} --help", named.join(" ")));
                let unknown = |word: &&&str| word.starts_with("--") && !text.is_some_and(|text| has_flag(text, word));
                if let Some(flag) = words.iter().find(unknown) {
                    wrong.push(format!("{}:{number}: {flag} in `{command}`", path.display()));
                }
                if named.is_empty() && words.first().is_some_and(|word| word.chars().all(char::is_lowercase)) {
                    wrong.push(format!("{}:{number}: `{command}`", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "no such command or flag:\n{}", wrong.join("\n"));
}

/// Tests, benches and examples that `cargo` commands name.
#[test]
fn cargo_commands_name_targets() {
    let root = repository();
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for (number, language, line) in lines(&text) {
            let shown: Vec<&str> = if language.is_none() { code_spans(line).collect() } else { vec![line.trim_start_matches("$ ")] };
            for command in shown.iter().filter(|shown| shown.starts_with("cargo ")) {
                let words: Vec<&str> = command.split(" # ").next().unwrap().split_whitespace().collect();
                let after = |flag: &str| words.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1]).collect::<Vec<_>>();
                let Some(package) = after("-p").first().copied().filter(|package| *package != "CRATE") else { continue };
                let folder = root.join("crates").join(package);
                let exists =
                    |kind: &str, name: &str| folder.join(kind).join(format!("{name}.rs")).exists() || folder.join(kind).join(name).exists();
                let lost = [("--test", "tests"), ("--bench", "benches")]
                    .into_iter()
                    .flat_map(|(flag, kind)| after(flag).into_iter().filter(move |name| !exists(kind, name)))
                    .chain(after("--example").into_iter().filter(|name| !exists("examples", name)))
                    .chain(
                        after("--lib").into_iter().filter(|filter| !filter.starts_with('-') && !names_a_test(&folder.join("src"), filter)),
                    );
                wrong.extend(lost.map(|name| format!("{}:{number}: {name} in `{command}`", path.display())));
            }
        }
    }
    assert!(wrong.is_empty(), "no such test, bench or example:\n{}", wrong.join("\n"));
}

/// Whether a function or a module of a crate has a name with this in it.
fn names_a_test(folder: &Path, filter: &str) -> bool {
    files_below(folder.to_path_buf(), &["rs"]).iter().any(|path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .filter_map(|line| line.trim_start().trim_start_matches("pub ").strip_prefix("fn "))
            .any(|name| name.split('(').next().unwrap().contains(filter))
            || path.file_stem().is_some_and(|stem| stem == filter)
    })
}

fn has_flag(help: &str, flag: &str) -> bool {
    let flag = flag.split('=').next().unwrap();
    help.split_whitespace().any(|word| word.trim_end_matches([',', ']']) == flag)
}

#[test]
fn toml_blocks_parse() {
    for (path, text) in documents() {
        for block in blocks(&text).into_iter().filter(|block| block.info == "toml") {
            let parsed = block.text.parse::<toml::Table>();
            assert!(parsed.is_ok(), "{}:{}: {}", path.display(), block.line, parsed.unwrap_err());
        }
    }
}

/// The programs of these pages are functions of an example, which a test of the library runs.
#[test]
fn rust_programs_are_those_of_the_example() {
    let example = std::fs::read_to_string(repository().join("crates/plimsoll/examples/from_keras.rs")).unwrap();
    let (mut compared, mut other) = (0, Vec::new());
    for page in ["coming-from-keras.md", "coming-from-pytorch.md"] {
        let text = std::fs::read_to_string(repository().join("docs").join(page)).unwrap();
        for block in blocks(&text).into_iter().filter(|block| block.info == "rust") {
            compared += 1;
            if !example.contains(block.text.trim_end()) {
                other.push(format!("docs/{page}:{}", block.line));
            }
        }
    }
    assert!(compared > 0 && other.is_empty(), "not as in examples/from_keras.rs:\n{}", other.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let summary = std::fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    let pages = documents().into_iter().filter_map(|(path, _)| Some(path.strip_prefix("docs").ok()?.to_path_buf()));
    let lost: Vec<_> =
        pages.filter(|page| page != Path::new("SUMMARY.md")).filter(|page| !summary.contains(&format!("({})", page.display()))).collect();
    assert!(lost.is_empty(), "docs/SUMMARY.md lacks {lost:?}");
}

/// Files with the errors that people see, and how documents call them.
const ERRORS: [(&str, &str); 7] = [
    ("plimsoll/src/error.rs", "Error"),
    ("plimsoll/src/eager/error.rs", "eager::Error"),
    ("plimsoll-data/src/error.rs", "DataError"),
    ("plimsoll-core/src/device/mod.rs", "DeviceError"),
    ("plimsoll-core/src/allocator/error.rs", "AllocatorError"),
    ("plimsoll-core/src/plan/recompute/mod.rs", "FitError"),
    ("plimsoll-formats/src/error.rs", "FormatError"),
];

#[test]
fn every_error_is_explained() {
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let mut missing = Vec::new();
    for (file, shown) in ERRORS {
        let text = std::fs::read_to_string(repository().join("crates").join(file)).unwrap();
        let name = shown.rsplit(':').next().unwrap();
        let body = text.split(&format!("pub enum {name} {{\n")).nth(1).unwrap_or_else(|| panic!("{file} has no enum {name}"));
        let lines = body.lines().take_while(|line| *line != "}").filter(|line| line.starts_with("    ") && !line.starts_with("     "));
        let variants = lines.map(|line| line.trim().split([' ', '(', ',', '{']).next().unwrap());
        let variants = variants.filter(|variant| variant.starts_with(|first: char| first.is_uppercase()));
        missing.extend(variants.map(|variant| format!("{shown}::{variant}")).filter(|name| !page.contains(&format!("`{name}`"))));
    }
    assert!(missing.is_empty(), "docs/troubleshooting.md does not say what to do about {missing:?}");
}

/// A reader decides in a minute (README) and finds a place in an hour (ARCHITECTURE).
#[test]
fn entry_pages_stay_short() {
    let long = [("README.md", 150), ("ARCHITECTURE.md", 250)];
    for (name, limit) in long {
        let lines = std::fs::read_to_string(repository().join(name)).unwrap().lines().count();
        assert!(lines <= limit, "{name} has {lines} lines, of {limit}: move details to docs/");
    }
}
