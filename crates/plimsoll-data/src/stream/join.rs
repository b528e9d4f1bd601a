//! Streams made of several.

use super::columns::alike;
use super::input::Input;
use super::station::Inlet;
use super::{Expand, Room};
use crate::Row;
use crate::fault::{Fault, Loss, guarded};
use crate::rng::{random_bits, unit};
use crate::source::RowIterator;
use crate::{DataError, Dataset, Schema};
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;

/// Rows side by side, as long as all have one.
pub(super) struct Zip {
    inputs: Vec<Input>,
    tolerant: bool,
}

impl Zip {
    pub fn new(inputs: Vec<Input>, tolerant: bool) -> Zip {
        Zip { inputs, tolerant }
    }
}

impl RowIterator for Zip {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.inputs.iter_mut().try_for_each(|input| input.begin(epoch))
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let (mut rest, mut missing) = (out, None);
        for input in &mut self.inputs {
            let (part, after) = rest.split_at_mut(input.row_bytes());
            match input.copy(part) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // The rows beside it are passed over, so that those after it stand beside their own.
                Err(fault) if fault.loss == Loss::Row => missing = missing.or(Some(fault)),
                Err(fault) if fault.loss == Loss::Part && self.tolerant => {
                    let lost = "nobody knows how many rows that takes, so zip cannot tell which stand beside each other after it";
                    return Err(DataError::Stage(format!("{fault}; {lost}")).into());
                }
                Err(fault) => return Err(fault),
            }
            rest = after;
        }
        missing.map_or(Ok(true), Err)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}

/// All rows of one after those of another.
pub(super) struct Concatenate {
    inputs: Vec<Input>,
    epoch: u64,
    at: usize,
}

impl Concatenate {
    pub fn new(inputs: Vec<Input>) -> Concatenate {
        Concatenate { inputs, epoch: 0, at: 0 }
    }
}

impl RowIterator for Concatenate {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.at) = (epoch, 0);
        self.inputs[0].begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.inputs[self.at].copy(out)? {
            if self.at + 1 == self.inputs.len() {
                return Ok(false);
            }
            self.at += 1;
            self.inputs[self.at].begin(self.epoch)?;
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}

/// Each row from one that is drawn by lot, until all are used up.
pub(super) struct Sample {
    inputs: Vec<Input>,
    weights: Vec<f64>,
    /// Those not used up.
    left: Vec<usize>,
    seed: u64,
    epoch: u64,
    drawn: u64,
}

impl Sample {
    pub fn new(inputs: Vec<Input>, weights: &[f64], seed: u64) -> Sample {
        Sample { inputs, weights: weights.to_vec(), left: Vec::new(), seed, epoch: 0, drawn: 0 }
    }
}

impl RowIterator for Sample {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.drawn) = (epoch, 0);
        self.left.clear();
        self.left.extend(0..self.inputs.len());
        self.inputs.iter_mut().try_for_each(|input| input.begin(epoch))
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.left.is_empty() {
            let all: f64 = self.left.iter().map(|&input| self.weights[input]).sum();
            // 53 bits are as many as a share can have.
            let mut lot = unit(random_bits(self.seed, self.epoch, self.drawn)) * all;
            self.drawn += 1;
            let chosen = self.left.iter().position(|&input| {
                lot -= self.weights[input];
                lot < 0.0
            });
            let chosen = chosen.unwrap_or(self.left.len() - 1);
            if self.inputs[self.left[chosen]].copy(out)? {
                return Ok(true);
            }
            self.left.remove(chosen);
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Input::close);
    }
}

/// One of several inputs of which only some are read at a time.
pub(super) struct Turn {
    input: Option<Input>,
    /// How it is opened, where it is open only while it is being read.
    opening: Option<(Dataset, Room, Ledger, Arc<Inlet>)>,
}

impl Turn {
    pub fn new(data: &Dataset, in_turn: bool, room: Room, ledger: &Ledger, inlet: Arc<Inlet>) -> Result<Turn, DataError> {
        // Also where it is only to find out at the start what is wrong with it.
        let input = Input::open(data, room, ledger, Arc::clone(&inlet))?;
        Ok(match in_turn {
            true => Turn { input: None, opening: Some((data.clone(), room, ledger.clone(), inlet)) },
            false => Turn { input: Some(input), opening: None },
        })
    }

    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        if let Some((data, room, ledger, inlet)) = &self.opening {
            self.input = Some(Input::open(data, *room, ledger, Arc::clone(inlet))?);
        }
        self.input.as_mut().map_or(Ok(()), |input| input.begin(epoch))
    }

    fn copy(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        self.input.as_mut().map_or(Ok(false), |input| input.copy(out))
    }

    fn close(&mut self) {
        self.input.iter_mut().for_each(Input::close);
        if self.opening.is_some() {
            self.input = None;
        }
    }
}

