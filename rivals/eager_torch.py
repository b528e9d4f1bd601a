#!/usr/bin/env python3
"""Eager training steps of the networks of `cargo bench -p plimsoll --bench eager` in PyTorch, and an op's overhead.

    python rivals/eager_torch.py step mlp|cifar-cnn|char-gpt|resnet18
    python rivals/eager_torch.py ops

`THREADS` sets the number of threads, 1 by default. `step` prints one line: milliseconds of a step on the wall and of all
threads, and by how many MiB the peak of the process grew.
"""
import os
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SPAN = 3.0
TOKENS, CONTEXT, WIDTH, HEADS, BLOCKS = 65, 64, 128, 4, 4


def resident():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize()


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def class_ids(count, classes):
    return torch.arange(count) * 7 % classes


def mlp():
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.rand(64, 784), class_ids(64, 10)


def cifar_cnn():
    conv = lambda a, b: [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
    features = conv(3, 32) + conv(32, 32) + [nn.MaxPool2d(2)] + conv(32, 64) + conv(64, 64) + [nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*features, *head), torch.rand(32, 3, 32, 32), class_ids(32, 10)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        y = self.first(x)
        heads = [f(y).view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(n, t, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class CharGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, x):
        return self.head(self.last(self.blocks(self.tokens(x) + self.positions))).view(-1, TOKENS)


def char_gpt():
    tokens = class_ids(16 * CONTEXT, TOKENS)
    return CharGpt(), tokens.view(16, CONTEXT), tokens


class Residual(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        conv = lambda a, b, size, step: nn.Sequential(
            nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b, track_running_stats=False))
        self.first, self.second = conv(channels, filters, 3, stride), conv(filters, filters, 3, 1)
        self.shortcut = conv(channels, filters, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def resnet18():
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64, track_running_stats=False), nn.ReLU()]
    layers, channels = stem + [nn.MaxPool2d(3, 2, 1)], 64
    for filters, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        layers.append(Residual(channels, filters, stride))
        channels = filters
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.rand(8, 3, 64, 64), class_ids(8, 10)


NETWORKS = {"mlp": mlp, "cifar-cnn": cifar_cnn, "char-gpt": char_gpt, "resnet18": resnet18}


def step(name):
    before = resident()
    model, x, y = NETWORKS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)

    def train():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    train()
    steps, start, cpu, loss = 0, time.perf_counter(), time.process_time(), None
    while steps == 0 or time.perf_counter() - start < SPAN:
        loss = train()
        steps += 1
    wall, cpu = (1e3 * seconds / steps for seconds in (time.perf_counter() - start, time.process_time() - cpu))
    grown = (peak() - before) / 2**20
    print(f"pytorch {name} {wall:.3f} ms {cpu:.3f} ms-cpu {grown:.1f} MiB loss {loss:.4f}")


def ops():
    x, y = torch.arange(8.0), torch.ones(8)
    tracked = torch.arange(8.0).requires_grad_()

    def overhead(name, op):
        rounds = []
        for _ in range(401):
            begin = time.perf_counter()
            for _ in range(200):
                op()
            rounds.append((time.perf_counter() - begin) / 200)
        print(f"pytorch {name:<36} {1e6 * statistics.median(rounds):9.3f} µs")

    overhead("add of 8 numbers", lambda: x + y)
    overhead("add of 8 numbers with gradients", lambda: tracked + y)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    torch.manual_seed(0)
    step(sys.argv[2]) if sys.argv[1] == "step" else ops()
