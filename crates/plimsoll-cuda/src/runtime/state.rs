//! The shared state of one GPU: its context, streams, library handles and compiler.

use crate::algorithms::convolution::Convolutions;
use crate::algorithms::measured::{MeasuredAlgorithms, Recorded};
use crate::libraries::cublaslt::{CublasLt, Matmul};
use crate::libraries::cudnn::{self, Cudnn};
use crate::libraries::driver::{Context, Event, Stream};
use crate::libraries::injected::InjectedFault;
use crate::libraries::kernel_cache::key;
use crate::libraries::nvrtc::Compiler;
use crate::runtime::exchange::{Exchange, Waited};
use crate::runtime::start_times::StartTimes;
use plimsoll_core::device::DeviceError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Receives how many of some things are done, and how many there are.
pub(crate) type Report = Box<dyn FnMut(usize, usize) + Send>;

/// The shared state of one GPU.
pub(crate) struct DeviceState {
    /// cuDNN, opened on first use; none if it is not available or failed to open. First field, so that its stream
    /// outlives it.
    pub cudnn: OnceLock<Option<Arc<Cudnn>>>,
    /// The compute stream.
    pub compute: Stream,
    /// The stream for copies of batches.
    pub copy: Stream,
    pub products: Option<Arc<CublasLt>>,
    /// The ranks that this process trains with, if there are several.
    pub exchange: Option<Exchange>,
    /// Which implementations of convolutions may be selected.
    pub convolutions: Convolutions,
    pub has_cudnn: bool,
    /// Whether the GPU has tensor cores for both 16-bit types.
    pub has_tensor_cores: bool,
    /// Number of convolutions per implementation.
    pub convolution_algorithms: Mutex<BTreeMap<String, usize>>,
    pub compiler: Arc<Compiler>,
    /// Whether each op is waited for, so that an error names it.
    pub one_by_one: bool,
    /// A fault that was requested, to test what happens then.
    pub fault: Option<InjectedFault>,
    /// Whether the algorithms of libraries are measured, instead of the first of their ranking.
    pub measures_algorithms: bool,
    pub algorithms: Mutex<MeasuredAlgorithms>,
    /// Receives how many of a program's library calls are selected, while a program is loaded that measures them.
    pub progress: Mutex<Option<Report>>,
    /// What opening the GPU and loading programs took so far.
    pub start_times: StartTimes,
    /// Address ranges of the pinned slots that pipelines assemble batches in.
    pub slots: Mutex<Vec<Range<usize>>>,
    /// Last field, so that it outlives everything created in it.
    pub context: Arc<Context>,
}

impl DeviceState {
    /// Makes the context current on this thread.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind().map_err(|error| self.context.failed("choosing the GPU", error))
    }

    /// Whether bytes are in a pinned slot.
    pub fn is_slot(&self, bytes: &[u8]) -> bool {
        let given = bytes.as_ptr_range();
        let holds = |range: &Range<usize>| range.start <= given.start as usize && given.end as usize <= range.end;
        bytes.is_empty() || lock(&self.slots).iter().any(holds)
    }

    /// Whether generated kernels use tensor cores.
    pub fn tensor_cores(&self) -> bool {
        self.has_tensor_cores && self.convolutions != Convolutions::Generated
    }

    /// cuDNN on this GPU, if available; the context is current.
    pub fn cudnn(&self) -> Option<&Arc<Cudnn>> {
        let open = || match self.start_times.time("cudnn_open", || Cudnn::open(&self.context, &self.compute)) {
            Ok(cudnn) => Some(Arc::new(cudnn)),
            Err(refusal) => {
                self.took(&refusal);
                None
            }
        };
        self.cudnn.get_or_init(|| self.has_cudnn.then(open).flatten()).as_ref()
    }

    /// Counts a convolution of this implementation.
    pub fn took(&self, way: &str) {
        *self.convolution_algorithms.lock().unwrap_or_else(PoisonError::into_inner).entry(way.to_string()).or_default() += 1;
    }

    /// Reports how many of a program's library calls have their algorithm, if algorithms are measured.
    pub fn report_progress(&self, done: usize, all: usize) {
        if let Some(report) = lock(&self.progress).as_mut().filter(|_| self.measures_algorithms) {
            report(done, all);
        }
    }

    /// Stores measured algorithms with the compiled kernels.
    pub fn store_algorithms(&self, measured: &Recorded) {
        if let Some(cache) = self.compiler.cache() {
            cache.put_algorithms(&self.algorithms_key(), measured);
        }
    }

    /// The stored algorithms of this GPU and these versions of the libraries.
    pub fn stored_algorithms(&self) -> Recorded {
        self.compiler.cache().map(|cache| cache.algorithms(&self.algorithms_key())).unwrap_or_default()
    }

    fn algorithms_key(&self) -> String {
        let products = if self.products.is_some() { Matmul::version() } else { 0 };
        key(&[&self.context.model().unwrap_or_default(), &products.to_string(), &cudnn::version().to_string()])
    }

    /// Waits until an event of a run has occurred, and names the ranks if one of them does not take part.
    pub fn wait_for_run(&self, event: &Event, what: &str) -> Result<(), DeviceError> {
        let waited = self.exchange.as_ref().map_or_else(|| event.wait().map_err(Waited::Driver), |exchange| exchange.wait(event));
        waited.map_err(|error| match error {
            Waited::Driver(error) => self.context.failed(what, error),
            Waited::Ranks(what) => DeviceError::Failed { device: self.context.name(), what },
        })
    }

    /// Waits until the GPU is idle.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let waited = self.copy.wait().and_then(|()| self.compute.wait());
        waited.map_err(|error| self.context.failed("computing", error))
    }
}

/// Locks even if poisoned: the data is valid after a panic.
pub(crate) fn lock<T>(behind: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    behind.lock().unwrap_or_else(PoisonError::into_inner)
}
