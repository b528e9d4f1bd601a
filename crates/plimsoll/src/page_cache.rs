//! The page cache of files that a run writes and reads again, where a control group limits it.
//!
//! Pages that are on their way to or from the disk count towards the limit of a control group and cannot be given up.
//! Version 1 does not slow down the writers of a group, and a read may be ahead by megabytes, so the kernel may kill a
//! process that has only its files to blame. Version 2 slows writers down, but does not wait for the disk when a
//! process then allocates the rest of its memory. Near the limit, with all that is planned, a run waits for the disk
//! instead.

#![allow(unsafe_code, reason = "advice about the pages of a file, and writing them back to the disk")]

use plimsoll_core::Bytes;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes after which a writer looks at the limit. As much can be on its way to the disk when the kernel looks for
/// memory.
pub(crate) const PIECE: usize = 256 << 10;

/// Bytes read at a time near the limit.
const SMALL_PIECE: usize = 128 << 10;

/// Closer to the limit than this, pages are written back at once, and nothing is read ahead.
const NEAR: u64 = 32 << 20;

/// What the runs of this process take when they have allocated all that was planned.
static PLANNED: AtomicU64 = AtomicU64::new(0);

/// A control group with a limit: its bytes, and the file with the bytes in use.
struct Limit {
    bytes: u64,
    usage: File,
}

/// Called before a run allocates: what is written from now on must leave space for all that is planned.
pub(crate) fn plan(total: Bytes) {
    PLANNED.fetch_max(total.0, Relaxed);
}

/// Called after a part of a file was written: near the limit of a control group, waits until it is on the disk and
/// drops it from the page cache. Allocates nothing after the first call.
pub(crate) fn written(file: &File, start: u64, length: usize) {
    if is_near_limit() {
        write_back(file, start, length as u64);
    }
}

/// Reads a part of a file: near the limit of a control group in small pieces that do not stay in the page cache.
/// Allocates nothing after the first call.
pub(crate) fn read(file: &File, bytes: &mut [u8], start: u64) -> io::Result<()> {
    if !is_near_limit() {
        return file.read_exact_at(bytes, start);
    }
    advise(file, 0, 0, RANDOM);
    let mut at = start;
    for piece in bytes.chunks_mut(SMALL_PIECE) {
        file.read_exact_at(piece, at)?;
        advise(file, at, piece.len() as u64, DONT_NEED);
        at += piece.len() as u64;
    }
    Ok(())
}

fn is_near_limit() -> bool {
    static LIMITS: OnceLock<Vec<Limit>> = OnceLock::new();
    let limits = LIMITS.get_or_init(|| limits(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default()));
    let planned = PLANNED.load(Relaxed);
    limits.iter().any(|limit| usage(&limit.usage).is_some_and(|usage| is_near(usage, planned, limit.bytes)))
}

fn is_near(usage: u64, planned: u64, limit: u64) -> bool {
    usage.max(planned) + NEAR > limit
}

/// The limits of the groups that `/proc/self/cgroup` names, and of those above them.
fn limits(groups: &str) -> Vec<Limit> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let Some((controllers, group)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':')) else { continue };
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let mut group = group.trim_end_matches('/');
        loop {
            let bytes = fs::read_to_string(format!("{root}{group}/{limit}")).ok().and_then(|text| text.trim().parse::<u64>().ok());
            // Without a limit the old interface states a number near 2⁶³.
            if let (Some(bytes), Ok(usage)) = (bytes.filter(|bytes| *bytes < 1 << 60), File::open(format!("{root}{group}/{usage}"))) {
                limits.push(Limit { bytes, usage });
            }
            let Some(parent) = group.rfind('/') else { break };
            group = &group[..parent];
        }
    }
    limits
}

fn usage(file: &File) -> Option<u64> {
    let mut text = [0; 24];
    let length = file.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}

/// Waits until a part of a file is on the disk, and drops it from the page cache.
fn write_back(file: &File, start: u64, length: u64) {
    #[cfg(target_os = "linux")]
    {
        const WAIT_BEFORE_WRITE_AND_AFTER: u32 = 7;
        unsafe extern "C" {
            fn sync_file_range(file: i32, start: i64, length: i64, flags: u32) -> i32;
        }
        // SAFETY: the file is open; only its pages in the cache are concerned. Errors are those of the disk, which
        // syncing the file reports.
        unsafe { sync_file_range(file.as_raw_fd(), start as i64, length as i64, WAIT_BEFORE_WRITE_AND_AFTER) };
    }
    advise(file, start, length, DONT_NEED);
}

/// No reading ahead.
const RANDOM: i32 = 1;
/// The pages are dropped.
const DONT_NEED: i32 = 4;

/// Advice about pages of a file in the cache; a length of zero is all of it.
fn advise(file: &File, start: u64, length: u64, advice: i32) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn posix_fadvise(file: i32, start: i64, length: i64, advice: i32) -> i32;
        }
        // SAFETY: the file is open; only its pages in the cache are concerned.
        unsafe { posix_fadvise(file.as_raw_fd(), start as i64, length as i64, advice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, length, advice);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_was_written_back_is_still_there() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = File::options().read(true).write(true).open(path.path()).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        write_back(&file, 0, 10_000);
        written(&file, 0, 10_000);
        let mut bytes = [0; 10_000];
        read(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 10_000]);
    }

    #[test]
    fn planned_memory_counts_before_it_is_allocated() {
        let mib = |count: u64| count << 20;
        assert!(is_near(mib(40), 0, mib(64)) && !is_near(mib(20), 0, mib(64)));
        // Offloaded values are written before the arena is allocated.
        assert!(is_near(mib(20), mib(60), mib(64)) && !is_near(mib(20), mib(60), mib(128)));
    }

    #[test]
    fn groups_that_are_not_there_have_no_limit() {
        assert!(limits("0::/no/such/group\n4:memory:/no/such/group\n2:cpu:/\nnonsense").iter().all(|limit| limit.bytes < 1 << 60));
    }
}
