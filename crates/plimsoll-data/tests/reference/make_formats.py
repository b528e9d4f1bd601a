"""Writes the small files that tests/formats.rs reads: python make_formats.py (needs TensorFlow and NumPy)."""
import io, os, tarfile
import numpy as np
import tensorflow as tf

here = os.path.dirname(os.path.abspath(__file__))
path = lambda name: os.path.join(here, name)


def example(n):
    feature = {
        "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=[n + 0.5, -n, 3.25])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[n])),
        "raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([n, 255 - n])])),
        "words": tf.train.Feature(int64_list=tf.train.Int64List(value=list(range(-1, n)))),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


for name, options in [("examples.tfrecord", None), ("examples.tfrecord.gz", tf.io.TFRecordOptions(compression_type="GZIP"))]:
    with tf.io.TFRecordWriter(path(name), options) as writer:
        for n in range(4):
            writer.write(example(n))

arrays = {"images": np.arange(24, dtype=np.float64).reshape(4, 3, 2), "labels": np.array([3, 1, 2, 0])}
np.savez(path("arrays.npz"), **arrays)
np.savez_compressed(path("packed.npz"), **arrays)

with tarfile.open(path("shard.tar"), "w", format=tarfile.PAX_FORMAT) as tar:
    for n in range(3):
        image = np.full((2 + n, 3, 3), 40 * n + 10, dtype=np.uint8)
        # The second has a name longer than the header has room for.
        name = f"{'folder' * 25}/{n:04}" if n == 1 else f"{n:04}"
        for extension, data in [("cls", f"{7 - n}\n".encode()), ("json", b"{}"), ("png", tf.io.encode_png(image).numpy())]:
            info = tarfile.TarInfo(f"{name}.{extension}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def picture(n):
    image = np.full((2 + n, 3, 3), 40 * n + 10, dtype=np.uint8)
    feature = {
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[7 - n])),
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])),
        "image/format": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"png"])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


for name, options in [("encoded_images.tfrecord", None), ("encoded_images.tfrecord.gz", tf.io.TFRecordOptions(compression_type="GZIP"))]:
    with tf.io.TFRecordWriter(path(name), options) as writer:
        for n in range(3):
            writer.write(picture(n))
