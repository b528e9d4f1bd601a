//! Models as Keras saves them: `.keras` archives, legacy `.h5` files and bare `config.json`. What comes out is the
//! configuration as JSON and the weights by path, read later. No code in a file is ever run: `Lambda` layers and
//! classes that are not Keras' own are refused by name.

use crate::error::{Result, damaged, unsupported};
use crate::hdf5::Hdf5;
use crate::source::{MAX_METADATA, Region};
use crate::tensor::Tensor;
use crate::zip::Zip;
use serde_json::Value;

/// The longest `config.json` that is read.
const MAX_CONFIG: u64 = MAX_METADATA;

/// A saved model.
#[derive(Debug)]
pub struct KerasModel {
    /// `class_name` and `config` of the model, as Keras serializes it.
    pub config: Value,
    /// Optimizer, loss and metrics, where the model was compiled.
    pub compile_config: Option<Value>,
    /// The version that wrote it, where it is known.
    pub keras_version: Option<String>,
    /// The weights.
    pub weights: Weights,
    /// Bytes of configurations and of the structure of HDF5 that were read.
    pub metadata_bytes: u64,
}

/// The weights of a saved model.
#[derive(Debug)]
pub enum Weights {
    /// There are none: a bare configuration.
    None,
    /// By paths such as `layers/conv2d/vars/0`, as Keras 3 writes them.
    Paths(Hdf5),
    /// By layer, as `.h5` files have them.
    Legacy(LegacyWeights),
}

/// The weights of an `.h5` file.
#[derive(Debug)]
pub struct LegacyWeights {
    file: Hdf5,
    /// The group of the layers: empty for a file of weights only.
    root: &'static str,
}

impl LegacyWeights {
    /// The layers that have groups, in order.
    pub fn layers(&self) -> Vec<String> {
        self.list(self.root, "layer_names")
    }

    /// Names and tensors of a layer's weights, in order: a nested model has those of all its layers.
    pub fn of(&self, layer: &str) -> Vec<(String, Tensor)> {
        let group = if self.root.is_empty() { layer.to_string() } else { format!("{}/{layer}", self.root) };
        self.named(&group)
    }

    /// Names and tensors of the optimizer's state.
    pub fn optimizer(&self) -> Vec<(String, Tensor)> {
        self.named("optimizer_weights")
    }

    fn named(&self, group: &str) -> Vec<(String, Tensor)> {
        let tensor = |name: String| self.file.dataset(&format!("{group}/{name}")).cloned().map(|tensor| (name, tensor));
        self.list(group, "weight_names").into_iter().filter_map(tensor).collect()
    }

    /// A list of names; a long one is in several attributes, `name0`, `name1` and so on.
    fn list(&self, path: &str, name: &str) -> Vec<String> {
        if let Some(names) = self.file.attribute(path, name) {
            return names.to_vec();
        }
        (0..).map_while(|part| self.file.attribute(path, &format!("{name}{part}"))).flatten().cloned().collect()
    }
}

impl KerasModel {
    /// Reads a model of any of the three kinds, which its first bytes tell.
    pub fn open(region: Region) -> Result<KerasModel> {
        let mut start = [0; 8];
        let length = region.length().min(8) as usize;
        region.read(0, &mut start[..length], "the file")?;
        let start = &start[..length];
        let model = if Zip::is_zip(start) {
            KerasModel::archive(region)?
        } else if Hdf5::is_hdf5(start) {
            KerasModel::legacy(region)?
        } else {
            match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'{') => KerasModel::bare(&region.read_all(MAX_CONFIG, "config.json")?)?,
                _ => return damaged("it is neither a .keras archive nor an HDF5 file nor a config.json"),
            }
        };
        check_classes(&model.config, "the model")?;
        Ok(model)
    }

    fn archive(region: Region) -> Result<KerasModel> {
        let zip = Zip::open(region)?;
        let Some(config) = zip.read("config.json", MAX_CONFIG)? else {
            let names: Vec<&str> = zip.names().take(4).collect();
            return damaged(format!("the archive has no `config.json`, so it is not a .keras file; it has {}", names.join(", ")));
        };
        let mut model = KerasModel::bare(&config)?;
        if let Some(metadata) = zip.read("metadata.json", MAX_CONFIG)? {
            let metadata = json(&metadata, "metadata.json")?;
            model.keras_version = metadata["keras_version"].as_str().map(str::to_string);
        }
        if let Some(weights) = zip.stored("model.weights.h5")? {
            let file = Hdf5::open(weights)?;
            model.metadata_bytes += file.metadata_bytes;
            model.weights = Weights::Paths(file);
        } else if zip.names().any(|name| name.starts_with("model.weights")) {
            return unsupported("its weights are not in `model.weights.h5` but sharded or in another format; save it with `model.save`");
        }
        Ok(model)
    }

    fn legacy(region: Region) -> Result<KerasModel> {
        let file = Hdf5::open(region)?;
        let text = |name: &str| file.attribute("", name).and_then(|values| values.first());
        let Some(config) = text("model_config") else {
            let hint = "save the whole model (`model.save`), or its architecture too (`model.to_json`)";
            return unsupported(format!("the HDF5 file has weights but no `model_config`: {hint}"));
        };
        let config = json(config.as_bytes(), "model_config")?;
        let compile_config = text("training_config").map(|text| json(text.as_bytes(), "training_config")).transpose()?;
        let keras_version = text("keras_version").cloned();
        let root = if file.objects.contains_key("model_weights") { "model_weights" } else { "" };
        let metadata_bytes = file.metadata_bytes;
        Ok(KerasModel { config, compile_config, keras_version, weights: Weights::Legacy(LegacyWeights { file, root }), metadata_bytes })
    }

    fn bare(bytes: &[u8]) -> Result<KerasModel> {
        let mut config = json(bytes, "config.json")?;
        let compile_config = config.get_mut("compile_config").map(Value::take).filter(|value| value.get("optimizer").is_some());
        let metadata_bytes = bytes.len() as u64;
        Ok(KerasModel { config, compile_config, keras_version: None, weights: Weights::None, metadata_bytes })
    }
}

fn json(bytes: &[u8], what: &str) -> Result<Value> {
    serde_json::from_slice(bytes).or_else(|error| damaged(format!("`{what}` is not JSON: {error}")))
}

/// That a configuration names nothing that would need code: no lambdas, no classes outside Keras.
fn check_classes(value: &Value, place: &str) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_classes(item, place)),
        Value::Object(fields) => {
            let class = fields.get("class_name").and_then(Value::as_str).unwrap_or_default();
            let name = fields.get("config").and_then(|config| config.get("name")).and_then(Value::as_str).unwrap_or(place);
            let hint = "no code from a file is run; express it with layers of Keras";
            if matches!(class, "Lambda" | "__lambda__") {
                return unsupported(format!("`{name}` is a Lambda, which is Python code: {hint}"));
            }
            let registered = fields.get("registered_name").and_then(Value::as_str).unwrap_or_default();
            let module = fields.get("module").and_then(Value::as_str);
            let foreign = module.is_some_and(|module| module != "builtins" && module != "keras" && !module.starts_with("keras."));
            if !class.is_empty() && (registered.contains('>') || foreign) {
                let whole = if registered.is_empty() { class } else { registered };
                return unsupported(format!("`{name}` is of the custom class `{whole}`: {hint}"));
            }
            fields.values().try_for_each(|field| check_classes(field, name))
        }
        _ => Ok(()),
    }
}
