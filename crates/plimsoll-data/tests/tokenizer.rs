//! Byte-pair encodings give the IDs of the tokenizers library. `fixtures/make_tokenizer.py` writes them.

use plimsoll_data::source::BytePairs;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer").join(name)
}

#[test]
fn texts_get_the_ids_of_the_tokenizers_library() {
    let cases: Value = serde_json::from_slice(&fs::read(fixture("ids.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (name, texts) in cases.as_object().unwrap() {
        let pairs = BytePairs::open(&fixture(&format!("{name}.json"))).unwrap();
        let stored: BytePairs = serde_json::from_str(&serde_json::to_string(&pairs).unwrap()).unwrap();
        assert!(stored == pairs, "what is stored with the weights is the encoding");
        for case in texts.as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            let ids: Vec<u32> = case[1].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            for pairs in [&pairs, &stored] {
                if pairs.encode(text) != ids {
                    wrong.push(format!("{name}: {text:?} is {:?}, not {ids:?}", pairs.encode(text)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn other_tokenizers_are_refused() {
    let told = |name: &str| BytePairs::open(&fixture(name)).unwrap_err().to_string().replace(&fixture("").display().to_string(), "");
    insta::assert_snapshot!([told("unigram.json"), told("normalized.json"), told("none.json")].join("\n"), @"
    unigram.json cannot be used as a tokenizer: its model is Unigram, and only byte-level BPE (as GPT-2's) is read; tokenize the text beforehand
    normalized.json cannot be used as a tokenizer: it normalizes texts (Lowercase), which is not supported; tokenize the text beforehand
    cannot read none.json: No such file or directory (os error 2)
    ");
}
