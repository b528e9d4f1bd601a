//! The Rust programs of docs/coming-from-keras.md and docs/coming-from-pytorch.md.
//!
//! Each is a function of the folder with the data, which `tools/book_data.py FOLDER` writes. The documents show the
//! functions as they are here; a test compares them, and `tests/from_keras.rs` runs them on a few rows.
//!
//! ```text
//! cargo run --release -p plimsoll --example from_keras -- FOLDER arrays
//! ```

use plimsoll::data::Tensor as Rows;
use plimsoll::data::ops::{random_brightness, random_contrast};
use plimsoll::data::source::ShapesSpec;
use plimsoll::eager::{self, Tensor};
use plimsoll::graph::{GraphError, Init, ValueId};
use plimsoll::nn::{Conv2D, Embedding, Flatten, GlobalAveragePool, Layer, Lowering, Lstm};
use plimsoll::prelude::*;
use plimsoll::{DeviceSpec, Error, History, RunPlan};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, program] = &arguments[..] else { return Err("give a folder with data and the name of a program".into()) };
    let folder = Path::new(folder);
    match program.as_str() {
        "arrays" => summary(&arrays(folder)?),
        "images" => summary(&images(folder)?),
        "photos" => summary(&photos(folder)?),
        "augmented" => summary(&augmented(folder)?),
        "cached" => summary(&cached(folder)?),
        "accumulated" => summary(&accumulated(folder)?),
        "half" => summary(&half(folder)?),
        "vocabulary" => summary(&vocabulary(folder)?),
        "series" => summary(&series(folder)?),
        "adamw_loop" => summary(&adamw_loop(folder)?),
        "custom_loop" => println!("loss {:.4}", custom_loop(folder)?),
        "placed" => println!("{}", placed()?),
        "limited" => println!("{}", limited()?),
        "largest" => println!("a batch of {}", largest()?),
        "segmentation" => println!("{}", segmentation()?),
        "explore" => println!("loss {:.5}", explore()?),
        _ => return Err(format!("there is no program `{program}`").into()),
    }
    Ok(())
}

/// Prints what a run took.
fn summary(history: &History) {
    println!("{} steps, {:.1} s; {} planned, {} measured", history.steps, history.seconds, history.planned, history.measured);
}

/// A dense layer over a million rows.
pub fn arrays(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("x.npy")), ("y", folder.join("y.npy"))])?;
    let data = data.shuffle(Shuffle::seed(1)).batch(32);
    let mut trainer = Trainer::new(Sequential::new().add(Dense::new(10)), &data)
        .loss(Loss::MeanSquaredError)
        .optimizer(Adam::default())
        .budget(Budget::host("64MiB")?);
    trainer.fit(Fit::epochs(1))
}

/// Images that are resized in the pipeline.
pub fn images(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("images.npy")), ("y", folder.join("labels.npy"))])?;
    let data = data.shuffle(Shuffle::seed(1)).take(64_000);
    let data = data.map("x", [resize(64, 64, Method::Bilinear), scale(1.0 / 255.0)]).batch(32);
    let model = Sequential::new().add(Conv2D::new(32, 3).relu()).add(Flatten).add(Dense::new(10));
    let mut trainer = Trainer::new(model, &data).optimizer(Adam::default()).budget(Budget::host("128MiB")?);
    trainer.fit(Fit::epochs(1))
}

/// Photographs in, one of ten classes out.
fn photo_classifier() -> Sequential {
    Sequential::new().add(Conv2D::new(16, 3).stride(2, 2).relu()).add(GlobalAveragePool).add(Dense::new(10))
}

/// A folder of photographs.
pub fn photos(folder: &Path) -> Result<History, Error> {
    let data = Dataset::image_folder(folder.join("photos"))?.shuffle(Shuffle::seed(1));
    let data = data.map("x", [decode(), resize(224, 224, Method::Bilinear), scale(1.0 / 255.0)]).batch(32);
    let mut trainer = Trainer::new(photo_classifier(), &data).optimizer(Adam::default()).budget(Budget::host("256MiB")?);
    trainer.fit(Fit::epochs(2))
}

