//! NCCL, loaded at run time: its functions, and a communicator of the ranks of a job, one per GPU.
//!
//! It is optional for building, planning and running. Collectives take a stream and are recorded in CUDA graphs.

use super::driver::{Context, Stream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// What NCCL identifies a communicator by: made on one rank, and copied to all others.
pub(crate) const ID_BYTES: usize = 128;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

/// `ncclComm_t`.
type Raw = *mut c_void;

/// `ncclSuccess`, and `ncclInProgress` of a communicator that works on something.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// `ncclFloat32`, `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;

/// `ncclStatGpuMemTotal`: device memory of a communicator.
const DEVICE_MEMORY: c_int = 3;

type Gather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Raw, *mut c_void) -> c_int;
type Reduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Raw, *mut c_void) -> c_int;

/// The functions in use. Results are plain integers: a newer version may return unknown ones.
struct Functions {
    version: c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: Option<unsafe extern "C" fn(Raw) -> *const c_char>,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int) -> c_int,
    destroy: unsafe extern "C" fn(Raw) -> c_int,
    abort: unsafe extern "C" fn(Raw) -> c_int,
    async_error: unsafe extern "C" fn(Raw, *mut c_int) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: Reduce,
    reduce_scatter: Reduce,
    all_gather: Gather,
    /// From version 2.29 on.
    memory: Option<unsafe extern "C" fn(Raw, c_int, *mut u64) -> c_int>,
    /// Never unloaded: threads of the library may still run at the end of the process.
    _library: Library,
}

impl Functions {
    /// Converts a result to an error in the library's words.
    fn check(&self, result: c_int, what: &str) -> Result<(), String> {
        match result {
            SUCCESS | IN_PROGRESS => Ok(()),
            failed => Err(format!("{what} failed: {}{}", self.words(failed), self.details())),
        }
    }

    fn words(&self, result: c_int) -> String {
        // SAFETY: accepts any number and returns a string that lives as long as the library.
        unsafe { CStr::from_ptr((self.error_string)(result)) }.to_string_lossy().into_owned()
    }

    /// The library's last message, if it has one.
    fn details(&self) -> String {
        let Some(last_error) = self.last_error else { return String::new() };
        // SAFETY: takes any communicator, none included, and returns a string of the library.
        let text = unsafe {
            let text = last_error(std::ptr::null_mut());
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().trim().to_string() }
        };
        if text.is_empty() { text } else { format!(" ({text})") }
    }
}

/// File names to try.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Minimum supported version: the first whose collectives of several ranks per process are recorded in CUDA graphs.
const OLDEST: c_int = 21_800;

fn functions() -> Result<&'static Functions, &'static str> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Functions, String> {
    let mut tried = Vec::new();
    let open = |name: &str| {
        // SAFETY: opens a library whose constructors only register it.
        unsafe { Library::new(name) }.map_err(|error| tried.push(format!("{name}: {error}"))).ok()
    };
    let Some(library) = NAMES.into_iter().find_map(open) else { return Err(format!("NCCL was not found ({})", tried.join("; "))) };
    let missing = |error: libloading::Error| format!("NCCL lacks a function: {error}");
    // SAFETY: the functions have these types in every version from 2.18 on, which is checked before any other call; the
    // symbols are copied into a value that keeps the library open.
    unsafe {
        let mut version = 0;
        library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0").map_err(missing)?(&mut version);
        if version < OLDEST {
            return Err(format!("NCCL {} is too old; install version 2.18 or a newer one", version_text(version)));
        }
        Ok(Functions {
            version,
            error_string: *library.get(b"ncclGetErrorString\0").map_err(missing)?,
            last_error: library.get(b"ncclGetLastError\0").map(|symbol| *symbol).ok(),
            unique_id: *library.get(b"ncclGetUniqueId\0").map_err(missing)?,
            init_rank: *library.get(b"ncclCommInitRank\0").map_err(missing)?,
            destroy: *library.get(b"ncclCommDestroy\0").map_err(missing)?,
            abort: *library.get(b"ncclCommAbort\0").map_err(missing)?,
            async_error: *library.get(b"ncclCommGetAsyncError\0").map_err(missing)?,
            group_start: *library.get(b"ncclGroupStart\0").map_err(missing)?,
            group_end: *library.get(b"ncclGroupEnd\0").map_err(missing)?,
            all_reduce: *library.get(b"ncclAllReduce\0").map_err(missing)?,
            reduce_scatter: *library.get(b"ncclReduceScatter\0").map_err(missing)?,
            all_gather: *library.get(b"ncclAllGather\0").map_err(missing)?,
            memory: library.get(b"ncclCommMemStats\0").map(|symbol| *symbol).ok(),
            _library: library,
        })
    }
}

/// A version in words: 2.28.9 for 22809.
fn version_text(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// A new id, on the rank that copies it to the others.
///
/// # Errors
/// If the library is not there, or finds no network interface.
pub(crate) fn unique_id() -> Result<[u8; ID_BYTES], String> {
    let functions = functions()?;
    let mut id = UniqueId([0; ID_BYTES]);
    // SAFETY: the pointer is valid for writes.
    functions.check(unsafe { (functions.unique_id)(&mut id) }, "starting NCCL")?;
    Ok(id.0)
}

/// What a collective reads and writes: addresses in device memory, and a number of floats; of a block, where there is
/// one per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operands {
    pub from: u64,
    pub to: u64,
    pub count: usize,
}

/// A communicator of the ranks of a job. One rank per GPU: the library refuses two on one.
pub(crate) struct Communicator {
    functions: &'static Functions,
    /// Null after it was aborted.
    raw: AtomicPtr<c_void>,
    /// Dropped after it.
    context: Arc<Context>,
}

