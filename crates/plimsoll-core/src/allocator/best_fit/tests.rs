//! Random allocations against a model, and refusals by their text.

use super::*;
use crate::allocator::{Opened, OwnerId, SegmentId, VirtualSegments};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Plays allocations and checks every answer: no overlap, sums to the byte, nothing outside of committed memory.
struct Checker {
    allocator: BestFit,
    committed: Arc<Mutex<Memory>>,
    live: BTreeMap<(u32, u64), u64>,
    in_use: u64,
    peak: u64,
}

/// What the allocator did with its memory, as the device saw it.
#[derive(Default)]
struct Memory {
    pages: BTreeMap<(u32, u64), ()>,
    whole: BTreeMap<u32, u64>,
}

impl Memory {
    fn total(&self) -> u64 {
        self.pages.len() as u64 * PAGE + self.whole.values().sum::<u64>()
    }

    fn holds(&self, segment: u32, range: Range<u64>) -> bool {
        let mut pages = (range.start / PAGE)..range.end.div_ceil(PAGE);
        self.whole.get(&segment).is_some_and(|size| range.end <= *size) || pages.all(|page| self.pages.contains_key(&(segment, page)))
    }
}

/// Segments that write down what is committed, and refuse what was not asked for properly.
struct Watched {
    inner: VirtualSegments,
    memory: Arc<Mutex<Memory>>,
}

impl Segments for Watched {
    fn space(&self) -> String {
        self.inner.space()
    }

    fn alignment(&self) -> Bytes {
        self.inner.alignment()
    }

    fn granule(&self) -> Option<Bytes> {
        self.inner.granule()
    }

    fn open(&mut self, size: Bytes) -> Result<Opened, DeviceError> {
        let opened = self.inner.open(size)?;
        if self.granule().is_none() {
            self.memory.lock().unwrap().whole.insert(opened.id.0, opened.size.0);
        }
        Ok(opened)
    }

    fn close(&mut self, segment: SegmentId) {
        self.memory.lock().unwrap().whole.remove(&segment.0);
        self.inner.close(segment);
    }

    fn commit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) && !range.is_empty(), "{range:?}");
        let mut memory = self.memory.lock().unwrap();
        for page in range.start / PAGE..range.end / PAGE {
            assert_eq!(memory.pages.insert((segment.0, page), ()), None, "page {page} was committed twice");
        }
        Ok(())
    }

    fn decommit(&mut self, segment: SegmentId, range: Range<u64>) -> Result<(), DeviceError> {
        assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) && !range.is_empty(), "{range:?}");
        let mut memory = self.memory.lock().unwrap();
        for page in range.start / PAGE..range.end / PAGE {
            assert_eq!(memory.pages.remove(&(segment.0, page)), Some(()), "page {page} had no memory");
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    OnDemand,
    /// Address ranges so small that several are needed.
    SmallRanges,
    Whole,
}

impl Checker {
    fn new(kind: Kind, options: BestFitOptions) -> Checker {
        let memory = Arc::new(Mutex::new(Memory::default()));
        let segments = VirtualSegments::new("host", Bytes(64));
        let inner = match kind {
            Kind::OnDemand => segments.on_demand(Bytes::gib(64), Bytes(PAGE)),
            Kind::SmallRanges => segments.on_demand(Bytes(16 * PAGE), Bytes(PAGE)),
            Kind::Whole => segments,
        };
        let watched = Watched { inner, memory: Arc::clone(&memory) };
        let allocator = BestFit::new(watched, options).unwrap();
        Checker { allocator, committed: memory, live: BTreeMap::new(), in_use: 0, peak: 0 }
    }

