"""Segmentation from folders of images and masks, in Keras and in Plimsoll: the same files, network and preprocessing.

    pip install tensorflow-cpu pillow
    python rivals/segmentation_keras.py FOLDER [PLIMSOLL] [EPOCHS] [SEEDS]

Writes images of circles and rectangles on noise (JPEG) and their masks (palette PNG) to FOLDER, unless they are there, and a
configuration. Trains with Keras, then with the PLIMSOLL program if it is named, once per seed of weights and shuffling. Prints
pixel accuracy, mean IoU over classes and the peak resident memory of each process, and the means over seeds.
"""
import json
import os
import pathlib
import resource
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SIZE, CLASSES, BATCH = 64, 3, 16
ROWS = {"train": 600, "validation": 150}

CONFIG = """[data]
source = "image_masks"
images = "train/images"
masks = "train/masks"
classes = ["ground", "circle", "rectangle"]
shuffle = true
map = [{ op = "decode" }, { op = "resize", size = 64 }, { op = "scale", by = "1/255" }]

[data.validation]
images = "validation/images"
masks = "validation/masks"

[model]
layers = [
  { type = "conv2d", filters = 16, size = 3, padding = "same", activation = "relu" },
  { type = "max_pool2d", size = 2 },
  { type = "conv2d", filters = 32, size = 3, padding = "same", activation = "relu" },
  { type = "conv2d", filters = 32, size = 3, padding = "same", activation = "relu" },
  { type = "up_sampling2d", factor = 2 },
  { type = "conv2d", filters = 16, size = 3, padding = "same", activation = "relu" },
  { type = "conv2d", filters = 3, size = 1 },
]

[train]
batch = 16
metrics = ["accuracy", "iou"]
optimizer = { type = "adam", lr = 3e-3 }

[checkpoint]
enabled = false

[budget]
host = "96MiB"
"""


def make(folder):
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(7)
    y, x = np.mgrid[:SIZE, :SIZE]
    for part, rows in ROWS.items():
        for kind in ["images", "masks"]:
            (folder / part / kind).mkdir(parents=True, exist_ok=True)
        for row in range(rows):
            image = random.integers(0, 120, (SIZE, SIZE, 3))
            mask = np.zeros((SIZE, SIZE), "u1")
            for _ in range(random.integers(1, 4)):
                kind, radius = random.integers(1, 3), random.integers(6, 16)
                top, left = random.integers(8, SIZE - 8, 2)
                across, down = abs(x - left), abs(y - top)
                inside = across**2 + down**2 < radius**2 if kind == 1 else (across < radius) & (down < radius * 0.7)
                image[inside] = random.integers(90, 230, 3) + random.integers(-40, 25, (inside.sum(), 3))
                mask[inside] = kind
            Image.fromarray(image.clip(0, 255).astype("u1")).save(folder / part / "images" / f"{row:04}.jpg", quality=92)
            picture = Image.fromarray(mask, "P")
            picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
            picture.save(folder / part / "masks" / f"{row:04}.png")


def keras_run(folder, epochs, seed):
    import keras
    import tensorflow as tf

    def load(image, mask):
        pixels = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(image), channels=3), [SIZE, SIZE]) / 255
        # Palette indices: TensorFlow decodes palettes to colours, red is class 1 and green class 2.
        colours = tf.cast(tf.io.decode_png(tf.io.read_file(mask), channels=3) > 127, tf.int32)
        return pixels, colours[..., 0] + 2 * colours[..., 1]

    def rows(part):
        files = [sorted(str(path) for path in (folder / part / kind).iterdir()) for kind in ["images", "masks"]]
        data = tf.data.Dataset.from_tensor_slices(tuple(files))
        data = data.shuffle(len(files[0]), seed=seed) if part == "train" else data
        return data.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

    keras.utils.set_random_seed(seed)
    conv = lambda filters, size, **more: keras.layers.Conv2D(filters, size, padding="same", **more)
    model = keras.Sequential([
        keras.layers.Input([SIZE, SIZE, 3]),
        conv(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        conv(32, 3, activation="relu"),
        conv(32, 3, activation="relu"),
        keras.layers.UpSampling2D(2),
        conv(16, 3, activation="relu"),
        conv(CLASSES, 1),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    iou = keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy", iou])
    model.fit(rows("train"), epochs=epochs, verbose=0)
    scores = model.evaluate(rows("validation"), verbose=0, return_dict=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"accuracy": scores["accuracy"], "iou": scores["mean_io_u"], "peak_mib": peak}))


def plimsoll_run(program, folder, epochs, seed):
    run = folder / "run"
    config = (folder / "run.toml").read_text().replace("shuffle = true", f"shuffle = {{ seed = {seed} }}")
    (folder / "seed.toml").write_text(config)
    command = [program, "train", str(folder / "seed.toml"), "--epochs", str(epochs), "--seed", str(seed), "--quiet", "--overwrite", "--out", str(run)]
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0
    said = subprocess.run([program, "evaluate", str(run), "--json"], check=True, capture_output=True, text=True)
    scores = json.loads(said.stdout)
    return {"accuracy": scores["accuracy"], "iou": scores["iou"], "peak_mib": usage.ru_maxrss / 1024}


def main():
    folder, epochs = pathlib.Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else 12
    if len(sys.argv) > 5:
        return keras_run(folder, epochs, int(sys.argv[4]))
    if not folder.exists():
        make(folder)
    (folder / "run.toml").write_text(CONFIG)
    results = {}
    for seed in range(1, 1 + (int(sys.argv[4]) if len(sys.argv) > 4 else 1)):
        command = [sys.executable, __file__, str(folder), "-", str(epochs), str(seed), "keras"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        results.setdefault("keras", []).append(json.loads(said.stdout.strip().splitlines()[-1]))
        if len(sys.argv) > 2 and sys.argv[2] != "-":
            results.setdefault("plimsoll", []).append(plimsoll_run(sys.argv[2], folder, epochs, seed))
        for name, runs in results.items():
            print(f"{name:8} seed {seed}", json.dumps(runs[-1]), flush=True)
    for name, runs in results.items():
        mean = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
        print(f"{name:8} mean  ", json.dumps(mean))


main()
