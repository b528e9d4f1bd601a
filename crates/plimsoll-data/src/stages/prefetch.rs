//! `prefetch`, `parallelism` and `deterministic`: settings of prefetching.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{Concern, Dataset, MAX_THREADS, Parallelism, Prefetch};

pub(super) const PREFETCH: StageKind = StageKind {
    name: "prefetch",
    summary: "batches to prepare in advance",
    keys: &[Key::usual("batches", KeyKind::Prefetch).or("\"auto\"")],
    has_short_form: true,
    build: |data, args| Ok(data.prefetch(args.prefetch("batches").unwrap_or(Prefetch::Auto))),
    ..StageKind::DEFAULT
};

pub(super) const PARALLELISM: StageKind = StageKind {
    name: "parallelism",
    summary: "threads that produce rows, at most 1024; after a sequential stage, threads that map its output. `\"auto\"`: one per core where images are decoded or an operation is expensive (`resize`, `rotate`, colours, user code), of which as many run as are needed; otherwise one",
    keys: &[Key::usual("threads", KeyKind::Threads).or("\"auto\"")],
    has_short_form: true,
    build: |data, args| Ok(data.parallelism(args.threads("threads").unwrap_or(Parallelism::Auto))),
    ..StageKind::DEFAULT
};

pub(super) const DETERMINISTIC: StageKind = StageKind {
    name: "deterministic",
    summary: "`false` lets batches overtake a slow one",
    keys: &[Key::required("is", KeyKind::Flag, "whether batches come in the order of their rows")],
    reorders: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.deterministic(args.flag("is").unwrap_or(true))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Sets how many batches are prefetched; [`Prefetch::Auto`] by default.
    pub fn prefetch(self, prefetch: Prefetch) -> Dataset {
        let description = match prefetch {
            Prefetch::Auto => "prefetch(auto)".into(),
            Prefetch::Batches(batches) => format!("prefetch({batches})"),
        };
        self.with_setting(Concern::Batches, description, move |settings| {
            settings.prefetch = prefetch;
            Ok(())
        })
    }

    /// Sets the number of worker threads; [`Parallelism::Auto`] by default. The output does not depend on it. It
    /// applies up to the next stage that produces a [stream](Dataset#streams), and after a stream to the maps that
    /// follow: threads take turns reading from a stream and map its rows in parallel.
    pub fn parallelism(self, parallelism: Parallelism) -> Dataset {
        let description = match parallelism {
            Parallelism::Auto => "parallelism(auto)".into(),
            Parallelism::Threads(threads) => format!("parallelism({threads})"),
        };
        self.with_setting(Concern::Decoding, description, move |settings| {
            match parallelism {
                Parallelism::Threads(0) => {
                    return Err(DataError::Stage("parallelism(0) makes no rows; ask for at least one thread".into()));
                }
                Parallelism::Threads(threads) if threads > MAX_THREADS => {
                    let problem = format!("parallelism({threads}) is more threads than do any good; ask for at most {MAX_THREADS}");
                    return Err(DataError::Stage(problem));
                }
                parallelism => settings.parallelism = parallelism,
            }
            Ok(())
        })
    }

    /// Sets whether batches come in row order, which is the default. If not, slow batches may be overtaken by later
    /// ones of the same epoch; the rows within each batch are unchanged. A position within such an epoch cannot be
    /// resumed.
    pub fn deterministic(self, deterministic: bool) -> Dataset {
        self.with_setting(Concern::Batches, format!("deterministic({deterministic})"), move |settings| {
            settings.deterministic = Some((deterministic, None));
            Ok(())
        })
    }
}
