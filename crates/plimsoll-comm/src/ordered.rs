//! Sums over ranks in an order that the caller states: an all-reduce of MPI promises none.

use crate::error::Result;
use crate::group::Group;
use crate::numbers::{Numbers, NumbersMut};
use std::ops::AddAssign;

/// Adds numbers of some ranks in the order of `pairs`: the right rank of each sends what it has so far, and the left
/// one adds that to its own. All ranks then get what `root` has. `spare` has as many numbers.
///
/// ```
/// use plimsoll_comm::{Alone, sum_in_order};
/// let (mut numbers, mut spare) = ([1.0f32, 2.0], [0.0; 2]);
/// sum_in_order(&Alone, &mut numbers, &mut spare, [], 0)?;
/// assert_eq!(numbers, [1.0, 2.0]);
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
///
/// # Errors
/// If another rank does not take part, or there is no such rank.
pub fn sum_in_order<T>(
    group: &dyn Group,
    numbers: &mut [T],
    spare: &mut [T],
    pairs: impl IntoIterator<Item = (usize, usize)>,
    root: usize,
) -> Result<()>
where
    T: Copy + AddAssign + 'static,
    for<'a> Numbers<'a>: From<&'a [T]>,
    for<'a> NumbersMut<'a>: From<&'a mut [T]>,
{
    let rank = group.rank();
    for (left, right) in pairs {
        if rank == right {
            group.send((&*numbers).into(), left)?;
        } else if rank == left {
            let received = &mut spare[..numbers.len()];
            group.receive((&mut *received).into(), right)?;
            numbers.iter_mut().zip(received).for_each(|(sum, number)| *sum += *number);
        }
    }
    if group.size() == 1 {
        return Ok(());
    }
    group.broadcast(numbers.into(), root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::ThreadGroup;
    use std::time::Duration;

    #[test]
    fn numbers_are_added_in_the_stated_order() {
        // Each of them is lost beside a larger one: the order decides.
        let own = [1.0f32, 3e-8, 3e-8, 3e-8];
        let sum = |pairs: &[(usize, usize)], root| {
            let groups = ThreadGroup::new(4, Duration::from_secs(60));
            std::thread::scope(|scope| {
                let start = |group: ThreadGroup| {
                    scope.spawn(move || {
                        let (mut numbers, mut spare) = ([own[group.rank()], group.rank() as f32], [0.0; 2]);
                        sum_in_order(&group, &mut numbers, &mut spare, pairs.iter().copied(), root).unwrap();
                        numbers
                    })
                };
                let threads: Vec<_> = groups.into_iter().map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let one_by_one = sum(&[(0, 1), (0, 2), (0, 3)], 0);
        let small_first = sum(&[(2, 3), (1, 2), (0, 1)], 0);
        assert_eq!((one_by_one, small_first), (vec![[1.0, 6.0]; 4], vec![[1.0 + 9e-8, 6.0]; 4]));
        // A rank that is in no pair only receives.
        assert_eq!(sum(&[(3, 2)], 3), vec![[6e-8, 5.0]; 4]);
    }
}
