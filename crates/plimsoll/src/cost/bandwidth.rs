//! How fast bytes move: between host and device, and to and from files.

use crate::system::Running;
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
pub struct Bandwidths {
    /// From the host's memory to the device's; from pinned memory, where the device keeps what it does not need for a while there.
    pub to_device: Option<f64>,
    /// And back.
    pub to_host: Option<f64>,
    /// Into a file, until it is on the disk.
    pub to_file: Option<f64>,
    /// Out of a file that was written just before, so from the system's memory where it has room.
    pub from_file: Option<f64>,
    /// Seconds of a processor that a byte takes on its way into a file or out of it.
    #[serde(default)]
    pub file_work: Option<f64>,
}

impl Bandwidths {
    /// Between a device and pinned memory of the host: into that, and out of it.
    pub(crate) fn pinned((to_host, to_device): (f64, f64)) -> Bandwidths {
        Bandwidths { to_device: Some(to_device.round()), to_host: Some(to_host.round()), ..Bandwidths::default() }
    }

    /// How fast what a device does not need for a while goes and comes back: to a file from the CPU, to pinned memory from others. As the device says it where
    /// that was not measured.
    pub(crate) fn offload(&self, device: &dyn Device) -> CopyRate {
        let known = device.copy_rate();
        let (measured, work) = if device.shares_host_memory() {
            // One after the other, as much is written as is read. Whoever copies takes a processor from those that compute, and they wait for each other.
            (self.to_file.zip(self.from_file).map(|(to, from)| 2.0 / (1.0 / to + 1.0 / from)), self.file_work)
        } else {
            (self.to_host.zip(self.to_device).map(|(to, from)| to.min(from)), None)
        };
        // What is measured lies in the processor's caches, where a step's tensors do not: it is never taken to be less than is known.
        CopyRate {
            bytes_per_s: measured.unwrap_or(known.bytes_per_s),
            compute_s_per_byte: work.unwrap_or(0.0).max(known.compute_s_per_byte),
            ..known
        }
    }

    /// Measures all of them; files in a folder that is made if need be, and left as it was.
    pub(super) fn measure(memory: &mut dyn Memory, folder: Option<&Path>) -> Bandwidths {
        let mut bytes = vec![1; PIECE.min(memory.size().get())];
        let to_device = fastest(bytes.len(), || memory.write(Bytes::ZERO, &bytes).ok());
        let to_host = fastest(bytes.len(), || memory.read(Bytes::ZERO, &mut bytes).ok());
        let (mut to_file, mut from_file, mut file_work) = (None, None, None);
        if let Some(path) = folder.map(|folder| folder.join(format!("transfer-{}.tmp", std::process::id()))) {
            let made = path.parent().map(fs::create_dir_all);
            if matches!(made, Some(Ok(()))) {
                let write = || File::create(&path).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data())).ok();
                let worked = Running::of_this_thread();
                let before = worked.so_far();
                to_file = fastest(bytes.len(), write);
                from_file = fastest(bytes.len(), || File::open(&path).and_then(|mut file| file.read_exact(&mut bytes)).ok());
                let seconds = worked.so_far().saturating_sub(before).as_secs_f64();
                file_work =
                    (to_file.is_some() && from_file.is_some() && seconds > 0.0).then(|| seconds / (2 * ROUNDS * bytes.len()) as f64);
                let _ = fs::remove_file(&path);
            }
        }
        Bandwidths { to_device, to_host, to_file, from_file, file_work }
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
