//! Everything that rows depend on, fed to a fingerprint: what they are made from, and each stage on their way.

use super::{Cache, Fingerprint};
use crate::DataError;
use crate::dataset::{Dataset, Stage};
use crate::stream::Spec;
use std::hash::Hasher;

/// What a cache in a file says that would not notice when this changes.
pub(crate) fn unknown(what: &str) -> DataError {
    DataError::Stage(format!(
        "a cache in a file behind {what} would not notice when that code changes; say which version it is (.version(\"1\") before the \
         cache), or keep it in memory"
    ))
}

/// The fingerprint of the rows of a data set, whole and in order.
pub(super) fn fingerprint(data: &Dataset) -> Result<[u8; 16], DataError> {
    let mut hash = Fingerprint::new();
    match identify(data, &mut hash, false)? {
        Some(code) => Err(unknown(&code)),
        None => Ok(hash.bytes()),
    }
}

/// Feeds `hash` with a data set, where bad rows may be left out further on; what comes back is user code whose version was not said.
fn identify(data: &Dataset, hash: &mut Fingerprint, left_out: bool) -> Result<Option<String>, DataError> {
    let mut code = match &data.stream {
        Some(spec) => identify_spec(spec, hash, left_out)?,
        None => (!data.source.fingerprint(0..data.source.len(), hash)?).then(|| data.source.describe()),
    };
    hash.write(data.source.schema().to_string().as_bytes());
    for stage in &data.stages {
        match stage {
            Stage::Version(_) => code = None,
            Stage::Map { ops, .. } => code = ops.iter().rfind(|op| op.is_code()).map(|op| op.describe()).or(code),
            // Pictures are rounded where they are cached; it matters to no one where.
            Stage::Cache(Cache::Auto, _) => continue,
            Stage::Cache(..) => {
                hash.write(b"cache");
                continue;
            }
            Stage::Reorder(_) => {}
            // Which pictures are too large.
            Stage::MaxItem(_) if left_out => {}
            // These say how rows are handed on, not what they are.
            _ => continue,
        }
        hash.write(stage.to_string().as_bytes());
    }
    Ok(code)
}

fn identify_spec(spec: &Spec, hash: &mut Fingerprint, left_out: bool) -> Result<Option<String>, DataError> {
    let left_out = left_out || matches!(spec, Spec::IgnoreErrors { .. });
    hash.write(spec.name().as_bytes());
    hash.write(&spec.inputs().len().to_le_bytes());
    let mut code = None;
    for input in spec.inputs() {
        code = identify(input, hash, left_out)?.or(code);
    }
    match spec {
        Spec::Source(source) => match &source.identity {
            Some(identity) => identity(hash)?,
            None => code = Some(spec.name()),
        },
        Spec::Pictures(pictures) => {
            pictures.identify(hash)?;
            if let Some(bytes) = pictures.max_item().filter(|_| left_out) {
                hash.write(&bytes.0.to_le_bytes());
            }
        }
        Spec::Filter { keep, .. } | Spec::TakeWhile { keep, .. } if keep.is_code() => code = Some(spec.name()),
        Spec::FlatMap { schema, .. } => {
            hash.write(schema.to_string().as_bytes());
            code = Some(spec.name());
        }
        Spec::Shuffle { bytes, .. } => hash.write(&bytes.0.to_le_bytes()),
        Spec::Sample { weights, .. } => weights.iter().for_each(|weight| hash.write(&weight.to_bits().to_le_bytes())),
        _ => {}
    }
    Ok(code)
}

/// The first operation before a cache that would be another in each epoch, and its column.
pub(super) fn drawn_by_lot(data: &Dataset) -> Option<(String, String)> {
    let by_lot = |stage: &Stage| match stage {
        Stage::Map { column, ops } => ops.iter().find(|op| op.is_random()).map(|op| (op.describe(), column.clone())),
        _ => None,
    };
    let spec = data.stream.as_deref();
    // Pictures of a stream are mapped where they come from.
    let pictures = spec.and_then(|spec| if let Spec::Pictures(pictures) = spec { Some(pictures.stages()) } else { None });
    let here = data.stages.iter().chain(pictures.unwrap_or_default()).find_map(by_lot);
    here.or_else(|| spec?.inputs().iter().find_map(drawn_by_lot))
}
