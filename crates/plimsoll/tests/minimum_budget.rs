//! The minimum budget of random runs: the same whatever budget is given, feasible itself, one byte less is not.

use plimsoll::nn::{Conv2D, Flatten, Padding};
use plimsoll::prelude::*;
use plimsoll::{Allow, Checkpoints, Error, Metric, RunPlan};
use proptest::prelude::*;

/// A run, as far as its memory depends on it.
#[derive(Clone, Debug)]
struct Run {
    layers: Vec<usize>,
    images: bool,
    batch: usize,
    allow: &'static str,
    adam: bool,
    validates: bool,
    saves: bool,
    micro_batch: Option<usize>,
}

fn runs() -> impl Strategy<Value = Run> {
    let allow = prop_oneof![
        Just("none"),
        Just("recompute"),
        Just("microbatch"),
        Just("offload"),
        Just("recompute,split,microbatch,offload"),
        Just("recompute,microbatch,mixed_precision,state_8bit"),
    ];
    let layers = prop::collection::vec(prop_oneof![Just(3), Just(8), Just(16), Just(48)], 1..8);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (layers, prop_oneof![Just(1), Just(6), Just(16), Just(36)], allow, flags, prop::option::of(1_usize..6)).prop_map(
        |(layers, batch, allow, (images, adam, validates, saves), micro_batch)| {
            let micro_batch = micro_batch.filter(|rows| *rows <= batch && batch % 3 == 0);
            Run { layers, images, batch, allow, adam, validates, saves, micro_batch }
        },
    )
}

impl Run {
    fn data(&self) -> Dataset {
        let rows = RandomSpec::new(48).classes("y", [], 5);
        let rows = if self.images { rows.floats("x", [16, 16, 3]) } else { rows.floats("x", [256]) };
        Dataset::random(rows).unwrap().batch(self.batch)
    }

    fn plan(&self, host: Option<Bytes>) -> Result<RunPlan, Error> {
        let model = self.layers.iter().fold(Sequential::new(), |model, units| match self.images {
            true => model.add(Conv2D::new(*units, 3).padding(Padding::Same).activation(Activation::Relu)),
            false => model.add(Dense::new(4 * units).activation(Activation::Relu)),
        });
        let model = if self.images { model.add(Flatten) } else { model };
        let mut trainer = Trainer::new(model.add(Dense::new(5)), &self.data()).metrics([Metric::Accuracy, Metric::F1]).threads(1);
        if self.adam {
            trainer = trainer.optimizer(Adam::default());
        }
        if let Some(rows) = self.micro_batch {
            trainer = trainer.micro_batch(rows);
        }
        let host = host.unwrap_or(Bytes::gib(4));
        let trainer = trainer.allow(self.allow.parse::<Allow>().unwrap()).budget(Budget { host: Some(host), ..Budget::default() });
        let held_out = self.data();
        let fit = Fit::epochs(3);
        let fit = if self.validates { fit.validate(&held_out) } else { fit };
        trainer.plan(&if self.saves { fit.checkpoints(Checkpoints::new("unused")) } else { fit })
    }

    /// The minimum that a refusal states.
    fn refused(&self, host: Bytes) -> Option<Bytes> {
        match self.plan(Some(host)) {
            Err(Error::Infeasible(refusal)) => Some(refusal.minimum),
            Err(error) => panic!("{error}"),
            Ok(_) => None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_minimum_is_the_same_everywhere_feasible_and_exact(run in runs()) {
        let free = run.plan(None).unwrap();
        let minimum = free.minimum;
        prop_assert!(minimum <= free.total(), "{minimum:?} of {:?}", free.total());
        prop_assert_eq!(run.refused(Bytes::mib(1)), Some(minimum));
        prop_assert_eq!(run.refused(minimum - Bytes(1)), Some(minimum));
        for budget in [minimum, Bytes(minimum.0 + minimum.0 / 50), Bytes((minimum.0 + free.total().0) / 2)] {
            let plan = run.plan(Some(budget)).unwrap();
            prop_assert!(plan.total() <= budget, "{:?} of {budget:?}", plan.total());
            prop_assert_eq!(plan.minimum, minimum);
        }
    }
}
