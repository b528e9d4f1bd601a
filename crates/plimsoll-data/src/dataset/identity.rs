//! Fingerprints of data sets, so that a cache file is used only for the data it was created from.

use super::{Dataset, Node};
use crate::DataError;
use crate::cache::{Cache, Fingerprint, unversioned};
use std::hash::Hasher;

/// The fingerprint of all rows of a data set, in order.
pub(crate) fn fingerprint(data: &Dataset) -> Result<[u8; 16], DataError> {
    let mut hash = Fingerprint::new();
    match identify(data, &mut hash, false)? {
        Some(code) => Err(unversioned(&code)),
        None => Ok(hash.bytes()),
    }
}

/// Hashes a data set into `hash`, given whether a later stage ignores errors; returns user code without a version.
fn identify(data: &Dataset, hash: &mut Fingerprint, ignores_errors: bool) -> Result<Option<String>, DataError> {
    let mut code = match &data.node {
        Some(node) => identify_node(node, hash, ignores_errors)?,
        None => (!data.source.fingerprint(0..data.source.len(), hash)?).then(|| data.source.describe()),
    };
    hash.write(data.source.schema().to_string().as_bytes());
    for stage in &data.stages {
        match stage.cache() {
            // Images are rounded if they are cached, regardless of where.
            Some((Cache::Auto, _)) => continue,
            Some(_) => {
                hash.write(b"cache");
                continue;
            }
            None => {}
        }
        if let Some((_, ops)) = stage.mapped() {
            code = ops.iter().rfind(|op| op.is_code()).map(|op| op.describe()).or(code);
        }
        if stage.sets_version() {
            code = None;
        }
        if stage.changes_rows(ignores_errors) {
            hash.write(stage.describe().as_bytes());
        }
    }
    Ok(code)
}

fn identify_node(node: &Node, hash: &mut Fingerprint, ignores_errors: bool) -> Result<Option<String>, DataError> {
    let ignores_errors = ignores_errors || node.stage.ignores_errors();
    hash.write(node.stage.describe().as_bytes());
    hash.write(&node.inputs.len().to_le_bytes());
    let mut code = None;
    for input in &node.inputs {
        code = identify(input, hash, ignores_errors)?.or(code);
    }
    Ok(node.stage.identify(hash, ignores_errors)?.or(code))
}
