//! Memory as the operating system reports it: the default budget, the footprint of the process, and its peak.

use plimsoll_core::Bytes;
use plimsoll_core::budget::{fault_windows, program_pages};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

/// Untracked heap: names, the ledger itself, the C library, and the gaps that planning leaves between blocks that are
/// still in use.
const HEAP_RESERVE: Bytes = Bytes::kib(768);

/// Percent of the program file's pages that are not resident at once: code of other phases, commands, formats and
/// processors, and tables for panics. Pages are given back between the phases of a run: arguments, configuration, data,
/// graphs, planning, loading, first batch, checkpoints.
const UNUSED: u64 = 95;

/// The same for the code of libraries that were loaded with the program.
const UNUSED_OF_LIBRARIES: u64 = 75;

/// The page size that limits of control groups are rounded down to.
const PAGE: u64 = 4096;

/// The main thread's stack as far as it is touched.
const MAIN_STACK: Bytes = Bytes::kib(256);

/// The memory this process can have in all: the limit of its control group minus what others in the group hold, or its
/// resident memory plus what the system has available, whichever is less.
pub fn available_memory() -> Bytes {
    available_to_rank(1)
}

/// The same where `ranks` processes like this one share the machine, and every control group in which this one is not
/// alone.
pub(crate) fn available_to_rank(ranks: u64) -> Bytes {
    let available = Bytes(meminfo("MemAvailable:").unwrap_or(Bytes::gib(1)).0 / ranks) + resident();
    match free_in_control_group(ranks) {
        Some(free) => free.min(available),
        None => available,
    }
}

/// The machine's memory.
pub fn total_memory() -> Bytes {
    meminfo("MemTotal:").unwrap_or_default()
}

/// The cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All processors of this machine, whichever this process may use.
pub(crate) fn processors() -> usize {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let range = |range: &str| -> Option<usize> {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(to.parse::<usize>().ok()?.checked_sub(from.parse().ok()?)? + 1)
    };
    let online: Option<usize> = listed.trim().split(',').map(range).sum();
    online.unwrap_or(0).max(cores())
}

