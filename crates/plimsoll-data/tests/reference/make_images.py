"""Makes images.txt: what tf.image gives for small images (TensorFlow 2.21).

    pip install tensorflow-cpu
    python make_images.py > images.txt

Three lines a case: the operation, its numbers, `:`, element type and input shape; the input; the output. An angle is turned into the transform
of Keras' RandomRotation. Floats are pixels from 0 to 1.
"""

import math

import numpy as np
import tensorflow as tf


def rotate(image, degrees, fill):
    height, width = image.shape[0] - 1, image.shape[1] - 1
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    across = (width - (cos * width - sin * height)) / 2
    down = (height - (sin * width + cos * height)) / 2
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=[[cos, -sin, across, sin, cos, down, 0.0, 0.0]],
        output_shape=image.shape[:2],
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill_value=fill,
    )[0]


COLOURS = [(4, 5, 3), (7, 3, 3)]
ANY = [(4, 5, 3), (6, 3, 1), (3, 3, 4)]
CASES = [
    ("brightness", (0.2,), ANY, lambda image, by: tf.image.adjust_brightness(image, by)),
    ("brightness", (-0.35,), ANY, lambda image, by: tf.image.adjust_brightness(image, by)),
    ("contrast", (1.7,), ANY, lambda image, by: tf.image.adjust_contrast(image, by)),
    ("contrast", (0.4,), ANY, lambda image, by: tf.image.adjust_contrast(image, by)),
    ("saturation", (1.9,), COLOURS, lambda image, by: tf.image.adjust_saturation(image, by)),
    ("saturation", (0.3,), COLOURS, lambda image, by: tf.image.adjust_saturation(image, by)),
    ("hue", (0.1,), COLOURS, lambda image, by: tf.image.adjust_hue(image, by)),
    ("hue", (-0.37,), COLOURS, lambda image, by: tf.image.adjust_hue(image, by)),
    ("grey", (), COLOURS, lambda image: tf.image.rgb_to_grayscale(image)),
    ("standardize", (), ANY, lambda image: tf.image.per_image_standardization(image)),
    ("rot90", (1,), ANY, lambda image, k: tf.image.rot90(image, k)),
    ("rot90", (2,), ANY, lambda image, k: tf.image.rot90(image, k)),
    ("rot90", (3,), ANY, lambda image, k: tf.image.rot90(image, k)),
    ("crop_or_pad", (6, 7), ANY, lambda image, h, w: tf.image.resize_with_crop_or_pad(image, h, w)),
    ("crop_or_pad", (2, 8), ANY, lambda image, h, w: tf.image.resize_with_crop_or_pad(image, h, w)),
    ("crop_or_pad", (3, 2), ANY, lambda image, h, w: tf.image.resize_with_crop_or_pad(image, h, w)),
    ("rotate", (12.5, 0.0), ANY, rotate),
    ("rotate", (-31.0, 0.5), ANY, rotate),
]

rng = np.random.default_rng(11)
for name, numbers, shapes, run in CASES:
    for dtype in ["u8", "f32"]:
        if dtype == "u8" and name == "rotate":
            continue  # The raw operation rounds down where Keras does not.
        for shape in shapes:
            if dtype == "u8":
                image = rng.integers(0, 256, shape, dtype=np.uint8)
            else:
                image = rng.random(shape).astype(np.float32)
            # A pixel without any colour has no hue.
            image[0, 0, :] = image[0, 0, 0]
            out = tf.convert_to_tensor(run(image, *numbers)).numpy()
            print(name, *numbers, ":", dtype, *shape)
            print(*[f"{value:.9g}" for value in image.ravel()])
            print(*[f"{value:.9g}" for value in out.ravel()])
