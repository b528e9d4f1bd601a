//! Refines a cost table by the step times of runs.
//!
//! Nodes are timed one by one, and in a step they find the caches as other nodes leave them. So a run's measured step
//! time is compared with its prediction, split by class of nodes, and factors are fitted to the comparisons of the last
//! runs: one for everything (on the CPU only), and one per class. Both are regularized towards 1: a class that takes a
//! small part of a step hardly moves, and one run cannot turn the table around.

use super::CostTable;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The number of runs that are remembered.
const MAX_STEPS: usize = 48;

/// Runs of fewer steps tell too little.
const MIN_STEPS: u64 = 3;

/// Standard deviations of the logarithms before any run: of the factor of everything, of the factor of a class, and of
/// a step time.
const OVERALL_DEVIATION: f64 = 1.0;
const CLASS_DEVIATION: f64 = 0.4;
/// Of the factor of a class on a GPU. There is none of everything: nothing slows all classes down alike, and small
/// steps must not move large ones.
const GPU_CLASS_DEVIATION: f64 = 0.2;
const STEP_DEVIATION: f64 = 0.03;

/// The weight of the logarithm of median over minimum in the standard deviation of a step time: of a run whose steps
/// vary, less is known.
const SPREAD_WEIGHT: f64 = 0.2;

/// Residuals beyond this many standard deviations count less (Huber).
const OUTLIER: f64 = 2.0;

/// Iterations of the fit, which converges in a few.
const ITERATIONS: usize = 12;

/// The bounds of a factor.
const MAX_FACTOR: f64 = 8.0;

/// When a run is repeated, its time moves by this part of the logarithm towards the new one.
const BLEND: f64 = 0.5;

/// And it moves by at most this factor upwards: a busy machine only ever adds to a time.
const MAX_SLOWDOWN: f64 = 1.25;

/// The predicted seconds of a step by class of nodes, without [correction](Correction): what a measured step time is
/// compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepCosts {
    /// What ran, for people.
    pub name: String,
    /// Seconds per class.
    pub(crate) classes: BTreeMap<String, f32>,
    /// The prediction as it was planned, with correction.
    #[serde(skip)]
    pub predicted_s: f64,
}

/// A measured step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredStep {
    #[serde(flatten)]
    costs: StepCosts,
    /// The median, in seconds.
    seconds: f32,
    /// The logarithm of median over minimum.
    spread: f32,
}

/// Factors on the times of a cost table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Of classes that have no factor of their own.
    pub overall: f32,
    /// Of each class.
    pub classes: BTreeMap<String, f32>,
}

impl Default for Correction {
    fn default() -> Correction {
        Correction { overall: 1.0, classes: BTreeMap::new() }
    }
}

impl Correction {
    /// The factor of a class.
    pub(super) fn factor(&self, class: &str) -> f64 {
        f64::from(*self.classes.get(class).unwrap_or(&self.overall))
    }

    /// Whether it changes nothing.
    pub fn is_none(&self) -> bool {
        *self == Correction::default()
    }

    /// Whether all factors can be used; a file may be damaged.
    pub(super) fn is_valid(&self) -> bool {
        self.classes.values().chain([&self.overall]).all(|factor| (1.0 / MAX_FACTOR..=MAX_FACTOR).contains(&f64::from(*factor)))
    }
}

impl CostTable {
    /// Adds the measured step time of a run, of `steps` steps with this median and minimum in seconds, and fits the
    /// correction. Returns whether that changed anything: runs of few steps do not.
    pub fn refine(&mut self, costs: &StepCosts, steps: u64, (median, fastest): (f64, f64)) -> bool {
        let raw: f64 = costs.classes.values().map(|seconds| f64::from(*seconds)).sum();
        if steps < MIN_STEPS || raw <= 0.0 || !(fastest > 0.0 && median.is_finite()) {
            return false;
        }
        let spread = (median / fastest).ln().clamp(0.0, 2.0) as f32;
        let known = self.steps.iter().position(|step| step.costs.classes == costs.classes);
        let seconds = match known.map(|at| self.steps.remove(at)) {
            None => median,
            Some(before) => blended(f64::from(before.seconds), median),
        };
        self.steps.push(MeasuredStep { costs: costs.clone(), seconds: super::rounded(seconds), spread });
        let most = self.steps.len().saturating_sub(MAX_STEPS);
        self.steps.drain(..most);
        self.correction = fit(&self.steps, if self.on_gpu { (0.0, GPU_CLASS_DEVIATION) } else { (OVERALL_DEVIATION, CLASS_DEVIATION) });
        true
    }
}

