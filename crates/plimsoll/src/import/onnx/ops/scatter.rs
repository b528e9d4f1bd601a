//! Operators that write elements by index. Updates are applied one after the other, each where coordinates equal its
//! index.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value, axis_of, count_of};
use super::Mapping;
use super::conv::{WindowAttributes, fixed};
use super::index::{flat_index, from_start};
use super::pool::pad_with;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId};
use plimsoll_core::ops::Slice;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, Op, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] =
    &[("ScatterElements", scatter_elements), ("Scatter", scatter_elements), ("ScatterND", scatter_nd), ("MaxUnpool", max_unpool)];

/// Updates of a node, at most; each is an operation of its own.
const MOST_UPDATES: usize = 1024;

/// How an update combines with what is there.
#[derive(Clone, Copy)]
enum Combine {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

impl Combine {
    fn read(c: &NodeCall<'_>) -> Found<Combine> {
        Ok(match c.text("reduction", "none")?.as_str() {
            "none" => Combine::Replace,
            "add" => Combine::Add,
            "mul" => Combine::Mul,
            "max" => Combine::Max,
            "min" => Combine::Min,
            other => return Err(format!("its reduction is `{other}`")),
        })
    }

    fn apply(self, e: &ExprBuilder, there: TermId, update: TermId) -> TermId {
        match self {
            Combine::Replace => update,
            Combine::Add => e.add(there, update),
            Combine::Mul => e.mul(there, update),
            Combine::Max => e.binary(Binary::Max, there, update),
            Combine::Min => e.binary(Binary::Min, there, update),
        }
    }

    /// The tensor with one update: where the coordinate along `axis` is the index.
    fn update(self, g: &mut Graph, there: ValueId, index: ValueId, update: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        let shape = g.shape(there).clone();
        let extent = shape.dims()[axis].factor();
        let expr = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(axis as u8), from_start(e, e.input(1), extent));
            e.select(here, self.apply(e, e.input(0), e.input(2)), e.input(0))
        });
        g.pointwise_over(expr, &[there, index, update], shape)
    }
}

fn scatter_elements(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let mut read = Vec::new();
    for value in c.all()? {
        let tensor = i.computed(&value)?;
        read.push(i.plain(&tensor)?);
    }
    let [data, indices, updates] = &read[..] else { return Err("it takes data, indices and updates".to_string()) };
    let rank = data.order.len();
    let axis = axis_of(c.int("axis", 0)?, rank)?;
    let combine = Combine::read(c)?;
    let (own, by) = (i.dims(data), i.dims(indices));
    let Some(count) = by.get(axis).and_then(|dim| dim.as_fixed()).filter(|count| *count <= MOST_UPDATES && by.len() == rank) else {
        return Err(format!("it writes along an axis that is the batch, or more than {MOST_UPDATES} times"));
    };
    let kind = data.kind;
    let y = i.node("scatter", &[data, indices, updates], move |g, x| {
        let (mut there, mut indices, mut updates) = (x[0], x[1], x[2]);
        // Other axes of the updates may be shorter; there is no index beyond them.
        for other in (0..rank).filter(|other| *other != axis && by[*other] != own[*other]) {
            let missing = own[other].factor().saturating_sub(by[other].factor());
            let real = g.cast(indices, DType::F32)?;
            indices = pad_with(g, real, other, 0, missing, -1e9)?;
            updates = pad_with(g, updates, other, 0, missing, 0.0)?;
        }
        for start in 0..count {
            let mut part = |x: ValueId| g.add_one(Op::Slice(Slice { axis, start, length: 1 }), &[x]);
            let (index, update) = (part(indices)?, part(updates)?);
            there = combine.update(g, there, index, update, axis)?;
        }
        Ok(there)
    })?;
    Ok(vec![y.of(kind).into()])
}

fn scatter_nd(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let mut read = Vec::new();
    for value in c.all()? {
        let tensor = i.computed(&value)?;
        read.push(i.plain(&tensor)?);
    }
    let [data, indices, updates] = &read[..] else { return Err("it takes data, indices and updates".to_string()) };
    let (own, by) = (fixed(&i.dims(data))?, fixed(&i.dims(indices))?);
    let Some((&depth, lead)) = by.split_last() else { return Err("its indices are a single number".to_string()) };
    if depth > own.len() {
        return Err(format!("indices of {by:?} do not go with data of {own:?}"));
    }
    let combine = Combine::read(c)?;
    let lead = lead.to_vec();
    let kind = data.kind;
    let y = write_rows(i, data, indices, updates, own, lead, depth, combine)?;
    Ok(vec![y.of(kind).into()])
}

