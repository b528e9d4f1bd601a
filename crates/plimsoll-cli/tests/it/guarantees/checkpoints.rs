//! A checkpoint is intact or not used, and continues the run it belongs to.

use super::super::resume::weights;
use super::{Sandbox, checkpoints, json, newest, warned};
use std::path::Path;

const RUN: [&str; 9] = ["train", "--epochs", "3", "--seed", "3", "--quiet", "--out", "run", "--no-calibrate"];

/// A run with several checkpoints, and its weights.
fn trained(name: &str) -> (Sandbox, Vec<u8>) {
    let sandbox = Sandbox::new(name);
    sandbox.succeed(&[&RUN[..], &["--set", "checkpoint.every_steps=7", "--set", "checkpoint.keep=3"]].concat());
    let weights = weights(&sandbox, "run");
    (sandbox, weights)
}

/// Resumes a run whose newest checkpoint was changed: the older one is used, the changed one is named, and nothing else
/// is different.
fn falls_back(sandbox: &Sandbox, expected: &[u8], change: impl FnOnce(&Path) -> String) {
    let document = newest(sandbox, "run");
    let name = document.file_stem().unwrap().to_string_lossy().into_owned();
    let what = change(&document);
    let error = warned(sandbox, &[&RUN[..], &["--resume"]].concat());
    assert!(error.contains(&name) && error.contains("is damaged") && error.contains("an older checkpoint is used"), "{what}: {error}");
    assert!(weights(sandbox, "run") == expected, "{what}");
}

/// Replaces text in a file; it must be there.
fn edit(path: &Path, from: &str, to: &str) -> String {
    let bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap_or_else(|| panic!("{from} in {path:?}"));
    std::fs::write(path, [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()).unwrap();
    format!("{from} to {to}")
}

#[test]
fn an_edited_checkpoint_record_is_noticed() {
    let (sandbox, expected) = trained("edited");
    for key in ["\"step\":", "\"epoch\":", "\"rows\":", "\"factor\":", "\"seed\":", "\"bytes\":"] {
        falls_back(&sandbox, &expected, |document| edit(document, key, &format!("{key}1")));
    }
    falls_back(&sandbox, &expected, |document| edit(document, "\"checksum\":\"", "\"checksum\":\"0"));
}

#[test]
fn a_damaged_tensor_name_dtype_shape_or_value_uses_the_older_checkpoint() {
    let (sandbox, expected) = trained("header");
    let tensors = |document: &Path| document.with_extension("safetensors");
    for (from, to) in
        [("dense/kernel", "dense/kernes"), ("\"F32\"", "\"I32\""), ("\"shape\":[10]", "\"shape\":[1]0"), ("data_offsets", "data_offsetz")]
    {
        falls_back(&sandbox, &expected, |document| edit(&tensors(document), from, to));
    }
    falls_back(&sandbox, &expected, |document| {
        let mut bytes = std::fs::read(tensors(document)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(tensors(document), bytes).unwrap();
        "the last byte".to_string()
    });
    // Intact tensors of another checkpoint are not this one's.
    falls_back(&sandbox, &expected, |document| {
        let older = checkpoints(&sandbox, "run").into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
        std::fs::copy(document.with_file_name(older), tensors(document)).unwrap();
        "the tensors of another step".to_string()
    });
}

#[test]
fn damaged_weights_are_refused_wherever_they_are_read() {
    let sandbox = Sandbox::new("weights-damaged");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run"]);
    let path = sandbox.path("run/weights.safetensors");
    let intact = std::fs::read(&path).unwrap();
    for at in [20, intact.len() / 2, intact.len() - 1] {
        let mut damaged = intact.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        for command in [
            &["evaluate", "run"][..],
            &["predict", "run", "--out", "p.npy"],
            &["train", "--quiet", "--out", "new", "--weights", "run/weights.safetensors"],
        ] {
            let (code, error) = sandbox.fail(command);
            assert_eq!(code, 1);
            assert!(error.contains("weights.safetensors is damaged") || error.contains("does not have the tensors"), "byte {at}: {error}");
        }
    }
    std::fs::write(&path, &intact[..intact.len() - 1]).unwrap();
    assert!(sandbox.fail(&["evaluate", "run"]).1.contains("weights.safetensors is damaged"));
}

#[test]
fn weights_that_other_programs_wrote_are_read() {
    let sandbox = Sandbox::new("weights-plain");
    sandbox.succeed(&["train", "--epochs", "1", "--quiet", "--out", "run"]);
    let expected = sandbox.succeed(&["evaluate", "run"]);
    let path = sandbox.path("run/weights.safetensors");
    let file = std::fs::read(&path).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, tensors) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    assert_eq!(header["__metadata__"]["plimsoll.crc32"].as_str().map(str::len), Some(8), "{header}");
    header.as_object_mut().unwrap().remove("__metadata__");
    let header = header.to_string();
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tensors].concat()).unwrap();
    assert_eq!(sandbox.succeed(&["evaluate", "run"]), expected);
}

