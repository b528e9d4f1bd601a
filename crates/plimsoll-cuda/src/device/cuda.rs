//! The GPU that programs run on.

use super::cost::GpuPace;
use super::overhead::{Before, cudnn_overhead, host_staging, plan_overhead};
use super::profile::{Profile, copy_rate};
use crate::algorithms::ALIGNMENT;
use crate::algorithms::convolution::Convolutions;
use crate::libraries::cublaslt::Library;
use crate::libraries::driver::{Context, Stream};
use crate::libraries::kernel_cache::KernelCache;
use crate::libraries::nvrtc::Compiler;
use crate::libraries::probe;
use crate::program::{self, CudaProgram};
use crate::runtime::memory::{CudaMemory, Slab};
use crate::runtime::offload::PinnedStore;
use crate::runtime::staging::PinnedSlot;
use crate::runtime::state::DeviceState;
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::device::{BackingStore, CopyRate, Device, DeviceError, Loaded, Memory, Overhead, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::recompute::{CostModel, Rates};
use plimsoll_core::plan::{Plan, Program};
use plimsoll_core::{Bytes, Op, TensorType};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An NVIDIA GPU.
pub struct CudaDevice {
    shared: Arc<DeviceState>,
    model: String,
    total: Bytes,
    overhead: Overhead,
}

impl CudaDevice {
    /// Opens a GPU by its number; compiled kernels are kept in the cache, if there is one.
    ///
    /// # Errors
    /// When there is no such GPU, or what it needs is not installed.
    pub fn open(ordinal: usize, cache: Option<KernelCache>) -> Result<CudaDevice, DeviceError> {
        let device = format!("cuda:{ordinal}");
        let refuse = |what: String| DeviceError::Failed { device: device.clone(), what };
        let libraries = probe::libraries();
        let gpus = probe::count(&libraries);
        if let Some(obstacle) = probe::obstacle(&libraries, gpus) {
            return Err(refuse(obstacle.to_string()));
        }
        if ordinal >= gpus {
            let known: Vec<String> = (0..gpus).map(|i| format!("cuda:{i}")).collect();
            return Err(refuse(format!("there is no such GPU; this machine has {}", known.join(", "))));
        }
        let driver = |error: cudarc::driver::DriverError| refuse(format!("the GPU could not be opened: {error:?}"));
        let before = Before::look(ordinal);
        let context = Arc::new(Context::open(ordinal).map_err(driver)?);
        context.bind().map_err(driver)?;
        let (model, total) = (context.model().map_err(driver)?, context.total().map_err(driver)?);
        let products = if probe::has_cublaslt(&libraries) { Some(Arc::new(Library::open(&context).map_err(refuse)?)) } else { None };
        let shared = DeviceState {
            compute: Stream::new(&context).map_err(driver)?,
            copy: Stream::new(&context).map_err(driver)?,
            products,
            convolutions: Convolutions::Auto,
            dnn: OnceLock::new(),
            has_cudnn: probe::has_cudnn(&libraries),
            taken: Mutex::default(),
            compiler: Compiler::new(context.capability().map_err(driver)?, cache),
            slots: Mutex::default(),
            context,
        };
        let overhead = before.overhead().unwrap_or_else(|| Profile::overhead_of(&model));
        Ok(CudaDevice { shared: Arc::new(shared), overhead, model, total })
    }

    /// Says who computes convolutions.
    pub fn with_convolutions(mut self, convolutions: Convolutions) -> CudaDevice {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.convolutions = convolutions;
        }
        self
    }

    /// Computes matrix products in generated kernels, as where there is no cuBLASLt.
    pub fn without_cublaslt(mut self) -> CudaDevice {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.products = None;
        }
        self
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.shared.context.name()
    }

    fn description(&self) -> String {
        self.model.clone()
    }

    fn shares_host_memory(&self) -> bool {
        false
    }

    fn alignment(&self) -> Bytes {
        ALIGNMENT
    }

    fn overhead(&self, plan: &Plan) -> Overhead {
        let cudnn = if self.shared.has_cudnn { Profile::cudnn_of(&self.model) } else { Overhead::default() };
        self.overhead + cudnn_overhead(plan, self.shared.convolutions, cudnn) + plan_overhead(plan)
    }

    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(GpuPace)
    }

    fn rates(&self) -> Rates {
        GpuPace::SINGLE
    }

    fn measure_copies(&self) -> Result<Option<(f64, f64)>, DeviceError> {
        PinnedStore::measure(&self.shared).map(Some)
    }

    fn taken(&self) -> Vec<(String, usize)> {
        let taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.iter().map(|(way, count)| (way.clone(), *count)).collect()
    }

    /// The context is open, so what it took is counted as free again: a plan states it as an owner of its own.
    fn available(&self) -> Option<Bytes> {
        self.shared.context.free().ok().map(|free| (free + self.overhead.device).min(self.total))
    }

    fn in_use(&self) -> Option<Bytes> {
        self.shared.context.free().ok().map(|free| self.total.saturating_sub(free))
    }

    fn host_staging(&self, plan: &Plan) -> Bytes {
        host_staging(plan)
    }

    fn slot_memory(&self, size: Bytes) -> Result<Option<Box<dyn SlotMemory>>, DeviceError> {
        Ok(Some(Box::new(PinnedSlot::new(&self.shared, size)?)))
    }

    fn copy_rate(&self) -> CopyRate {
        copy_rate(&self.model)
    }

    fn backing(&self, size: Bytes) -> Result<Arc<dyn BackingStore>, DeviceError> {
        Ok(Arc::new(PinnedStore::new(&self.shared, size)?))
    }

    fn reads_channel_views(&self) -> bool {
        true
    }

    fn fuses_slice_write(&self, maker: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        program::fuses_slice_write(maker)
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        program::workspace(graph, node, rows, self.shared.convolutions)
    }

    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Ok(Box::new(CudaMemory(Arc::new(Slab::new(&self.shared, size)?))))
    }

    fn load(&self, plan: &Plan, program: &Program, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Ok(Box::new(CudaProgram::load(&self.shared, plan, program, rows, memory)?))
    }
}
