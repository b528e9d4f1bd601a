//! Measured bandwidths between host and device, and to and from files.

use crate::system::Running;
use plimsoll_core::Bytes;
use plimsoll_core::device::{Device, Memory};
use plimsoll_core::plan::CopyRate;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes per transfer.
const CHUNK: usize = 8 << 20;

/// Repetitions; the fastest counts.
const ROUNDS: usize = 3;

/// No repetition begins after this.
const MAX_TIME: Duration = Duration::from_millis(80);

/// Bytes per second; none if not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidths {
    /// From the host's memory to the device's; from pinned memory if the device offloads there.
    pub to_device: Option<f64>,
    /// From the device's memory to the host's.
    pub to_host: Option<f64>,
    /// To a file, including the sync to disk.
    pub to_file: Option<f64>,
    /// From a file that was just written, so mostly from the page cache.
    pub from_file: Option<f64>,
    /// CPU seconds per byte written to or read from a file.
    #[serde(default)]
    pub file_work: Option<f64>,
}

impl Bandwidths {
    /// Between a device and pinned host memory: device to host, host to device.
    pub(crate) fn pinned((to_host, to_device): (f64, f64)) -> Bandwidths {
        Bandwidths { to_device: Some(to_device.round()), to_host: Some(to_host.round()), ..Bandwidths::default() }
    }

    /// The cost of offloading: to a file on the CPU, to pinned memory on other devices. The device's own estimate where
    /// nothing was measured.
    pub(crate) fn offload(&self, device: &dyn Device) -> CopyRate {
        let known = device.capabilities().copy_rate;
        let (measured, work) = if device.capabilities().shares_host_memory {
            // As much is written as read, one after the other. Copying takes CPU time from the computing threads.
            (self.to_file.zip(self.from_file).map(|(to, from)| 2.0 / (1.0 / to + 1.0 / from)), self.file_work)
        } else {
            (self.to_host.zip(self.to_device).map(|(to, from)| to.min(from)), None)
        };
        // The measurement hits the CPU caches, which a step's tensors do not: never assume less than the known cost.
        CopyRate {
            bytes_per_s: measured.unwrap_or(known.bytes_per_s),
            compute_s_per_byte: work.unwrap_or(0.0).max(known.compute_s_per_byte),
            ..known
        }
    }

    /// Measures all bandwidths; those of files with a temporary file in the folder, which is created if needed.
    /// The memory is overwritten with the numbers.
    pub(super) fn measure(memory: &mut dyn Memory, numbers: &[u8], folder: Option<&Path>) -> Bandwidths {
        let mut bytes = numbers[..CHUNK.min(memory.size().get()).min(numbers.len())].to_vec();
        let to_device = fastest(bytes.len(), || memory.write(Bytes::ZERO, &bytes).ok()).map(|(rate, _)| rate);
        let to_host = fastest(bytes.len(), || memory.read(Bytes::ZERO, &mut bytes).ok()).map(|(rate, _)| rate);
        let (mut to_file, mut from_file, mut file_work) = (None, None, None);
        if let Some(path) = folder.map(|folder| folder.join(format!("transfer-{}.tmp", std::process::id()))) {
            let made = path.parent().map(fs::create_dir_all);
            if matches!(made, Some(Ok(()))) {
                let write = || File::create(&path).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data())).ok();
                let worked = Running::of_this_thread();
                let before = worked.so_far();
                let written = fastest(bytes.len(), write);
                let read = fastest(bytes.len(), || File::open(&path).and_then(|mut file| file.read_exact(&mut bytes)).ok());
                let seconds = worked.so_far().saturating_sub(before).as_secs_f64();
                if let (Some((to, writes)), Some((from, reads))) = (written, read) {
                    (to_file, from_file) = (Some(to), Some(from));
                    file_work = (seconds > 0.0).then(|| seconds / ((writes + reads) * bytes.len()) as f64);
                }
                let _ = fs::remove_file(&path);
            }
        }
        Bandwidths { to_device, to_host, to_file, from_file, file_work }
    }
}

/// Bytes per second of the fastest repetition, and how many there were; none if one failed. A slow disk is not asked
/// twice.
fn fastest(bytes: usize, mut move_them: impl FnMut() -> Option<()>) -> Option<(f64, usize)> {
    let (mut least, mut rounds) = (f64::INFINITY, 0);
    let begin = Instant::now();
    while rounds == 0 || (rounds < ROUNDS && begin.elapsed() < MAX_TIME) {
        let start = Instant::now();
        move_them()?;
        least = least.min(start.elapsed().as_secs_f64());
        rounds += 1;
    }
    Some(((bytes as f64 / least).round(), rounds))
}
