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
    let choice = ["--zoo", "mlp", "--batch", "65536", "--host-memory", "256MiB"];
    let (document, said) = plan(&sandbox, &[&choice[..], &["--no-calibrate"]].concat());
    assert_eq!((&document["predicted_by"], said.as_str()), (&Value::from("built-in rates"), ""));
    let small = ["--zoo", "mlp", "--batch", "16384", "--host-memory", "48MiB"];
    let (document, said) = plan(&sandbox, &small);
    assert_eq!(document["predicted_by"], "built-in rates");
    assert!(said.contains("measuring cpu would take") && said.contains("of the host's memory, where there is 48.0 MiB"), "{said}");
    assert!(!sandbox.path("cache").exists(), "nothing was measured yet");
    let (document, said) = plan(&sandbox, &choice);
    assert_eq!(document["predicted_by"], "measured speeds", "{said}");
    assert!(said.starts_with("measuring the speed of cpu: once"), "{said}");
    // What is stored serves all budgets.
    assert_eq!(plan(&sandbox, &small).0["predicted_by"], "measured speeds");
}
