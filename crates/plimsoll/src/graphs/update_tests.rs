//! Optimizers, clipping, averages and loss scaling on the CPU, step by step, compared with Keras.

use super::training::{Update, training_programs};
use crate::optim::{Adafactor, Adagrad, Adam, AdamW, Clip, Ema, Lion, Nadam, Optimizer, RmsProp, Sgd};
use crate::spec::Optimization;
use plimsoll_core::device::StepInputs;
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::loss_scale::{LossScaling, SCALE, SKIPPED};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::{check, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Device, Executor, Graph, Ledger, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use serde_json::Value;
use std::sync::Arc;

/// Parameters whose gradients are given: the loss is the sum of their products.
struct Bench {
    executor: Executor,
    optimization: Optimization,
    sizes: Vec<usize>,
    step: u64,
    /// Offset of the step number for random numbers.
    drawn: u32,
}

impl Bench {
    fn new(optimization: Optimization, shapes: &[Vec<usize>]) -> Bench {
        let mut g = Graph::new();
        let sizes: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
        let columns: Vec<_> =
            sizes.iter().enumerate().map(|(i, n)| g.input(&format!("g{i}"), TensorType::f32(Shape::batch_of([*n])))).collect();
        let mut loss = g.full(0.0, Shape::scalar()).unwrap();
        for (i, shape) in shapes.iter().enumerate() {
            let ty = TensorType::f32(Shape::fixed(shape.iter().copied()));
            let parameter = g.state(&format!("p{i}"), StateKind::Parameter, ty, Init::Constant(0.0)).unwrap();
            let flat = g.reshape(parameter, Shape::fixed([sizes[i]])).unwrap();
            let product = g.times(columns[i], flat).unwrap();
            let sum = g.sum(product).unwrap();
            loss = g.plus(loss, sum).unwrap();
        }
        g.output("loss", loss);
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2).unwrap());
        let plan = plan(
            training_programs(
                Update { optimization: &optimization, pruned: &[], ranks: 1, order: None, sharding: None },
                &g,
                loss,
                None,
                true,
                true,
            )
            .unwrap(),
            1,
            &*device,
        )
        .unwrap();
        check(&plan.certificate(), &plan.programs.iter().map(|program| &program.graph).collect::<Vec<_>>()).unwrap();
        let mut executor = Executor::new(device, CheckedPlan::new(plan).unwrap(), &Ledger::new("host", None)).unwrap();
        executor.initialize(1).unwrap();
        Bench { executor, optimization, sizes, step: 0, drawn: 0 }
    }

    fn set(&mut self, values: &[Vec<f32>]) {
        for (i, values) in values.iter().enumerate() {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            self.executor.write_state(StateId(i as u32), &bytes).unwrap();
        }
    }

    fn state(&self, name: &str) -> Option<Vec<f32>> {
        let i = self.executor.plan().states.iter().position(|state| state.name == name)?;
        let mut bytes = vec![0; self.executor.plan().states[i].size.get()];
        self.executor.read_state(StateId(i as u32), &mut bytes).unwrap();
        Some(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect())
    }

    fn parameters(&self) -> Vec<Vec<f32>> {
        (0..self.sizes.len()).map(|i| self.state(&format!("p{i}")).unwrap()).collect()
    }

    /// All states except gradient accumulators.
    fn everything(&self) -> Vec<(String, Vec<u8>)> {
        let states = self.executor.plan().states.iter().enumerate().filter(|(_, state)| state.kind != StateKind::Accumulator);
        let read = |(i, state): (usize, &plimsoll_core::plan::Resident)| {
            let mut bytes = vec![0; state.size.get()];
            self.executor.read_state(StateId(i as u32), &mut bytes).unwrap();
            (state.name.clone(), bytes)
        };
        states.map(read).collect()
    }

    /// One step with these gradients, whole or as the sum of two halves.
    fn step(&mut self, gradients: &[Vec<f32>], halves: bool) {
        let skipped = self.state(SKIPPED).map_or(0, |skipped| skipped[0] as u64);
        self.step += 1;
        let names = self.optimization.scalar_names();
        let mut numbers = vec![0.0; names.len()];
        let step = self.step - skipped;
        self.optimization.scalars(step, rate(&self.optimization, step), &mut numbers);
        let (roles, share): (&[Role], f32) = if halves { (&[Role::First, Role::Last], 0.5) } else { (&[Role::Step], 1.0) };
        for role in roles {
            let scalars: Vec<f32> = {
                let graph = &self.executor.plan().program(*role).unwrap().graph;
                graph.scalars().iter().map(|name| numbers[names.iter().position(|own| own == name).unwrap()]).collect()
            };
            let columns: Vec<Vec<u8>> = gradients.iter().map(|g| g.iter().flat_map(|x| (x * share).to_ne_bytes()).collect()).collect();
            let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
            let random = StepRandom { seed: 3, step: self.step as u32 + self.drawn, first_row: 0 };
            let inputs = StepInputs { columns: &columns, scalars: &scalars, random };
            let ticket = self.executor.run(*role, 1, &inputs).unwrap();
            self.executor.outcome(ticket, &mut [0.0; 1]).unwrap();
        }
    }
}

