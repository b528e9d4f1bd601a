//! Measured cost model: nodes of small training steps are timed, and other nodes are estimated from similar ones.
//!
//! The planner asks a [`CostModel`] how long a node takes. [`CostTable`] answers from measurements: it looks up samples
//! of the same class with the most similar sizes, and scales their times. The step times of runs
//! [refine](CostTable::refine) it. Without measurements [`Rates`] answers from three built-in numbers, so that plans
//! are reproducible.

mod bandwidth;
mod cache;
mod features;
mod node_timer;
mod numbers;
mod profile;
mod recorded;
#[cfg(test)]
mod recorded_gpu;
mod refine;
mod step_timer;

use features::{Features, features};
use plimsoll_core::device::Device;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::{CostModel, Rates};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use bandwidth::Bandwidths;
pub use cache::{cache_dir, load, refine, save};
pub(crate) use node_timer::{FLUSH_BYTES, NodeTimer};
pub(crate) use profile::{MAX_NODE_BYTES, NODE_DISTANCE, StepNodes, max_step_bytes, profile_own_step, profile_step, small_step_rest};
pub(crate) use recorded::record_rates;
pub use recorded::{RecordedRates, recorded_rates};
use refine::MeasuredStep;
pub use refine::{Correction, StepCosts};
pub use step_timer::{NodeTime, StepProfile};
pub(crate) use step_timer::{kernel_sources, profile};

/// The class of what a step takes beside its nodes, in [StepCosts].
pub(crate) const STEP: &str = "start of a step";

/// The number of nearest neighbours.
const NEIGHBOURS: usize = 6;

/// How samples are weighted by their squared distance.
struct Weighting {
    /// Distances below this weigh alike: timings are no more precise.
    smoothing: f64,
    /// The distance at which the average of a class counts, if it does.
    average: Option<f64>,
    /// Weights are this power of inverse distances.
    power: i32,
}

/// On the CPU, where a node takes as long as other load lets it.
const ON_CPU: Weighting = Weighting { smoothing: 0.1, average: None, power: 1 };

/// On a GPU, whose clock is precise. How long a product takes for its size depends on its shape by more than an order
/// of magnitude, so that a near sample says more than several that are far.
const ON_GPU: Weighting = Weighting { smoothing: 0.01, average: Some(4.0), power: 2 };

/// Weight of the batch-dependent size in the distance between matrix products or convolutions: time is proportional to
/// rows more reliably than to channels. Memory-bound nodes depend on it fully, because of caches.
const BATCH_SIZE_WEIGHT: f64 = 0.4;

/// The most that a step takes beside its nodes, in seconds; more is a disturbance.
const MAX_START: f64 = 5e-5;

/// Measured run times of a device, as a cost model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostTable {
    /// The device, its number of threads and the version of this program.
    pub key: String,
    /// Measured bandwidths.
    pub transfers: Bandwidths,
    /// Base rates: samples are stored relative to them.
    #[serde(default = "cpu_rates")]
    base: Rates,
    /// Whether it is a GPU, whose built-in rates differ by op and type: samples are relative to those instead.
    #[serde(default)]
    on_gpu: bool,
    /// What a step of a GPU takes beside its nodes: its start, and launches that the smallest nodes share.
    #[serde(default)]
    start_s: f64,
    samples: BTreeMap<String, Vec<TimedNode>>,
    /// The step times of runs.
    #[serde(default)]
    steps: Vec<MeasuredStep>,
    /// Factors that follow from them.
    #[serde(default)]
    correction: Correction,
}

/// One timed node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TimedNode {
    /// Logarithms of its sizes.
    sizes: Vec<f32>,
    seconds: f32,
    work: f32,
    bytes: f32,
    /// Seconds by built-in rates, on a GPU.
    #[serde(default, skip_serializing_if = "is_zero")]
    built_in: f32,
}

fn is_zero(seconds: &f32) -> bool {
    *seconds == 0.0
}

