//! The schema of an Arrow file: its columns, and where the values of each are in a record batch.

use super::flat::{MalformedMessage, Table};
use crate::source::columnar::{ColumnInfo, index_columns};
use crate::table::{Cell, ColumnKind};

/// Numbers: integers, divided where a divisor is given, or floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number {
    pub form: Form,
    /// Bytes of a value.
    pub size: usize,
    pub by: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Signed,
    Unsigned,
    Float,
    /// Integers of 64 bits of which not one may be rounded, such as categories: their bits as those of an f64.
    ExactSigned,
    ExactUnsigned,
}

impl Number {
    /// The number whose integers are not rounded.
    fn exact(self) -> Number {
        let form = match self.form {
            Form::Signed if self.size == 8 && self.by == 1.0 => Form::ExactSigned,
            Form::Unsigned if self.size == 8 && self.by == 1.0 => Form::ExactUnsigned,
            form => form,
        };
        Number { form, ..self }
    }

    /// The cell of a decoded value.
    pub fn cell<'c>(self, value: f64) -> Cell<'c> {
        match self.form {
            Form::ExactSigned => {
                let integer = value.to_bits().cast_signed();
                Cell::integer(integer < 0, integer.unsigned_abs())
            }
            Form::ExactUnsigned => Cell::integer(false, value.to_bits()),
            Form::Signed | Form::Unsigned | Form::Float => Cell::Number(value),
        }
    }
}

/// How the values of a column are stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Layout {
    /// No values.
    Null,
    Bits,
    Numbers(Number),
    /// Strings by their offsets, of 4 or 8 bytes.
    Strings(usize),
    /// Strings by views of 16 bytes.
    Views,
    /// Lists of numbers by their offsets, of 4 or 8 bytes.
    Lists(usize, Number),
    /// Lists of this many numbers each.
    FixedLists(usize, Number),
    /// Indices of the values of a dictionary.
    Dictionary {
        id: i64,
        index: Number,
        values: Box<Layout>,
    },
    /// Not read, for this reason.
    Unread(&'static str),
}

impl Layout {
    /// The layout whose integers are not rounded; those of lists are.
    pub fn exact(&self) -> Layout {
        match self {
            Layout::Numbers(number) => Layout::Numbers(number.exact()),
            Layout::Dictionary { id, index, values } => Layout::Dictionary { id: *id, index: *index, values: Box::new(values.exact()) },
            other => other.clone(),
        }
    }
}

/// A field and its children.
#[derive(Clone, Debug)]
pub(super) struct ArrowField {
    pub name: String,
    pub layout: Layout,
    /// What the numbers are, if they are not only numbers.
    kind: Option<ColumnKind>,
    /// Buffers of its own in a record batch; those of views vary.
    pub buffers: usize,
    pub views: bool,
    is_struct: bool,
    pub children: Vec<ArrowField>,
    /// The dictionary, and the field of its values.
    pub dictionary: Option<(i64, Box<ArrowField>)>,
}

/// The deepest nesting of fields.
const DEEPEST: usize = 32;

const DAY: f64 = 86_400.0;

/// The columns of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrowSchema {
    pub fields: Vec<ArrowField>,
    /// The columns that pandas wrote as its index.
    pub index: Vec<String>,
}

impl ArrowSchema {
    pub fn read(table: Table<'_>) -> Result<Result<ArrowSchema, String>, MalformedMessage> {
        if table.i16(0, 0)? != 0 {
            return Ok(Err("its numbers are big-endian, which is not supported; write it on another machine".into()));
        }
        let fields = table.vector(1)?.tables().map(|field| ArrowField::read(field?, 0)).collect::<Result<_, _>>()?;
        let mut index = Vec::new();
        for entry in table.vector(2)?.tables() {
            let entry = entry?;
            if entry.text(0)? == "pandas" {
                index = index_columns(entry.text(1)?);
            }
        }
        Ok(Ok(ArrowSchema { fields, index }))
    }

