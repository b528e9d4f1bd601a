"""The zoo's `char-gpt` on a text file in PyTorch, for comparison with examples/shakespeare.toml.

    pip install torch
    python rivals/char_gpt_torch.py FILE.txt [EPOCHS] [SEEDS]

Windows of 64 characters side by side, the first nine tenths of the text to learn from, the rest held out; batches of 32. Six layers of two
heads of 64, dropout 0.2, weights from a normal of 0.02 (projections in front of sums divided by the root of twelve), scores from the tied
table. AdamW 1e-3 with decay 0.1 and betas 0.9 and 0.99, gradients cut at a global norm of 1. Prints the held-out loss after every epoch.
"""
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT, BATCH, LAYERS, HEADS, DEPTH, RATE = 64, 32, 6, 2, 64, 0.2
WIDTH = HEADS * DEPTH

text = open(sys.argv[1], encoding="utf-8").read()
characters = sorted(set(text))
place = {c: i for i, c in enumerate(characters)}
numbers = torch.tensor([place[c] for c in text])


def windows(part):
    count = (len(part) - 1) // CONTEXT
    return part[: count * CONTEXT].view(count, CONTEXT), part[1 : count * CONTEXT + 1].view(count, CONTEXT)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.project = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(RATE)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, DEPTH).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.project(F.gelu(self.expand(self.norm2(x)), approximate="tanh")))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(characters), WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(RATE)
        nn.init.trunc_normal_(self.positions, std=0.02, a=-0.04, b=0.04)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = 0.02 / math.sqrt(2 * LAYERS) if "out." in name or "project." in name else 0.02
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x):
        y = self.dropout(self.tokens(x) + self.positions)
        for block in self.blocks:
            y = block(y)
        return self.norm(y) @ self.tokens.weight.T


epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 1
seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
cut = int(len(numbers) * 0.9)
(x, y), (held_x, held_y) = windows(numbers[:cut]), windows(numbers[cut:])
for seed in range(seeds):
    torch.manual_seed(seed)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-7)
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(model(x[rows]).flatten(0, 1), y[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [F.cross_entropy(model(a).flatten(0, 1), b.flatten(), reduction="sum") for a, b in zip(held_x.split(64), held_y.split(64))]
        print(f"seed {seed}, epoch {epoch + 1}: held-out loss {sum(losses).item() / held_y.numel():.4f}", flush=True)
