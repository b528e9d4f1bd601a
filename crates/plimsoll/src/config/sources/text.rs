//! Windows of characters.

use super::{Opened, SourceArgs, SourceKind, only_path};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::source::Text;

pub(super) const TEXT: SourceKind = SourceKind {
    name: "text",
    keys: "`path`, `context`, `stride`, `split` (see [text](#text))",
    rows: "windows of characters, for language models",
    paths: &["path"],
    unchecked_floats: false,
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
    let split = split(args.table)?;
    let whole = Text::open(&path, context as usize)?;
    let training = whole.part(0.0, split.unwrap_or(1.0))?.stride(stride.unwrap_or(context) as usize)?;
    let (text, folder) = (Some(whole.clone()), args.folder.to_path_buf());
    let opened = Opened::new(training.into()).with_validation(move |table| {
        let held_out = || split.map(|split| whole.part(split, 1.0)).transpose();
        let Some(table) = table else { return Ok(held_out()?.map(Into::into)) };
        let text = match table.text("path")? {
            Some(path) => Text::open_with(&folder.join(path), whole.context(), Some(whole.vocabulary()))?,
            None => held_out()?.ok_or_else(|| table.missing("path", "the text to validate on; or set `data.split`, such as 0.9"))?,
        };
        let stride = table.count("stride", 1)?.unwrap_or(whole.context() as u64);
        Ok(Some(text.stride(stride as usize)?.into()))
    });
    Ok(Opened { overlapping: true, split, text, ..opened })
}

/// The fraction of a file to train on; the rest is held out.
pub(super) fn split(data: &Reader<'_>) -> Result<Option<f64>> {
    match data.number("split")? {
        Some(share) if !(share > 0.0 && share < 1.0) => {
            Err(Error::Config(format!("`{}` is {share}, but should be the fraction to train on, such as 0.9", data.name("split"))))
        }
        share => Ok(share),
    }
}
