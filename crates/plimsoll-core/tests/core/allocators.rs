//! Allocators as their users see them.

use plimsoll_core::Bytes;
use plimsoll_core::allocator::{
    Allocation, AllocationTrace, Allocator, AllocatorError, AllocatorId, BestFit, BestFitOptions, Block, BlockRange, Bump, Event, Limit,
    MemoryStats, OwnerId, Planned, Recorded, Request, SegmentId, Snapshot, System, VirtualSegments,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn several_threads_share_one_limit() {
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(1), Bytes(4096));
    let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(4)), ..BestFitOptions::default() };
    let allocator = BestFit::new(segments, options).unwrap();
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (allocator, most) = (&allocator, &most);
            scope.spawn(move || {
                let (mut random, mut blocks) = (thread + 1, Vec::new());
                for _ in 0..20_000 {
                    let draw = xorshift(&mut random);
                    if let Ok(block) = allocator.allocate(Request::new(Bytes(draw >> 8 & 0xffff), OwnerId::named("thread"))) {
                        blocks.push(block);
                    }
                    if draw & 1 == 0 || blocks.len() > 100 {
                        blocks.pop().into_iter().for_each(|block| allocator.free(block).unwrap());
                    }
                    if draw.is_multiple_of(64) {
                        most.fetch_max(allocator.stats().reserved.0, Relaxed);
                    }
                }
                blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
            });
        }
    });
    let stats = allocator.stats();
    assert_eq!((stats.in_use, stats.requested, stats.blocks), (Bytes::ZERO, Bytes::ZERO, 0));
    assert!(stats.peak_reserved <= Bytes::mib(4) && most.into_inner() <= 4 << 20, "{stats}");
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn segments() -> VirtualSegments {
    VirtualSegments::new("host", Bytes(64))
}

fn best_fit() -> Arc<dyn Allocator> {
    Arc::new(BestFit::new(segments().on_demand(Bytes::gib(1), Bytes(4096)), BestFitOptions::default()).unwrap())
}

fn ask(allocator: &dyn Allocator, size: u64, owner: &str) -> Result<Block, AllocatorError> {
    allocator.allocate(Request::new(Bytes(size), OwnerId::named(owner)))
}

/// A text without the lines and columns of this file.
fn without_places(text: impl ToString) -> String {
    let text = text.to_string().replace(file!(), "FILE");
    let parts = text.split("FILE:").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':'));
    parts.collect::<Vec<_>>().join("FILE")
}

#[test]
fn every_allocator_comes_back_to_zero_and_refuses_blocks_of_others() {
    let trace =
        AllocationTrace { events: vec![Event::Allocate(Bytes(1000)), Event::Allocate(Bytes(5000)), Event::Free(0), Event::Free(1)] };
    let allocators: [Arc<dyn Allocator>; 4] = [
        best_fit(),
        Arc::new(Bump::new(segments(), Bytes::kib(64)).unwrap()),
        Arc::new(System::new(segments(), Some(Bytes::kib(64)))),
        Arc::new(Planned::new(segments(), &trace, None).unwrap()),
    ];
    for allocator in &allocators {
        let (a, b) = (ask(&**allocator, 1000, "a").unwrap(), ask(&**allocator, 5000, "b").unwrap());
        let (first, second) = (allocator.range(&a), allocator.range(&b));
        assert_eq!((first.size, second.size), (Bytes(1024), Bytes(5056)));
        let apart =
            first.segment != second.segment || first.offset + first.size <= second.offset || second.offset + second.size <= first.offset;
        assert!(apart, "blocks overlap");
        let snapshot = allocator.snapshot();
        let owners: Vec<(&str, Bytes)> = snapshot.owners.iter().map(|owner| (owner.owner.as_str(), owner.held)).collect();
        assert_eq!(owners, [("b", Bytes(5056)), ("a", Bytes(1024))]);
        assert_eq!((snapshot.stats.in_use, snapshot.stats.requested), (Bytes(6080), Bytes(6000)));
        allocator.free(a).unwrap();
        allocator.free(b).unwrap();
        let stats = allocator.stats();
        assert_eq!((stats.in_use, stats.requested, stats.blocks, stats.peak), (Bytes::ZERO, Bytes::ZERO, 0, Bytes(6080)));
    }
    for allocator in &allocators[1..] {
        let foreign = ask(&*allocators[0], 64, "a").unwrap();
        assert!(matches!(allocator.free(foreign), Err(AllocatorError::Foreign { .. })));
    }
}

#[test]
fn limits_of_bump_and_system_are_refused_by_name() {
    let bump = Bump::new(segments(), Bytes::kib(64)).unwrap();
    let _workspace = ask(&bump, 48 << 10, "workspace").unwrap();
    insta::assert_snapshot!(without_places(ask(&bump, 32 << 10, "packing").unwrap_err()), @"packing asked for 32.0 KiB of host memory at FILE, but 48.0 KiB of the limit of 64.0 KiB is in use; the largest owners are workspace 48.0 KiB; the largest blocks are 48.0 KiB of workspace made at FILE; drop some of them or raise the limit");
    let system = System::new(segments(), Some(Bytes::kib(64)));
    let _weights = ask(&system, 48 << 10, "weights").unwrap();
    insta::assert_snapshot!(without_places(ask(&system, 32 << 10, "relu").unwrap_err()), @"relu asked for 32.0 KiB of host memory at FILE, but 48.0 KiB of the limit of 64.0 KiB is in use; the largest owners are weights 48.0 KiB; the largest blocks are 48.0 KiB of weights made at FILE; drop some of them or raise the limit");
}