/// A few rows of each in turn; when one is used up, the next that was not begun takes its place.
pub(super) struct Interleave {
    inputs: Vec<Turn>,
    cycle: usize,
    block: usize,
    epoch: u64,
    /// Which input stands at each place of the cycle.
    open: Vec<usize>,
    begun: usize,
    turn: usize,
    in_block: usize,
}

impl Interleave {
    pub fn new(inputs: Vec<Turn>, cycle: usize, block: usize) -> Interleave {
        Interleave { open: Vec::with_capacity(inputs.len()), inputs, cycle, block, epoch: 0, begun: 0, turn: 0, in_block: 0 }
    }

    fn open_next(&mut self) -> Result<Option<usize>, Fault> {
        if self.begun == self.inputs.len() {
            return Ok(None);
        }
        self.inputs[self.begun].begin(self.epoch)?;
        self.begun += 1;
        Ok(Some(self.begun - 1))
    }
}

impl RowIterator for Interleave {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.begun, self.turn, self.in_block) = (epoch, 0, 0, 0);
        // Those of an epoch that was left before its end.
        self.open.drain(..).for_each(|open| self.inputs[open].close());
        while self.open.len() < self.cycle.min(self.inputs.len()) {
            let next = self.open_next()?.expect("there are as many");
            self.open.push(next);
        }
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.open.is_empty() {
            if self.in_block == self.block {
                (self.turn, self.in_block) = ((self.turn + 1) % self.open.len(), 0);
            }
            let come = self.inputs[self.open[self.turn]].copy(out);
            if !matches!(come, Ok(false)) {
                self.in_block += 1;
                return come;
            }
            self.in_block = 0;
            // Given back first: what is planned is for as many as are open at a time.
            self.inputs[self.open[self.turn]].close();
            match self.open_next()? {
                Some(next) => self.open[self.turn] = next,
                None => {
                    self.open.remove(self.turn);
                    if self.turn == self.open.len() {
                        self.turn = 0;
                    }
                }
            }
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(Turn::close);
    }
}

/// For each row, all rows of a data set that user code makes of it.
pub(super) struct FlatMap {
    input: Input,
    expansion: Expansion,
    inner: Option<Input>,
    epoch: u64,
    /// Rows that were given to user code.
    seen: u64,
}

/// What user code makes of rows, and what it may hold.
pub(super) struct Expansion {
    pub from: Schema,
    pub to: Schema,
    pub limit: Bytes,
    pub expand: Expand,
    pub tolerant: bool,
}

impl Expansion {
    fn open(&self, row: &[u8], epoch: u64) -> Result<Input, DataError> {
        let data = guarded(|| (self.expand)(&Row::new(&self.from, row))).flatten()?;
        let schema = data.output_schema()?;
        if !alike(&schema, &self.to) {
            return Err(DataError::Stage(format!("flat_map was to give {} and gave {schema}; declare what it gives", self.to)));
        }
        // Reserved as a whole when the feed began: what is opened here stays inside it.
        let room = Room { limit: Some(self.limit), tolerant: self.tolerant, ..Room::LEAST };
        let needed: Bytes = super::input::cost(&data, room)?.iter().map(|held| held.bytes).sum();
        if needed > self.limit {
            let problem = format!("flat_map may hold {} and {} needs {needed}; allow it more", self.limit, data.describe());
            return Err(DataError::Stage(problem));
        }
        let mut inner = Input::open(&data, room, &Ledger::new("flat_map", Some(self.limit)), Arc::default())?;
        inner.begin(epoch)?;
        Ok(inner)
    }
}

impl FlatMap {
    pub fn new(input: Input, expansion: Expansion) -> FlatMap {
        FlatMap { input, expansion, inner: None, epoch: 0, seen: 0 }
    }
}

impl RowIterator for FlatMap {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.inner, self.epoch, self.seen) = (None, epoch, 0);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            if let Some(inner) = &mut self.inner {
                if inner.copy(out)? {
                    return Ok(true);
                }
                self.inner = None;
            }
            let Some(row) = self.input.next()? else { return Ok(false) };
            self.seen += 1;
            let opened = self.expansion.open(row, self.epoch);
            self.inner = Some(opened.map_err(|error| Fault::row(error).numbered(self.seen - 1, "that flat_map was given"))?);
        }
    }

    fn close(&mut self) {
        self.inner = None;
        self.input.close();
    }
}
