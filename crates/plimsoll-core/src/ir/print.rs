//! The stable text form of a graph, for snapshot tests and for people.

use crate::ir::graph::{Graph, Phase, ValueId};
use crate::ir::op::Op;
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &[ValueId]| values.iter().map(ValueId::to_string).collect::<Vec<_>>().join(", ");
        for node in self.nodes.iter() {
            let name = node.op.rules().name();
            let attributes = match &node.op {
                Op::Input(id) => format!(" {:?}", self.inputs[id.0 as usize].name),
                Op::State(id) => format!(" {:?}", self.states[id.0 as usize].name),
                Op::Scalar(id) => format!(" {:?}", self.scalars[id.0 as usize]),
                op => match op.rules().attributes() {
                    text if text.is_empty() => text,
                    text => format!(" {{{text}}}"),
                },
            };
            let inputs = if node.inputs.is_empty() { String::new() } else { format!(" {}", list(&node.inputs)) };
            let types: Vec<String> = node.outputs.iter().map(|output| self.ty(*output).to_string()).collect();
            write!(f, "{} = {name}{attributes}{inputs} : {}", list(&node.outputs), types.join(", "))?;
            let mark = match node.phase {
                Phase::Forward => "",
                Phase::Backward => " ←",
                Phase::Update => " ↻",
            };
            match &*node.scope {
                "" => writeln!(f, "{mark}")?,
                scope => writeln!(f, "  @{scope}{mark}")?,
            }
        }
        for (name, value) in &self.outputs {
            writeln!(f, "output {name} = {value}")?;
        }
        for (state, value) in &self.updates {
            writeln!(f, "update {} = {value}", self.states[state.0 as usize].name)?;
        }
        Ok(())
    }
}
