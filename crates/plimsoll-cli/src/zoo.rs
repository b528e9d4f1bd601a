//! `plimsoll zoo`: the networks there are, and what each costs.

use crate::Command;
use crate::output::{print, say};
use crate::text::thousands;
use anyhow::Result;
use clap::Args;
use plimsoll::zoo::{ENTRIES, Entry, Network, Options, find};
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the networks of the zoo, or the layers of one
#[derive(Args)]
pub struct Zoo {
    /// Network [default: all]
    name: Option<String>,

    /// Input size, such as 416x608
    #[arg(long, value_name = "SIZE", requires = "name")]
    input: Option<String>,

    /// Number of classes
    #[arg(long, value_name = "N", requires = "name")]
    classes: Option<usize>,

    /// Width multiplier of all layers
    #[arg(long, value_name = "FACTOR", requires = "name")]
    width: Option<f64>,

    /// Maximum sequence length
    #[arg(long, value_name = "TOKENS", requires = "name")]
    context: Option<usize>,

    /// Vocabulary size
    #[arg(long, value_name = "N", requires = "name")]
    vocabulary: Option<usize>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Command for Zoo {
    const NAME: &'static str = "zoo";

    fn run(&self) -> Result<ExitCode> {
        let options = Options {
            classes: self.classes,
            input: self.input.as_deref().map(Options::parse_input).transpose()?,
            width: self.width,
            context: self.context,
            vocabulary: self.vocabulary,
        };
        match (&self.name, self.json) {
            (None, true) => {
                let all = ENTRIES.iter().map(|entry| document(entry, &entry.build(&options)?)).collect::<Result<Vec<_>>>()?;
                print(&Value::Array(all))?;
            }
            (None, false) => say(&table()?)?,
            (Some(name), true) => {
                let entry = find(name)?;
                let network = entry.build(&options)?;
                let mut document = document(entry, &network)?;
                let layers = network.summary()?.rows.into_iter().map(|row| {
                    json!({ "layer": row.layer, "kind": row.kind, "output": row.output.to_string(), "parameters": row.parameters, "kept": row.non_trainable })
                });
                document["layers"] = layers.collect();
                print(&document)?;
            }
            (Some(name), false) => say(&format!("{}\n", find(name)?.build(&options)?.summary()?))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}

fn document(entry: &Entry, network: &Network) -> Result<Value> {
    let costs = network.costs()?;
    Ok(json!({
        "name": entry.name,
        "about": entry.about,
        "parameters": costs.parameters,
        "flops_per_example": costs.flops,
        "memory_per_example_bytes": costs.activations.0,
        "input": network.schema.columns()[0].shape,
    }))
}

/// As people read it.
fn table() -> Result<String> {
    let mut text = format!("{:<16} {:>12} {:>10} {:>11}  {:<13} {}\n", "network", "parameters", "GFLOP", "memory", "input", "what it is");
    for entry in ENTRIES {
        let costs = entry.build(&Options::default())?.costs()?;
        let input: Vec<String> = entry.input.iter().map(usize::to_string).collect();
        let (parameters, gigaflops, memory) = (thousands(costs.parameters as f64), costs.flops as f64 / 1e9, costs.activations.to_string());
        text += &format!("{:<16} {parameters:>12} {gigaflops:>10.3} {memory:>11}  {:<13} {}\n", entry.name, input.join("×"), entry.about);
    }
    Ok(text + "GFLOP: one prediction. memory: activations stored for the backward pass of one example, without recomputation.\n")
}
