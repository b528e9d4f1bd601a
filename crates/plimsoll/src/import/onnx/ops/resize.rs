//! Resizing: along each axis, a product with a matrix of interpolation weights.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Constant, ElementKind, Found, Value, axis_of};
use super::Mapping;
use plimsoll_core::expr::Expr;
use plimsoll_core::shape::{Dim, Shape};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[("Resize", resize), ("Upsample", upsample)];

/// Elements of the largest matrix of weights.
const LARGEST_MATRIX: usize = 1 << 20;

/// How positions and weights are computed.
struct Interpolation {
    mode: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

fn upsample(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let scales: Vec<f64> = match c.floats("scales")? {
        Some(scales) => scales.into_iter().map(f64::from).collect(),
        None => c.constant(1)?.ok_or("it has no scales")?.fixed()?.to_vec(),
    };
    let x = i.computed(&c.input(0)?)?;
    let how = Interpolation {
        mode: c.text("mode", "nearest")?,
        coordinates: "asymmetric".to_string(),
        nearest: "floor".to_string(),
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };
    let axes: Vec<usize> = (0..scales.len()).collect();
    apply(i, x, &axes, &scales, None, &[], &how)
}

fn resize(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let axes = match c.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Found<Vec<usize>>>()?,
        None => (0..rank).collect(),
    };
    // Version 10 has scales as its second input.
    let (roi, scales, sizes) = if c.opset < 11 { (None, c.constant(1)?, None) } else { (c.constant(1)?, c.constant(2)?, c.constant(3)?) };
    let roi = roi.map(|roi| roi.fixed().map(<[f64]>::to_vec)).transpose()?.unwrap_or_default();
    let scales = scales.filter(|scales| !scales.numbers.is_empty());
    let dims = i.dims(&x);
    let how = Interpolation {
        mode: c.text("mode", "nearest")?,
        coordinates: c.text("coordinate_transformation_mode", if c.opset < 11 { "asymmetric" } else { "half_pixel" })?,
        nearest: c.text("nearest_mode", if c.opset < 11 { "floor" } else { "round_prefer_floor" })?,
        cubic: f64::from(c.float("cubic_coeff_a", -0.75)?),
        exclude_outside: c.flag("exclude_outside", false)?,
        antialias: c.flag("antialias", false)?,
        extrapolation: f64::from(c.float("extrapolation_value", 0.0)?),
    };
    if let Some(scales) = scales {
        return apply(i, x, &axes, scales.fixed()?, None, &roi, &how);
    }
    let sizes = sizes.ok_or("it has neither scales nor sizes")?.extents()?;
    if sizes.len() != axes.len() {
        return Err(format!("it has {} sizes for {} axes", sizes.len(), axes.len()));
    }
    let mut wanted = Vec::with_capacity(axes.len());
    for (axis, size) in axes.iter().zip(&sizes) {
        let size = size.map_err(|size| format!("a size is {size}"))?;
        let same = dims[*axis] == size || dims[*axis].is_batch();
        wanted.push(if same { dims[*axis] } else { size });
    }
    let ratio = |axis: usize, size: Dim| size.factor() as f64 / dims[axis].factor().max(1) as f64;
    let mut scales: Vec<f64> = axes.iter().zip(&wanted).map(|(axis, size)| ratio(*axis, *size)).collect();
    let policy = c.text("keep_aspect_ratio_policy", "stretch")?;
    if policy != "stretch" {
        let pick = |all: &[f64]| all.iter().copied().reduce(if policy == "not_larger" { f64::min } else { f64::max }).unwrap_or(1.0);
        let scale = pick(&scales);
        wanted = axes.iter().map(|axis| Dim::fixed((dims[*axis].factor() as f64 * scale).round() as usize)).collect();
        scales = vec![scale; axes.len()];
    }
    let sizes: Vec<usize> = wanted.iter().map(|dim| dim.factor()).collect();
    apply(i, x, &axes, &scales, Some(&sizes), &roi, &how)
}

fn apply(
    i: &mut OnnxImporter,
    mut x: Computed,
    axes: &[usize],
    scales: &[f64],
    sizes: Option<&[usize]>,
    roi: &[f64],
    how: &Interpolation,
) -> Found<Vec<Value>> {
    if scales.len() != axes.len() {
        return Err(format!("it has {} scales for {} axes", scales.len(), axes.len()));
    }
    let original = x.order.clone();
    for (index, (axis, scale)) in axes.iter().zip(scales).enumerate() {
        let dim = i.dims(&x)[*axis];
        if dim.is_batch() {
            if *scale == 1.0 {
                continue;
            }
            return Err("it resizes the batch".to_string());
        }
        let extent = dim.factor();
        let size = sizes.map_or((extent as f64 * scale).floor(), |sizes| sizes[index] as f64);
        if !(size >= 1.0 && size * extent as f64 <= LARGEST_MATRIX as f64) {
            return Err(format!("it resizes {extent} elements to {size}"));
        }
        let crop = how.coordinates == "tf_crop_and_resize";
        if *scale == 1.0 && size as usize == extent && !crop {
            continue;
        }
        let region = match crop {
            true => (roi.get(index).copied().unwrap_or(0.0), roi.get(index + axes.len()).copied().unwrap_or(1.0)),
            false => (0.0, 1.0),
        };
        let rows = (0..size as usize).map(|at| weights(at, extent, size as usize, *scale, region, how)).collect::<Found<Vec<_>>>()?;
        x = along(i, &x, *axis, extent, &rows, how.extrapolation)?;
    }
    let kind = x.kind;
    Ok(vec![i.ordered(&x, &original)?.of(kind).into()])
}