/// The measured rates of one class of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassRates {
    /// The class of nodes.
    pub class: String,
    /// The number of samples.
    pub nodes: usize,
    /// Operations per second: median and maximum.
    pub flops_per_s: (f64, f64),
    /// Bytes per second: median and maximum.
    pub bytes_per_s: (f64, f64),
}

/// The key of a cost table: the device, and the version of this program, whose kernels were measured.
pub fn key(device: &dyn Device) -> String {
    format!("{} · {} · {}", device.name(), device.description(), env!("CARGO_PKG_VERSION"))
}

impl TimedNode {
    /// The squared distance between its sizes and those of a node.
    fn distance(&self, features: &Features) -> f64 {
        self.sizes.iter().zip(&features.sizes).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum()
    }

    /// The same, with less weight on the first size, which grows with the batch, for compute-bound nodes.
    fn weighted_distance(&self, features: &Features) -> f64 {
        match (features.compute_bound, self.sizes.first().zip(features.sizes.first())) {
            (true, Some((own, other))) => {
                self.distance(features) - (1.0 - BATCH_SIZE_WEIGHT * BATCH_SIZE_WEIGHT) * (f64::from(*own) - other).powi(2)
            }
            _ => self.distance(features),
        }
    }

    /// The logarithm of measured over base time.
    fn factor(&self, base: &Rates) -> f64 {
        (f64::from(self.seconds) / self.base(base)).ln()
    }

    /// The base time.
    fn base(&self, base: &Rates) -> f64 {
        match self.built_in {
            0.0 => base_time(base, f64::from(self.work), f64::from(self.bytes)),
            built_in => f64::from(built_in),
        }
    }
}

/// Four digits exceed the precision of the measurement and keep the file small.
fn rounded(x: f64) -> f32 {
    format!("{x:.3e}").parse().unwrap_or(x as f32)
}

/// The time at base rates.
fn base_time(base: &Rates, work: f64, bytes: f64) -> f64 {
    (work / base.flops_per_s).max(bytes / base.bytes_per_s) + base.step_s
}

/// The base rates of a CPU, where launching a node is a function call.
fn cpu_rates() -> Rates {
    Rates { step_s: 2e-7, ..Rates::default() }
}

impl Default for CostTable {
    fn default() -> CostTable {
        CostTable {
            key: String::new(),
            transfers: Bandwidths::default(),
            base: cpu_rates(),
            on_gpu: false,
            start_s: 0.0,
            samples: BTreeMap::new(),
            steps: Vec::new(),
            correction: Correction::default(),
        }
    }
}

