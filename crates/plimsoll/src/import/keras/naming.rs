//! How Keras names the groups of weights.

use std::collections::HashMap;

/// A class name in snake case: `Conv2DTranspose` is `conv2d_transpose`, `ReLU` is `re_lu`.
pub(super) fn snake_case(class: &str) -> String {
    let letters: Vec<char> = class.chars().filter(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    let mut name = String::with_capacity(letters.len() + 4);
    for (index, letter) in letters.iter().enumerate() {
        let starts_word = letters.get(index + 1).is_some_and(char::is_ascii_lowercase);
        if index > 0 && letter.is_ascii_uppercase() && (starts_word || letters[index - 1].is_ascii_lowercase()) {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// Numbers the groups of a list of layers, per class in order: `dense`, `dense_1`, …
#[derive(Default)]
pub(crate) struct Numbered(HashMap<String, usize>);

impl Numbered {
    pub fn next(&mut self, class: &str) -> String {
        let name = snake_case(class);
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}_{}", *count - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::snake_case;

    #[test]
    fn classes_have_the_names_that_keras_gives_them() {
        let names = [
            ("Conv2D", "conv2d"),
            ("Conv2DTranspose", "conv2d_transpose"),
            ("ReLU", "re_lu"),
            ("PReLU", "p_re_lu"),
            ("LSTM", "lstm"),
            ("GlobalAveragePooling2D", "global_average_pooling2d"),
            ("MultiHeadAttention", "multi_head_attention"),
            ("DepthwiseConv1D", "depthwise_conv1d"),
            ("BatchNormalization", "batch_normalization"),
            ("GRUCell", "gru_cell"),
        ];
        for (class, name) in names {
            assert_eq!(snake_case(class), name);
        }
    }
}
