#!/usr/bin/env python3
"""Writes mobilenet_v2.safetensors: a narrow MobileNetV2 of torchvision in half precision, with inputs and outputs in its metadata.

    python torchvision_weights.py       (pip install torch torchvision safetensors)
"""

import json
from pathlib import Path

import torch
import torchvision
from safetensors.torch import save_file


def main():
    torch.manual_seed(1)
    model = torchvision.models.mobilenet_v2(weights=None, width_mult=0.1, num_classes=3).eval()
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("running_mean") or name.endswith("bias"):
                value.normal_(0, 0.1)
            elif name.endswith("running_var") or value.ndim == 1:
                value.uniform_(0.5, 1.5)
            if value.is_floating_point():
                value.copy_(value.half().float())
    x = torch.rand(2, 3, 32, 32).mul(64).round().div(64)
    with torch.no_grad():
        y = model(x)
    tensors = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    # Channels last, in sixty-fourths.
    inputs = x.permute(0, 2, 3, 1).mul(64).round().int().flatten().tolist()
    metadata = {"inputs": json.dumps(inputs), "outputs": json.dumps([round(float(v), 6) for v in y.flatten()])}
    save_file(tensors, Path(__file__).parent / "mobilenet_v2.safetensors", metadata)


if __name__ == "__main__":
    main()
