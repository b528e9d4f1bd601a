//! Windows of characters.

use super::{InputKind, Opened, SourceArgs, SourceKind, only_path};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::source::Text;

pub(super) const TEXT: SourceKind = SourceKind {
    name: "text",
    keys: "`path`, `context`, `stride`, `split` (see [text](#text))",
    rows: "windows of characters, for language models",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Text,
    open: text,
    from_path: Some(|path| {
        let mut table = only_path(path)?;
        table.insert("context".into(), 64.into());
        Ok(table)
    }),
};

fn text(args: &SourceArgs<'_>) -> Result<Opened> {
    let path = args.path("path", "the path of a text file")?;
    let context = args.table.count("context", 1)?.ok_or_else(|| args.table.missing("context", "the number of characters in a window"))?;
    let stride = args.table.count("stride", 1)?;
    let (split, end) = split(args.table)?;
    let whole = Text::open(&path, context as usize)?;
    let training = whole.part(0.0, split.unwrap_or(1.0))?.stride(stride.unwrap_or(context) as usize)?;
    let test = if end < 1.0 { Some(whole.part(end, 1.0)?.stride(context as usize)?.into()) } else { None };
    let (text, folder) = (Some(whole.clone()), args.folder.to_path_buf());
    let opened = Opened::new(training.into()).with_validation(move |table| {
        let held_out = || split.map(|split| whole.part(split, end)).transpose();
        let Some(table) = table else { return Ok(held_out()?.map(Into::into)) };
        let text = match table.text("path")? {
            Some(path) => Text::open_with(&folder.join(path), whole.context(), Some(whole.vocabulary()))?,
            None => held_out()?.ok_or_else(|| table.missing("path", "the text to validate on; or set `data.split`, such as 0.9"))?,
        };
        let stride = table.count("stride", 1)?.unwrap_or(whole.context() as u64);
        Ok(Some(text.stride(stride as usize)?.into()))
    });
    Ok(Opened { overlapping: true, split, text, test, ..opened })
}

/// The fraction of a file to train on, and where the rows to validate on end: at 1, or before the rows to test on.
pub(super) fn split(data: &Reader<'_>) -> Result<(Option<f64>, f64)> {
    let inside = |share: f64| share > 0.0 && share < 1.0;
    match data.exact_numbers("split")?.as_deref() {
        None => Ok((None, 1.0)),
        Some(&[share]) if inside(share) => Ok((Some(share), 1.0)),
        Some(&[share, end]) if inside(share) && inside(end) && share < end => Ok((Some(share), end)),
        Some(&[share]) => {
            Err(Error::Config(format!("`{}` is {share}, but should be the fraction to train on, such as 0.9", data.name("split"))))
        }
        Some(shares) => Err(Error::Config(format!(
            "`{}` is {shares:?}, but should be the fraction to train on, or where training and validation rows end, such as [0.8, 0.9]",
            data.name("split")
        ))),
    }
}
