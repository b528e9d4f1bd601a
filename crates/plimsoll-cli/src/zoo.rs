//! `plimsoll zoo`: the networks there are, and what each costs.

use crate::args::ZooArgs;
use crate::text::thousands;
use anyhow::Result;
use plimsoll::zoo::{ENTRIES, Entry, Network, Options, find};
use serde_json::{Value, json};

pub fn run(args: &ZooArgs) -> Result<()> {
    let options = Options {
        classes: args.classes,
        input: args.input.as_deref().map(Options::parse_input).transpose()?,
        width: args.width,
        context: args.context,
        vocabulary: args.vocabulary,
    };
    match (&args.name, args.json) {
        (None, true) => {
            let all = ENTRIES.iter().map(|entry| document(entry, &entry.build(&options)?)).collect::<Result<Vec<_>>>()?;
            crate::print(&Value::Array(all));
        }
        (None, false) => crate::say(&table()?),
        (Some(name), true) => {
            let entry = find(name)?;
            let network = entry.build(&options)?;
            let mut document = document(entry, &network)?;
            let layers = network.summary()?.rows.into_iter().map(|row| {
                json!({ "layer": row.layer, "kind": row.kind, "output": row.output.to_string(), "parameters": row.parameters, "kept": row.non_trainable })
            });
            document["layers"] = layers.collect();
            crate::print(&document);
        }
        (Some(name), false) => crate::say(&format!("{}\n", find(name)?.build(&options)?.summary()?)),
    }
    Ok(())
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
    Ok(
        text + "GFLOP: one prediction. memory: what learning keeps of one example until its gradient is known, if nothing is computed again.\n"
    )
}
