//! The columns of a row: which encoded columns form which inputs and labels.

use super::column::{ColumnScale, Encoding};
use super::encode::{Encoder, WORD};
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;

/// The encoders of a table, and the columns that their results form.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub encoders: Vec<Encoder>,
    /// The first word of each encoder in an encoded row.
    pub offsets: Vec<usize>,
    /// Words of an encoded row.
    pub words: usize,
    outputs: Vec<OutputColumn>,
    /// Where the words of an encoded row go in a row of all outputs.
    pieces: Vec<Piece>,
    /// How many of the outputs are inputs of the model; labels and weights follow.
    pub inputs: usize,
}

/// Words of an encoded row, and where they go.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: u32,
    to: u32,
    /// Words to copy; `None` for the index of a one-hot category.
    copied: Option<u32>,
}

/// Copies so many words, without a call.
#[inline(always)]
fn copy<const WORDS: usize>(from: &[[u8; WORD]], to: &mut [[u8; WORD]]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<WORDS>(), to.first_chunk_mut::<WORDS>()) {
        *to = *from;
    }
}

/// Rows that are expanded at a time, while they are in the processor's nearest cache.
const TILE: usize = 32;

/// Columns of the table that form one column of rows.
pub(crate) struct Group {
    pub name: String,
    pub columns: Vec<u32>,
    pub label: bool,
}

#[derive(Clone, Debug)]
struct OutputColumn {
    name: String,
    dtype: DType,
    columns: Vec<u32>,
    /// Elements of a row.
    width: usize,
    /// Whether a row is a single number without a dimension.
    scalar: bool,
    ragged: bool,
    /// The words to copy, if no column has to be expanded and they follow each other.
    run: Option<usize>,
}

impl Columns {
    pub fn new(
        encoders: Vec<Encoder>,
        features: &[u32],
        inputs: Vec<Group>,
        labels: Vec<Group>,
        weight: Option<u32>,
    ) -> Result<Columns, String> {
        let mut words = 0;
        let offsets: Vec<usize> = encoders
            .iter()
            .map(|encoder| {
                words += encoder.words;
                words - encoder.words
            })
            .collect();
        let mut groups = inputs;
        if groups.is_empty() {
            groups = default_inputs(&encoders, features);
        }
        let count = groups.len();
        groups.extend(labels);
        groups.extend(weight.map(|weight| Group { name: "weight".into(), columns: vec![weight], label: true }));
        let mut columns = Columns { encoders, offsets, words, outputs: Vec::new(), pieces: Vec::new(), inputs: count };
        for group in groups {
            let output = columns.output(group)?;
            columns.outputs.push(output);
        }
        columns.pieces = columns.pieces();
        Ok(columns)
    }

    /// No columns.
    pub fn empty() -> Columns {
        Columns { encoders: Vec::new(), offsets: Vec::new(), words: 0, outputs: Vec::new(), pieces: Vec::new(), inputs: 0 }
    }

    fn output(&self, group: Group) -> Result<OutputColumn, String> {
        let Group { name, columns, label } = group;
        let encoders: Vec<&Encoder> = columns.iter().map(|at| &self.encoders[*at as usize]).collect();
        let Some(first) = encoders.first() else { return Err(format!("`{name}` has no columns; name some")) };
        let dtype = first.dtype;
        let describe = |encoder: &Encoder| encoder.column.name.clone();
        if let Some(other) = encoders.iter().find(|encoder| encoder.dtype != dtype) {
            let problem = format!(
                "`{name}` is made of columns of different types: `{}` is {dtype}, `{}` is {}",
                describe(first),
                describe(other),
                other.dtype
            );
            return Err(format!("{problem}; encode both as one_hot or both as int, or make them inputs of their own"));
        }
        let ragged = encoders.iter().find(|encoder| encoder.is_ragged());
        if let Some(ragged) = ragged.filter(|_| encoders.len() > 1) {
            return Err(format!(
                "the lists of column `{}` vary in length, so it is an input of its own: name it in `inputs`",
                describe(ragged)
            ));
        }
        let width = encoders.iter().map(|encoder| encoder.width).sum();
        let single = encoders.len() == 1 && width == 1;
        let scalar = single && (dtype == DType::I32 || name == "weight" && label);
        let expanded = |encoder: &&Encoder| encoder.words != encoder.width;
        let follow = columns
            .windows(2)
            .all(|pair| self.offsets[pair[1] as usize] == self.offsets[pair[0] as usize] + self.encoders[pair[0] as usize].words);
        let run = (follow && !encoders.iter().any(expanded)).then(|| self.offsets[columns[0] as usize]);
        Ok(OutputColumn { name, dtype, columns, width, scalar, ragged: ragged.is_some(), run })
    }

