//! Training on a GPU compared with the CPU. Without a GPU each test reports so and checks the error.

use plimsoll::prelude::*;
use plimsoll::{Allow, DeviceSpec, Error, History, Permission, RunPlan, probe};
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;

/// Whether there is a GPU; if not, checks the error of a trainer and reports it.
fn has_gpu() -> bool {
    let Some(obstacle) = probe().obstacle() else { return true };
    let error = digits(DeviceSpec::Cuda(0)).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert_eq!(error, format!("cuda:0: {obstacle}"));
    println!("not run on a GPU: {error}");
    false
}

fn digits(choice: DeviceSpec) -> Trainer {
    let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
    Trainer::new(zoo::digits_cnn(10), &data).loss(Loss::SoftmaxCrossEntropy).optimizer(Adam::default()).seed(1).device(choice)
}

fn held_out() -> Dataset {
    Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32)
}

fn train(mut trainer: Trainer) -> (History, Vec<f32>) {
    let history = trainer.fit(Fit::epochs(2).validate(&held_out())).unwrap();
    (history, trainer.predict(&held_out()).unwrap())
}

fn assert_alike(here: &(History, Vec<f32>), there: &(History, Vec<f32>), allowed: f64) {
    for (a, b) in here.0.epochs.iter().zip(&there.0.epochs) {
        let (held_a, held_b) = (a.validation.as_ref().unwrap(), b.validation.as_ref().unwrap());
        for (a, b) in [(a.training.loss, b.training.loss), (held_a.loss, held_b.loss)] {
            assert!((a - b).abs() <= allowed * b, "a loss of {a} instead of {b}");
        }
    }
    let farthest = here.1.iter().zip(&there.1).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(here.1.len() == there.1.len() && farthest <= 20.0 * allowed, "predictions differ by {farthest}");
}

#[test]
fn training_on_gpu_matches_cpu() {
    if has_gpu() {
        assert_alike(&train(digits(DeviceSpec::Cuda(0))), &train(digits(DeviceSpec::Cpu)), 1e-3);
    }
}

/// Epochs of one batch, so that the loss of an epoch is that of a step; every epoch has different rows.
#[test]
fn the_first_twenty_losses_match_the_cpu() {
    if !has_gpu() {
        return;
    }
    let losses = |choice: DeviceSpec| -> Vec<f64> {
        let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).take(32).map("x", [scale(1.0 / 16.0)]).batch(32);
        let trainer = Trainer::new(zoo::digits_cnn(10), &data).loss(Loss::SoftmaxCrossEntropy).optimizer(Adam::default());
        let history = trainer.seed(1).device(choice).fit(Fit::epochs(20)).unwrap();
        assert_eq!((history.steps, history.epochs.len()), (20, 20));
        history.epochs.iter().map(|epoch| epoch.training.loss).collect()
    };
    let (there, here) = (losses(DeviceSpec::Cuda(0)), losses(DeviceSpec::Cpu));
    println!("cuda:0 {there:.5?}\ncpu    {here:.5?}");
    assert!(here[19] < 0.9 * here[0], "these twenty steps learn nothing: {here:?}");
    for (step, (there, here)) in there.iter().zip(&here).enumerate() {
        assert!((there - here).abs() <= 1e-3 * here, "step {}: a loss of {there} instead of {here}", step + 1);
    }
}

#[test]
fn micro_batches_match_the_full_batch_on_gpu() {
    if has_gpu() {
        assert_alike(&train(digits(DeviceSpec::Cuda(0)).micro_batch(12)), &train(digits(DeviceSpec::Cuda(0))), 1e-3);
    }
}

/// The loss is read while the next step runs; the error still names the failing step, and the weights are those before
/// it.
#[test]
fn a_non_finite_loss_reports_its_step() {
    if !has_gpu() {
        return;
    }
    let run = |choice: DeviceSpec| {
        let data = Dataset::random(RandomSpec::new(320).floats("x", [5]).floats("y", [2])).unwrap().batch(32);
        let model = Sequential::new().add(Dense::new(2));
        let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Sgd::new(1e9)).device(choice);
        match trainer.fit(Fit::epochs(3)) {
            Err(Error::NonFinite { loss, step, epoch, tensor, .. }) => (loss, step, epoch, tensor),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run(DeviceSpec::Cuda(0)), run(DeviceSpec::Cpu));
}

#[test]
fn a_device_budget_below_the_minimum_is_refused() {
    let trainer = digits(DeviceSpec::Cuda(0)).device_profile("h200").budget(Budget::host("4GiB").unwrap().device("1MiB").unwrap());
    let error = trainer.plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert!(error.starts_with("this run does not fit into 1.00 MiB of memory of cuda:0; the minimum budget is "), "{error}");
    assert!(error.contains("CUDA context 348 MiB"), "{error}");
}