    fn allocate(&mut self, size: u64) -> Result<Block, AllocatorError> {
        let block = self.allocator.allocate(Request::new(Bytes(size), owner(size)))?;
        let range = self.allocator.range(&block);
        let (segment, start, end) = (range.segment.0, range.offset.0, range.offset.0 + range.size.0);
        assert_eq!(range.size.0, size.max(1).next_multiple_of(64));
        assert!(start.is_multiple_of(64));
        assert!(
            self.live.range(..=(segment, start)).next_back().is_none_or(|((s, _), before)| *s != segment || *before <= start),
            "overlap"
        );
        assert!(self.live.range((segment, start)..).next().is_none_or(|((s, after), _)| *s != segment || end <= *after), "overlap");
        assert!(self.committed.lock().unwrap().holds(segment, start..end), "a block without memory");
        self.live.insert((segment, start), end);
        self.in_use += range.size.0;
        self.peak = self.peak.max(self.in_use);
        Ok(block)
    }

    fn free(&mut self, block: Block) {
        let range = self.allocator.range(&block);
        assert_eq!(self.live.remove(&(range.segment.0, range.offset.0)), Some((range.offset + range.size).0));
        self.in_use -= range.size.0;
        self.allocator.free(block).unwrap();
    }

    fn check_heap(&self) {
        self.allocator.lock().heaps.iter().for_each(Heap::check);
    }

    /// Compares all that is known.
    fn check(&self) {
        self.check_heap();
        let inner = self.allocator.lock();
        let stats = inner.stats();
        assert_eq!((stats.in_use.0, stats.peak.0, stats.blocks), (self.in_use, self.peak, self.live.len() as u64));
        assert_eq!(stats.reserved.0, self.committed.lock().unwrap().total());
        assert!(stats.reserved >= stats.in_use && stats.limit.is_none_or(|limit| stats.reserved <= limit));
        assert_eq!(inner.accounts.owners().iter().map(|owner| owner.held.0).sum::<u64>(), self.in_use);
    }
}

fn owner(size: u64) -> OwnerId {
    OwnerId::named(["conv", "relu", "matmul"][size as usize % 3])
}

fn on_demand(limit: Bytes) -> BestFit {
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(64), Bytes(PAGE));
    BestFit::new(segments, BestFitOptions { limit: Limit::Bytes(limit), ..BestFitOptions::default() }).unwrap()
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Number of random allocations: `PLIMSOLL_ALLOCATIONS=10000000` for the full count.
fn allocations() -> u64 {
    std::env::var("PLIMSOLL_ALLOCATIONS").map_or(200_000, |count| count.parse().expect("a number of allocations"))
}

