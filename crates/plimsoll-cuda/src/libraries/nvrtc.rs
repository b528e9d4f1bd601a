//! Compiles kernel source to machine code with NVRTC, through the cache.

use super::kernel_cache::{Compiled, KernelCache, key};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CString, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of concurrent compilations.
pub(crate) const THREADS: usize = 6;

/// Kernels per module: the compiler's memory grows with the source, and must be planned.
pub(crate) const KERNELS_PER_MODULE: usize = 32;

/// The source of a module of up to [`KERNELS_PER_MODULE`] kernels.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleSource {
    pub text: String,
    /// The names of the kernels, in source order.
    pub names: Vec<String>,
    /// The source without names, which determines the compiled code.
    pub unnamed: String,
}

/// Compiles for one GPU architecture.
pub(crate) struct Compiler {
    /// Such as `sm_90`.
    architecture: String,
    version: String,
    cache: Option<KernelCache>,
}

impl Compiler {
    /// For a GPU of this compute capability. The compiler library must be present.
    pub fn new((major, minor): (i32, i32), cache: Option<KernelCache>) -> Compiler {
        let (mut first, mut second) = (0, 0);
        // SAFETY: both pointers are valid for writes. If the version cannot be read, keys are only less specific.
        let _ = unsafe { sys::nvrtcVersion(&mut first, &mut second) };
        Compiler { architecture: format!("sm_{major}{minor}"), version: format!("{first}.{second}"), cache }
    }

    /// Machine code for all modules, compiled concurrently, or the compiler's log of the first error.
    pub fn compile_all(&self, sources: &[ModuleSource]) -> Result<Vec<Compiled>, String> {
        let next = AtomicUsize::new(0);
        let compiled: Vec<_> = sources.iter().map(|_| OnceLock::new()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(source) = sources.get(at) else { break };
                compiled[at].get_or_init(|| self.compile(source));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(THREADS).min(sources.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If a thread cannot be started, this thread compiles the remaining modules.
                drop(std::thread::Builder::new().name("nvrtc".to_string()).spawn_scoped(scope, work));
            }
            work();
        });
        compiled.into_iter().map(|code| code.into_inner().expect("the threads took every module")).collect()
    }

    /// Machine code for a module, or the compiler's log. The cache is independent of the kernels' names.
    fn compile(&self, source: &ModuleSource) -> Result<Compiled, String> {
        let key = key(&[&source.unnamed, &self.architecture, &self.version]);
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&key));
        if let Some(compiled) = cached.filter(|compiled| compiled.names.len() == source.names.len()) {
            return Ok(compiled);
        }
        let compiled = Compiled { code: self.compile_now(&source.text)?, names: source.names.clone() };
        if let Some(cache) = &self.cache {
            cache.put(&key, &compiled);
        }
        Ok(compiled)
    }

    fn compile_now(&self, source: &str) -> Result<Vec<u8>, String> {
        let source = CString::new(source).map_err(|_| "the text has a zero in it".to_string())?;
        let program = result::create_program(&source, Some(c"plimsoll.cu")).map_err(|error| format!("{error:?}"))?;
        let program = NvrtcProgram(program);
        let options = [format!("--gpu-architecture={}", self.architecture), "--std=c++17".to_string()];
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

/// An NVRTC program, destroyed on drop.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
