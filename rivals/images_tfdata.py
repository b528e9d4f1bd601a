"""The same pictures through tf.data: decode, bilinear 224 x 224, divided by 255, batches of 64.

    pip install tensorflow-cpu
    python rivals/images_tfdata.py FOLDER

FOLDER has one folder of JPEGs per class. Beside it: plimsoll data bench CONFIG --epochs 3.
"""

import resource
import sys
import time

import tensorflow as tf

folder = sys.argv[1]
files = tf.data.Dataset.list_files(folder + "/*/*.jpg", shuffle=True, seed=7)
count = int(files.cardinality())


def load(path):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (224, 224), method="bilinear") / 255.0


data = files.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(tf.data.AUTOTUNE)
for epoch in range(3):
    start, cpu = time.perf_counter(), time.process_time()
    for batch in data:
        pass
    rate, cpu = count / (time.perf_counter() - start), (time.process_time() - cpu) / count
    print(f"epoch {epoch + 1}: {rate:.0f} images/s, {1000 * cpu:.3f} ms of a core each", flush=True)
print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
