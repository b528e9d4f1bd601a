#!/usr/bin/env python3
"""Where rounding in training comes from: first losses and batch statistics here and in Keras, both against Keras in float64.

    tools/keras_rounding.py target/release/plimsoll resnet50 [BATCHES]

Batch normalization without momentum keeps the statistics of its last batch, so one step with a learning rate of nearly zero shows the
mean of every channel of every layer. A line per batch has the relative error of the loss, and for three depths the root mean square of
the errors of the means, in standard deviations of their channels. Runs in the Keras environment of tools/models_check.py.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import models_check

INSIDE = "KERAS_ROUNDING_INSIDE"
TOML = """[model]
file = "model.keras"
[data]
source = "npy"
x = "x.npy"
y = "y.npy"
shuffle = false
[train]
batch = 8
epochs = 1
optimizer = { type = "sgd", lr = 1e-30 }
"""


def compare(program, name, batches):
    import keras
    import numpy as np

    def copied(model, dtype):
        def layer_of(layer):
            config = {**layer.get_config(), "dtype": dtype}
            if layer.__class__.__name__ == "BatchNormalization":
                config["momentum"] = 0.0
            if layer.__class__.__name__ == "Dropout":
                config["rate"] = 0.0
            return layer.__class__.from_config(config)

        keras.config.set_floatx(dtype)
        copy = keras.models.clone_model(model, clone_function=layer_of)
        copy.set_weights(model.get_weights())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        copy.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
        return copy

    def first_loss(model, dtype, x, y):
        keras.config.set_floatx(dtype)
        model.reset_metrics()
        return float(model.train_on_batch(x.astype(dtype), y))

    def rms(numbers):
        return float(np.sqrt(np.square(numbers).mean()))

    original, size, _ = models_check.application(name)
    single, double = copied(original, "float32"), copied(original, "float64")
    norms = [pair for pair in zip(single.layers, double.layers) if pair[0].__class__.__name__ == "BatchNormalization"]
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        single.save(folder / "model.keras")
        (folder / "run.toml").write_text(TOML)
        for batch in range(batches):
            draw = np.random.default_rng(100 + batch)
            x, y = draw.uniform(0, 1, size=(8, size, size, 3)).astype(np.float32), draw.integers(0, 10, size=8).astype(np.int32)
            np.save(folder / "x.npy", x)
            np.save(folder / "y.npy", y)
            out = folder / f"out-{batch}"
            models_check.run(program, "train", "run.toml", "--out", out, "--no-calibrate", "--quiet", cwd=folder)
            ours = json.loads((out / "log.jsonl").read_text().splitlines()[0])["loss"]
            found, exact = first_loss(single, "float32", x, y), first_loss(double, "float64", x, y)
            errors.append((abs(ours / exact - 1), abs(found / exact - 1)))
            header, data = models_check.read_tensors(out / "weights.safetensors")
            line = f"batch {batch}: loss {errors[-1][0]:.1e}, Keras {errors[-1][1]:.1e}"
            for own, truth in (norms[len(norms) // 4], norms[len(norms) // 2], norms[-1]):
                start, end = header[f"{truth.name}/moving_mean"]["data_offsets"]
                mean, deviation = truth.moving_mean.numpy(), np.sqrt(truth.moving_variance.numpy() + truth.epsilon)
                here = rms((np.frombuffer(bytes(data[start:end]), np.float32) - mean) / deviation)
                line += f"; {truth.name} {here:.1e}, Keras {rms((own.moving_mean.numpy() - mean) / deviation):.1e}"
            print(line, flush=True)
    ours, found = np.mean(errors, axis=0)
    print(f"mean error of the first loss: {ours:.1e}, Keras {found:.1e}")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, name, batches = Path(sys.argv[1]).resolve(), sys.argv[2], int((sys.argv[3:] or ["8"])[0])
    if os.environ.get(INSIDE):
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        return compare(program, name, batches)
    inside = {**os.environ, INSIDE: "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.exit(subprocess.run([models_check.environment("keras"), __file__, *sys.argv[1:]], env=inside).returncode)


if __name__ == "__main__":
    main()