#[test]
fn a_planned_step_takes_the_lower_bound_and_other_requests_the_fallback() {
    let recorded = Recorded::new(best_fit());
    // Best fit would put the third block behind the second.
    let step = |allocator: &dyn Allocator, last: u64| -> Result<(), AllocatorError> {
        let (a, b) = (ask(allocator, 640, "a")?, ask(allocator, 320, "b")?);
        allocator.free(a)?;
        let c = ask(allocator, last, "c")?;
        allocator.free(b)?;
        allocator.free(c)
    };
    recorded.start();
    step(&recorded, 704).unwrap();
    let trace = recorded.finish();
    assert_eq!(trace.events.len(), 6);
    let planned = Planned::new(segments(), &trace, None).unwrap();
    assert_eq!((planned.layout().size, planned.layout().lower_bound), (Bytes(1024), Bytes(1024)));
    for _ in 0..3 {
        planned.begin();
        step(&planned, 704).unwrap();
        assert_eq!((planned.stats().reserved, planned.stats().in_use), (Bytes(1024), Bytes::ZERO));
    }
    planned.begin();
    insta::assert_snapshot!(without_places(step(&planned, 2000).unwrap_err()), @"allocation 2 of the step asked for 1.95 KiB at FILE, but the plan has 704 B; record the step again, or give the planned allocator a fallback");
    planned.begin();
    insta::assert_snapshot!(without_places(ask(&planned, 640, "a").and_then(|_| ask(&planned, 320, "b")).unwrap_err()), @"allocation 1 of the step asked for 320 B at FILE, but the plan has a block there that was not freed in time; record the step again, or give the planned allocator a fallback");

    let fallback = best_fit();
    let planned = Planned::new(segments(), &trace, Some(Arc::clone(&fallback))).unwrap();
    planned.begin();
    step(&planned, 2000).unwrap();
    assert_eq!((planned.outside(), fallback.stats().allocations, fallback.stats().in_use), (1, 1, Bytes::ZERO));
}

#[test]
fn snapshots_name_what_grew_and_where_as_text_and_json() {
    let allocator = best_fit();
    let _weights = ask(&*allocator, 4096, "weights").unwrap();
    let before = allocator.snapshot();
    let kept: Vec<Block> = (0..3).map(|_| ask(&*allocator, 1 << 20, "callback").unwrap()).collect();
    let after = allocator.snapshot();
    let growth = after.diff(&before);
    insta::assert_snapshot!(without_places(&growth[0]), @"+3.00 MiB in +3 blocks of callback made at FILE");
    assert_eq!((growth.len(), growth[0].location.contains("allocators.rs:")), (1, true));
    insta::assert_snapshot!(without_places(&after), @r"
    host memory
      in use        3.00 MiB in 4 blocks (peak 3.00 MiB)
      reserved      3.02 MiB in 1 segments (peak 3.02 MiB, no limit)
      free          16.0 KiB, largest block 16.0 KiB
      fragmentation 0.0 %
      allocations   4
        up to 4.00 KiB           1 (1 live)
        up to 1.00 MiB           3 (3 live)
      owners
        callback                  3.00 MiB in 3 blocks (peak 3.00 MiB)
        weights                   4.00 KiB in 1 blocks (peak 4.00 KiB)
      made at
        FILE  3.00 MiB in 3 blocks of callback
        FILE  4.00 KiB in 1 blocks of weights
    ");
    let json = serde_json::to_value(&after).unwrap();
    assert_eq!(
        (&json["stats"]["in_use"], &json["owners"][0]["owner"]),
        (&serde_json::json!((3 << 20) + 4096), &serde_json::json!("callback"))
    );
    assert_eq!(json["blocks"].as_array().unwrap().len(), 4);
    kept.into_iter().for_each(|block| allocator.free(block).unwrap());
    assert_eq!(allocator.snapshot().diff(&before), []);
    insta::assert_snapshot!(without_places(&before.diff(&after)[0]), @"-3.00 MiB in -3 blocks of callback made at FILE");
}

/// An allocator of a user: every block at the next multiple of a kibibyte, nothing used twice.
struct Never(AllocatorId, AtomicU64);

impl Allocator for Never {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        let size = request.size.align_up(1024);
        let offset = Bytes(self.1.fetch_add(size.0, Relaxed));
        Ok(Block::new(self.0, offset.0, BlockRange { segment: SegmentId(0), offset, size }))
    }

    fn free(&self, _: Block) -> Result<(), AllocatorError> {
        Ok(())
    }

    fn range(&self, block: &Block) -> BlockRange {
        block.allocated_at()
    }

    fn stats(&self) -> MemoryStats {
        MemoryStats { space: "mine".to_string(), reserved: Bytes(self.1.load(Relaxed)), ..MemoryStats::default() }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { stats: self.stats(), owners: Vec::new(), blocks: Vec::new() }
    }
}

#[test]
fn users_supply_allocators_of_their_own() {
    let mine: Arc<dyn Allocator> = Arc::new(Never(AllocatorId::new(), AtomicU64::new(0)));
    let request = Request::new(Bytes(100), OwnerId::named("a"));
    let (a, b) = (Allocation::new(&mine, request).unwrap(), Allocation::new(&mine, request).unwrap());
    assert_eq!((a.range().offset, b.range().offset, mine.compact(&mut |_| true)), (Bytes::ZERO, Bytes(1024), Bytes::ZERO));
    let recorded = Recorded::new(mine);
    recorded.start();
    recorded.free(ask(&recorded, 10, "a").unwrap()).unwrap();
    assert_eq!(recorded.finish().events, [Event::Allocate(Bytes(10)), Event::Free(0)]);
}