fn rate(optimization: &Optimization, step: u64) -> f64 {
    f64::from(optimization.optimizer.learning_rate()) * optimization.schedule.factor(step - 1)
}

fn reference() -> Value {
    serde_json::from_str(include_str!("../../tests/references/optimizers.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn lists(value: &Value) -> Vec<Vec<f32>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

fn with(optimizer: impl Optimizer + 'static) -> Optimization {
    Optimization { optimizer: Arc::new(optimizer), ..Optimization::default() }
}

/// Compares every step with the reference, whole and in pieces.
fn check_steps(name: &str, optimization: &Optimization, expected: &Value, read: impl Fn(&Bench) -> Vec<Vec<f32>>) {
    let reference = reference();
    let shapes: Vec<Vec<usize>> =
        reference["shapes"].as_array().unwrap().iter().map(|s| numbers(s).iter().map(|n| *n as usize).collect()).collect();
    for halves in [false, true] {
        let mut bench = Bench::new(optimization.clone(), &shapes);
        bench.set(&lists(&reference["first"]));
        for (step, gradients) in reference["gradients"].as_array().unwrap().iter().enumerate() {
            bench.step(&lists(gradients), halves);
            let worst = read(&bench)
                .iter()
                .flatten()
                .zip(lists(&expected[step]).iter().flatten())
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, |worst: f32, error| if error.is_nan() { f32::INFINITY } else { worst.max(error) });
            assert!(worst <= 1e-6, "{name}, step {}, in halves: {halves}: differs by {worst}", step + 1);
        }
    }
}

#[test]
fn every_optimizer_matches_keras() {
    let reference = reference();
    let cases: [(&str, Optimization); 12] = [
        ("sgd", with(Sgd::new(0.05))),
        ("momentum", with(Sgd::new(0.05).momentum(0.9))),
        ("nesterov", with(Sgd::new(0.05).momentum(0.9).nesterov(true))),
        ("adam", with(Adam::new(0.01))),
        ("adamw", with(AdamW::new(0.01, 0.05))),
        ("rmsprop", with(RmsProp::new(0.01))),
        ("rmsprop_centered_momentum", with(RmsProp::new(0.01).rho(0.8).momentum(0.7).centered(true))),
        ("adagrad", with(Adagrad::new(0.05))),
        ("adafactor", with(Adafactor::new(0.02))),
        ("lion", with(Lion::new(0.01))),
        ("lion_decay", with(Lion::new(0.01).weight_decay(0.1))),
        ("nadam", with(Nadam::new(0.01))),
    ];
    for (name, optimization) in &cases {
        check_steps(name, optimization, &reference["after"][name], Bench::parameters);
    }
}

#[test]
fn small_parameters_of_eight_bit_adam_are_adams() {
    let reference = reference();
    check_steps("adam", &with(Adam::new(0.01).eight_bit()), &reference["after"]["adam"], Bench::parameters);
    check_steps("adamw", &with(AdamW::new(0.01, 0.05).eight_bit()), &reference["after"]["adamw"], Bench::parameters);
}

#[test]
fn clipping_is_keras() {
    let reference = reference();
    let cases: [(&str, Optimization); 4] = [
        ("clip_value", Optimization { clip: Some(Clip::Value(0.4)), ..with(Sgd::new(0.05)) }),
        ("clip_norm", Optimization { clip: Some(Clip::Norm(1.5)), ..with(Sgd::new(0.05)) }),
        ("clip_global_norm", Optimization { clip: Some(Clip::GlobalNorm(2.0)), ..with(Sgd::new(0.05)) }),
        ("clip_global_norm_adam", Optimization { clip: Some(Clip::GlobalNorm(2.0)), ..with(Adam::new(0.01)) }),
    ];
    for (name, optimization) in &cases {
        check_steps(name, optimization, &reference["after"][name], Bench::parameters);
        // A scale of the loss that never overflows changes nothing of it.
        let scaled = Optimization { loss_scaling: Some(LossScaling::default()), ..optimization.clone() };
        check_steps(name, &scaled, &reference["after"][name], Bench::parameters);
    }
}

#[test]
fn the_average_of_weights_is_keras() {
    let optimization = Optimization { average: Some(Ema::new(0.8)), ..with(Adam::new(0.01)) };
    let averages = |bench: &Bench| (0..2).map(|i| bench.state(&format!("p{i}/average")).unwrap()).collect();
    check_steps("average", &optimization, &reference()["average"], averages);
}

/// A gradient that overflows because of the scale skips the step: nothing at all changes but the scale.
#[test]
fn a_skipped_step_changes_nothing() {
    let optimizations = [
        with(Adam::new(0.01)),
        with(Adafactor::new(0.02)),
        with(RmsProp::new(0.01).centered(true).momentum(0.5)),
        Optimization { clip: Some(Clip::GlobalNorm(1.0)), average: Some(Ema::new(0.9)), ..with(Adam::new(0.01).eight_bit()) },
    ];
    for optimization in optimizations {
        let scaling = LossScaling { start: 32768.0, growth_steps: 3 };
        let shapes = [vec![70, 80], vec![5]];
        let first: Vec<Vec<f32>> = vec![(0..5600).map(|i| (i as f32 * 0.37).sin() * 1e-3).collect(), vec![0.5, -0.5, 1.0, 2.0, 0.0]];
        let mild: Vec<Vec<f32>> = vec![(0..5600).map(|i| (i as f32 * 0.11).cos() * 1e-2).collect(), vec![0.1; 5]];
        let mut huge = mild.clone();
        huge[1][4] = 1e35;
        for halves in [false, true] {
            let mut scaled = Bench::new(Optimization { loss_scaling: Some(scaling), ..optimization.clone() }, &shapes);
            let mut plain = Bench::new(optimization.clone(), &shapes);
            scaled.set(&first);
            plain.set(&first);
            let scale = |bench: &Bench| bench.state(SCALE).unwrap()[0];
            let kept = |bench: &Bench| -> Vec<(String, Vec<u8>)> {
                bench.everything().into_iter().filter(|(name, _)| !name.starts_with("loss_scale")).collect()
            };

            scaled.step(&mild, halves);
            plain.step(&mild, halves);
            assert_eq!(kept(&scaled), kept(&plain), "a power of two changes no bit");
            let before = kept(&scaled);
            assert_ne!(before[0].1, Bench::new(optimization.clone(), &shapes).everything()[0].1);

            scaled.step(&huge, halves);
            assert_eq!(kept(&scaled), before, "{:?}: the step is skipped", optimization.optimizer);
            assert_eq!((scale(&scaled), scaled.state(SKIPPED).unwrap()[0]), (16384.0, 1.0));

            // The steps that count are numbered as if there had been no other.
            for _ in 0..3 {
                scaled.step(&mild, halves);
            }
            assert_eq!(scale(&scaled), 32768.0, "doubled after three clean steps");
            scaled.step(&huge, halves);
            assert_eq!(scale(&scaled), 16384.0);
            // The eight-bit averages are rounded by chance, and chance goes by the number of all steps.
            let offset = u32::from(optimization.optimizer.name() == "adam8bit");
            plain.drawn += offset;
            for _ in 0..3 {
                plain.step(&mild, halves);
            }
            assert_eq!(kept(&scaled), kept(&plain), "{:?}", optimization.optimizer);
        }
    }
}

/// Averages of eight bits follow those of thirty-two closely, over many steps and very different sizes of gradients.
#[test]
fn eight_bit_adam_follows_adam() {
    let shapes = [vec![64, 100]];
    let first = vec![vec![0.0f32; 6400]];
    let mut wide = Bench::new(with(Adam::new(1e-3)), &shapes);
    let mut narrow = Bench::new(with(Adam::new(1e-3).eight_bit()), &shapes);
    wide.set(&first);
    narrow.set(&first);
    let mut noise = 1u32;
    for _ in 0..600 {
        let gradients: Vec<f32> = (0..6400)
            .map(|i| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let uniform = (noise >> 8) as f32 / 16_777_216.0 - 0.5;
                // Four decades of sizes side by side; a drift, and noise three times as large.
                10f32.powi(-(i % 5)) * (0.3 * (i as f32).sin() + 2.0 * uniform)
            })
            .collect();
        wide.step(std::slice::from_ref(&gradients), false);
        narrow.step(&[gradients], false);
    }
    let (wide, narrow) = (&wide.parameters()[0], &narrow.parameters()[0]);
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let apart = length(&mut wide.iter().zip(narrow).map(|(a, b)| a - b)) / length(&mut wide.iter().copied());
    assert!(apart < 0.10, "after 600 steps the ways differ by {:.1} %", 100.0 * apart);
    let far = |values: &[f32]| length(&mut values.iter().copied());
    assert!((far(narrow) / far(wide) - 1.0).abs() < 0.02, "neither slower nor faster: {} and {}", far(narrow), far(wide));
}

#[test]
fn eight_bit_states_take_two_bytes_a_parameter() {
    let bench = Bench::new(with(Adam::new(1e-3).eight_bit()), &[vec![100, 100], vec![4095]]);
    let size = |name: &str| bench.executor.plan().states.iter().find(|state| state.name == name).map(|state| state.size.0);
    // 10,000 numbers are five blocks of 2,048.
    assert_eq!((size("p0/mean_codes"), size("p0/square_codes")), (Some(10240), Some(10240)));
    assert_eq!((size("p0/mean_scales"), size("p0/square_scales")), (Some(20), Some(20)));
    assert_eq!((size("p1/mean_codes"), size("p1/mean")), (None, Some(4 * 4095)));
}
