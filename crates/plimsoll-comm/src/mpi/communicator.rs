//! One communicator of MPI as a group.

use super::abi::Constants;
use super::functions::{Functions, Handle};
use super::wait::Expected;
use crate::error::{CommError, Result};
use crate::group::{Group, Operation, check_blocks, check_peer};
use crate::numbers::{NumberType, Numbers, NumbersMut, Reduction};
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The tag of messages between ranks.
const MESSAGE: c_int = 1;

/// The most bytes that one call of a collective gets, the blocks of all ranks together. Open MPI's non-blocking
/// collectives are ten times slower with more, and MPICH's allocate as much again, or twice that, in every call.
pub(super) const PART: usize = 256 << 10;

/// What creates a group, in errors.
const START: &str = "creating a group";

/// A started library, which the groups of a process share.
pub(super) struct Library<H: Handle> {
    pub functions: Functions<H>,
    pub constants: Constants<H>,
    pub timeout: Duration,
    /// Locked during every call: a process makes one at a time.
    pub state: Mutex<State<H>>,
    /// Memory of communication, once it is measured.
    pub owned: OnceLock<u64>,
}

pub(super) struct State<H: Handle> {
    /// What the library reads and writes. Only this buffer is ever handed to it: a call that is given up after a
    /// timeout may be completed by the library later, and must not write to memory of somebody else.
    staging: Vec<u64>,
    /// The operation under way, which the library may write to as long.
    request: Option<Box<H>>,
    /// The first error.
    pub failed: Option<String>,
}

impl<H: Handle> State<H> {
    /// A buffer of this size. `none` is the request of no operation.
    pub fn new(bytes: usize, none: H) -> State<H> {
        State { staging: vec![0; bytes / 8], request: Some(Box::new(none)), failed: None }
    }

    fn address(&mut self) -> *mut c_void {
        self.staging.as_mut_ptr().cast()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the bytes of the integers, borrowed as long; any bytes are integers.
        unsafe { std::slice::from_raw_parts_mut(self.staging.as_mut_ptr().cast(), self.staging.len() * 8) }
    }
}

impl<H: Handle> Drop for Library<H> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.failed.is_some() || std::thread::panicking() {
            // A call may still be under way.
            mem::forget((mem::take(&mut state.staging), state.request.take()));
            return;
        }
        // SAFETY: MPI was started, no call is under way, and this is the last use of the library.
        unsafe { (self.functions.finalize)() };
    }
}

/// A communicator.
pub(super) struct Communicator<H: Handle> {
    pub library: Arc<Library<H>>,
    /// For operations.
    messages: H,
    /// For questions about ranks that are waited for.
    pub questions: H,
    pub rank: usize,
    pub size: usize,
    /// How many collectives this rank has begun.
    pub collectives: AtomicU64,
}

impl<H: Handle> Library<H> {
    /// An error if a call of this rank returned one.
    pub fn check(&self, code: c_int, (rank, size): (usize, usize), operation: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = (vec![0u8; self.constants.max_text], 0);
        // SAFETY: the buffer has the size that the library asks for.
        let known = unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &mut length) } == 0;
        text.truncate(usize::try_from(length).unwrap_or(0));
        let what = if known { String::from_utf8_lossy(&text).trim_end_matches('\0').to_string() } else { format!("code {code}") };
        Err(CommError::Failed { rank, size, operation: operation.to_string(), what })
    }
}

impl<H: Handle> Communicator<H> {
    /// All ranks.
    pub fn world(library: &Arc<Library<H>>) -> Result<Communicator<H>> {
        let Library { functions, constants, .. } = &**library;
        let mut messages = constants.world;
        // SAFETY: handles of the library that is called. Communicators derived from this one inherit the error handler.
        unsafe {
            library.check((functions.comm_set_errhandler)(constants.world, constants.errors_return), (0, 1), START)?;
            library.check((functions.comm_dup)(constants.world, &mut messages), (0, 1), START)?;
        }
        Communicator::of(library, messages)
    }