/// A number that processes of one machine share, and others do not.
pub(crate) fn machine_id() -> u64 {
    hash_of(&fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

/// A number that differs if bytes do (FNV-1a).
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The peak resident memory of this process.
pub fn peak_resident() -> Bytes {
    status("VmHWM:").unwrap_or_default()
}

/// The resident memory of this process now.
pub fn resident() -> Bytes {
    status("VmRSS:").unwrap_or_default()
}

/// The footprint of the process before it has done anything: code and data, libraries, main stack and untracked heap.
/// The same for every run of the same program, so that a plan made in one process holds in the next.
/// Read once: libraries that a device loads later are part of the device's footprint.
pub fn process_footprint() -> Bytes {
    static FOOTPRINT: OnceLock<Bytes> = OnceLock::new();
    *FOOTPRINT.get_or_init(footprint_now)
}

/// The same with the libraries that are loaded now.
pub(crate) fn footprint_now() -> Bytes {
    let unused = match fault_windows() {
        Some(windows) => Bytes(program_pages().0 / 100 * UNUSED + windows.libraries.0 / 100 * UNUSED_OF_LIBRARIES),
        // A page fault can make any part of a file resident.
        None => Bytes(0),
    };
    let mapped = File::open("/proc/self/maps").map_or(Bytes::mib(16), |maps| mapped_files(BufReader::new(maps)));
    (mapped - unused.min(mapped) + MAIN_STACK + HEAP_RESERVE).align_up(1 << 16)
}

/// Bytes of files mapped into the process; all of them may become resident.
fn mapped_files(maps: impl BufRead) -> Bytes {
    let size = |line: &str| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let mapped = fields.nth(4).is_some_and(|path| path.starts_with('/'));
        let size = u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?;
        mapped.then_some(Bytes(size))
    };
    maps.lines().map_while(Result::ok).filter_map(|line| size(&line)).sum()
}

/// How long threads were runnable while others had their processor. On an idle machine the work of a single thread
/// takes that much less.
pub struct Waiting(Vec<SchedulerStatistics>);

impl Waiting {
    /// Of the thread that asks.
    pub fn of_this_thread() -> Waiting {
        Waiting(vec![SchedulerStatistics::of_this_thread()])
    }

    /// Of all other threads that the process has now.
    pub fn of_other_threads() -> Waiting {
        let own = fs::read_link("/proc/thread-self").ok().and_then(|link| link.file_name().map(|name| name.to_os_string()));
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let others = threads.filter(|thread| Some(thread.file_name()) != own);
        Waiting(others.map(|thread| SchedulerStatistics(File::open(thread.path().join("schedstat")).ok())).collect())
    }

    /// How often each thread was given a processor.
    pub(crate) fn timeslices(&self) -> Vec<u64> {
        self.0.iter().map(|thread| thread.field(2)).collect()
    }

    /// In all so far; zero where the system does not tell. Allocates nothing.
    pub fn so_far(&self) -> Duration {
        self.0.iter().map(|thread| Duration::from_nanos(thread.field(1))).sum()
    }
}

/// How long a thread had a processor.
pub(crate) struct Running(SchedulerStatistics);

impl Running {
    /// Of the thread that asks.
    pub fn of_this_thread() -> Running {
        Running(SchedulerStatistics::of_this_thread())
    }

    /// In all so far; zero where the system does not tell.
    pub fn so_far(&self) -> Duration {
        // The system counts when a thread gives up its processor.
        std::thread::sleep(Duration::from_micros(1));
        Duration::from_nanos(self.0.field(0))
    }
}

/// How long the threads of the process had a processor, together.
pub(crate) fn process_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// How long ago this process started, in steps of 10 ms; none where the system does not tell.
pub(crate) fn process_age() -> Option<Duration> {
    let now: f64 = fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()?;
    let started = start_ticks(&fs::read_to_string("/proc/self/stat").ok()?)? as f64 / TICKS;
    Duration::try_from_secs_f64(now - started).ok()
}

/// Ticks per second in which Linux states when processes started, whatever its own clock.
const TICKS: f64 = 100.0;

/// When a process started, in ticks since the system did. The name of the program, in parentheses, may have spaces.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// What the scheduler says of a thread.
struct SchedulerStatistics(Option<File>);

impl SchedulerStatistics {
    fn of_this_thread() -> SchedulerStatistics {
        SchedulerStatistics(File::open("/proc/thread-self/schedstat").ok())
    }

    /// One of its fields: nanoseconds running, nanoseconds waiting, timeslices. Allocates nothing.
    fn field(&self, field: usize) -> u64 {
        let mut text = [0; 96];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..read]).unwrap_or_default();
        text.split_whitespace().nth(field).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Reads into a buffer on the stack: asked for during a run, it must not allocate.
fn status(field: &str) -> Option<Bytes> {
    let mut text = [0; 4096];
    let length = File::open("/proc/self/status").ok()?.read(&mut text).ok()?;
    kilobytes(std::str::from_utf8(&text[..length]).ok()?, field)
}

fn meminfo(field: &str) -> Option<Bytes> {
    kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, field)
}

fn kilobytes(text: &str, field: &str) -> Option<Bytes> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok().map(Bytes::kib)
}

/// What this process can have in its control group and its parents, in either version of the interface; `ranks` share
/// those in which it is not alone.
fn free_in_control_group(ranks: u64) -> Option<Bytes> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |path: &str| fs::read_to_string(path).ok();
    let kernel = groups.lines().filter_map(|line| own_kernel_memory(line, std::process::id(), &read)).max();
    let own = status("RssAnon:").unwrap_or_default() + kernel.unwrap_or_default();
    groups.lines().filter_map(|line| control_group_free(line, own, kernel.is_some(), ranks, &read)).min()
}

/// The names of a version's files: where groups are, the limit, and what is in use.
struct Interface {
    root: &'static str,
    limit: &'static str,
    /// The file with the kernel's memory, where the statistics have none.
    kernel: &'static str,
    /// What holds memory that cannot be given up, in the statistics.
    held: &'static [&'static str],
}