impl CostTable {
    /// An empty table for a device.
    pub(crate) fn of(device: &dyn Device) -> CostTable {
        let on_gpu = !device.capabilities().shares_host_memory;
        let base = if on_gpu { device.capabilities().rates } else { cpu_rates() };
        CostTable { key: key(device), base, on_gpu, ..CostTable::default() }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.values().map(Vec::len).sum()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The measured rates by class of nodes.
    pub fn rates(&self) -> Vec<ClassRates> {
        let middle_and_most = |samples: &[TimedNode], amount: &dyn Fn(&TimedNode) -> f32| {
            let mut rates: Vec<f64> = samples.iter().map(|sample| f64::from(amount(sample) / sample.seconds)).collect();
            rates.sort_by(f64::total_cmp);
            (rates[rates.len() / 2], rates[rates.len() - 1])
        };
        let rate = |(class, samples): (&String, &Vec<TimedNode>)| ClassRates {
            class: class.clone(),
            nodes: samples.len(),
            flops_per_s: middle_and_most(samples, &|sample| sample.work),
            bytes_per_s: middle_and_most(samples, &|sample| sample.bytes),
        };
        self.samples.iter().filter(|(_, samples)| !samples.is_empty()).map(rate).collect()
    }

    /// Whether there is a sample within a distance.
    fn has_sample_within(&self, features: &Features, max_distance: f64) -> bool {
        self.samples
            .get(&features.class)
            .is_some_and(|samples| samples.iter().any(|sample| sample.distance(features) <= max_distance * max_distance))
    }

    /// The squared distance from a node to the nearest sample of its class.
    fn nearest_sample(&self, class: &str, features: &Features) -> f64 {
        self.samples.get(class).into_iter().flatten().map(|sample| sample.distance(features)).fold(f64::INFINITY, f64::min)
    }

    /// Seconds at base rates.
    fn base_seconds(&self, features: &Features) -> f64 {
        if self.on_gpu { features.gpu_seconds } else { base_time(&self.base, features.work, features.bytes) }
    }

    /// The factors on predicted times.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }

    /// The same measurements with another correction.
    #[must_use]
    pub fn with_correction(self, correction: Correction) -> CostTable {
        CostTable { correction, ..self }
    }

    /// What a step takes beside its nodes, without correction.
    pub(crate) fn uncorrected_start(&self) -> f64 {
        self.start_s
    }

    /// The class of a node and its seconds as measured, without correction.
    pub(crate) fn uncorrected(&self, graph: &Graph, node: &Node, rows: usize) -> (String, f64) {
        let features = features(graph, node, rows);
        let seconds = self.base_seconds(&features) * self.factor(&features).unwrap_or(0.0).exp();
        (features.class, seconds)
    }

    /// Sets what a step takes beside its nodes, from what small steps took more than their nodes: the middle one
    /// counts.
    pub(crate) fn set_start(&mut self, mut rests: Vec<f64>) {
        rests.sort_by(f64::total_cmp);
        self.start_s = rests.get(rests.len() / 2).map_or(0.0, |rest| rest.clamp(0.0, MAX_START));
    }

    fn add(&mut self, features: &Features, seconds: f64) {
        let sizes = features.sizes.iter().map(|size| rounded(*size)).collect();
        let built_in = if self.on_gpu { rounded(features.gpu_seconds) } else { 0.0 };
        let (work, bytes) = (rounded(features.work), rounded(features.bytes));
        let sample = TimedNode { sizes, seconds: rounded(seconds), work, bytes, built_in };
        self.samples.entry(features.class.clone()).or_default().push(sample);
    }

    /// The correction factor by inverse-distance weighting of the nearest samples.
    fn factor(&self, features: &Features) -> Option<f64> {
        // Classes without samples in 16 bits or TF32 use those in 32 bits.
        let single = features.class.trim_end_matches(features::HALF_PRECISION).trim_end_matches(features::TF32);
        let known = self.samples.get(&features.class).or_else(|| self.samples.get(single));
        let known = known?;
        let mut nearest = [(f64::INFINITY, 0.0); NEIGHBOURS];
        for sample in known {
            let distance = sample.weighted_distance(features);
            if distance < nearest[NEIGHBOURS - 1].0 {
                nearest[NEIGHBOURS - 1] = (distance, sample.factor(&self.base));
                nearest.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        // Far from all samples, a GPU is as fast as on average: the largest nodes, which take most of the time, count
        // most.
        let Weighting { smoothing, average, power } = if self.on_gpu { ON_GPU } else { ON_CPU };
        let average = average.map(|distance| {
            let sum = |of: &dyn Fn(&TimedNode) -> f64| known.iter().map(of).sum::<f64>();
            (distance, (sum(&|sample| f64::from(sample.seconds)) / sum(&|sample| sample.base(&self.base))).ln())
        });
        let finite = nearest.iter().copied().chain(average).filter(|(distance, factor)| distance.is_finite() && factor.is_finite());
        let (sum, weight) = finite.fold((0.0, 0.0), |(sum, weight), (distance, factor)| {
            let own = (distance + smoothing).powi(-power);
            (sum + own * factor, weight + own)
        });
        (weight > 0.0).then(|| sum / weight)
    }
}

impl CostModel for CostTable {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        let (class, seconds) = self.uncorrected(graph, node, rows);
        seconds * self.correction.factor(&class)
    }

    fn start_seconds(&self) -> f64 {
        self.start_s * self.correction.factor(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::expr::Unary;
    use plimsoll_core::graph::{Init, StateKind};
    use plimsoll_core::{Shape, TensorType};

    fn negation(width: usize) -> (Graph, Features) {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32(Shape::batch_of([width])));
        let y = graph.unary(Unary::Neg, x).unwrap();
        let features = features(&graph, graph.producer(y), 1);
        graph.output("y", y);
        (graph, features)
    }

    #[test]
    fn measured_nodes_take_their_time_and_similar_ones_scale() {
        let mut costs = CostTable::default();
        for width in [1000, 100_000] {
            costs.add(&negation(width).1, width as f64 * 1e-9);
        }
        let seconds = |width: usize| {
            let (graph, _) = negation(width);
            let node = graph.producer(graph.outputs()[0].1).clone();
            costs.seconds(&graph, &node, 1)
        };
        for width in [1000, 100_000] {
            let ratio = seconds(width) / (width as f64 * 1e-9);
            assert!((0.9..1.1).contains(&ratio), "{width}: {ratio}");
        }
        // In between and beyond, times scale with the work.
        assert!(seconds(10_000) > 5.0 * seconds(1000) && seconds(10_000_000) > 50.0 * seconds(100_000));
    }

    #[test]
    fn classes_without_samples_use_base_rates() {
        let (graph, features) = negation(1000);
        let node = graph.producer(graph.outputs()[0].1).clone();
        assert_eq!(CostTable::default().seconds(&graph, &node, 1), base_time(&cpu_rates(), features.work, features.bytes));
    }

    fn product(rows: usize, units: usize) -> (Graph, Features) {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32(Shape::batch_of([units])));
        let state = graph.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed([units, units])), Init::Constant(0.0)).unwrap();
        let y = graph.matmul(x, state).unwrap();
        let features = features(&graph, graph.producer(y), rows);
        graph.output("y", y);
        (graph, features)
    }

