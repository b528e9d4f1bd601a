//! Functions: graphs with arguments and results, which other graphs call, and their gradients.

use super::autodiff::vector_jacobian;
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::Op;
use std::collections::HashMap;
use std::sync::Arc;

/// A graph as a function: its columns are the arguments, its scalars are numbers, its outputs the results.
#[derive(Debug)]
pub struct Function {
    graph: Graph,
    arguments: Vec<ValueId>,
    scalars: Vec<ValueId>,
    results: Vec<ValueId>,
}

/// The gradient of a function: the function that computes the gradients of its arguments from those of its results,
/// and what else it reads.
#[derive(Debug)]
pub struct Vjp {
    /// Its arguments are some arguments of the function, some of its results, and the gradient of each real result,
    /// in this order. Its scalars are those of the function.
    pub function: Arc<Function>,
    /// The arguments that it reads.
    pub arguments: Vec<usize>,
    /// The results that it reads.
    pub results: Vec<usize>,
    /// The results whose gradients it reads: all that are real and not constant.
    pub seeds: Vec<usize>,
    /// The arguments whose gradients are its results.
    pub wrt: Vec<usize>,
}

impl Function {
    /// A function of arguments of these types, and of some numbers.
    ///
    /// ```
    /// use plimsoll_core::{DType, Shape, TensorType, function::Function};
    /// let vector = TensorType::f32(Shape::fixed([3]));
    /// let square = Function::new(&[vector], 0, |g, x, _| Ok(vec![g.times(x[0], x[0])?]))?;
    /// let vjp = square.vjp(&[true], &[])?;
    /// assert_eq!((vjp.arguments, vjp.results), (vec![0], vec![]), "the gradient reads the argument, not the result");
    /// # Ok::<(), plimsoll_core::GraphError>(())
    /// ```
    pub fn new(
        arguments: &[TensorType],
        scalars: usize,
        body: impl FnOnce(&mut Graph, &[ValueId], &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
    ) -> Result<Function, GraphError> {
        let mut graph = Graph::new();
        let arguments: Vec<ValueId> =
            arguments.iter().enumerate().map(|(i, ty)| graph.input(&format!("argument {i}"), ty.clone())).collect();
        let scalars: Vec<ValueId> = (0..scalars).map(|i| graph.scalar(&format!("scalar {i}"))).collect();
        let results = body(&mut graph, &arguments, &scalars)?;
        Ok(Function { graph, arguments, scalars, results })
    }

    /// The types of its arguments.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.arguments.iter().map(|value| self.graph.ty(*value))
    }

    /// The types of its results.
    pub fn results(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.results.iter().map(|value| self.graph.ty(*value))
    }

    /// Appends its nodes to a graph, applied to these values. Returns the results.
    ///
    /// # Errors
    /// If the values have other types than the arguments.
    pub fn call(&self, graph: &mut Graph, arguments: &[ValueId], scalars: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        if arguments.len() != self.arguments.len() || scalars.len() != self.scalars.len() {
            return Err(graph.error(format!("a function of {} tensors is called with {}", self.arguments.len(), arguments.len())));
        }
        for (own, given) in self.arguments().zip(arguments) {
            if own != graph.ty(*given) {
                return Err(graph.error(format!("a function of {own} is called with {}", graph.ty(*given))));
            }
        }
        let own = self.arguments.iter().chain(&self.scalars).copied();
        let mut renamed: HashMap<ValueId, ValueId> = own.zip(arguments.iter().chain(scalars).copied()).collect();
        for (_, node) in self.graph.nodes().filter(|(_, node)| !node.op.is_leaf()) {
            let inputs: Vec<ValueId> = node.inputs.iter().map(|input| renamed[input]).collect();
            let outputs = graph.within(&node.scope, node.phase, |g| g.add(node.op.clone(), &inputs))?;
            renamed.extend(node.outputs.iter().copied().zip(outputs));
        }
        Ok(self.results.iter().map(|result| renamed[result]).collect())
    }