/// Kernel memory (page tables, stacks, open files) of this process, for one line of `/proc/self/cgroup`, where it is
/// alone in its group; otherwise nobody tells whose it is.
fn own_kernel_memory(line: &str, own: u32, read: &dyn Fn(&str) -> Option<String>) -> Option<Bytes> {
    let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
    let group = group.trim_end_matches('/');
    let (root, old) = match controllers {
        "" => ("/sys/fs/cgroup", false),
        names if names.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", true),
        _ => return None,
    };
    let processes = read(&format!("{root}{group}/cgroup.procs"))?;
    if processes.lines().ne([own.to_string()]) {
        return None;
    }
    if old {
        return read(&format!("{root}{group}/memory.kmem.usage_in_bytes"))?.trim().parse().ok().map(Bytes);
    }
    let stat = read(&format!("{root}{group}/memory.stat"))?;
    stat.lines().find_map(|line| line.strip_prefix("kernel ")?.trim().parse().ok()).map(Bytes)
}

/// What there is for a process that holds `own` bytes itself and may be alone in its group, for one line of
/// `/proc/self/cgroup`.
fn control_group_free(line: &str, own: Bytes, alone: bool, ranks: u64, read: &dyn Fn(&str) -> Option<String>) -> Option<Bytes> {
    let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
    let interface = match controllers {
        "" => Interface { root: "/sys/fs/cgroup", limit: "memory.max", kernel: "", held: &["anon ", "shmem ", "kernel "] },
        names if names.split(',').any(|name| name == "memory") => Interface {
            root: "/sys/fs/cgroup/memory",
            limit: "memory.limit_in_bytes",
            kernel: "memory.kmem.usage_in_bytes",
            held: &["total_rss ", "total_shmem "],
        },
        _ => return None,
    };
    let innermost = group.trim_end_matches('/');
    let mut group = innermost;
    let mut least: Option<u64> = None;
    loop {
        let number = |file: &str| read(&format!("{}{group}/{file}", interface.root)).and_then(|text| text.trim().parse::<u64>().ok());
        // Without a limit the old interface states a number near 2⁶³.
        if let Some(limit) = number(interface.limit).filter(|limit| *limit < 1 << 60) {
            let stat = read(&format!("{}{group}/memory.stat", interface.root)).unwrap_or_default();
            let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or(0);
            // Not the usage: it includes files, which are given up first, and what each processor has charged ahead.
            let held: u64 = interface.held.iter().map(|name| of(name)).sum::<u64>() + number(interface.kernel).unwrap_or(0);
            // Statistics lag behind; alone in its group, a process holds all of it. A limit was rounded down to whole
            // pages.
            let (others, ranks) = if alone && group == innermost { (0, 1) } else { (held.saturating_sub(own.0), ranks) };
            let free = (limit + PAGE - 1).saturating_sub(others) / ranks;
            least = Some(least.map_or(free, |least| least.min(free)));
        }
        let Some(parent) = group.rfind('/') else { break };
        group = &group[..parent];
    }
    least.map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_bound_by_the_smallest_limit_above_it() {
        let files = |path: &str| {
            let text = match path {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/a/memory.max" => "1048576\n",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes" => "2097152\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        let free = |line: &str| control_group_free(line, Bytes::ZERO, false, 1, &files).map(|free| Bytes(free.0 / PAGE * PAGE));
        assert_eq!(free("0::/a/b"), Some(Bytes::mib(1)));
        assert_eq!(free("4:cpu,memory:/job"), Some(Bytes::mib(2)));
        assert_eq!(free("3:cpu:/job"), None);
        assert_eq!(free("0::/other"), None);
    }

    #[test]
    fn what_others_hold_in_a_group_is_not_there() {
        let files = |path: &str| {
            let text = match path {
                "/sys/fs/cgroup/a/memory.max" => "1000000\n",
                "/sys/fs/cgroup/a/memory.stat" => "anon 450000\nkernel 40000\nshmem 10000\nactive_file 50000\ninactive_file 150000\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        // Half a million is held, a fifth of that by this process; files are given up for it.
        let free = |own: u64, alone: bool| control_group_free("0::/a", Bytes(own), alone, 1, &files);
        assert_eq!(free(100_000, false), Some(Bytes(600_000 + PAGE - 1)));
        assert_eq!(free(900_000, false), Some(Bytes(1_000_000 + PAGE - 1)), "never more than the limit");
        assert_eq!(free(100_000, true), Some(Bytes(1_000_000 + PAGE - 1)), "statistics lag behind");
        // Ranks share what they are in together.
        let of_rank = |alone: bool| control_group_free("0::/a", Bytes(100_000), alone, 3, &files);
        assert_eq!(of_rank(false), Some(Bytes((600_000 + PAGE - 1) / 3)));
        assert_eq!(of_rank(true), Some(Bytes(1_000_000 + PAGE - 1)));
    }

    #[test]
    fn kernel_memory_is_own_in_a_group_of_one_process() {
        let files = |path: &str| {
            let text = match path {
                "/sys/fs/cgroup/alone/cgroup.procs" | "/sys/fs/cgroup/memory/alone/cgroup.procs" => "7\n",
                "/sys/fs/cgroup/shared/cgroup.procs" => "7\n8\n",
                "/sys/fs/cgroup/alone/memory.stat" => "anon 500000\nkernel 40960\nkernel_stack 16384\n",
                "/sys/fs/cgroup/memory/alone/memory.kmem.usage_in_bytes" => "8192\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        assert_eq!(own_kernel_memory("0::/alone", 7, &files), Some(Bytes(40960)));
        assert_eq!(own_kernel_memory("4:cpu,memory:/alone", 7, &files), Some(Bytes(8192)));
        assert_eq!(own_kernel_memory("0::/shared", 7, &files), None);
        assert_eq!(own_kernel_memory("0::/alone", 8, &files), None);
    }

    #[test]
    fn a_process_knows_its_age() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 8349 4000 500";
        assert_eq!((start_ticks(stat), start_ticks("7 (a")), (Some(8349), None));
        let age = process_age().unwrap();
        assert!(age < Duration::from_secs(24 * 3600) && process_age().unwrap() >= age, "{age:?}");
    }

    #[test]
    fn a_page_fault_in_code_makes_one_window_resident() {
        fault_windows().expect("Linux splits mappings");
        let program = std::env::current_exe().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = maps.lines().filter(|line| line.ends_with(program.to_str().unwrap())).count() as u64;
        assert!(mappings >= program_pages().0 / (64 << 10), "{mappings} mappings of {}", program_pages());
    }

    #[test]
    fn mapped_files_leave_out_heap_and_stack() {
        let maps = "\
5000-8000 r-xp 00000000 08:01 123 /usr/bin/plimsoll
8000-9000 rw-p 00000000 00:00 0
9000-a000 rw-p 00000000 00:00 0 [heap]
a000-b000 r--p 00000000 08:01 77 /lib/libc.so.6
";
        assert_eq!(mapped_files(maps.as_bytes()), Bytes(0x4000));
    }

    #[test]
    fn work_of_other_threads_is_counted() {
        let (before, others) = (process_cpu_time(), Waiting::of_other_threads().timeslices().len());
        let (begin, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                begin.wait();
                end.wait();
                (0..1_000_000u64).fold(0, |sum: u64, i| std::hint::black_box(sum ^ i))
            });
            begin.wait();
            // Other tests start and end threads of this process too.
            assert!(others == 0 || !Waiting::of_other_threads().timeslices().is_empty());
            end.wait();
            worker.join().unwrap()
        });
        assert!(process_cpu_time() > before);
    }

    #[test]
    fn this_process_fits_its_footprint_and_has_a_peak() {
        assert!(peak_resident() >= resident() || peak_resident() > Bytes::ZERO);
        assert!(available_memory() > Bytes::ZERO && process_footprint() > HEAP_RESERVE);
    }
}
