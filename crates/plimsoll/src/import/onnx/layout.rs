//! The order of axes in memory.

use super::OnnxImporter;
use super::layer::NodeLayer;
use super::values::{Computed, Found, is_identity};
use crate::nn::Lowering;
use plimsoll_core::ops::Transpose;
use plimsoll_core::shape::Shape;
use plimsoll_core::{Op, ValueId};
use std::sync::Arc;

impl OnnxImporter {
    /// The tensor with its axes in memory in this order.
    pub(super) fn ordered(&mut self, tensor: &Computed, order: &[usize]) -> Found<Computed> {
        if tensor.order == order {
            return Ok(tensor.clone());
        }
        let key = (tensor.value, [&tensor.order[..], order].concat());
        if let Some(known) = self.reordered.get(&key) {
            return Ok(known.clone().of(tensor.kind));
        }
        // Axis `i` of the result lies at this place now.
        let moves: Vec<usize> = order.iter().map(|axis| tensor.place(*axis)).collect();
        let shape = self.graph.shape(tensor.value).clone();
        let moved = Shape::new(moves.iter().map(|place| shape.dims()[*place]));
        let one = 1.into();
        let kept: Vec<usize> = moves.iter().copied().filter(|place| shape.dims()[*place] != one).collect();
        let result = match kept.is_sorted() {
            // Only axes of extent 1 move: the elements stay.
            true => self.node("reshape", &[tensor], move |g, x| g.reshape(x[0], moved.clone()))?,
            false => {
                self.node("transpose", &[tensor], move |g, x| g.add_one(Op::Transpose(Transpose { order: moves.clone() }), &[x[0]]))?
            }
        };
        let result = result.laid_out(order.to_vec()).of(tensor.kind);
        self.reordered.insert(key, result.clone());
        Ok(result)
    }

    /// The tensor as the file has it.
    pub(super) fn plain(&mut self, tensor: &Computed) -> Found<Computed> {
        let order: Vec<usize> = (0..tensor.order.len()).collect();
        self.ordered(tensor, &order)
    }

    /// The tensor `[batch, channels, …]` with its channels last.
    pub(super) fn channels_last(&mut self, tensor: &Computed) -> Found<Computed> {
        let rank = tensor.order.len();
        if rank < 2 {
            return Err(format!("it takes a batch of images, but has {rank} dimensions"));
        }
        let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
        self.ordered(tensor, &order)
    }

    /// An input of images: rows may have their channels first, as in the file, or last, as decoded images have them.
    pub(super) fn image(&mut self, tensor: &Computed, row: &[usize]) -> Found<Computed> {
        let &[channels, height, width] = row else { return Ok(tensor.clone()) };
        let first = Shape::batch_of([channels, height, width]);
        let last = Shape::batch_of([height, width, channels]);
        let lower = move |lowering: &mut Lowering<'_>, inputs: &[ValueId]| {
            let given = lowering.graph.shape(inputs[0]);
            if *given == last && *given != first {
                return Ok(inputs[0]);
            }
            lowering.graph.add_one(Op::Transpose(Transpose { order: vec![0, 2, 3, 1] }), inputs)
        };
        let name = self.current.clone();
        let kind = tensor.kind;
        let tensor = self.layer(&name, Arc::new(NodeLayer::new("channels_last", lower)), &[tensor])?;
        Ok(tensor.laid_out(vec![0, 2, 3, 1]).of(kind))
    }

    /// Tensors of the same order of axes and rank, as far as operators on every element need it.
    pub(super) fn aligned(&mut self, tensors: &[Computed]) -> Found<(Vec<Computed>, Vec<usize>)> {
        let rank = tensors.iter().map(|tensor| tensor.order.len()).max().unwrap_or(0);
        let leading = tensors.iter().filter(|tensor| tensor.order.len() == rank && !is_identity(&tensor.order));
        // The largest tensor stays where it is.
        let size = |tensor: &&Computed| {
            let elements = self.graph.shape(tensor.value).elements();
            (elements.is_batch(), elements.factor())
        };
        let leading = leading.max_by_key(size);
        let plain = tensors.iter().filter(|tensor| tensor.order.len() == rank && is_identity(&tensor.order)).max_by_key(size);
        let order = match (leading, plain) {
            (Some(leading), Some(plain)) if size(&leading) < size(&plain) => plain.order.clone(),
            (Some(leading), _) => leading.order.clone(),
            (None, _) => (0..rank).collect(),
        };
        let mut aligned = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let full = match tensor.order.len() == rank {
                true => tensor.clone(),
                false => {
                    let tensor = self.plain(tensor)?;
                    if is_identity(&order) {
                        aligned.push(tensor);
                        continue;
                    }
                    let missing = rank - tensor.order.len();
                    let dims = self.graph.shape(tensor.value).dims().to_vec();
                    let shape = Shape::new(std::iter::repeat_n(1.into(), missing).chain(dims));
                    let kind = tensor.kind;
                    self.node("reshape", &[&tensor], move |g, x| g.reshape(x[0], shape.clone()))?.of(kind)
                }
            };
            aligned.push(self.ordered(&full, &order)?);
        }
        Ok((aligned, order))
    }

    /// The tensor without axes of extent 1.
    pub(super) fn squeezed(&mut self, tensor: &Computed, axes: &[usize]) -> Found<Computed> {
        let dims = self.graph.shape(tensor.value).dims().to_vec();
        let kept: Vec<usize> = (0..dims.len()).filter(|place| !axes.contains(&tensor.order[*place])).collect();
        if (0..dims.len()).any(|place| axes.contains(&tensor.order[place]) && dims[place] != 1.into()) {
            return Err(format!("axes {axes:?} of {} have other extents than 1", Shape::new(self.dims(tensor))));
        }
        let order: Vec<usize> =
            kept.iter().map(|place| tensor.order[*place] - axes.iter().filter(|a| **a < tensor.order[*place]).count()).collect();
        let shape = Shape::new(kept.iter().map(|place| dims[*place]));
        let kind = tensor.kind;
        Ok(self.node("reshape", &[tensor], move |g, x| g.reshape(x[0], shape.clone()))?.laid_out(order).of(kind))
    }

    /// The same elements under another shape of the file's graph.
    pub(super) fn reshaped(&mut self, tensor: &Computed, shape: Shape) -> Found<Computed> {
        let tensor = self.plain(tensor)?;
        if *self.graph.shape(tensor.value) == shape {
            return Ok(tensor);
        }
        let kind = tensor.kind;
        Ok(self.node("reshape", &[&tensor], move |g, x| g.reshape(x[0], shape.clone()))?.of(kind))
    }
}
