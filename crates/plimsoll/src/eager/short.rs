//! Lists that take no allocation if they are short, as those of an op's operands are.

/// A list of values.
pub(super) enum Short<T> {
    Few([T; FEW], usize),
    Many(Vec<T>),
}

const FEW: usize = 6;

impl<T: Copy> Short<T> {
    /// Collects the values, or returns the first error.
    pub fn collect<E>(mut items: impl ExactSizeIterator<Item = Result<T, E>>) -> Result<Short<T>, E> {
        let count = items.len();
        if count > FEW {
            return Ok(Short::Many(items.collect::<Result<_, E>>()?));
        }
        let Some(first) = items.next() else { return Ok(Short::Many(Vec::new())) };
        let mut few = [first?; FEW];
        for (place, item) in few.iter_mut().skip(1).zip(items) {
            *place = item?;
        }
        Ok(Short::Few(few, count))
    }

    /// The values.
    pub fn get(&self) -> &[T] {
        match self {
            Short::Few(few, count) => &few[..*count],
            Short::Many(many) => many,
        }
    }
}
