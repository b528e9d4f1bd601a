//! Convolutions over one or two axes.

use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value};
use super::super::{OnnxImporter, owner};
use super::Mapping;
use crate::nn::{Conv2D, Padding};
use plimsoll_core::ops::{Conv2d, Conv2dGradInput, Window};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{DType, Op};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[("Conv", conv), ("ConvTranspose", conv_transpose)];

/// Sliding windows over all axes behind the channels.
#[derive(Clone, Debug)]
pub(super) struct WindowAttributes {
    pub size: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    /// Elements before and after, by axis.
    pub pads: Vec<(usize, usize)>,
}

impl WindowAttributes {
    /// The windows of a node over images of these extents.
    pub fn read(c: &NodeCall<'_>, size: Vec<usize>, image: &[usize]) -> Found<WindowAttributes> {
        let rank = image.len();
        let list = |name: &str| -> Found<Vec<usize>> { Ok(c.sizes(name)?.unwrap_or_else(|| vec![1; rank])) };
        let (stride, dilation) = (list("strides")?, list("dilations")?);
        if size.len() != rank || stride.len() != rank || dilation.len() != rank {
            return Err(format!("its windows do not have {rank} axes"));
        }
        if size.iter().chain(&stride).chain(&dilation).any(|number| *number == 0) {
            return Err("sizes, strides and dilations of windows are at least 1".to_string());
        }
        let reach = |axis: usize| (size[axis] - 1) * dilation[axis] + 1;
        let same = |lower: bool| {
            (0..rank)
                .map(|axis| {
                    let moved = (image[axis].div_ceil(stride[axis])).saturating_sub(1) * stride[axis];
                    let total = (moved + reach(axis)).saturating_sub(image[axis]);
                    let small = total / 2;
                    if lower { (total - small, small) } else { (small, total - small) }
                })
                .collect()
        };
        let pads = match c.text("auto_pad", "NOTSET")?.as_str() {
            "SAME_UPPER" => same(false),
            "SAME_LOWER" => same(true),
            "VALID" => vec![(0, 0); rank],
            _ => {
                let pads = c.sizes("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
                if pads.len() != 2 * rank {
                    return Err(format!("it has {} pads for {rank} axes", pads.len()));
                }
                (0..rank).map(|axis| (pads[axis], pads[axis + rank])).collect()
            }
        };
        Ok(WindowAttributes { size, stride, dilation, pads })
    }

    /// The same over two axes; a single axis is that of the columns.
    pub fn flat(&self) -> Found<Window> {
        let pair = |list: &[usize]| match *list {
            [one] => Ok((1, one)),
            [rows, columns] => Ok((rows, columns)),
            _ => Err(format!("windows over {} axes are not imported; those over 1 and 2 are", list.len())),
        };
        let (pad_rows, pad_columns) = match self.pads[..] {
            [columns] => ((0, 0), columns),
            [rows, columns] => (rows, columns),
            _ => Default::default(),
        };
        Ok(Window { size: pair(&self.size)?, stride: pair(&self.stride)?, dilation: pair(&self.dilation)?, pad_rows, pad_columns })
    }
}

impl OnnxImporter {
    /// Extents of the axes behind the channels.
    pub(super) fn image_extents(&self, x: &Computed) -> Found<Vec<usize>> {
        let dims = self.dims(x);
        let extents = dims.iter().skip(2).map(|dim| dim.as_fixed()).collect::<Option<Vec<usize>>>();
        extents.filter(|extents| !extents.is_empty()).ok_or_else(|| format!("it takes images, but got {}", Shape::new(dims)))
    }

    /// Channels last, with two axes of windows: a sequence is an image of one row.
    pub(super) fn as_image(&mut self, x: &Computed) -> Found<Computed> {
        let x = self.channels_last(x)?;
        match self.graph.shape(x.value).dims() {
            &[batch, time, channels] => {
                let shape = Shape::new([batch, Dim::fixed(1), time, channels]);
                self.node("reshape", &[&x], move |g, x| g.reshape(x[0], shape.clone()))
            }
            _ => Ok(x),
        }
    }

