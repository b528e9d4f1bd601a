//! Measured choices among the algorithms of libraries, as text: what is known about a GPU, and what loaded programs
//! use.

use std::collections::BTreeMap;

/// Algorithms by request, both as text.
pub(crate) type Recorded = BTreeMap<String, String>;

/// The algorithms that were measured on a GPU, and those in use.
#[derive(Debug, Default)]
pub(crate) struct MeasuredAlgorithms {
    known: Recorded,
    used: Recorded,
    /// Whether something was measured that is not stored yet.
    changed: bool,
    /// Requests whose known algorithm was rejected by the library.
    rejected: Vec<String>,
}

impl MeasuredAlgorithms {
    /// Adds algorithms that were stored with the compiled kernels: those that were measured or recorded before remain.
    pub fn add_stored(&mut self, stored: Recorded) {
        for (request, algorithm) in stored {
            self.known.entry(request).or_insert(algorithm);
        }
    }

    /// Adds the algorithms of the run that is resumed: they replace what is known.
    pub fn keep(&mut self, recorded: &Recorded) {
        self.known.extend(recorded.iter().map(|(request, algorithm)| (request.clone(), algorithm.clone())));
    }

    /// The known algorithm of a request.
    pub fn known(&self, request: &str) -> Option<String> {
        self.known.get(request).cloned()
    }

    /// Notes the algorithm that a request is computed with.
    pub fn take(&mut self, request: String, algorithm: String) {
        self.changed |= self.known.get(&request) != Some(&algorithm);
        self.known.insert(request.clone(), algorithm.clone());
        self.used.insert(request, algorithm);
    }

    /// Notes that the library rejected the known algorithm of a request.
    pub fn reject(&mut self, request: &str) {
        self.rejected.push(request.to_string());
    }

    /// The algorithms of all loaded programs.
    pub fn used(&self) -> &Recorded {
        &self.used
    }

    /// Requests whose known algorithm was rejected.
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// Everything that is known, if it changed since it was last stored.
    pub fn unstored(&mut self) -> Option<&Recorded> {
        std::mem::take(&mut self.changed).then_some(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(pairs: &[(&str, &str)]) -> Recorded {
        pairs.iter().map(|(request, algorithm)| (request.to_string(), algorithm.to_string())).collect()
    }

    #[test]
    fn a_resumed_run_keeps_its_algorithms_whatever_is_stored() {
        let mut algorithms = MeasuredAlgorithms::default();
        algorithms.keep(&recorded(&[("a", "run")]));
        algorithms.add_stored(recorded(&[("a", "stored"), ("b", "stored")]));
        assert_eq!(["a", "b", "c"].map(|request| algorithms.known(request)), [Some("run".to_string()), Some("stored".to_string()), None]);
    }

    #[test]
    fn only_new_measurements_are_stored_and_only_used_ones_recorded() {
        let mut algorithms = MeasuredAlgorithms::default();
        algorithms.add_stored(recorded(&[("a", "1"), ("b", "2")]));
        algorithms.take("a".to_string(), "1".to_string());
        assert_eq!(algorithms.unstored(), None);
        algorithms.take("c".to_string(), "3".to_string());
        assert_eq!(algorithms.unstored(), Some(&recorded(&[("a", "1"), ("b", "2"), ("c", "3")])));
        assert_eq!((algorithms.unstored().is_none(), algorithms.used()), (true, &recorded(&[("a", "1"), ("c", "3")])));
    }
}
