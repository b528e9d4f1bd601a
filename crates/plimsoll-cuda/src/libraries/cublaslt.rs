//! Matrix products through cuBLASLt, in planned workspace. The algorithm is selected once when a program is loaded and
//! does not change: the first of the library's ranking, or one that was measured.

use super::driver::{Context, Stream};
use crate::algorithms::ComputeType;
use cudarc::cublaslt::{result, sys};
use plimsoll_core::DType;
use std::ffi::c_void;
use std::sync::Arc;

fn data_type(dtype: DType) -> sys::cudaDataType_t {
    match dtype {
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

/// The library.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    context: Arc<Context>,
}

// SAFETY: a handle may be used from any thread while the context is current.
unsafe impl Send for CublasLt {}
// SAFETY: cuBLASLt handles hold no state that calls change.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Opens it; the library must be present and the context current.
    pub fn open(context: &Arc<Context>) -> Result<CublasLt, String> {
        let handle = result::create_handle().map_err(|error| format!("cuBLASLt could not be opened: {error:?}"))?;
        Ok(CublasLt { handle, context: Arc::clone(context) })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `open` and destroyed once.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// `A·B` with `m × n` results and sums of length `k`, row-major, either operand optionally transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatmulRequest {
    /// m, n, k.
    pub extents: (usize, usize, usize),
    /// Which operands are transposed.
    pub transpose: (bool, bool),
    /// Types of both operands and of the result.
    pub types: (ComputeType, DType),
    /// Elements between the rows of A and of the result, if their rows are padded.
    pub pitches: [Option<usize>; 2],
    /// Whether a row of `n` numbers of the result's type is added to every row.
    pub bias: bool,
}

impl MatmulRequest {
    /// The request as text, under which measured algorithms are recorded.
    pub fn text(&self, added: bool, workspace: usize) -> String {
        let MatmulRequest { extents: (m, n, k), transpose: (a, b), types: (operands, result), pitches, bias } = *self;
        let operand = |transposed: bool| if transposed { 't' } else { 'n' };
        let pitch = |pitch: Option<usize>| pitch.map_or("-".to_string(), |pitch| pitch.to_string());
        format!(
            "matmul {m}x{n}x{k} {}{} {} {result} rows {} {}{}{} in {workspace}",
            operand(a),
            operand(b),
            operands.text(),
            pitch(pitches[0]),
            pitch(pitches[1]),
            if bias { " bias" } else { "" },
            if added { " added" } else { "" },
        )
    }
}

/// One product with its selected algorithm.
pub(crate) struct Matmul {
    library: Arc<CublasLt>,
    description: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: Algorithm,
    workspace: usize,
}

/// An algorithm with its configuration, as the library describes it.
#[derive(Clone, Copy)]
pub(crate) struct Algorithm(sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    /// The text in which it is recorded: its words, in hexadecimal.
    pub fn text(&self) -> String {
        self.0.data.map(|word| format!("{word:x}")).join(" ")
    }

    fn parse(text: &str) -> Option<Algorithm> {
        let words: Vec<u64> = text.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect::<Option<_>>()?;
        Some(Algorithm(sys::cublasLtMatmulAlgo_t { data: words.try_into().ok()? }))
    }
}

// SAFETY: descriptions are plain data that only this value refers to.
unsafe impl Send for Matmul {}

impl Matmul {
    /// The product with at most `workspace` bytes, by the algorithm that the library chose for an equal request, or
    /// else by its first choice. None if it has no algorithm.
    ///
    /// `bias` is the address of the row that is added, if there is one; it is read by every run.
    pub fn new(
        library: &Arc<CublasLt>,
        request: &MatmulRequest,
        bias: Option<u64>,
        workspace: usize,
        known: Option<Algorithm>,
    ) -> Option<Matmul> {
        let MatmulRequest { extents: (m, n, k), types: (operands, results), transpose: (transpose_a, transpose_b), pitches, .. } = *request;
        // The library is column-major: a row-major matrix is its transpose there, and (A·B)ᵀ = Bᵀ·Aᵀ.
        let compute = match operands.tf32 {
            true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let operands = operands.dtype;
        let layout = |dtype: DType, rows: usize, columns: usize, pitch: Option<usize>| {
            result::create_matrix_layout(data_type(dtype), rows as u64, columns as u64, pitch.unwrap_or(rows) as i64).ok()
        };
        let [a_pitch, c_pitch] = pitches;
        let left = if transpose_b { layout(operands, k, n, None)? } else { layout(operands, n, k, None)? };
        let right = if transpose_a { layout(operands, m, k, a_pitch)? } else { layout(operands, k, m, a_pitch)? };
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).ok()?;
        let mut product = Matmul {
            library: Arc::clone(library),
            description,
            layouts: [left, right, layout(results, n, m, c_pitch)?],
            algorithm: Algorithm(sys::cublasLtMatmulAlgo_t { data: [0; 8] }),
            workspace,
        };
        if let Some(address) = bias {
            product.add_bias(address)?;
        }
        product.transpose(transpose_a, transpose_b)?;
        product.algorithm = match known {
            Some(algorithm) => algorithm,
            None => *product.ranking(1).first()?,
        };
        Some(product)
    }

    /// The algorithm by which it is computed.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The library's version, for which algorithms are recorded.
    pub fn version() -> usize {
        // SAFETY: takes no arguments; the library is present.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// The library's rows are our columns, to which it adds a vector.
    fn add_bias(&mut self, address: u64) -> Option<()> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE;
        let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
        let attribute = (&raw const epilogue).cast();
        // SAFETY: this value owns the descriptor; the attribute is a 32-bit number.
        unsafe { result::set_matmul_desc_attribute(self.description, CUBLASLT_MATMUL_DESC_EPILOGUE, attribute, size_of_val(&epilogue)) }
            .ok()?;
        self.set_bias(address).ok()
    }

    /// Moves the row that is added, of a product that adds one.
    pub fn set_bias(&mut self, address: u64) -> Result<(), String> {
        let (name, attribute) = (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const address).cast());
        // SAFETY: this value owns the descriptor; the attribute is a pointer.
        unsafe { result::set_matmul_desc_attribute(self.description, name, attribute, size_of_val(&address)) }
            .map_err(|error| format!("the address of a bias was refused: {error:?}"))
    }

    fn transpose(&self, transpose_a: bool, transpose_b: bool) -> Option<()> {
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        for (attribute, transposed) in [(CUBLASLT_MATMUL_DESC_TRANSA, transpose_b), (CUBLASLT_MATMUL_DESC_TRANSB, transpose_a)] {
            // 0 is not transposed, 1 is transposed.
            let value = i32::from(transposed);
            // SAFETY: this value owns the descriptor, and the attribute is a 32-bit number.
            unsafe { result::set_matmul_desc_attribute(self.description, attribute, (&raw const value).cast(), size_of_val(&value)) }
                .ok()?;
        }
        Some(())
    }

    /// Up to `most` algorithms that need at most the workspace, fastest first by the library's ranking.
    pub fn ranking(&self, most: usize) -> Vec<Algorithm> {
        let Ok(preference) = result::create_matmul_pref() else { return Vec::new() };
        let [left, right, out] = self.layouts;
        // SAFETY: a result is plain data, for which zeros are valid.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = (0..most).map(|_| unsafe { std::mem::zeroed() }).collect();
        let mut count = 0;
        // SAFETY: all descriptors were created above and outlive the calls; the attribute is a size, and the buffer has
        // space for `most` results.
        let asked = unsafe {
            let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let limit = (&raw const self.workspace).cast::<c_void>();
            let limited = result::set_matmul_pref_attribute(preference, attribute, limit, size_of::<usize>());
            let asked = limited.and_then(|()| {
                let (handle, results) = (self.library.handle, found.as_mut_ptr());
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    self.description,
                    left,
                    right,
                    out,
                    out,
                    preference,
                    most as i32,
                    results,
                    &mut count,
                )
                .result()
            });
            let _ = result::destroy_matmul_pref(preference);
            asked
        };
        found.truncate(if asked.is_ok() { count.clamp(0, most as i32) as usize } else { 0 });
        found.retain(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= self.workspace);
        found.into_iter().map(|result| Algorithm(result.algo)).collect()
    }

    /// Selects an algorithm of the [ranking](Matmul::ranking).
    pub fn select(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
    }

    /// Selects a recorded algorithm, if the library accepts it for this product and workspace. Returns whether it does.
    pub fn select_recorded(&mut self, text: &str) -> bool {
        let Some(algorithm) = Algorithm::parse(text) else { return false };
        let [left, right, out] = self.layouts;
        // SAFETY: a result is plain data, for which zeros are valid.
        let mut checked: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: this value owns the descriptors; the library validates the algorithm, whatever its bits are.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(self.library.handle, self.description, left, right, out, out, &algorithm.0, &mut checked)
        };
        let fits = status.result().is_ok() && checked.workspaceSize <= self.workspace;
        if fits {
            self.algorithm = algorithm;
        }
        fits
    }

    /// Enqueues the product of A and B, with its result in C, added to another matrix of the same layout if there is
    /// one.
    ///
    /// # Safety
    ///
    /// The addresses are matrices of the created extents and workspace of the created size, valid until the stream has
    /// executed the product, and so is the bias.
    pub unsafe fn run(&self, [a, b, c]: [u64; 3], onto: Option<u64>, workspace: u64, stream: &Stream) -> Result<(), String> {
        let (one, scale) = (1f32, if onto.is_some() { 1f32 } else { 0f32 });
        let onto = onto.unwrap_or(c) as *const c_void;
        let [left, right, out] = self.layouts;
        let (a, b, c) = (a as *const c_void, b as *const c_void, c as *mut c_void);
        // SAFETY: guaranteed by the caller; both scale factors are read before the call returns. The libraries' stream
        // types are the same pointer.
        unsafe {
            result::matmul(
                self.library.handle,
                self.description,
                (&raw const one).cast(),
                (&raw const scale).cast(),
                b,
                left,
                a,
                right,
                onto,
                out,
                c,
                out,
                &raw const self.algorithm.0,
                workspace as *mut c_void,
                self.workspace,
                stream.raw.cast(),
            )
        }
        .map_err(|error| format!("a matrix product failed: {error:?}"))
    }
}

