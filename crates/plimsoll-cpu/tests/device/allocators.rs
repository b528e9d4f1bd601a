//! Allocators over memory of the CPU device: contents, compaction, and pages that are given back.

use plimsoll_core::Bytes;
use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, Block, DeviceSegments, Limit, OwnerId, Request, System};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

fn segments() -> DeviceSegments {
    DeviceSegments::new(Arc::new(CpuDevice::new(1).unwrap())).unwrap()
}

fn write(segments: &DeviceSegments, allocator: &dyn Allocator, block: &Block, pattern: u8) {
    let range = allocator.range(block);
    segments.with(range.segment, |memory| memory.write(range.offset, &vec![pattern; range.size.get()])).unwrap().unwrap();
}

fn read(segments: &DeviceSegments, allocator: &dyn Allocator, block: &Block) -> Vec<u8> {
    let range = allocator.range(block);
    let mut bytes = vec![0; range.size.get()];
    segments.with(range.segment, |memory| memory.read(range.offset, &mut bytes)).unwrap().unwrap();
    bytes
}

#[test]
fn blocks_keep_their_bytes_while_others_come_and_go_and_move() {
    for segments in [segments(), DeviceSegments::fixed(Arc::new(CpuDevice::new(1).unwrap()))] {
        let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(24)), ..BestFitOptions::default() };
        let allocator = BestFit::new(segments.clone(), options).unwrap();
        let (mut blocks, mut state): (Vec<(Block, u8)>, u64) = (Vec::new(), 1);
        let mut refused = 0;
        for round in 0..3000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = state >> 40 & ((1 << (state >> 33 & 31).min(21)) - 1);
            match allocator.allocate(Request::new(Bytes(size), OwnerId::named("random"))) {
                Ok(block) => {
                    write(&segments, &allocator, &block, round as u8);
                    blocks.push((block, round as u8));
                }
                Err(_) => refused += 1,
            }
            if state >> 63 == 0 || refused % 8 == 7 {
                let (block, pattern) = blocks.swap_remove((state >> 32) as usize % blocks.len());
                assert!(read(&segments, &allocator, &block).iter().all(|byte| *byte == pattern), "block of round {pattern}");
                allocator.free(block).unwrap();
            }
            if round % 500 == 499 {
                allocator.compact(&mut |moved| segments.copy(moved).is_ok());
            }
        }
        assert!(refused > 0, "the limit was reached");
        for (block, pattern) in blocks {
            assert!(read(&segments, &allocator, &block).iter().all(|byte| *byte == pattern));
            allocator.free(block).unwrap();
        }
        allocator.give_back().unwrap();
        assert_eq!((allocator.stats().in_use, allocator.stats().reserved), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn pages_that_were_given_back_are_zero() {
    let segments = segments();
    let allocator = BestFit::new(segments.clone(), BestFitOptions::default()).unwrap();
    let ask = |size| allocator.allocate(Request::new(size, OwnerId::named("a"))).unwrap();
    let (block, last) = (ask(Bytes::mib(8)), ask(Bytes::mib(2)));
    let place = allocator.range(&block);
    write(&segments, &allocator, &block, 7);
    allocator.free(block).unwrap();
    let before = allocator.stats().reserved;
    let given = allocator.give_back().unwrap();
    assert!(given >= Bytes::mib(8) && allocator.stats().reserved == before - given);
    let again = ask(Bytes::mib(8));
    assert_eq!(allocator.range(&again), place, "memory is committed where it was given back");
    assert!(read(&segments, &allocator, &again).iter().all(|byte| *byte == 0));
    allocator.free(again).unwrap();
    allocator.free(last).unwrap();
}

#[test]
fn every_block_of_system_is_an_allocation_of_the_device() {
    let segments = DeviceSegments::fixed(Arc::new(CpuDevice::new(1).unwrap()));
    let system = System::new(segments.clone(), None);
    let block = system.allocate(Request::new(Bytes::mib(1), OwnerId::named("a"))).unwrap();
    write(&segments, &system, &block, 3);
    assert_eq!(segments.with(system.range(&block).segment, |memory| memory.size()), Some(Bytes::mib(1)));
    let place = system.range(&block).segment;
    system.free(block).unwrap();
    assert_eq!(segments.with(place, |_| ()), None);
}