/// Micro-batches change the order of sums. A run that begins with some continues with the same, whatever memory there
/// is.
#[test]
fn a_resumed_run_keeps_the_choices_that_its_bits_depend_on() {
    let sandbox = Sandbox::new("numerics");
    let run = ["train", "--batch", "64", "--seed", "3", "--quiet", "--allow", "microbatch"];
    let refused = sandbox.run(&["plan", "--batch", "64", "--allow", "microbatch", "--json", "--host-memory", "1MiB"]);
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    let tight = document["min_bytes"].as_u64().unwrap().to_string();
    sandbox.succeed(&[&run[..], &["--epochs", "2", "--host-memory", &tight, "--out", "whole"]].concat());
    sandbox.succeed(&[&run[..], &["--epochs", "1", "--host-memory", &tight, "--out", "run"]].concat());
    let pieces = json(&sandbox.path("run/plan.json"))["micro_batch"].clone();
    assert!(pieces.as_u64().unwrap() < 64, "{pieces}");
    assert_eq!(json(&newest(&sandbox, "run"))["numerics"]["micro_batch"], pieces);
    sandbox.succeed(&["train", "--epochs", "2", "--quiet", "--host-memory", "1GiB", "--out", "run", "--resume"]);
    assert_eq!(json(&sandbox.path("run/plan.json"))["micro_batch"], pieces, "although a whole batch fits");
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "run"));

    // A run in whole batches is refused where they no longer fit, with what it needs.
    sandbox.succeed(&[&run[..], &["--epochs", "1", "--host-memory", "1GiB", "--out", "large"]].concat());
    let (code, error) = sandbox.fail(&["train", "--epochs", "2", "--quiet", "--host-memory", &tight, "--out", "large", "--resume"]);
    assert_eq!(code, 3);
    assert!(error.ends_with("; the checkpoint was trained with micro-batches of 64 in f32, which a resumed run keeps"), "{error}");
    let needed = error.split('(').nth(1).unwrap().split(' ').next().unwrap();
    sandbox.succeed(&["train", "--epochs", "2", "--quiet", "--host-memory", needed, "--out", "large", "--resume"]);
    // Another size than the run's is a difference like any other.
    let (code, error) = sandbox.fail(&["train", "--epochs", "3", "--quiet", "--micro-batch", "16", "--out", "large", "--resume"]);
    assert_eq!(code, 1);
    assert!(error.starts_with("error: `train.micro_batch` is not set in the run that was saved, but 16 now"), "{error}");
}

#[test]
fn a_resumed_run_keeps_its_precision() {
    let sandbox = Sandbox::new("numerics-precision");
    let run = ["train", "--seed", "3", "--quiet", "--allow", "mixed_precision"];
    let refused = sandbox.run(&["plan", "--allow", "none", "--epochs", "1", "--json", "--host-memory", "1MiB"]);
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    // One byte less than 32 bits need for one epoch, and more so for two.
    let tight = (document["min_bytes"].as_u64().unwrap() - 1).to_string();
    sandbox.succeed(&[&run[..], &["--epochs", "2", "--host-memory", &tight, "--out", "whole"]].concat());
    sandbox.succeed(&[&run[..], &["--epochs", "1", "--host-memory", &tight, "--out", "run"]].concat());
    assert_eq!(json(&newest(&sandbox, "run"))["numerics"]["precision"], "mixed_bf16");
    sandbox.succeed(&["train", "--epochs", "2", "--quiet", "--host-memory", "1GiB", "--allow", "none", "--out", "run", "--resume"]);
    assert!(weights(&sandbox, "whole") == weights(&sandbox, "run"), "although 32 bits fit");
}
