//! Suggestions for mistyped names: what Keras and PyTorch call the same thing, or else the known name at the smallest
//! edit distance.

/// Names of Keras and PyTorch with ours. A suggestion is made only where ours is known.
const SYNONYMS: &[(&str, &str)] = &[
    ("sparse_categorical_crossentropy", "softmax_cross_entropy"),
    ("categorical_crossentropy", "softmax_cross_entropy"),
    ("cross_entropy_loss", "softmax_cross_entropy"),
    ("cross_entropy", "softmax_cross_entropy"),
    ("crossentropy", "softmax_cross_entropy"),
    ("nll_loss", "softmax_cross_entropy"),
    ("binary_crossentropy", "binary_cross_entropy"),
    ("bce_with_logits_loss", "binary_cross_entropy"),
    ("bce_loss", "binary_cross_entropy"),
    ("bce", "binary_cross_entropy"),
    ("mean_squared_error", "mse"),
    ("mse_loss", "mse"),
    ("l2", "mse"),
    ("mean_absolute_error", "mae"),
    ("l1_loss", "mae"),
    ("smooth_l1_loss", "huber"),
    ("kl_div_loss", "kl_divergence"),
    ("learning_rate", "lr"),
    ("nll", "softmax_cross_entropy"),
    ("acc", "accuracy"),
    ("categorical_accuracy", "accuracy"),
    ("sparse_categorical_accuracy", "accuracy"),
    ("binary_accuracy", "accuracy"),
    ("sparse_top_k_categorical_accuracy", "top5"),
    ("top_k_categorical_accuracy", "top5"),
    ("f1_score", "f1"),
    ("mean_io_u", "iou"),
    ("r2_score", "r2"),
    ("batch_size", "batch"),
    ("minibatch", "batch"),
    ("num_epochs", "epochs"),
    ("max_epochs", "epochs"),
    ("nb_epoch", "epochs"),
    ("gradient_accumulation", "micro_batch"),
    ("accumulate_grad_batches", "micro_batch"),
    ("lr_scheduler", "schedule"),
    ("scheduler", "schedule"),
    ("criterion", "loss"),
    ("dtype", "precision"),
    ("mixed_precision", "precision"),
    ("num_workers", "parallelism"),
    ("kernel_size", "size"),
    ("pool_size", "size"),
    ("strides", "stride"),
    ("out_channels", "filters"),
    ("out_features", "units"),
    ("use_bias", "bias"),
    ("kernel_initializer", "initializer"),
    ("return_sequences", "sequence"),
    ("num_heads", "heads"),
    ("num_embeddings", "vocabulary"),
    ("embedding_dim", "width"),
    ("eps", "epsilon"),
    ("linear", "dense"),
    ("fc", "dense"),
    ("max_pooling2d", "max_pool2d"),
    ("average_pooling2d", "average_pool2d"),
    ("avg_pool2d", "average_pool2d"),
    ("global_average_pooling2d", "global_average_pool"),
    ("adaptive_avg_pool2d", "global_average_pool"),
    ("batch_normalization", "batch_norm"),
    ("batch_norm2d", "batch_norm"),
    ("layer_normalization", "layer_norm"),
    ("upsample", "up_sampling2d"),
    ("conv_transpose2d", "conv2d_transpose"),
    ("swish", "silu"),
    ("cosine_annealing_lr", "cosine"),
    ("cosine_decay", "cosine"),
    ("step_lr", "step"),
    ("one_cycle_lr", "one_cycle"),
    ("reduce_lr_on_plateau", "plateau"),
    ("exponential_decay", "exponential"),
];

/// Names of Keras and PyTorch with ours, which is a key of a table: its path from where theirs was read.
const INNER: &[(&str, &str, &str)] = &[
    ("learning_rate", "optimizer", "lr"),
    ("lr", "optimizer", "lr"),
    ("momentum", "optimizer", "momentum"),
    ("weight_decay", "optimizer", "weight_decay"),
];