    /// A communicator that nobody else uses, as a group.
    fn of(library: &Arc<Library<H>>, messages: H) -> Result<Communicator<H>> {
        let (mut rank, mut size, mut questions) = (0, 1, messages);
        let functions = &library.functions;
        // SAFETY: a communicator of the library that is called.
        unsafe {
            library.check((functions.comm_rank)(messages, &mut rank), (0, 1), START)?;
            library.check((functions.comm_size)(messages, &mut size), (0, 1), START)?;
            library.check((functions.comm_dup)(messages, &mut questions), (rank as usize, size as usize), START)?;
        }
        let (rank, size, library) = (rank as usize, size as usize, Arc::clone(library));
        Ok(Communicator { library, messages, questions, rank, size, collectives: AtomicU64::new(0) })
    }

    /// An error if a call returned one.
    pub fn check(&self, code: c_int, operation: Operation) -> Result<()> {
        // Words only for errors: requests are tested often, and steps allocate nothing.
        if code == 0 { Ok(()) } else { self.library.check(code, (self.rank, self.size), &operation.in_words()) }
    }

    /// The library, for one operation, unless an earlier one failed.
    fn lock(&self, operation: Operation) -> Result<MutexGuard<'_, State<H>>> {
        let state = self.library.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.failed.clone() {
            None => Ok(state),
            Some(first) => Err(CommError::Unusable { rank: self.rank, size: self.size, operation: operation.in_words(), first }),
        }
    }

    /// Starts an operation on the staging buffer and waits for it. An error makes the library unusable.
    fn complete(
        &self,
        state: &mut State<H>,
        operation: Operation,
        start: impl FnOnce(&Functions<H>, *mut c_void, *mut H) -> c_int,
    ) -> Result<()> {
        self.complete_with(state, operation, None, start)
    }

    /// The same for a message, whose number of numbers is checked.
    fn complete_with(
        &self,
        state: &mut State<H>,
        operation: Operation,
        expected: Option<Expected>,
        start: impl FnOnce(&Functions<H>, *mut c_void, *mut H) -> c_int,
    ) -> Result<()> {
        let mut request = state.request.take().expect("put back unless the library is unusable");
        let done = match self.check(start(&self.library.functions, state.address(), &mut *request), operation) {
            Ok(()) => self.wait(&mut request, operation, expected),
            Err(error) => Err(error),
        };
        state.request = Some(request);
        done.inspect_err(|error| state.failed = Some(error.to_string()))
    }

    fn in_place(&self) -> *const c_void {
        std::ptr::without_provenance(self.library.constants.in_place as usize)
    }

    /// The bytes of a block that pass the staging buffer at once, beside those of `blocks - 1` others.
    fn part(state: &State<H>, blocks: usize) -> usize {
        (state.staging.len().min(PART / 8) / blocks).max(1) * 8
    }

    /// Runs the collectives of training steps once with as many bytes as they pass, for which libraries allocate
    /// memory.
    pub fn warm_up(&self) -> Result<()> {
        let constants = &self.library.constants;
        let (of, sum) = (constants.type_of(NumberType::F32), constants.operation(Reduction::Sum));
        let mut state = self.lock(Operation::AllReduce)?;
        let [all, block] = [1, self.size].map(|blocks| count(Self::part(&state, blocks), NumberType::F32));
        self.complete(&mut state, Operation::AllReduce, |f, staging, request| {
            // SAFETY: the staging buffer has so many zeros, and outlives the call.
            unsafe { (f.iallreduce)(self.in_place(), staging, all, of, sum, self.messages, request) }
        })?;
        self.complete(&mut state, Operation::ReduceScatter, |f, staging, request| {
            // SAFETY: as above, of all blocks together.
            unsafe { (f.ireduce_scatter_block)(self.in_place(), staging, block, of, sum, self.messages, request) }
        })?;
        self.complete(&mut state, Operation::AllGather, |f, staging, request| {
            // SAFETY: as above.
            unsafe { (f.iallgather)(self.in_place(), block, of, staging, block, of, self.messages, request) }
        })
    }

    /// All blocks of a tensor, in parts that fit the staging buffer. `block` bytes belong to each rank.
    fn in_parts(
        &self,
        operation: Operation,
        block: usize,
        of: NumberType,
        mut part: impl FnMut(&mut State<H>, std::ops::Range<usize>, c_int) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.lock(operation)?;
        let most = Self::part(&state, self.size);
        for from in (0..block).step_by(most) {
            let to = (from + most).min(block);
            let count = count(to - from, of);
            part(&mut state, from..to, count)?;
        }
        Ok(())
    }
}

