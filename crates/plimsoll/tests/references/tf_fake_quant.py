#!/usr/bin/env python3
"""Numbers and gradients of TensorFlow's fake quantization, for the tests of quantization-aware training.

    pip install tensorflow-cpu
    ./tf_fake_quant.py > fake_quant.json
"""

import json

import numpy as np
import tensorflow as tf

random = np.random.default_rng(8)


def plain(tensor):
    return [float(x) for x in np.asarray(tensor).ravel()]


def activations(low, high):
    # Inside and outside of the range, its bounds, zero, and numbers halfway between two levels.
    scale = (high - low) / 255
    numbers = [low, high, 0.0, low - 0.3, high + 0.3, 0.5 * scale, 1.5 * scale, *random.uniform(1.3 * low - 0.1, 1.3 * high + 0.1, 40)]
    x = tf.constant(np.array(numbers, np.float32))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.quantization.fake_quant_with_min_max_vars(x, low, high, num_bits=8)
        loss = tf.reduce_sum(y * tf.range(1.0, 1.0 + len(numbers)))
    return {"min": low, "max": high, "x": plain(x), "y": plain(y), "gradient": plain(tape.gradient(loss, x))}


def kernel(shape):
    w = random.standard_normal(shape).astype(np.float32)
    w[..., 1] = 0.0
    w = tf.constant(w)
    most = tf.reduce_max(tf.abs(w), axis=list(range(len(shape) - 1)))
    most = tf.where(most > 0, most, 1.0)
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = tf.quantization.fake_quant_with_min_max_vars_per_channel(w, -most, most, num_bits=8, narrow_range=True)
        weight = tf.reshape(tf.range(1.0, 1.0 + tf.size(w, out_type=tf.float32)), shape)
        loss = tf.reduce_sum(y * weight)
    return {"shape": list(shape), "w": plain(w), "y": plain(y), "gradient": plain(tape.gradient(loss, w))}


print(
    json.dumps(
        {
            "activations": [activations(-1.0, 3.0), activations(0.0, 6.0), activations(-2.5, 0.0), activations(-0.37, 0.91)],
            "kernels": [kernel((5, 3)), kernel((3, 3, 2, 4))],
        }
    )
)
