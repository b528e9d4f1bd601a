#!/usr/bin/env python3
"""Writes the data of the programs in docs/coming-from-keras.md: arrays, photographs, tokens and series of random numbers.

    tools/book_data.py FOLDER [ROWS]     ROWS of the arrays, 1,000,000 by default (1.3 GB)

Needs NumPy and Pillow. Files that are there are kept.
"""
import os
import sys

import numpy as np
from PIL import Image

folder, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
photos = 2_000 if rows >= 100_000 else 20
random = np.random.default_rng(7)


def write(name, shape, fill):
    """An array of this shape, by blocks of rows, so that it is never whole in memory."""
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return
    block = fill(0)
    out = np.lib.format.open_memmap(path + ".part", mode="w+", dtype=block.dtype, shape=(shape[0], *block.shape[1:]))
    for start in range(0, shape[0], 10_000):
        stop = min(start + 10_000, shape[0])
        out[start:stop] = fill(stop - start)
    out.flush()
    os.rename(path + ".part", path)


os.makedirs(folder, exist_ok=True)
weights = random.normal(size=(100, 10)).astype("f4") / 10
x = None


def inputs(n):
    return random.normal(size=(n, 100)).astype("f4")


write("x.npy", (rows,), inputs)
if not os.path.exists(os.path.join(folder, "y.npy")):
    x = np.load(os.path.join(folder, "x.npy"), mmap_mode="r")
    np.save(os.path.join(folder, "y.npy"), np.concatenate([x[i : i + 10_000] @ weights for i in range(0, rows, 10_000)]))
write("images.npy", (rows,), lambda n: random.integers(0, 256, (n, 28, 28, 1), dtype="u1"))
write("labels.npy", (rows,), lambda n: random.integers(0, 10, n, dtype="i4"))
write("tokens.npy", (min(rows, 512),), lambda n: random.integers(0, 50_000, (n, 128), dtype="i4"))
write("next.npy", (min(rows, 512),), lambda n: random.integers(0, 50_000, (n, 128), dtype="i4"))
write("series.npy", (min(rows, 512),), lambda n: random.normal(size=(n, 2_048, 8)).astype("f4"))
write("target.npy", (min(rows, 512),), lambda n: random.normal(size=(n, 1)).astype("f4"))
for i in range(photos):
    path = os.path.join(folder, "photos", f"class{i % 10}", f"{i}.jpg")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        small = random.integers(0, 256, (30, 40, 3), dtype="u1")
        Image.fromarray(small).resize((640, 480), Image.BICUBIC).save(path, quality=90)