impl<H: Handle> Group for Communicator<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Group>>> {
        let in_int = |number: u32| c_int::try_from(number).is_ok();
        if !color.is_none_or(in_int) || !in_int(key) {
            let what = format!("split takes colors and keys up to {}, as MPI does", c_int::MAX);
            return Err(CommError::Usage { rank: self.rank, size: self.size, what });
        }
        // The calls below have no timeout, so everybody has to be there.
        self.barrier()?;
        let mut state = self.lock(Operation::Split)?;
        let Library { functions, constants, .. } = &*self.library;
        let (number, key) = (color.map_or(constants.undefined, |color| color as c_int), key as c_int);
        let mut messages = self.messages;
        // SAFETY: handles of the library that is called.
        let code = unsafe { (functions.comm_split)(self.messages, number, key, &mut messages) };
        let group = self.check(code, Operation::Split).and_then(|()| match color {
            None => Ok(None),
            Some(_) => Communicator::of(&self.library, messages).map(Some),
        });
        match group {
            Ok(group) => Ok(group.map(|group| Box::new(group) as Box<dyn Group>)),
            Err(error) => {
                state.failed = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn all_reduce(&self, mut numbers: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        let of = numbers.shared().number_type();
        let constants = &self.library.constants;
        let mut state = self.lock(Operation::AllReduce)?;
        let most = Self::part(&state, 1);
        for part in numbers.bytes().chunks_mut(most) {
            state.bytes()[..part.len()].copy_from_slice(part);
            let count = count(part.len(), of);
            let (of, reduction) = (constants.type_of(of), constants.operation(reduction));
            self.complete(&mut state, Operation::AllReduce, |f, staging, request| {
                // SAFETY: the staging buffer has this part, and outlives the call.
                unsafe { (f.iallreduce)(self.in_place(), staging, count, of, reduction, self.messages, request) }
            })?;
            part.copy_from_slice(&state.bytes()[..part.len()]);
        }
        Ok(())
    }

    fn reduce_scatter(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>, reduction: Reduction) -> Result<()> {
        check_blocks(self, Operation::ReduceScatter, &receive.shared(), &send)?;
        let of = send.number_type();
        let constants = &self.library.constants;
        let (send, receive) = (send.bytes(), receive.bytes());
        let block = receive.len();
        self.in_parts(Operation::ReduceScatter, block, of, |state, part, count| {
            for rank in 0..self.size {
                let from = &send[rank * block..][part.clone()];
                state.bytes()[rank * part.len()..][..part.len()].copy_from_slice(from);
            }
            let (of, reduction) = (constants.type_of(of), constants.operation(reduction));
            self.complete(state, Operation::ReduceScatter, |f, staging, request| {
                // SAFETY: the staging buffer has this part of every block, and outlives the call.
                unsafe { (f.ireduce_scatter_block)(self.in_place(), staging, count, of, reduction, self.messages, request) }
            })?;
            receive[part.clone()].copy_from_slice(&state.bytes()[..part.len()]);
            Ok(())
        })
    }

    fn all_gather(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>) -> Result<()> {
        check_blocks(self, Operation::AllGather, &send, &receive.shared())?;
        let of = send.number_type();
        let (send, receive) = (send.bytes(), receive.bytes());
        let block = send.len();
        self.in_parts(Operation::AllGather, block, of, |state, part, count| {
            state.bytes()[self.rank * part.len()..][..part.len()].copy_from_slice(&send[part.clone()]);
            let of = self.library.constants.type_of(of);
            self.complete(state, Operation::AllGather, |f, staging, request| {
                // SAFETY: the staging buffer has this part of every block, and outlives the call.
                unsafe { (f.iallgather)(self.in_place(), count, of, staging, count, of, self.messages, request) }
            })?;
            for rank in 0..self.size {
                let to = &mut receive[rank * block..][part.clone()];
                to.copy_from_slice(&state.bytes()[rank * part.len()..][..part.len()]);
            }
            Ok(())
        })
    }

    fn broadcast(&self, mut numbers: NumbersMut<'_>, root: usize) -> Result<()> {
        let operation = Operation::Broadcast(root);
        check_peer(self, operation, root)?;
        let of = numbers.shared().number_type();
        let mut state = self.lock(operation)?;
        let most = Self::part(&state, 1);
        for part in numbers.bytes().chunks_mut(most) {
            if self.rank == root {
                state.bytes()[..part.len()].copy_from_slice(part);
            }
            let count = count(part.len(), of);
            let of = self.library.constants.type_of(of);
            self.complete(&mut state, operation, |f, staging, request| {
                // SAFETY: the staging buffer has this part, and outlives the call.
                unsafe { (f.ibcast)(staging, count, of, root as c_int, self.messages, request) }
            })?;
            part.copy_from_slice(&state.bytes()[..part.len()]);
        }
        Ok(())
    }

    fn send(&self, numbers: Numbers<'_>, to: usize) -> Result<()> {
        let operation = Operation::Send(to);
        check_peer(self, operation, to)?;
        let of = numbers.number_type();
        let mut state = self.lock(operation)?;
        let most = Self::part(&state, 1);
        for part in numbers.bytes().chunks(most) {
            state.bytes()[..part.len()].copy_from_slice(part);
            let count = count(part.len(), of);
            let of = self.library.constants.type_of(of);
            self.complete(&mut state, operation, |f, staging, request| {
                // SAFETY: the staging buffer has this part, and outlives the call.
                unsafe { (f.isend)(staging, count, of, to as c_int, MESSAGE, self.messages, request) }
            })?;
        }
        Ok(())
    }

    fn receive(&self, mut numbers: NumbersMut<'_>, from: usize) -> Result<()> {
        let operation = Operation::Receive(from);
        check_peer(self, operation, from)?;
        let of = numbers.shared().number_type();
        let mut state = self.lock(operation)?;
        let most = Self::part(&state, 1);
        for part in numbers.bytes().chunks_mut(most) {
            let count = count(part.len(), of);
            let expected = Some(Expected { count, of });
            let of = self.library.constants.type_of(of);
            self.complete_with(&mut state, operation, expected, |f, staging, request| {
                // SAFETY: the staging buffer has this part, and outlives the call.
                unsafe { (f.irecv)(staging, count, of, from as c_int, MESSAGE, self.messages, request) }
            })?;
            part.copy_from_slice(&state.bytes()[..part.len()]);
        }
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        let mut state = self.lock(Operation::Barrier)?;
        self.complete(&mut state, Operation::Barrier, |f, _, request| {
            // SAFETY: handles of the library that is called.
            unsafe { (f.ibarrier)(self.messages, request) }
        })
    }

    fn owned_bytes(&self) -> u64 {
        self.library.owned.get().copied().unwrap_or(0)
    }
}

impl<H: Handle> Drop for Communicator<H> {
    fn drop(&mut self) {
        let state = self.library.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failed.is_some() || std::thread::panicking() {
            return;
        }
        for mut handle in [self.questions, self.messages] {
            // SAFETY: a communicator of the library that is called, without an operation under way.
            unsafe { (self.library.functions.comm_free)(&mut handle) };
        }
    }
}

/// How many numbers are in a part of the staging buffer.
fn count(bytes: usize, of: NumberType) -> c_int {
    c_int::try_from(bytes / of.size()).expect("a part of the staging buffer")
}
