//! Where the arguments of kernels and library calls are.

use super::lower::Lowering;
use crate::kernels::Argument;
use crate::runtime::staging::StagingRing;
use plimsoll_core::plan::{Place, Resident};
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
    /// A region of the memory that is given for a run, and an offset in it.
    Region(usize, u64),
}

impl Address {
    /// This many bytes behind it.
    fn behind(self, bytes: u64) -> Result<Address, String> {
        match self {
            Address::Fixed(address) => Ok(Address::Fixed(address + bytes)),
            Address::Slot(offset) => Ok(Address::Slot(offset + bytes)),
            Address::Region(region, offset) => Ok(Address::Region(region, offset + bytes)),
            Address::Results => Err("reads results, which only the host does".to_string()),
        }
    }
}

/// The memory of a program under lowering.
pub(super) enum ProgramMemory<'a> {
    /// The same for every run: start and size.
    Bound {
        resident: (u64, u64),
        arena: (u64, u64),
        /// Offsets of the columns in a slot, of the header and of the scalars.
        columns: &'a [usize],
        header: usize,
        scalars: usize,
        non_finite_flag: u64,
    },
    /// Given for every run: a region per column, a region per state, and one for the arena, of this size. Slots begin
    /// with the header.
    Given { states: &'a [Resident], arena: u64 },
}

/// Bytes of the header, which the scalars follow in the slot of a program whose memory is given.
pub(super) const HEADER: usize = 32;

/// Resolves arguments to addresses.
pub(super) struct Addresses<'a> {
    pub lowering: &'a Lowering<'a>,
    pub memory: ProgramMemory<'a>,
}

impl Addresses<'_> {
    /// The address of a value, checked against the bounds of its memory.
    pub fn value(&self, value: ValueId) -> Result<Address, String> {
        let bytes = self.lowering.program.graph.ty(value).bytes(self.lowering.rows).0;
        let outside = || format!("{value} is planned outside of its memory");
        let within = |(start, size): (u64, u64), offset: Bytes| {
            let inside = offset.0.checked_add(bytes).is_some_and(|end| end <= size);
            inside.then_some(start + offset.0).ok_or_else(outside)
        };
        let columns = self.lowering.program.graph.inputs().len();
        match (self.lowering.program.places.get(value.0 as usize).copied().flatten(), &self.memory) {
            (Some(Place::Arena(offset)), ProgramMemory::Bound { arena, .. }) => Ok(Address::Fixed(within(*arena, offset)?)),
            (Some(Place::Arena(offset)), ProgramMemory::Given { states, arena }) => {
                Ok(Address::Region(columns + states.len(), within((0, *arena), offset)?))
            }
            (Some(Place::Resident(offset)), ProgramMemory::Bound { resident, .. }) => Ok(Address::Fixed(within(*resident, offset)?)),
            (Some(Place::Resident(offset)), ProgramMemory::Given { states, .. }) => {
                // Only states of no bytes share an offset with others.
                let state = states.iter().position(|state| !state.stored && state.offset == offset && bytes <= state.size.0);
                Ok(Address::Region(columns + state.ok_or_else(outside)?, 0))
            }
            (Some(Place::Input(column)), ProgramMemory::Bound { columns, .. }) => Ok(Address::Slot(columns[column.0 as usize] as u64)),
            (Some(Place::Input(column)), ProgramMemory::Given { .. }) => Ok(Address::Region(column.0 as usize, 0)),
            (Some(Place::Scalar(scalar)), memory) => Ok(Address::Slot(memory.scalars() as u64 + 4 * u64::from(scalar.0))),
            (Some(Place::Backing(_)), _) => Err(format!("{value} is in the backing store, where only loads reach")),
            (None, _) => Err(format!("{value} has no place in the plan")),
        }
    }

    /// The address of an argument, for a node with these outputs and workspace at `workspace`.
    pub fn argument(&self, argument: Argument, inputs: &[ValueId], outputs: &[ValueId], workspace: Bytes) -> Result<Address, String> {
        match argument {
            Argument::Input(i) => self.value(inputs[i]),
            Argument::InputAt(i, bytes) => self.value(inputs[i])?.behind(bytes as u64),
            Argument::Output(i) => self.argument(Argument::OutputAt(i, 0), inputs, outputs, workspace),
            Argument::OutputAt(i, bytes) => match self.value(outputs[i])? {
                to @ Address::Fixed(_) => to.behind(bytes as u64),
                to @ Address::Region(region, _) if region >= self.lowering.program.graph.inputs().len() => to.behind(bytes as u64),
                _ => Err("is planned to write where only the host writes".to_string()),
            },
            Argument::Workspace => Ok(self.workspace(workspace.0)),
            Argument::WorkspaceAt(bytes) => Ok(self.workspace(workspace.0 + bytes as u64)),
            Argument::Header => Ok(Address::Slot(self.memory.header() as u64)),
            Argument::NonFiniteFlag => match self.memory {
                ProgramMemory::Bound { non_finite_flag, .. } => Ok(Address::Fixed(non_finite_flag)),
                ProgramMemory::Given { .. } => Err("has a guard, which only programs with a loss have".to_string()),
            },
            Argument::Loss => self.value(self.lowering.loss.expect("only programs with a loss have guards")),
            Argument::Results => Ok(Address::Results),
        }
    }

    /// This byte of the arena.
    fn workspace(&self, offset: u64) -> Address {
        match &self.memory {
            ProgramMemory::Bound { arena, .. } => Address::Fixed(arena.0 + offset),
            ProgramMemory::Given { states, .. } => Address::Region(self.lowering.program.graph.inputs().len() + states.len(), offset),
        }
    }
}