    /// The result of an operator on images, `[batch, height, width, channels]` in memory, as in the file.
    pub(super) fn as_in_file(&mut self, y: Computed, rank: usize) -> Found<Computed> {
        if rank != 3 {
            return Ok(y.laid_out(vec![0, 2, 3, 1]));
        }
        let &[batch, _, time, channels] = self.graph.shape(y.value).dims() else { return Err("it is not an image".to_string()) };
        let shape = Shape::new([batch, time, channels]);
        Ok(self.node("reshape", &[&y], move |g, x| g.reshape(x[0], shape.clone()))?.laid_out(vec![0, 2, 1]))
    }
}

/// The dimensions of a filter for images of this rank.
fn filter_extents(i: &OnnxImporter, filter: &Value, rank: usize) -> Found<Vec<usize>> {
    let dims = fixed(&i.shape_of(filter))?;
    if dims.len() == rank { Ok(dims) } else { Err(format!("its filter has {} dimensions for images of {rank}", dims.len())) }
}

fn conv(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let (filter, bias) = (c.input(1)?, c.given(2));
    let (rank, image) = (x.order.len(), i.image_extents(&x)?);
    let filter_dims = filter_extents(i, &filter, rank)?;
    let windows = WindowAttributes::read(c, filter_dims[2..].to_vec(), &image)?;
    let window = windows.flat()?;
    let groups = usize::try_from(c.int("group", 1)?).unwrap_or(0);
    let x = i.as_image(&x)?;
    let own_bias = i.own_weight(bias.as_ref(), 1);
    if let (Some(weight), true) = (i.own_weight(Some(&filter), rank), bias.is_none() || own_bias.is_some()) {
        let name = owner(&weight.name).unwrap_or_else(|| i.current.clone());
        let name = i.unique(&name);
        i.names.remove(&name);
        let order: Vec<usize> = (2..rank).chain([1, 0]).collect();
        i.insert_weight(&name, "kernel", &weight, &order);
        if let Some(bias) = &own_bias {
            i.insert_weight(&name, "bias", bias, &[0]);
        }
        let padding = Padding::Explicit { rows: window.pad_rows, columns: window.pad_columns };
        let layer = Conv2D::new(filter_dims[0], 1).size(window.size.0, window.size.1).stride(window.stride.0, window.stride.1);
        let layer = layer.dilation(window.dilation.0, window.dilation.1).groups(groups).padding(padding).bias(own_bias.is_some());
        let y = i.layer(&name, Arc::new(layer), &[&x])?;
        return Ok(vec![i.as_in_file(y, rank)?.into()]);
    }
    let filter = i.computed(&filter)?;
    let order: Vec<usize> = (2..rank).chain([1, 0]).collect();
    let filter = i.ordered(&filter, &order)?;
    let shape = Shape::fixed([window.size.0, window.size.1, filter_dims[1], filter_dims[0]]);
    let y = i.node("conv2d", &[&x, &filter], move |g, x| {
        let filter = g.reshape(x[1], shape.clone())?;
        g.add_one(Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype: DType::F32 }), &[x[0], filter])
    })?;
    let y = with_bias(i, y, bias.as_ref())?;
    Ok(vec![i.as_in_file(y, rank)?.into()])
}

/// Adds a vector to the channels, which are last.
fn with_bias(i: &mut OnnxImporter, y: Computed, bias: Option<&Value>) -> Found<Computed> {
    let Some(bias) = bias else { return Ok(y) };
    let bias = i.computed(bias)?;
    i.node("bias", &[&y, &bias], |g, x| g.plus(x[0], x[1]))
}

pub(super) fn fixed(dims: &[Dim]) -> Found<Vec<usize>> {
    let all = dims.iter().map(|dim| dim.as_fixed()).collect::<Option<Vec<usize>>>();
    all.ok_or_else(|| "the shape of a weight depends on the batch".to_string())
}

