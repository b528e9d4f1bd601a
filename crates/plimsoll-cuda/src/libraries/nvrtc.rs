//! Compiles kernel source to machine code with NVRTC, through the cache, in background threads.

use super::kernel_cache::{Compiled, KernelCache, key};
use crate::kernels::{Kernel, PRELUDE};
use cudarc::nvrtc::{result, sys};
use plimsoll_core::budget::KeepFreedMemory;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_char};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of concurrent compilations.
pub(crate) const THREADS: usize = 12;

/// Kernels per module: the compiler's memory grows with the source, and must be planned.
pub(crate) const KERNELS_PER_MODULE: usize = 12;

/// A longer kernel is a module of its own, so that it compiles at the same time as others.
pub(crate) const LONG_KERNEL: usize = 6_000;

/// The source of a module of up to [`KERNELS_PER_MODULE`] kernels.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleSource {
    pub text: String,
    /// The names of the kernels, in source order.
    pub names: Vec<String>,
    /// The source without names, which determines the compiled code.
    pub unnamed: String,
}

impl ModuleSource {
    /// A module without kernels.
    pub fn new() -> ModuleSource {
        ModuleSource { text: PRELUDE.to_string(), unnamed: PRELUDE.to_string(), names: vec![] }
    }

    /// Adds a kernel with this name, and its source without a name.
    pub fn add(&mut self, kernel: &Kernel, name: String, unnamed: &str) {
        self.text += &format!("\n{}", kernel.source(&name));
        self.unnamed += &format!("\n{unnamed}");
        self.names.push(name);
    }
}

/// Compiles for one GPU architecture.
pub(crate) struct Compiler {
    /// Such as `sm_90`.
    architecture: String,
    version: String,
    cache: Option<KernelCache>,
    /// Whether it has the option to leave out types that kernels do not use, which takes time too.
    has_minimal: bool,
    /// Modules that are compiled before a program asks for them, by their keys.
    ahead: Mutex<HashMap<String, Arc<CompiledAhead>>>,
}

/// A module that is compiled once, by the first thread that asks for it.
type CompiledAhead = OnceLock<Result<Compiled, String>>;

impl Compiler {
    /// For a GPU of this compute capability. The compiler library must be present.
    pub fn new((major, minor): (i32, i32), cache: Option<KernelCache>) -> Compiler {
        let (mut first, mut second) = (0, 0);
        // SAFETY: both pointers are valid for writes. If the version cannot be read, keys are only less specific.
        let _ = unsafe { sys::nvrtcVersion(&mut first, &mut second) };
        let (architecture, version) = (format!("sm_{major}{minor}"), format!("{first}.{second}"));
        Compiler { architecture, version, cache, has_minimal: first >= 13, ahead: Mutex::default() }
    }

    /// The cache of compiled modules.
    pub fn cache(&self) -> Option<&KernelCache> {
        self.cache.as_ref()
    }

    /// Compiles nothing, which loads what the compiler needs for its first module.
    pub fn warm_up(&self) {
        let _ = self.compile_now("");
    }

    /// Compiles a module that a program will probably ask for, unless it is known.
    pub fn compile_ahead(&self, source: &ModuleSource) {
        let key = self.key(source);
        let module = Arc::clone(lock(&self.ahead).entry(key.clone()).or_default());
        module.get_or_init(|| self.compile_or_read(&key, source));
    }

    /// Machine code for a module, or the compiler's log. The cache is independent of the kernels' names.
    fn compile(&self, source: &ModuleSource) -> Result<Compiled, String> {
        let key = self.key(source);
        // Removed, so that its memory lives no longer than that of the program.
        let ahead = lock(&self.ahead).remove(&key);
        match ahead {
            Some(module) => module.get_or_init(|| self.compile_or_read(&key, source)).clone(),
            None => self.compile_or_read(&key, source),
        }
    }

    fn key(&self, source: &ModuleSource) -> String {
        key(&[&source.unnamed, &self.architecture, &self.version])
    }

    fn compile_or_read(&self, key: &str, source: &ModuleSource) -> Result<Compiled, String> {
        let cached = self.cache.as_ref().and_then(|cache| cache.get(key));
        if let Some(compiled) = cached.filter(|compiled| compiled.names.len() == source.names.len()) {
            return Ok(compiled);
        }
        let compiled = Compiled { code: self.compile_now(&source.text)?, names: source.names.clone() };
        if let Some(cache) = &self.cache {
            cache.put(key, &compiled);
        }
        Ok(compiled)
    }

