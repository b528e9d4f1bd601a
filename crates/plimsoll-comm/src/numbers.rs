//! Slices of numbers that ranks exchange.

/// How numbers of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    F32,
    F64,
    U64,
    U8,
}

impl NumberType {
    pub fn size(self) -> usize {
        match self {
            NumberType::F32 => 4,
            NumberType::F64 | NumberType::U64 => 8,
            NumberType::U8 => 1,
        }
    }
}

/// Numbers that a rank gives.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// In single precision.
    F32(&'a [f32]),
    /// In double precision.
    F64(&'a [f64]),
    /// 64-bit integers.
    U64(&'a [u64]),
    /// Bytes.
    U8(&'a [u8]),
}

/// Numbers that a rank receives, or gives and receives.
#[derive(Debug)]
pub enum NumbersMut<'a> {
    /// In single precision.
    F32(&'a mut [f32]),
    /// In double precision.
    F64(&'a mut [f64]),
    /// 64-bit integers.
    U64(&'a mut [u64]),
    /// Bytes.
    U8(&'a mut [u8]),
}

impl<'a> Numbers<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.number_type().size()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub(crate) fn number_type(&self) -> NumberType {
        match self {
            Numbers::F32(_) => NumberType::F32,
            Numbers::F64(_) => NumberType::F64,
            Numbers::U64(_) => NumberType::U64,
            Numbers::U8(_) => NumberType::U8,
        }
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        match *self {
            Numbers::F32(numbers) => bytes_of(numbers),
            Numbers::F64(numbers) => bytes_of(numbers),
            Numbers::U64(numbers) => bytes_of(numbers),
            Numbers::U8(bytes) => bytes,
        }
    }
}

impl NumbersMut<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shared().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shared().is_empty()
    }

    pub(crate) fn shared(&self) -> Numbers<'_> {
        match self {
            NumbersMut::F32(numbers) => Numbers::F32(numbers),
            NumbersMut::F64(numbers) => Numbers::F64(numbers),
            NumbersMut::U64(numbers) => Numbers::U64(numbers),
            NumbersMut::U8(bytes) => Numbers::U8(bytes),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            NumbersMut::F32(numbers) => bytes_of_mut(numbers),
            NumbersMut::F64(numbers) => bytes_of_mut(numbers),
            NumbersMut::U64(numbers) => bytes_of_mut(numbers),
            NumbersMut::U8(bytes) => bytes,
        }
    }
}

macro_rules! conversions {
    ($($number:ty => $variant:ident),*) => {$(
        impl Plain for $number {}

        impl<'a> From<&'a [$number]> for Numbers<'a> {
            fn from(numbers: &'a [$number]) -> Numbers<'a> {
                Numbers::$variant(numbers)
            }
        }

        impl<'a> From<&'a mut [$number]> for NumbersMut<'a> {
            fn from(numbers: &'a mut [$number]) -> NumbersMut<'a> {
                NumbersMut::$variant(numbers)
            }
        }
    )*};
}

/// A number without padding, of which any bytes are a value. This module alone implements it.
trait Plain: Copy {}

conversions!(f32 => F32, f64 => F64, u64 => U64, u8 => U8);

fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: the bytes are those of the slice, which has no padding and is borrowed as long.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: the bytes are those of the slice, which is borrowed mutably as long; any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Reduces bytes of another rank into those of this one, number by number.
pub(crate) fn reduce(into: &mut [u8], from: &[u8], of: NumberType, reduction: Reduction) {
    fn each<const N: usize>(into: &mut [u8], from: &[u8], reduce: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
        let (into, _) = into.as_chunks_mut::<N>();
        let (from, _) = from.as_chunks::<N>();
        into.iter_mut().zip(from).for_each(|(into, from)| *into = reduce(*into, *from));
    }
    macro_rules! reduced {
        ($number:ty, $sum:expr) => {
            each(into, from, |a, b| {
                let (a, b) = (<$number>::from_ne_bytes(a), <$number>::from_ne_bytes(b));
                match reduction {
                    Reduction::Sum => $sum(a, b),
                    Reduction::Max => a.max(b),
                    Reduction::Min => a.min(b),
                }
                .to_ne_bytes()
            })
        };
    }
    match of {
        NumberType::F32 => reduced!(f32, |a, b| a + b),
        NumberType::F64 => reduced!(f64, |a, b| a + b),
        NumberType::U64 => reduced!(u64, u64::wrapping_add),
        NumberType::U8 => reduced!(u8, u8::wrapping_add),
    }
}
