//! Weights of torchvision, timm and transformers for the networks of the zoo: found by their names there, transposed
//! from PyTorch's layouts.

mod names;
#[cfg(test)]
mod tests;

use super::weights::{Assembly, ImportedWeights};
use crate::error::{Error, Result};
use names::{SCHEMES, Scheme};
use plimsoll_formats::FormatError;
use plimsoll_formats::safetensors::SafeTensors;
use plimsoll_formats::source::Region;
use plimsoll_formats::tensor::Tensor;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Weights of a file, under the names of a model.
pub(crate) struct Mapped {
    pub weights: ImportedWeights,
    /// Whose names the file has; none if they are the model's own.
    pub scheme: Option<&'static str>,
}

/// The weights of a safetensors file for a model with these weights: under the model's own names, or those of another
/// library.
pub(crate) fn open(path: &Path, wanted: &[(String, Vec<u64>)]) -> Result<Mapped> {
    let failed = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let region = Region::file(File::open(path).map_err(failed)?).map_err(failed)?;
    let file = SafeTensors::open(region).map_err(|error| match error {
        FormatError::Io(source) => failed(source),
        other => Error::Config(format!("{} is damaged: {other}", path.display())),
    })?;
    let own = wanted.iter().filter(|(name, _)| file.tensors.contains_key(name)).count();
    let found = SCHEMES.iter().map(|scheme| (scheme, scheme.read(&file.tensors, wanted))).max_by_key(|(_, found)| found.len());
    match found {
        Some((scheme, found)) if found.len() > own => {
            let mut weights = ImportedWeights::default();
            found.into_iter().for_each(|(name, weight)| weights.insert(name, weight));
            Ok(Mapped { weights, scheme: Some(scheme.name) })
        }
        _ => {
            let mut weights = ImportedWeights::default();
            file.tensors.into_iter().for_each(|(name, tensor)| weights.insert(name, Assembly::Whole(tensor)));
            Ok(Mapped { weights, scheme: None })
        }
    }
}

impl Scheme {
    /// The weights that a file has under this scheme's names, with the right shapes.
    fn read(&self, tensors: &BTreeMap<String, Tensor>, wanted: &[(String, Vec<u64>)]) -> Vec<(String, Assembly)> {
        wanted.iter().filter_map(|(name, shape)| Some((name.clone(), self.weight(tensors, name, shape)?))).collect()
    }

    fn weight(&self, tensors: &BTreeMap<String, Tensor>, name: &str, shape: &[u64]) -> Option<Assembly> {
        let (layer, own) = name.rsplit_once('/')?;
        let find = |name: String| tensors.get(&name).cloned();
        let whole = |name: String| find(name).filter(|tensor| same(&tensor.shape, shape)).map(Assembly::Whole);
        let module = |layer: &str| (self.module)(layer);
        match own {
            "gamma" | "embeddings" => whole(format!("{}.weight", module(layer)?)),
            "beta" | "bias" => whole(format!("{}.bias", module(layer)?)),
            "moving_mean" => whole(format!("{}.running_mean", module(layer)?)),
            "moving_variance" => whole(format!("{}.running_var", module(layer)?)),
            "kernel" | "depthwise_kernel" => self.kernel(find(format!("{}.weight", module(layer)?))?, shape),
            // Parameters by themselves, without a module of their own, or tables.
            "token" | "positions" | "sentences" => {
                let module = module(layer)?;
                whole(module.clone()).or_else(|| whole(format!("{module}.weight")))
            }
            "query_key_value_kernel" => self.attention(&find, &module(layer)?, "weight", shape),
            "query_key_value_bias" => self.attention(&find, &module(layer)?, "bias", shape),
            "output_kernel" => self.kernel(find(format!("{}.weight", module(&format!("{layer}/output"))?))?, shape),
            "output_bias" => whole(format!("{}.bias", module(&format!("{layer}/output"))?)),
            _ => None,
        }
    }

    /// The kernel of a dense layer or a convolution: output channels come first in PyTorch.
    fn kernel(&self, tensor: Tensor, shape: &[u64]) -> Option<Assembly> {
        let stored = tensor.shape.clone();
        match (&stored[..], shape) {
            (_, [_, _]) if self.plain_kernels => same(&stored, shape).then_some(Assembly::Whole(tensor)),
            (&[out, inner], &[rows, columns]) if out == columns && inner == rows => match self.flattened(rows) {
                // Behind a flattened image, whose channels come first there and last here.
                Some(channels) => transposed(vec![tensor], &image(rows, channels)?, &[1, 2, 0]),
                None => transposed(vec![tensor], &[rows], &[0]),
            },
            // A convolution over the whole image instead of a dense layer.
            (&[out, c, h, w], &[rows, columns]) if out == columns && c * h * w == rows => transposed(vec![tensor], &[c, h, w], &[1, 2, 0]),
            (&[out, c, h, w], &[height, width, channels, filters]) if [h, w, c, out] == [height, width, channels, filters] => {
                transposed(vec![tensor], &[c, h, w], &[1, 2, 0])
            }
            _ => None,
        }
    }

    /// The channels of the image that VGG flattens, if a dense layer reads this many numbers.
    fn flattened(&self, rows: u64) -> Option<u64> {
        (self.name.starts_with("VGG") && rows.is_multiple_of(512) && rows > 4096).then_some(512)
    }

    /// The joint projection of queries, keys and values: one tensor, or three.
    fn attention(&self, find: &dyn Fn(String) -> Option<Tensor>, module: &str, kind: &str, shape: &[u64]) -> Option<Assembly> {
        let joint = [".", "_"].iter().find_map(|between| find(format!("{module}{between}{kind}")));
        let three = || {
            let names = [["query", "key", "value"], ["q_proj", "k_proj", "v_proj"]];
            names.iter().find_map(|names| names.iter().map(|name| find(format!("{module}.{name}.{kind}"))).collect::<Option<Vec<_>>>())
        };
        let parts = joint.map(|tensor| vec![tensor]).or_else(three)?;
        let rows: u64 = parts.iter().map(|part| part.shape.first().copied().unwrap_or(0)).sum();
        match (kind, shape) {
            ("bias", &[wide]) if rows == wide => Some(Assembly::Columns { rows: 1, parts }),
            ("weight", _) if self.plain_kernels => {
                let [tensor] = <[Tensor; 1]>::try_from(parts).ok()?;
                same(&tensor.shape, shape).then_some(Assembly::Whole(tensor))
            }
            ("weight", &[inner, wide]) if rows == wide && parts.iter().all(|part| part.shape.get(1) == Some(&inner)) => {
                transposed(parts, &[inner], &[0])
            }
            _ => None,
        }
    }
}

fn image(elements: u64, channels: u64) -> Option<[u64; 3]> {
    let side = (elements / channels).isqrt();
    (side * side * channels == elements).then_some([channels, side, side])
}

fn transposed(parts: Vec<Tensor>, inner: &[u64], order: &[usize]) -> Option<Assembly> {
    let inner = inner.iter().map(|dim| *dim as usize).collect();
    Some(Assembly::Transposed { parts, inner, order: order.to_vec() })
}

/// Whether shapes are the same but for axes of extent 1.
fn same(stored: &[u64], wanted: &[u64]) -> bool {
    let plain = |shape: &[u64]| shape.iter().copied().filter(|dim| *dim != 1).collect::<Vec<u64>>();
    plain(stored) == plain(wanted)
}
