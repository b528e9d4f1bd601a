//! A tensor of doubles with plain coordinate indexing.

/// Elements in row-major order.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensor {
    pub dims: Vec<usize>,
    pub elements: Vec<f64>,
}

impl Tensor {
    pub fn zeros(dims: &[usize]) -> Tensor {
        Tensor { dims: dims.to_vec(), elements: vec![0.0; dims.iter().product()] }
    }

    pub fn from_fn(dims: &[usize], element: impl FnMut(Vec<usize>) -> f64) -> Tensor {
        Tensor { dims: dims.to_vec(), elements: coordinates(dims).map(element).collect() }
    }

    pub fn at(&self, at: &[usize]) -> f64 {
        self.elements[self.place(at)]
    }

    pub fn at_mut(&mut self, at: &[usize]) -> &mut f64 {
        let place = self.place(at);
        &mut self.elements[place]
    }

    /// The element at these coordinates when the tensor is broadcast to a shape of equal or higher rank.
    pub fn stretched(&self, at: &[usize]) -> f64 {
        let missing = at.len() - self.dims.len();
        let own: Vec<usize> = self.dims.iter().zip(&at[missing..]).map(|(extent, i)| if *extent == 1 { 0 } else { *i }).collect();
        self.at(&own)
    }

    fn place(&self, at: &[usize]) -> usize {
        assert_eq!(at.len(), self.dims.len(), "one coordinate per axis");
        at.iter().zip(&self.dims).fold(0, |place, (i, extent)| {
            assert!(i < extent, "coordinates {at:?} lie outside {:?}", self.dims);
            place * extent + i
        })
    }
}

/// All coordinates of a shape, the last axis fastest.
pub(super) fn coordinates(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let dims = dims.to_vec();
    let count: usize = dims.iter().product();
    (0..count).map(move |mut rest| {
        let mut at = vec![0; dims.len()];
        for (i, extent) in at.iter_mut().zip(&dims).rev() {
            *i = rest % extent;
            rest /= extent;
        }
        at
    })
}
