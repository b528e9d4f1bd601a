//! Memory that allocators reserve for the training of zoo networks: `cargo bench -p plimsoll --bench allocators`.
//!
//! Every column is reserved memory over the peak of live bytes. Traces have six steps whose batches alternate between
//! two sizes. The columns of PyTorch come from a model of its policy ([`pytorch`]), not from its code.

mod pytorch;
mod traces;

use plimsoll_core::Bytes;
use plimsoll_core::allocator::{
    AllocationTrace, Allocator, BestFit, BestFitOptions, Block, Event, MemoryStats, OwnerId, Request, VirtualSegments,
};
use pytorch::CachingAllocator;

/// Alignment of the CPU, pages of the host and of a GPU.
const ALIGNMENT: Bytes = Bytes(64);
const PAGE: Bytes = Bytes::kib(4);
const GPU_PAGE: Bytes = Bytes::mib(2);

fn main() -> Result<(), plimsoll::Error> {
    println!("reserved memory over the peak of live bytes; given back: bytes per step after the second, over the same peak");
    println!("network            blocks  peak live    bound  planned | BestFit given back  GPU pages  fixed | PyTorch expandable");
    let (mut ratios, mut above) = (Vec::new(), Vec::new());
    for (name, rows) in traces::NETWORKS {
        let trace = traces::trace(&traces::step(name, rows[0])?, *rows);
        let (blocks, peak) = size(&trace);
        let over = |bytes: Bytes| bytes.0 as f64 / peak as f64;
        // The first two steps have both sizes.
        let planned = traces::first_steps(&trace, 2).layout(ALIGNMENT);
        let on_demand = |page| VirtualSegments::new("host", ALIGNMENT).on_demand(Bytes::gib(1024), page);
        let (best_fit, per_step) = replay(&trace, on_demand(PAGE));
        let (gpu, _) = replay(&trace, on_demand(GPU_PAGE));
        let (fixed, _) = replay(&trace, VirtualSegments::new("host", ALIGNMENT));
        let [caching, expandable] = [false, true].map(|expandable| over(model(&trace, expandable)));
        let reserved = over(best_fit.peak_reserved);
        println!(
            "{name:<17} {blocks:>7} {:>10} {:>8.3} {:>8.3} | {reserved:>7.3} {:>10.3} {:>10.3} {:>6.3} | {caching:>7.3} {expandable:>10.3}",
            Bytes(peak).to_string(),
            over(planned.lower_bound),
            over(planned.size),
            over(per_step),
            over(gpu.peak_reserved),
            over(fixed.peak_reserved),
        );
        ratios.push(reserved);
        if reserved > expandable {
            above.push(*name);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let (median, worst) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
    println!("BestFit: median {median:.3}, worst {worst:.3}; above expandable segments: {above:?}");
    Ok(())
}

/// Number of blocks, and peak of live bytes as they were requested.
fn size(trace: &AllocationTrace) -> (usize, u64) {
    let (mut sizes, mut live, mut peak) = (Vec::new(), 0, 0);
    for event in &trace.events {
        match event {
            Event::Allocate(size) => {
                sizes.push(size.0);
                live += size.0;
                peak = peak.max(live);
            }
            Event::Free(block) => live -= sizes[*block as usize],
        }
    }
    (sizes.len(), peak)
}

/// The statistics after a replay, and what each step gave back after the first two.
fn replay(trace: &AllocationTrace, segments: VirtualSegments) -> (MemoryStats, Bytes) {
    let allocator = BestFit::new(segments, BestFitOptions::default()).expect("no limit");
    let owner = OwnerId::named("trace");
    let mut blocks: Vec<Option<Block>> = Vec::new();
    let (early, mut given) = (traces::first_steps(trace, 2).events.len(), Bytes::ZERO);
    for (index, event) in trace.events.iter().enumerate() {
        if index == early {
            given = allocator.stats().given_back;
        }
        match event {
            Event::Allocate(size) => blocks.push(Some(allocator.allocate(Request::new(*size, owner)).expect("no limit"))),
            Event::Free(block) => allocator.free(blocks[*block as usize].take().expect("freed once")).expect("its own block"),
        }
    }
    let stats = allocator.stats();
    let per_step = Bytes((stats.given_back - given).0 / (traces::STEPS as u64 - 2));
    (stats, per_step)
}

fn model(trace: &AllocationTrace, expandable: bool) -> Bytes {
    let (mut model, mut blocks) = (CachingAllocator::new(expandable), 0);
    for event in &trace.events {
        match event {
            Event::Allocate(size) => {
                model.allocate(blocks, size.0);
                blocks += 1;
            }
            Event::Free(block) => model.free(*block),
        }
    }
    Bytes(model.reserved)
}
