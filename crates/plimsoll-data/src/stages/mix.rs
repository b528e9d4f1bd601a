//! `mixup` and `cutmix`: mix the rows of a batch in pairs.

use super::kind::{Key, KeyKind, StageArgs, StageKind, Validation};
use crate::DataError;
use crate::dataset::{Concern, Dataset};
use crate::ops::Mix;

const KEYS: &[Key] = &[
    Key::optional("alpha", KeyKind::Number),
    Key::optional("seed", KeyKind::Seed),
    Key::optional("images", KeyKind::Text).or("\"x\""),
    Key::optional("labels", KeyKind::Text).or("\"y\""),
];

pub(super) const MIXUP: StageKind = StageKind {
    name: "mixup",
    summary: "mixes the rows of a batch in pairs: weighted means",
    keys: KEYS,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.mix(mix(args, Mix::up, 0.2))),
    ..StageKind::DEFAULT
};

pub(super) const CUTMIX: StageKind = StageKind {
    name: "cutmix",
    summary: "mixes the rows of a batch in pairs: exchanged rectangles",
    keys: KEYS,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.mix(mix(args, Mix::cut, 1.0))),
    ..StageKind::DEFAULT
};

fn mix(args: &StageArgs, of_alpha: fn(f32) -> Mix, usual: f32) -> Mix {
    let mix = of_alpha(args.number("alpha").map_or(usual, |alpha| alpha as f32)).seed(args.rows("seed"));
    let column = |key, usual: &str| args.text(key).unwrap_or(usual.into());
    mix.columns(&column("images", "x"), &column("labels", "y"))
}

impl Dataset {
    /// Mixes the rows of each batch in pairs, see [`Mix`]. Needs no extra memory.
    pub fn mix(self, mix: Mix) -> Dataset {
        self.with_setting(Concern::Batches, mix.to_string(), move |settings| {
            if settings.mix.is_some() {
                return Err(DataError::Stage("rows of a batch are mixed once; leave one of mixup and cutmix out".into()));
            }
            settings.mix = Some((mix.clone(), None));
            Ok(())
        })
    }
}
