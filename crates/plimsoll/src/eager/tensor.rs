//! The tensor: a reference-counted handle on a block of memory, or a value of a graph that is traced.

use super::context::{Allocated, Context};
use super::element::Element;
use super::error::{Error, Result};
use plimsoll_core::{Bytes, DType, Shape, TensorType, ValueId};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A tensor. Ops on it run at once; clones share its memory, which is given back with the last of them.
///
/// ```
/// use plimsoll::eager::Tensor;
/// let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], [2, 2])?;
/// let y = (&x * 2.0)?.matmul(&x)?;
/// assert_eq!(y.to_vec::<f32>()?, [14.0, 20.0, 30.0, 44.0]);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    id: u64,
    ty: TensorType,
    data: Data,
    made: &'static Location<'static>,
}

/// The values of a tensor.
pub(super) enum Data {
    /// A block of its own.
    Own(Allocated),
    /// The block of another tensor, under another shape.
    View(Tensor),
    /// A value of the graph of this trace.
    Traced(u64, ValueId),
}

static IDS: AtomicU64 = AtomicU64::new(0);

impl Tensor {
    pub(super) fn new(ty: TensorType, data: Data, made: &'static Location<'static>) -> Tensor {
        Tensor(Arc::new(Inner { id: IDS.fetch_add(1, Relaxed), ty, data, made }))
    }

    /// The same elements as another tensor, which a tape sees as a new one.
    pub(super) fn alias(&self, ty: TensorType, made: &'static Location<'static>) -> Tensor {
        let data = match &self.0.data {
            Data::Own(_) => Data::View(self.clone()),
            Data::View(base) => Data::View(base.clone()),
            Data::Traced(trace, value) => Data::Traced(*trace, *value),
        };
        Tensor::new(ty, data, made)
    }

    /// Identity of the handle; clones share it.
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    /// Identity of the memory.
    pub(super) fn memory_id(&self) -> u64 {
        if let Data::View(base) = &self.0.data { base.id() } else { self.id() }
    }

    pub(super) fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// The value and its trace, inside of a traced closure.
    pub(super) fn traced(&self) -> Option<(u64, ValueId)> {
        if let Data::Traced(trace, value) = self.0.data { Some((trace, value)) } else { None }
    }

    /// The block of the values.
    pub(super) fn allocated(&self, op: &'static str) -> Result<&Allocated> {
        match &self.0.data {
            Data::Own(block) => Ok(block),
            Data::View(base) => base.allocated(op),
            Data::Traced(..) => Err(Error::Escaped(op)),
        }
    }

    /// Its dimensions, outermost first. Empty for a scalar.
    ///
    /// # Panics
    /// Inside of a layer or loss of a [`Trainer`](crate::Trainer), whose batch dimension is no number; see
    /// [`Tensor::shape`].
    pub fn dims(&self) -> Vec<usize> {
        self.0.ty.shape.dims().iter().map(|dim| dim.as_fixed().expect("the shape has no batch dimension")).collect()
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.0.ty.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.ty.shape.rank()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.ty.shape.elements().bind(1)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> Bytes {
        self.0.ty.bytes(1)
    }

    /// The line of the program that made it.
    pub fn made_at(&self) -> &'static Location<'static> {
        self.0.made
    }

    /// The context it is in.
    ///
    /// # Errors
    /// If it is part of a trace.
    pub fn context(&self) -> Result<&Context> {
        Ok(&self.allocated("context")?.context)
    }

    /// The name of its device.
    ///
    /// # Errors
    /// If it is part of a trace.
    pub fn device(&self) -> Result<&str> {
        Ok(self.context()?.name())
    }

    /// Its bytes, as stored.
    pub(super) fn to_bytes(&self, op: &'static str) -> Result<Vec<u8>> {
        if self.traced().is_some() {
            return Err(Error::Traced(op));
        }
        let mut bytes = vec![0; self.bytes().get()];
        self.allocated(op)?.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Its elements, copied to the host. Real numbers of 16 bits can be read as `f32`.
    ///
    /// # Errors
    /// If the elements have another type, or are not known yet.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let bytes = self.to_bytes("to_vec")?;
        T::read(self.dtype(), &bytes).ok_or(Error::DType { stored: self.dtype(), asked: T::DTYPE })
    }

    /// Its only element.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], or if it has more than one element.
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.len() != 1 {
            return Err(Error::Invalid { op: "item", what: format!("takes a tensor of one element, but got {}", self.ty()) });
        }
        Ok(self.to_vec()?[0])
    }
}
