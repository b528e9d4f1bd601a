//! `plimsoll import`: a model of another program as a configuration.

use crate::Command;
use crate::output::{print, say};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll::{Imported, import};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a configuration that trains a model of Keras or ONNX
#[derive(Args)]
pub struct Import {
    /// Model: .keras, .h5 or config.json of Keras, or .onnx
    model: PathBuf,

    /// Configuration to write [default: only the layers are printed]
    #[arg(long, value_name = "FILE.toml")]
    to: Option<PathBuf>,

    /// Replace the last layer by one with this many outputs
    #[arg(long, value_name = "N", requires = "to", value_parser = clap::value_parser!(u64).range(1..))]
    classes: Option<u64>,

    /// Freeze all layers but a new head
    #[arg(long, requires = "to")]
    freeze: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Command for Import {
    const NAME: &'static str = "import";

    fn run(&self) -> Result<ExitCode> {
        let imported = import(&self.model)?;
        if let Some(path) = &self.to {
            if path.exists() {
                bail!("{} exists already; name another file, or remove it", path.display());
            }
            std::fs::write(path, self.toml(&imported)?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let summary = imported.summary()?;
        if self.json {
            let inputs: Vec<_> =
                imported.inputs.iter().map(|input| json!({ "column": input.column, "name": input.name, "shape": input.row })).collect();
            let layers: Vec<&str> = imported.model.layer_names();
            print(&json!({
                "model": imported.model.title(),
                "inputs": inputs,
                "outputs": imported.model.outputs().collect::<Vec<_>>(),
                "layers": layers,
                "optimizer": imported.optimizer.as_ref().map(|optimizer| json!({
                    "type": optimizer.name(),
                    "learning_rate": optimizer.learning_rate(),
                    "steps": imported.optimizer_steps(),
                })),
                "notes": imported.notes,
                "config": self.to,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        say(&format!("{summary}"))?;
        if let Some((optimizer, steps)) = imported.optimizer.as_ref().zip(imported.optimizer_steps()) {
            say(&format!("\noptimizer {}: training continues from its state after {steps} steps\n", optimizer.name()))?;
        }
        imported.notes.iter().for_each(|note| eprintln!("note: {note}"));
        if let Some(path) = &self.to {
            say(&format!("wrote {}; name your data in it, then: plimsoll plan {0}\n", path.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}

impl Import {
    /// The configuration, with comments on what to fill in.
    fn toml(&self, imported: &Imported) -> Result<String> {
        let file = std::path::absolute(&self.model)?;
        let file = toml_text(&file.to_string_lossy());
        let mut text =
            format!("# Imported from {}. Docs: docs/models.md, docs/configuration.md.\n[model]\nfile = {file}\n", self.model.display());
        if let Some(classes) = self.classes {
            text += &format!("replace_head = {{ classes = {classes} }}\n");
        }
        if self.freeze {
            text += "freeze = true\n";
        }
        text += "\n[data]\n# Synthetic rows of the model's shapes: replace them by your data, such as source = \"folder\".\nsource = \"synthetic\"\n";
        for input in &imported.inputs {
            let kind = if input.integers { "integers" } else { "numbers" };
            let or = if input.channels_first { ", or with the channels last" } else { "" };
            text += &format!("# Column `{}` ({}): {kind} of shape {:?}{or}.\n", input.column, input.name, input.row);
        }
        text += "\n[train]\nbatch = 32\nepochs = 1\n";
        if let Some(optimizer) = &imported.optimizer {
            let (name, lr) = (optimizer.name(), optimizer.learning_rate());
            text += &format!(
                "# Optimizer ({name}, learning rate {lr}) and losses are those the model was compiled with; set them here to change them.\n"
            );
            if let Some(steps) = imported.optimizer_steps() {
                text += &format!("# Training continues from the state of the optimizer after {steps} steps, unless you set one.\n");
            }
        }
        Ok(text)
    }
}

/// A string of TOML.
fn toml_text(text: &str) -> String {
    format!("{text:?}")
}
