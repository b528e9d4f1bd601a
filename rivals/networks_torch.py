"""Steps of two networks of the zoo, and single convolutions, in PyTorch on a GPU: `python rivals/networks_torch.py`.

Single precision without TF32 and autocast to bf16; eager mode, images with channels last, batches that stay on the GPU.
"""

import statistics

import torch
import torch.nn.functional as F
import torchvision
from transformers import GPT2Config, GPT2LMHeadModel

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False


def median_us(run, rounds=10, warm=4):
    for _ in range(warm):
        run()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def convolution(side, size, stride, channels, filters):
    x = torch.randn(32, channels, side, side, device="cuda").to(memory_format=torch.channels_last)
    w = torch.randn(filters, channels, size, size, device="cuda").to(memory_format=torch.channels_last)
    pad = size // 2
    dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=pad))

    def both():
        F.conv2d(x, w, stride=stride, padding=pad)
        torch.ops.aten.convolution_backward(
            dy, x, w, None, [stride, stride], [pad, pad], [1, 1], False, [0, 0], 1, [False, True, False]
        )

    print(f"{size}×{size} by {stride} from {channels} to {filters} on {side}×{side}: {median_us(both):.0f} µs", flush=True)


def network(name, make, loss_of):
    for amp in (False, True):
        model = make().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        torch.cuda.reset_peak_memory_stats()

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = loss_of(model)
            loss.backward()
            optimizer.step()

        took = median_us(step)
        peak = torch.cuda.max_memory_allocated() / 2**20
        print(f"{name}, {'bf16' if amp else 'f32'}: {took / 1e3:.1f} ms a step, peak {peak:.0f} MiB", flush=True)
        del model, optimizer
        torch.cuda.empty_cache()


for case in [(56, 3, 1, 64, 64), (56, 1, 1, 256, 64), (224, 7, 2, 3, 64), (14, 3, 1, 256, 256)]:
    convolution(*case)
torch.cuda.empty_cache()
tokens = torch.randint(0, 50257, (4, 1024), device="cuda")
network("GPT-2 124M, batch 4 of 1,024", lambda: GPT2LMHeadModel(GPT2Config()), lambda m: m(tokens, labels=tokens).loss)
images = torch.randn(32, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (32,), device="cuda")
resnet = lambda: torchvision.models.resnet50().to(memory_format=torch.channels_last)
network("ResNet-50, batch 32", resnet, lambda m: F.cross_entropy(m(images), labels))
