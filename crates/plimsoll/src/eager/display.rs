//! Tensors as text.

use super::element::Element;
use super::tensor::Tensor;
use plimsoll_core::DType;
use std::fmt;

/// Elements per axis that are shown at each end of a long one.
const ENDS: usize = 3;
/// Elements above which long axes are shortened.
const MOST: usize = 100;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numbers() {
            Some(numbers) => {
                let width = numbers.iter().map(String::len).max().unwrap_or(0);
                let short = numbers.len() > MOST;
                write_axis(f, &self.dims(), &numbers, width, short, 0)?;
                writeln!(f)?;
            }
            None => writeln!(f, "(no values yet)")?,
        }
        write!(f, "{}", self.ty())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} made at {})", self.ty(), self.made_at())
    }
}

impl Tensor {
    fn numbers(&self) -> Option<Vec<String>> {
        fn text<T: Element + fmt::Display>(tensor: &Tensor, show: impl Fn(T) -> String) -> Option<Vec<String>> {
            tensor.to_vec::<T>().ok().map(|values| values.into_iter().map(show).collect())
        }
        match self.dtype() {
            DType::I32 => text(self, |value: i32| value.to_string()),
            DType::U8 => text(self, |value: u8| value.to_string()),
            DType::Bool => text(self, |value: bool| value.to_string()),
            _ => text(self, |value: f32| format!("{value:.4}")),
        }
    }
}

fn write_axis(f: &mut fmt::Formatter<'_>, dims: &[usize], numbers: &[String], width: usize, short: bool, depth: usize) -> fmt::Result {
    let [extent, rest @ ..] = dims else { return write!(f, "{:>width$}", numbers.first().map_or("", String::as_str)) };
    let each = rest.iter().product::<usize>();
    write!(f, "[")?;
    let mut first = true;
    let mut skipped = false;
    for i in 0..*extent {
        if short && *extent > 2 * ENDS && (ENDS..extent - ENDS).contains(&i) {
            if !std::mem::replace(&mut skipped, true) {
                separate(f, rest, depth, &mut first)?;
                write!(f, "…")?;
            }
            continue;
        }
        separate(f, rest, depth, &mut first)?;
        write_axis(f, rest, &numbers[i * each..(i + 1) * each], width, short, depth + 1)?;
    }
    write!(f, "]")
}

/// What stands between two parts of an axis.
fn separate(f: &mut fmt::Formatter<'_>, rest: &[usize], depth: usize, first: &mut bool) -> fmt::Result {
    match (std::mem::replace(first, false), rest.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => write!(f, ", "),
        (false, false) => write!(f, ",\n{}", " ".repeat(depth + 1)),
    }
}
