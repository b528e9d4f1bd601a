//! RAII wrappers of driver handles.

use super::faults::{OP_FAILED, advice, is_of_kernel};
use cudarc::driver::{DriverError, result, sys};
use plimsoll_core::{Bytes, DeviceError};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Initial stack bytes per GPU thread; the driver raises it for kernels that need more.
const STACK: usize = 256;

/// A primary context of a GPU.
pub(crate) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    pub ordinal: usize,
}

// SAFETY: a context handle belongs to the process, not to a thread; the driver's functions are thread-safe, and every
// entry point makes the context current on its own thread with `bind`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a GPU by ordinal. The driver library must be present.
    pub fn open(ordinal: usize) -> Result<Context, DriverError> {
        result::init()?;
        let device = result::device::get(ordinal as i32)?;
        // SAFETY: the driver returned this device.
        let raw = unsafe { result::primary_ctx::retain(device) }?;
        let context = Context { device, raw, ordinal };
        context.bind()?;
        // The driver allocates a stack for every thread that can be resident. Our kernels need almost none, and the
        // driver grows it at launch for those that do. On a GPU with 132 multiprocessors this reduces the context from
        // 527 to 329 MiB. A failure only costs memory.
        // SAFETY: the context was just made current.
        let _ = unsafe { sys::cuCtxSetLimit(sys::CUlimit_enum::CU_LIMIT_STACK_SIZE, STACK) };
        Ok(context)
    }

    /// Makes it current on this thread; cheap if it already is.
    pub fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until this value is dropped.
        unsafe { result::ctx::set_current(self.raw) }
    }

    pub fn name(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    pub fn model(&self) -> Result<String, DriverError> {
        result::device::get_name(self.device)
    }

    pub fn total(&self) -> Result<Bytes, DriverError> {
        // SAFETY: the driver returned this device.
        unsafe { result::device::total_mem(self.device) }.map(|bytes| Bytes(bytes as u64))
    }

    pub fn free(&self) -> Result<Bytes, DriverError> {
        self.bind()?;
        result::mem_get_info().map(|(free, _)| Bytes(free as u64))
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> Result<(i32, i32), DriverError> {
        use sys::CUdevice_attribute::{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR};
        // SAFETY: the driver returned this device.
        let attribute = |which| unsafe { result::device::get_attribute(self.device, which) };
        Ok((attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Converts a driver error.
    pub fn failed(&self, effective_op: &str, error: DriverError) -> DeviceError {
        self.error(effective_op, error, advice(error.0))
    }

    /// Converts an error of an op whose name is known.
    pub fn op_failed(&self, name: &str, error: DriverError) -> DeviceError {
        self.error(name, error, if is_of_kernel(error.0) { OP_FAILED } else { advice(error.0) })
    }

    fn error(&self, what: &str, error: DriverError, advice: &str) -> DeviceError {
        let text = error.error_string().map_or_else(|_| format!("{error:?}"), |text| text.to_string_lossy().into_owned());
        DeviceError::Failed { device: self.name(), what: format!("{what} failed: {text}{advice}") }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open` and released once. An error here cannot be handled.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A CUDA stream.
pub(crate) struct Stream {
    pub raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: stream handles belong to the context, not to a thread, and the driver's functions on them are thread-safe.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A non-blocking stream; the context is current.
    pub fn new(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Stream { raw, context: Arc::clone(context) })
    }

    /// Waits until all enqueued work has completed.
    pub fn wait(&self) -> Result<(), DriverError> {
        self.context.bind()?;
        // SAFETY: this value owns the stream.
        unsafe { result::stream::synchronize(self.raw) }
    }

    /// Writes a number to mapped host memory once all enqueued work has completed.
    ///
    /// # Safety
    ///
    /// The address is that of four bytes of mapped host memory, valid until the stream has written to them.
    pub unsafe fn mark(&self, address: u64, number: u32) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller; this value owns the stream.
        unsafe { sys::cuStreamWriteValue32_v2(self.raw, address, number, 0) }.result()
    }

    /// Makes subsequent work wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both values own their handles.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new` and destroyed once.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A CUDA event.
pub(crate) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, DriverError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    /// An event with timing.
    pub fn timed(context: &Arc<Context>) -> Result<Event, DriverError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    /// Seconds between two timed events that have completed.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, DriverError> {
        // SAFETY: both values own their handles.
        unsafe { result::event::elapsed(earlier.raw, self.raw) }.map(|milliseconds| f64::from(milliseconds) * 1e-3)
    }

    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both values own their handles.
        unsafe { result::event::record(self.raw, stream.raw) }
    }

    /// Whether the work before the last recording has completed.
    pub fn has_occurred(&self) -> Result<bool, DriverError> {
        // SAFETY: this value owns the event.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true),
        }
    }

    /// Waits for the last recording; returns immediately if there is none.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: this value owns the event.
        unsafe { result::event::synchronize(self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new` and destroyed once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Pinned, mapped host memory with the same address on the GPU.
pub(crate) struct PinnedBuffer {
    pub start: *mut u8,
    context: Arc<Context>,
}

// SAFETY: an owned allocation of plain bytes, accessed only through the raw pointer, whose users synchronize their
// accesses.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates zeroed memory of at least one byte; the context is current.
    pub fn new(context: &Arc<Context>, size: usize) -> Result<PinnedBuffer, DriverError> {
        // SAFETY: the memory is zeroed below before it is read.
        let start = unsafe { result::malloc_host(size, sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP) }?.cast::<u8>();
        // SAFETY: just allocated with this size.
        unsafe { start.write_bytes(0, size) };
        Ok(PinnedBuffer { start, context: Arc::clone(context) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `malloc_host` and freed once.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// Compiled kernels on the GPU.
pub(crate) struct Module {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: as for streams.
unsafe impl Send for Module {}

impl Module {
    /// Loads machine code; the context is current.
    ///
    /// # Safety
    ///
    /// The code is a complete image from NVRTC: the driver does not receive its length.
    pub unsafe fn new(context: &Arc<Context>, code: &[u8]) -> Result<Module, DriverError> {
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { result::module::load_data(code.as_ptr().cast()) }?;
        Ok(Module { raw, context: Arc::clone(context) })
    }

    /// A kernel by name; valid as long as the module.
    pub fn function(&self, name: &str) -> Result<sys::CUfunction, DriverError> {
        let name = CString::new(name).expect("kernels have plain names");
        // SAFETY: this value owns the module.
        unsafe { result::module::get_function(self.raw, name) }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded in `new` and unloaded once, after the work that uses it (programs synchronize on drop).
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// An executable CUDA graph.
pub(crate) struct CudaGraph {
    raw: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: as for streams.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Captures the work that `work` enqueues in the stream instead of executing it; the context is current.
    pub fn record<E>(
        context: &Arc<Context>,
        stream: &Stream,
        failed: impl Fn(DriverError) -> E,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<CudaGraph, E> {
        // SAFETY: the value owns the stream.
        unsafe { result::stream::begin_capture(stream.raw, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }.map_err(&failed)?;
        let done = work();
        // SAFETY: capture was begun above; it must end even if `work` failed.
        let recorded = unsafe { result::stream::end_capture(stream.raw) };
        done?;
        let graph = recorded.map_err(&failed)?;
        // SAFETY: the graph was just captured; the executable graph does not depend on it.
        let raw = unsafe {
            let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            executable
        };
        Ok(CudaGraph { raw: raw.map_err(&failed)?, context: Arc::clone(context) })
    }

    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both values own their handles.
        unsafe { result::graph::launch(self.raw, stream.raw) }
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated in `record` and destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}

/// Launches a kernel whose parameters are all addresses.
///
/// # Safety
///
/// The function's module is loaded; the addresses match the kernel's parameters and stay valid until the stream has
/// executed it.
pub(crate) unsafe fn launch(
    function: sys::CUfunction,
    grid: [u32; 3],
    threads: u32,
    addresses: &mut [u64],
    stream: &Stream,
) -> Result<(), DriverError> {
    let mut parameters: Vec<*mut c_void> = addresses.iter_mut().map(|address| std::ptr::from_mut(address).cast()).collect();
    let [x, y, z] = grid;
    // SAFETY: guaranteed by the caller; the driver copies the parameters before it returns.
    unsafe { result::launch_kernel(function, (x, y, z), (threads, 1, 1), 0, stream.raw, &mut parameters) }
}
