//! `plimsoll devices`: where one can compute, and what is missing for more.

use crate::Command;
use crate::output::{print, say};
use anyhow::Result;
use clap::Args;
use plimsoll::{Convolutions, CpuDevice, Probe, convolutions, describe, probe, system};
use serde_json::{Value, json};
use std::process::ExitCode;

/// List devices and the libraries found
#[derive(Args)]
pub struct Devices {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Command for Devices {
    const NAME: &'static str = "devices";

    fn run(&self) -> Result<ExitCode> {
        if self.json {
            print(&json()?)?;
        } else {
            say(&text()?)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}

/// The devices as text.
fn text() -> plimsoll::Result<String> {
    let cpu = CpuDevice::new(system::cores())?;
    let mut lines = vec![format!("cpu     {} · {} of {} available", describe(&cpu), system::available_memory(), system::total_memory())];
    lines.extend(cuda_lines(&probe(), convolutions().unwrap_or_default()));
    Ok(lines.join("\n") + "\n")
}

fn cuda_lines(probe: &Probe, convolutions: Convolutions) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for gpu in &probe.gpus {
        let memory = gpu.free.map_or_else(|| gpu.total.to_string(), |free| format!("{free} of {} free", gpu.total));
        lines.push(format!("cuda:{:<2} {} · {memory}", gpu.ordinal, gpu.name));
    }
    if let Some(obstacle) = probe.obstacle() {
        lines.push(format!("no GPU: {obstacle}"));
    }
    for library in &probe.libraries {
        let state = if library.found { "found".to_string() } else { format!("missing: {}", library.without) };
        lines.push(format!("        {:<12} {state}", library.name));
    }
    match convolutions {
        Convolutions::Auto => {}
        Convolutions::Generated => {
            lines.push("        convolutions run in generated kernels only (PLIMSOLL_CONVOLUTIONS=generated)".to_string())
        }
        Convolutions::Libraries => {
            lines.push("        convolutions run in libraries wherever they can (PLIMSOLL_CONVOLUTIONS=libraries)".to_string())
        }
    }
    lines
}

/// As one JSON document.
fn json() -> plimsoll::Result<Value> {
    let (cpu, probe) = (CpuDevice::new(system::cores())?, probe());
    let mut devices = vec![json!({
        "name": "cpu",
        "description": describe(&cpu),
        "total_bytes": system::total_memory().0,
        "available_bytes": system::available_memory().0,
    })];
    devices.extend(probe.gpus.iter().map(|gpu| {
        json!({
            "name": format!("cuda:{}", gpu.ordinal),
            "description": gpu.name,
            "total_bytes": gpu.total.0,
            "available_bytes": gpu.free.map(|free| free.0),
        })
    }));
    let libraries: Vec<Value> =
        probe.libraries.iter().map(|library| json!({ "name": library.name, "found": library.found, "without": library.without })).collect();
    let name = match convolutions().unwrap_or_default() {
        Convolutions::Auto => "auto",
        Convolutions::Generated => "generated",
        Convolutions::Libraries => "libraries",
    };
    Ok(json!({ "devices": devices, "cuda": { "libraries": libraries, "convolutions": name, "obstacle": probe.obstacle() } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::{Bytes, Found, Gpu};

    #[test]
    fn gpus_and_what_is_missing_are_listed() {
        let library = |name, found| Found { name, found, without: "matrix products run in plain generated kernels" };
        let gpu = Gpu { ordinal: 0, name: "NVIDIA H200".to_string(), total: Bytes::gib(139), free: Some(Bytes::gib(138)) };
        let libraries = vec![library("CUDA driver", true), library("NVRTC", true), library("cuBLASLt", false)];
        let found = Probe { libraries, gpus: vec![gpu], driver_error: None };
        assert_eq!(
            cuda_lines(&found, Convolutions::Auto),
            [
                "cuda:0  NVIDIA H200 · 138 GiB of 139 GiB free",
                "        CUDA driver  found",
                "        NVRTC        found",
                "        cuBLASLt     missing: matrix products run in plain generated kernels",
            ]
        );
        assert!(cuda_lines(&found, Convolutions::Generated)[4].contains("PLIMSOLL_CONVOLUTIONS=generated"));
        let none = Probe { libraries: vec![library("CUDA driver", false)], gpus: vec![], driver_error: None };
        assert_eq!(
            cuda_lines(&none, Convolutions::Auto)[0],
            "no GPU: there is no CUDA driver on this machine (libcuda was not found); compute with `--device cpu`"
        );
    }
}
