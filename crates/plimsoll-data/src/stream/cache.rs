//! A stream whose first epoch is kept, and is every epoch.
//!
//! Whether an epoch is read or made again, it is the first of the input: nothing that comes out depends on how much memory there was, or
//! on where a run was resumed.

use super::input::Input;
use super::station::Inlet;
use super::{Room, Stream};
use crate::cache::{Cache, EpochFile, EpochMemory, Note};
use crate::fault::Fault;
use crate::{DataError, Dataset};
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;

/// What keeping the rows of a data set takes.
pub(super) struct Holding {
    pub name: String,
    pub bytes: Bytes,
}

/// What a cache behind this data set holds in this room.
pub(super) fn holding(data: &Dataset, cache: &Cache, room: Room) -> Result<Holding, DataError> {
    let row = data.output_schema()?.row_bytes();
    if cache.path().is_some() {
        return Ok(Holding { name: "cache (file)".into(), bytes: EpochFile::bytes(row) });
    }
    let most = cache.bound(data, row)?;
    Ok(match room.keeps(most) {
        true => Holding { name: format!("cache (≤ {most})"), bytes: most },
        false => Holding { name: format!("cache (no room for {most})"), bytes: Bytes::ZERO },
    })
}

pub(super) struct Kept {
    data: Dataset,
    room: Room,
    ledger: Ledger,
    note: Arc<Note>,
    row: usize,
    store: Store,
    /// Opened only where rows have to be made.
    input: Option<Input>,
    /// The next row of the epoch.
    at: u64,
    over: bool,
    /// A row of the epoch could not be made, so that it is not kept.
    spoilt: bool,
    /// What came after the rows that were handed on last.
    fault: Option<Fault>,
}

enum Store {
    Nothing,
    /// Being filled, until it is whole.
    Memory {
        epoch: EpochMemory,
        most: Bytes,
        whole: bool,
    },
    File(Box<EpochFile>),
}

impl Kept {
    pub fn open(
        data: &Dataset,
        cache: &Cache,
        note: &Arc<Note>,
        room: Room,
        ledger: &Ledger,
        inlet: Arc<Inlet>,
    ) -> Result<Kept, DataError> {
        note.clear();
        let row = data.output_schema()?.row_bytes();
        let store = match cache.path() {
            Some(path) => Store::File(Box::new(EpochFile::open(path, data, cache, row.get())?)),
            None => {
                let most = cache.bound(data, row)?;
                if room.keeps(most) {
                    Store::Memory { epoch: EpochMemory::new(most, row.get()), most, whole: false }
                } else {
                    note.say(format!("the limit leaves no room for the {most} that a cache of {} may take", data.describe()));
                    Store::Nothing
                }
            }
        };
        let (data, note, ledger) = (data.clone(), Arc::clone(note), ledger.clone());
        let mut kept = Kept { data, room, ledger, note, row: row.get(), store, input: None, at: 0, over: true, spoilt: false, fault: None };
        // What is wrong with the input is told at the start, if it is wanted at all.
        if !kept.is_whole() {
            kept.input = Some(Input::open(&kept.data, kept.room, &kept.ledger, inlet)?);
        }
        Ok(kept)
    }

    fn is_whole(&self) -> bool {
        match &self.store {
            Store::Nothing => false,
            Store::Memory { whole, .. } => *whole,
            Store::File(file) => file.is_whole(),
        }
    }

    /// Keeps rows that were made.
    fn keep(&mut self, rows: &[u8]) -> Result<(), DataError> {
        let kept = match &mut self.store {
            _ if self.spoilt => true,
            Store::Nothing => true,
            Store::Memory { epoch, most, .. } => {
                let fits = epoch.append(rows);
                if !fits {
                    let what = self.data.describe();
                    self.note.say(format!("an epoch of {what} takes more than the {most} of its cache, so rows are made each time"));
                }
                fits
            }
            Store::File(file) => file.append(rows, &self.note)?,
        };
        if !kept {
            self.store = Store::Nothing;
        }
        Ok(())
    }

    /// An epoch without all of its rows is not kept: whoever leaves the others out has to be told of them each time.
    fn spoil(&mut self, fault: &Fault) {
        if !self.spoilt && !matches!(self.store, Store::Nothing) {
            self.note
                .say(format!("not every row of an epoch could be made, so it is not kept; put ignore_errors before the cache ({fault})"));
        }
        self.spoilt = true;
    }

    /// The last row has been made.
    fn finish(&mut self) -> Result<(), DataError> {
        let kept = match &mut self.store {
            _ if self.spoilt => true,
            Store::Nothing => true,
            Store::Memory { whole, .. } => {
                *whole = true;
                true
            }
            Store::File(file) => file.finish(&self.note)?,
        };
        if !kept {
            self.store = Store::Nothing;
        }
        if self.is_whole() {
            // Nobody asks for it any more.
            self.input = None;
        }
        Ok(())
    }
}

impl Stream for Kept {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        (self.at, self.over, self.spoilt, self.fault) = (0, false, false, None);
        if self.is_whole() {
            return Ok(());
        }
        match &mut self.store {
            Store::Nothing => {}
            Store::Memory { epoch, .. } => epoch.clear(),
            Store::File(file) => file.restart(),
        }
        self.input.as_mut().expect("opened, as the cache is not whole").begin(0)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.over {
            return Ok(0);
        }
        let wanted = out.len() / self.row;
        let out = &mut out[..wanted * self.row];
        let rows = match (&mut self.store, self.input.as_mut()) {
            (Store::Memory { epoch, whole: true, .. }, _) => epoch.read(self.at * self.row as u64, out) / self.row,
            (Store::File(file), _) if file.is_whole() => file.read(self.at, out)?,
            (_, Some(input)) => {
                let (mut rows, mut fault) = (0, None);
                while rows < wanted && !self.over && fault.is_none() {
                    match input.copy(&mut out[rows * self.row..][..self.row]) {
                        Ok(true) => rows += 1,
                        Ok(false) => self.over = true,
                        Err(came) => fault = Some(came),
                    }
                }
                self.keep(&out[..rows * self.row])?;
                if let Some(fault) = fault {
                    self.spoil(&fault);
                    if rows == 0 {
                        return Err(fault);
                    }
                    self.fault = Some(fault);
                }
                if self.over {
                    self.finish()?;
                }
                rows
            }
            (_, None) => unreachable!("opened, as the cache is not whole"),
        };
        self.at += rows as u64;
        self.over |= rows == 0;
        Ok(rows)
    }

    fn close(&mut self) {
        self.over = true;
        self.input.iter_mut().for_each(Input::close);
    }
}
