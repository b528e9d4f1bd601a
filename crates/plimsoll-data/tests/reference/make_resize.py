"""Makes resize.txt: what tf.image.resize gives for small images (TensorFlow 2.21).

    pip install tensorflow-cpu
    python make_resize.py > resize.txt

Three lines a case: method, element type, input and output shape; the input; the output.
"""

import numpy as np
import tensorflow as tf

SHAPES = [
    ((8, 8, 1), (13, 11)),
    ((5, 7, 3), (8, 4)),
    ((12, 10, 1), (29, 31)),
    ((9, 6, 2), (3, 2)),
    ((7, 7, 1), (2, 5)),
    ((1, 1, 3), (4, 2)),
    ((6, 1, 1), (4, 3)),
    ((4, 5, 1), (1, 1)),
    ((4, 3, 4), (5, 7)),
    ((3, 4, 1), (3, 4)),
]

rng = np.random.default_rng(7)
# A name, and how TensorFlow calls it.
METHODS = [
    ("nearest", "nearest", False),
    ("bilinear", "bilinear", False),
    ("bicubic", "bicubic", False),
    ("area", "area", False),
    ("bilinear_antialias", "bilinear", True),
    ("bicubic_antialias", "bicubic", True),
]

for name, method, antialias in METHODS:
    for dtype in ["u8", "f32"]:
        for shape, size in SHAPES:
            if dtype == "u8":
                image = rng.integers(0, 256, shape, dtype=np.uint8)
            else:
                image = rng.normal(size=shape).astype(np.float32)
            out = tf.cast(tf.image.resize(image, size, method=method, antialias=antialias), tf.float32).numpy()
            print(name, dtype, *shape, *size)
            print(*[f"{value:.9g}" for value in image.ravel()])
            print(*[f"{value:.9g}" for value in out.ravel()])
