#!/usr/bin/env python3
"""Schedules and masks of the TensorFlow Model Optimization Toolkit, for the tests of pruning.

    pip install tensorflow-cpu tf_keras tensorflow-model-optimization
    TF_USE_LEGACY_KERAS=1 ./tfmot_pruning.py > pruning.json
"""

import json

import numpy as np
import tensorflow as tf
from tensorflow_model_optimization.python.core.sparsity.keras import pruning_impl, pruning_schedule

random = np.random.default_rng(21)


def schedule(settings):
    kind = dict(settings)
    if kind.pop("schedule") == "constant":
        return pruning_schedule.ConstantSparsity(kind["final"], kind["begin"], kind["end"], kind["frequency"])
    names = ["initial", "final", "begin", "end", "power", "frequency"]
    return pruning_schedule.PolynomialDecay(*(kind[name] for name in names))


def steps(settings, of):
    made = schedule(settings)
    at = [made(tf.constant(step)) for step in of]
    return {**settings, "steps": of, "updates": [bool(due) for due, _ in at], "sparsity": [float(share) for _, share in at]}


def mask(shape, sparsity, block=(1, 1), pooling="AVG", m_by_n=None):
    weights = random.standard_normal(shape).astype(np.float32)
    # Equal magnitudes and zeros too.
    weights[random.random(shape) < 0.1] = 0.5
    weights[random.random(shape) < 0.1] = 0.0
    variable, variable_mask = tf.Variable(weights), tf.Variable(np.ones(shape, np.float32))
    made = pruning_impl.Pruning(
        lambda: tf.constant(1),
        [(variable, variable_mask, tf.Variable(0.0))],
        pruning_schedule.ConstantSparsity(sparsity, 0, frequency=1),
        block_size=list(block),
        block_pooling_type=pooling,
        sparsity_m_by_n=m_by_n,
    )
    made.conditional_mask_update()
    return {
        "shape": list(shape),
        "sparsity": sparsity,
        "block": list(block),
        "pooling": pooling.lower(),
        "m_by_n": m_by_n,
        "weights": [float(x) for x in weights.flatten()],
        "mask": [int(x) for x in variable_mask.numpy().flatten()],
    }


polynomial = {"schedule": "polynomial", "initial": 0.1, "final": 0.85, "begin": 20, "end": 320, "power": 3.0, "frequency": 50}
print(
    json.dumps(
        {
            "schedules": [
                steps(polynomial, [0, 19, 20, 21, 70, 120, 150, 170, 320, 321, 370]),
                steps({**polynomial, "power": 1.0, "frequency": 7}, [20, 27, 160, 314, 320]),
                steps({"schedule": "constant", "final": 0.5, "begin": 5, "end": -1, "frequency": 10}, [0, 5, 15, 16, 1005]),
                steps({"schedule": "constant", "final": 0.5, "begin": 5, "end": 25, "frequency": 10}, [5, 15, 25, 35]),
            ],
            "masks": [
                mask((7, 5), 0.5),
                mask((3, 3, 4, 6), 0.8),
                mask((8, 9), 0.0),
                mask((4, 4), 0.99),
                mask((8, 12), 0.5, block=(1, 4)),
                mask((8, 12), 0.7, block=(4, 2), pooling="MAX"),
                mask((7, 11), 0.6, block=(3, 4)),
                mask((8, 6), 0.5, m_by_n=(2, 4)),
                mask((10, 3), 0.5, m_by_n=(2, 4)),
                mask((3, 3, 6, 2), 0.5, m_by_n=(1, 4)),
            ],
        }
    )
)
