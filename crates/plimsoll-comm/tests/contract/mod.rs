//! What every group does, checked on each of its ranks at the same time.

use plimsoll_comm::{CommError, Group, Reduction};

/// Numbers that tell ranks and places apart, and that add up exactly.
fn numbers(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (rank * 1000 + i % 977) as f32).collect()
}

/// Sums of those over all ranks.
fn sums(size: usize, count: usize) -> Vec<f32> {
    let ranks: usize = (0..size).sum();
    (0..count).map(|i| (ranks * 1000 + size * (i % 977)) as f32).collect()
}

/// Checks all operations.
pub fn check_group(group: &dyn Group) {
    let (rank, size) = (group.rank(), group.size());
    assert!(rank < size);
    // Less than the buffer through which numbers pass, and more.
    for count in [1, 1000, 1_200_001] {
        let mut own = numbers(rank, count);
        group.all_reduce((&mut own[..]).into(), Reduction::Sum).unwrap();
        assert!(own == sums(size, count), "rank {rank}: sum of {count}");

        let blocks: Vec<f32> = (0..size).flat_map(|block| numbers(rank + block, count / size + 1)).collect();
        let mut block = vec![0.0; count / size + 1];
        group.reduce_scatter((&blocks[..]).into(), (&mut block[..]).into(), Reduction::Max).unwrap();
        assert!(block == numbers(size - 1 + rank, block.len()), "rank {rank}: block of the maximum of {count}");

        let mut all = vec![0.0; size * count];
        group.all_gather((&numbers(rank, count)[..]).into(), (&mut all[..]).into()).unwrap();
        assert!(all == (0..size).flat_map(|rank| numbers(rank, count)).collect::<Vec<f32>>(), "rank {rank}: gathered {count}");

        let root = size - 1;
        let mut copy = numbers(rank, count);
        group.broadcast((&mut copy[..]).into(), root).unwrap();
        assert!(copy == numbers(root, count), "rank {rank}: broadcast of {count}");

        // Around the ring: the first rank begins, so that none waits for itself.
        if size > 1 {
            let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
            let mut received = vec![0.0; count];
            if rank > 0 {
                group.receive((&mut received[..]).into(), previous).unwrap();
            }
            group.send((&numbers(rank, count)[..]).into(), next).unwrap();
            if rank == 0 {
                group.receive((&mut received[..]).into(), previous).unwrap();
            }
            assert!(received == numbers(previous, count), "rank {rank}: received {count}");
        }
    }
    other_numbers(group);
    split(group);
    wrong_calls(group);
    group.barrier().unwrap();
}

/// Numbers of every type, and every reduction.
fn other_numbers(group: &dyn Group) {
    let (rank, size) = (group.rank() as u64, group.size() as u64);
    let last = size - 1;
    let reduced = |reduction| {
        let (mut double, mut integer, mut byte) = ([rank as f64 + 0.5], [u64::MAX - rank], [rank as u8]);
        group.all_reduce((&mut double[..]).into(), reduction).unwrap();
        group.all_reduce((&mut integer[..]).into(), reduction).unwrap();
        group.all_reduce((&mut byte[..]).into(), reduction).unwrap();
        (double[0], integer[0], byte[0])
    };
    assert_eq!(reduced(Reduction::Max), (last as f64 + 0.5, u64::MAX, last as u8));
    assert_eq!(reduced(Reduction::Min), (0.5, u64::MAX - last, 0));
    let ranks: u64 = (0..size).sum();
    let integers = (0..size).fold(0u64, |sum, rank| sum.wrapping_add(u64::MAX - rank));
    assert_eq!(reduced(Reduction::Sum), (ranks as f64 + 0.5 * size as f64, integers, ranks as u8));
}

/// Even and odd ranks apart, in the opposite order; and a group of all ranks but the first.
fn split(group: &dyn Group) {
    let (rank, size) = (group.rank(), group.size());
    let half = group.split(Some((rank % 2) as u32), (size - rank) as u32).unwrap().expect("every rank has a color");
    let members: Vec<usize> = (0..size).filter(|other| other % 2 == rank % 2).rev().collect();
    assert_eq!((half.size(), members[half.rank()]), (members.len(), rank));
    let mut all = vec![0u64; members.len()];
    half.all_gather((&[rank as u64][..]).into(), (&mut all[..]).into()).unwrap();
    assert_eq!(all, members.iter().map(|rank| *rank as u64).collect::<Vec<u64>>());

    let others = group.split((rank > 0).then_some(0), 0).unwrap();
    assert_eq!(others.as_ref().map(|others| (others.rank(), others.size())), (rank > 0).then(|| (rank - 1, size - 1)));
    // Both groups at the same time, in turn.
    for group in others.iter().chain([&half]) {
        let mut count = [1.0f32];
        group.all_reduce((&mut count[..]).into(), Reduction::Sum).unwrap();
        assert_eq!(count[0] as usize, group.size());
    }
}

/// Calls that are refused at once, on every rank alike.
fn wrong_calls(group: &dyn Group) {
    let (rank, size) = (group.rank(), group.size());
    let mut block = [0.0f32; 3];
    let wrong = group.all_gather((&[1.0f32, 2.0][..]).into(), (&mut block[..]).into());
    let expected = format!(
        "rank {rank} of {size}: all_gather of {size} ranks takes blocks of one type and size: a rank's F32 × 2 do not match the F32 × 3 of \
         all ranks"
    );
    assert_eq!(wrong.unwrap_err().to_string(), expected);
    let wrong: CommError = group.send((&[1.0f32][..]).into(), rank).unwrap_err();
    assert_eq!(wrong.to_string(), format!("rank {rank} of {size}: send to rank {rank} is this rank itself; name another one"));
    let wrong = group.broadcast((&mut block[..]).into(), size).unwrap_err();
    assert_eq!(wrong.to_string(), format!("rank {rank} of {size}: broadcast from rank {size}: ranks are 0 to {}", size - 1));
}
