"""Writes what Keras makes of a model with two results: losses, metrics and weights after a few epochs of plain steps.

    python keras_outputs.py          (Keras 3 on TensorFlow)
"""

import json
import pathlib

import keras
import numpy as np

draw = np.random.default_rng(11)
ROWS, BATCH, EPOCHS = 24, 8, 3


def plain(array):
    return [round(float(x), 7) for x in np.asarray(array, dtype=np.float32).ravel()]


x = draw.normal(size=(ROWS, 5)).astype(np.float32)
kind = draw.integers(0, 3, size=ROWS).astype(np.int32)
size = draw.normal(size=(ROWS, 2)).astype(np.float32)

inputs = keras.Input((5,))
hidden = keras.layers.Dense(4, activation="tanh", name="hidden", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
outputs = {"kind": keras.layers.Dense(3, name="kind")(hidden), "size": keras.layers.Dense(2, name="size")(hidden)}
model = keras.Model(inputs, outputs)
names = ["hidden/kernel", "hidden/bias", "kind/kernel", "kind/bias", "size/kernel", "size/bias"]
first = [draw.normal(size=w.shape).astype(np.float32) * 0.5 for w in model.weights]
model.set_weights(first)
model.compile(
    optimizer=keras.optimizers.SGD(0.2),
    loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
    loss_weights={"kind": 1.0, "size": 0.3},
    metrics={"kind": ["accuracy"], "size": ["mae"]},
)
history = model.fit(x, {"kind": kind, "size": size}, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0,
                    validation_data=(x, {"kind": kind, "size": size}))
document = {
    "rows": ROWS,
    "batch": BATCH,
    "epochs": EPOCHS,
    "x": plain(x),
    "kind": [int(k) for k in kind],
    "size": plain(size),
    "shapes": {name: list(w.shape) for name, w in zip(names, first)},
    "first": {name: plain(w) for name, w in zip(names, first)},
    "last": {name: plain(w) for name, w in zip(names, model.get_weights())},
    "history": {name: plain(values) for name, values in history.history.items()},
}
pathlib.Path(__file__).with_name("outputs.json").write_text(json.dumps(document, indent=None) + "\n")