impl Communicator {
    /// Joins the communicator of an id. All ranks have to call it; the context is current.
    ///
    /// # Errors
    /// If the library is not there or refuses, such as for two ranks on one GPU.
    pub fn open(context: &Arc<Context>, (rank, ranks): (usize, usize), id: [u8; ID_BYTES]) -> Result<Communicator, String> {
        let functions = functions()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writes, and the context of the GPU is current on this thread.
        let result = unsafe { (functions.init_rank)(&mut raw, ranks as c_int, UniqueId(id), rank as c_int) };
        functions.check(result, &format!("joining NCCL {} as rank {rank} of {ranks}", version_text(functions.version)))?;
        Ok(Communicator { functions, raw: AtomicPtr::new(raw), context: Arc::clone(context) })
    }

    /// Enqueues sums over all ranks in a stream, all of them together.
    ///
    /// # Safety
    /// The addresses are those of device memory of this GPU with as many floats, valid until the stream has executed
    /// it. An input may be its own output, and overlaps no other one.
    pub unsafe fn all_reduce(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        let (all_reduce, stream) = (self.functions.all_reduce, stream.raw.cast());
        self.together(operands, "all_reduce", |raw, Operands { from, to, count }| {
            // SAFETY: guaranteed by the caller; the communicator is valid until it is dropped.
            unsafe { all_reduce(from as *const c_void, to as *mut c_void, count, FLOAT, SUM, raw, stream) }
        })
    }

    /// Enqueues sums over all ranks, of which each rank gets its block, all of them together.
    ///
    /// # Safety
    /// As for [`all_reduce`](Communicator::all_reduce), but an input has a block of `count` floats per rank, and
    /// overlaps no output.
    pub unsafe fn reduce_scatter(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        let (reduce_scatter, stream) = (self.functions.reduce_scatter, stream.raw.cast());
        self.together(operands, "reduce_scatter", |raw, Operands { from, to, count }| {
            // SAFETY: as above.
            unsafe { reduce_scatter(from as *const c_void, to as *mut c_void, count, FLOAT, SUM, raw, stream) }
        })
    }

    /// Enqueues copies of the blocks of all ranks to all of them, all of them together.
    ///
    /// # Safety
    /// As for [`all_reduce`](Communicator::all_reduce), but an output has a block of `count` floats per rank, and
    /// overlaps no input.
    pub unsafe fn all_gather(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        let (all_gather, stream) = (self.functions.all_gather, stream.raw.cast());
        self.together(operands, "all_gather", |raw, Operands { from, to, count }| {
            // SAFETY: as above.
            unsafe { all_gather(from as *const c_void, to as *mut c_void, count, FLOAT, raw, stream) }
        })
    }

    /// Enqueues a call for each of the operands as one operation of the library.
    fn together(&self, operands: &[Operands], name: &str, call: impl Fn(Raw, Operands) -> c_int) -> Result<(), String> {
        let (raw, functions) = (self.raw()?, self.functions);
        // SAFETY: every start has its end.
        functions.check(unsafe { (functions.group_start)() }, "beginning an exchange between ranks")?;
        let mut enqueued = Ok(());
        for operands in operands {
            enqueued = enqueued.and(functions.check(call(raw, *operands), name));
        }
        // SAFETY: ends the group that was begun above, also after an error.
        let ended = functions.check(unsafe { (functions.group_end)() }, "enqueueing an exchange between ranks");
        enqueued.and(ended)
    }

    /// The handle.
    ///
    /// # Errors
    /// If it was aborted.
    fn raw(&self) -> Result<Raw, String> {
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() { Err("NCCL was ended after an earlier error".to_string()) } else { Ok(raw) }
    }

    /// The error of a collective that is under way, such as of a lost connection.
    pub fn error(&self) -> Option<String> {
        let raw = match self.raw() {
            Ok(raw) => raw,
            Err(aborted) => return Some(aborted),
        };
        let mut state = SUCCESS;
        // SAFETY: the pointer is valid for writes, and the communicator was not destroyed.
        let asked = unsafe { (self.functions.async_error)(raw, &mut state) };
        let failed = [asked, state].into_iter().find(|result| !matches!(*result, SUCCESS | IN_PROGRESS))?;
        Some(format!("{}{}", self.functions.words(failed), self.functions.details()))
    }

    /// Ends collectives that wait for other ranks. Nothing can be communicated after that.
    pub fn abort(&self) {
        let raw = self.raw.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !raw.is_null() && self.context.bind().is_ok() {
            // SAFETY: the communicator was not destroyed, and nothing finds it any more. An error cannot be handled
            // here.
            let _ = unsafe { (self.functions.abort)(raw) };
        }
    }

    /// Device memory that it takes, if this version of the library says so.
    pub fn device_memory(&self) -> Option<u64> {
        let (memory, raw, mut bytes) = (self.functions.memory?, self.raw().ok()?, 0);
        // SAFETY: the pointer is valid for writes, and the communicator was not destroyed.
        let asked = unsafe { memory(raw, DEVICE_MEMORY, &mut bytes) };
        (asked == SUCCESS).then_some(bytes)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let raw = *self.raw.get_mut();
        if !raw.is_null() && self.context.bind().is_ok() {
            // SAFETY: created in `open` and destroyed once; programs that use it have synchronized. An error cannot be
            // handled here.
            let _ = unsafe { (self.functions.destroy)(raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        match functions() {
            Ok(functions) => assert!(functions.version >= OLDEST),
            Err(refusal) => {
                assert!(refusal.starts_with("NCCL"), "{refusal}");
                assert!(unique_id().is_err());
            }
        }
    }

    #[test]
    fn versions_are_read_as_the_library_numbers_them() {
        assert_eq!(version_text(22_809), "2.28.9");
        assert_eq!(version_text(OLDEST), "2.18.0");
    }
}
