//! Fine-tuning: a new head on a trained model, and layers chosen by patterns.

use super::layer_pattern::matches_layer;
use super::model::Model;
use super::tensor::Source;
use plimsoll_core::GraphError;

impl Model {
    /// Replaces the last layer with weights by one of the same type with `classes` outputs, called `head`, whose
    /// weights start random. Activations, dropout and shape layers behind it stay.
    ///
    /// ```
    /// use plimsoll::nn::{Activation, Dense, Model, Sequential};
    /// let model: Model = Sequential::new().add(Dense::new(8).relu()).add(Dense::new(1000)).add(Activation::Softmax).into();
    /// assert_eq!(model.replace_head(5)?.layer_names(), ["dense", "head", "softmax"]);
    /// # Ok::<(), plimsoll_core::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// If the model has several outputs, or its last layer is not fully connected or a convolution.
    pub fn replace_head(mut self, classes: usize) -> Result<Model, GraphError> {
        let refused = |what: String| GraphError { scope: String::new(), what };
        let [(_, output)] = self.outputs_mut() else {
            return Err(refused("a new head needs a model with one output; this one has several".to_string()));
        };
        let mut at = output.0;
        let name = ["head", "new_head", "replaced_head"].into_iter().find(|name| !self.layers().iter().any(|call| call.name == *name));
        while let Source::Layer(index) = at {
            let call = &self.layers()[index];
            let (kind, shared) = (call.layer.kind(), self.layers().iter().filter(|other| other.name == call.name).count() > 1);
            match call.layer.with_outputs(classes) {
                Some((layer, has_weights)) => {
                    if shared && has_weights {
                        return Err(refused(format!("`{}` is called several times, so it cannot be replaced as the head", call.name)));
                    }
                    let call = &mut self.layers_mut()[index];
                    call.layer = layer;
                    if has_weights {
                        call.name = name.unwrap_or("head").to_string();
                        call.trainable = true;
                        return Ok(self);
                    }
                }
                None if call.inputs.len() == 1 && call.layer.keeps_channels() => {}
                None => {
                    let what = format!("the last layer is `{}` ({kind}), not a fully connected one or a convolution", call.name);
                    return Err(refused(format!("{what}; a new head has nothing to replace")));
                }
            }
            at = self.layers()[index].inputs[0].0;
        }
        Err(refused("the model has no layer with weights, so a new head has nothing to replace".to_string()))
    }

    /// Freezes or unfreezes the layers whose name matches a pattern, in which `*` stands for any characters; a name
    /// also stands for the layers of its block.
    ///
    /// ```
    /// use plimsoll::nn::{Dense, Model, Sequential};
    /// let model: Model = Sequential::new().named("block1_a", Dense::new(8)).named("block2_a", Dense::new(2)).into();
    /// let model = model.trainable_matching("block1*", false)?;
    /// assert!(model.trainable_matching("block3*", true).is_err());
    /// # Ok::<(), plimsoll_core::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// If no layer matches.
    pub fn trainable_matching(mut self, pattern: &str, trainable: bool) -> Result<Model, GraphError> {
        let mut found = false;
        for call in self.layers_mut() {
            if matches_layer(pattern, &call.name) {
                call.trainable = trainable;
                found = true;
            }
        }
        if found {
            return Ok(self);
        }
        let mut known: Vec<&str> = self.layers().iter().map(|call| call.name.split('/').next().unwrap_or_default()).collect();
        known.dedup();
        let more = if known.len() > 8 { ", …" } else { "" };
        known.truncate(8);
        Err(GraphError { scope: String::new(), what: format!("no layer matches `{pattern}`; the model has {}{more}", known.join(", ")) })
    }
}

#[cfg(test)]
mod tests {
    use crate::nn::{Activation, Add, Conv2D, Dense, Dropout, Flatten, Functional, Model, Reshape, Sequential};
    use plimsoll_core::shape::{Shape, TensorType};

    #[test]
    fn a_new_head_takes_the_place_of_the_last_weights() {
        let input = TensorType::f32(Shape::batch_of([4, 4, 3]));
        let net = Sequential::new().add(Conv2D::new(4, 4)).add(Conv2D::new(10, 1)).add(Reshape::new([10]));
        let model: Model = net.add(Dropout::new(0.5)).add(Activation::Softmax).into();
        let model = model.trainable_matching("*", false).unwrap().replace_head(3).unwrap();
        let weights = model.weights(&input).unwrap();
        let shapes: Vec<String> = weights.iter().map(|(name, ty)| format!("{name} {}", ty.shape)).collect();
        assert_eq!(shapes, ["conv2d/kernel [4, 4, 3, 4]", "conv2d/bias [4]", "head/kernel [1, 1, 4, 3]", "head/bias [3]"]);

        let mut net = Functional::new("sum");
        let x = net.input();
        let flat = net.add(Flatten, [x]);
        let (a, b) = (net.add(Dense::new(2), [flat]), net.add(Dense::new(2), [flat]));
        let sum = net.add(Add, [a, b]);
        let error = net.build(sum).replace_head(3).unwrap_err();
        let what = "the last layer is `add` (add), not a fully connected one or a convolution; a new head has nothing to replace";
        assert_eq!(error.to_string(), what);
    }
}
