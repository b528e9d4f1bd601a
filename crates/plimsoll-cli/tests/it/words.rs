//! One vocabulary: no phrase or identifier of `tools/words.txt` comes back, in documents, help, error texts, comments
//! or the names of items.

use crate::{command, repository};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[test]
fn no_retired_word_comes_back() {
    let root = repository();
    let words = Words::parse(&std::fs::read_to_string(root.join("tools/words.txt")).unwrap());
    let mut findings = BTreeSet::new();
    for path in files(&root) {
        let shown = path.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
        findings.extend(words.find_file(&shown));
        let text = std::fs::read_to_string(&path).unwrap();
        let read = if shown.ends_with(".rs") { read_rust(&text) } else { read_prose(&text) };
        findings.extend(words.find(&shown, &read));
    }
    for (shown, text) in help_texts() {
        findings.extend(words.find(&shown, &read_prose(&text)));
    }
    let mut report = String::new();
    for finding in &findings {
        writeln!(report, "{}:{}: \"{}\"; write: {}", finding.file, finding.line, finding.found, finding.instead).unwrap();
    }
    assert!(findings.is_empty(), "{} retired words (see tools/words.txt):\n{report}", findings.len());
}

#[test]
fn phrases_and_names_are_found_where_they_count() {
    let words = Words::parse("phrase | memory line/lines | memory budget\nname | Put | SliceWrite\nname src/a | taken | rows_taken\n");
    let found = |file: &str, text: &str| -> Vec<(usize, String)> {
        let read = if file.ends_with(".rs") { read_rust(text) } else { read_prose(text) };
        words.find(file, &read).map(|finding| (finding.line, finding.found)).collect()
    };
    assert_eq!(found("a.md", "under a *Memory\nlines*, Put `Put`"), [(2, "memory lines".into()), (2, "Put".into())]);
    assert_eq!(found("a.md", "out of memory. Line 3"), []);
    assert_eq!(found("src/b.rs", "/// The memory\n/// line.\nfn taken() { say(\"memory line\") } // Put it there\n").len(), 2);
    assert_eq!(
        found("src/a/b.rs", "fn taken(taken: Put) { let memory_line = '\"'; }"),
        [(1, "taken".into()), (1, "Put".into()), (1, "memory line".into())][..2]
    );
    assert_eq!(found("src/b.rs", "struct MemoryLine;"), [(1, "memory line".into())]);
    assert_eq!(found("src/b.rs", "r#\"memory \"line\"#; let x: &'a Put = y;"), [(1, "Put".into())]);
}

/// A place where a retired word stands, in the order in which they are listed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    line: usize,
    found: String,
    instead: String,
}

/// What a file consists of, for this test.
#[derive(Default)]
struct Reading {
    /// Words of prose in lower case with their lines; an empty word ends a phrase.
    prose: Vec<(String, usize)>,
    /// Identifiers with their lines, and whether they stand where something is declared or in a code span of prose.
    names: Vec<(String, usize, bool)>,
}

struct Phrase {
    /// The words, each with its alternatives.
    words: Vec<Vec<String>>,
    instead: String,
}

struct Name {
    folder: String,
    instead: String,
}

struct Words {
    /// By each alternative of the first word.
    phrases: HashMap<String, Vec<usize>>,
    all: Vec<Phrase>,
    names: HashMap<String, Vec<Name>>,
    /// Ends of paths, with what the files are called now.
    files: Vec<(String, String)>,
}

impl Words {
    fn parse(list: &str) -> Words {
        let mut words = Words { phrases: HashMap::new(), all: Vec::new(), names: HashMap::new(), files: Vec::new() };
        for (number, line) in list.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            let [kind, old, instead] = fields[..] else { panic!("tools/words.txt:{}: three fields, KIND | OLD | NEW", number + 1) };
            let instead = instead.to_string();
            match kind.split_once(' ').unwrap_or((kind, "")) {
                ("phrase", "") => {
                    let phrase: Vec<Vec<String>> =
                        old.split([' ', '-']).map(|word| word.split('/').map(str::to_lowercase).collect()).collect();
                    for first in &phrase[0] {
                        words.phrases.entry(first.clone()).or_default().push(words.all.len());
                    }
                    words.all.push(Phrase { words: phrase, instead });
                }
                ("name", folder) => words.names.entry(old.to_string()).or_default().push(Name { folder: folder.to_string(), instead }),
                ("file", "") => words.files.push((format!("/{old}"), instead)),
                _ => panic!("tools/words.txt:{}: an entry is a `phrase`, a `name` or a `file`, not `{kind}`", number + 1),
            }
        }
        words
    }

    fn find_file(&self, file: &str) -> Option<Finding> {
        let (old, instead) = self.files.iter().find(|(old, _)| file.ends_with(old.as_str()))?;
        Some(Finding { file: file.to_string(), line: 1, found: old.clone(), instead: instead.clone() })
    }

    fn find<'a>(&'a self, file: &'a str, read: &'a Reading) -> impl Iterator<Item = Finding> + 'a {
        let phrases = read.prose.iter().enumerate().flat_map(move |(at, (word, _))| {
            let starting = self.phrases.get(word).into_iter().flatten().map(|index| &self.all[*index]);
            starting.filter_map(move |phrase| {
                let here = read.prose.get(at..at + phrase.words.len())?;
                let matches = here.iter().zip(&phrase.words).all(|((word, _), options)| options.contains(word));
                let found = || here.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(" ");
                matches.then(|| Finding {
                    file: file.to_string(),
                    line: here[here.len() - 1].1,
                    found: found(),
                    instead: phrase.instead.clone(),
                })
            })
        });
        let names = read.names.iter().flat_map(move |(name, line, declared)| {
            let counts = *declared || name.starts_with(|first: char| first.is_uppercase());
            let entries = self.names.get(name).into_iter().flatten().filter(move |entry| counts && file.contains(&entry.folder));
            entries.map(move |entry| Finding { file: file.to_string(), line: *line, found: name.clone(), instead: entry.instead.clone() })
        });
        phrases.chain(names)
    }
}