    /// The columns of rows.
    pub fn schema(&self) -> Result<Schema, DataError> {
        let column = |output: &OutputColumn| {
            let shape = if output.scalar { vec![] } else { vec![output.width] };
            match output.ragged {
                true => Column::up_to(&output.name, output.dtype, shape),
                false => Column::new(&output.name, output.dtype, shape),
            }
        };
        Schema::new(self.outputs.iter().map(column).collect())
    }

    /// The columns of rows, with the class names of labels.
    pub fn schema_with_classes(&self) -> Result<Schema, DataError> {
        let (schema, classes) = (self.schema()?, self.classes());
        match schema.index_of("y").filter(|_| !classes.is_empty()) {
            Some(at) => {
                let column = schema.columns()[at].clone().with_classes(classes);
                schema.with(at, column)
            }
            None => Ok(schema),
        }
    }

    /// The standardization of each column.
    pub fn scales(&self) -> Vec<ColumnScale> {
        let scale = |encoder: &Encoder| {
            let (mean, std) = match encoder.column.encoding {
                Encoding::Normalize { mean, std } => (mean, std),
                _ => (0.0, 1.0),
            };
            ColumnScale { name: encoder.column.name.clone(), mean, std }
        };
        self.encoders.iter().map(scale).collect()
    }

    /// Whether the words of a row are its output columns one after the other.
    pub fn is_whole_row(&self) -> bool {
        let mut at = 0;
        let follows = |output: &OutputColumn| {
            let start = at;
            at += Columns::output_words(output);
            output.run == Some(start)
        };
        self.outputs.iter().all(follows) && at == self.words
    }

    /// Type and elements of the inputs and of the labels, which windows stack along time.
    pub fn series(&self) -> Result<(usize, Option<(DType, usize)>), String> {
        match &self.outputs[..] {
            [x] | [x, _] if x.dtype == DType::F32 && !x.ragged && self.inputs == 1 => {
                Ok((x.width, self.outputs.get(1).map(|y| (y.dtype, y.width))))
            }
            _ => Err("windows are made of one input of numbers (and one-hot categories) and one of labels; encode other columns so, or drop them".into()),
        }
    }

    /// Words per row of an output.
    fn output_words(output: &OutputColumn) -> usize {
        output.width + usize::from(output.ragged)
    }

    /// Writes output column `at` of an encoded row.
    #[inline]
    pub fn put(&self, row: &[[u8; WORD]], at: usize, out: &mut [[u8; WORD]]) {
        let output = &self.outputs[at];
        if let Some(start) = output.run {
            out.copy_from_slice(&row[start..start + out.len()]);
            return;
        }
        let mut rest = out;
        for &column in &output.columns {
            let (encoder, offset) = (&self.encoders[column as usize], self.offsets[column as usize]);
            let width = encoder.width + usize::from(output.ragged);
            let (this, after) = rest.split_at_mut(width);
            encoder.expand(&row[offset..offset + encoder.words], this);
            rest = after;
        }
    }