#[test]
fn random_allocations_under_a_limit_balance_to_the_byte() {
    for kind in [Kind::OnDemand, Kind::SmallRanges, Kind::Whole] {
        let limit = Limit::Bytes(Bytes::mib(8));
        let mut checker = Checker::new(kind, BestFitOptions { limit, ..BestFitOptions::default() });
        let (mut blocks, mut random, mut refused) = (Vec::new(), 0x9e37_79b9_7f4a_7c15, 0u64);
        for round in 0..allocations() {
            let draw = xorshift(&mut random);
            // Sizes from a byte to a quarter of a mebibyte, as many small as large.
            let size = draw >> 20 & ((1 << (draw % 19)) - 1);
            match checker.allocate(size) {
                Ok(block) => blocks.push(block),
                Err(AllocatorError::OverLimit(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            if draw >> 60 < 8 && !blocks.is_empty() {
                checker.free(blocks.swap_remove((draw >> 32) as usize % blocks.len()));
            }
            if refused % 64 == 63 {
                refused += 1;
                (0..blocks.len() / 2).for_each(|_| checker.free(blocks.pop().unwrap()));
            }
            if round % 1024 == 0 {
                checker.check();
            }
        }
        assert!(refused > 100, "the limit was reached {refused} times with {kind:?}");
        blocks.drain(..).for_each(|block| checker.free(block));
        checker.check();
        checker.allocator.give_back().unwrap();
        let stats = checker.allocator.stats();
        assert_eq!(
            (stats.in_use, stats.reserved, stats.segments, checker.committed.lock().unwrap().total()),
            (Bytes::ZERO, Bytes::ZERO, 0, 0)
        );
    }
}

#[derive(Clone, Debug)]
enum Action {
    Allocate(u64),
    Free(usize),
    GiveBack,
}

fn action() -> impl Strategy<Value = Action> {
    let size = prop_oneof![0..300u64, 1000..20_000u64, 60_000..300_000u64];
    prop_oneof![5 => size.prop_map(Action::Allocate), 4 => any::<usize>().prop_map(Action::Free), 1 => Just(Action::GiveBack)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_keeps_the_books(
        actions in proptest::collection::vec(action(), 1..150),
        kind in prop_oneof![Just(Kind::OnDemand), Just(Kind::SmallRanges), Just(Kind::Whole)],
        slack in prop_oneof![Just(0.0), Just(0.05), Just(f64::INFINITY)],
        limit in prop_oneof![Just(Limit::OnDemand), (200_000..2_000_000u64).prop_map(|bytes| Limit::Bytes(Bytes(bytes)))],
    ) {
        let mut checker = Checker::new(kind, BestFitOptions { limit, slack, ..BestFitOptions::default() });
        let mut blocks = Vec::new();
        for action in actions {
            match action {
                Action::Allocate(size) => match checker.allocate(size) {
                    Ok(block) => blocks.push(block),
                    Err(AllocatorError::OverLimit(error)) => {
                        let Limit::Bytes(limit) = limit else { panic!("nothing limits it") };
                        // With memory on demand, only pages that blocks share with free memory can be in the way.
                        let lost = blocks.len() as u64 * 2 * PAGE + 2 * PAGE;
                        prop_assert!(kind == Kind::Whole || checker.in_use + size + lost > limit.0, "{}", error);
                    }
                    Err(other) => panic!("{other}"),
                },
                Action::Free(index) if !blocks.is_empty() => checker.free(blocks.swap_remove(index % blocks.len())),
                Action::Free(_) => {}
                Action::GiveBack => {
                    let before = checker.allocator.stats().reserved;
                    let given = checker.allocator.give_back().unwrap();
                    prop_assert_eq!(before.0 - given.0, checker.allocator.stats().reserved.0);
                }
            }
            checker.check();
        }
        if kind == Kind::OnDemand && slack == 0.0 {
            let stats = checker.allocator.stats();
            prop_assert!(stats.peak_reserved.0 <= stats.peak.0 + 2 * PAGE * (1 + stats.allocations), "{}", stats);
        }
        blocks.drain(..).for_each(|block| checker.free(block));
        checker.check();
        checker.allocator.give_back().unwrap();
        prop_assert_eq!(checker.committed.lock().unwrap().total(), 0);
    }
}

#[test]
fn freed_neighbours_coalesce_to_one_block_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let allocator = on_demand(Bytes(3 * PAGE));
        let mut blocks: Vec<Option<Block>> =
            (0..3).map(|_| Some(allocator.allocate(Request::new(Bytes(PAGE), owner(0))).unwrap())).collect();
        for index in order {
            allocator.free(blocks[index].take().unwrap()).unwrap();
        }
        let stats = allocator.stats();
        assert_eq!((stats.largest_free, stats.free(), stats.fragmentation()), (Bytes(3 * PAGE), Bytes(3 * PAGE), 0.0));
        let all = allocator.allocate(Request::new(Bytes(3 * PAGE), owner(0))).unwrap();
        allocator.free(all).unwrap();
    }
}

#[test]
fn the_smallest_block_that_fits_is_taken_at_the_lowest_address() {
    let allocator = on_demand(Bytes::mib(1));
    let ask = |size| allocator.allocate(Request::new(Bytes(size), owner(0))).unwrap();
    // Three gaps of 640, 320 and 320 bytes.
    let blocks: Vec<Block> = [640, 64, 320, 64, 320, 64].map(ask).into_iter().collect();
    let mut gaps = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        if index % 2 == 0 {
            gaps.push(allocator.range(&block).offset);
            allocator.free(block).unwrap();
        }
    }
    assert_eq!(allocator.range(&ask(300)).offset, gaps[1]);
    assert_eq!(allocator.range(&ask(300)).offset, gaps[2]);
    assert_eq!(allocator.range(&ask(300)).offset, gaps[0]);
}

#[test]
fn a_refusal_names_owners_and_blocks_and_loses_nothing() {
    let allocator = on_demand(Bytes::mib(16));
    let ask = |size, owner: &str| allocator.allocate(Request::new(size, OwnerId::named(owner)));
    let _weights = ask(Bytes::mib(4), "weights").unwrap();
    let conv = ask(Bytes::mib(6), "conv2d").unwrap();
    let _small = ask(Bytes::mib(1), "conv2d").unwrap();
    let _relu = ask(Bytes::mib(2), "relu").unwrap();
    let before = allocator.snapshot();
    let error = ask(Bytes::mib(5), "softmax").unwrap_err().to_string();
    let text = error
        .replace(file!(), "FILE")
        .split("FILE:")
        .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':'))
        .collect::<Vec<_>>()
        .join("FILE");
    insta::assert_snapshot!(text, @"softmax asked for 5.00 MiB of host memory at FILE, but 13.0 MiB of the limit of 16.0 MiB is in use; the largest owners are conv2d 7.00 MiB, weights 4.00 MiB, relu 2.00 MiB; the largest blocks are 6.00 MiB of conv2d made at FILE, 4.00 MiB of weights made at FILE, 2.00 MiB of relu made at FILE; drop some of them or raise the limit");
    assert_eq!(allocator.snapshot(), before, "a refusal changes nothing");
    allocator.free(conv).unwrap();
    assert!(ask(Bytes::mib(5), "softmax").is_ok(), "and the caller goes on");
}