    #[test]
    fn a_large_product_is_estimated_from_one_with_fewer_rows() {
        let mut costs = CostTable::default();
        let (like, other) = (product(128, 512).1, product(512, 256).1);
        let fast = base_time(&cpu_rates(), like.work, like.bytes);
        costs.add(&like, fast);
        costs.add(&other, 4.0 * base_time(&cpu_rates(), other.work, other.bytes));
        let (graph, large) = product(512, 512);
        let node = graph.producer(graph.outputs()[0].1).clone();
        let factor = costs.seconds(&graph, &node, 512) / base_time(&cpu_rates(), large.work, large.bytes);
        assert!((1.0..1.9).contains(&factor), "{factor}");
    }

    #[test]
    fn a_correction_scales_predictions_of_its_class() {
        let (graph, features) = negation(1000);
        let node = graph.producer(graph.outputs()[0].1).clone();
        let mut costs = CostTable::default();
        costs.add(&features, 1e-6);
        let before = costs.seconds(&graph, &node, 1);
        for (classes, factor) in [(vec![], 3.0), (vec![("pointwise".to_string(), 2.0)], 2.0), (vec![("sum".to_string(), 2.0)], 3.0)] {
            let corrected = costs.clone().with_correction(Correction { overall: 3.0, classes: classes.into_iter().collect() });
            assert!((corrected.seconds(&graph, &node, 1) / before - factor).abs() < 1e-6);
        }
    }

    #[test]
    fn a_cost_table_round_trips_through_json() {
        let mut costs = CostTable { key: "a device".to_string(), ..CostTable::default() };
        costs.add(&negation(1234).1, 1.5e-6);
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<CostTable>(&text).unwrap(), costs);
    }
}
