//! Tensors in files: type and shape, and their bytes, read piece by piece.

use crate::error::{Result, damaged, unsupported};
use crate::source::Region;
use std::sync::Arc;

/// A data type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DType {
    F16,
    BF16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

impl DType {
    /// Bytes of an element.
    pub fn size(self) -> u64 {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// Its name in NumPy, and `bfloat16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::Bool => "bool",
        }
    }

    /// An element as a number.
    fn number(self, bytes: &[u8]) -> f64 {
        macro_rules! read {
            ($ty:ty) => {
                <$ty>::from_le_bytes(bytes.try_into().expect("the size of an element")) as f64
            };
        }
        match self {
            DType::F16 => f64::from(f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))),
            DType::BF16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)),
            DType::F32 => read!(f32),
            DType::F64 => read!(f64),
            DType::I8 => read!(i8),
            DType::I16 => read!(i16),
            DType::I32 => read!(i32),
            DType::I64 => read!(i64),
            DType::U8 => read!(u8),
            DType::U16 => read!(u16),
            DType::U32 => read!(u32),
            DType::U64 => read!(u64),
            DType::Bool => f64::from(u8::from(bytes[0] != 0)),
        }
    }
}

fn f16_to_f32(half: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(half >> 15) << 31, u32::from(half >> 10) & 31, u32::from(half) & 1023);
    match exponent {
        // Subnormal numbers are multiples of 2⁻²⁴.
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        31 => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// A tensor in a file, not read yet.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions.
    pub shape: Vec<u64>,
    data: Data,
}

/// Where the elements are, little-endian and in row-major order.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Nowhere: all are zero.
    Zeros,
    /// One after the other.
    Stored(Region),
    /// In chunks, as HDF5 stores compressed datasets.
    Chunked(Arc<dyn Chunked>),
}

/// The chunk that was decompressed last, by its index.
pub(crate) type HeldChunk = Option<(usize, Vec<u8>)>;

/// Elements in chunks that are decompressed one at a time.
pub(crate) trait Chunked: std::fmt::Debug + Send + Sync {
    /// Fills `out` with the bytes from `at` of a tensor of this shape.
    fn read_into(&self, shape: &[u64], at: u64, out: &mut [u8], held: &mut HeldChunk) -> Result<()>;
}

impl Tensor {
    /// A tensor whose elements are stored one after the other; `what` names it in errors.
    pub fn stored(dtype: DType, shape: Vec<u64>, region: Region, what: &str) -> Result<Tensor> {
        let tensor = Tensor { dtype, shape, data: Data::Stored(region.clone()) };
        match tensor.checked_bytes() {
            Some(bytes) if bytes == region.length() => Ok(tensor),
            bytes => {
                let needed = bytes.map_or("too many".to_string(), |bytes| bytes.to_string());
                let ty = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
                damaged(format!("{what} is {ty}, which takes {needed} bytes, but it has {}", region.length()))
            }
        }
    }

    /// A tensor in memory.
    pub fn in_memory(dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) -> Result<Tensor> {
        Tensor::stored(dtype, shape, Region::bytes(bytes), "a tensor in memory")
    }

    /// A tensor of zeros, which takes no memory.
    pub fn zeros(dtype: DType, shape: Vec<u64>) -> Tensor {
        Tensor::new(dtype, shape, Data::Zeros)
    }

    pub(crate) fn new(dtype: DType, shape: Vec<u64>, data: Data) -> Tensor {
        Tensor { dtype, shape, data }
    }

    fn checked_bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.size(), |bytes, dim| bytes.checked_mul(*dim))
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.checked_bytes().unwrap_or(0) / self.dtype.size()
    }

    /// Prepares reading: a chunked tensor holds one chunk at a time.
    pub fn reader(&self) -> TensorReader<'_> {
        TensorReader { tensor: self, chunk: None, piece: Vec::new() }
    }

    /// All elements as numbers; for small tensors, such as shapes and axes, of at most `limit` elements.
    pub fn numbers(&self, limit: u64) -> Result<Vec<f64>> {
        let elements = self.elements();
        if elements > limit {
            return unsupported(format!("a tensor of {elements} elements stands where at most {limit} are expected"));
        }
        let size = self.dtype.size() as usize;
        let mut bytes = vec![0; elements as usize * size];
        self.reader().bytes(0, &mut bytes)?;
        Ok(bytes.chunks_exact(size).map(|element| self.dtype.number(element)).collect())
    }

    /// All elements as integers; see [`Tensor::numbers`].
    pub fn integers(&self, limit: u64) -> Result<Vec<i64>> {
        if self.dtype == DType::I64 {
            let elements = self.elements();
            if elements <= limit {
                let mut bytes = vec![0; elements as usize * 8];
                self.reader().bytes(0, &mut bytes)?;
                return Ok(bytes.chunks_exact(8).map(|element| i64::from_le_bytes(element.try_into().expect("eight"))).collect());
            }
        }
        Ok(self.numbers(limit)?.into_iter().map(|number| number as i64).collect())
    }
}

/// Bytes that are converted at a time.
const PIECE: usize = 16 << 10;

/// Reads a tensor's elements from any position.
pub struct TensorReader<'a> {
    tensor: &'a Tensor,
    /// The chunk that was decompressed last.
    chunk: HeldChunk,
    piece: Vec<u8>,
}

impl TensorReader<'_> {
    /// Fills `out` with the tensor's bytes from `at`.
    pub fn bytes(&mut self, at: u64, out: &mut [u8]) -> Result<()> {
        match &self.tensor.data {
            Data::Zeros => out.fill(0),
            Data::Stored(region) => region.read(at, out, "a tensor")?,
            Data::Chunked(chunks) => chunks.read_into(&self.tensor.shape, at, out, &mut self.chunk)?,
        }
        Ok(())
    }

    /// Fills `out` with the elements from `at`, cast to `f32`.
    pub fn f32s(&mut self, at: u64, out: &mut [f32]) -> Result<()> {
        let (dtype, size) = (self.tensor.dtype, self.tensor.dtype.size() as usize);
        let mut done = 0;
        let mut piece = std::mem::take(&mut self.piece);
        while done < out.len() {
            let count = (PIECE / size).min(out.len() - done);
            piece.resize(count * size, 0);
            self.bytes((at + done as u64) * size as u64, &mut piece)?;
            let elements = out[done..done + count].iter_mut().zip(piece.chunks_exact(size));
            match dtype {
                DType::F32 => elements.for_each(|(out, bytes)| *out = f32::from_le_bytes(bytes.try_into().expect("four"))),
                _ => elements.for_each(|(out, bytes)| *out = dtype.number(bytes) as f32),
            }
            done += count;
        }
        self.piece = piece;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_exact() {
        for (bits, value) in
            [(0x3C00, 1.0), (0xC000, -2.0), (0x7BFF, 65504.0), (0x0001, 5.960_464_5e-8), (0x8000, -0.0), (0x3555, 0.333_251_95)]
        {
            assert_eq!(f16_to_f32(bits), value);
        }
        assert!(f16_to_f32(0x7C00).is_infinite() && f16_to_f32(0x7E00).is_nan());
    }

    #[test]
    fn sizes_beyond_the_file_are_refused_before_they_are_allocated() {
        let error = Tensor::stored(DType::F32, vec![1 << 40, 1 << 40], Region::bytes(vec![0; 16]), "`w`").unwrap_err();
        assert!(error.to_string().contains("takes too many bytes, but it has 16"), "{error}");
    }
}