fn conv_transpose(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let (filter, bias) = (c.input(1)?, c.given(2));
    let (rank, image) = (x.order.len(), i.image_extents(&x)?);
    let filter_dims = filter_extents(i, &filter, rank)?;
    let axes = image.len();
    let mut windows = WindowAttributes::read(c, filter_dims[2..].to_vec(), &image)?;
    let extra = c.sizes("output_padding")?.unwrap_or_else(|| vec![0; axes]);
    let groups = usize::try_from(c.int("group", 1)?).ok().filter(|groups| *groups > 0).ok_or("it has no groups")?;
    let whole = |axis: usize| {
        (image[axis].saturating_sub(1)) * windows.stride[axis]
            + (windows.size[axis] - 1) * windows.dilation[axis]
            + 1
            + extra.get(axis).unwrap_or(&0)
    };
    let auto = c.text("auto_pad", "NOTSET")?;
    let mut output: Vec<usize> = Vec::with_capacity(axes);
    let mut pads = Vec::with_capacity(axes);
    let wanted = c.sizes("output_shape")?;
    for (axis, extent) in image.iter().enumerate() {
        let wanted = match (&wanted, auto.as_str()) {
            (Some(list), _) => list.get(list.len() - axes.min(list.len()) + axis).copied(),
            (None, "SAME_UPPER" | "SAME_LOWER") => Some(extent * windows.stride[axis]),
            _ => None,
        };
        let (before, after) = match wanted {
            Some(wanted) => {
                let total = whole(axis).saturating_sub(wanted);
                let half = total / 2;
                if auto == "SAME_UPPER" { (half, total - half) } else { (total - half, half) }
            }
            None => windows.pads[axis],
        };
        let length = wanted.or_else(|| whole(axis).checked_sub(before + after)).filter(|length| *length > 0);
        output.push(length.ok_or("its output would be empty")?);
        pads.push((before, after));
    }
    windows.pads = pads;
    // Elements of the output that no window reaches are added behind.
    let window = windows.flat()?;
    let (tall, wide) = match output[..] {
        [wide] => (1, wide),
        [tall, wide] => (tall, wide),
        _ => return Err("windows over 3 axes are not imported; those over 1 and 2 are".to_string()),
    };
    let x = i.as_image(&x)?;
    let filter = i.computed(&filter)?;
    // The filter of the convolution from the output to the input, `[height, width, outputs, inputs]`.
    let order: Vec<usize> = (2..rank).chain([1, 0]).collect();
    let filter = i.ordered(&filter, &order)?;
    let (inner, outer) = (filter_dims[1], filter_dims[0]);
    let shape = Shape::fixed([window.size.0, window.size.1, inner, outer]);
    // The convolution whose gradient this is may have stopped short of the output's end; more padding makes it reach as
    // far.
    let y = i.node("conv2d_transpose", &[&x, &filter], move |g, x| {
        let filter = g.reshape(x[1], shape.clone())?;
        let batch = g.shape(x[0]).dims()[0];
        let given = g.shape(x[0]).clone();
        let fit = |length: usize, steps: usize, pad: (usize, usize), size: usize, stride: usize, dilation: usize| {
            let reach = (size - 1) * dilation + 1;
            let needed = (steps - 1) * stride + reach;
            // The end of the padding follows from the number of steps.
            (pad.0, needed.saturating_sub(length + pad.0))
        };
        let (height, width) = (given.dims()[1].factor(), given.dims()[2].factor());
        let window = Window {
            pad_rows: fit(tall, height, window.pad_rows, window.size.0, window.stride.0, window.dilation.0),
            pad_columns: fit(wide, width, window.pad_columns, window.size.1, window.stride.1, window.dilation.1),
            ..window
        };
        let input = Shape::new([batch, tall.into(), wide.into(), inner.saturating_mul(groups).into()]);
        g.add_one(Op::Conv2dGradInput(Conv2dGradInput { window, groups, input, dtype: DType::F32 }), &[filter, x[0]])
    })?;
    let y = with_bias(i, y, bias.as_ref())?;
    Ok(vec![i.as_in_file(y, rank)?.into()])
}
