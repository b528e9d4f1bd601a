#!/usr/bin/env python3
"""Compares imported models with onnxruntime: networks of torchvision and a GPT-2 with random weights, exported by PyTorch and predicted
by `plimsoll predict`.

    pip install torch torchvision onnx onnxscript onnxruntime
    python tools/onnx_model_check.py target/release/plimsoll             all of them
    python tools/onnx_model_check.py target/release/plimsoll resnet18    one
    python tools/onnx_model_check.py target/release/plimsoll --dynamo    by the exporter on torch.export

Prints max|difference| / max|reference| of every network, and fails if one is above 1e-4. Moving statistics are random too, so that no
layer is the identity.
"""

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torchvision

warnings.filterwarnings("ignore")
NETWORKS = [
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0",
    "googlenet", "vgg11", "regnet_y_400mf", "mnasnet0_5", "convnext_tiny", "vit_b_16", "swin_t", "alexnet", "gpt2",
]
SIZES = {"vit_b_16": 224, "vgg11": 224, "alexnet": 224, "googlenet": 96}


class Block(torch.nn.Module):
    """A block of GPT-2: causal attention and a perceptron, each behind a normalization."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        length, width = x.shape[1], x.shape[2]
        parts = self.qkv(self.ln_1(x)).split(width, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, width // self.heads)).transpose(1, 2) for part in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.out(torch.nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    """GPT-2, with fewer and narrower layers, and the scores tied to the embedding."""

    def __init__(self, tokens=1000, context=32, width=192, heads=6, layers=4):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(tokens, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)
        self.register_buffer("positions", torch.arange(context), persistent=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(self.positions)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.linear(self.ln_f(x), self.wte.weight)


def export(name, size, path, dynamo):
    torch.manual_seed(1)
    model = Gpt2() if name == "gpt2" else torchvision.models.get_model(name, weights=None, num_classes=10)
    model = model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    for weight in model.parameters():
        # Some heads begin at zero, where every output would be equal.
        if weight.dim() == 2 and not weight.any():
            torch.nn.init.normal_(weight, std=0.05)
    example = torch.randint(0, 1000, (2, 32)) if name == "gpt2" else torch.randn(2, 3, size, size)
    options = dict(input_names=["input"], output_names=["output"])
    if dynamo:
        torch.onnx.export(model, (example,), str(path), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False, **options)
    else:
        torch.onnx.export(model, (example,), str(path), dynamo=False, dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}}, **options)
    return example.numpy()


def check(program, name, dynamo):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        x = export(name, SIZES.get(name, 64), folder / "model.onnx", dynamo)
        wanted = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"]).run(None, {"input": x})[0]
        np.save(folder / "x.npy", x if x.dtype == np.float32 else x.astype(np.int32))
        command = [program, "predict", "model.onnx", "--input", "x.npy", "--out", "y.npy"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip()
        got = np.load(folder / "y.npy").reshape(wanted.shape)
        return float(np.abs(got - wanted).max() / np.abs(wanted).max()), ""


def main():
    program, wanted = Path(sys.argv[1]).resolve(), [name for name in sys.argv[2:] if name != "--dynamo"] or NETWORKS
    failed = 0
    for name in wanted:
        try:
            worst, why = check(program, name, "--dynamo" in sys.argv)
        except Exception as error:  # the exporter's own
            worst, why = None, f"not exported: {str(error).splitlines()[0][:100]}"
        print(f"{name:20} {why if worst is None else f'{worst:.1e}'}", flush=True)
        failed += worst is None or worst > 1e-4
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
