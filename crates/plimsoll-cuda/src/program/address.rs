//! Where the arguments of kernels and library calls are.

use super::lower::Lowering;
use crate::kernels::Argument;
use crate::runtime::staging::StagingRing;
use plimsoll_core::plan::Place;
use plimsoll_core::{Bytes, ValueId};

/// The location of a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A fixed address.
    Fixed(u64),
    /// Offset in the run's slot.
    Slot(u64),
    /// The results of the run.
    Results,
}

/// Resolves arguments to addresses.
pub(super) struct Addresses<'a> {
    pub lowering: &'a Lowering<'a>,
    pub resident: (u64, u64),
    pub arena: (u64, u64),
    pub columns: &'a [usize],
    pub header: usize,
    pub scalars: usize,
    pub non_finite_flag: u64,
}

impl Addresses<'_> {
    /// The address of a value, checked against the bounds of its memory.
    pub fn value(&self, value: ValueId) -> Result<Address, String> {
        let within = |(start, size): (u64, u64), offset: Bytes| {
            let end = offset.0.checked_add(self.lowering.program.graph.ty(value).bytes(self.lowering.rows).0);
            if end.is_none_or(|end| end > size) {
                return Err(format!("{value} is planned outside of its memory"));
            }
            Ok(Address::Fixed(start + offset.0))
        };
        match self.lowering.program.places.get(value.0 as usize).copied().flatten() {
            Some(Place::Arena(offset)) => within(self.arena, offset),
            Some(Place::Resident(offset)) => within(self.resident, offset),
            Some(Place::Input(column)) => Ok(Address::Slot(self.columns[column.0 as usize] as u64)),
            Some(Place::Scalar(scalar)) => Ok(Address::Slot(self.scalars as u64 + 4 * u64::from(scalar.0))),
            Some(Place::Backing(_)) => Err(format!("{value} is in the backing store, where only loads reach")),
            None => Err(format!("{value} has no place in the plan")),
        }
    }

    /// The address of an argument, for a node with these outputs and workspace at `workspace`.
    pub fn argument(&self, argument: Argument, inputs: &[ValueId], outputs: &[ValueId], workspace: Bytes) -> Result<Address, String> {
        match argument {
            Argument::Input(i) => self.value(inputs[i]),
            Argument::InputAt(i, bytes) => Ok(match self.value(inputs[i])? {
                Address::Fixed(address) => Address::Fixed(address + bytes as u64),
                Address::Slot(offset) => Address::Slot(offset + bytes as u64),
                Address::Results => unreachable!("no value is an answer"),
            }),
            Argument::Output(i) => self.argument(Argument::OutputAt(i, 0), inputs, outputs, workspace),
            Argument::OutputAt(i, bytes) => match self.value(outputs[i])? {
                Address::Fixed(address) => Ok(Address::Fixed(address + bytes as u64)),
                _ => Err("is planned to write where only the host writes".to_string()),
            },
            Argument::Workspace => Ok(Address::Fixed(self.arena.0 + workspace.0)),
            Argument::WorkspaceAt(bytes) => Ok(Address::Fixed(self.arena.0 + workspace.0 + bytes as u64)),
            Argument::Header => Ok(Address::Slot(self.header as u64)),
            Argument::NonFiniteFlag => Ok(Address::Fixed(self.non_finite_flag)),
            Argument::Loss => self.value(self.lowering.loss.expect("only programs with a loss have guards")),
            Argument::Results => Ok(Address::Results),
        }
    }
}

/// The address for a run in a slot.
pub(super) fn resolve(address: Address, staging_ring: &StagingRing, slot: usize) -> u64 {
    match address {
        Address::Fixed(address) => address,
        Address::Slot(offset) => staging_ring.on_device(slot) + offset,
        Address::Results => staging_ring.results(slot),
    }
}
