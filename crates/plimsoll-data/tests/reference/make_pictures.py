"""Writes small WebP and GIF files and what other decoders make of them: python make_pictures.py (needs Pillow, NumPy and TensorFlow).

Pixels are in pictures.txt, one line for each file: its name, height, width, and red, green and blue of each pixel.
"""
import os
import numpy as np
import tensorflow as tf
from PIL import Image

here = os.path.dirname(os.path.abspath(__file__))
path = lambda name: os.path.join(here, name)
y, x = np.mgrid[0:14, 0:20]
smooth = np.stack([x * 12, y * 17, (x + y) * 7], -1).astype(np.uint8)
alpha = np.concatenate([smooth, np.full((14, 20, 1), 255, np.uint8)], -1)
alpha[3:6, 4:9, 3] = 128

Image.fromarray(smooth).save(path("lossy.webp"), quality=80)
Image.fromarray(smooth).save(path("lossless.webp"), lossless=True)
Image.fromarray(alpha).save(path("alpha.webp"), lossless=True, exact=True)
frames = [Image.fromarray(smooth), Image.fromarray(255 - smooth)]
frames[0].save(path("animated.webp"), save_all=True, append_images=frames[1:], lossless=True)
frames[0].convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(
    path("animated.gif"), save_all=True, append_images=[frames[1].convert("P", palette=Image.Palette.ADAPTIVE, colors=64)])
frames[0].convert("P", palette=Image.Palette.ADAPTIVE, colors=16).save(path("interlaced.gif"), interlace=True)

with open(path("pictures.txt"), "w") as out:
    for name in ["lossy.webp", "lossless.webp", "alpha.webp", "animated.webp"]:
        image = Image.open(path(name))
        # Transparency is left out, not blended with anything.
        pixels = np.asarray(image.convert("RGBA"))[..., :3]
        print(name, *pixels.shape[:2], *pixels.reshape(-1), file=out)
    for name in ["animated.gif", "interlaced.gif"]:
        pixels = tf.io.decode_image(tf.io.read_file(path(name)), expand_animations=False).numpy()
        print(name, *pixels.shape[:2], *pixels.reshape(-1), file=out)
