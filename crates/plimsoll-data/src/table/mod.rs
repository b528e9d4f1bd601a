//! Tables: cells of any format become numbers in the same way.
//!
//! | file | what |
//! |---|---|
//! | `parse` | numbers, Booleans and dates from text |
//! | `column` | a column as it was fitted: a value that is stored with the weights |
//! | `encode` | cells to numbers |
//! | `text`, `bpe`, `letters` | texts to tokens |
//! | `tokens`, `hash` | sets of byte strings; hash functions with fixed results |
//! | `spec` | what is asked of a table |
//! | `infer` | what its columns hold, over all rows |
//! | `fit` | statistics and vocabularies of the training rows |
//! | `names` | the names of very many columns |
//! | `rows` | the cells of one row |
//! | `choose` | which columns are read, and how each is encoded |
//! | `layout` | which columns form the inputs and the labels of a row |

mod bpe;
mod choose;
mod column;
mod encode;
mod fit;
mod hash;
mod infer;
mod layout;
mod letters;
mod names;
pub(crate) mod parse;
mod rows;
mod spec;
mod text;
mod tokens;

pub use bpe::BytePairs;
pub(crate) use choose::{Chosen, ColumnsError, FitRows, UNUSED, candidates, fitted_numbers};
pub use column::{ColumnKind, ColumnScale, Encoding, Fill, FittedColumn, Output, TextOutput};
pub(crate) use encode::{Cell, CellFormat, Direct, LargeInteger, WORD};
pub(crate) use infer::Inference;
pub(crate) use layout::Columns;
pub(crate) use names::ColumnNames;
pub(crate) use rows::RowBuffer;
pub use spec::{ColumnOptions, Encode, Missing, Standardize, TableSpec, VocabularySpec as VocabularyOptions};
pub use text::{TextSplit, TextStandardize, Tokenization};
pub(crate) use tokens::TokenSet;