    /// The columns of the table: leaves, and fields of structs.
    pub fn columns(&self) -> Vec<ArrowLeaf<'_>> {
        let mut leaves = Vec::new();
        self.fields.iter().enumerate().for_each(|(at, field)| field.leaves("", &[at], &mut leaves));
        leaves
    }
}

/// A column of the table.
pub(super) struct ArrowLeaf<'f> {
    pub name: String,
    pub field: &'f ArrowField,
    /// The index of the field, and of each child on the way to it.
    pub path: Vec<usize>,
}

impl ArrowLeaf<'_> {
    pub fn info(&self) -> ColumnInfo {
        let number = self.field.kind.unwrap_or(ColumnKind::Number);
        let is_whole = |number: &Number| number.form != Form::Float && number.by == 1.0;
        let cells = match &self.field.layout {
            Layout::Unread(reason) => Err(*reason),
            Layout::Null => Err("no values"),
            Layout::Bits => Ok(ColumnKind::Boolean),
            Layout::Numbers(_) => Ok(number),
            Layout::Strings(_) | Layout::Views => Ok(ColumnKind::Text),
            Layout::Lists(..) | Layout::FixedLists(..) => Ok(ColumnKind::List),
            Layout::Dictionary { values, .. } => match &**values {
                Layout::Strings(_) | Layout::Views => Ok(ColumnKind::Text),
                Layout::Numbers(_) => Ok(number),
                _ => Err("dictionary of another type"),
            },
        };
        let whole = match &self.field.layout {
            Layout::Bits => true,
            Layout::Numbers(number) => is_whole(number),
            Layout::Dictionary { values, .. } => matches!(&**values, Layout::Numbers(number) if is_whole(number)),
            _ => false,
        };
        ColumnInfo { name: self.name.clone(), cells, whole }
    }
}

impl ArrowField {
    fn read(table: Table<'_>, depth: usize) -> Result<ArrowField, MalformedMessage> {
        if depth > DEEPEST {
            return Err(MalformedMessage);
        }
        let name = table.text(0)?.to_string();
        let children: Vec<ArrowField> =
            table.vector(5)?.tables().map(|child| ArrowField::read(child?, depth + 1)).collect::<Result<_, _>>()?;
        let type_number = table.u8(2)?;
        let (layout, kind, buffers) = ArrowField::layout(type_number, table.table(3)?.ok_or(MalformedMessage)?, &children)?;
        let field = ArrowField {
            name,
            views: matches!(type_number, 23 | 24),
            is_struct: type_number == 13,
            layout,
            kind,
            buffers,
            children,
            dictionary: None,
        };
        let Some(dictionary) = table.table(4)? else { return Ok(field) };
        let id = dictionary.i64(0)?;
        let index = match dictionary.table(1)? {
            Some(index) => integer(index)?,
            None => Number { form: Form::Signed, size: 4, by: 1.0 },
        };
        let values = Box::new(field.layout.clone());
        let (name, kind) = (field.name.clone(), field.kind);
        Ok(ArrowField {
            name,
            layout: Layout::Dictionary { id, index, values },
            kind,
            buffers: 2,
            views: false,
            is_struct: false,
            children: Vec::new(),
            dictionary: Some((id, Box::new(field))),
        })
    }