#[test]
fn absurd_sizes_are_refused_not_wrapped() {
    let allocator = on_demand(Bytes::mib(16));
    for size in [u64::MAX, u64::MAX - 63, 1 << 63] {
        assert!(matches!(allocator.allocate(Request::new(Bytes(size), owner(0))), Err(AllocatorError::OverLimit(_))), "{size}");
    }
    let unlimited = BestFit::new(VirtualSegments::new("host", Bytes(64)), BestFitOptions::default()).unwrap();
    assert!(unlimited.allocate(Request::new(Bytes(u64::MAX), owner(0))).is_err());
}

#[test]
fn a_block_of_another_allocator_is_refused() {
    let (one, other) = (on_demand(Bytes::mib(1)), on_demand(Bytes::mib(1)));
    let block = one.allocate(Request::new(Bytes::kib(4), owner(0))).unwrap();
    let error = other.free(block).unwrap_err();
    insta::assert_snapshot!(error, @"a block of 4.00 KiB belongs to another allocator than that of host memory; free it where it was allocated");
}

#[test]
fn a_limit_that_cannot_be_applied_is_refused() {
    let refuse = |limit| {
        let options = BestFitOptions { limit, ..BestFitOptions::default() };
        BestFit::new(VirtualSegments::new("cuda:0", Bytes(256)), options).err().expect("refused").to_string()
    };
    insta::assert_snapshot!(refuse(Limit::Fraction(0.5)), @"the allocator of cuda:0 memory cannot be limited to 0.5 of the device: its capacity is not known; state a number of bytes");
    insta::assert_snapshot!(refuse(Limit::Fraction(1.5)), @"the allocator of cuda:0 memory cannot be limited to 1.5 of the device: a fraction is above 0 and at most 1");
    let segments = VirtualSegments::new("cuda:0", Bytes(256)).capacity(Bytes::gib(8));
    let half = BestFit::new(segments, BestFitOptions { limit: Limit::Fraction(0.5), at_once: true, ..BestFitOptions::default() }).unwrap();
    assert_eq!((half.stats().limit, half.stats().reserved), (Some(Bytes::gib(4)), Bytes::gib(4)), "all of it at once");
}

