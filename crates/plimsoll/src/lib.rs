//! Plimsoll: train neural networks within a memory budget that is planned before the first step.
//!
//! Give a [`nn`] model, a [`Dataset`] and a [`Budget`] to a [`Trainer`]. [`Trainer::plan`] states the memory of the
//! run, to the byte, or the minimum budget that works; [`Trainer::run`] trains as planned. See [`Trainer`] for a whole
//! program.
//!
//! # Layers
//! Modules depend on modules above them in this table only; data passes them in this order.
//!
//! | layer | modules |
//! |---|---|
//! | values and errors | `suggest`, `named`, `system`, `precision`, `numerics`, `allow`, `infeasible`, `error`, `ranks`, `reader`, `files`, `stop`, `thumbnails` |
//! | devices and files | `gpu`, `devices`, `offload_file`, `tensors`, `preprocessing`, `checkpoint`, `cost`, `image_scan`, `tflite`; `pipeline`: data without a model |
//! | models and training | `graph`: what custom layers use of the core; `nn`, `optim`, `loss`, `metrics`, `output_loss`, `schedule`, `prune`, `distill`, `zoo`, `import`, `history`, `callbacks` |
//! | eager code | `eager`: tensors, tapes, compiled functions |
//! | one description | `spec`: what the user wants, as plain data |
//! | front end | `config`: TOML to a `RunSpec` |
//! | one plan | `graphs`: the programs of a run; `output_kind`, `class_report`: what outputs mean; `plan`: a pure function of `RunSpec`, `Machine` and `DataSummary` |
//! | execution | `session`: the memory of a plan; `fit`: epochs, validation, checkpoints |
//! | fronts | `trainer`, `plan_file`, `report`, `profile`, then `run_folder`, `run_status`, `trained`, `predictor`, `generate`, `export`, `calibration` |

mod allow;
pub mod calibration;
mod callbacks;
mod checkpoint;
mod class_report;
pub mod config;
pub mod cost;
mod devices;
mod distill;
pub mod eager;
mod error;
mod export;
mod files;
mod fit;
mod fixed_micro_batches;
mod generate;
mod gpu;
pub mod graph;
mod graphs;
mod history;
mod image_scan;
mod import;
mod infeasible;
mod loss;
mod metrics;
mod named;
pub mod nn;
mod numerics;
mod offload_file;
pub mod optim;
mod output_columns;
mod output_kind;
mod output_loss;
mod page_cache;
mod pipeline;
mod plan;
mod plan_file;
mod precision;
mod predictor;
mod preprocessing;
mod profile;
mod prune;
mod ranks;
mod reader;
mod report;
mod run_folder;
mod run_status;
mod schedule;
mod session;
mod spec;
mod start_times;
mod stop;
mod suggest;
pub mod system;
mod tensors;
mod tflite;
mod thumbnails;
mod trained;
mod trainer;
pub mod zoo;

pub use allow::{Allow, Permission, UnknownPermission};
pub use callbacks::{Callback, CsvLog, EarlyStopping, TrainingControl};
pub use checkpoint::Checkpoints;
pub use class_report::{ClassReport, ClassScores};
pub use devices::{Algorithms, DeviceSpec, convolutions, open_device, open_each_way};
pub use distill::Distill;
pub use error::{BadRow, Error, Result};
pub use export::{Evaluated, ExportOptions, Exported, Opset, SmallReport, TensorReport, TfliteNumbers, Verified, export, export_zoo};
pub use fit::{Event, FirstBatch, Fit};
pub use generate::{Generator, Sampling};
pub use gpu::{Convolutions, Found, Gpu, Probe, missing_libraries, probe};
pub use history::{Epoch, History, WeightSparsity};
pub use import::{Imported, ImportedInput, import};
pub use infeasible::{FittingRanks, Infeasible, PipelineInfeasible, PlanningInfeasible};
pub use loss::{CustomRows, Loss, Objective, RowFunction};
pub use metrics::{Metric, Scores};
pub use numerics::Numerics;
pub use output_columns::{ModelColumns, OutputColumns};
pub use output_kind::{OutputKind, binary, top};
pub use output_loss::{OutputLoss, OutputLosses};
pub use pipeline::{Bench, BenchEpoch, Explain, ExplainedStage, FilledCache, Pipeline, Sample};
pub use plan::{
    AppliedStrategy, Assumptions, DataSummary, DatasetSummary, DeviceBudget, LargestBatch, Machine, RunPlan, SplitLayers, Sweep, SweepPoint,
};
pub use plan_file::{Checked, check_plan_file, write_plan_file};
/// Groups of ranks and their collectives.
pub use plimsoll_comm as comm;
pub use plimsoll_core::budget::{CountingAllocator, give_back_program_pages, return_freed_memory_early};
pub use plimsoll_core::loss_scale::LossScaling;
pub use plimsoll_core::{Budget, Bytes, Device};
pub use plimsoll_core::{allocator, selftest};
pub use plimsoll_cpu::CpuDevice;
/// Input pipelines: sources, stages, operations on rows.
pub use plimsoll_data as data;
pub use plimsoll_data::{
    Cache, Condition, Dataset, Parallelism, Prefetch, RandomSpec, Relation, Shuffle, Split, SplitMethod, SplitSpec, Splits, Tensor,
    Vocabulary, source,
};
pub use plimsoll_data::{Progress as DataProgress, observe_progress as observe_data_progress};
pub use precision::Precision;
pub use predictor::{FileKind, Inputs, Predictions, Predictor, TflitePlan, ToInputs, kind_of, write_mask};
pub use preprocessing::Preprocessing;
pub use profile::{MemorySample, Profile, ProfiledOp, StepSpan};
pub use prune::{Pooling, Prune, Sparsity, SparsityPattern};
pub use ranks::{BatchNormStatistics, DataParallelism, Parallel, Ranks, Shard};
pub use report::{Change, Refusal, Report, cheapest_changes};
pub use run_folder::{Existing, RunFolder};
pub use run_status::{RunState, RunStatus};
pub use schedule::{ReduceOnPlateau, Schedule, ScheduleState};
pub use spec::{Count, FitSpec, HeldOut, InitialWeights, Optimization, RunSpec};
pub use start_times::StartTimes;
pub use stop::StopHandle;
pub use trained::{Rows, Trained};
pub use trainer::{Batches, CustomLoop, HostBatch, Numbers, Predicted, Prediction, Trainer};

/// Offsets for buffers with known lifetimes: the packing that plans are made with, by itself.
pub mod arena {
    pub use plimsoll_core::plan::{BufferInterval, Goal, Layout, PackingEffort, Solution, solve};
}

/// What a device is, in words.
pub fn describe(device: &dyn plimsoll_core::Device) -> String {
    device.description()
}

/// What a training program usually needs.
pub mod prelude {
    pub use crate::nn::{self, Activation, Dense, Model, Sequential};
    pub use crate::optim::{Adafactor, Adagrad, Adam, AdamW, Clip, Ema, Lion, Nadam, RmsProp, Sgd};
    pub use crate::{
        Budget, Bytes, Cache, Dataset, Event, Fit, Loss, Metric, OutputLoss, Parallelism, Precision, Prefetch, RandomSpec, Schedule,
        Shuffle, Split,
    };
    pub use crate::{Trainer, zoo};
    pub use plimsoll_data::ops::{
        Method, cast_f32, center_crop, decode, flip_left_right, flip_up_down, normalize, one_hot, random_crop, resize, scale,
    };
}

/// The programs in the README files compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