/// The same with random flips, brightness and contrast.
pub fn augmented(folder: &Path) -> Result<History, Error> {
    let data = Dataset::image_folder(folder.join("photos"))?.shuffle(Shuffle::seed(1));
    let data = data.map("x", [decode(), resize(224, 224, Method::Bilinear), scale(1.0 / 255.0)]);
    let data = data.map("x", [flip_left_right(1), random_brightness(0.1, 2), random_contrast(0.8, 1.2, 3)]).batch(32);
    let mut trainer = Trainer::new(photo_classifier(), &data).optimizer(Adam::default()).budget(Budget::host("256MiB")?);
    trainer.fit(Fit::epochs(2))
}

/// The same, decoded once and cached in a file.
pub fn cached(folder: &Path) -> Result<History, Error> {
    let data = Dataset::image_folder(folder.join("photos"))?.shuffle(Shuffle::seed(1));
    let data = data.map("x", [decode(), resize(224, 224, Method::Bilinear)]).cache(Cache::File(folder.join("photos.plc")));
    let data = data.map("x", [scale(1.0 / 255.0)]).batch(32);
    let mut trainer = Trainer::new(photo_classifier(), &data).optimizer(Adam::default()).budget(Budget::host("256MiB")?);
    trainer.fit(Fit::epochs(2))
}

/// A loop of our own over planned steps. Returns the loss of the last one.
pub fn custom_loop(folder: &Path) -> Result<f64, Error> {
    let data = Dataset::npy(&[("x", folder.join("x.npy")), ("y", folder.join("y.npy"))])?.take(96_000).batch(32);
    let trainer = Trainer::new(Sequential::new().add(Dense::new(10)), &data)
        .loss(Loss::MeanSquaredError)
        .optimizer(Adam::default())
        .budget(Budget::host("64MiB")?);
    let mut run = trainer.custom_loop()?; // planned, checked and allocated
    let mut batches = run.batches(1)?;
    let mut last = f64::NAN;
    while let Some(scores) = run.step_from(&mut batches)? {
        last = scores.loss; // a number, not a tensor that keeps a tape alive
        if run.steps() == 2_000 {
            run.set_learning_rate(3e-4)?;
        }
    }
    Ok(last)
}

/// Two convolutions for 28×28 images.
fn image_classifier() -> Sequential {
    Sequential::new().add(Conv2D::new(64, 3).relu()).add(Conv2D::new(64, 3).relu()).add(Flatten).add(Dense::new(10))
}

/// A batch of 256 in four parts.
pub fn accumulated(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("images.npy")), ("y", folder.join("labels.npy"))])?;
    let data = data.take(16_384).map("x", [scale(1.0 / 255.0)]).batch(256);
    let mut trainer = Trainer::new(image_classifier(), &data)
        .optimizer(Adam::default())
        .micro_batch(64) // or leave it out: the planner divides batches where the budget requires it
        .budget(Budget::host("256MiB")?);
    trainer.fit(Fit::epochs(1))
}

/// Activations in 16 bits.
pub fn half(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("images.npy")), ("y", folder.join("labels.npy"))])?;
    let data = data.take(2_048).map("x", [scale(1.0 / 255.0)]).batch(256);
    let mut trainer = Trainer::new(image_classifier(), &data).optimizer(Adam::default()).precision(Precision::MixedF16);
    trainer.fit(Fit::epochs(1))
}

/// ResNet-50 on random images: what a plan for a GPU is about.
fn resnet() -> Result<Trainer, Error> {
    let images = RandomSpec::new(1_024).floats("x", [224, 224, 3]).labels("y", 1_000);
    Ok(Trainer::new(zoo::resnet50(1_000), &Dataset::random(images)?.batch(64)).optimizer(Adam::default()))
}

/// The plan of a run on a GPU.
pub fn placed() -> Result<RunPlan, Error> {
    let trainer = resnet()?.device(DeviceSpec::Cuda(0)).device_profile("h200"); // without a profile: the GPU itself
    trainer.plan(&Fit::epochs(1))
}

/// The same within 4 GiB of the GPU.
pub fn limited() -> Result<RunPlan, Error> {
    let trainer = resnet()?.device(DeviceSpec::Cuda(0)).device_profile("h200").budget(Budget::host("4GiB")?.device("4GiB")?);
    trainer.plan(&Fit::epochs(1))
}

