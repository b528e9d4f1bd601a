//! Runs a command within a hard memory limit of the operating system: a control group where possible, else a limit on
//! private memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A control group with a memory limit, removed when dropped.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Creates one in cgroup v1 or v2, if permitted.
    pub fn new(name: &str, bytes: u64) -> Option<Group> {
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        roots.iter().find_map(|(root, file)| {
            let path = Path::new(root).join(format!("plimsoll-test-{}-{name}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Group { path };
            let limited = group.path.join(file).exists() && fs::write(group.path.join(file), bytes.to_string()).is_ok();
            // Disable swap to make the limit hard, where swap is accounted.
            let _ = fs::write(group.path.join("memory.swap.max"), "0");
            limited.then_some(group)
        })
    }
}

#[allow(dead_code, reason = "a benchmark only runs commands")]
impl Group {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Memory usage in bytes.
    pub fn usage(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok();
        read("memory.usage_in_bytes").or_else(|| read("memory.current")).unwrap_or(0)
    }

    /// Kills its processes.
    pub fn end_all(&self) {
        let listed = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        let _ = Command::new("kill").args(listed.lines()).status();
    }

    /// Runs a command in it.
    pub fn run(&self, program: &Path, arguments: &[&str], folder: &Path, variables: &[(&str, &str)]) -> Output {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.path.display());
        run_script(&script, program, arguments, folder, variables)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Runs the command with a hard memory limit of `bytes`.
pub fn run_within(bytes: u64, name: &str, program: &Path, arguments: &[&str], folder: &Path, variables: &[(&str, &str)]) -> Output {
    match Group::new(name, bytes) {
        Some(group) => group.run(program, arguments, folder, variables),
        None => run_script(&format!("ulimit -d {} && exec \"$0\" \"$@\"", bytes >> 10), program, arguments, folder, variables),
    }
}

fn run_script(script: &str, program: &Path, arguments: &[&str], folder: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(program).args(arguments).envs(variables.iter().copied()).current_dir(folder);
    command.output().expect("there is a shell")
}