/// Layers whose optimizer state is most of the memory of a run.
fn wide(allow: &str) -> Trainer {
    let data = Dataset::random(RandomSpec::new(256).floats("x", [64]).floats("y", [8])).unwrap().batch(32);
    let layer = || Dense::new(256).activation(Activation::Relu);
    let model = Sequential::new().add(layer()).add(layer()).add(layer()).add(layer()).add(Dense::new(8));
    let trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Adam::default()).seed(3).device(DeviceSpec::Cuda(0));
    trainer.allow(allow.parse::<Allow>().unwrap())
}

/// A budget that is too small for a quarter of the optimizer state.
fn scarce(free: &RunPlan) -> Budget {
    let device = free.device_memory.as_ref().unwrap();
    let optimizer = device.owners.iter().find(|(name, _)| *name == Owner::Optimizer).unwrap().1;
    Budget::host("4GiB").unwrap().device(&(device.total().0 - optimizer.0 / 4).to_string()).unwrap()
}

#[test]
fn tensors_beyond_the_device_budget_are_offloaded_to_pinned_memory() {
    let free = wide("offload").device_profile("h200").budget(Budget::host("4GiB").unwrap()).plan(&Fit::epochs(1)).unwrap();
    assert_eq!(free.offload_bytes(), Bytes::ZERO, "nothing leaves where everything fits");
    let budget = scarce(&free);
    let plan = wide("offload").device_profile("h200").budget(budget).plan(&Fit::epochs(1)).unwrap();
    assert_eq!(plan.used, [Permission::Offload]);
    assert!(plan.results_unchanged && plan.offload_bytes() > Bytes::ZERO);
    assert!(plan.device_memory.as_ref().unwrap().total() <= budget.device.unwrap());
    assert!(plan.owners.contains(&(Owner::Offload, plan.offload_bytes())), "{:?}", plan.owners);
    assert!(plan.to_string().contains("offloaded to pinned host memory"), "{plan}");
    assert!(plan.placement().contains("offloaded to pinned host memory"), "{}", plan.placement());
    // Without the permission it is refused, with the permission that would help.
    let refusal = match wide("none").device_profile("h200").budget(budget).plan(&Fit::epochs(1)) {
        Err(Error::Infeasible(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let (allow, least) = refusal.minimum_with.iter().find(|(allow, _)| allow.has(Permission::Offload)).expect("that would help");
    let enough = Budget { device: Some(*least), ..budget };
    assert!(wide(&allow.to_string()).device_profile("h200").budget(enough).plan(&Fit::epochs(1)).is_ok(), "what is said to be enough is");
}

/// The same kernels in the same order are bit-identical, launched one by one or as a CUDA graph.
#[test]
fn offloaded_tensors_come_back_bit_identical() {
    if !has_gpu() {
        return;
    }
    let run = |mut trainer: Trainer| {
        let history = trainer.fit(Fit::epochs(5)).unwrap();
        let data = Dataset::random(RandomSpec::new(256).floats("x", [64]).floats("y", [8])).unwrap().batch(32);
        let losses: Vec<u64> = history.epochs.iter().map(|epoch| epoch.training.loss.to_bits()).collect();
        (losses, trainer.predict(&data).unwrap())
    };
    let free = wide("offload").budget(Budget::host("4GiB").unwrap()).plan(&Fit::epochs(1)).unwrap();
    let budget = scarce(&free);
    let plan = wide("offload").budget(budget).plan(&Fit::epochs(1)).unwrap();
    assert_eq!(plan.used, [Permission::Offload]);
    println!("{plan}");
    let (here, there) = (run(wide("offload").budget(Budget::host("4GiB").unwrap())), run(wide("offload").budget(budget)));
    assert!(here == there, "{:?} and {:?}", here.0, there.0);
}

/// A step with a non-finite loss leaves the optimizer state unchanged.
#[test]
fn a_failed_step_leaves_offloaded_state_unchanged() {
    if !has_gpu() {
        return;
    }
    let budget = scarce(&wide("offload").budget(Budget::host("4GiB").unwrap()).plan(&Fit::epochs(1)).unwrap());
    let run = |budget: Budget| {
        let data = Dataset::random(RandomSpec::new(320).floats("x", [64]).floats("y", [8])).unwrap().batch(32);
        let layer = || Dense::new(256).activation(Activation::Relu);
        let model = Sequential::new().add(layer()).add(layer()).add(layer()).add(layer()).add(Dense::new(8));
        let trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Adam::new(1e18)).seed(3);
        let mut trainer = trainer.device(DeviceSpec::Cuda(0)).allow("offload".parse().unwrap()).budget(budget);
        let error = trainer.fit(Fit::epochs(3)).unwrap_err().to_string();
        (error, trainer.predict(&data).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    assert_eq!(run(budget), run(Budget::host("4GiB").unwrap()));
}
