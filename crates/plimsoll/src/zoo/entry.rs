//! The definition of a network of the zoo.

use super::network::Network;
use super::options::{Options, Override, Setup};
use super::task::Task;
use crate::error::{Error, Result};
use crate::nn::Model;

/// The definition of a network of the zoo.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name in configurations.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The published input shape, without the batch.
    pub input: &'static [usize],
    /// What it predicts.
    pub task: Task,
    /// The overrides it takes.
    pub(super) takes: &'static [Override],
    /// Height and width of the input are multiples of this.
    pub(super) multiple: usize,
    pub(super) make: fn(&Setup) -> Model,
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
        let setup = self.resolve(options)?;
        let model = (self.make)(&setup).name(self.name);
        Network::new(self.task, model, setup)
    }

    /// Builds the network as published, with this number of classes.
    pub(super) fn for_classes(&self, classes: usize) -> Model {
        (self.make)(&Setup { classes, ..Setup::published(self.task, self.input) }).name(self.name)
    }

    /// The published hyperparameters with these overrides.
    fn resolve(&self, options: &Options) -> Result<Setup> {
        let name = self.name;
        let wrong = |what: String| Err(Error::Config(format!("the network {name} {what}")));
        if let Some(which) = options.given().find(|which| !self.takes.contains(which)) {
            let takes: Vec<&str> = self.takes.iter().map(|which| which.name()).collect();
            return wrong(format!("has no `{}`; it takes {}", which.name(), takes.join(", ")));
        }
        let mut setup = Setup::published(self.task, self.input);
        if let Some(classes) = options.classes {
            if classes == 0 {
                return wrong("needs at least one class".to_string());
            }
            setup.classes = classes;
        }
        if let Some(vocabulary) = options.vocabulary {
            if vocabulary == 0 {
                return wrong("needs at least one token".to_string());
            }
            setup.vocabulary = vocabulary;
            if let Task::NextToken(_) = self.task {
                setup.classes = vocabulary;
            }
        }
        if let Some(width) = options.width {
            if !(width.is_finite() && (1e-3..=1e3).contains(&width)) {
                return wrong(format!("cannot be scaled to a width of {width}; the width multiplier is between 0.001 and 1000"));
            }
            setup.width = width;
        }
        if let Some(context) = options.context {
            if context == 0 {
                return wrong("needs a context of at least one token".to_string());
            }
            setup.input = vec![context];
        }
        if let Some(input) = &options.input {
            setup.input = match (&input[..], self.input) {
                // Channels may be left out.
                (&[height, width], &[_, _, channels]) => vec![height, width, channels],
                (given, published) if given.len() == published.len() => given.to_vec(),
                (given, published) => {
                    return wrong(format!("takes inputs of {} dimensions such as {published:?}, but got {given:?}", published.len()));
                }
            };
            if setup.input.contains(&0) {
                return wrong(format!("takes inputs of at least one element, but got {:?}", setup.input));
            }
        }
        let multiple = self.multiple;
        if let (&[height, width, _], true) = (&setup.input[..], multiple > 1)
            && !(height.is_multiple_of(multiple) && width.is_multiple_of(multiple))
        {
            return wrong(format!("takes images whose height and width are multiples of {multiple}, but got {height}×{width}"));
        }
        Ok(setup)
    }
}

impl Entry {
    /// An image classifier.
    pub(super) const fn image_classifier(
        name: &'static str,
        about: &'static str,
        input: &'static [usize],
        classes: usize,
        make: fn(&Setup) -> Model,
    ) -> Entry {
        Entry { name, about, input, task: Task::Classification(classes), takes: IMAGE_OVERRIDES, multiple: 1, make }
    }

    /// An image classifier over patches of 16×16.
    pub(super) const fn vision_transformer(name: &'static str, about: &'static str, make: fn(&Setup) -> Model) -> Entry {
        Entry { multiple: 16, ..Entry::image_classifier(name, about, IMAGENET, 1000, make) }
    }

    /// A network for semantic segmentation of images whose sides are multiples of a number.
    pub(super) const fn segmentation(
        name: &'static str,
        about: &'static str,
        multiple: usize,
        classes: usize,
        make: fn(&Setup) -> Model,
    ) -> Entry {
        Entry { name, about, input: &[256, 256, 3], task: Task::Segmentation(classes), takes: IMAGE_OVERRIDES, multiple, make }
    }

    /// A language model.
    pub(super) const fn language_model(
        name: &'static str,
        about: &'static str,
        context: &'static [usize],
        vocabulary: usize,
        make: fn(&Setup) -> Model,
    ) -> Entry {
        let takes = &[Override::Context, Override::Vocabulary, Override::Width];
        Entry { name, about, input: context, task: Task::NextToken(vocabulary), takes, multiple: 1, make }
    }

    /// A forecaster of 24 hourly values from 96 steps of 7 features.
    pub(super) const fn forecaster(name: &'static str, about: &'static str, make: fn(&Setup) -> Model) -> Entry {
        Entry { name, about, input: &[96, 7], task: Task::Forecast(24), takes: IMAGE_OVERRIDES, multiple: 1, make }
    }
}

/// The input shape of ImageNet classifiers.
pub(super) const IMAGENET: &[usize] = &[224, 224, 3];

/// Overrides of networks whose input is an image or a series.
const IMAGE_OVERRIDES: &[Override] = &[Override::Classes, Override::Input, Override::Width];