/// The largest batch within 8 GiB of the GPU.
pub fn largest() -> Result<usize, Error> {
    let trainer = resnet()?.device(DeviceSpec::Cuda(0)).device_profile("h200").budget(Budget::host("8GiB")?.device("8GiB")?);
    Ok(trainer.largest_batch()?.map_or(0, |largest| largest.batch))
}

/// Scores for 50,000 tokens.
pub fn vocabulary(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("tokens.npy")), ("y", folder.join("next.npy"))])?.take(128).batch(32);
    let model = Sequential::new().add(Embedding::new(50_000, 256)).add(Dense::new(256).relu()).add(Dense::new(50_000));
    let mut trainer = Trainer::new(model, &data).optimizer(Adam::default()).budget(Budget::host("700MiB")?);
    trainer.fit(Fit::epochs(1))
}

/// The plan of a U-Net within 1 GiB.
pub fn segmentation() -> Result<RunPlan, Error> {
    let options = zoo::Options { classes: Some(4), input: Some(vec![512, 512, 3]), width: Some(0.25), ..Default::default() };
    let data = Dataset::shapes(ShapesSpec::new(16, 512, 512))?.map("x", [scale(1.0 / 255.0)]).batch(8);
    let trainer = Trainer::new(zoo::find("unet")?.build(&options)?.model, &data).optimizer(Adam::default()).budget(Budget::host("1GiB")?);
    trainer.plan(&Fit::epochs(1))
}

/// An LSTM over 2,048 steps.
pub fn series(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("series.npy")), ("y", folder.join("target.npy"))])?.take(256).batch(64);
    let model = Sequential::new().add(Lstm::new(128)).add(Dense::new(1));
    let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Adam::default()).budget(Budget::host("256MiB")?);
    trainer.fit(Fit::epochs(1))
}

/// Rows that the program has in memory already.
pub fn rows_in_memory() -> Result<Dataset, Error> {
    let x = Rows::f32([100, 8], vec![0.5; 100 * 8])?;
    let y = Rows::i32([100], vec![1; 100])?;
    Ok(Dataset::from_tensor_slices([("x", x), ("y", y)])?)
}

/// A network with one hidden layer, trained with AdamW.
pub fn adamw_loop(folder: &Path) -> Result<History, Error> {
    let data = Dataset::npy(&[("x", folder.join("x.npy")), ("y", folder.join("y.npy"))])?;
    let data = data.shuffle(Shuffle::seed(1)).batch(32);
    let model = Sequential::new().add(Dense::new(64).relu()).add(Dense::new(10));
    let mut trainer = Trainer::new(model, &data)
        .loss(Loss::MeanSquaredError)
        .optimizer(AdamW::new(1e-3, 0.01))
        .clip(Clip::GlobalNorm(1.0))
        .budget(Budget::host("64MiB")?);
    let plan = trainer.plan(&Fit::epochs(1))?; // exact, or an error that states the minimum
    trainer.run(plan, Fit::epochs(1))
}

/// Multiplies every feature by a trained factor, and squares the result.
#[derive(Debug)]
pub struct SquaredScale;

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

/// Fits a linear function with a closure that is compiled. Returns the last loss.
pub fn explore() -> eager::Result<f32> {
    let x = Tensor::normal([256, 10])?;
    let target = x.sum_axes(&[1])?.reshape([256, 1])?;
    let w = Tensor::zeros([10, 1])?;
    let step = eager::compile_with_state(
        |state, batch| {
            let loss = |p: &[Tensor]| batch[0].matmul(&p[0])?.mse_loss(&batch[1]);
            let (loss, gradients) = eager::value_and_grad(loss)(state)?;
            Ok((vec![(&state[0] - &(&gradients[0] * 0.1)?)?], vec![loss]))
        },
        &[&w],
        &[&x, &target],
        Bytes::mib(16),
    )?;
    let mut loss = f32::INFINITY;
    for _ in 0..50 {
        loss = step.run(&[&x, &target])?[0].item()?;
    }
    println!("{} at the peak, exactly; loss {loss:.5}", step.peak());
    Ok(loss)
}
