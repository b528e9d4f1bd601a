//! The pages of the program file: code and constants, which the system maps and can read again at any time.

#![allow(unsafe_code, reason = "gives the system advice about pages of the program file")]

use super::Bytes;
use super::heap::give_back_unused_memory;
use std::sync::OnceLock;

/// Size of the code and constants of the program file, which become resident as they are used. Zero where that is
/// unknown.
pub fn program_pages() -> Bytes {
    let (start, end) = extent();
    Bytes(end.saturating_sub(start) as u64)
}

/// Makes these pages non-resident; the next use of a page maps it again, from the page cache. What only planning needed
/// then no longer counts towards the resident memory of a run.
pub fn give_back_program_pages() {
    if let Some(windows) = fault_windows() {
        give_back(windows.program);
    }
}

/// Returns [unused memory](give_back_unused_memory) and pages of code, which the phase of the program that has ended
/// needed.
pub fn give_back_memory_of_phase() {
    give_back_unused_memory();
    give_back_program_pages();
}

/// Mapped files of which a page fault makes a small part resident.
///
/// Linux maps up to 64 KiB around the page that was accessed, since 6.18 even the whole large folio of the page cache,
/// but never beyond the mapping. Unless mappings are small, the resident size of the same run depends on how the
/// program file got into the page cache: between 5 and 11 MiB for the command.
pub struct FaultWindows {
    /// Headers, constants and code of the program.
    program: (usize, usize),
    /// Code of the libraries that were loaded with the program.
    pub libraries: Bytes,
}

/// On the first call splits the mappings of the program and its libraries into windows. `None` where the system does
/// not allow that.
pub fn fault_windows() -> Option<&'static FaultWindows> {
    static WINDOWS: OnceLock<Option<FaultWindows>> = OnceLock::new();
    WINDOWS.get_or_init(split_mappings).as_ref()
}

fn split_mappings() -> Option<FaultWindows> {
    const SMALLEST: usize = 8 << 10;
    // A process has 65,530 mappings unless the system is configured otherwise.
    const MOST: usize = 4096;
    const LARGEST_LIBRARY: usize = 8 << 20;
    let (start, end) = extent();
    let size = (end.saturating_sub(start) / MOST).next_multiple_of(SMALLEST).max(SMALLEST);
    let program = (start, start + end.saturating_sub(start) / size * size);
    if start >= end || !split(program, size) {
        return None;
    }
    // Before the code below becomes resident, too.
    give_back(program);
    let mut libraries = 0;
    for code in library_code().into_iter().filter(|(start, end)| end - start <= LARGEST_LIBRARY) {
        if split(code, SMALLEST) {
            libraries += code.1 - code.0;
            give_back(code);
        }
    }
    Some(FaultWindows { program, libraries: Bytes(libraries as u64) })
}

fn give_back((start, end): (usize, usize)) {
    // SAFETY: code of a library, or headers, constants and code of the program, which the linker puts before its
    // relocated data: private mappings of files that nothing writes to. Their pages are read again from the file when
    // they are accessed.
    unsafe { advise(start, end - start, DONT_NEED) };
}

/// Mappings with the same flags would be merged again: every second window is left out of core dumps, which have no use
/// for code.
fn split((start, end): (usize, usize), size: usize) -> bool {
    let odd = (start..end).step_by(size).skip(1).step_by(2);
    // SAFETY: the flag is about core dumps only.
    odd.into_iter().all(|at| unsafe { advise(at, size.min(end - at), DONT_DUMP) })
}

/// Where the code of libraries is mapped, as the dynamic loader says.
fn library_code() -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    {
        use std::ffi::{c_char, c_int, c_void};

        /// The beginning of `dl_phdr_info`.
        #[repr(C)]
        struct Object {
            base: usize,
            name: *const c_char,
            segments: *const Segment,
            count: u16,
        }

        /// `Elf64_Phdr`.
        #[repr(C)]
        struct Segment {
            kind: u32,
            flags: u32,
            _offset: u64,
            address: u64,
            _physical: u64,
            _in_file: u64,
            in_memory: u64,
            _alignment: u64,
        }

        unsafe extern "C" {
            fn dl_iterate_phdr(visit: unsafe extern "C" fn(*const Object, usize, *mut c_void) -> c_int, found: *mut c_void) -> c_int;
        }

        unsafe extern "C" fn visit(object: *const Object, _: usize, found: *mut c_void) -> c_int {
            const LOADED: u32 = 1;
            const EXECUTABLE: u32 = 1;
            const WRITABLE: u32 = 2;
            const PAGE: usize = 4096;
            // SAFETY: the loader passes an object that lives during the call, with a name and `count` segments, and the
            // pointer it was given.
            let (object, found) = unsafe { (&*object, &mut *found.cast::<Vec<(usize, usize)>>()) };
            // The program has no name, and the kernel's own object has no path.
            // SAFETY: a C string, empty at least.
            if object.name.is_null() || unsafe { *object.name } != b'/' as c_char {
                return 0;
            }
            // SAFETY: see above.
            let segments = unsafe { std::slice::from_raw_parts(object.segments, usize::from(object.count)) };
            for segment in segments.iter().filter(|segment| segment.kind == LOADED && segment.flags & (EXECUTABLE | WRITABLE) == EXECUTABLE)
            {
                let start = object.base + segment.address as usize;
                found.push((start / PAGE * PAGE, (start + segment.in_memory as usize).next_multiple_of(PAGE)));
            }
            0
        }

        // SAFETY: `visit` has the type that the function calls, and the list lives during the call.
        unsafe { dl_iterate_phdr(visit, (&raw mut found).cast()) };
    }
    found
}

const DONT_NEED: i32 = 4;
const DONT_DUMP: i32 = 16;

/// Whether the system took the advice.
///
/// # Safety
/// The advice must leave the contents of these pages as they are.
unsafe fn advise(start: usize, length: usize, advice: i32) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, length: usize, advice: i32) -> i32;
        }
        // SAFETY: see above; the system checks the addresses.
        unsafe { madvise(start as *mut u8, length, advice) == 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = (start, length, advice);
        false
    }
}

/// Where the program file's headers, constants and code are mapped.
fn extent() -> (usize, usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            static __executable_start: u8;
            static etext: u8;
        }
        // Only their addresses are taken: the linker defines these symbols and gives them no value.
        (&raw const __executable_start as usize, &raw const etext as usize)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_after_its_pages_were_given_back() {
        let here = code_runs_on_after_its_pages_were_given_back as fn() as usize;
        let (start, end) = extent();
        assert!((start..end).contains(&here) && program_pages() > Bytes::kib(256));
        give_back_program_pages();
        assert_eq!(format!("{:.3} {}", 1.0 / 3.0, [1, 2, 3].iter().sum::<i32>()), "0.333 6");
    }

    #[test]
    fn the_program_and_its_libraries_are_split_into_windows() {
        let windows = fault_windows().expect("Linux splits mappings");
        let (start, end) = windows.program;
        assert!(start < end && windows.libraries > Bytes::kib(256), "the C library is mapped");
    }
}
