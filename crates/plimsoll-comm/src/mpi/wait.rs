//! Waiting for other ranks, no longer than the timeout, and finding out which of them is late.
//!
//! Collectives are started without blocking and tested until they are complete. A rank whose timeout has passed asks
//! all others what they are in. Ranks that wait themselves look for such questions and answer them; those that do not
//! answer are computing, blocked, or gone.

use super::communicator::Communicator;
use super::functions::Handle;
use crate::error::{CommError, Result, ranks_in_words};
use crate::group::Operation;
use crate::numbers::NumberType;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Tags of questions and answers.
const QUESTION: c_int = 2;
const ANSWER: c_int = 3;

/// The clock is read once per so many tests.
const TESTS: u32 = 64;

/// A rank that has waited this long pauses between tests, and looks for questions.
const LONG: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(200);

/// How long other ranks have to answer: as long as the timeout, within these bounds.
const TO_ANSWER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// The numbers of a message.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub count: c_int,
    pub of: NumberType,
}

/// A buffer for the status of a message: larger and more aligned than that of any library, which has at most eight
/// `int`.
type Status = [u64; 8];

/// What a rank is in: how many collectives of the group it has begun, the operation, and its other rank.
type Whereabouts = [u64; 3];

impl<H: Handle> Communicator<H> {
    /// Waits until a request is complete.
    ///
    /// # Errors
    /// If it fails, or is not complete in time. It may then still be under way: what it reads and writes must stay.
    pub fn wait(&self, request: &mut H, operation: Operation, expected: Option<Expected>) -> Result<()> {
        let collective = !matches!(operation, Operation::Send(_) | Operation::Receive(_));
        let begun = self.collectives.fetch_add(u64::from(collective), Ordering::Relaxed) + u64::from(collective);
        let here = whereabouts(begun, operation);
        let start = Instant::now();
        let timeout = self.library.timeout;
        let (mut tests, mut status): (u32, Status) = (0, [0; 8]);
        while !self.is_complete_with(request, operation, status.as_mut_ptr().cast())? {
            tests = tests.wrapping_add(1);
            if tests.is_multiple_of(TESTS) {
                let waited = start.elapsed();
                if waited >= timeout {
                    return self.late(request, operation, here);
                }
                if waited >= LONG {
                    self.answer(operation, here)?;
                    thread::sleep(PAUSE);
                }
            }
            thread::yield_now();
        }
        expected.map_or(Ok(()), |expected| self.check_count(&status, expected, operation))
    }

    fn is_complete(&self, request: &mut H, operation: Operation) -> Result<bool> {
        self.is_complete_with(request, operation, self.status_ignore())
    }

    /// Whether a request is complete; if it is, the library writes its status.
    fn is_complete_with(&self, request: &mut H, operation: Operation, status: *mut c_void) -> Result<bool> {
        let mut complete = 0;
        // SAFETY: a request of the library that is called; the status is a buffer for one, or the one that is ignored.
        self.check(unsafe { (self.library.functions.test)(request, &mut complete, status) }, operation)?;
        Ok(complete != 0)
    }

    /// Checks that a complete message has so many numbers.
    fn check_count(&self, status: &Status, expected: Expected, operation: Operation) -> Result<()> {
        let (of, mut count) = (self.library.constants.type_of(expected.of), 0);
        // SAFETY: the library wrote the status.
        self.check(unsafe { (self.library.functions.get_count)(status.as_ptr().cast(), of, &mut count) }, operation)?;
        if count == expected.count {
            return Ok(());
        }
        let what = format!("{count} numbers have come, but {} are expected; both ranks name the same number", expected.count);
        Err(CommError::Failed { rank: self.rank, size: self.size, operation: operation.in_words(), what })
    }

    /// Asks the ranks that are waited for what they are in; success if the request is complete after all.
    fn late(&self, request: &mut H, operation: Operation, here: Whereabouts) -> Result<()> {
        let awaited: Vec<usize> = match operation {
            Operation::Send(peer) | Operation::Receive(peer) => vec![peer],
            _ => (0..self.size).filter(|rank| *rank != self.rank).collect(),
        };
        for rank in &awaited {
            self.give(*rank, QUESTION, [0; 3], operation)?;
        }
        let mut answers: Vec<Option<Whereabouts>> = vec![None; awaited.len()];
        let start = Instant::now();
        let to_answer = self.library.timeout.clamp(TO_ANSWER[0], TO_ANSWER[1]);
        while start.elapsed() < to_answer && answers.iter().any(Option::is_none) {
            for (rank, answer) in awaited.iter().zip(&mut answers) {
                if answer.is_none() {
                    *answer = self.take(*rank, ANSWER, operation)?;
                }
            }
            if self.is_complete(request, operation)? {
                return Ok(());
            }
            self.answer(operation, here)?;
            thread::sleep(PAUSE);
        }
        Err(CommError::Timeout {
            rank: self.rank,
            size: self.size,
            operation: operation.in_words(),
            waited: self.library.timeout,
            missing: missing(&awaited, &answers, here),
        })
    }

