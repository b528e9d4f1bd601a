//! Symbolic tensors, which connect the layers of a model.

/// A symbolic tensor: the output of a layer, or an input of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolicTensor(pub(super) Source);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Input(usize),
    Layer(usize),
}
