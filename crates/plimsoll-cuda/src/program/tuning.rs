//! Measures the algorithms of libraries when a program is loaded, once per request and GPU.
//!
//! Candidates run in the workspace that the plan has for the library's own first choice, on the operands' planned
//! addresses in the arena, whose contents are dead between steps. Another one than the first is taken only where it is
//! clearly faster, so that small variations of a measurement do not decide.

use super::timing::Clock;
use crate::algorithms::measured::Recorded;
use crate::libraries::cublaslt::{Algorithm, CublasLt, Matmul, MatmulRequest};
use crate::libraries::cudnn::{ConvRequest, Convolution, Cudnn};
use crate::runtime::state::{DeviceState, lock};
use cudarc::driver::result;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Candidates per request.
const MATMULS: usize = 8;
const CONVOLUTIONS: usize = 6;

/// A candidate must take at most this part of the first one's time.
const GAIN: f64 = 0.97;

/// A candidate is repeated for about this many seconds, and that several times; the fastest counts.
const SPAN: f64 = 400e-6;
const MOST: usize = 24;
const ROUNDS: usize = 3;

/// A candidate that takes longer than this many times the best so far is not repeated.
const HOPELESS: f64 = 1.5;

/// Selects algorithms for a program that is being loaded.
pub(super) struct Tuner<'a> {
    shared: &'a DeviceState,
    /// Where measuring may write.
    arena: Range<u64>,
    filled: bool,
    /// Execution plans by request: layers of equal shapes share one.
    convolutions: HashMap<String, Rc<Convolution>>,
    /// The library's first choice by request, which takes a millisecond.
    products: HashMap<String, Algorithm>,
}

impl<'a> Tuner<'a> {
    /// For a program in an arena of this start and size.
    pub fn new(shared: &'a DeviceState, (start, size): (u64, u64)) -> Tuner<'a> {
        Tuner { shared, arena: start..start + size, filled: false, convolutions: HashMap::new(), products: HashMap::new() }
    }

    /// A product by the first choice of the library. None if it has no algorithm.
    pub fn product(&mut self, library: &Arc<CublasLt>, request: &MatmulRequest, bias: Option<u64>, workspace: usize) -> Option<Matmul> {
        let text = request.text(false, workspace);
        let product = Matmul::new(library, request, bias, workspace, self.products.get(&text).copied())?;
        self.products.entry(text).or_insert(product.algorithm());
        Some(product)
    }

    /// Selects the algorithm of a product whose results are at `results`, as `run` enqueues it.
    pub fn matmul(&mut self, product: &mut Matmul, request: &str, results: u64, run: impl Fn(&Matmul) -> Result<(), String>) {
        if !self.shared.measures_algorithms {
            return;
        }
        if let Some(known) = self.known(request) {
            if product.select_recorded(&known) {
                return lock(&self.shared.algorithms).take(request.to_string(), known);
            }
            lock(&self.shared.algorithms).reject(request);
        }
        // Elsewhere it could overwrite what is still needed.
        if !self.arena.contains(&results) {
            return;
        }
        let candidates = product.ranking(MATMULS);
        let mut time = |i: usize, best: f64| {
            product.select(candidates[i]);
            self.seconds(best, &|| run(product))
        };
        let Some(best) = fastest(candidates.len(), &mut time) else { return };
        product.select(candidates[best]);
        lock(&self.shared.algorithms).take(request.to_string(), candidates[best].text());
    }

    /// A convolution with its selected execution plan.
    ///
    /// # Safety
    ///
    /// As for [`Convolution::find`].
    pub unsafe fn convolution(
        &mut self,
        dnn: &Arc<Cudnn>,
        request: &ConvRequest,
        workspace: usize,
        addresses: [u64; 4],
    ) -> Result<Rc<Convolution>, String> {
        let text = request.text(workspace);
        if let Some(known) = self.convolutions.get(&text).filter(|_| Convolution::is_aligned(addresses)) {
            return Ok(Rc::clone(known));
        }
        // SAFETY: guaranteed by the caller.
        let found = Rc::new(unsafe { self.find(dnn, request, &text, workspace, addresses) }?);
        self.convolutions.insert(text, Rc::clone(&found));
        Ok(found)
    }

    /// # Safety
    ///
    /// As for [`Convolution::find`].
    unsafe fn find(
        &mut self,
        dnn: &Arc<Cudnn>,
        request: &ConvRequest,
        text: &str,
        workspace: usize,
        addresses: [u64; 4],
    ) -> Result<Convolution, String> {
        if !self.shared.measures_algorithms {
            // SAFETY: guaranteed by the caller.
            return unsafe { Convolution::find(dnn, request, workspace, addresses) };
        }
        if let Some(known) = self.known(text) {
            // SAFETY: guaranteed by the caller.
            let found = unsafe { Convolution::search(dnn, request, workspace, addresses, 1, Some(&known)) };
            match found.ok().and_then(|mut found| found.pop()) {
                Some(convolution) => {
                    lock(&self.shared.algorithms).take(text.to_string(), known);
                    return Ok(convolution);
                }
                None => lock(&self.shared.algorithms).reject(text),
            }
        }
        // SAFETY: guaranteed by the caller.
        let mut found = unsafe { Convolution::search(dnn, request, workspace, addresses, CONVOLUTIONS, None) }?;
        // SAFETY: as above.
        let mut time = |i: usize, best: f64| self.seconds(best, &|| unsafe { found[i].run(addresses) });
        let best = fastest(found.len(), &mut time).unwrap_or(0);
        let convolution = found.swap_remove(best);
        lock(&self.shared.algorithms).take(text.to_string(), convolution.engine.clone());
        Ok(convolution)
    }

    /// Stores what was measured with the compiled kernels.
    pub fn store(&self) {
        let mut algorithms = lock(&self.shared.algorithms);
        if let Some(measured) = algorithms.unstored() {
            self.shared.store_algorithms(measured);
        }
    }

    fn known(&self, request: &str) -> Option<String> {
        lock(&self.shared.algorithms).known(request)
    }

    /// Seconds of the work that `run` enqueues; infinite if it fails. Work that takes far longer than `best` is run
    /// once.
    fn seconds(&mut self, best: f64, run: &dyn Fn() -> Result<(), String>) -> f64 {
        self.measure(best, run).unwrap_or(f64::INFINITY)
    }

    fn measure(&mut self, best: f64, run: &dyn Fn() -> Result<(), String>) -> Option<f64> {
        if !self.filled {
            self.filled = true;
            self.fill()?;
        }
        let clock = Clock::new(&self.shared.context).ok()?;
        let stream = &self.shared.compute;
        let time = |count: usize| clock.time(stream, |_| (), || (0..count).try_for_each(|_| run().map_err(|_| ()))).ok();
        // The first run of a kernel loads it.
        run().ok()?;
        let once = time(1)?;
        if once > HOPELESS * best {
            return Some(once);
        }
        let count = ((SPAN / once.max(1e-6)).ceil() as usize).clamp(1, MOST);
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            least = least.min(time(count)? / count as f64);
        }
        Some(least)
    }

