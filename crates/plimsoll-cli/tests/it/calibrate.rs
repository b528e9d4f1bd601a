//! Calibration: once per machine, saved in the user's cache folder, skipped on request.

use super::{Sandbox, program};
use serde_json::Value;
use std::process::Command;

/// Plans with the sandbox as the user's cache folder; returns the plan and standard error.
fn plan(sandbox: &Sandbox, arguments: &[&str]) -> (Value, String) {
    let mut command = Command::new(program());
    command.args(["plan", "--threads", "1", "--json"]).args(arguments).current_dir(&sandbox.folder);
    let output = command.env("XDG_CACHE_HOME", sandbox.path("cache")).env_remove("PLIMSOLL_NO_CALIBRATE").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

#[test]
fn calibration_runs_once_unless_disabled_or_too_large() {
    let sandbox = Sandbox::new("calibrate");
    let (document, said) = plan(&sandbox, &["--no-calibrate"]);
    assert_eq!((&document["predicted_by"], said.as_str()), (&Value::from("built-in rates"), ""));
    let (document, said) = plan(&sandbox, &["--host-memory", "48MiB"]);
    assert_eq!(document["predicted_by"], "built-in rates");
    assert!(said.contains("measuring cpu would take") && said.contains("of the host's memory, where there is 48.0 MiB"), "{said}");
    assert!(!sandbox.path("cache").exists(), "nothing was measured yet");
    let (document, said) = plan(&sandbox, &[]);
    assert_eq!(document["predicted_by"], "measured speeds", "{said}");
    assert!(said.starts_with("measuring cpu once"), "{said}");
    let kept: Vec<_> = std::fs::read_dir(sandbox.path("cache/plimsoll/speeds")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let (again, said) = plan(&sandbox, &[]);
    assert_eq!((&again["predicted_step_s"], said.as_str()), (&document["predicted_step_s"], ""), "what is kept stays as it is");
    // A truncated file counts as none.
    std::fs::write(&kept[0], "{").unwrap();
    assert_eq!(plan(&sandbox, &["--host-memory", "48MiB"]).0["predicted_by"], "built-in rates");
}
