//! What to do about errors of the driver.

use cudarc::driver::sys::CUresult;

/// The variable that runs ops one after the other, so that an error names its op.
pub(crate) const SYNC: &str = "PLIMSOLL_CUDA_SYNC";

/// What to do about an error, or an empty text.
pub(crate) fn advice(error: CUresult) -> &'static str {
    use CUresult::{
        CUDA_ERROR_ASSERT, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    };
    match error {
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_ASSERT => {
            "; a kernel failed: run again with PLIMSOLL_CUDA_SYNC=1 to see which op it was; checkpoints are intact, and --resume continues from \
             the last one"
        }
        CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUDA_ERROR_NO_DEVICE
        | CUDA_ERROR_SYSTEM_NOT_READY
        | CUDA_ERROR_UNKNOWN => {
            "; the GPU failed or was reset: check it with `nvidia-smi`; checkpoints are intact, and --resume continues from the last one"
        }
        CUDA_ERROR_OUT_OF_MEMORY => {
            "; another process may have taken memory of the GPU: see `nvidia-smi`, or give a smaller --device-memory than what is free"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        | CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "; the driver does not support this version of CUDA: update the driver, or install the NVRTC of its version"
        }
        _ => "",
    }
}

/// Whether an error of the driver is that of a kernel, after which nothing runs on the GPU any more.
pub(crate) fn is_of_kernel(error: CUresult) -> bool {
    advice(error).starts_with("; a kernel failed")
}

/// What to do about the error of a kernel whose op is known.
pub(crate) const OP_FAILED: &str =
    "; this is a bug, please report it with plan.json; checkpoints are intact, and --resume continues from the last one";

/// Why a driver that supports CUDA up to one version cannot run what an NVRTC of another version compiles, if it
/// cannot. Versions are as the driver reports them: 13000 is 13.0. Within a major version, machine code of a newer
/// compiler runs.
pub(crate) fn version_mismatch(driver: i32, compiler: i32) -> Option<String> {
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    (driver > 0 && compiler > 0 && driver / 1000 < compiler / 1000).then(|| {
        format!(
            "the driver supports CUDA {}, but NVRTC is of CUDA {}: update the driver, or install NVRTC {}; or compute with `--device cpu`",
            text(driver),
            text(compiler),
            driver / 1000
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let cases = [
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "run again with PLIMSOLL_CUDA_SYNC=1"),
            (CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, "the GPU failed or was reset"),
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "another process may have taken memory"),
            (CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "update the driver"),
        ];
        for (error, part) in cases {
            assert!(advice(error).contains(part), "{error:?}");
        }
        assert!(advice(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).contains("--resume") && advice(CUresult::CUDA_ERROR_INVALID_VALUE).is_empty());
        assert!(advice(CUresult::CUDA_ERROR_LAUNCH_FAILED).contains(SYNC));
    }

    #[test]
    fn a_driver_older_than_the_compiler_is_refused() {
        assert_eq!(
            (version_mismatch(13_000, 13_000), version_mismatch(13_000, 13_020), version_mismatch(13_000, 12_080)),
            (None, None, None)
        );
        // Versions that could not be read are no reason.
        assert_eq!((version_mismatch(0, 13_000), version_mismatch(13_000, 0)), (None, None));
        assert_eq!(
            version_mismatch(12_040, 13_000).unwrap(),
            "the driver supports CUDA 12.4, but NVRTC is of CUDA 13.0: update the driver, or install NVRTC 12; or compute with `--device cpu`"
        );
    }
}
