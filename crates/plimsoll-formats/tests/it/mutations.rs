//! Readers under damaged files: a fixed number of mutations of good ones, the same each time. None panics, and none
//! holds more than the crate states. `fuzz/` has the same entries for cargo-fuzz; `PLIMSOLL_MUTATE_SECONDS=60` and
//! `PLIMSOLL_SEEDS=FOLDER` as in `plimsoll-data`.

use super::entries::ENTRIES;
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, TfliteModel, TfliteTensor, write};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const ROUNDS: u64 = 3000;

/// Above the file itself: a chunk of 16 MiB compressed and decompressed, a window, and lists that grow by doubling.
const BOUND: usize = 48 << 20;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed to the system's allocator; the counters are plain numbers of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().saturating_add(layout.size());
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Changes a file in one to four places.
fn mutate(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=random.below(4) {
        let near = if random.below(3) == 0 { bytes.len().min(256) } else { bytes.len() };
        let at = random.below(near);
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(8) {
            _ if bytes.is_empty() => {}
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = [0, 0xFF, 0x7F, 0x80, b'"', b'9'][random.below(6)],
            3 if random.below(4) == 0 => bytes.truncate(at),
            4 => bytes.insert(at, random.below(256) as u8),
            5 => bytes[at..end].fill(0xFF),
            6 => {
                // One place's bytes at another: addresses that are valid and wrong.
                let from = random.below(bytes.len() - (end - at) + 1);
                bytes.copy_within(from..from + (end - at), at);
            }
            _ => bytes[at..end].fill(0),
        }
    }
    bytes
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let files: &[&str] = match name {
        "hdf5" => &["layouts.h5", "small.h5", "refused_virtual.h5", "refused_external_link.h5"],
        "keras" => &["small.keras", "small.h5", "small_config.json"],
        "onnx" => &["small.onnx", "external.onnx"],
        "tflite" => return vec![tflite()],
        _ => &["small.safetensors"],
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references");
    files.iter().map(|file| std::fs::read(folder.join(file)).unwrap()).collect()
}

/// A dense layer with a bias.
fn tflite() -> Vec<u8> {
    let mut tensors = ["x", "kernel", "bias", "y"].map(|name| TfliteTensor::computed(name, DType::F32, vec![1, 8]));
    tensors[1].shape = vec![8, 8];
    tensors[2].shape = vec![8];
    tensors[1..3].iter_mut().for_each(|tensor| tensor.contents = Contents::Streamed);
    let dense = Operator { inputs: vec![0, 1, 2], outputs: vec![3], ..Operator::new(BuiltinOp::FullyConnected, 1) };
    let model = TfliteModel {
        description: "dense".to_string(),
        tensors: tensors.to_vec(),
        operators: vec![dense],
        inputs: vec![0],
        outputs: vec![3],
        signature: Some((vec!["x".to_string()], vec!["y".to_string()])),
        metadata: BTreeMap::from([("classes".to_string(), b"[\"a\"]".to_vec())]),
        metadata_bytes: 0,
    };
    let mut file = Vec::new();
    write(&model, &mut file, |tensor, out| out.write_all(&vec![0; tensor.bytes() as usize])).unwrap();
    file
}

#[test]
fn damaged_models_are_at_most_refused_within_the_memory_that_is_stated() {
    let more = std::env::var("PLIMSOLL_MUTATE_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 | 1);
    for (name, enter) in ENTRIES {
        let seeds = seeds(name);
        assert!(enter(Region::bytes(seeds[0].clone())).is_ok(), "a good {name}");
        if let Some(corpus) = std::env::var_os("PLIMSOLL_SEEDS") {
            let corpus = Path::new(&corpus).join(name);
            std::fs::create_dir_all(&corpus).unwrap();
            seeds.iter().enumerate().for_each(|(index, seed)| std::fs::write(corpus.join(format!("seed-{index}")), seed).unwrap());
        }
        let mut random = Random(if more.is_some() { clock() } else { 0x9E37_79B9_7F4A_7C15 });
        let begun = Instant::now();
        let (mut refused, mut round) = (0, 0);
        while more.map_or(round < ROUNDS, |time| begun.elapsed() < time) {
            let bytes = mutate(&seeds[round as usize % seeds.len()], &mut random);
            let kept = std::env::temp_dir().join(format!("plimsoll-{name}-{round}"));
            let before = HELD.get();
            PEAK.set(before);
            let outcome = std::panic::catch_unwind(|| enter(Region::bytes(bytes.clone())));
            let held = PEAK.get().saturating_sub(before);
            let Ok(outcome) = outcome else {
                std::fs::write(&kept, &bytes).unwrap();
                panic!("round {round} of {name} panicked; the file is {}", kept.display());
            };
            if held > BOUND + bytes.len() {
                std::fs::write(&kept, &bytes).unwrap();
                panic!("round {round} of {name} held {held} bytes; the file is {}", kept.display());
            }
            refused += u64::from(outcome.is_err());
            round += 1;
        }
        if more.is_some() {
            println!("{name}: {refused} of {round} refused, none panicked");
        }
        assert!(refused > 0 && refused < round, "{name}: {refused} of {round} refused");
    }
}
