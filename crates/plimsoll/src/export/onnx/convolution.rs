//! Convolutions with the batch normalization, bias and activation behind them, and pooling.

use super::builder::ImageLayout;
use super::{ExportProblem, Exporter, Recipe};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Conv2d, Conv2dGradInput, Window};
use plimsoll_formats::onnx::Attribute;
use plimsoll_formats::tensor::DType as Stored;

/// Filters `[height, width, in, out]` as `[out, in, height, width]`.
const FILTER: [usize; 4] = [3, 2, 0, 1];

impl<'a> Exporter<'a> {
    pub(super) fn convolution(&mut self, node: &'a Node, op: &Conv2d) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let filter = graph.shape(node.inputs[1]).bind(1);
        let moved: Vec<usize> = FILTER.iter().map(|axis| filter[*axis]).collect();
        let input = self.builder.read(node.inputs[0], ImageLayout::First);
        let mut attributes = window(&op.window);
        attributes.push(("group", Attribute::Int(op.groups as i64)));
        let Some(weight) = self.weight_name(node.inputs[1]) else {
            // A filter that is computed, such as a reshaped one.
            let kernel = self.builder.plain(node.inputs[1]);
            let kernel = self.builder.transpose(&kernel, &FILTER);
            let name = self.builder.node("Conv", &[&input, &kernel], &attributes);
            self.builder.define(node.outputs[0], ImageLayout::First, name);
            return Ok(());
        };
        let followed = self.walk.followed(node.outputs[0], filter[3])?;
        let recipe = Recipe::Weight { name: weight.clone(), shape: filter.clone(), order: FILTER.to_vec(), scale: followed.scale };
        let kernel = self.builder.weight(&weight, &moved, recipe);
        let name = match followed.offset {
            Some(offset) => {
                let bias = self.builder.numbers(&format!("{}/bias", self.builder.scope), &[filter[3]], offset);
                self.builder.node("Conv", &[&input, &kernel, &bias], &attributes)
            }
            None => self.builder.node("Conv", &[&input, &kernel], &attributes),
        };
        let name = followed.rest.map_or(name.clone(), |rest| self.expression_of(&rest, &name));
        self.builder.define(followed.value, ImageLayout::First, name);
        Ok(())
    }

    /// The gradient of a convolution with respect to its input is a transposed convolution.
    pub(super) fn transposed_convolution(&mut self, node: &'a Node, op: &Conv2dGradInput) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let (filter, dy) = (node.inputs[0], node.inputs[1]);
        let Some(weight) = self.weight_name(filter) else {
            return Err(ExportProblem::unsupported("a transposed convolution whose filter is computed"));
        };
        let shape = graph.shape(filter).bind(1);
        let moved: Vec<usize> = FILTER.iter().map(|axis| shape[*axis]).collect();
        let input = self.builder.read(dy, ImageLayout::First);
        let (from, to) = (graph.shape(dy).bind(1), op.input.bind(1));
        let w = &op.window;
        let extra = |axis: usize, size: usize, stride: usize, dilation: usize, pad: (usize, usize)| {
            let whole = stride * (from[axis] - 1) + (size - 1) * dilation + 1;
            to[axis] as i64 + pad.0 as i64 + pad.1 as i64 - whole as i64
        };
        let more = [extra(1, w.size.0, w.stride.0, w.dilation.0, w.pad_rows), extra(2, w.size.1, w.stride.1, w.dilation.1, w.pad_columns)];
        let mut attributes = window(w);
        attributes.push(("group", Attribute::Int(op.groups as i64)));
        attributes.push(("output_padding", Attribute::Ints(more.to_vec())));
        let kernel = Recipe::Weight { name: weight.clone(), shape, order: FILTER.to_vec(), scale: None };
        let kernel = self.builder.weight(&weight, &moved, kernel);
        let name = self.builder.node("ConvTranspose", &[&input, &kernel], &attributes);
        self.builder.define(node.outputs[0], ImageLayout::First, name);
        Ok(())
    }

    /// Max pooling; where something reads the position of the maximum in its window, that follows from its index in the
    /// image.
    pub(super) fn max_pool(&mut self, node: &Node, w: &Window) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let input = self.builder.read(node.inputs[0], ImageLayout::First);
        let reads_places = self.walk.readers.contains_key(&node.outputs[1]);
        let mut names = self.builder.node_of("MaxPool", &[&input], &window(w), if reads_places { 2 } else { 1 });
        if reads_places {
            let (image, pooled) = (graph.shape(node.inputs[0]).bind(1), graph.shape(node.outputs[0]).bind(1));
            let index = names.pop().expect("two were asked for");
            let builder = &mut self.builder;
            let (height, width) = (builder.integers_of(&[image[1] as i64], &[]), builder.integers_of(&[image[2] as i64], &[]));
            let above = builder.node("Div", &[&index, &width], &[]);
            let row = builder.node("Mod", &[&above, &height], &[]);
            let column = builder.node("Mod", &[&index, &width], &[]);
            let starts = |count: usize, stride: usize, pad: usize| -> Vec<i64> {
                (0..count).map(|place| (place * stride) as i64 - pad as i64).collect()
            };
            let rows = builder.integers_of(&starts(pooled[1], w.stride.0, w.pad_rows.0), &[pooled[1] as u64, 1]);
            let columns = builder.integers_of(&starts(pooled[2], w.stride.1, w.pad_columns.0), &[1, pooled[2] as u64]);
            let (row, column) = (builder.node("Sub", &[&row, &rows], &[]), builder.node("Sub", &[&column, &columns], &[]));
            let across = builder.integers_of(&[w.size.1 as i64], &[]);
            let row = builder.node("Mul", &[&row, &across], &[]);
            let place = builder.node("Add", &[&row, &column], &[]);
            let place = builder.cast(&place, Stored::U8);
            builder.define(node.outputs[1], ImageLayout::First, place);
        }
        self.builder.define(node.outputs[0], ImageLayout::First, names.remove(0));
        Ok(())
    }

    pub(super) fn average_pool(&mut self, node: &Node, w: &Window) {
        let input = self.builder.read(node.inputs[0], ImageLayout::First);
        let mut attributes = window(w);
        attributes.retain(|(name, _)| *name != "dilations");
        attributes.push(("count_include_pad", Attribute::Int(0)));
        let name = self.builder.node("AveragePool", &[&input], &attributes);
        self.builder.define(node.outputs[0], ImageLayout::First, name);
    }
}

fn window(w: &Window) -> Vec<(&'static str, Attribute)> {
    let pair = |pair: (usize, usize)| Attribute::Ints(vec![pair.0 as i64, pair.1 as i64]);
    let pads = [w.pad_rows.0, w.pad_columns.0, w.pad_rows.1, w.pad_columns.1];
    vec![
        ("kernel_shape", pair(w.size)),
        ("strides", pair(w.stride)),
        ("dilations", pair(w.dilation)),
        ("pads", Attribute::Ints(pads.iter().map(|pad| *pad as i64).collect())),
    ]
}
