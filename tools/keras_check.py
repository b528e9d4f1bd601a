#!/usr/bin/env python3
"""Compares imported models with Keras: networks of keras.applications with random weights, predicted by `plimsoll predict`.

    python tools/keras_check.py target/release/plimsoll            all of them (Keras 3 on TensorFlow, a few minutes)
    python tools/keras_check.py target/release/plimsoll vgg16      one

Prints max|difference| / max|reference| of the logits of every network, and fails if one is above 1e-4. Moving statistics are random
too, so that no layer is the identity.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

APPLICATIONS = {
    "xception": 96, "vgg16": 64, "vgg19": 64, "resnet50": 64, "resnet101": 64, "resnet50v2": 64, "inception_v3": 96,
    "inception_resnet_v2": 96, "mobilenet": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mobilenet_v3_large": 64, "densenet121": 64,
    "nasnet_mobile": 64, "efficientnet_b0": 64, "efficientnet_v2b0": 64, "efficientnet_v2s": 64, "convnext_tiny": 64,
}


def build(name, size):
    found = [getattr(keras.applications, known) for known in dir(keras.applications) if known.lower() == name.replace("_", "")]
    return found[0](weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)


def main():
    program, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(APPLICATIONS)
    worst = 0
    for name in wanted:
        keras.utils.set_random_seed(1)
        draw = np.random.default_rng(1)
        model = build(name, APPLICATIONS[name])
        for weight in model.weights:
            if "moving_mean" in weight.path or "beta" in weight.path:
                weight.assign(0.1 * draw.normal(size=weight.shape))
            elif "moving_variance" in weight.path or "gamma" in weight.path:
                weight.assign(draw.uniform(0.5, 1.5, size=weight.shape))
        x = draw.uniform(0, 255, size=(4, APPLICATIONS[name], APPLICATIONS[name], 3)).astype(np.float32)
        reference = np.asarray(model(x, training=False))
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model.save(folder / "model.keras")
            np.save(folder / "x.npy", x)
            command = [program, "predict", "model.keras", "--input", "x.npy", "--out", "y.npy"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                print(f"{name:22} {done.stderr.strip()}", flush=True)
                worst = max(worst, 1)
                continue
            y = np.load(folder / "y.npy").reshape(reference.shape)
        difference = np.abs(y - reference).max() / np.abs(reference).max()
        worst = max(worst, difference)
        print(f"{name:22} {model.count_params():>11,} parameters  {difference:.2e}", flush=True)
    sys.exit(0 if worst <= 1e-4 else 1)


if __name__ == "__main__":
    main()
