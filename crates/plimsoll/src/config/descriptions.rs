//! What each key of a configuration is for, in one sentence. The schema has these sentences for editors, and the
//! configuration reference in docs/ for people. A test compares the names with the keys that readers ask for.

use serde_json::{Value, json};

/// Keys by their full names, and what they are for. Keys of sources are described with their sources.
const DESCRIPTIONS: &[(&str, &str)] = &[
    ("data", "Where rows come from, and what happens to them before training."),
    ("data.batch", "Rows of a batch, unless `train.batch` is set. Default 32."),
    ("data.cache", "Caches rows for later epochs: `\"memory\"`, `\"auto\"` or `{ file = \"images.plc\" }`. Default none."),
    ("data.cutmix", "Mixes rows of a training batch in pairs, as rectangles of one in the other."),
    ("data.deterministic", "`false` lets batches overtake a slow one. Default `true`: the same order at any number of threads."),
    ("data.drop_remainder", "Leaves out a last batch that is not full. Default `false`."),
    ("data.fold", "Cross-validation: `\"3/5\"` validates on the third of five parts and trains on the others."),
    ("data.holdout", "The share of rows that is held out for validation, such as 0.1 or `\"10%\"`; or a table."),
    ("data.holdout.by", "How rows are chosen. Default `\"stratified\"`: each class in proportion."),
    (
        "data.holdout.column",
        "With `by = \"group\"`, the column whose values stay together; with `by = \"time\"`, the one that orders rows.",
    ),
    ("data.holdout.seed", "The seed of the choice. Default `train.seed`."),
    ("data.holdout.share", "The share of validation rows."),
    ("data.holdout.test", "The share of rows that are for neither training nor validation; `evaluate --split test` uses them."),
    ("data.ignore_errors", "How many unreadable rows per epoch are skipped. Default none: the first is an error."),
    ("data.map", "Operations on each row, in order: a table with `op` each."),
    ("data.max_item", "The most memory that one file may take, such as `\"64MiB\"`. Default 128 MiB."),
    ("data.mixup", "Mixes rows of a training batch in pairs, as weighted means. Labels must be one-hot."),
    ("data.mixup.alpha", "The parameter of the Beta distribution of weights."),
    ("data.mixup.images", "The column that is mixed. Default `x`."),
    ("data.mixup.labels", "The column of labels. Default `y`."),
    ("data.mixup.seed", "The seed of the mixture. Default `train.seed`."),
    ("data.parallelism", "Threads that produce rows, or `\"auto\"` (default)."),
    ("data.prefetch", "Batches to prepare in advance, or `\"auto\"` (default)."),
    ("data.repeat", "How often the rows are repeated within an epoch. Default 1."),
    ("data.shard", "`[count, index]`: one of every `count` rows, beginning with row `index`."),
    ("data.shuffle", "`true`, or a table with a seed. Exact for indexed rows; a stream has a buffer of 16 MiB. Default: file order."),
    ("data.shuffle.seed", "The seed of the order, which differs in every epoch. Default `train.seed`."),
    ("data.skip", "Leaves out the first rows."),
    ("data.source", "What is read: see the table of sources."),
    ("data.stages", "The pipeline as a list of stages, instead of the short keys."),
    ("data.take", "Keeps the first rows only."),
    ("data.test", "Rows to test on after training, as `data.validation`."),
    ("data.validation", "Rows to validate on: keys of the source that differ, and optionally `map` or `stages`."),
    ("model", "The network: one of `layers`, `zoo` and `file`."),
    ("model.classes", "The number of classes or outputs of a network of the zoo."),
    ("model.context", "The maximum sequence length of a language model of the zoo."),
    ("model.file", "A model of Keras (`.keras`, `.h5`) or ONNX, with its weights."),
    ("model.freeze", "`true` freezes all layers of `file`; a list of patterns freezes those that match."),
    ("model.input", "The shape of an input row of a network of the zoo, such as `[128, 128, 3]`."),
    ("model.inputs", "Names of the inputs of a model with several, which are columns of the data."),
    ("model.layers", "A list of layers, each a table with `type`."),
    ("model.name", "The name of the run, after which its folder is called."),
    ("model.outputs", "Names of the layers whose outputs are outputs of the model. Default: the last layer."),
    ("model.replace_head", "Replaces the last layer with weights of `file` by a new one."),
    ("model.replace_head.classes", "The number of outputs of the new layer."),
    ("model.trainable", "Patterns of layers that are trained in spite of `freeze`."),
    ("model.vocabulary", "The number of tokens of a language model of the zoo."),
    ("model.width", "A factor of the width of every layer of a network of the zoo."),
    ("model.zoo", "A network by name; `plimsoll zoo` lists them."),
    ("train", "How the network is trained."),
    ("train.algorithms", "On a GPU, how algorithms of cuBLASLt and cuDNN are selected. Default `\"rules\"`, the same for every run."),
    ("train.batch", "Rows of a batch. Default: `data.batch`, else 32."),
    ("train.class_weights", "A factor of the loss for each class, in training only."),
    ("train.clip", "Clips gradients by one of `value`, `norm` and `global_norm`."),
    ("train.clip.global_norm", "The largest L2 norm of all gradients together."),
    ("train.clip.norm", "The largest L2 norm of each gradient."),
    ("train.clip.value", "The largest absolute value of each element."),
    ("train.csv_log", "Writes `log.csv` beside `log.jsonl`. Default `false`."),
    ("train.device", "`\"cpu\"` (default) or `\"cuda:0\"`, `\"cuda:1\"`, …"),
    ("train.device_profile", "Plans for a GPU that is not here, such as `\"h200\"`."),
    ("train.early_stopping", "Stops when a score no longer improves."),
    ("train.early_stopping.min_delta", "The smallest change that counts as an improvement. Default 0."),
    ("train.early_stopping.patience", "Epochs without improvement after which training stops. Default 0."),
    ("train.early_stopping.score", "The score, such as `\"val_loss\"`."),
    ("train.ema", "The momentum of an exponential moving average of the weights, such as 0.999. Default none."),
    ("train.epochs", "Passes over the training rows. Default 1."),
    ("train.ignore_class", "Labels of this class do not count."),
    ("train.label_smoothing", "The share of each label that is spread over all classes. Default 0."),
    ("train.loss", "The loss, or a table of losses by output. Default softmax cross-entropy, or that of the network of the zoo."),
    ("train.metrics", "A list of metrics. Default: the usual ones of the loss."),
    ("train.micro_batch", "Rows of a micro-batch, or `\"auto\"` (default): the largest that divides the batch and fits."),
    ("train.optimizer", "The optimizer by name, or a table with `type` and its keys. Default Adam."),
    ("train.precision", "The type of activations. Default `\"f32\"`."),
    ("train.schedule", "The learning-rate schedule by name, or a table with `type` and its keys. Default constant."),
    ("train.seed", "The seed of initial weights and every random number. Default 0."),
    ("train.threads", "Compute threads, at most 1024. Default: one per core."),
    ("train.weights", "Starts from the weights of a safetensors file."),
    ("train.weights.partial", "Loads the weights that fit and reports the others. Default `false`."),
    ("train.weights.path", "The file."),
    ("budget", "How much memory the run may take, and what may be done to stay within it."),
    ("budget.allow", "A list of allowed strategies, or `\"none\"`. Default: all that leave the results unchanged."),
    ("budget.device", "Memory of the GPU, such as `\"8GiB\"`. Default: what is free."),
    ("budget.host", "Resident memory of the process, such as `\"2GiB\"`. Default: the limit of the control group, or available memory."),
    ("checkpoint", "When checkpoints are written, and which are kept."),
    ("checkpoint.best", "Also keeps the epoch with the best of this score, such as `\"val_loss\"`."),
    ("checkpoint.enabled", "Whether checkpoints are written. Default `true`."),
    ("checkpoint.every_seconds", "Seconds after which another is written. Default 600, and after every epoch."),
    ("checkpoint.every_steps", "Also writes one after this number of steps."),
    ("checkpoint.keep", "How many are kept. Default 2."),
    ("checkpoint.restore_best", "Ends with the weights of the best epoch. Default `false`."),
    ("log", "What is written for people and other tools."),
    ("log.samples", "Whether the report shows rows of the data."),
    ("log.tensorboard", "Writes events for TensorBoard."),
    ("parallel", "What the processes of `mpirun`, `srun` or `torchrun` do; see [several processes](parallel.md)."),
    (
        "parallel.batch_norm",
        "Whose rows the statistics of batch normalization are of: `\"synchronized\"`, those of all ranks, as on one process, or `\"local\"`, those of each rank, which has to be allowed. Default `\"synchronized\"`.",
    ),
    (
        "parallel.data",
        "`\"auto\"`: each trains on its part of every batch, and gradients are summed. `\"none\"`: the run is one of a single process, and several are refused. Default `\"auto\"`.",
    ),
    (
        "parallel.reproducible",
        "Results have the same bits on any number of ranks, one included: batches are divided into fixed micro-batches, which are added in a fixed order. Default `false`; see [the costs](parallel.md#the-same-bits-on-any-number-of-ranks).",
    ),
    (
        "parallel.shard",
        "What is sharded over ranks: `\"optimizer\"`, the states of the optimizer (ZeRO 1), `\"gradients\"`, accumulated gradients too (ZeRO 2), or `\"none\"`. Default `\"none\"`; see [the costs](parallel.md#sharded-optimizer-states-and-gradients).",
    ),
    ("prune", "Sets the smallest weights to zero while the network trains."),
    ("prune.begin", "The step of the first mask. Default 0."),
    ("prune.block", "`[rows, columns]`: prunes blocks of this size."),
    ("prune.end", "The step at which `final` is reached."),
    ("prune.final", "The share of zeros in the end."),
    ("prune.frequency", "Steps between masks. Default 100."),
    ("prune.initial", "The share of zeros at `begin`. Default 0."),
    ("prune.layers", "Layers that are pruned in another way: a list of tables with `match`."),
    ("prune.m_by_n", "`[2, 4]` sets two of every four consecutive inputs to zero."),
    ("prune.pooling", "How blocks are compared: by their mean magnitude (default) or their largest."),
    ("prune.power", "The exponent of the polynomial schedule. Default 3."),
    ("prune.schedule", "How the share of zeros grows. Default `\"polynomial\"`."),
    ("quantize", "Trains for int8: kernels and activations are rounded as in int8."),
    ("quantize.keep_float", "Patterns of layers that stay in single precision."),
    ("quantize.momentum", "The momentum of the moving ranges. Default 0.99."),
    ("distill", "Trains on the predictions of another run."),
    ("distill.alpha", "The share of the usual loss; the rest is the loss against the teacher. Default 0.1."),
    ("distill.teacher", "The folder of the teacher's run."),
    ("distill.temperature", "The temperature of both softmaxes. Default 3."),
];

/// Adds the descriptions to a schema.
pub(super) fn add(schema: &mut Value) {
    for (name, description) in DESCRIPTIONS {
        if let Some(key) = find(schema, name) {
            key["description"] = json!(description);
        }
    }
}

/// The description of a key.
pub(super) fn of(name: &str) -> Option<&'static str> {
    DESCRIPTIONS.iter().find(|(known, _)| *known == name).map(|(_, description)| *description)
}

/// The schema of a key by its full name. A table may be one of several alternatives.
fn find<'s>(schema: &'s mut Value, name: &str) -> Option<&'s mut Value> {
    name.split('.').try_fold(schema, |table, key| {
        let table = if table.get("properties").is_some() {
            table
        } else {
            table.get_mut("anyOf")?.as_array_mut()?.iter_mut().find(|alternative| alternative.get("properties").is_some())?
        };
        table.get_mut("properties")?.get_mut(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_described_key_exists() {
        let mut schema = super::super::schema();
        let unknown: Vec<_> = DESCRIPTIONS.iter().map(|(name, _)| *name).filter(|name| find(&mut schema, name).is_none()).collect();
        assert!(unknown.is_empty(), "no such keys: {unknown:?}");
    }
}
