#!/usr/bin/env python3
"""Writes tests/references/tflite/: files of TensorFlow's converter and what LiteRT's reference kernels compute for them.

    pip install keras==3.15.1 tensorflow-cpu==2.21.0 tf_keras==2.21.0 ai-edge-litert==2.3.0 numpy==2.4.6
    python crates/plimsoll/tests/references/tflite_vectors.py [NAME]

`ops_int8.tflite` has an output for each kind of operator in int8, `ops_dynamic.tflite` weights in int8 under single precision,
`lstm_int8.tflite` two LSTM operators in int8. `NAME_x.npy` are rows, `NAME_OUTPUT.npy` the outputs.
"""

import sys

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from keras import layers

HERE = Path(__file__).parent / "tflite"
ROWS = 3


def network():
    given = keras.Input((9, 9, 4), name="x")
    convolved = layers.Conv2D(6, 3, strides=2, padding="same", activation="relu6")(given)
    deep = layers.DepthwiseConv2D(3, padding="valid", depth_multiplier=2)(given)
    padded = layers.ZeroPadding2D(1)(convolved)
    pooled = layers.AveragePooling2D(2, 2, padding="same")(padded)
    most = layers.MaxPooling2D(3, 2)(padded)
    added = layers.Add()([layers.Conv2D(6, 1)(convolved), convolved])
    less = layers.Subtract()([layers.Conv2D(6, 1)(convolved), convolved])
    product = layers.Multiply()([layers.Conv2D(6, 1)(convolved), convolved])
    leaky = layers.LeakyReLU(negative_slope=0.2)(deep)
    joined = layers.Concatenate()([added, product])
    transposed = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(convolved)
    mean = layers.GlobalAveragePooling2D()(deep)
    flat = layers.Flatten()(most)
    dense = layers.Dense(10)(flat)
    outputs = {
        "convolved": convolved, "depthwise": deep, "average": pooled, "maximum": most, "added": added, "subtracted": less, "product": product,
        "leaky": leaky, "joined": joined, "transposed": transposed, "mean": mean, "dense": dense,
        "softmax": layers.Softmax()(dense), "sigmoid": layers.Activation("sigmoid")(dense), "tanh": layers.Activation("tanh")(dense),
        "hard_swish": layers.Activation("hard_swish")(dense), "gelu": layers.Activation("gelu")(dense),
    }
    return keras.Model(given, outputs)


def small():
    given = keras.Input((8, 8, 4), name="x")
    x = layers.Conv2D(32, 3, activation="relu")(given)
    return keras.Model(given, {"y": layers.Dense(10)(layers.Flatten()(x))})


def recurrent():
    # Keras 3 has no LSTM that the converter writes as one operator.
    import tf_keras

    tf_keras.utils.set_random_seed(1)
    given = tf_keras.layers.Input((7, 5), batch_size=1, name="x")
    wide = {"kernel_initializer": tf_keras.initializers.RandomNormal(stddev=0.8), "bias_initializer": "random_normal"}
    x = tf_keras.layers.LSTM(12, return_sequences=True, **wide)(given)
    x = tf_keras.layers.LSTM(6, **wide)(x)
    return tf_keras.Model(given, tf_keras.layers.Dense(4, bias_initializer="random_normal", name="y")(x))


def write(name, model, shape, calibrated):
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(32, *shape)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if calibrated:
        converter.representative_dataset = lambda: ([row[None]] for row in rows)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    path = HERE / f"{name}.tflite"
    path.write_bytes(converter.convert())
    x = draw.normal(size=(ROWS, *shape)).astype(np.float32)
    np.save(HERE / f"{name}_x.npy", x)
    interpreter = Interpreter(model_path=str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    found = []
    for row in x:
        # The states of an LSTM begin with zero.
        interpreter.reset_all_variables()
        found.append(run(x=row[None]))
    for key in sorted(found[0]):
        np.save(HERE / f"{name}_{key}.npy", np.concatenate([row[key] for row in found]))


def main():
    HERE.mkdir(exist_ok=True)
    keras.utils.set_random_seed(1)
    cases = {
        "ops_int8": lambda name: write(name, network(), (9, 9, 4), True),
        "ops_dynamic": lambda name: write(name, small(), (8, 8, 4), False),
        "lstm_int8": lambda name: write(name, recurrent(), (7, 5), True),
    }
    for name in sys.argv[1:] or cases:
        cases[name](name)


if __name__ == "__main__":
    main()
