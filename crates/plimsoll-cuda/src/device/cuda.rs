//! The CUDA device.

use super::cost::GpuCostModel;
use super::overhead::{MemoryBaseline, TUNING, cudnn_overhead, host_staging, plan_overhead};
use super::profile::{Profile, capabilities};
use crate::algorithms::convolution::Convolutions;
use crate::libraries::cublaslt::CublasLt;
use crate::libraries::cudnn::Convolution;
use crate::libraries::driver::{Context, Stream};
use crate::libraries::faults::SYNC;
use crate::libraries::injected::InjectedFault;
use crate::libraries::kernel_cache::KernelCache;
use crate::libraries::nvrtc::Compiler;
use crate::libraries::probe;
use crate::program::{self, CudaExecutable, CudaProgram};
use crate::runtime::arguments::SharedArguments;
use crate::runtime::exchange::Exchange;
use crate::runtime::memory::{CudaMemory, DeviceBuffer};
use crate::runtime::offload::PinnedStore;
use crate::runtime::staging::PinnedSlot;
use crate::runtime::start_times::StartTimes;
use crate::runtime::state::{DeviceState, lock};
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::device::{
    BackingStore, Device, DeviceError, Diagnostics, Executable, Loaded, Memory, MemoryInfo, ReservedMemory, StepMemory, check_load,
};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::{Capabilities, CheckedPlan, CostModel, Footprint, Overhead, Plan, Target};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Op, TensorType};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// An NVIDIA GPU.
pub struct CudaDevice {
    shared: Arc<DeviceState>,
    model: String,
    total: Bytes,
    overhead: Overhead,
    /// Scalars of programs whose memory is given for every run.
    arguments: SharedArguments,
    /// Threads that load the compiler and cuDNN, and compile what a program will need.
    preparing: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // The process must not end while the compiler is in use.
        for thread in lock(&self.preparing).drain(..) {
            let _ = thread.join();
        }
    }
}

impl CudaDevice {
    /// Opens a GPU by ordinal; compiled kernels are stored in the cache, if there is one.
    ///
    /// # Errors
    ///
    /// If there is no such GPU, or a required library is not installed.
    pub fn open(ordinal: usize, cache: Option<KernelCache>) -> Result<CudaDevice, DeviceError> {
        let device = format!("cuda:{ordinal}");
        let refuse = |what: String| DeviceError::Failed { device: device.clone(), what };
        let times = StartTimes::default();
        let driver = |error: cudarc::driver::DriverError| refuse(format!("the GPU could not be opened: {error:?}"));
        let libraries = times.time("libraries", probe::libraries);
        let gpus = times.time("driver", probe::count);
        if let Some(obstacle) = probe::obstacle(&libraries, gpus.as_ref().map(|count| *count).map_err(String::as_str)) {
            return Err(refuse(obstacle));
        }
        let gpus = gpus.unwrap_or(0);
        if ordinal >= gpus {
            let known: Vec<String> = (0..gpus).map(|i| format!("cuda:{i}")).collect();
            return Err(refuse(format!("there is no such GPU; this machine has {}", known.join(", "))));
        }
        let before = times.time("memory_in_use", || MemoryBaseline::measure(ordinal));
        let context = Arc::new(times.time("context", || Context::open(ordinal)).map_err(driver)?);
        context.bind().map_err(driver)?;
        let (model, total) = (context.model().map_err(driver)?, context.total().map_err(driver)?);
        let open = || CublasLt::open(&context).map_err(refuse);
        let products = probe::has_cublaslt(&libraries).then(|| times.time("cublaslt", open)).transpose()?.map(Arc::new);
        let shared = DeviceState {
            compute: Stream::new(&context).map_err(driver)?,
            copy: Stream::new(&context).map_err(driver)?,
            products,
            exchange: None,
            convolutions: Convolutions::Auto,
            has_tensor_cores: context.capability().map_err(driver)? >= (8, 0),
            cudnn: OnceLock::new(),
            has_cudnn: probe::has_cudnn(&libraries),
            convolution_algorithms: Mutex::default(),
            compiler: Arc::new(Compiler::new(context.capability().map_err(driver)?, cache)),
            one_by_one: std::env::var_os(SYNC).is_some_and(|value| !value.is_empty() && value != "0"),
            fault: InjectedFault::requested(),
            measures_algorithms: false,
            algorithms: Mutex::default(),
            progress: Mutex::default(),
            start_times: times,
            slots: Mutex::default(),
            context,
        };
        let measure = || before.overhead().unwrap_or_else(|| Profile::overhead_of(&model));
        let overhead = shared.start_times.time("memory_in_use", measure);
        let compiler = Arc::clone(&shared.compiler);
        // While a run is planned. Where no thread can be started, the first module takes longer.
        let compiling = in_background(move || compiler.warm_up());
        Ok(CudaDevice {
            shared: Arc::new(shared),
            overhead,
            arguments: SharedArguments::default(),
            model,
            total,
            preparing: Mutex::new(compiling.into_iter().collect()),
        })
    }

    /// Selects the implementations of convolutions and of attention.
    pub fn with_convolutions(mut self, convolutions: Convolutions) -> CudaDevice {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.convolutions = convolutions;
        }
        self
    }

    /// Measures the algorithms of cuBLASLt and cuDNN when a program is loaded, once per request and GPU, instead of
    /// taking the first of their ranking. What was measured is stored with the compiled kernels.
    pub fn with_measured_algorithms(mut self) -> CudaDevice {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.measures_algorithms = true;
            let stored = shared.stored_algorithms();
            shared.algorithms.get_mut().unwrap_or_else(PoisonError::into_inner).add_stored(stored);
        }
        self
    }

    /// CUDA's own memory, as it was measured when the GPU was opened.
    pub(super) fn overhead(&self) -> Overhead {
        self.overhead
    }

    /// Assumes another one: that of the rank whose CUDA takes most.
    pub(super) fn assume_overhead(&mut self, overhead: Overhead) {
        self.overhead = overhead;
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    pub(super) fn compute_stream(&self) -> &Stream {
        &self.shared.compute
    }

    /// Lets programs exchange numbers with other ranks.
    pub(super) fn set_exchange(&mut self, exchange: Exchange) {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.exchange = Some(exchange);
        }
    }

    /// Computes matrix products in generated kernels, as on a machine without cuBLASLt.
    pub fn without_cublaslt(mut self) -> CudaDevice {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.products = None;
        }
        self
    }
}

