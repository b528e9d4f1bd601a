"""The zoo's `cifar-cnn` on a folder of images in Keras, for comparison with examples/clothing.toml.

    pip install tensorflow-cpu
    python rivals/clothing_keras.py FOLDER [EPOCHS] [SEEDS]

FOLDER has `train` and `validation` with a folder of JPEG files per class. Images are decoded, resized to 64x64 (bilinear) and scaled
to 0..1; batches of 32, Adam 1e-3. Prints the held-out accuracy after the last epoch for every seed, and their median.
"""
import os
import pathlib
import statistics
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf


def rows(folder):
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
    images = [tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(str(path)), channels=3), [64, 64]).numpy() / 255 for path, _ in files]
    return np.stack(images).astype("float32"), np.array([label for _, label in files])


def network(classes):
    layers = [keras.layers.Input([64, 64, 3])]
    for channels in [32, 64]:
        layers += [
            keras.layers.Conv2D(channels, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(channels, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.25),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(512, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(classes)]
    return keras.Sequential(layers)


folder = pathlib.Path(sys.argv[1])
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 8
seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
x, y = rows(folder / "train")
held_x, held_y = rows(folder / "validation")
accuracies = []
for seed in range(seeds):
    keras.utils.set_random_seed(seed)
    model = network(int(y.max()) + 1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=epochs, validation_data=(held_x, held_y), verbose=0).history
    accuracies.append(history["val_accuracy"][-1])
    print(f"seed {seed}: held-out accuracy {100 * accuracies[-1]:.2f} %, by epoch {[round(100 * a, 1) for a in history['val_accuracy']]}", flush=True)
print(f"median {100 * statistics.median(accuracies):.2f} %")
