//! The command from outside: its output, its files, its errors, and that it stays within its budget.

mod arena;
mod calibrate;
mod cgroup;
mod cuda;
mod data;
mod documents;
mod end_to_end;
mod error_messages;
mod evaluate_and_predict;
mod export;
mod guarantees;
mod import;
mod import_onnx;
mod memory_limits;
mod new_data;
mod offload;
mod plan_files;
mod profile;
mod ranks;
mod report;
mod resume;
mod stream_stages;
mod terminal;
mod words;
mod zoo;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command in its own empty folder.
struct Sandbox {
    folder: PathBuf,
}

impl Sandbox {
    fn new(name: &str) -> Sandbox {
        let folder = std::env::temp_dir().join(format!("plimsoll-cli-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Sandbox { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        // Help is wrapped to the width the environment claims.
        command().args(arguments).env_remove("COLUMNS").current_dir(&self.folder).output().unwrap()
    }

    /// Standard output of a run that succeeds.
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The JSON document of a run that succeeds.
    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.succeed(arguments)).unwrap()
    }

    /// Exit code and standard error of a run that fails.
    fn fail(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?} succeeded");
        assert!(!error.contains("panicked"), "{error}");
        (output.status.code().expect("it exits by itself"), error.trim_end().to_string())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Plans with built-in rates, so that results are the same on every machine.
const BUILT_IN: (&str, &str) = ("PLIMSOLL_NO_CALIBRATE", "1");

fn command() -> Command {
    let mut command = Command::new(program());
    // Nothing is kept in the user's cache folder.
    command.envs([BUILT_IN]).env("XDG_CACHE_HOME", "/dev/null");
    command
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_plimsoll"))
}

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// The configuration of an example.
fn example(name: &str) -> String {
    repository().join("examples").join(name).to_str().unwrap().to_string()
}

/// A `.npy` file of the given type name and shape; `data` is its bytes.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(data);
    file
}