    fn compile_now(&self, source: &str) -> Result<Vec<u8>, String> {
        let source = CString::new(source).map_err(|_| "the text has a zero in it".to_string())?;
        let program = result::create_program(&source, Some(c"plimsoll.cu")).map_err(|error| format!("{error:?}"))?;
        let program = NvrtcProgram(program);
        let mut options = vec![format!("--gpu-architecture={}", self.architecture), "--std=c++17".to_string()];
        options.extend(self.has_minimal.then(|| "--minimal".to_string()));
        // SAFETY: the program was just created and is destroyed when `program` is dropped.
        if let Err(error) = unsafe { result::compile_program(program.0, &options) } {
            // SAFETY: as above.
            let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
            let log: Vec<u8> = log.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
            return Err(format!("{error:?}: {}", String::from_utf8_lossy(&log)));
        }
        let mut size = 0;
        // SAFETY: the program is compiled, and the buffer has the reported length.
        let code = unsafe {
            sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(|error| format!("{error:?}"))?;
            let mut code = vec![0u8; size];
            sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast::<c_char>()).result().map_err(|error| format!("{error:?}"))?;
            code
        };
        Ok(code)
    }
}

/// Modules that are compiled in the background, while others are still generated and libraries select algorithms.
pub(crate) struct Compilation {
    compiler: Arc<Compiler>,
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
    /// All workers allocate.
    _kept: KeepFreedMemory,
}

/// Modules on their way through the workers.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<(usize, ModuleSource)>,
    /// How many were submitted.
    submitted: usize,
    /// By their numbers.
    compiled: Vec<Option<Result<Compiled, String>>>,
    closed: bool,
}

impl Compilation {
    pub fn new(compiler: &Arc<Compiler>) -> Compilation {
        Compilation { compiler: Arc::clone(compiler), queue: Arc::default(), workers: Vec::new(), _kept: KeepFreedMemory::new() }
    }

    /// Begins to compile a module of this number.
    pub fn submit(&mut self, number: usize, source: ModuleSource) {
        let mut state = lock(&self.queue.state);
        let count = state.compiled.len().max(number + 1);
        state.compiled.resize_with(count, || None);
        state.waiting.push_back((number, source));
        let submitted = state.submitted + 1;
        state.submitted = submitted;
        drop(state);
        self.queue.changed.notify_one();
        let most = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(THREADS);
        if self.workers.len() < most.min(submitted) {
            let (compiler, queue) = (Arc::clone(&self.compiler), Arc::clone(&self.queue));
            let work = move || while queue.compile_next(&compiler, true) {};
            // Where no thread can be started, the one that waits for the result compiles.
            self.workers.extend(std::thread::Builder::new().name("nvrtc".to_string()).spawn(work));
        }
    }

    /// Waits for all modules, and returns them by their numbers, which are all below their count; or the compiler's log
    /// of the first error.
    pub fn finish(mut self) -> Result<Vec<Compiled>, String> {
        self.end();
        let compiled = std::mem::take(&mut lock(&self.queue.state).compiled);
        compiled.into_iter().map(|compiled| compiled.expect("every module was compiled")).collect()
    }

    fn end(&mut self) {
        lock(&self.queue.state).closed = true;
        self.queue.changed.notify_all();
        if self.workers.is_empty() {
            while self.queue.compile_next(&self.compiler, false) {}
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        // Modules of a worker that could not finish.
        while self.queue.compile_next(&self.compiler, false) {}
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        // After an error nobody needs what is still waiting.
        lock(&self.queue.state).waiting.clear();
        self.end();
    }
}

impl Queue {
    /// Compiles the next module; `wait` for one if there is none yet. Whether there was one.
    fn compile_next(&self, compiler: &Compiler, wait: bool) -> bool {
        let mut state = lock(&self.state);
        while wait && state.waiting.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some((number, source)) = state.waiting.pop_front() else { return false };
        drop(state);
        let compiled = compiler.compile(&source);
        lock(&self.state).compiled[number] = Some(compiled);
        true
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An NVRTC program, destroyed on drop.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
