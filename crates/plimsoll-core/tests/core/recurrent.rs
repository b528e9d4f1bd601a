//! Recurrent layers against Keras 3: `LSTM`, `GRU` and `SimpleRNN` of two units over three steps of two features, the
//! second row's middle step masked.
//!
//! The numbers are what these layers gave, with weights, inputs and the gradient of the result made by [`counted`] on
//! both sides.

use plimsoll_core::autodiff::gradients;
use plimsoll_core::ops::{Activation, Cell, Recurrent};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{Dim, Graph, GraphError, Op, Shape, TensorType, ValueId, reference};

/// What Keras gave for a layer: its result, and the gradients of its three weights.
struct Known {
    cell: Cell,
    hidden: &'static [f64],
    d_recurrent: &'static [f64],
    d_kernel: &'static [f64],
    /// Both biases of a GRU, the input's first.
    d_bias: &'static [f64],
}

#[rustfmt::skip]
const KERAS: [Known; 4] = [
    Known {
        cell: Cell::Lstm,
        hidden: &[-0.139678, -0.142324, -0.040219, -0.053758, -0.081950, -0.100651, -0.023474, -0.028746, -0.023474, -0.028746, -0.054260, -0.073608],
        d_recurrent: &[0.000590, -0.000867, 0.000103, -0.000794, -0.000577, 0.006908, 0.000099, -0.000816, 0.000975, -0.001062, 0.000183, -0.000983, -0.001008, 0.008598, 0.000747, -0.001545],
        d_kernel: &[0.018473, 0.018313, -0.000978, 0.007261, -0.060347, -0.065353, 0.032128, 0.016912, -0.043561, 0.004490, -0.004819, 0.011291, 0.077414, -0.109004, -0.065747, 0.031790],
        d_bias: &[-0.042152, 0.046237, -0.005067, 0.018546, 0.034575, -0.279812, -0.062443, 0.094020],
    },
    Known {
        cell: Cell::Gru,
        hidden: &[-0.385107, -0.073984, -0.725769, -0.325570, -0.861483, -0.498509, -0.071396, 0.027670, -0.071396, 0.027670, -0.298620, -0.008869],
        d_recurrent: &[-0.022584, 0.058631, 0.004433, 0.003702, -0.015441, 0.053082, -0.010740, 0.022529, 0.002067, -0.000077, -0.007050, 0.017181],
        d_kernel: &[-0.080168, -0.022870, 0.028948, -0.030955, -0.238470, -0.248864, 0.099338, -0.100537, -0.026362, 0.006372, 0.241876, -0.043272],
        d_bias: &[0.091716, -0.109096, 0.017281, -0.063702, -0.174641, -0.528968, 0.091716, -0.109096, 0.017281, -0.063702, -0.005451, -0.251431],
    },
    Known {
        cell: Cell::Simple(Activation::Tanh),
        hidden: &[-0.211193, 0.512197, -0.906404, -0.468031, -0.546381, 0.015806, 0.147103, 0.298757, 0.147103, 0.298757, -0.365255, 0.193990],
        d_recurrent: &[-0.508333, 0.486576, -0.276580, 0.002436],
        d_kernel: &[-0.630683, -0.854534, 1.090183, -0.524409],
        d_bias: &[0.436721, -1.953660],
    },
    Known {
        cell: Cell::Simple(Activation::Relu),
        hidden: &[0.000000, 0.565704, 0.000000, 0.000000, 0.000000, 0.000000, 0.148178, 0.308154, 0.148178, 0.308154, 0.000000, 0.195813],
        d_recurrent: &[0.000000, -0.092908, 0.000000, -0.193213],
        d_kernel: &[-0.518091, -0.521043, 0.331345, 0.137743],
        d_bias: &[-0.648424, -1.328174],
    },
];

const BATCH: usize = 2;
const STEPS: usize = 3;
const FEATURES: usize = 2;
const UNITS: usize = 2;

/// Thousandths between -1 and 1 that follow from a number.
fn counted(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            ((state >> 8) % 2001) as f64 / 1000.0 - 1.0
        })
        .collect()
}

/// What the layer gives here: its result, and the gradients of its weights in the order of [`Known`].
fn layer(cell: Cell) -> Result<Vec<Vec<f64>>, GraphError> {
    let wide = cell.gates() * UNITS;
    let mut g = Graph::new();
    let mut numbers = Vec::new();
    let mut leaf = |g: &mut Graph, shape: &[usize], seed: u64| {
        numbers.push(counted(shape.iter().product(), seed));
        g.input(&format!("leaf{seed}"), TensorType::f32(Shape::fixed(shape.iter().copied())))
    };
    let x = leaf(&mut g, &[BATCH * STEPS, FEATURES], 1);
    let (kernel, recurrent, bias) = (leaf(&mut g, &[FEATURES, wide], 2), leaf(&mut g, &[UNITS, wide], 3), leaf(&mut g, &[wide], 4));
    let inner = leaf(&mut g, &[wide], 5);
    let weight = leaf(&mut g, &[BATCH, STEPS, UNITS], 6);
    let mask = g.input("mask", TensorType::f32(Shape::fixed([BATCH, STEPS])));
    numbers.push(vec![1.0, 1.0, 1.0, 1.0, 0.0, 1.0]);

    let product = g.matmul(x, kernel)?;
    let projected = g.plus(product, bias)?;
    let projected = g.reshape(projected, Shape::new([BATCH, STEPS, wide].map(Dim::fixed)))?;
    let mut inputs = vec![projected, recurrent];
    inputs.extend((cell == Cell::Gru).then_some(inner));
    inputs.push(mask);
    let op = Recurrent { cell, units: UNITS, reverse: false, masked: true, initial: false };
    let hidden = g.add(Op::Recurrent(op), &inputs)?[0];
    let weighted = g.times(hidden, weight)?;
    let loss = g.sum(weighted)?;
    let mut wrt: Vec<ValueId> = vec![recurrent, kernel, bias];
    wrt.extend((cell == Cell::Gru).then_some(inner));
    let found = gradients(&mut g, loss, &wrt)?;
    let outcome = reference::run(&g, 1, &numbers, &[], &[], &StepRandom::default());
    let mut results: Vec<Vec<f64>> = [hidden].iter().chain(&found).map(|value| outcome.value(*value).to_vec()).collect();
    if cell == Cell::Gru {
        let inner = results.pop().expect("the inner bias came last");
        results.last_mut().expect("the bias comes before it").extend(inner);
    }
    Ok(results)
}

#[test]
fn layers_give_what_keras_gives() {
    for known in KERAS {
        let results = layer(known.cell).unwrap();
        let want = [known.hidden, known.d_recurrent, known.d_kernel, known.d_bias];
        for (name, (got, want)) in ["hidden", "d_recurrent", "d_kernel", "d_bias"].iter().zip(results.iter().zip(want)) {
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 2e-6, "{:?} {name}: {got} instead of {want}", known.cell);
            }
        }
    }
}