/// Runs on a thread of its own, if one can be started.
fn in_background(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    std::thread::Builder::new().name("prepare".to_string()).spawn(work).ok()
}

impl Target for CudaDevice {
    fn name(&self) -> String {
        self.shared.context.name()
    }

    fn description(&self) -> String {
        self.model.clone()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(&self.model)
    }

    fn footprint(&self, plan: &Plan) -> Footprint {
        let cudnn = if self.shared.has_cudnn { Profile::cudnn_of(&self.model) } else { Overhead::default() };
        let tuning = if self.shared.measures_algorithms { TUNING } else { Overhead::default() };
        let runtime = self.overhead + cudnn_overhead(plan, self.shared.convolutions, cudnn) + plan_overhead(plan) + tuning;
        Footprint { runtime, host_staging: host_staging(plan), host_backing: plan.backing }
    }

    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(GpuCostModel)
    }

    fn fuses_slice_write(&self, maker: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        program::fuses_slice_write(maker)
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        program::workspace(graph, node, rows, self.shared.convolutions)
    }
}

impl Device for CudaDevice {
    /// The context is already open, so its memory is added back to the available memory: a plan lists it as a separate
    /// owner.
    fn memory_info(&self) -> Option<MemoryInfo> {
        let free = self.shared.context.free().ok()?;
        Some(MemoryInfo { available: (free + self.overhead.device).min(self.total), in_use: self.total.saturating_sub(free) })
    }

    fn slot_memory(&self, size: Bytes) -> Result<Option<Box<dyn SlotMemory>>, DeviceError> {
        Ok(Some(Box::new(PinnedSlot::new(&self.shared, size)?)))
    }

    fn backing_store(&self, size: Bytes) -> Result<Arc<dyn BackingStore>, DeviceError> {
        Ok(Arc::new(PinnedStore::new(&self.shared, size)?))
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        Some(self)
    }

    /// Begins to compile the kernels of attention, which take longest.
    fn prepare(&self, graph: &Graph, rows: usize) {
        for source in program::attention_modules(graph, rows, self.shared.tensor_cores()) {
            let compiler = Arc::clone(&self.shared.compiler);
            lock(&self.preparing).extend(in_background(move || compiler.compile_ahead(&source)));
        }
        if let Some(request) = program::first_cudnn_request(graph, rows, self.shared.convolutions) {
            let shared = Arc::clone(&self.shared);
            let open = move || {
                if let Some(dnn) = shared.bind().ok().and_then(|()| shared.cudnn()) {
                    Convolution::warm_up(dnn, &request);
                }
            };
            lock(&self.preparing).extend(in_background(open));
        }
    }

    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Ok(Box::new(CudaMemory(Arc::new(DeviceBuffer::new(&self.shared, size)?))))
    }

    fn reserve(&self, size: Bytes) -> Result<Option<Box<dyn ReservedMemory>>, DeviceError> {
        let buffer = DeviceBuffer::reserve(&self.shared, size)?;
        Ok(buffer.map(|buffer| Box::new(CudaMemory(Arc::new(buffer))) as Box<dyn ReservedMemory>))
    }

    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        check_load(self, plan, rows)?;
        Ok(Box::new(CudaProgram::load(&self.shared, plan, plan.expect_program(role), rows, memory)?))
    }

    fn executable(&self, plan: &CheckedPlan, role: Role) -> Result<Box<dyn Executable>, DeviceError> {
        check_load(self, plan, plan.rows)?;
        Ok(Box::new(CudaExecutable::new(&self.shared, &self.arguments, plan, role)?))
    }
}

impl Diagnostics for CudaDevice {
    fn measure_copies(&self) -> Result<(f64, f64), DeviceError> {
        PinnedStore::measure(&self.shared)
    }

    fn convolution_algorithms(&self) -> Vec<(String, usize)> {
        let counts = self.shared.convolution_algorithms.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(algorithm, count)| (algorithm.clone(), *count)).collect()
    }

    fn algorithms(&self) -> Option<BTreeMap<String, String>> {
        self.shared.measures_algorithms.then(|| lock(&self.shared.algorithms).used().clone())
    }

    fn keep_algorithms(&self, recorded: &BTreeMap<String, String>) {
        lock(&self.shared.algorithms).keep(recorded);
    }

    fn rejected_algorithms(&self, recorded: &BTreeMap<String, String>) -> Option<String> {
        program::rejection(lock(&self.shared.algorithms).rejected(), recorded)
    }

    fn on_selection(&self, report: Box<dyn FnMut(usize, usize) + Send>) {
        *lock(&self.shared.progress) = Some(report);
    }

    fn start_seconds(&self) -> Vec<(&'static str, f64)> {
        self.shared.start_times.list()
    }

    fn kernel_sources(&self, plan: &CheckedPlan, role: Role, rows: usize) -> Result<Vec<String>, DeviceError> {
        program::kernel_sources(plan, plan.expect_program(role), rows, self.shared.convolutions)
            .map_err(|what| DeviceError::Unsupported { device: self.name(), what })
    }
}
