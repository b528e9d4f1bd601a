#!/usr/bin/env python3
"""Writes the ONNX models in tests/references/onnx with inputs and outputs: small networks that PyTorch exports, with random weights,
and graphs as other exporters write them. Outputs are those of onnxruntime.

pip install torch onnx onnxscript onnxruntime
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

OUT = Path(__file__).parent / "onnx"
torch.manual_seed(7)
RANDOM = np.random.default_rng(7)


class Residual(nn.Module):
    """A residual network with batch normalization, as torchvision builds them."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 12, 1, stride=2)
        self.deep = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4)
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = torch.relu(x + self.bn2(self.conv2(x)))
        x = torch.relu(self.down(x) + self.deep(x))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze and excitation, concatenation, a softmax over classes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.head = nn.Conv2d(16, 6, 1)

    def forward(self, x):
        x = nn.functional.hardswish(self.stem(x))
        y = nn.functional.relu6(self.depthwise(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        z = torch.cat([x, y * gate], 1)
        z = nn.functional.interpolate(z, scale_factor=2, mode="nearest")
        return torch.softmax(self.head(z).mean((2, 3)), 1)


class Transformer(nn.Module):
    """Token and position embeddings, a block, causal attention."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(30, 16), nn.Parameter(torch.randn(1, 6, 16))
        block = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, activation="gelu", norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 30)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), float("-inf")), 1))

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position, mask=self.mask)))


class Decoder(nn.Module):
    """Causal attention as one call, rotary embeddings left out."""

    def __init__(self):
        super().__init__()
        self.token, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        q, k, v = self.qkv(self.norm(x)).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).reshape(-1, 6, 8)))


class Recurrent(nn.Module):
    """A bidirectional LSTM and a GRU over a series."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 7, batch_first=True)
        self.fc = nn.Linear(7, 2)

    def forward(self, x):
        y, _ = self.lstm(x)
        _, last = self.gru(y)
        return self.fc(last[-1])


class Unet(nn.Module):
    """Transposed convolution, bilinear resizing, group normalization, 1-D convolution."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.norm, self.line = nn.GroupNorm(2, 4), nn.Conv1d(6, 3, 3, padding=1)

    def forward(self, x):
        y = self.norm(self.up(nn.functional.leaky_relu(self.down(x))))
        y = torch.cat([x, y], 1)
        y = nn.functional.interpolate(y, size=(12, 12), mode="bilinear", align_corners=False)
        return self.line(nn.functional.avg_pool2d(y, 3, stride=2).flatten(2))


def outputs_of(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def tensor(array):
    return {"shape": list(array.shape), "data": [float(f"{number:.7g}") for number in array.reshape(-1).astype(float)]}


def strip(path):
    """Removes what says where in the Python program a node comes from."""
    model = onnx.load(path)
    for item in [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer]:
        item.doc_string = ""
        del item.metadata_props[:]
    del model.graph.value_info[:]
    onnx.save(model, path)


CASES = []


def record(name, inputs, note):
    # A file with a fixed batch computes one batch; rows are compared one by one.
    rows = next(iter(inputs.values())).shape[0]
    try:
        results = outputs_of(OUT / name, inputs)
    except Exception:
        parts = [outputs_of(OUT / name, {key: value[row : row + 1] for key, value in inputs.items()}) for row in range(rows)]
        results = [np.concatenate(values) for values in zip(*parts)]
    CASES.append(
        {"file": name, "note": note, "inputs": [tensor(value) for value in inputs.values()], "outputs": [tensor(np.asarray(value)) for value in results]}
    )


def export(name, module, example, note, batch_axis=True, **options):
    module.eval()
    for value in list(module.buffers()) + list(module.parameters()):
        # Statistics, scales and offsets as after some training.
        if value.dtype == torch.float32 and value.dim() == 1:
            value.data.copy_(torch.rand_like(value) + 0.5)
    axes = {"input": {0: "batch"}, "output": {0: "batch"}} if batch_axis else None
    arguments = dict(input_names=["input"], output_names=["output"], dynamic_axes=axes, dynamo=False)
    arguments.update(options)
    torch.onnx.export(module, (example[:1] if not batch_axis else example,), str(OUT / name), **arguments)
    strip(OUT / name)
    record(name, {"input": example.numpy()}, note)


def by_hand(name, nodes, inputs, outputs, weights, given, note, opset=18, external=False):
    initializers = [numpy_helper.from_array(value, key) for key, value in weights.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    if external:
        onnx.save(model, OUT / name, save_as_external_data=True, location=name + ".data", size_threshold=100)
    else:
        onnx.save(model, OUT / name)
    record(name, given, note)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def heads():
    """Attention as two products around a softmax: scores divided by a number, then scaled queries and keys of another length."""
    random = np.random.default_rng(8)

    def several(x, name, length, perm):
        """Heads of a projection."""
        return [
            helper.make_node("MatMul", [x, f"{name}.weight"], [f"{name}.flat"]),
            helper.make_node("Reshape", [f"{name}.flat", f"shape.{length}"], [f"{name}.split"]),
            helper.make_node("Transpose", [f"{name}.split"], [name], perm=perm),
        ]

    nodes = [
        *several("input", "q", 6, [0, 2, 1, 3]), *several("input", "k", 6, [0, 2, 3, 1]), *several("input", "v", 6, [0, 2, 1, 3]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Div", ["scores", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["rows"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["rows", "joined"], ["x"]),
        helper.make_node("Slice", ["x", "zero", "four", "one"], ["short"]),
        *several("x", "q2", 6, [0, 2, 1, 3]), *several("short", "k2", 4, [0, 2, 3, 1]), *several("short", "v2", 4, [0, 2, 1, 3]),
        helper.make_node("Mul", ["q2", "half"], ["half queries"]),
        helper.make_node("MatMul", ["half queries", "k2"], ["scores2"]),
        helper.make_node("Softmax", ["scores2"], ["weights2"]),
        helper.make_node("MatMul", ["weights2", "v2"], ["heads2"]),
        helper.make_node("Transpose", ["heads2"], ["rows2"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["rows2", "joined"], ["output"]),
    ]
    numbers = {f"{name}.weight": random.standard_normal((8, 8)).astype(np.float32) for name in ("q", "k", "v", "q2", "k2", "v2")}
    lists = {"shape.6": [0, 6, 2, 4], "shape.4": [0, 4, 2, 4], "joined": [0, 6, 8], "zero": [0], "four": [4], "one": [1]}
    weights = {**numbers, **{name: np.array(value) for name, value in lists.items()}}
    weights |= {"root": np.array(2.0, np.float32), "half": np.array(0.5, np.float32)}
    value = helper.make_tensor_value_info
    shapes = [value("input", TensorProto.FLOAT, ["n", 6, 8])], [value("output", TensorProto.FLOAT, ["n", 6, 8])]
    given = {"input": random.standard_normal((3, 6, 8)).astype(np.float32)}
    by_hand("heads.onnx", nodes, *shapes, weights, given, "attention as two products around a softmax")


def main():
    OUT.mkdir(exist_ok=True)
    image = torch.randn(2, 3, 12, 8)
    export("residual.onnx", Residual(), image, "PyTorch, batch normalization kept", training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
    export("residual_folded.onnx", Residual(), image, "PyTorch, batch normalization folded, opset 11", opset_version=11)
    export("residual_fixed.onnx", Residual(), image, "PyTorch, batch fixed to 1", batch_axis=False)
    export("mobile.onnx", Mobile(), image, "PyTorch, depthwise convolutions and softmax")
    tokens = torch.randint(0, 30, (3, 6))
    export("transformer.onnx", Transformer(), tokens, "PyTorch, causal attention", opset_version=17)
    export("recurrent.onnx", Recurrent(), torch.randn(3, 7, 5), "PyTorch, LSTM and GRU")
    export("unet.onnx", Unet(), torch.randn(2, 2, 8, 8), "PyTorch, transposed convolution and resizing")
    batch = torch.export.Dim("batch")
    for name, module, example, note in [
        ("residual_dynamo.onnx", Residual(), image, "PyTorch's newer exporter"),
        ("decoder.onnx", Decoder(), tokens % 20, "PyTorch's newer exporter, causal attention"),
    ]:
        export(name, module, example, note, dynamo=True, dynamic_axes=None, dynamic_shapes=({0: batch},), external_data=False)

    # Channels last around convolutions, as exporters of TensorFlow write them; weights in another file.
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Transpose", ["input"], ["a"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["a", "w", "b"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 2, 3, 1]),
        helper.make_node("Mul", ["d", "scale"], ["e"]),
        helper.make_node("Transpose", ["e"], ["f"], perm=[0, 3, 1, 2]),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["g"], ["h"], perm=[0, 2, 3, 1]),
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["h", "shape"], ["i"]),
        helper.make_node("Gemm", ["i", "k"], ["output"], transB=1),
    ]
    weights = {
        "w": floats(5, 3, 3, 3), "b": floats(5), "scale": floats(5), "k": floats(4, 60),
        "zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1]),
    }
    by_hand(
        "channels_last.onnx", nodes, [value("input", TensorProto.FLOAT, ["n", 8, 6, 3])], [value("output", TensorProto.FLOAT, ["n", 4])],
        weights, {"input": floats(2, 8, 6, 3)}, "channels last, shapes computed, weights in another file", external=True,
    )
    # Two inputs, two outputs, shared weights.
    nodes = [
        helper.make_node("MatMul", ["left", "w"], ["a"]),
        helper.make_node("MatMul", ["right", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["hidden"]),
        helper.make_node("ReduceMean", ["hidden", "axes"], ["mean"], keepdims=0),
    ]
    by_hand(
        "shared.onnx", nodes, [value(name, TensorProto.FLOAT, ["n", 4]) for name in ["left", "right"]],
        [value("hidden", TensorProto.FLOAT, ["n", 3]), value("mean", TensorProto.FLOAT, ["n"])],
        {"w": floats(4, 3), "axes": np.array([1])}, {"left": floats(3, 4), "right": floats(3, 4)}, "two inputs and outputs, shared weights",
    )
    heads()
    # What cannot be imported.
    nodes = [
        helper.make_node("NonZero", ["input"], ["a"], name="places"),
        helper.make_node("Relu", ["input"], ["b"], name="fine"),
        helper.make_node("Det", ["input"], ["c"], name="determinant"),
        helper.make_node("SequenceConstruct", ["b"], ["d"], name="list"),
    ]
    graph = helper.make_graph(
        nodes, "refused", [value("input", TensorProto.FLOAT, ["n", 3, 3])],
        [value("a", TensorProto.INT64, None), value("c", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, OUT / "refused.onnx")
    (OUT / "models.json").write_text(json.dumps(CASES))


if __name__ == "__main__":
    main()
