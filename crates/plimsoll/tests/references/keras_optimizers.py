"""Writes models that Keras has trained for some steps, and how training continues there, for the tests of `import`.

    python keras_optimizers.py          (Keras 3 on TensorFlow)

Every model goes to keras/optimizer_NAME.keras (or .h5); keras/optimizers.json has rows, labels, and the losses of the steps that Keras
makes after saving. The layers cover weights that are joined or divided here: those of attention, GRU and batch normalization.
"""

import json
import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

L, O = keras.layers, keras.optimizers
HERE = pathlib.Path(__file__).parent / "keras"
STEPS = 5
draw = np.random.default_rng(3)
cases = []


def small():
    x = numbers = keras.Input((3,))
    x = L.BatchNormalization()(L.Dense(4, name="frozen", trainable=False)(x))
    return keras.Model(numbers, L.Dense(2)(L.Dense(4, activation="tanh")(x)))


def attention():
    """Projections that are joined here, biases that are divided, a nested model."""
    x = series = keras.Input((4, 3))
    x = L.Dense(4, name="frozen", trainable=False)(x)
    x = L.Add()([x, L.MultiHeadAttention(2, 2)(x, x)])
    inner = keras.Sequential([keras.Input((4, 4)), L.BatchNormalization(), L.GRU(3)], name="inner")
    return keras.Model(series, L.Dense(2)(inner(x)))


def save(name, optimizer, file="keras", model=small):
    keras.utils.set_random_seed(2)
    net = model()
    net.compile(optimizer, "mse")
    shape = net.input_shape[1:]
    x, y = draw.normal(size=(8, *shape)).astype(np.float32), draw.normal(size=(8, 2)).astype(np.float32)
    for _ in range(STEPS):
        net.train_on_batch(x, y)
    path = f"optimizer_{name}.{file}"
    net.save(HERE / path)
    losses = []
    for _ in range(STEPS):
        net.reset_metrics()
        losses.append(float(net.train_on_batch(x, y)))
    numbers = [[float(f"{number:.7g}") for number in array.ravel()] for array in (x, y)]
    cases.append({"file": path, "steps": STEPS, "shape": shape, "x": numbers[0], "y": numbers[1], "losses": losses})


save("sgd", O.SGD(0.05, momentum=0.9, nesterov=True))
save("adam", O.Adam(0.02), model=attention)
save("adam", O.Adam(0.02), "h5")
save("adamw", O.AdamW(0.02, weight_decay=0.1))
save("rmsprop", O.RMSprop(0.01, momentum=0.5, centered=True))
save("nadam", O.Nadam(0.02))
save("lion", O.Lion(0.003))
save("adagrad", O.Adagrad(0.1))
save("schedule", O.Adam(O.schedules.ExponentialDecay(0.02, 1000, 1.0)))
# There is no such optimizer here: its state is named and left out.
save("adamax", O.Adamax(0.01))

(HERE / "optimizers.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"file"', '\n{"file"') + "\n")
print(len(cases), "models")
