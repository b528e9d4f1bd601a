"""The two programs of examples/ in Keras, for comparison on the same machine.

    pip install tensorflow-cpu
    python rivals/foundation_keras.py dense|conv [ROWS]

Prints microseconds a step over the training loop and the resident peak of the process. The rows are in memory, as in the reports
these programs come from; `conv` resizes all images first, because that is what such programs do.
"""
import os
import resource
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf

BATCH = 32


def dense(rows):
    x, y = np.random.rand(rows, 100), np.random.rand(rows, 10)
    return keras.Sequential([keras.layers.Input([100]), keras.layers.Dense(10)]), x, y


def conv(rows):
    images = np.random.rand(rows, 28, 28, 1).astype("float32")
    x = np.concatenate([tf.image.resize(images[i : i + 500], [64, 64]).numpy() for i in range(0, rows, 500)])
    y = np.random.rand(rows, 10).astype("float32")
    layers = [keras.layers.Input([64, 64, 1]), keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential(layers), x, y


class Clock(keras.callbacks.Callback):
    """Times the steps between the first, which compiles, and the last."""

    def __init__(self):
        super().__init__()
        self.steps, self.start, self.end = 0, None, None

    def on_train_batch_end(self, batch, logs=None):
        self.end = time.perf_counter()
        if self.start is None:
            self.start = self.end
        else:
            self.steps += 1


what = sys.argv[1]
rows = int(sys.argv[2]) if len(sys.argv) > 2 else {"dense": 1_000_000, "conv": 20_000}[what]
model, x, y = {"dense": dense, "conv": conv}[what](rows)
model.compile(optimizer="adam", loss="mse")
clock = Clock()
model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[clock])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"keras {keras.__version__} on tensorflow {tf.__version__}: {what}, {1e6 * (clock.end - clock.start) / clock.steps:.0f} µs a step, {peak:.0f} MiB resident")
