//! Groups of threads in one process. They are for tests: a run has one process per rank.

use crate::error::{CommError, Result, ranks_in_words};
use crate::group::{Group, Operation, check_blocks, check_peer};
use crate::numbers::{NumberType, Numbers, NumbersMut, Reduction, reduce};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One rank of a group of threads.
pub struct ThreadGroup {
    rank: usize,
    shared: Arc<Shared>,
}

/// What the ranks of a group share.
struct Shared {
    size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The collective under way: its operation, and what each rank has given.
    under_way: Option<Operation>,
    given: Vec<Option<Vec<u8>>>,
    /// What the ranks gave to the last complete collective, until each has taken it.
    complete: Option<(Arc<Vec<Vec<u8>>>, usize)>,
    /// Messages from one rank to another.
    messages: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// Groups that a split creates, by color, with the number of ranks that have not joined yet.
    children: HashMap<u32, (Arc<Shared>, usize)>,
    /// The first error of any rank.
    failed: Option<String>,
}

impl ThreadGroup {
    /// The ranks of a new group, each for its own thread. A rank waits for others no longer than `timeout`.
    pub fn new(size: usize, timeout: Duration) -> Vec<ThreadGroup> {
        let shared = Shared::new(size, timeout);
        (0..size).map(|rank| ThreadGroup { rank, shared: Arc::clone(&shared) }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for one operation, unless an earlier one of any rank failed.
    fn begin(&self, operation: Operation) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        match &state.failed {
            None => Ok(state),
            Some(first) => Err(self.unusable(operation, first)),
        }
    }

    fn unusable(&self, operation: Operation, first: &str) -> CommError {
        CommError::Unusable { rank: self.rank, size: self.shared.size, operation: operation.in_words(), first: first.to_string() }
    }

    fn failed(&self, operation: Operation, what: String) -> CommError {
        CommError::Failed { rank: self.rank, size: self.shared.size, operation: operation.in_words(), what }
    }

    /// Waits for a change until `ready`, no longer than the timeout.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        operation: Operation,
        ready: impl Fn(&State) -> bool,
        missing: impl FnOnce(&State) -> String,
    ) -> Result<MutexGuard<'a, State>> {
        let waiting = |state: &mut State| state.failed.is_none() && !ready(state);
        let (mut state, _) =
            self.shared.changed.wait_timeout_while(state, self.shared.timeout, waiting).unwrap_or_else(PoisonError::into_inner);
        if ready(&state) {
            return Ok(state);
        }
        if let Some(first) = &state.failed {
            return Err(self.unusable(operation, first));
        }
        let (rank, size, operation) = (self.rank, self.shared.size, operation.in_words());
        let error = CommError::Timeout { rank, size, operation, waited: self.shared.timeout, missing: missing(&state) };
        state.failed = Some(error.to_string());
        self.shared.changed.notify_all();
        Err(error)
    }

    /// Gives bytes to a collective and returns those of all ranks.
    fn exchange(&self, operation: Operation, bytes: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>> {
        // Every rank must have taken the last result first.
        let mut state =
            self.wait(self.begin(operation)?, operation, |state| state.complete.is_none(), |_| "other ranks have not finished".into())?;
        match state.under_way.replace(operation) {
            Some(other) if other != operation => {
                let what = format!("another rank of the group called {} instead; every rank calls the same operations", other.in_words());
                state.failed = Some(what.clone());
                self.shared.changed.notify_all();
                return Err(self.failed(operation, what));
            }
            _ => {}
        }
        state.given[self.rank] = Some(bytes);
        if state.given.iter().all(Option::is_some) {
            let all = state.given.iter_mut().map(|given| given.take().expect("all are there")).collect();
            state.complete = Some((Arc::new(all), self.shared.size));
            state.under_way = None;
            self.shared.changed.notify_all();
        }
        let missing = |state: &State| {
            let missing: Vec<usize> = (0..self.shared.size).filter(|rank| state.given[*rank].is_none()).collect();
            ranks_in_words(&missing, "has not called it", "have not called it")
        };
        let mut state = self.wait(state, operation, |state| state.complete.is_some(), missing)?;
        let (all, left) = state.complete.as_mut().expect("waited for");
        let all = Arc::clone(all);
        *left -= 1;
        if *left == 0 {
            state.complete = None;
            self.shared.changed.notify_all();
        }
        Ok(all)
    }

    /// The numbers of all ranks, reduced in the order of ranks.
    fn reduced(&self, operation: Operation, numbers: Numbers<'_>, reduction: Reduction) -> Result<Vec<u8>> {
        let of: NumberType = numbers.number_type();
        let all = self.exchange(operation, numbers.bytes().to_vec())?;
        let mut sum = all[0].clone();
        for (rank, bytes) in all.iter().enumerate().skip(1) {
            if bytes.len() != sum.len() {
                let what = format!("rank {rank} gave {} bytes, but rank 0 gave {}", bytes.len(), sum.len());
                return Err(self.failed(operation, what));
            }
            reduce(&mut sum, bytes, of, reduction);
        }
        Ok(sum)
    }
}

