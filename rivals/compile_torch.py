"""Training steps of GPT-2 124M and U-Net with torch.compile on a GPU: `python rivals/compile_torch.py`.

Autocast to bf16, fused optimizers, images with channels last; the batch stays on the GPU. Prints the median of 40 steps
and the peak of allocated memory.
"""

import statistics

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, context=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x, y):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class UNet(nn.Module):
    def __init__(self, classes=2, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        def twice(a, b):
            layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
            return nn.Sequential(*layers)
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.join = nn.ModuleList(twice(a, b) for a, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x, y):
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([skip, up(x)], 1))
        return F.cross_entropy(self.head(x), y)


def measure(name, model, optimizer, x, y):
    model = torch.compile(model)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for step in range(50):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(f"{name}: {statistics.median(times[10:]):.1f} ms, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)


torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
tokens = lambda: torch.randint(50257, (16, 1024), device="cuda")
gpt2 = Gpt2().cuda()
measure("GPT-2 124M, batch 16", gpt2, torch.optim.AdamW(gpt2.parameters(), lr=3e-4, fused=True), tokens(), tokens())
del gpt2
images = torch.randn(32, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
masks = torch.randint(2, (32, 256, 256), device="cuda")
unet = UNet().cuda().to(memory_format=torch.channels_last)
measure("U-Net, batch 32", unet, torch.optim.SGD(unet.parameters(), lr=0.01, momentum=0.9, fused=True), images, masks)