    /// How values are stored, what they are, and the number of buffers, by the format's number of the type.
    fn layout(number: u8, of: Table<'_>, children: &[ArrowField]) -> Result<(Layout, Option<ColumnKind>, usize), MalformedMessage> {
        let plain = |number: Number| (Layout::Numbers(number), None, 2);
        let time = |size: usize, day: f64| (Layout::Numbers(Number { form: Form::Signed, size, by: day }), Some(ColumnKind::Date), 2);
        let units = |unit: i16| DAY * [1.0, 1e3, 1e6, 1e9][usize::try_from(unit).unwrap_or(0).min(3)];
        let list = |number: Option<&Number>, to: fn(Number) -> Layout| match number {
            Some(number) => to(*number),
            None => Layout::Unread("nested"),
        };
        let element = match children {
            [ArrowField { layout: Layout::Numbers(number), .. }] => Some(number),
            _ => None,
        };
        Ok(match number {
            1 => (Layout::Null, None, 0),
            2 => plain(integer(of)?),
            3 => plain(Number { form: Form::Float, size: [2, 4, 8][usize::try_from(of.i16(0, 0)?).unwrap_or(0).min(2)], by: 1.0 }),
            4 | 5 => (Layout::Strings(4), None, 3),
            19 | 20 => (Layout::Strings(8), None, 3),
            6 => (Layout::Bits, None, 2),
            7 => {
                let (scale, bits) = (of.i32(1, 0)?, of.i32(2, 128)?);
                let size = usize::try_from(bits / 8).ok().filter(|size| matches!(size, 4 | 8 | 16 | 32)).ok_or(MalformedMessage)?;
                plain(Number { form: Form::Signed, size, by: 10f64.powi(scale) })
            }
            8 if of.i16(0, 1)? == 0 => time(4, 1.0),
            8 => time(8, DAY * 1e3),
            9 => time(if of.i32(1, 32)? == 64 { 8 } else { 4 }, units(of.i16(0, 1)?)),
            10 => time(8, units(of.i16(0, 0)?)),
            11 => (Layout::Unread("interval"), None, 2),
            12 => (list(element, |number| Layout::Lists(4, number)), None, 2),
            13 => (Layout::Unread("empty struct"), None, 1),
            14 => (Layout::Unread("union"), None, if of.i16(0, 0)? == 1 { 2 } else { 1 }),
            15 => (Layout::Unread("bytes"), None, 2),
            16 => {
                let length = usize::try_from(of.i32(0, 0)?).map_err(|_| MalformedMessage)?;
                (element.map_or(Layout::Unread("nested"), |number| Layout::FixedLists(length, *number)), None, 1)
            }
            17 => (Layout::Unread("map"), None, 2),
            18 => plain(Number { form: Form::Signed, size: 8, by: units(of.i16(0, 1)?) }),
            21 => (list(element, |number| Layout::Lists(8, number)), None, 2),
            22 => (Layout::Unread("run-end encoded"), None, 0),
            23 | 24 => (Layout::Views, None, 2),
            25 | 26 => (Layout::Unread("list view"), None, 3),
            _ => return Err(MalformedMessage),
        })
    }

    fn leaves<'f>(&'f self, outer: &str, path: &[usize], leaves: &mut Vec<ArrowLeaf<'f>>) {
        let name = if outer.is_empty() { self.name.clone() } else { format!("{outer}.{}", self.name) };
        if !self.is_struct || self.children.is_empty() {
            leaves.push(ArrowLeaf { name, field: self, path: path.to_vec() });
            return;
        }
        let below = |at: usize| path.iter().copied().chain([at]).collect::<Vec<_>>();
        self.children.iter().enumerate().for_each(|(at, child)| child.leaves(&name, &below(at), leaves));
    }

    /// Bytes of the field and its children.
    pub fn held(&self) -> usize {
        let values = self.dictionary.as_ref().map_or(0, |(_, values)| values.held());
        let children: usize = self.children.iter().map(ArrowField::held).sum();
        size_of::<ArrowField>() + (self.name.len() + 8).next_multiple_of(16) + children + values
    }
}

fn integer(table: Table<'_>) -> Result<Number, MalformedMessage> {
    let form = if table.flag(1)? { Form::Signed } else { Form::Unsigned };
    let size = usize::try_from(table.i32(0, 0)? / 8).map_err(|_| MalformedMessage)?;
    Some(Number { form, size, by: 1.0 }).filter(|_| matches!(size, 1 | 2 | 4 | 8)).ok_or(MalformedMessage)
}