impl Shared {
    fn new(size: usize, timeout: Duration) -> Arc<Shared> {
        let state = State { given: vec![None; size], ..State::default() };
        Arc::new(Shared { size, timeout, state: Mutex::new(state), changed: Condvar::new() })
    }
}

impl Group for ThreadGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Group>>> {
        let given = [color.map_or(u64::MAX, u64::from), u64::from(key)];
        let all = self.exchange(Operation::Split, Numbers::from(&given[..]).bytes().to_vec())?;
        let number = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let Some(color) = color else { return self.barrier().map(|()| None) };
        let mut ranks: Vec<usize> = (0..all.len()).filter(|rank| number(&all[*rank], 0) == u64::from(color)).collect();
        ranks.sort_by_key(|rank| (number(&all[*rank], 8), *rank));
        let place = ranks.iter().position(|rank| *rank == self.rank).expect("this rank gave the color");
        let shared = {
            let mut state = self.lock();
            let timeout = self.shared.timeout;
            let (shared, left) = state.children.entry(color).or_insert_with(|| (Shared::new(ranks.len(), timeout), ranks.len()));
            let shared = Arc::clone(shared);
            *left -= 1;
            if *left == 0 {
                state.children.remove(&color);
            }
            shared
        };
        // The next split must not find the groups of this one.
        self.barrier()?;
        Ok(Some(Box::new(ThreadGroup { rank: place, shared })))
    }

    fn all_reduce(&self, mut numbers: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        let sum = self.reduced(Operation::AllReduce, numbers.shared(), reduction)?;
        numbers.bytes().copy_from_slice(&sum);
        Ok(())
    }

    fn reduce_scatter(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        check_blocks(self, Operation::ReduceScatter, &receive.shared(), &send)?;
        let sum = self.reduced(Operation::ReduceScatter, send, reduction)?;
        let receive = receive.bytes();
        receive.copy_from_slice(&sum[self.rank * receive.len()..][..receive.len()]);
        Ok(())
    }

    fn all_gather(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>) -> Result<()> {
        check_blocks(self, Operation::AllGather, &send, &receive.shared())?;
        let all = self.exchange(Operation::AllGather, send.bytes().to_vec())?;
        receive.bytes().copy_from_slice(&all.concat());
        Ok(())
    }

    fn broadcast(&self, mut numbers: NumbersMut<'_>, root: usize) -> Result<()> {
        check_peer(self, Operation::Broadcast(root), root)?;
        let given = if self.rank == root { numbers.bytes().to_vec() } else { Vec::new() };
        let all = self.exchange(Operation::Broadcast(root), given)?;
        numbers.bytes().copy_from_slice(&all[root]);
        Ok(())
    }

    fn send(&self, numbers: Numbers<'_>, to: usize) -> Result<()> {
        check_peer(self, Operation::Send(to), to)?;
        self.begin(Operation::Send(to))?.messages.entry((self.rank, to)).or_default().push_back(numbers.bytes().to_vec());
        self.shared.changed.notify_all();
        Ok(())
    }

    fn receive(&self, mut numbers: NumbersMut<'_>, from: usize) -> Result<()> {
        let operation = Operation::Receive(from);
        check_peer(self, operation, from)?;
        let there = |state: &State| state.messages.get(&(from, self.rank)).is_some_and(|messages| !messages.is_empty());
        let missing = |_: &State| format!("rank {from} has not sent it");
        let mut state = self.wait(self.begin(operation)?, operation, there, missing)?;
        let message = state.messages.get_mut(&(from, self.rank)).and_then(VecDeque::pop_front).expect("waited for");
        let numbers = numbers.bytes();
        if message.len() != numbers.len() {
            let what = format!("rank {from} sent {} bytes, but {} are expected", message.len(), numbers.len());
            return Err(self.failed(operation, what));
        }
        numbers.copy_from_slice(&message);
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.exchange(Operation::Barrier, Vec::new()).map(drop)
    }

    fn owned_bytes(&self) -> u64 {
        0
    }
}