    /// Its gradient with respect to the arguments that are wanted, from the gradients of its real results but those
    /// that are `constant`, such as statistics. It reads results rather than recomputing them; other intermediate
    /// values are recomputed from the arguments.
    ///
    /// # Errors
    /// If an op of the function has no gradient.
    pub fn vjp(&self, wants: &[bool], constant: &[usize]) -> Result<Vjp, GraphError> {
        let mut graph = self.graph.clone();
        let mut declare = |of: &str, i: usize, value: ValueId| {
            let ty = self.graph.ty(value).clone();
            graph.input(&format!("{of} {i}"), ty)
        };
        let is_argument = |value: &ValueId| self.arguments.contains(value);
        let saved: Vec<ValueId> = self.results.iter().enumerate().map(|(i, value)| declare("result", i, *value)).collect();
        let seeds: Vec<usize> =
            (0..self.results.len()).filter(|i| self.graph.ty(self.results[*i]).dtype.is_float() && !constant.contains(i)).collect();
        let gradients: Vec<ValueId> = seeds.iter().map(|i| declare("gradient", *i, self.results[*i])).collect();

        let backward = graph.nodes().len();
        let pairs: Vec<(ValueId, ValueId)> = seeds.iter().map(|i| self.results[*i]).zip(gradients.iter().copied()).collect();
        let wanted = wants.iter().enumerate().filter(|(i, wanted)| **wanted && graph.ty(self.arguments[*i]).dtype.is_float());
        let wanted: Vec<usize> = wanted.map(|(i, _)| i).collect();
        let wrt: Vec<ValueId> = wanted.iter().map(|i| self.arguments[*i]).collect();
        let found = vector_jacobian(&mut graph, &pairs, &wrt)?;

        for node in &mut graph.nodes_mut()[backward..] {
            for input in node.inputs.iter_mut().filter(|input| !is_argument(input)) {
                if let Some(i) = self.results.iter().position(|result| result == input) {
                    *input = saved[i];
                }
            }
        }
        let (wrt, found): (Vec<usize>, Vec<ValueId>) =
            wanted.iter().zip(found).filter_map(|(i, found)| found.map(|found| (*i, found))).unzip();
        let found: Vec<ValueId> = found.into_iter().map(|value| source(&graph, value)).collect();
        let reads = dependencies(&graph, &found);
        let read = |values: &[ValueId]| -> Vec<usize> { (0..values.len()).filter(|i| reads[values[*i].index()]).collect() };
        let (arguments, results) = (read(&self.arguments), read(&saved));
        let parameters = arguments.iter().map(|i| self.arguments[*i]).chain(results.iter().map(|i| saved[*i])).chain(gradients);
        let function = extract(&graph, &reads, parameters.collect(), &self.scalars, &found)?;
        let function = Arc::new(function);
        Ok(Vjp { function, arguments, results, seeds, wrt })
    }
}

/// The value that this one is a copy of, or itself.
fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    loop {
        let node = graph.producer(value);
        match &node.op {
            Op::Pointwise(op) if op.expr.is_identity() && node.inputs.len() == 1 && graph.ty(node.inputs[0]) == graph.ty(value) => {
                value = node.inputs[0];
            }
            _ => return value,
        }
    }
}

/// Which values some results depend on, or are.
fn dependencies(graph: &Graph, results: &[ValueId]) -> Vec<bool> {
    let mut needed = vec![false; graph.value_count()];
    results.iter().for_each(|result| needed[result.index()] = true);
    for (_, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        if node.outputs.iter().any(|output| needed[output.index()]) {
            node.inputs.iter().for_each(|input| needed[input.index()] = true);
        }
    }
    needed
}

