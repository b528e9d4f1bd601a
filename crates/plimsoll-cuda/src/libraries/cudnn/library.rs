//! cuDNN as it is found on a machine: its functions, looked up one by one, and a handle on one GPU.

use crate::libraries::driver::{Context, Stream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What the library hands out: handles and descriptions.
pub(super) type Raw = *mut c_void;

/// The functions that are used, with plain numbers for all of the library's enumerations: a version may return numbers that this one does not know.
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
    /// Never closed: what it has started may still refer to it when the process ends.
    _libraries: [Library; 2],
}

impl Functions {
    /// What a status means, in the library's words.
    pub fn check(&self, status: i32, effective_op: &str) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: takes any number and gives a text that lives as long as the library.
        let name = unsafe { CStr::from_ptr((self.name)(status)) };
        Err(format!("{effective_op}: {}", name.to_string_lossy()))
    }
}

/// The library, if it is there with everything that is used of it. Looking never panics.
pub(super) fn functions() -> Option<&'static Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref()
}

/// Whether the library can be used here.
pub(crate) fn is_present() -> bool {
    functions().is_some()
}

/// The names it goes by, the version first whose interface is used here.
const NAMES: [&str; 3] = ["libcudnn.so.9", "libcudnn.so", "cudnn64_9.dll"];
/// The oldest version whose interface is the one used here.
const OLDEST: usize = 90_000;

fn load() -> Option<Functions> {
    // SAFETY: opens a library whose constructors do nothing but registering it.
    let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
    // SAFETY: the functions have these types in every version from 9.0 on, which is checked before any of the others is called; the symbols are copied
    // into a value that keeps the library open.
    unsafe {
        let version = library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0").ok()?();
        if version < OLDEST {
            return None;
        }
        // Without the cuBLASLt it was built for, cuDNN ends the process when it is first asked for anything.
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
            _libraries: [library, products],
        })
    }
}

/// The names of the cuBLASLt that a cuDNN for this version of CUDA's runtime (as in 13000) looks for.
fn products_for(runtime: usize) -> [String; 2] {
    let major = runtime / 1000;
    [format!("libcublasLt.so.{major}"), format!("cublasLt64_{major}.dll")]
}

/// The library on one GPU, for one stream.
pub(crate) struct Cudnn {
    pub(super) functions: &'static Functions,
    handle: Mutex<Owned>,
    context: Arc<Context>,
}

struct Owned(Raw);

// SAFETY: a handle may be used from any thread, by one at a time: it is behind a lock.
unsafe impl Send for Owned {}

impl Cudnn {
    /// Opens it for work in this stream; the context is current. The library must be [present](is_present).
    pub fn open(context: &Arc<Context>, stream: &Stream) -> Result<Cudnn, String> {
        let functions = functions().ok_or("cuDNN is not there")?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place to write the handle to.
        functions.check(unsafe { (functions.create)(&mut handle) }, "cuDNN could not be opened")?;
        let dnn = Cudnn { functions, handle: Mutex::new(Owned(handle)), context: Arc::clone(context) };
        // SAFETY: the handle was just made; the stream outlives it (both belong to what a GPU's programs share), and the types are the same pointer.
        functions.check(unsafe { (functions.set_stream)(handle, stream.raw.cast()) }, "cuDNN did not take the stream")?;
        Ok(dnn)
    }

    /// Does something with the handle while nobody else does.
    pub(super) fn with<T>(&self, work: impl FnOnce(Raw) -> T) -> T {
        work(self.handle.lock().unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `open` and destroyed once.
            let _ = self.with(|handle| unsafe { (self.functions.destroy)(handle) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_absent_is_no_panic() {
        // Twice: what was found is remembered.
        assert_eq!(is_present(), is_present());
        assert_eq!(is_present(), functions().is_some());
    }

    #[test]
    fn the_products_it_needs_are_those_of_its_own_cuda() {
        assert_eq!(products_for(13000)[0], "libcublasLt.so.13");
        assert_eq!(products_for(12090)[0], "libcublasLt.so.12");
    }
}
