//! How fast bytes move: between host and device, and to and from files.

use plimsoll_core::Bytes;
use plimsoll_core::device::{CopyRate, Device, Memory};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// What is moved at a time.
const PIECE: usize = 8 << 20;

/// How often; the fastest counts.
const ROUNDS: usize = 3;

/// Bytes a second; none if that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfers {
    /// From the host's memory to the device's; from pinned memory, where the device keeps what it does not need for a while there.
    pub to_device: Option<f64>,
    /// And back.
    pub to_host: Option<f64>,
    /// Into a file, until it is on the disk.
    pub to_file: Option<f64>,
    /// Out of a file that was written just before, so from the system's memory where it has room.
    pub from_file: Option<f64>,
}

impl Transfers {
    /// Between a device and pinned memory of the host: into that, and out of it.
    pub(super) fn pinned((to_host, to_device): (f64, f64)) -> Transfers {
        Transfers { to_device: Some(to_device.round()), to_host: Some(to_host.round()), ..Transfers::default() }
    }

    /// How fast what a device does not need for a while goes and comes back: to a file from the CPU, to pinned memory from others. As the device says it where
    /// that was not measured.
    pub(crate) fn offload(&self, device: &dyn Device) -> CopyRate {
        let known = device.copy_rate();
        let measured = if device.shares_host_memory() {
            // One after the other, as much is written as is read.
            self.to_file.zip(self.from_file).map(|(to, from)| 2.0 / (1.0 / to + 1.0 / from))
        } else {
            self.to_host.zip(self.to_device).map(|(to, from)| to.min(from))
        };
        CopyRate { bytes_per_s: measured.unwrap_or(known.bytes_per_s), ..known }
    }

    /// Measures all four; files in a folder that is made if need be, and left as it was.
    pub(super) fn measure(memory: &mut dyn Memory, folder: Option<&Path>) -> Transfers {
        let mut bytes = vec![1; PIECE.min(memory.size().get())];
        let to_device = fastest(bytes.len(), || memory.write(Bytes::ZERO, &bytes).ok());
        let to_host = fastest(bytes.len(), || memory.read(Bytes::ZERO, &mut bytes).ok());
        let (mut to_file, mut from_file) = (None, None);
        if let Some(path) = folder.map(|folder| folder.join(format!("transfer-{}.tmp", std::process::id()))) {
            let made = path.parent().map(fs::create_dir_all);
            if matches!(made, Some(Ok(()))) {
                let write = || File::create(&path).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data())).ok();
                to_file = fastest(bytes.len(), write);
                from_file = fastest(bytes.len(), || File::open(&path).and_then(|mut file| file.read_exact(&mut bytes)).ok());
                let _ = fs::remove_file(&path);
            }
        }
        Transfers { to_device, to_host, to_file, from_file }
    }
}

/// Bytes a second of the fastest round; none if one failed.
fn fastest(bytes: usize, mut move_them: impl FnMut() -> Option<()>) -> Option<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        move_them()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Some((bytes as f64 / least).round())
}