    /// Fills the arena with numbers that are finite in every type: products of zeros draw less power, and run faster,
    /// than those of a step.
    fn fill(&self) -> Option<()> {
        let size = (self.arena.end - self.arena.start) as usize;
        let pattern = pattern();
        let first = pattern.len().min(size);
        let stream = self.shared.compute.raw;
        // SAFETY: the arena is this program's, and its contents are dead between steps; the ranges are inside of it,
        // and the pattern lives until the stream is done with it.
        unsafe {
            result::memcpy_htod_async(self.arena.start, &pattern[..first], stream).ok()?;
            let mut filled = first;
            while filled < size {
                let next = filled.min(size - filled);
                result::memcpy_dtod_async(self.arena.start + filled as u64, self.arena.start, next, stream).ok()?;
                filled += next;
            }
        }
        self.shared.compute.wait().ok()
    }
}

/// The index of the fastest of some candidates; the first one, unless another is clearly faster. `time` gets the index
/// of a candidate and the best time so far. None if all of them fail.
fn fastest(count: usize, time: &mut dyn FnMut(usize, f64) -> f64) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut first = f64::INFINITY;
    for i in 0..count {
        let seconds = time(i, best.map_or(f64::INFINITY, |(_, seconds)| seconds));
        if i == 0 {
            first = seconds;
        }
        let beats = best.map_or(seconds.is_finite(), |(_, best)| seconds < best);
        if beats && (i == 0 || seconds < GAIN * first) {
            best = Some((i, seconds));
        }
    }
    best.map(|(i, _)| i)
}

/// Pairs of bytes that are a finite number near 1 in both 16-bit types, and together in single precision.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // A random sign and fraction; the exponent is that of numbers from 1 to 2 in bf16.
        let bits = (state >> 40) as u16;
        (0x3f80 | bits & 0x807f).to_le_bytes()
    };
    (0..PATTERN / 2).flat_map(|_| next()).collect()
}

/// Bytes of the pattern.
const PATTERN: usize = 1 << 20;

/// Describes requests whose recorded algorithm is not available, for a warning.
pub(crate) fn rejection(rejected: &[String], recorded: &Recorded) -> Option<String> {
    let of_run = rejected.iter().filter(|request| recorded.contains_key(*request)).count();
    (of_run > 0).then(|| {
        format!(
            "{of_run} of {} recorded algorithms are not available in these versions of cuBLASLt and cuDNN: results may differ in their last bits",
            recorded.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_candidate_is_taken_only_if_it_is_clearly_faster() {
        let cases: [(&[f64], Option<usize>); 7] = [
            (&[], None),
            (&[f64::INFINITY], None),
            (&[1.0, 0.99, 0.98], Some(0)),
            (&[1.0, 0.9, 0.95, 0.8], Some(3)),
            (&[f64::INFINITY, 3.0, 2.0], Some(2)),
            (&[1.0, f64::INFINITY, 0.5], Some(2)),
            (&[1.0, 0.96, 0.955], Some(2)),
        ];
        for (times, best) in cases {
            assert_eq!(fastest(times.len(), &mut |i, _| times[i]), best, "{times:?}");
        }
    }

    #[test]
    fn the_pattern_is_finite_in_every_type() {
        let bytes = pattern();
        let halves: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        assert!(halves.iter().all(|half| half & 0x7f80 == 0x3f80 && half & 0x7c00 != 0x7c00));
        assert!(bytes.chunks_exact(4).all(|word| (1.0..2.0).contains(&f32::from_le_bytes([word[0], word[1], word[2], word[3]]).abs())));
        assert!(halves.iter().collect::<std::collections::HashSet<_>>().len() > 200);
    }

    #[test]
    fn rejected_algorithms_of_the_run_are_reported() {
        let recorded: Recorded = [("a", "1"), ("b", "2")].map(|(a, b)| (a.to_string(), b.to_string())).into();
        assert_eq!(rejection(&[], &recorded), None);
        assert_eq!(rejection(&["c".to_string()], &recorded), None);
        let text = rejection(&["a".to_string()], &recorded).unwrap();
        assert!(text.starts_with("1 of 2 recorded algorithms are not available"), "{text}");
    }
}
