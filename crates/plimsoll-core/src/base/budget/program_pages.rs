//! The pages of the program file: code and constants, which the system maps and can read again at any time.

#![allow(unsafe_code, reason = "gives the system advice about pages of the program file")]

use super::Bytes;

/// Size of the code and constants of the program file, which become resident as they are used. Zero where that is unknown.
pub fn program_pages() -> Bytes {
    let (start, end) = extent();
    Bytes(end.saturating_sub(start) as u64)
}

/// Makes these pages non-resident; the next use of a page maps it again, from the page cache. What only planning needed then no longer counts
/// towards the resident memory of a run.
pub fn give_back_program_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const DONT_NEED: i32 = 4;
        const PAGE: usize = 1 << 16;
        unsafe extern "C" {
            fn madvise(start: *mut u8, length: usize, advice: i32) -> i32;
        }
        let (start, end) = extent();
        // Whole pages of any size that systems use.
        let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first < last {
            // SAFETY: the linker puts headers, constants and code between these symbols, in private mappings of the program file that nothing
            // writes to (relocated data comes after them). Their pages are read again from the file when they are accessed.
            unsafe { madvise(first as *mut u8, last - first, DONT_NEED) };
        }
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
}