    /// Answers the ranks that ask.
    fn answer(&self, operation: Operation, here: Whereabouts) -> Result<()> {
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            if self.take(rank, QUESTION, operation)?.is_some() {
                self.give(rank, ANSWER, here, operation)?;
            }
        }
        Ok(())
    }

    /// Sends a few numbers without waiting until they are received.
    fn give(&self, to: usize, tag: c_int, numbers: Whereabouts, operation: Operation) -> Result<()> {
        // The other rank may never receive them. This happens only before a run fails.
        let numbers: &'static Whereabouts = Box::leak(Box::new(numbers));
        let request: &'static mut H = Box::leak(Box::new(self.library.constants.no_request));
        let of = self.library.constants.type_of(NumberType::U64);
        // SAFETY: handles of the library that is called; the numbers live as long as the process.
        let code = unsafe {
            (self.library.functions.isend)(numbers.as_ptr().cast(), numbers.len() as c_int, of, to as c_int, tag, self.questions, request)
        };
        self.check(code, operation)?;
        self.is_complete(request, operation).map(drop)
    }

    /// Receives what another rank gave, if it has arrived.
    fn take(&self, from: usize, tag: c_int, operation: Operation) -> Result<Option<Whereabouts>> {
        let functions = &self.library.functions;
        let mut arrived = 0;
        // SAFETY: handles of the library that is called; the status is not read.
        let code = unsafe { (functions.iprobe)(from as c_int, tag, self.questions, &mut arrived, self.status_ignore()) };
        self.check(code, operation)?;
        if arrived == 0 {
            return Ok(None);
        }
        let (mut numbers, mut request): (Box<Whereabouts>, _) = (Box::new([0; 3]), self.library.constants.no_request);
        let of = self.library.constants.type_of(NumberType::U64);
        // SAFETY: as above; the numbers live until the request is complete, which it is soon, or are leaked.
        let code = unsafe {
            (functions.irecv)(numbers.as_mut_ptr().cast(), numbers.len() as c_int, of, from as c_int, tag, self.questions, &mut request)
        };
        self.check(code, operation)?;
        loop {
            match self.is_complete(&mut request, operation) {
                Ok(true) => return Ok(Some(*numbers)),
                Ok(false) => thread::yield_now(),
                Err(error) => {
                    Box::leak(numbers);
                    return Err(error);
                }
            }
        }
    }

    fn status_ignore(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.library.constants.status_ignore as usize)
    }
}

fn whereabouts(begun: u64, operation: Operation) -> Whereabouts {
    let (kind, peer) = match operation {
        Operation::Split => (0, 0),
        Operation::AllReduce => (1, 0),
        Operation::ReduceScatter => (2, 0),
        Operation::AllGather => (3, 0),
        Operation::Broadcast(root) => (4, root),
        Operation::Send(to) => (5, to),
        Operation::Receive(from) => (6, from),
        Operation::Barrier => (7, 0),
    };
    [begun, kind, peer as u64]
}

fn operation([_, kind, peer]: Whereabouts) -> Operation {
    let peer = peer as usize;
    match kind {
        0 => Operation::Split,
        1 => Operation::AllReduce,
        2 => Operation::ReduceScatter,
        3 => Operation::AllGather,
        4 => Operation::Broadcast(peer),
        5 => Operation::Send(peer),
        6 => Operation::Receive(peer),
        _ => Operation::Barrier,
    }
}

/// What is known of the ranks that are waited for.
fn missing(awaited: &[usize], answers: &[Option<Whereabouts>], here: Whereabouts) -> String {
    let silent: Vec<usize> = awaited.iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(rank, _)| *rank).collect();
    let mut parts = Vec::new();
    if !silent.is_empty() {
        let what = "has not called it and does not answer: it computes, is blocked, or has ended";
        let what_of_several = "have not called it and do not answer: they compute, are blocked, or have ended";
        parts.push(ranks_in_words(&silent, what, what_of_several));
    }
    for (rank, answer) in awaited.iter().zip(answers) {
        if let Some(there) = answer.filter(|there| *there != here) {
            parts.push(format!("rank {rank} waits in {}", operation(there).in_words()));
        }
    }
    match parts.is_empty() {
        true => "every other rank is in it too, so that the network or the library does not deliver".to_string(),
        false => parts.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ranks_are_named_with_what_they_do() {
        let here = whereabouts(7, Operation::AllReduce);
        let there = |operation| Some(whereabouts(7, operation));
        let cases = [
            (
                vec![None, there(Operation::AllReduce)],
                "rank 1 has not called it and does not answer: it computes, is blocked, or has ended",
            ),
            (vec![None, None], "ranks 1 and 2 have not called it and do not answer: they compute, are blocked, or have ended"),
            (vec![there(Operation::Broadcast(0)), there(Operation::AllReduce)], "rank 1 waits in broadcast from rank 0"),
            // One all_reduce behind.
            (vec![Some(whereabouts(6, Operation::AllReduce)), there(Operation::AllReduce)], "rank 1 waits in all_reduce"),
            (vec![there(Operation::AllReduce); 2], "every other rank is in it too, so that the network or the library does not deliver"),
        ];
        for (answers, text) in cases {
            assert_eq!(missing(&[1, 2], &answers, here), text);
        }
    }

    #[test]
    fn operations_survive_an_answer() {
        let all = [
            Operation::Split,
            Operation::AllReduce,
            Operation::ReduceScatter,
            Operation::AllGather,
            Operation::Broadcast(3),
            Operation::Send(1),
            Operation::Receive(2),
            Operation::Barrier,
        ];
        for each in all {
            assert_eq!(operation(whereabouts(9, each)), each);
        }
    }
}
