//! The model zoo: published networks by name, with overrides of their hyperparameters.
//!
//! Parameter counts are of trainable parameters, without the moving statistics of batch normalization.

mod blocks;
mod catalogue;
mod dense;
mod efficient;
mod entry;
mod inception;
mod mobile;
mod network;
mod options;
mod residual;
mod segmentation;
mod series;
mod small;
mod task;
mod transformer;
mod vgg;

pub use catalogue::ENTRIES;
pub use dense::densenet121;
pub use efficient::efficientnet_b0;
pub use entry::Entry;
pub use inception::{googlenet, inception_v3};
pub use mobile::{mobilenet_v1, mobilenet_v2};
pub use network::{Costs, Network};
pub use options::Options;
pub use residual::{resnet18, resnet34, resnet50, resnet101};
pub use segmentation::{fcn8, segnet, unet};
pub use series::{gru, lstm};
pub use small::{autoencoder, cifar_cnn, digits_cnn, lenet5, mlp};
pub use task::Task;
pub use transformer::{bert_base, char_gpt, gpt2_124m, gpt2_355m, vit_base, vit_small, vit_tiny};
pub use vgg::{vgg16, vgg19};

use crate::error::{Error, Result};
use crate::suggest::did_you_mean;

/// The network of this name.
///
/// ```
/// use plimsoll::zoo;
/// assert_eq!(zoo::find("resnet50")?.about, "residual network of 2015, 50 layers with bottlenecks");
/// let error = zoo::find("resnet51").err().unwrap();
/// assert!(error.to_string().ends_with("did you mean \"resnet50\"?"));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub fn find(name: &str) -> Result<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        let hint = did_you_mean(name, &known);
        Error::Config(format!("there is no network \"{name}\" in the zoo; it has {}{hint}", known.join(", ")))
    })
}
