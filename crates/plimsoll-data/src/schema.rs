//! The schema of rows: named columns, each with a dtype and the shape of one row.

use crate::DataError;
use crate::ragged::{LENGTH_BYTES, length_of};
use plimsoll_core::{Bytes, DType};
use std::fmt;
use std::sync::Arc;

/// One column: its name, dtype and the shape of one row (empty for a scalar).
///
/// ```
/// use plimsoll_core::{Bytes, DType};
/// use plimsoll_data::Column;
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(image.row_bytes(), Bytes(784));
/// assert_eq!(image.to_string(), "x: u8[28, 28, 1]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// The shape of one row; for images of variable size, only the channels.
    pub shape: Vec<usize>,
    /// Whether all rows have that shape.
    pub extent: Extent,
    /// The class names of labels 0, 1, 2 …, if the source has them.
    pub classes: Option<Arc<[String]>>,
}

/// Whether all rows of a column have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All rows have the same size; only such columns can be batched.
    Fixed,
    /// Each row is an encoded file.
    Files,
    /// Each row is an image with its own height and width.
    Images,
    /// Each row has its own length, up to the first dimension of the shape.
    UpTo,
}

/// The columns of a data set, in order. Consumers address them by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<Column>,
}

/// Far above any real row, and small enough that sums and products of rows fit in 64 bits.
const MAX_ROW: Bytes = Bytes::gib(256);

impl Column {
    /// A column of rows of this shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Column {
        Column { name: name.into(), dtype, shape: shape.into(), extent: Extent::Fixed, classes: None }
    }

    /// A column of files.
    ///
    /// ```
    /// assert_eq!(plimsoll_data::Column::files("x").to_string(), "x: files");
    /// ```
    pub fn files(name: impl Into<String>) -> Column {
        Column { name: name.into(), dtype: DType::U8, shape: Vec::new(), extent: Extent::Files, classes: None }
    }

    /// A column of images of variable size.
    pub fn images(name: impl Into<String>, channels: usize) -> Column {
        Column { name: name.into(), dtype: DType::U8, shape: vec![channels], extent: Extent::Images, classes: None }
    }

    /// A column of rows that vary in length: up to `shape[0]` elements of shape `shape[1..]`. Batch it with
    /// [`padded_batch`](crate::Dataset::padded_batch).
    pub fn up_to(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Column {
        Column { extent: Extent::UpTo, ..Column::new(name, dtype, shape) }
    }

    /// Sets the class names.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::Column;
    /// let label = Column::new("y", DType::I32, []).with_classes(["cat".to_string(), "dog".to_string()]);
    /// assert_eq!(label.classes.unwrap()[1], "dog");
    /// ```
    pub fn with_classes(mut self, classes: impl Into<Arc<[String]>>) -> Column {
        self.classes = Some(classes.into());
        self
    }

    /// The elements of a row without padding, as bytes.
    pub(crate) fn elements_of<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        match self.extent {
            Extent::UpTo => &row[..length_of(row) as usize * (self.elements() / self.shape[0] * self.dtype.size())],
            _ => row,
        }
    }

    /// Elements in one row.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1usize, |product, &dim| product.saturating_mul(dim))
    }

    /// Bytes of one row in a block; zero for files and images of variable size, which blocks cannot hold.
    pub fn row_bytes(&self) -> Bytes {
        let whole = Bytes((self.elements() as u64).saturating_mul(self.dtype.size() as u64));
        match self.extent {
            Extent::Fixed => whole,
            Extent::UpTo => whole.align_up(LENGTH_BYTES as u64) + Bytes(LENGTH_BYTES as u64),
            Extent::Files | Extent::Images => Bytes::ZERO,
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.extent {
            Extent::Fixed => write!(f, "{}: {}{:?}", self.name, self.dtype, self.shape),
            Extent::UpTo => write!(f, "{}: {}{}", self.name, self.dtype, format!("{:?}", self.shape).replacen('[', "[≤ ", 1)),
            Extent::Files => write!(f, "{}: files", self.name),
            Extent::Images => write!(f, "{}: {}[?, ?, {}]", self.name, self.dtype, self.shape[0]),
        }
    }
}

impl Schema {
    /// Checks that names are distinct and that rows have a valid size.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::{Column, Schema};
    /// let twice = Schema::new(vec![Column::new("x", DType::F32, [4]), Column::new("x", DType::I32, [])]);
    /// assert_eq!(twice.unwrap_err().to_string(), "column `x` appears twice; give each column its own name");
    /// ```
    pub fn new(columns: Vec<Column>) -> Result<Schema, DataError> {
        for (index, column) in columns.iter().enumerate() {
            let refuse = |problem: String| Err(DataError::Schema { column: column.name.clone(), problem });
            if columns[..index].iter().any(|other| other.name == column.name) {
                return refuse("appears twice; give each column its own name".into());
            }
            if column.shape.contains(&0) {
                return refuse(format!("has rows of shape {:?}, which hold nothing; leave the column out", column.shape));
            }
            if column.extent == Extent::UpTo && column.shape.is_empty() {
                return refuse("is to have rows of up to some length, but is a single number; give it a shape".into());
            }
            if column.row_bytes() > MAX_ROW {
                return refuse(format!("has rows of shape {:?}, above the {MAX_ROW} a row may take; split them", column.shape));
            }
        }
        Ok(Schema { columns })
    }

    /// The columns in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The index of the column `name`.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The column `name` that a condition or a stage looks at.
    pub(crate) fn look_up(&self, name: &str) -> Result<&Column, DataError> {
        self.index_of(name).map(|index| &self.columns[index]).ok_or_else(|| {
            let columns: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            DataError::Stage(format!("there is no column `{name}` to look at; the columns are {}", columns.join(", ")))
        })
    }

    /// Bytes of one row over all columns.
    pub fn row_bytes(&self) -> Bytes {
        self.columns.iter().map(Column::row_bytes).sum()
    }

    /// Replaces one column; a map keeps the name, so the names stay distinct.
    pub(crate) fn with(mut self, index: usize, column: Column) -> Result<Schema, DataError> {
        self.columns[index] = column;
        Schema::new(self.columns)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, column) in self.columns.iter().enumerate() {
            write!(f, "{}{column}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