/// `optimizer.lr` for `learning_rate`, where the table is known.
pub(crate) fn inner_key(name: &str, known: &[&str]) -> Option<String> {
    let found = INNER.iter().find(|(theirs, table, _)| flat(theirs) == flat(name) && known.contains(table));
    found.map(|(_, table, key)| format!("{table}.{key}"))
}

/// `; did you mean "relu"?`, or nothing if no known name is close.
pub(crate) fn did_you_mean(name: &str, known: &[&str]) -> String {
    nearest(name, known).map_or(String::new(), |near| format!("; did you mean \"{near}\"?"))
}

/// What Keras or PyTorch call by this name, or the known name at the smallest edit distance, if that is small.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    synonym(name, known).or_else(|| {
        let (distance, near) = known.iter().map(|candidate| (distance(name, candidate), *candidate)).min()?;
        (distance <= 2.max(name.len() / 3)).then_some(near)
    })
}

fn synonym<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let name = flat(name);
    let own = |ours: &str| known.iter().copied().find(|known| flat(known) == flat(ours));
    own(&name).or_else(|| SYNONYMS.iter().filter(|(theirs, _)| flat(theirs) == name).find_map(|(_, ours)| own(ours)))
}

/// `CrossEntropyLoss` and `cross_entropy_loss` are the same name.
fn flat(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Damerau–Levenshtein distance: characters to insert, remove, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Loss;
    use crate::metrics::Metric;
    use crate::nn::{Activation, LAYERS};
    use crate::schedule::SCHEDULES;

    #[test]
    fn names_of_keras_and_pytorch_lead_to_ours() {
        let losses: Vec<&str> = Loss::NAMES.iter().map(|(name, _)| *name).collect();
        for theirs in ["sparse_categorical_crossentropy", "CrossEntropyLoss", "crossentropy", "SparseCategoricalCrossentropy"] {
            assert_eq!(nearest(theirs, &losses), Some("softmax_cross_entropy"), "{theirs}");
        }
        assert_eq!(nearest("MSELoss", &losses), Some("mse"));
        assert_eq!(nearest("learning_rate", &["lr", "momentum"]), Some("lr"));
        assert_eq!(inner_key("learning_rate", &["loss", "optimizer"]).as_deref(), Some("optimizer.lr"));
        assert_eq!(inner_key("learning_rate", &["lr", "momentum"]), None);
        let metrics: Vec<&str> = Metric::NAMES.iter().map(|(name, _)| *name).collect();
        for theirs in ["acc", "sparse_categorical_accuracy", "CategoricalAccuracy", "binary_accuracy"] {
            assert_eq!(nearest(theirs, &metrics), Some("accuracy"), "{theirs}");
        }
        let layers: Vec<&str> = LAYERS.iter().map(|def| def.name).collect();
        for (theirs, ours) in
            [("MaxPooling2D", "max_pool2d"), ("BatchNorm2d", "batch_norm"), ("LayerNorm", "layer_norm"), ("Linear", "dense")]
        {
            assert_eq!(nearest(theirs, &layers), Some(ours), "{theirs}");
        }
    }

    /// A synonym of a name that no longer exists would never be suggested.
    #[test]
    fn every_synonym_leads_to_a_name_that_exists() {
        let docs = ["configuration.md", "training.md", "models.md", "data.md", "mixed-precision.md", "memory-budgets.md"];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let text: String = docs.iter().map(|name| std::fs::read_to_string(folder.join(name)).unwrap()).collect();
        let named = |ours: &str| {
            Loss::NAMES.iter().any(|(name, _)| *name == ours)
                || LAYERS.iter().any(|def| def.name == ours)
                || SCHEDULES.iter().any(|def| def.name == ours)
                || Activation::NAMES.iter().any(|(name, _)| *name == ours)
                || [format!("`{ours}`"), format!("`{ours} ="), format!("\n{ours} ="), format!("{ours} = ")]
                    .iter()
                    .any(|key| text.contains(key))
        };
        let unknown: Vec<&str> = SYNONYMS.iter().map(|(_, ours)| *ours).filter(|ours| !named(ours)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
