"""Writes the reference vectors that tests compare with: optimizers, clipping, averages, losses and schedules as Keras has them.

    python keras_vectors.py          (Keras 3 on TensorFlow)

Numbers are drawn from a fixed seed, so that running it again changes nothing but what the libraries changed.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
STEPS = 6
draw = np.random.default_rng(7)


def plain(array):
    return [float(x) for x in np.asarray(array, dtype=np.float32).ravel()]


# Two parameters, a matrix and a vector, and their gradients at every step; the last one is large, to be clipped.
SHAPES = [(3, 4), (5,)]
FIRST = [draw.normal(size=shape).astype(np.float32) for shape in SHAPES]
GRADIENTS = [[(draw.normal(size=shape) * (5.0 if step == 3 else 0.5)).astype(np.float32) for shape in SHAPES] for step in range(STEPS)]

OPTIMIZERS = {
    "sgd": lambda **k: keras.optimizers.SGD(0.05, **k),
    "momentum": lambda **k: keras.optimizers.SGD(0.05, momentum=0.9, **k),
    "nesterov": lambda **k: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **k),
    "adam": lambda **k: keras.optimizers.Adam(0.01, **k),
    "adamw": lambda **k: keras.optimizers.AdamW(0.01, weight_decay=0.05, **k),
    "rmsprop": lambda **k: keras.optimizers.RMSprop(0.01, **k),
    "rmsprop_centered_momentum": lambda **k: keras.optimizers.RMSprop(0.01, rho=0.8, momentum=0.7, centered=True, **k),
    "adagrad": lambda **k: keras.optimizers.Adagrad(0.05, **k),
    "adafactor": lambda **k: keras.optimizers.Adafactor(0.02, **k),
    "lion": lambda **k: keras.optimizers.Lion(0.01, **k),
    "lion_decay": lambda **k: keras.optimizers.Lion(0.01, weight_decay=0.1, **k),
    "nadam": lambda **k: keras.optimizers.Nadam(0.01, **k),
}
CLIPPED = {
    "clip_value": lambda: OPTIMIZERS["sgd"](clipvalue=0.4),
    "clip_norm": lambda: OPTIMIZERS["sgd"](clipnorm=1.5),
    "clip_global_norm": lambda: OPTIMIZERS["sgd"](global_clipnorm=2.0),
    "clip_global_norm_adam": lambda: OPTIMIZERS["adam"](global_clipnorm=2.0),
}


def run(optimizer, average=False):
    parameters = [keras.Variable(first, name=f"p{i}") for i, first in enumerate(FIRST)]
    optimizer.build(parameters)
    after = []
    for gradients in GRADIENTS:
        optimizer.apply([tf.constant(g) for g in gradients], parameters)
        values = optimizer._model_variables_moving_average if average else parameters
        after.append([plain(value.numpy()) for value in values])
    return after


optimizers = {
    "shapes": SHAPES,
    "first": [plain(x) for x in FIRST],
    "gradients": [[plain(g) for g in step] for step in GRADIENTS],
    "after": {name: run(make()) for name, make in {**OPTIMIZERS, **CLIPPED}.items()},
    "average": run(OPTIMIZERS["adam"](use_ema=True, ema_momentum=0.8), average=True),
}

# Losses: a few rows, the value of the mean over them, and its gradient.
ROWS, CLASSES = 5, 4
scores = draw.normal(size=(ROWS, CLASSES)).astype(np.float32) * 2
numbers = draw.integers(0, CLASSES, size=ROWS)
shares = draw.dirichlet(np.ones(CLASSES), size=ROWS).astype(np.float32)
hot = np.eye(CLASSES, dtype=np.float32)[numbers]
yes = (draw.random(size=(ROWS, CLASSES)) < 0.5).astype(np.float32)
positive = np.exp(draw.normal(size=(ROWS, CLASSES))).astype(np.float32)
counts = draw.poisson(2.0, size=(ROWS, CLASSES)).astype(np.float32)
real = draw.normal(size=(ROWS, CLASSES)).astype(np.float32) * 2
weights = draw.random(size=ROWS).astype(np.float32)
class_weights = [0.5, 2.0, 1.0, 3.0]
ignored = numbers.copy()
ignored[1] = ignored[3] = 255

softmax, sigmoid = tf.nn.softmax, tf.nn.sigmoid
L = keras.losses
cases = {
    "mse": (scores, real, L.MeanSquaredError(), None, {}),
    "mae": (scores, real, L.MeanAbsoluteError(), None, {}),
    "huber": (scores, real, L.Huber(delta=1.5), None, {}),
    "log_cosh": (scores, real, L.LogCosh(), None, {}),
    "kl_divergence": (scores, shares, L.KLDivergence(), softmax, {}),
    "softmax_cross_entropy": (scores, numbers, L.SparseCategoricalCrossentropy(from_logits=True), None, {}),
    "softmax_cross_entropy_shares": (scores, shares, L.CategoricalCrossentropy(from_logits=True), None, {}),
    "softmax_cross_entropy_smoothing": (scores, hot, L.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2), None, {}),
    "binary_cross_entropy": (scores, yes, L.BinaryCrossentropy(from_logits=True), None, {}),
    "binary_cross_entropy_smoothing": (scores, yes, L.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), None, {}),
    "categorical_focal": (scores, hot, L.CategoricalFocalCrossentropy(from_logits=True, alpha=0.3, gamma=1.5), None, {}),
    "binary_focal": (scores, yes, L.BinaryFocalCrossentropy(from_logits=True), None, {}),
    "binary_focal_alpha": (scores, yes, L.BinaryFocalCrossentropy(from_logits=True, apply_class_balancing=True, alpha=0.3), None, {}),
    "dice": (scores, yes, L.Dice(axis=(1,)), sigmoid, {}),
    "hinge": (scores, yes, L.Hinge(), None, {}),
    "poisson": (positive, counts, L.Poisson(), None, {}),
    "sample_weights": (scores, numbers, L.SparseCategoricalCrossentropy(from_logits=True), None, {"weights": weights}),
    "class_weights": (
        scores,
        numbers,
        L.SparseCategoricalCrossentropy(from_logits=True),
        None,
        {"weights": np.array(class_weights, np.float32)[numbers], "as_classes": class_weights},
    ),
    "ignored_class": (scores, ignored, L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255), None, {}),
}

losses = {"rows": ROWS, "classes": CLASSES, "cases": {}}
for name, (prediction, labels, loss, activation, extra) in cases.items():
    x = tf.Variable(prediction)
    with tf.GradientTape() as tape:
        output = activation(x) if activation else x
        value = loss(tf.constant(labels), output, sample_weight=extra.get("weights"))
    losses["cases"][name] = {
        "prediction": plain(prediction),
        "labels": plain(labels),
        "loss": float(value),
        "gradient": plain(tape.gradient(value, x)),
        **({"weights": plain(extra["weights"])} if "weights" in extra and "as_classes" not in extra else {}),
    }

# Schedules, as what a learning rate of 1 is multiplied by at steps 0, 1, …
K = keras.optimizers.schedules
LENGTH = 20


def factors(schedule):
    return [float(schedule(step)) for step in range(LENGTH)]


schedules = {
    "cosine": factors(K.CosineDecay(1.0, LENGTH, alpha=0.1)),
    "cosine_warm_up": factors(K.CosineDecay(0.0, LENGTH - 5, warmup_target=1.0, warmup_steps=5)),
    "polynomial": factors(K.PolynomialDecay(1.0, LENGTH, end_learning_rate=0.2, power=2.0)),
    "exponential": factors(K.ExponentialDecay(1.0, 4, 0.7)),
    "exponential_staircase": factors(K.ExponentialDecay(1.0, 4, 0.7, staircase=True)),
}

for name, data in [("optimizers", optimizers), ("losses", losses), ("schedules_keras", schedules)]:
    (HERE / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"{name}.json")