/// What people read: documents, examples and the sources of all crates.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = markdown(root);
    found.extend(files_below(root.join("examples"), &["rs", "toml"]));
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        found.extend(files_below(folder.join("src"), &["rs", "toml", "cu"]));
        if folder.join("examples").exists() {
            found.extend(files_below(folder.join("examples"), &["rs"]));
        }
    }
    found
}

/// The documents of the repository.
pub(crate) fn markdown(root: &Path) -> Vec<PathBuf> {
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "fuzz/README.md"];
    let crates = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("README.md"));
    pages.iter().map(|page| root.join(page)).chain(crates).chain(files_below(root.join("docs"), &["md"])).collect()
}

pub(crate) fn files_below(folder: PathBuf, extensions: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extensions.iter().any(|known| extension == *known)) {
                found.push(path);
            }
        }
    }
    found
}

/// The help of the command and of each of its subcommands, found by reading the lists of subcommands.
pub(crate) fn help_texts() -> Vec<(String, String)> {
    let (mut texts, mut open) = (Vec::new(), vec![Vec::<String>::new()]);
    while let Some(path) = open.pop() {
        let output = command().args(&path).arg("--help").env_remove("COLUMNS").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        for line in listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" {
                open.push(path.iter().cloned().chain([name.to_string()]).collect());
            }
        }
        texts.push((format!("plimsoll {} --help", path.join(" ")), text));
    }
    texts
}

impl Reading {
    /// Adds prose that begins on a line. What stands between backticks also counts as code.
    fn prose(&mut self, text: &str, mut line: usize) {
        let mut word = String::new();
        let mut span = false;
        for letter in text.chars().chain([' ']) {
            if letter.is_alphanumeric() || matches!(letter, '_' | '\'') {
                word.push(letter);
                continue;
            }
            if !word.is_empty() {
                if span {
                    self.names.push((word.clone(), line, true));
                }
                self.prose.push((word.trim_matches('\'').to_lowercase(), line));
                word.clear();
            }
            match letter {
                '`' => span = !span,
                '\n' => line += 1,
                _ => {}
            }
            if !(letter.is_whitespace() || matches!(letter, '`' | '*' | '-' | '#' | '>')) {
                self.stop(line);
            }
        }
    }

    /// No phrase reaches over this place.
    fn stop(&mut self, line: usize) {
        self.prose.push((String::new(), line));
    }

    /// Adds an identifier; the words of one that is declared are prose as well.
    fn name(&mut self, name: &str, line: usize, declared: bool) {
        self.names.push((name.to_string(), line, declared));
        if declared {
            let mut words = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() || letter == '_' {
                    words.push(' ');
                }
                words.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
            }
            self.stop(line);
            self.prose(&words, line);
            self.stop(line);
        }
    }
}

fn read_prose(text: &str) -> Reading {
    let mut read = Reading::default();
    read.prose(text, 1);
    read
}

/// Splits Rust into comments and string literals, which are prose, and identifiers.
fn read_rust(text: &str) -> Reading {
    const DECLARE: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
    let mut read = Reading::default();
    let (bytes, mut at, mut line) = (text.as_bytes(), 0, 1);
    let mut before = "";
    while at < bytes.len() {
        let rest = &text[at..];
        let begun = at;
        let first = rest.chars().next().unwrap();
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            read.prose(text[begun..at].trim_start_matches(['/', '!']), line);
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
            read.prose(&text[begun..at], line);
        } else if let Some((open, close)) = string_at(rest) {
            at += open + close;
            read.stop(line);
            read.prose(&text[begun + open..at], line);
            read.stop(line);
        } else if first == '\'' {
            at += char_or_lifetime(rest);
            read.stop(line);
        } else if first.is_alphabetic() || first == '_' {
            at += rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
            let name = &text[begun..at];
            let field = before == "pub" && text[at..].starts_with(':') && !text[at..].starts_with("::");
            read.name(name, line, DECLARE.contains(&before) || field);
            read.stop(line);
            before = name;
        } else {
            at += first.len_utf8();
            if !first.is_whitespace() {
                read.stop(line);
                before = "";
            }
        }
        line += text[begun..at].matches('\n').count();
    }
    read
}

/// Where the contents of a string literal begin and how long the rest of it is, if one begins here.
fn string_at(rest: &str) -> Option<(usize, usize)> {
    let prefix = rest.find('"').filter(|at| matches!(rest[..*at].trim_end_matches('#'), "" | "b" | "c" | "r" | "br" | "cr"))?;
    let hashes = rest[..prefix].matches('#').count();
    let body = &rest[prefix + 1..];
    if rest[..prefix].contains('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some((prefix + 1, body.find(&end).map_or(body.len(), |at| at + end.len())));
    }
    let mut escaped = false;
    let end = body.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    (hashes == 0).then(|| (prefix + 1, end.map_or(body.len(), |at| at + 1)))
}

/// How long a character literal or a lifetime is.
fn char_or_lifetime(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match (letters.next(), letters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = at + escaped.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (_, Some((at, '\''))) => at + 1,
        _ => 1,
    }
}
