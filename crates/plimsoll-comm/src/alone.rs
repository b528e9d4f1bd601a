//! A group of one.

use crate::error::Result;
use crate::group::{Group, Operation, check_blocks, check_peer};
use crate::numbers::{Numbers, NumbersMut, Reduction};

/// The group of a process that runs by itself: collectives return what it has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Group for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn split(&self, color: Option<u32>, _: u32) -> Result<Option<Box<dyn Group>>> {
        Ok(color.map(|_| Box::new(Alone) as Box<dyn Group>))
    }

    fn all_reduce(&self, _: NumbersMut<'_>, _: Reduction) -> Result<()> {
        Ok(())
    }

    fn reduce_scatter(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>, _: Reduction) -> Result<()> {
        check_blocks(self, Operation::ReduceScatter, &receive.shared(), &send)?;
        receive.bytes().copy_from_slice(send.bytes());
        Ok(())
    }

    fn all_gather(&self, send: Numbers<'_>, mut receive: NumbersMut<'_>) -> Result<()> {
        check_blocks(self, Operation::AllGather, &send, &receive.shared())?;
        receive.bytes().copy_from_slice(send.bytes());
        Ok(())
    }

    fn broadcast(&self, _: NumbersMut<'_>, root: usize) -> Result<()> {
        check_peer(self, Operation::Broadcast(root), root)
    }

    fn send(&self, _: Numbers<'_>, to: usize) -> Result<()> {
        check_peer(self, Operation::Send(to), to)
    }

    fn receive(&self, _: NumbersMut<'_>, from: usize) -> Result<()> {
        check_peer(self, Operation::Receive(from), from)
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn owned_bytes(&self) -> u64 {
        0
    }
}
