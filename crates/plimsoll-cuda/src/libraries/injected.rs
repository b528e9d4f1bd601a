//! Faults on request, so that what happens after one can be tested on a GPU that works.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// The variable that requests a fault.
pub(crate) const FAULT: &str = "PLIMSOLL_CUDA_FAULT";

/// A fault that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// `OP@RUN`: the first generated kernel of this op gets an address that is not mapped, in this run of a training
    /// program, counted from 1.
    Kernel { op: String, run: u64 },
    /// `reset@RUN`: the driver loses the GPU in this run.
    Reset { run: u64 },
    /// `driver@VERSION`: the driver supports CUDA up to this version, such as 12040.
    Driver { version: i32 },
}

impl InjectedFault {
    /// The fault that the environment requests, if any.
    pub fn requested() -> Option<InjectedFault> {
        InjectedFault::parse(&std::env::var(FAULT).ok()?)
    }

    fn parse(text: &str) -> Option<InjectedFault> {
        let (what, when) = text.split_once('@')?;
        Some(match what {
            "driver" => InjectedFault::Driver { version: when.parse().ok()? },
            "reset" => InjectedFault::Reset { run: when.parse().ok()? },
            op => InjectedFault::Kernel { op: op.to_string(), run: when.parse().ok()? },
        })
    }

    /// The op whose kernel fails in this run.
    pub fn op_in(&self, now: u64) -> Option<&str> {
        match self {
            InjectedFault::Kernel { op, run } if *run == now => Some(op),
            _ => None,
        }
    }

    /// The driver's error in this run.
    pub fn lost_in(&self, now: u64) -> Option<DriverError> {
        (*self == InjectedFault::Reset { run: now }).then_some(DriverError(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE))
    }
}

/// An address that no allocation has: pages at the start of the address space are never mapped.
pub(crate) const UNMAPPED: u64 = 0x1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_requested_by_name_and_run() {
        let kernel = |op: &str, run| Some(InjectedFault::Kernel { op: op.to_string(), run });
        for (text, fault) in [
            ("conv2d_grad_filter@3", kernel("conv2d_grad_filter", 3)),
            ("reset@12", Some(InjectedFault::Reset { run: 12 })),
            ("driver@12040", Some(InjectedFault::Driver { version: 12_040 })),
            ("reset", None),
            ("pointwise@x", None),
        ] {
            assert_eq!(InjectedFault::parse(text), fault, "{text}");
        }
        let fault = InjectedFault::parse("reset@2").unwrap();
        assert!(fault.lost_in(1).is_none() && fault.lost_in(2).is_some() && fault.op_in(2).is_none());
        let fault = InjectedFault::parse("reduce@2").unwrap();
        assert_eq!((fault.op_in(1), fault.op_in(2), fault.lost_in(2).is_some()), (None, Some("reduce"), false));
    }
}
