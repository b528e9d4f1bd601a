//! The program of the README with a layer, a source and an operation on rows of its own, written with the crate `plimsoll` alone.

use plimsoll::data::{Column, Schema, ops};
use plimsoll::graph::{DType, GraphError, Init, ValueId};
use plimsoll::nn::{Layer, Lowering};
use plimsoll::prelude::*;

fn main() -> Result<(), plimsoll::Error> {
    readme()?;
    let history = own_parts()?;
    println!("own parts: loss {:.4}", history.epochs.last().map_or(f64::NAN, |epoch| epoch.training.loss));
    Ok(())
}

fn readme() -> Result<(), plimsoll::Error> {
    let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
    let held_out = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32);
    let mut trainer = Trainer::new(zoo::digits_cnn(10), &data)
        .loss(Loss::SoftmaxCrossEntropy)
        .optimizer(Adam::default())
        .budget(Budget::host("64MiB")?);
    let fit = Fit::epochs(10).validate(&held_out);
    let plan = trainer.plan(&fit)?;
    println!("{plan}");
    trainer.run(plan, fit)?;
    Ok(())
}

/// Multiplies every feature by a trained factor, and squares the result.
#[derive(Debug)]
struct SquaredScale;

impl Layer for SquaredScale {
    fn kind(&self) -> &'static str {
        "squared_scale"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let [x] = *inputs else { return Err(lowering.graph.error("expects one input")) };
        let features = lowering.graph.shape(x).last().and_then(|dim| dim.as_fixed());
        let features = features.ok_or_else(|| lowering.graph.error("expects features"))?;
        let factors = lowering.parameter("factors", [features], Init::Constant(1.0))?;
        let scaled = lowering.graph.times(x, factors)?;
        lowering.graph.map(scaled, |e, x| e.mul(x, x))
    }
}

/// Trains on generated rows.
fn own_parts() -> Result<plimsoll::History, plimsoll::Error> {
    let schema = Schema::new(vec![Column::new("x", DType::F32, [4]), Column::new("y", DType::I32, [])])?;
    let data = Dataset::from_fn(schema, 256, |n, row| {
        row.f32(0, &[(n % 7) as f32, (n % 5) as f32, (n % 3) as f32, (n % 2) as f32])?;
        row.i32(1, &[(n % 2) as i32])
    });
    let data = data.map("x", [ops::scale(0.2)]).batch(16);
    let model = Sequential::new().add(SquaredScale).add(Dense::new(2));
    let mut trainer = Trainer::new(model, &data).optimizer(Adam::new(1e-2)).budget(Budget::host("64MiB")?);
    trainer.fit(Fit::epochs(5))
}
