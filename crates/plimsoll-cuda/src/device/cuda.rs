//! The device that the rest of the system sees.

use crate::cache::KernelCache;
use crate::compile::Compiler;
use crate::convolutions::Convolutions;
use crate::cudnn::Dnn;
use crate::driver::{Context, Stream};
use crate::lanes::PinnedStore;
use crate::memory::{CudaMemory, Slab, lock};
use crate::overhead::Before;
use crate::probe;
use crate::products::Library;
use crate::profile::{ALIGNMENT, GpuPace, Profile, copy_rate, cudnn_overhead, host_staging, plan_overhead};
use crate::program::{self, CudaProgram};
use crate::staging::PinnedSlot;
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::device::{Backing, CopyRate, Device, DeviceError, Loaded, Memory, Overhead, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::Put;
use plimsoll_core::plan::recompute::{Pace, Rates};
use plimsoll_core::plan::{Plan, Program};
use plimsoll_core::{Bytes, Op, TensorType};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What everything on one GPU shares.
pub(crate) struct Shared {
    /// cuDNN, opened when the first program wants it; none if it is not there, or could not be opened. First, so that its stream outlives it.
    dnn: OnceLock<Option<Arc<Dnn>>>,
    /// Where steps are computed.
    pub compute: Stream,
    /// Where batches are copied.
    pub copy: Stream,
    pub products: Option<Arc<Library>>,
    /// Who computes convolutions.
    pub convolutions: Convolutions,
    has_cudnn: bool,
    /// How many convolutions went which way.
    taken: Mutex<BTreeMap<String, usize>>,
    pub compiler: Compiler,
    /// Pinned memory that batches are made in, from where to where.
    pub slots: Mutex<Vec<Range<usize>>>,
    /// Last, so that it outlives what was made in it.
    pub context: Arc<Context>,
}

impl Shared {
    /// Makes the GPU this thread's.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind().map_err(|error| self.context.failed("choosing the GPU", error))
    }

    /// Whether bytes lie in pinned memory that batches are made in.
    pub fn is_slot(&self, bytes: &[u8]) -> bool {
        let given = bytes.as_ptr_range();
        let holds = |range: &Range<usize>| range.start <= given.start as usize && given.end as usize <= range.end;
        bytes.is_empty() || lock(&self.slots).iter().any(holds)
    }

    /// cuDNN on this GPU, if it is there; the context is current.
    pub fn dnn(&self) -> Option<&Arc<Dnn>> {
        let open = || match Dnn::open(&self.context, &self.compute) {
            Ok(dnn) => Some(Arc::new(dnn)),
            Err(refusal) => {
                self.took(&refusal);
                None
            }
        };
        self.dnn.get_or_init(|| self.has_cudnn.then(open).flatten()).as_ref()
    }

    /// Counts a convolution that went this way.
    pub fn took(&self, way: &str) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner).entry(way.to_string()).or_default() += 1;
    }

    /// Waits until nothing is under way.
    pub fn settle(&self) -> Result<(), DeviceError> {
        let waited = self.copy.wait().and_then(|()| self.compute.wait());
        waited.map_err(|error| self.context.failed("computing", error))
    }
}

/// An NVIDIA GPU.
pub struct CudaDevice {
    shared: Arc<Shared>,
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
        let shared = Shared {
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

    fn pace(&self) -> Arc<dyn Pace> {
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

    fn backing(&self, size: Bytes) -> Result<Arc<dyn Backing>, DeviceError> {
        Ok(Arc::new(PinnedStore::new(&self.shared, size)?))
    }

    fn reads_strips(&self) -> bool {
        true
    }

    fn makes_inlays(&self, maker: &Op, _: &TensorType, _: &Put) -> bool {
        program::makes_inlays(maker)
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
