"""Writes the small files that tests/models.rs reads, into this folder. Takes keras 3, tensorflow, h5py and numpy.

    python crates/plimsoll-formats/tests/references/make_models.py
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from pathlib import Path

import h5py
import keras
import numpy as np
from keras import layers

HERE = Path(__file__).parent


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8


def small():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="body"), layers.Dense(2, name="head")], name="small")
    model.set_weights([numbers(*weight.shape) for weight in model.get_weights()])
    return model


def main():
    model = small()
    model.compile("sgd", "mse")
    model.save(HERE / "small.keras")
    model.save(HERE / "small.h5")
    (HERE / "small_config.json").write_text(model.to_json())

    with h5py.File(HERE / "layouts.h5", "w") as file:
        grid = numbers(37, 11)
        file.create_dataset("chunked", data=grid, chunks=(8, 4))
        file.create_dataset("gzip", data=grid, chunks=(8, 4), compression="gzip", shuffle=True)
        file.create_dataset("half", data=grid.astype(np.float16))
        file.create_dataset("whole", data=np.arange(-3, 3))
        file.create_dataset("flags", data=np.array([True, False]))
        file.create_dataset("scalar", data=np.float64(2.5))
        file.create_dataset("unwritten", shape=(3, 5), dtype="f4")
        file.create_dataset("empty", shape=(0, 5), dtype="f4")
        file["compact"] = numbers(3)
        many = file.create_group("many")
        for index in range(300):
            many[f"member_{index}"] = file["scalar"]
        file.attrs["text"] = "variable length ✓"
        file.attrs["list"] = ["a", "bc"]
        file.attrs["bytes"] = np.bytes_(b"fixed")
        file.attrs["number"] = 3

    def refused(name, fill, **options):
        with h5py.File(HERE / name, "w", **options) as file:
            fill(file)

    def virtual(file):
        layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
        layout[:] = h5py.VirtualSource("other.h5", "data", shape=(4,))
        file.create_virtual_dataset("data", layout)

    def external_storage(file):
        file.create_dataset("data", shape=(4,), dtype="f4", external=[("/etc/passwd", 0, 16)])

    refused("refused_external_link.h5", lambda file: file.__setitem__("stolen", h5py.ExternalLink("/etc/passwd", "/x")))
    refused("refused_soft_link.h5", lambda file: file.__setitem__("alias", h5py.SoftLink("/other")))
    refused("refused_virtual.h5", virtual)
    refused("refused_external_storage.h5", external_storage)
    refused("refused_latest.h5", lambda file: file.create_group("a"), libver="latest")
    refused("refused_filter.h5", lambda file: file.create_dataset("a", data=numbers(64), chunks=(64,), compression="lzf"))

    lambda_ = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x + 1, name="evil")])
    lambda_.save(HERE / "refused_lambda.keras")

    @keras.saving.register_keras_serializable(package="mine")
    class Doubled(layers.Layer):
        def call(self, x):
            return x + x

    custom = keras.Sequential([keras.Input((4,)), Doubled(name="odd")])
    custom.save(HERE / "refused_custom.keras")


if __name__ == "__main__":
    main()
