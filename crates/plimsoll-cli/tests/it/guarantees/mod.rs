//! What users rely on, one test per promise. A test's name is the promise.

mod budgets;
mod certificate;
mod checkpoints;
mod data_memory;
mod files;
mod first_minute;
mod holdout;
mod nothing_lost;
mod reports;
mod wrong_answers;

use super::{Sandbox, command, npy, program};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Standard error of a run that succeeds.
fn warned(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let output = sandbox.run(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?} failed: {error}");
    error
}

/// All files below a folder, with their contents.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => all.push((path.clone(), std::fs::read(&path).unwrap())),
            }
        }
    }
    all.sort();
    all
}

/// The files below a folder that are not complete.
fn incomplete(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().map(|(path, _)| path).filter(|path| path.to_string_lossy().contains(".tmp")).collect()
}

/// The names of the files of a run's checkpoints, sorted.
fn checkpoints(sandbox: &Sandbox, run: &str) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.path(run).join("checkpoints")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The document of a run's newest checkpoint.
fn newest(sandbox: &Sandbox, run: &str) -> PathBuf {
    let name = checkpoints(sandbox, run).into_iter().rfind(|name| name.ends_with(".json")).expect("there is a checkpoint");
    sandbox.path(run).join("checkpoints").join(name)
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A process that is ended when it is dropped.
struct Running(Child);

impl Running {
    /// Starts the command in a sandbox.
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> Running {
        let mut command = command();
        command.args(arguments).current_dir(&sandbox.folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// Waits until something holds.
    fn until(&mut self, holds: impl Fn() -> bool) {
        while !holds() {
            if let Some(status) = self.0.try_wait().unwrap() {
                panic!("it ended early ({status}): {}", self.error());
            }
            std::thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success(), "the process is there");
    }

    /// Its exit status and its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let error = self.error();
        (self.0.wait().unwrap().code(), error)
    }

    fn error(&mut self) -> String {
        let mut error = String::new();
        self.0.stderr.take().expect("read once").read_to_string(&mut error).unwrap();
        error
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command with files of at most this size, which is a full disk to whatever writes one.
fn with_small_files(sandbox: &Sandbox, bytes: u64, arguments: &[&str]) -> Output {
    // POSIX shells count blocks of 512 bytes.
    let script = format!("ulimit -f {} && exec \"$0\" \"$@\"", bytes / 512);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(program()).args(arguments).envs([super::BUILT_IN]).current_dir(&sandbox.folder);
    shell.output().unwrap()
}