/// The time of a run that is repeated.
fn blended(before: f64, now: f64) -> f64 {
    before * (BLEND * (now / before).ln().min(MAX_SLOWDOWN.ln())).exp()
}

/// The most likely factors: the logarithm of a step time is that of the sum over its classes, each times the factor of
/// everything and its own, both of which have these standard deviations before any run.
fn fit(steps: &[MeasuredStep], (overall_deviation, class_deviation): (f64, f64)) -> Correction {
    let classes: BTreeSet<&str> = steps.iter().flat_map(|step| step.costs.classes.keys()).map(String::as_str).collect();
    let (overall_variance, class_variance) = (overall_deviation.powi(2), class_deviation.powi(2));
    let (mut overall, mut of_class) = (0.0_f64, vec![0.0_f64; classes.len()]);
    for _ in 0..ITERATIONS {
        // Linearized around the factors so far: the share of every class in the time, and what the factors should add
        // up to.
        let mut shares: Vec<Vec<f64>> = Vec::with_capacity(steps.len());
        let (mut targets, mut noise) = (Vec::with_capacity(steps.len()), Vec::with_capacity(steps.len()));
        for step in steps {
            let seconds = |class: &&str| step.costs.classes.get(*class).map_or(0.0, |seconds| f64::from(*seconds));
            let times: Vec<f64> = classes.iter().zip(&of_class).map(|(class, own)| seconds(class) * (overall + own).exp()).collect();
            let all: f64 = times.iter().sum();
            let share: Vec<f64> = times.iter().map(|time| time / all).collect();
            let residual = (f64::from(step.seconds) / all).ln();
            let deviation = STEP_DEVIATION + SPREAD_WEIGHT * f64::from(step.spread);
            noise.push(deviation.powi(2) * (residual.abs() / (OUTLIER * deviation)).max(1.0));
            targets.push(residual + overall + share.iter().zip(&of_class).map(|(share, own)| share * own).sum::<f64>());
            shares.push(share);
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut system: Vec<Vec<f64>> =
            shares.iter().map(|a| shares.iter().map(|b| overall_variance + class_variance * dot(a, b)).collect::<Vec<f64>>()).collect();
        system.iter_mut().enumerate().for_each(|(i, row)| row[i] += noise[i]);
        let weights = solve(system, targets);
        overall = overall_variance * weights.iter().sum::<f64>();
        for (i, own) in of_class.iter_mut().enumerate() {
            *own = class_variance * weights.iter().zip(&shares).map(|(weight, share)| weight * share[i]).sum::<f64>();
        }
    }
    let factor = |log: f64| super::rounded(log.exp().clamp(1.0 / MAX_FACTOR, MAX_FACTOR));
    let own = classes.iter().zip(&of_class).map(|(class, own)| (class.to_string(), factor(overall + own)));
    Correction { overall: factor(overall), classes: own.collect() }
}

/// Solves a symmetric positive definite system by elimination.
fn solve(mut system: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for i in 0..n {
        for j in i + 1..n {
            let factor = system[j][i] / system[i][i];
            let (above, below) = system.split_at_mut(j);
            below[0][i..].iter_mut().zip(&above[i][i..]).for_each(|(x, pivot)| *x -= factor * pivot);
            right[j] -= factor * right[i];
        }
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| system[i][j] * right[j]).sum();
        right[i] = (right[i] - known) / system[i][i];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, classes: &[(&str, f32)]) -> StepCosts {
        let classes = classes.iter().map(|(class, seconds)| (class.to_string(), *seconds)).collect();
        StepCosts { name: name.to_string(), classes, predicted_s: 0.0 }
    }

    fn predicted(costs: &CostTable, step: &StepCosts) -> f64 {
        step.classes.iter().map(|(class, seconds)| f64::from(*seconds) * costs.correction.factor(class)).sum()
    }

    #[test]
    fn a_run_moves_its_own_prediction_to_what_was_measured() {
        for measured in [0.2, 0.9, 2.7] {
            let mut costs = CostTable::default();
            let run = step("mlp", &[("matmul", 0.7), ("pointwise", 0.3)]);
            assert!(costs.refine(&run, 100, (measured, measured)));
            let ratio = predicted(&costs, &run) / measured;
            assert!((0.95..1.05).contains(&ratio), "{measured}: {ratio}");
            // What was not measured moves too, but a network of other classes is not known as well.
            let other = step("conv", &[("conv2d", 1.0)]);
            let moved = predicted(&costs, &other);
            assert!(
                (moved - 1.0).signum() == (measured - 1.0).signum() && (moved - 1.0).abs() <= (measured - 1.0).abs(),
                "{measured}: {moved}"
            );
        }
    }

    #[test]
    fn runs_that_differ_tell_the_classes_apart() {
        let mut costs = CostTable::default();
        // Products take half of their prediction, everything else twice.
        let runs = [
            step("a", &[("matmul", 0.9), ("pointwise", 0.1)]),
            step("b", &[("matmul", 0.2), ("pointwise", 0.8)]),
            step("c", &[("matmul", 0.5), ("pointwise", 0.5)]),
        ];
        let truth = |run: &StepCosts| f64::from(0.5 * run.classes["matmul"] + 2.0 * run.classes["pointwise"]);
        for run in &runs[..2] {
            costs.refine(run, 100, (truth(run), truth(run)));
        }
        for run in &runs {
            let ratio = predicted(&costs, run) / truth(run);
            assert!((0.85..1.15).contains(&ratio), "{}: {ratio}", run.name);
        }
        // The order of runs does not matter.
        let mut other = CostTable::default();
        for run in runs[..2].iter().rev() {
            other.refine(run, 100, (truth(run), truth(run)));
        }
        for (class, factor) in &costs.correction.classes {
            assert!((other.correction.classes[class] / factor - 1.0).abs() < 0.01, "{class}");
        }
    }

    #[test]
    fn a_disturbed_run_counts_less() {
        let runs: Vec<StepCosts> = (0..5).map(|i| step("run", &[("matmul", 1.0), ("pointwise", 0.01 * i as f32)])).collect();
        let mut costs = CostTable::default();
        for (i, run) in runs.iter().enumerate() {
            // One of them on a machine with other load.
            let (median, fastest) = if i == 2 { (9.0, 3.0) } else { (1.0, 1.0) };
            costs.refine(run, 100, (median, fastest));
        }
        let ratio = predicted(&costs, &runs[0]);
        assert!((0.9..1.15).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_repeated_run_is_blended_and_short_ones_do_not_count() {
        let mut costs = CostTable::default();
        let run = step("mlp", &[("matmul", 1.0)]);
        assert!(!costs.refine(&run, 2, (1.0, 1.0)) && !costs.refine(&run, 100, (f64::INFINITY, 1.0)));
        assert!(costs.correction.is_none());
        costs.refine(&run, 100, (1.0, 1.0));
        costs.refine(&run, 100, (50.0, 50.0));
        assert_eq!(costs.steps.len(), 1);
        assert!((f64::from(costs.steps[0].seconds) - MAX_SLOWDOWN.sqrt()).abs() < 1e-3, "a slow run moves it little");
        costs.refine(&run, 100, (0.5, 0.5));
        assert!(f64::from(costs.steps[0].seconds) < 0.8, "a fast one moves it half the way");
        assert!(costs.correction.is_valid());
    }

    #[test]
    fn old_runs_are_forgotten_and_factors_are_bounded() {
        let mut costs = CostTable::default();
        for i in 0..2 * MAX_STEPS {
            costs.refine(&step("run", &[("matmul", 1.0), ("sum", 0.001 * i as f32)]), 100, (1e6, 1e6));
        }
        assert_eq!(costs.steps.len(), MAX_STEPS);
        assert!(costs.correction.is_valid() && f64::from(costs.correction.overall) <= MAX_FACTOR);
    }
}
