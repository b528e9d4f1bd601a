//! Convolution and pooling. Images are `[n, h, w, c]`, filters `[kh, kw, c / groups, out]`.

use super::tensor::{Tensor, coordinates};
use crate::ir::ops::Window;

/// The image row and column at offset (`i`, `j`) of the window at position (`y`, `x`), unless it is padding.
fn under(window: &Window, image: &[usize], (y, x): (usize, usize), (i, j): (usize, usize)) -> Option<(usize, usize)> {
    let row = (y * window.stride.0 + i * window.dilation.0).checked_sub(window.pad_rows.0)?;
    let column = (x * window.stride.1 + j * window.dilation.1).checked_sub(window.pad_columns.0)?;
    (row < image[1] && column < image[2]).then_some((row, column))
}

fn positions(window: &Window, image: &[usize]) -> (usize, usize) {
    window.output((image[1], image[2])).expect("checked when the node was added")
}

/// Calls `product` with the coordinates of every product that a convolution sums: of the image, the filter and the
/// result.
fn each_product(
    window: &Window,
    groups: usize,
    image: &[usize],
    filter: &[usize],
    mut product: impl FnMut([usize; 4], [usize; 4], [usize; 4]),
) {
    let (height, width) = positions(window, image);
    let (inner, out) = (filter[2], filter[3]);
    for result in coordinates(&[image[0], height, width, out]) {
        let [n, y, x, o] = result[..] else { unreachable!("four axes were asked for") };
        let group = o / (out / groups);
        for tap in coordinates(&[window.size.0, window.size.1, inner]) {
            let [i, j, c] = tap[..] else { unreachable!("three axes were asked for") };
            if let Some((row, column)) = under(window, image, (y, x), (i, j)) {
                product([n, row, column, group * inner + c], [i, j, c, o], [n, y, x, o]);
            }
        }
    }
}

pub(super) fn conv2d(window: &Window, groups: usize, x: &Tensor, filter: &Tensor) -> Tensor {
    let (height, width) = positions(window, &x.dims);
    let mut y = Tensor::zeros(&[x.dims[0], height, width, filter.dims[3]]);
    each_product(window, groups, &x.dims, &filter.dims, |image, tap, result| *y.at_mut(&result) += x.at(&image) * filter.at(&tap));
    y
}

pub(super) fn conv2d_grad_input(window: &Window, groups: usize, image: &[usize], filter: &Tensor, dy: &Tensor) -> Tensor {
    let mut dx = Tensor::zeros(image);
    each_product(window, groups, image, &filter.dims, |image, tap, result| *dx.at_mut(&image) += filter.at(&tap) * dy.at(&result));
    dx
}

pub(super) fn conv2d_grad_filter(window: &Window, groups: usize, filter: &[usize], x: &Tensor, dy: &Tensor) -> Tensor {
    let mut d_filter = Tensor::zeros(filter);
    each_product(window, groups, &x.dims, filter, |image, tap, result| *d_filter.at_mut(&tap) += x.at(&image) * dy.at(&result));
    d_filter
}

/// The image elements in the window of result `[n, y, x, c]`: the offset inside the window, and the image coordinates.
fn members(window: &Window, image: &[usize], result: &[usize]) -> Vec<(usize, [usize; 4])> {
    let &[n, y, x, c] = result else { unreachable!("images have four axes") };
    let places = coordinates(&[window.size.0, window.size.1]).enumerate();
    places
        .filter_map(|(place, at)| under(window, image, (y, x), (at[0], at[1])).map(|(row, column)| (place, [n, row, column, c])))
        .collect()
}

fn pooled(window: &Window, image: &[usize]) -> [usize; 4] {
    let (height, width) = positions(window, image);
    [image[0], height, width, image[3]]
}

/// The maxima and their offsets inside their windows. The first of equal elements wins, padding never does, NaN always
/// does.
pub(super) fn max_pool(window: &Window, x: &Tensor) -> [Vec<f64>; 2] {
    let (mut largest, mut places) = (Vec::new(), Vec::new());
    for result in coordinates(&pooled(window, &x.dims)) {
        let mut best: Option<(usize, f64)> = None;
        for (place, at) in members(window, &x.dims, &result) {
            let element = x.at(&at);
            let wins = match best {
                None => true,
                Some((_, leader)) => !leader.is_nan() && (element.is_nan() || element > leader),
            };
            if wins {
                best = Some((place, element));
            }
        }
        let (place, element) = best.expect("no window lies wholly in the padding");
        largest.push(element);
        places.push(place as f64);
    }
    [largest, places]
}

pub(super) fn max_pool_grad(window: &Window, image: &[usize], places: &Tensor, dy: &Tensor) -> Tensor {
    let mut dx = Tensor::zeros(image);
    for result in coordinates(&dy.dims) {
        let winner = places.at(&result) as usize;
        for (_, at) in members(window, image, &result).into_iter().filter(|(place, _)| *place == winner) {
            *dx.at_mut(&at) += dy.at(&result);
        }
    }
    dx
}

pub(super) fn avg_pool(window: &Window, x: &Tensor) -> Vec<f64> {
    coordinates(&pooled(window, &x.dims))
        .map(|result| {
            let members = members(window, &x.dims, &result);
            members.iter().map(|(_, at)| x.at(at)).sum::<f64>() / members.len() as f64
        })
        .collect()
}

pub(super) fn avg_pool_grad(window: &Window, image: &[usize], dy: &Tensor) -> Tensor {
    let mut dx = Tensor::zeros(image);
    for result in coordinates(&dy.dims) {
        let members = members(window, image, &result);
        for (_, at) in &members {
            *dx.at_mut(at) += dy.at(&result) / members.len() as f64;
        }
    }
    dx
}
