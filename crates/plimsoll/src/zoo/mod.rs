//! Known networks by name, each as published, with the overrides that make sense for it.
//!
//! Parameter counts are of what is learnt; moving statistics of batch normalisation are not among them.

mod catalogue;
mod dense;
mod efficient;
mod inception;
mod mobile;
mod network;
mod options;
mod parts;
mod residual;
mod segmentation;
mod series;
mod small;
mod transformer;
mod vgg;

pub use catalogue::ENTRIES;
pub use dense::densenet121;
pub use efficient::efficientnet_b0;
pub use inception::{googlenet, inception_v3};
pub use mobile::{mobilenet_v1, mobilenet_v2};
pub use network::{Costs, Network, Task};
pub use options::Options;
pub use residual::{resnet18, resnet34, resnet50, resnet101};
pub use segmentation::{fcn8, segnet, unet};
pub use series::{gru, lstm};
pub use small::{autoencoder, cifar_cnn, digits_cnn, lenet5, mlp};
pub use transformer::{bert_base, char_gpt, gpt2_124m, gpt2_355m, vit_base, vit_small, vit_tiny};
pub use vgg::{vgg16, vgg19};

use crate::error::{Error, Result};
use crate::nn::Model;
use crate::suggest::did_you_mean;
use options::{Override, Setup};

/// A network of the zoo.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name configurations use.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The shape of a row it was published for.
    pub input: &'static [usize],
    /// What it is for, with the number of answers it was published for.
    pub task: Task,
    /// What may be changed.
    takes: &'static [Override],
    /// Heights and widths are multiples of this.
    multiple: usize,
    make: fn(&Setup) -> Model,
}

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

impl Entry {
    /// Builds the network with these overrides.
    ///
    /// ```
    /// use plimsoll::zoo::{self, Options};
    /// let network = zoo::find("vgg16")?.build(&Options { classes: Some(10), ..Options::default() })?;
    /// assert_eq!(network.parameters()?, 134_301_514);
    /// let error = zoo::find("vgg16")?.build(&Options { vocabulary: Some(10), ..Options::default() }).unwrap_err();
    /// assert_eq!(error.to_string(), "the network vgg16 has no `vocabulary`; it takes classes, input, width");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn build(&self, options: &Options) -> Result<Network> {
        let setup = options.resolve(self)?;
        let model = (self.make)(&setup).name(self.name);
        Network::new(self, model, setup)
    }

    /// Builds the network as published, but for the number of classes.
    fn for_classes(&self, classes: usize) -> Model {
        (self.make)(&Setup { classes, ..Setup::published(self) }).name(self.name)
    }
}

/// The network of a name that is known to be there, for a number of classes.
fn known(name: &str, classes: usize) -> Model {
    find(name).expect("every function of the zoo has its entry").for_classes(classes)
}
