"""Writes the small files that tests/models.rs reads, into this folder. Takes keras 3, tensorflow,
h5py, onnx, safetensors and numpy.

    python crates/plimsoll-formats/tests/references/make_models.py
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from pathlib import Path

import h5py
import keras
import numpy as np
import onnx
import safetensors.numpy
from keras import layers
from onnx import TensorProto, helper, numpy_helper

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

    weights = [
        numpy_helper.from_array(numbers(4, 3), "raw"),
        helper.make_tensor("listed", TensorProto.FLOAT, [3], [0, 0.125, 0.25]),
        helper.make_tensor("half", TensorProto.FLOAT16, [2], [0, 0.125]),
        helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 3]),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "raw", "listed"], ["y"], name="dense", alpha=1.0, transB=0),
        helper.make_node("Reshape", ["y", "shape"], ["z"]),
        helper.make_node("Cast", ["half"], ["unused"], to=TensorProto.FLOAT),
    ]
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "small", [value("x", ["batch", 4])], [value("z", [None, 3])], weights)
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(onnx_model)
    onnx.save(onnx_model, HERE / "small.onnx")
    onnx.save(onnx_model, HERE / "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0)
    onnx.load(HERE / "external.onnx")
    for tensor in onnx_model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../external.data" if entry.key == "location" else entry.value
    (HERE / "refused_location.onnx").write_bytes(onnx_model.SerializeToString())

    safetensors.numpy.save_file({"a.weight": numbers(2, 3), "b": np.arange(3)}, HERE / "small.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
