//! Owners of memory, in plans and in ledgers.

use std::fmt;

/// An owner of bytes. Prints as the name that plans, reports and errors show.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// Parameters and statistics of the model.
    Weights,
    /// Optimizer state.
    Optimizer,
    /// Gradients summed over micro-batches.
    GradientSums,
    /// Counts of metrics.
    Metrics,
    /// Masks of pruned weights.
    Masks,
    /// Weights of the teacher that a student is distilled from.
    Teacher,
    /// Values of the forward pass.
    Activations,
    /// Values of the backward pass and the update.
    Gradients,
    /// Values loaded back from the backing store.
    Loaded,
    /// Workspaces of kernels.
    Workspace,
    /// Gaps between buffers of the arena.
    Fragmentation,
    /// The arena as a whole.
    Arena,
    /// Batches on a device with its own memory.
    Staging,
    /// Pinned host memory from which such a device copies batches.
    PinnedStaging,
    /// Host memory of the backing store.
    Offload,
    /// The process before a run: code, stacks, untracked heap.
    Process,
    /// Stacks of the computing threads.
    ThreadStacks,
    /// Buffers and libraries of communication with other ranks.
    Communication,
    /// Page tables of the kernel, which count for the control group of the process.
    PageTables,
    /// Graphs, plans and loaded programs.
    Graphs,
    /// Buffers for writing checkpoints.
    Checkpoint,
    /// Metadata and constants of the file that a model of another program is read from.
    ModelFile,
    /// Buffers of the host for updates of pruning masks.
    MaskUpdates,
    /// Scores of the epochs so far, and their copies while they are written.
    History,
    /// Memory of planning beyond that of the run.
    Planning,
    /// All stages of the input pipeline.
    Pipeline,
    /// One stage of the input pipeline, by name.
    Stage(String),
    /// Rows of a batch given by the caller.
    Rows,
    /// Predictions collected for the caller.
    Predictions,
    /// A device runtime.
    DeviceRuntime(&'static DeviceRuntime),
}

/// A device runtime as an owner of memory, as described by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceRuntime {
    /// The owner's name.
    pub name: &'static str,
    /// Its components; the plural subject of a sentence in errors.
    pub parts: &'static str,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Weights => "weights",
            Owner::Optimizer => "optimizer",
            Owner::GradientSums => "gradient sums",
            Owner::Metrics => "metrics",
            Owner::Masks => "pruning masks",
            Owner::Teacher => "teacher",
            Owner::Activations => "activations",
            Owner::Gradients => "gradients",
            Owner::Loaded => "loaded",
            Owner::Workspace => "workspace",
            Owner::Fragmentation => "fragmentation",
            Owner::Arena => "arena",
            Owner::Staging => "staging",
            Owner::PinnedStaging => "pinned staging",
            Owner::Offload => "offload",
            Owner::Process => "process",
            Owner::ThreadStacks => "thread stacks",
            Owner::Communication => "communication",
            Owner::PageTables => "page tables",
            Owner::Graphs => "graphs",
            Owner::Checkpoint => "checkpoint",
            Owner::ModelFile => "model file",
            Owner::MaskUpdates => "mask updates",
            Owner::History => "history",
            Owner::Planning => "planning",
            Owner::Pipeline => "pipeline",
            Owner::Stage(name) => name,
            Owner::Rows => "rows",
            Owner::Predictions => "predictions",
            Owner::DeviceRuntime(runtime) => runtime.name,
        })
    }
}
