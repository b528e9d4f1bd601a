//! How fast a device is: nodes of small training steps timed by themselves, and what that says about any other node.
//!
//! Planning asks a [`CostModel`] how long a node takes. [`CostTable`] answers from what was measured: it looks for nodes of the same kind and the most
//! similar sizes, and scales their times. Without measurements [`Rates`] answers from three numbers that are the same everywhere, so that
//! plans are too.

mod bandwidth;
mod cache;
mod features;
mod node_timer;
mod profile;
mod step_timer;

use features::{Features, features};
use plimsoll_core::device::Device;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::recompute::{CostModel, Rates};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use bandwidth::Bandwidths;
pub use cache::{cache_dir, load, save};
pub(crate) use node_timer::{FLUSH, NodeTimer};
pub(crate) use profile::{MAX_NODE_BYTES, MAX_STEP_BYTES, Pass, profile_nodes, profile_own_step, profile_step};

/// How many of the most similar nodes are asked.
const NEIGHBOURS: usize = 6;

/// Sizes nearer than this, as the square of the logarithm of a ratio, count alike: times are not known better.
const NEAR: f64 = 0.1;

/// How far apart amounts count in products and convolutions: three times as many rows take three times as long, more surely than other channels take what their work says.
/// What only moves bytes depends on how many there are, because of caches.
const AMOUNT: f64 = 0.4;

/// What a device was measured to take for its work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostTable {
    /// Which device, with how many threads, by which version of this program.
    pub key: String,
    /// How fast bytes go to it, back, and to and from files.
    pub transfers: Bandwidths,
    /// What times are compared with before they are carried over to other sizes.
    #[serde(default = "processor")]
    base: Rates,
    samples: BTreeMap<String, Vec<Sample>>,
}

/// One node that was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sample {
    /// Logarithms of its sizes.
    sizes: Vec<f32>,
    seconds: f32,
    work: f32,
    bytes: f32,
    /// Whether it was timed at another time too.
    #[serde(default, skip)]
    twice: bool,
}

/// The rates of one kind of work.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassRates {
    /// The features.
    pub class: String,
    /// How many nodes of it were timed.
    pub nodes: usize,
    /// Operations a second: the median, and the most.
    pub flops_per_s: (f64, f64),
    /// Bytes a second: the median, and the most.
    pub bytes_per_s: (f64, f64),
}

/// What distinguishes one measured device from another: what it is, and the version of this program, whose kernels were measured.
pub fn key(device: &dyn Device) -> String {
    format!("{} · {} · {}", device.name(), device.description(), env!("CARGO_PKG_VERSION"))
}

impl Sample {
    /// The square of how far its sizes are from those of a features.
    fn distance(&self, features: &Features) -> f64 {
        self.sizes.iter().zip(&features.sizes).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum()
    }

    /// The same, but that of what computes more than it moves it counts less how much there is: the first of the sizes, which grows with the batch.
    fn weighted_distance(&self, features: &Features) -> f64 {
        match (features.computes, self.sizes.first().zip(features.sizes.first())) {
            (true, Some((own, other))) => self.distance(features) - (1.0 - AMOUNT * AMOUNT) * (f64::from(*own) - other).powi(2),
            _ => self.distance(features),
        }
    }

    /// What it took another time: the least counts.
    fn repeat(&mut self, seconds: f64) {
        (self.seconds, self.twice) = (self.seconds.min(short(seconds)), true);
    }

    /// The logarithm of how many times longer it took than at plain rates.
    fn factor(&self, base: &Rates) -> f64 {
        (f64::from(self.seconds) / plain(base, f64::from(self.work), f64::from(self.bytes))).ln()
    }
}

/// Four digits are more than times are good for, and keep the file small.
fn short(x: f64) -> f32 {
    format!("{x:.3e}").parse().unwrap_or(x as f32)
}

/// What work would take at plain rates.
fn plain(base: &Rates, work: f64, bytes: f64) -> f64 {
    (work / base.flops_per_s).max(bytes / base.bytes_per_s) + base.step_s
}

/// The plain rates of a processor, where a node is started by a call.
fn processor() -> Rates {
    Rates { step_s: 2e-7, ..Rates::default() }
}

impl Default for CostTable {
    fn default() -> CostTable {
        CostTable { key: String::new(), transfers: Bandwidths::default(), base: processor(), samples: BTreeMap::new() }
    }
}

impl CostTable {
    /// Of a device, with nothing measured yet.
    pub(crate) fn of(device: &dyn Device) -> CostTable {
        let base = if device.shares_host_memory() { processor() } else { device.rates() };
        CostTable { key: key(device), base, ..CostTable::default() }
    }

    /// How many nodes were timed.
    pub fn len(&self) -> usize {
        self.samples.values().map(Vec::len).sum()
    }

