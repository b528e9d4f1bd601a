//! What everything on one GPU shares: its context, streams, library handles and compiler.

use crate::algorithms::convolution::Convolutions;
use crate::libraries::cublaslt::CublasLt;
use crate::libraries::cudnn::Cudnn;
use crate::libraries::driver::{Context, Stream};
use crate::libraries::nvrtc::Compiler;
use plimsoll_core::device::DeviceError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What everything on one GPU shares.
pub(crate) struct DeviceState {
    /// cuDNN, opened when the first program wants it; none if it is not there, or could not be opened. First, so that its stream outlives it.
    pub cudnn: OnceLock<Option<Arc<Cudnn>>>,
    /// Where steps are computed.
    pub compute: Stream,
    /// Where batches are copied.
    pub copy: Stream,
    pub products: Option<Arc<CublasLt>>,
    /// Which implementations of convolutions may be selected.
    pub convolutions: Convolutions,
    pub has_cudnn: bool,
    /// How many convolutions each implementation computes.
    pub convolution_algorithms: Mutex<BTreeMap<String, usize>>,
    pub compiler: Compiler,
    /// Address ranges of the pinned slots that pipelines assemble batches in.
    pub slots: Mutex<Vec<Range<usize>>>,
    /// Last, so that it outlives what was made in it.
    pub context: Arc<Context>,
}

impl DeviceState {
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
    pub fn cudnn(&self) -> Option<&Arc<Cudnn>> {
        let open = || match Cudnn::open(&self.context, &self.compute) {
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

    /// Waits until nothing is under way.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let waited = self.copy.wait().and_then(|()| self.compute.wait());
        waited.map_err(|error| self.context.failed("computing", error))
    }
}

/// Takes a poisoned lock all the same: the data it guards is valid after a panic.
pub(crate) fn lock<T>(behind: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    behind.lock().unwrap_or_else(PoisonError::into_inner)
}