#[test]
fn the_ledger_holds_what_is_reserved() {
    let ledger = Ledger::new("host", Some(Bytes::mib(2)));
    let _run = ledger.reserve(Owner::Weights, Bytes::mib(1)).unwrap();
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(1), Bytes(PAGE));
    let options = BestFitOptions { ledger: Some((ledger.clone(), Owner::Activations)), ..BestFitOptions::default() };
    let allocator = BestFit::new(segments, options).unwrap();
    let block = allocator.allocate(Request::new(Bytes::kib(512), owner(0))).unwrap();
    assert_eq!(ledger.used(), Bytes::mib(1) + allocator.stats().reserved);
    let error = allocator.allocate(Request::new(Bytes::mib(1), owner(0))).unwrap_err();
    insta::assert_snapshot!(error, @"activations asked for 1.00 MiB of host memory, but 1.50 MiB of the 2.00 MiB budget is in use; the largest owners are weights 1.00 MiB, activations 512 KiB");
    assert_eq!(ledger.used(), Bytes::mib(1) + allocator.stats().reserved);
    allocator.free(block).unwrap();
    allocator.give_back().unwrap();
    assert_eq!(ledger.used(), Bytes::mib(1));
}

/// Bytes of a segment, in which every block holds its own pattern.
struct Contents(Vec<u8>);

impl Contents {
    fn fill(&mut self, range: BlockRange, pattern: u8) {
        self.0[range.offset.get()..][..range.size.get()].fill(pattern);
    }

    fn hold(&self, range: BlockRange, pattern: u8) -> bool {
        self.0[range.offset.get()..][..range.size.get()].iter().all(|byte| *byte == pattern)
    }

    fn copy(&mut self, block: &Relocation) {
        for (from, to, size) in block.copies() {
            assert!(from.0.abs_diff(to.0) >= size.0, "copies do not overlap");
            self.0.copy_within(from.get()..(from + size).get(), to.get());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compaction_leaves_one_free_block_and_every_byte(
        sizes in proptest::collection::vec(1..40_000u64, 1..60),
        freed in proptest::collection::vec(any::<bool>(), 60),
        refused in prop_oneof![Just(usize::MAX), 0..20usize],
        on_demand in any::<bool>(),
        give_back in any::<bool>(),
    ) {
        let kind = if on_demand { Kind::OnDemand } else { Kind::Whole };
        let limit = Limit::Bytes(Bytes::mib(3));
        let mut checker = Checker::new(kind, BestFitOptions { limit, at_once: true, ..BestFitOptions::default() });
        let mut contents = Contents(vec![0; 3 << 20]);
        let mut blocks: Vec<Option<Block>> = sizes.iter().map(|size| Some(checker.allocate(*size).unwrap())).collect();
        for (index, block) in blocks.iter().enumerate() {
            contents.fill(checker.allocator.range(block.as_ref().unwrap()), index as u8 + 1);
        }
        for (block, freed) in blocks.iter_mut().zip(&freed) {
            if *freed {
                checker.free(block.take().unwrap());
            }
        }
        if give_back {
            checker.allocator.give_back().unwrap();
        }
        let before = checker.allocator.stats();
        let mut moves = 0;
        let moved = checker.allocator.compact(&mut |block| {
            moves += 1;
            if moves - 1 == refused {
                return false;
            }
            contents.copy(block);
            true
        });
        let after = checker.allocator.stats();
        prop_assert!(after.in_use == before.in_use && moved <= after.in_use);
        // After a copy that was refused, there can be memory both where blocks were and where they are.
        prop_assert!(after.reserved <= if moves <= refused { before.reserved } else { Bytes::mib(3) }, "{}", after);
        if moves <= refused {
            prop_assert_eq!(after.fragmentation(), 0.0, "{}", after);
        }
        checker.live.clear();
        for (index, block) in blocks.into_iter().enumerate().filter_map(|(index, block)| Some((index, block?))) {
            let range = checker.allocator.range(&block);
            prop_assert!(contents.hold(range, index as u8 + 1), "block {} lost its bytes", index);
            prop_assert!(checker.committed.lock().unwrap().holds(0, range.offset.0..(range.offset + range.size).0));
            checker.live.insert((0, range.offset.0), (range.offset + range.size).0);
            checker.check_heap();
            checker.free(block);
        }
        checker.check();
    }
}