/// The part of a graph that computes `results` from `arguments` and `scalars`, as a function.
fn extract(
    graph: &Graph,
    needed: &[bool],
    arguments: Vec<ValueId>,
    scalars: &[ValueId],
    results: &[ValueId],
) -> Result<Function, GraphError> {
    let types: Vec<TensorType> = arguments.iter().map(|value| graph.ty(*value).clone()).collect();
    Function::new(&types, scalars.len(), |g, own, numbers| {
        let known = arguments.iter().chain(scalars).copied();
        let mut renamed: HashMap<ValueId, ValueId> = known.zip(own.iter().chain(numbers).copied()).collect();
        for (_, node) in graph.nodes() {
            let unneeded = !node.outputs.iter().any(|output| needed[output.index()]);
            if unneeded || matches!(node.op, Op::Input(_) | Op::Scalar(_)) {
                continue;
            }
            let inputs: Vec<ValueId> = node.inputs.iter().map(|input| renamed[input]).collect();
            let outputs = g.within(&node.scope, node.phase, |g| g.add(node.op.clone(), &inputs))?;
            renamed.extend(node.outputs.iter().copied().zip(outputs));
        }
        Ok(results.iter().map(|result| renamed[result]).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::base::expr::Unary;
    use crate::ir::ops::Reduction;

    fn vector(n: usize) -> TensorType {
        TensorType::f32(Shape::fixed([n]))
    }

    #[test]
    fn a_gradient_reads_results_rather_than_recomputing_them() {
        let sigmoid = Function::new(&[vector(4)], 0, |g, x, _| Ok(vec![g.unary(Unary::Sigmoid, x[0])?])).unwrap();
        let vjp = sigmoid.vjp(&[true], &[]).unwrap();
        assert_eq!((&vjp.arguments[..], &vjp.results[..], &vjp.wrt[..]), (&[][..], &[0][..], &[0][..]));
        assert_eq!(vjp.function.arguments().len(), 2);
        let sum = Function::new(&[vector(4), vector(4)], 0, |g, x, _| Ok(vec![g.plus(x[0], x[1])?])).unwrap();
        let vjp = sum.vjp(&[true, true], &[]).unwrap();
        assert_eq!((vjp.arguments.len(), vjp.results.len(), vjp.wrt), (0, 0, vec![0, 1]));
        let mut graph = Graph::new();
        let dy = graph.input("dy", vector(4));
        assert_eq!(vjp.function.call(&mut graph, &[dy], &[]).unwrap(), [dy, dy], "nothing is copied");
    }

    #[test]
    fn the_gradient_of_a_gradient_is_a_function_too() {
        let cube = Function::new(&[vector(1)], 0, |g, x, _| {
            let square = g.times(x[0], x[0])?;
            Ok(vec![g.times(square, x[0])?])
        })
        .unwrap();
        let first = cube.vjp(&[true], &[]).unwrap();
        assert_eq!((first.arguments.clone(), first.results.clone()), (vec![0], vec![]));
        let second = first.function.vjp(&[true, true], &[]).unwrap();
        assert_eq!(second.wrt, [0, 1]);
    }

    #[test]
    fn an_op_without_a_second_gradient_is_named() {
        use crate::ir::ops::{MaxPool, Window};
        let image = TensorType::f32(Shape::fixed([1, 4, 4, 1]));
        let pool = Function::new(&[image], 0, |g, x, _| g.add(Op::MaxPool(MaxPool { window: Window::valid((2, 2), (2, 2)) }), x)).unwrap();
        let first = pool.vjp(&[true], &[]).unwrap();
        assert_eq!(first.seeds, [0], "positions have no gradient");
        let wants = vec![true; first.function.arguments().len()];
        let error = first.function.vjp(&wants, &[]).unwrap_err().to_string();
        assert_eq!(error, "the gradient of max pooling cannot be differentiated again");
    }

    #[test]
    fn arguments_are_checked() {
        let mut graph = Graph::new();
        let x = graph.input("x", vector(3));
        let sum = Function::new(&[vector(4)], 0, |g, x, _| Ok(vec![g.reduce(Reduction::Sum, x[0], &[0])?])).unwrap();
        assert_eq!(sum.call(&mut graph, &[x], &[]).unwrap_err().to_string(), "a function of f32[4] is called with f32[3]");
        assert_eq!(sum.call(&mut graph, &[], &[]).unwrap_err().to_string(), "a function of 1 tensors is called with 0");
        assert_eq!(sum.results().next().unwrap().to_string(), "f32[1]");
    }
}
