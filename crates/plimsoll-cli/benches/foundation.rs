//! The figures of the README, measured on whole commands: time per step and resident memory as the system reports them.
//!
//! ```text
//! cargo bench -p plimsoll-cli --bench foundation [-- FOLDER]
//! ```
//!
//! The folder is where the 880 MB of rows are written once and kept; without it, a temporary one is used and removed.

use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Each command is run this often; the lowest time counts, because a busy machine only ever adds to it.
const ROUNDS: usize = 3;

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let keep = folder.is_some();
    let folder = folder.map_or_else(|| std::env::temp_dir().join(format!("plimsoll-bench-{}", std::process::id())), PathBuf::from);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    rows(&folder.join("x.npy"), 1_000_000, 100);
    rows(&folder.join("y.npy"), 1_000_000, 10);
    let dense = folder.join("dense.toml");
    let config = "[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\n[model]\nlayers = [{ type = \"dense\", units = 10 }]\n\
                  [train]\nbatch = 32\nepochs = 2\nloss = \"mse\"\noptimizer = \"adam\"\n";
    std::fs::write(&dense, config).expect("the configuration can be written");
    let conv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/conv_resized.toml");

    println!("{:<44} {:>12} {:>12} {:>12} {:>12}", "", "µs a step", "resident", "planned", "line");
    report("dense 100→10, 1,000,000 rows of .npy, 2 epochs", &[path(&dense), "--host-memory", "96MiB"], &folder);
    report("conv on 64×64, 20,000 rows", &[path(&conv), "--host-memory", "120MiB"], &folder);
    report("digits, 12 epochs", &["--host-memory", "64MiB"], &folder);
    if !keep {
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("paths here are text")
}

/// Runs a training command and prints its best round; the time is that of the whole command, start and end included.
fn report(name: &str, arguments: &[&str], folder: &Path) {
    let out = folder.join("run");
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output =
            command.arg("train").args(arguments).args(["--json", "--quiet", "--out", path(&out)]).output().expect("the command runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        (start.elapsed().as_secs_f64(), document)
    });
    let (seconds, document) = rounds.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are rounds");
    let mebibytes = |key: &str| format!("{:.1} MiB", document[key].as_u64().unwrap_or(0) as f64 / f64::from(1 << 20));
    let per_step = 1e6 * seconds / document["steps"].as_u64().unwrap_or(1) as f64;
    let [resident, planned, line] = ["measured_peak_rss_bytes", "planned_bytes", "host_budget_bytes"].map(mebibytes);
    println!("{name:<44} {per_step:>12.1} {resident:>12} {planned:>12} {line:>12}");
}

/// A `.npy` file of double-precision numbers in [0, 1), unless it is there already.
fn rows(path: &Path, rows: usize, columns: usize) {
    if path.exists() {
        return;
    }
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    header.extend(std::iter::repeat_n(' ', 63 - (header.len() + 10) % 64));
    header.push('\n');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).expect("the rows can be written"));
    let mut write = |bytes: &[u8]| file.write_all(bytes).expect("the rows can be written");
    write(b"\x93NUMPY\x01\x00");
    write(&(header.len() as u16).to_le_bytes());
    write(header.as_bytes());
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..rows * columns {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write(&((state >> 11) as f64 / (1u64 << 53) as f64).to_le_bytes());
    }
    file.flush().expect("the rows can be written");
}
