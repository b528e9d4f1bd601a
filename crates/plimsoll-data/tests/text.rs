//! Text as windows of characters.

use collect::{column, complaint, ints};
use plimsoll_core::Bytes;
use plimsoll_data::source::Text;
use plimsoll_data::{Dataset, Parallelism, Shuffle, Vocabulary};
use proptest::prelude::*;
use std::fs;

mod collect;

/// All windows, worked out the plain way.
fn expected(text: &str, context: usize, stride: usize) -> Vec<(Vec<i32>, Vec<i32>)> {
    let vocabulary = Vocabulary::new(text.chars());
    let numbers = vocabulary.encode(text).unwrap();
    let starts = (0..).step_by(stride).take_while(|start| start + context < numbers.len());
    starts.map(|start| (numbers[start..start + context].to_vec(), numbers[start + 1..start + context + 1].to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// One byte each or several; shorter and longer than what is known of where characters lie.
    #[test]
    fn windows_are_the_characters_of_the_file(text in "[a-cé→]{3,40}|[a-e\\n]{3,40}", repeat in 1usize..300, context in 1usize..40, stride in 1usize..50) {
        let text = text.repeat(repeat);
        prop_assume!(text.chars().count() > context);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.txt");
        fs::write(&path, &text).unwrap();
        let data = Dataset::from(Text::open(&path, context).unwrap().stride(stride).unwrap());
        let (x, y): (Vec<_>, Vec<_>) = expected(&text, context, stride).into_iter().unzip();
        prop_assert_eq!(data.len(), x.len() as u64);
        prop_assert_eq!(ints(&data.clone().batch(7), 0), x);
        prop_assert_eq!(ints(&data.batch(7), 1), y);
    }
}

#[test]
fn parts_share_a_vocabulary_and_no_character() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.txt");
    fs::write(&path, "abcdefghij").unwrap();
    let text = Text::open(&path, 2).unwrap().stride(1).unwrap();
    let (first, rest) = (Dataset::from(text.part(0.0, 0.6).unwrap()), Dataset::from(text.part(0.6, 1.0).unwrap()));
    assert_eq!(ints(&first.clone().batch(9), 1), [[1, 2], [2, 3], [3, 4], [4, 5]]);
    assert_eq!(ints(&rest.clone().batch(9), 0), [[6, 7], [7, 8]]);
    assert_eq!(first.vocabulary(), rest.vocabulary());
    assert_eq!(rest.vocabulary().unwrap().decode(&[6, 9]).unwrap(), "gj");
    assert_eq!(first.describe().replace(&folder.path().display().to_string(), ""), "text /t.txt (characters 0 to 6, 2 at a time, every 1)");
}

#[test]
fn a_shuffled_text_is_the_same_at_any_parallelism_and_under_any_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.txt");
    fs::write(&path, "So it goes → and on. ".repeat(500)).unwrap();
    let text = Dataset::from(Text::open(&path, 16).unwrap().stride(3).unwrap()).shuffle(Shuffle::seed(3)).batch(32);
    let one = column(&text, 0, 1, None).unwrap();
    for (threads, limit) in [(1, Some(text.plan(None).unwrap().minimum())), (3, None), (4, Some(Bytes::mib(4)))] {
        let text = text.clone().parallelism(Parallelism::Threads(threads));
        assert_eq!(column(&text, 0, 1, limit).unwrap(), one);
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let plain = file("plain.txt", b"one\ntwo\n");
    let broken = file("broken.txt", b"abc\xC3\x28");
    let cut = file("cut.txt", b"abc\xC3");
    let other = file("other.txt", "one\ntwo\n\u{e9}".as_bytes());
    let letters = Text::open(&plain, 2).unwrap().vocabulary().clone();
    let complaints = [
        complaint(Text::open(&folder.path().join("none.txt"), 2), folder.path()),
        complaint(Text::open(&broken, 2), folder.path()),
        complaint(Text::open(&cut, 2), folder.path()),
        complaint(Text::open_with(&other, 2, Some(&letters)), folder.path()),
        complaint(Text::open(&plain, 8), folder.path()),
        complaint(Text::open(&plain, 0), folder.path()),
        complaint(Text::open(&plain, 2).unwrap().stride(0), folder.path()),
        complaint(Text::open(&plain, 2).unwrap().part(0.5, 1.5), folder.path()),
        complaint(Text::open(&file("empty.txt", b""), 2), folder.path()),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    cannot open none.txt: No such file or directory (os error 2)
    broken.txt cannot be read as text: byte 3 is not valid UTF-8; save the file as UTF-8
    cut.txt cannot be read as text: byte 3 is not valid UTF-8; save the file as UTF-8
    other.txt cannot be read as text: 'é' in line 3 (byte 8) is not in the vocabulary; take the vocabulary from this file too
    plain.txt cannot be read as text: its part of 8 characters has no window of 8 and the one that follows; ask for less context or a larger part
    plain.txt cannot be read as text: windows of 0 characters cannot be; ask for 1 to 16777216
    plain.txt cannot be read as text: windows that step by 0 characters never end; step by at least 1
    plain.txt cannot be read as text: 0.5 to 1.5 is no part of it; give shares from 0 to 1
    empty.txt cannot be read as text: its part of 0 characters has no window of 2 and the one that follows; ask for less context or a larger part
    ");
}

#[test]
fn a_file_that_changes_is_an_error_not_other_characters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.txt");
    fs::write(&path, "abcabcabc").unwrap();
    let data = Dataset::text(&path, 2).unwrap().batch(2);
    fs::write(&path, "abcabXabc").unwrap();
    let changed = complaint(column(&data, 0, 0, None), folder.path());
    fs::write(&path, "abc").unwrap();
    let shorter = complaint(column(&data, 0, 0, None), folder.path());
    insta::assert_snapshot!(format!("{changed}\n{shorter}"), @"
    t.txt cannot be read as text: the character at byte 5 was not there when the file was opened; start again
    cannot read byte 2 of t.txt: failed to fill whole buffer
    ");
}