impl ProgramMemory<'_> {
    fn header(&self) -> usize {
        if let ProgramMemory::Bound { header, .. } = self { *header } else { 0 }
    }

    fn scalars(&self) -> usize {
        if let ProgramMemory::Bound { scalars, .. } = self { *scalars } else { HEADER }
    }
}

/// The address for a run in a slot.
pub(super) fn resolve(address: Address, staging_ring: &StagingRing, slot: usize) -> u64 {
    match address {
        Address::Fixed(address) => address,
        Address::Slot(offset) => staging_ring.on_device(slot) + offset,
        Address::Results => staging_ring.results(slot),
        Address::Region(..) => unreachable!("the memory of this program is the same for every run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::convolution::Convolutions;
    use crate::{PlanOnly, Profile};
    use plimsoll_core::graph::{Init, StateKind};
    use plimsoll_core::plan::{CheckedPlan, plan};
    use plimsoll_core::step::Role;
    use plimsoll_core::{Graph, Shape, TensorType};

    /// A step with two columns, two states of which one is read, a number, workspace, and values in the arena.
    fn step() -> Graph {
        let mut g = Graph::new();
        let (x, y) = (g.input("x", TensorType::f32(Shape::fixed([64, 32]))), g.input("y", TensorType::f32(Shape::fixed([32, 64]))));
        let rate = g.scalar("rate");
        let w = g.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed([64, 64])), Init::Constant(0.0)).unwrap();
        let product = g.matmul(x, y).unwrap();
        let square = g.matmul(product, w).unwrap();
        let scaled = g.times(square, rate).unwrap();
        let moved = g.plus(w, scaled).unwrap();
        let total = g.sum(moved).unwrap();
        let id = g.as_state(w).unwrap();
        g.update(id, moved);
        let sum = g.state("sum", StateKind::Statistic, TensorType::f32(Shape::scalar()), Init::Constant(0.0)).unwrap();
        let id = g.as_state(sum).unwrap();
        g.update(id, total);
        g
    }

    #[test]
    fn given_memory_has_a_region_per_column_and_state_and_one_for_the_arena() {
        let device = PlanOnly::new(Profile::named("h200").unwrap(), 0);
        let plan = CheckedPlan::new(plan(vec![(Role::Step, step())], 1, &device).unwrap()).unwrap();
        let program = plan.expect_program(Role::Step);
        let lowering = Lowering {
            plan: &plan,
            program,
            rows: 1,
            loss: None,
            library: true,
            cudnn: false,
            convolutions: Convolutions::Auto,
            tensor_cores: true,
            rank: 0,
        };
        let addresses = Addresses { lowering: &lowering, memory: ProgramMemory::Given { states: &plan.states, arena: plan.arena.0 } };
        let arena = 2 + plan.states.len();
        assert_eq!(arena, 4);
        let mut regions = vec![0; arena + 1];
        for node in program.order.iter().map(|id| program.graph.node(*id)) {
            for value in node.inputs.iter().chain(&node.outputs) {
                match addresses.value(*value).unwrap() {
                    Address::Region(region, offset) => {
                        regions[region] += 1;
                        assert!(region == arena || offset == 0, "only the arena holds several values");
                        assert!(region < arena || offset + program.graph.ty(*value).bytes(1).0 <= plan.arena.0);
                    }
                    Address::Slot(offset) => assert_eq!(offset, 32, "the first scalar is behind the header"),
                    other => panic!("{value} is at {other:?}"),
                }
            }
        }
        assert!(regions.iter().all(|count| *count > 0), "{regions:?}");
        assert_eq!(addresses.argument(Argument::WorkspaceAt(8), &[], &[], Bytes(256)).unwrap(), Address::Region(arena, 264));
        assert_eq!(addresses.argument(Argument::Header, &[], &[], Bytes::ZERO).unwrap(), Address::Slot(0));
        let column = program.graph.node(program.order[0]).inputs[0];
        assert!(matches!(addresses.argument(Argument::InputAt(0, 12), &[column], &[], Bytes::ZERO).unwrap(), Address::Region(_, 12)));
        let refused = addresses.argument(Argument::Output(0), &[], &[column], Bytes::ZERO).unwrap_err();
        assert_eq!(refused, "is planned to write where only the host writes");
        assert!(addresses.argument(Argument::NonFiniteFlag, &[], &[], Bytes::ZERO).is_err());
    }
}
