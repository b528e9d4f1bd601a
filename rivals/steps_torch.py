"""Training steps of the two examples, and of one wider convolution, in PyTorch on a GPU: the other side of `cargo bench -p plimsoll-cuda`.

    python rivals/steps_torch.py

Prints microseconds a step (median of ten rounds, batches copied from pinned memory each time) and the peak of allocated device memory.
"""
import time

import torch
from torch import nn

# Single precision is single precision on both sides.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def conv(side, channels, filters):
    return nn.Sequential(nn.Conv2d(channels, filters, 3), nn.ReLU(), nn.Flatten(), nn.Linear((side - 2) ** 2 * filters, 10))


def measure(name, model, x, steps=50):
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = x.pin_memory(), torch.randn(len(x), 10).pin_memory()
    torch.cuda.reset_peak_memory_stats()

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.to("cuda", non_blocking=True)), y.to("cuda", non_blocking=True))
        loss.backward()
        optimizer.step()

    def round_of(count):
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    round_of(20)
    median = sorted(round_of(steps) for _ in range(10))[5]
    print(f"{name:<36} batch {len(x):>4} {1e6 * median:>9.1f} µs a step, {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB at most")


measure("dense 100 to 10", nn.Linear(100, 10), torch.randn(32, 100))
measure("conv 3×3 to 32, dense 10", conv(64, 1, 32), torch.randn(32, 1, 64, 64))
measure("conv 3×3 to 32, dense 10", conv(64, 1, 32), torch.randn(1024, 1, 64, 64), 20)
measure("conv 3×3 from 64 to 128, dense 10", conv(56, 64, 128), torch.randn(32, 64, 56, 56))