    /// Whether nothing was timed.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// What was measured, by kind of work.
    pub fn rates(&self) -> Vec<ClassRates> {
        let middle_and_most = |samples: &[Sample], amount: &dyn Fn(&Sample) -> f32| {
            let mut rates: Vec<f64> = samples.iter().map(|sample| f64::from(amount(sample) / sample.seconds)).collect();
            rates.sort_by(f64::total_cmp);
            (rates[rates.len() / 2], rates[rates.len() - 1])
        };
        let rate = |(class, samples): (&String, &Vec<Sample>)| ClassRates {
            class: class.clone(),
            nodes: samples.len(),
            flops_per_s: middle_and_most(samples, &|sample| sample.work),
            bytes_per_s: middle_and_most(samples, &|sample| sample.bytes),
        };
        self.samples.iter().filter(|(_, samples)| !samples.is_empty()).map(rate).collect()
    }

    /// Whether a node was timed whose sizes are at most this far away.
    fn has_sample_within(&self, features: &Features, away: f64) -> bool {
        self.samples.get(&features.class).is_some_and(|samples| samples.iter().any(|sample| sample.distance(features) <= away * away))
    }

    /// The sample of a node that was timed only once and whose sizes are at most this far away.
    fn sample_timed_once(&mut self, features: &Features, away: f64) -> Option<&mut Sample> {
        let samples = self.samples.get_mut(&features.class)?;
        samples.iter_mut().find(|sample| sample.distance(features) <= away * away).filter(|sample| !sample.twice)
    }

    fn add(&mut self, features: &Features, seconds: f64) {
        let sizes = features.sizes.iter().map(|size| short(*size)).collect();
        let sample = Sample { sizes, seconds: short(seconds), work: short(features.work), bytes: short(features.bytes), twice: false };
        self.samples.entry(features.class.clone()).or_default().push(sample);
    }

    /// The factor of a kind from those of the nearest ones, the nearer the weightier.
    fn factor(&self, features: &Features) -> Option<f64> {
        // What was not timed in 16 bits is taken to be as fast as in 32.
        let known = self.samples.get(&features.class).or_else(|| self.samples.get(features.class.trim_end_matches(features::NARROW)));
        let mut nearest = [(f64::INFINITY, 0.0); NEIGHBOURS];
        for sample in known? {
            let distance = sample.weighted_distance(features);
            if distance < nearest[NEIGHBOURS - 1].0 {
                nearest[NEIGHBOURS - 1] = (distance, sample.factor(&self.base));
                nearest.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        let (sum, weight) =
            nearest.iter().filter(|(distance, _)| distance.is_finite()).fold((0.0, 0.0), |(sum, weight), (distance, factor)| {
                let own = 1.0 / (distance + NEAR);
                (sum + own * factor, weight + own)
            });
        (weight > 0.0).then(|| sum / weight)
    }
}

impl CostModel for CostTable {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        let features = features(graph, node, rows);
        plain(&self.base, features.work, features.bytes) * self.factor(&features).unwrap_or(0.0).exp()
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
    fn a_node_takes_what_was_measured_and_likes_of_it_in_proportion() {
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
        // In between, and far beyond, times grow with the work.
        assert!(seconds(10_000) > 5.0 * seconds(1000) && seconds(10_000_000) > 50.0 * seconds(100_000));
    }

    #[test]
    fn what_was_never_timed_is_judged_by_plain_rates() {
        let (graph, features) = negation(1000);
        let node = graph.producer(graph.outputs()[0].1).clone();
        assert_eq!(CostTable::default().seconds(&graph, &node, 1), plain(&processor(), features.work, features.bytes));
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
    fn a_large_product_is_judged_by_its_like_with_fewer_rows() {
        let mut costs = CostTable::default();
        let (like, other) = (product(128, 512).1, product(512, 256).1);
        let fast = plain(&processor(), like.work, like.bytes);
        costs.add(&like, fast);
        costs.add(&other, 4.0 * plain(&processor(), other.work, other.bytes));
        let (graph, large) = product(512, 512);
        let node = graph.producer(graph.outputs()[0].1).clone();
        let factor = costs.seconds(&graph, &node, 512) / plain(&processor(), large.work, large.bytes);
        assert!((1.0..1.9).contains(&factor), "{factor}");
    }

    #[test]
    fn of_two_times_of_a_node_the_least_counts() {
        let mut costs = CostTable::default();
        let features = negation(5000).1;
        costs.add(&features, 3e-6);
        costs.sample_timed_once(&features, 0.02).expect("it was timed once").repeat(2e-6);
        assert!(costs.sample_timed_once(&features, 0.02).is_none(), "it was timed twice");
        assert!((costs.samples[&features.class][0].seconds - 2e-6).abs() < 1e-9);
        costs.samples.get_mut(&features.class).unwrap()[0].repeat(5e-6);
        assert!((costs.samples[&features.class][0].seconds - 2e-6).abs() < 1e-9);
    }

    #[test]
    fn measured_speeds_survive_their_file() {
        let mut costs = CostTable { key: "a device".to_string(), ..CostTable::default() };
        costs.add(&negation(1234).1, 1.5e-6);
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<CostTable>(&text).unwrap(), costs);
    }
}