    fn pieces(&self) -> Vec<Piece> {
        let (mut pieces, mut to): (Vec<Piece>, usize) = (Vec::new(), 0);
        for output in &self.outputs {
            for &column in &output.columns {
                let (encoder, from) = (&self.encoders[column as usize], self.offsets[column as usize]);
                let width = encoder.width + usize::from(output.ragged);
                let copied = (!encoder.is_expanded()).then_some(width as u32);
                match (pieces.last_mut(), copied) {
                    (Some(Piece { from: before, to: place, copied: Some(count) }), Some(more))
                        if (*before + *count, *place + *count) == (from as u32, to as u32) =>
                    {
                        *count += more;
                    }
                    _ => pieces.push(Piece { from: from as u32, to: to as u32, copied }),
                }
                to += width;
            }
        }
        pieces.shrink_to_fit();
        pieces
    }

    /// Writes whole rows, whose outputs follow each other, from encoded ones.
    pub fn put_rows(&self, words: &[[u8; WORD]], out: &mut [[u8; WORD]]) {
        let width = self.widths().sum::<usize>();
        if self.is_whole_row() {
            return out.copy_from_slice(words);
        }
        let has_categories = self.pieces.iter().any(|piece| piece.copied.is_none());
        for (words, out) in words.chunks(TILE * self.words).zip(out.chunks_mut(TILE * width)) {
            if has_categories {
                out.fill([0; WORD]);
            }
            for piece in &self.pieces {
                let (from, to) = (piece.from as usize, piece.to as usize);
                let rows = words.chunks_exact(self.words).zip(out.chunks_exact_mut(width));
                match piece.copied {
                    Some(1) => rows.for_each(|(words, out)| out[to] = words[from]),
                    Some(2) => rows.for_each(|(words, out)| copy::<2>(&words[from..], &mut out[to..])),
                    Some(3) => rows.for_each(|(words, out)| copy::<3>(&words[from..], &mut out[to..])),
                    Some(4) => rows.for_each(|(words, out)| copy::<4>(&words[from..], &mut out[to..])),
                    Some(count) => {
                        rows.for_each(|(words, out)| out[to..][..count as usize].copy_from_slice(&words[from..][..count as usize]))
                    }
                    None => rows.for_each(|(words, out)| out[to + i32::from_ne_bytes(words[from]) as usize] = 1f32.to_ne_bytes()),
                }
            }
        }
    }

    /// Words of each output column of a row.
    pub fn widths(&self) -> impl Iterator<Item = usize> + '_ {
        self.outputs.iter().map(Columns::output_words)
    }

    /// Bytes of the encoders.
    pub fn held(&self) -> usize {
        let outputs: usize = self.outputs.iter().map(|output| size_of_val(&output.columns[..]) + size_of::<OutputColumn>()).sum();
        self.encoders.iter().map(|encoder| encoder.held() + (encoder.column.name.len() + 8).next_multiple_of(16).max(32)).sum::<usize>()
            + size_of_val(&self.offsets[..])
            + size_of_val(&self.pieces[..])
            + outputs
    }

    /// The class names of the only label, if it is a category.
    pub fn classes(&self) -> Vec<String> {
        let labels: Vec<&OutputColumn> = self.outputs[self.inputs..].iter().filter(|output| output.name != "weight").collect();
        let [label] = &labels[..] else { return Vec::new() };
        let [column] = label.columns[..] else { return Vec::new() };
        self.encoders[column as usize].column.class_names()
    }
}

/// Numbers and one-hot categories are `x`; every other feature is an input of its own name, unless it is the only one.
fn default_inputs(encoders: &[Encoder], features: &[u32]) -> Vec<Group> {
    let is_part = |at: &&u32| encoders[**at as usize].dtype == DType::F32 && !encoders[**at as usize].is_ragged();
    let floats: Vec<u32> = features.iter().filter(is_part).copied().collect();
    let others: Vec<u32> = features.iter().filter(|at| !is_part(at)).copied().collect();
    let mut groups = Vec::new();
    if !floats.is_empty() {
        groups.push(Group { name: "x".into(), columns: floats, label: false });
    }
    let alone = groups.is_empty() && others.len() == 1;
    groups.extend(others.into_iter().map(|at| {
        let name = if alone { "x".to_string() } else { encoders[at as usize].column.name.clone() };
        Group { name, columns: vec![at], label: false }
    }));
    groups
}