/// The weights of an output element; none if it lies outside of the input.
type ResizeWeights = Option<Vec<(usize, f64)>>;

/// Applies the weights of all output elements along an axis.
fn along(i: &mut OnnxImporter, x: &Computed, axis: usize, extent: usize, rows: &[ResizeWeights], outside: f64) -> Found<Computed> {
    let size = rows.len();
    let times = size / extent.max(1);
    let repeats = |(at, row): (usize, &ResizeWeights)| matches!(row.as_deref(), Some([(from, weight)]) if *weight == 1.0 && *from == at / times.max(1));
    if times > 1 && size == extent * times && rows.iter().enumerate().all(repeats) {
        // Every element several times: a broadcast.
        let (place, order, kind) = (x.place(axis), x.order.clone(), x.kind);
        let y = i.node("upsample", &[x], move |g, x| {
            let shape = g.shape(x[0]).clone();
            let mut dims = shape.dims().to_vec();
            dims.insert(place + 1, Dim::fixed(1));
            let split = g.reshape(x[0], Shape::new(dims.iter().copied()))?;
            dims[place + 1] = Dim::fixed(times);
            let spread = g.pointwise_over(Expr::identity(), &[split], Shape::new(dims))?;
            g.reshape(spread, shape.with(place, Dim::fixed(size)))
        })?;
        return Ok(y.laid_out(order).of(kind));
    }
    let mut matrix = vec![0.0; extent * size];
    for (at, row) in rows.iter().enumerate() {
        row.iter().flatten().for_each(|(from, weight)| matrix[from * size + at] += weight);
    }
    let y = i.along(x, axis, &Constant::new(ElementKind::Float, vec![extent, size], matrix))?;
    if rows.iter().all(Option::is_some) {
        return Ok(y);
    }
    let offsets: Vec<f64> = rows.iter().map(|row| if row.is_none() { outside } else { 0.0 }).collect();
    let offsets = i.constant_tensor(&Constant::new(ElementKind::Float, vec![size], offsets))?;
    // The axis is last in memory.
    let order = y.order.clone();
    Ok(i.node("bias", &[&y, &offsets], |g, x| g.plus(x[0], x[1]))?.laid_out(order))
}

fn weights(at: usize, extent: usize, size: usize, scale: f64, region: (f64, f64), how: &Interpolation) -> Found<ResizeWeights> {
    let (x, last) = (at as f64, extent as f64 - 1.0);
    let position = match how.coordinates.as_str() {
        "half_pixel" => (x + 0.5) / scale - 0.5,
        "half_pixel_symmetric" => {
            let adjustment = size as f64 / (scale * extent as f64);
            let center = extent as f64 / 2.0;
            center * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
        }
        "pytorch_half_pixel" => {
            if size > 1 {
                (x + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        "align_corners" => {
            let wide = extent as f64 * scale;
            if wide > 1.0 { x * last / (wide - 1.0) } else { 0.0 }
        }
        "asymmetric" => x / scale,
        "tf_crop_and_resize" => {
            let (start, end) = region;
            let position =
                if size > 1 { start * last + x * (end - start) * last / (size as f64 - 1.0) } else { 0.5 * (start + end) * last };
            if position < 0.0 || position > last {
                return Ok(None);
            }
            position
        }
        other => return Err(format!("its coordinate_transformation_mode is `{other}`")),
    };
    let inside = |index: f64| index.clamp(0.0, last) as usize;
    if how.mode == "nearest" {
        let index = match how.nearest.as_str() {
            "round_prefer_floor" => (position - 0.5).ceil(),
            "round_prefer_ceil" => (position + 0.5).floor(),
            "floor" => position.floor(),
            "ceil" => position.ceil(),
            other => return Err(format!("its nearest_mode is `{other}`")),
        };
        return Ok(Some(vec![(inside(index), 1.0)]));
    }
    // The neighbours at and before the position, and the share of the way to the next one.
    let base = position.ceil() - 1.0;
    let ratio = position - base;
    let narrow = if how.antialias { scale.min(1.0) } else { 1.0 };
    let kernel = |distance: f64| match how.mode.as_str() {
        "cubic" => {
            let (a, x) = (how.cubic, distance.abs());
            match x {
                x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
                x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
                _ => 0.0,
            }
        }
        _ => (1.0 - distance.abs()).clamp(0.0, 1.0),
    };
    let reach = match how.mode.as_str() {
        "linear" => 1.0,
        "cubic" => 2.0,
        other => return Err(format!("its mode is `{other}`")),
    };
    let first = (-reach / narrow).floor() + 1.0;
    let end = 2.0 - first;
    let mut taps = Vec::new();
    let mut offset = first;
    while offset < end {
        let index = base + offset;
        let weight = kernel(narrow * (offset - ratio));
        if !how.exclude_outside || (0.0..=last).contains(&index) {
            taps.push((inside(index), weight));
        }
        offset += 1.0;
    }
    if how.antialias || how.exclude_outside {
        let total: f64 = taps.iter().map(|(_, weight)| weight).sum();
        taps.iter_mut().for_each(|(_, weight)| *weight /= total);
    }
    Ok(Some(taps))
}
