//! Loads cuDNN at run time: its functions, and a handle on one GPU.

use crate::libraries::driver::{Context, Stream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A handle or descriptor of the library.
pub(super) type Raw = *mut c_void;

/// The functions in use. Enumerations are plain integers: a newer version may return unknown values.
pub(super) struct Functions {
    pub create: unsafe extern "C" fn(*mut Raw) -> i32,
    pub destroy: unsafe extern "C" fn(Raw) -> i32,
    pub set_stream: unsafe extern "C" fn(Raw, Raw) -> i32,
    pub name: unsafe extern "C" fn(i32) -> *const c_char,
    pub create_descriptor: unsafe extern "C" fn(i32, *mut Raw) -> i32,
    pub destroy_descriptor: unsafe extern "C" fn(Raw) -> i32,
    pub set: unsafe extern "C" fn(Raw, i32, i32, i64, *const c_void) -> i32,
    pub get: unsafe extern "C" fn(Raw, i32, i32, i64, *mut i64, *mut c_void) -> i32,
    pub finalize: unsafe extern "C" fn(Raw) -> i32,
    pub execute: unsafe extern "C" fn(Raw, Raw, Raw) -> i32,
    /// The version, such as 91400.
    version: usize,
    /// Never unloaded: library threads may still refer to it at process exit.
    _libraries: [Library; 2],
}

impl Functions {
    /// Converts a status to an error with the library's name for it.
    pub fn check(&self, status: i32, effective_op: &str) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: accepts any number and returns a string that lives as long as the library.
        let name = unsafe { CStr::from_ptr((self.name)(status)) };
        Err(format!("{effective_op}: {}", name.to_string_lossy()))
    }
}

/// The library, if it is installed with all required functions. Never panics.
pub(super) fn functions() -> Option<&'static Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref()
}

/// Whether the library is available.
pub(crate) fn is_present() -> bool {
    functions().is_some()
}

/// The version of the library, such as 91400; 0 if it is not available.
pub(crate) fn version() -> usize {
    functions().map_or(0, |functions| functions.version)
}

/// File names to try, starting with the supported major version.
const NAMES: [&str; 3] = ["libcudnn.so.9", "libcudnn.so", "cudnn64_9.dll"];
/// Minimum supported version.
const OLDEST: usize = 90_000;

fn load() -> Option<Functions> {
    // SAFETY: opens a library whose constructors only register it.
    let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
    // SAFETY: the functions have these types in every version from 9.0 on, which is checked before any other call; the
    // symbols are copied into a value that keeps the library open.
    unsafe {
        let version = library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0").ok()?();
        if version < OLDEST {
            return None;
        }
        // Without its matching cuBLASLt, cuDNN aborts the process on first use.
        let runtime = library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetCudartVersion\0").ok()?();
        let products = products_for(runtime).into_iter().find_map(|name| Library::new(name).ok())?;
        Some(Functions {
            create: *library.get(b"cudnnCreate\0").ok()?,
            destroy: *library.get(b"cudnnDestroy\0").ok()?,
            set_stream: *library.get(b"cudnnSetStream\0").ok()?,
            name: *library.get(b"cudnnGetErrorString\0").ok()?,
            create_descriptor: *library.get(b"cudnnBackendCreateDescriptor\0").ok()?,
            destroy_descriptor: *library.get(b"cudnnBackendDestroyDescriptor\0").ok()?,
            set: *library.get(b"cudnnBackendSetAttribute\0").ok()?,
            get: *library.get(b"cudnnBackendGetAttribute\0").ok()?,
            finalize: *library.get(b"cudnnBackendFinalize\0").ok()?,
            execute: *library.get(b"cudnnBackendExecute\0").ok()?,
            version,
            _libraries: [library, products],
        })
    }
}

/// The file names of the cuBLASLt that cuDNN needs for this CUDA runtime version (such as 13000).
fn products_for(runtime: usize) -> [String; 2] {
    let major = runtime / 1000;
    [format!("libcublasLt.so.{major}"), format!("cublasLt64_{major}.dll")]
}

/// A cuDNN handle on one GPU and stream.
pub(crate) struct Cudnn {
    pub(super) functions: &'static Functions,
    handle: Mutex<Owned>,
    context: Arc<Context>,
}

struct Owned(Raw);

// SAFETY: a handle may be used from any thread, by one at a time: it is behind a lock.
unsafe impl Send for Owned {}

impl Cudnn {
    /// Creates a handle for this stream; the context is current. The library must be [present](is_present).
    pub fn open(context: &Arc<Context>, stream: &Stream) -> Result<Cudnn, String> {
        let functions = functions().ok_or("cuDNN is not there")?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writing the handle.
        functions.check(unsafe { (functions.create)(&mut handle) }, "cuDNN could not be opened")?;
        let dnn = Cudnn { functions, handle: Mutex::new(Owned(handle)), context: Arc::clone(context) };
        // SAFETY: the handle was just created; the stream outlives it (both belong to the device state), and the types
        // are the same pointer.
        functions.check(unsafe { (functions.set_stream)(handle, stream.raw.cast()) }, "cuDNN did not take the stream")?;
        Ok(dnn)
    }

    /// Calls `work` with exclusive access to the handle.
    pub(super) fn with<T>(&self, work: impl FnOnce(Raw) -> T) -> T {
        work(self.handle.lock().unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `open` and destroyed once.
            let _ = self.with(|handle| unsafe { (self.functions.destroy)(handle) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_absent_is_no_panic() {
        // Twice: the result is cached.
        assert_eq!(is_present(), is_present());
        assert_eq!(is_present(), functions().is_some());
    }

    #[test]
    fn the_products_it_needs_are_those_of_its_own_cuda() {
        assert_eq!(products_for(13000)[0], "libcublasLt.so.13");
        assert_eq!(products_for(12090)[0], "libcublasLt.so.12");
    }
}
