//! Values from outside of the step: columns of the batch, states, and scalars from the host.

use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, InputId, ScalarId, StateId, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

macro_rules! leaf {
    ($id:ty, $name:literal, $ty:expr) => {
        impl OpRules for $id {
            fn name(&self) -> &'static str {
                $name
            }

            fn precision(&self) -> Precision {
                Precision::Leaf
            }

            fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
                None
            }

            fn attributes(&self) -> String {
                self.0.to_string()
            }

            fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
                let [] = expect(inputs)?;
                let ty: fn(&Graph, usize) -> Option<TensorType> = $ty;
                ty(graph, self.0 as usize).map(|ty| vec![ty]).ok_or_else(|| format!("{} {} was never declared", $name, self.0))
            }

            fn gradient(&self, _: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
                Ok(vec![])
            }

            fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
                0
            }
        }
    };
}

leaf!(InputId, "input", |graph, i| graph.inputs().get(i).map(|input| input.ty.clone()));
leaf!(StateId, "state", |graph, i| graph.states().get(i).map(|state| state.ty.clone()));
leaf!(ScalarId, "scalar", |graph, i| graph.scalars().get(i).map(|_| TensorType::f32(Shape::scalar())));