#[allow(clippy::too_many_arguments, reason = "the operands of a scatter and their dimensions")]
fn write_rows(
    i: &mut OnnxImporter,
    data: &Computed,
    indices: &Computed,
    updates: &Computed,
    own: Vec<usize>,
    lead: Vec<usize>,
    depth: usize,
    combine: Combine,
) -> Found<Computed> {
    let count = count_of(&lead);
    if count > MOST_UPDATES {
        return Err(format!("it writes {count} rows; {MOST_UPDATES} can be written"));
    }
    let (rows, width) = (count_of(&own[..depth]), count_of(&own[depth..]));
    i.node("scatter", &[data, indices, updates], move |g, x| {
        let mut there = g.reshape(x[0], Shape::fixed([rows, width]))?;
        let flat = flat_index(g, x[1], &own, &lead, 0, depth)?;
        let flat = g.reshape(flat, Shape::fixed([count, 1]))?;
        let updates = g.reshape(x[2], Shape::fixed([count, width]))?;
        for start in 0..count {
            let mut part = |x: ValueId| g.add_one(Op::Slice(Slice { axis: 0, start, length: 1 }), &[x]);
            let (index, update) = (part(flat)?, part(updates)?);
            there = combine.update(g, there, index, update, 0)?;
        }
        g.reshape(there, Shape::fixed(own.iter().copied()))
    })
}

/// Values at the places that a pooling reported.
fn max_unpool(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (x, places) = (i.computed(&c.input(0)?)?, i.computed(&c.input(1)?)?);
    let (x, places) = (i.plain(&x)?, i.plain(&places)?);
    let dims = fixed(&i.dims(&x))?;
    if dims.len() < 3 {
        return Err(format!("it takes images, but got {dims:?}"));
    }
    let image = dims[2..].to_vec();
    let windows = WindowAttributes::read(c, c.sizes("kernel_shape")?.ok_or("it has no kernel_shape")?, &image)?;
    let mut usual = dims[..2].to_vec();
    for (axis, extent) in image.iter().enumerate() {
        let whole = extent.saturating_sub(1) * windows.stride[axis] + windows.size[axis];
        usual.push(whole.checked_sub(windows.pads[axis].0 + windows.pads[axis].1).ok_or("its padding is larger than its image")?);
    }
    let result = match c.constant(2)? {
        Some(shape) => shape.integers()?.iter().map(|dim| (*dim).max(0) as usize).collect(),
        None => usual.clone(),
    };
    let count = count_of(&dims);
    // Places count within the usual shape; a larger one has zeros behind it.
    let elements = count_of(&usual);
    if result.len() != usual.len() || result.iter().zip(&usual).any(|(result, usual)| result < usual || *result > 1 << 24) {
        return Err(format!("its output shape is {result:?}, where {usual:?} is usual"));
    }
    if count > MOST_UPDATES || elements > 1 << 24 {
        return Err(format!("it writes {count} elements; {MOST_UPDATES} can be written"));
    }
    let shape = Shape::fixed(usual.iter().copied());
    let y = i.node("unpool", &[&x, &places], move |g, x| {
        let mut there = g.full(0.0, Shape::fixed([elements]))?;
        let (values, places) = (g.reshape(x[0], Shape::fixed([count]))?, g.reshape(x[1], Shape::fixed([count]))?);
        for start in 0..count {
            let mut part = |x: ValueId| g.add_one(Op::Slice(Slice { axis: 0, start, length: 1 }), &[x]);
            let (index, update) = (part(places)?, part(values)?);
            there = Combine::Replace.update(g, there, index, update, 0)?;
        }
        let there = g.reshape(there, shape.clone())?;
        usual.iter().zip(&result).enumerate().try_fold(there, |y, (axis, (usual, result))| pad_with(g, y, axis, 0, result - usual, 0.0))
    })?;
    Ok(vec![y.into()])
}