impl Drop for Matmul {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.description);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_differ_have_different_texts() {
        let plain = MatmulRequest {
            extents: (64, 32, 16),
            transpose: (false, true),
            types: (ComputeType::new(DType::F32, true), DType::F32),
            pitches: [None, Some(40)],
            bias: false,
        };
        assert_eq!(plain.text(false, 1024), "matmul 64x32x16 nt tf32 f32 rows - 40 in 1024");
        let texts = [
            plain.text(false, 1024),
            plain.text(true, 1024),
            plain.text(false, 2048),
            MatmulRequest { bias: true, ..plain }.text(false, 1024),
            MatmulRequest { transpose: (true, false), ..plain }.text(false, 1024),
            MatmulRequest { types: (ComputeType::new(DType::F32, false), DType::F32), ..plain }.text(false, 1024),
        ];
        assert_eq!(texts.iter().collect::<std::collections::BTreeSet<_>>().len(), texts.len());
    }

    #[test]
    fn algorithms_are_recorded_and_read_back() {
        let algorithm = Algorithm(sys::cublasLtMatmulAlgo_t { data: [0, 1, u64::MAX, 0xabc, 4, 5, 6, 7] });
        assert_eq!(algorithm.text(), "0 1 ffffffffffffffff abc 4 5 6 7");
        assert_eq!(Algorithm::parse(&algorithm.text()).map(|read| read.0.data), Some(algorithm.0.data));
        for damaged in ["", "0 1", "0 1 2 3 4 5 6 x", "0 1 2 3 4 5 6 7 8"] {
            assert!(Algorithm::parse(damaged).is_none(), "{damaged}");
        }
    }
}
