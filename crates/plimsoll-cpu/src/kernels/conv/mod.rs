//! Convolution over NHWC tensors and its two gradients, as implicit GEMMs.
//!
//! A filter is `[k_h, k_w, in_c / groups, out_c]`. The micro-kernel of [`crate::kernels::gemm`] takes one pointer per
//! row and run of taps, so a patch is read in place in the input, or widened from 16 bits on packing; taps in the
//! padding point to zeros. Depthwise convolutions have their own loops.

mod channels;
mod depthwise;
mod forward;
mod grad_filter;
mod grad_input;
mod output;
mod patches;
mod split_k;

pub use forward::{forward, forward_with, forward_workspace};
pub use grad_filter::{grad_filter, grad_filter_with, grad_filter_workspace};
pub use grad_input::{grad_input, grad_input_with, grad_input_workspace};
pub use output::ConvOutput;
pub use patches::HalfOperands;

/// The extents of a convolution. Pairs are `(height, width)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Input height.
    pub in_h: usize,
    /// Input width.
    pub in_w: usize,
    /// Input channels.
    pub in_c: usize,
    /// Output height.
    pub out_h: usize,
    /// Output width.
    pub out_w: usize,
    /// Output channels.
    pub out_c: usize,
    /// Filter height.
    pub k_h: usize,
    /// Filter width.
    pub k_w: usize,
    /// Input pixels between neighboring outputs.
    pub stride: (usize, usize),
    /// Zeros above and to the left of the input; those below and to the right follow from the output's extents.
    pub pad: (usize, usize),
    /// Input pixels between neighboring taps.
    pub dilation: (usize, usize),
    /// Number of groups (grouped convolution).
    pub groups: usize,
}

impl ConvShape {
    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.in_c
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.pixels() * self.out_c
    }

    /// Elements of the filter.
    pub fn filter_len(&self) -> usize {
        self.taps() * self.group_in() * self.out_c
    }

    fn pixels(&self) -> usize {
        self.batch * self.out_h * self.out_w
    }

    fn taps(&self) -> usize {
        self.k_h * self.k_w
    }

    fn group_in(&self) -> usize {
        self.in_c / self.groups
    }

    fn group_out(&self) -> usize {
        self.out_c / self.groups
    }

    /// Multiply-adds of one pass.
    fn work(&self) -> usize {
        self.output_len().saturating_mul(self.taps() * self.group_in())
    }

    /// Whether the convolution is a plain product of pixels and filter.
    fn pointwise(&self) -> bool {
        self.taps() == 1
            && self.stride == (1, 1)
            && self.pad == (0, 0)
            && self.groups == 1
            && (self.in_h, self.in_w) == (self.out_h, self.out_w)
    }

    /// Whether every channel has its own filters.
    fn depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_c
    }

    /// Whether some tap of some output is outside of the input.
    fn padded(&self) -> bool {
        let reach = |out: usize, stride: usize, k: usize, dilation: usize| (out - 1) * stride + (k - 1) * dilation + 1;
        self.pad != (0, 0)
            || reach(self.out_h, self.stride.0, self.k_h, self.dilation.0) > self.in_h
            || reach(self.out_w, self.stride.1, self.k_w, self.dilation.1) > self.in_w
    }

    /// The input row that tap row `k` of output row `out` reads, if it is not padding.
    #[inline(always)]
    fn in_row(&self, out: usize, k: usize) -> Option<usize> {
        (out * self.stride.0 + k * self.dilation.0).checked_sub(self.pad.0).filter(|&row| row < self.in_h)
    }

    /// The input column that tap column `k` of output column `out` reads, if it is not padding.
    #[inline(always)]
    fn in_col(&self, out: usize, k: usize) -> Option<usize> {
        (out * self.stride.1 + k * self.dilation.1).checked_sub(self.pad.1).filter(|&col| col < self.in_w)
    }

    fn check(&self, operands: [(&str, usize, usize); 3], workspace: usize, needed: usize) {
        assert!(
            self.groups > 0 && self.in_c.is_multiple_of(self.groups) && self.out_c.is_multiple_of(self.groups),
            "groups divide channels: {self:?}"
        );
        assert!(
            self.stride.0 > 0 && self.stride.1 > 0 && self.dilation.0 > 0 && self.dilation.1 > 0,
            "strides and dilations are positive: {self:?}"
        );
        for (name, len, expected) in operands {
            assert_eq!(len, expected, "the {name} of {self:?}");
        }
        assert!(workspace >= needed, "{self:?} needs {needed} floats of workspace, not {workspace}");
    }

    /// Panics if a length or a coordinate overflows: wrapped lengths could equal those of the operands. Called before
    /// any of them is computed.
    fn check_extents(&self) {
        let product = |factors: &[usize]| factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor));
        let reach = |out: usize, stride: usize, k: usize, dilation: usize, pad: usize, input: usize| {
            out.checked_mul(stride)?.checked_add(k.checked_mul(dilation)?)?.checked_add(pad)?.checked_add(input)
        };
        let fits = product(&[self.batch, self.in_h, self.in_w, self.in_c]).is_some()
            && product(&[self.batch, self.out_h, self.out_w, self.out_c]).is_some()
            && product(&[self.k_h, self.k_w, self.in_c, self.out_c]).is_some()
            && reach(self.out_h, self.stride.0, self.k_h, self.dilation.0, self.pad.0, self.in_h).is_some()
            && reach(self.out_w, self.stride.1, self.k_w, self.dilation.1, self.pad.1, self.in_w).is_some();
        assert!(fits, "the extents of {self:?} exceed the address space");
    }

    fn is_empty(&self) -> bool {
        self.input_len() == 0 || self.output_len() == 0 || self.filter_len() == 0
    }
}

/// Passes with fewer multiply-adds run on the caller's thread: waking another costs more.
const SERIAL: usize = 1 << 19;
